"""Per-band standardisation, shared by training and prediction.

Pixels without data become 0, the mean of the training scenes. The model's padding is 0 too, so missing data
looks to it like the border of an image.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

_LARGEST = 1e38
"""Largest number that is computed with, in float32; the smallest normal one is 1.2e-38."""


@dataclass(frozen=True)
class Normalisation:
    """Mean and deviation of each band over the valid pixels of the training scenes, in the data's units."""

    mean: tuple[Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)], ...]
    std: tuple[Annotated[float, Field(ge=1 / _LARGEST, le=_LARGEST)], ...]

    @classmethod
    def of(cls, mean: Iterable[float], std: Iterable[float]) -> Normalisation:
        """Build a normalisation from any sequences of numbers."""
        return cls(tuple(float(m) for m in mean), tuple(float(s) for s in std))

    def apply(
        self, image_HWC: Any, valid_HW: Any = None, dtype: str = "float32", *, by_rows: bool = True
    ) -> Any:
        """Return (pixel − mean) / deviation as a tensor of `dtype`; 0 where a pixel has no data.

        Args:
            image_HWC: tensor of any type; further leading axes are allowed.
            valid_HW: mask without the band axis; None: every pixel has data.
            by_rows: use the form that is fastest in TensorFlow; else broadcasting without reshape, for other
                runtimes. The values are the same.
        """
        import tensorflow as tf

        if by_rows:
            scaled = self._by_rows(image_HWC, dtype)
        else:
            std = tf.constant(self.std, dtype)
            wide = _wide(image_HWC.dtype, dtype)
            scaled = tf.cast(tf.cast(image_HWC, wide) - tf.constant(self.mean, wide), dtype) / std
        if valid_HW is None:
            return scaled
        return tf.where(valid_HW[..., tf.newaxis], scaled, tf.zeros((), dtype))

    def _by_rows(self, image_HWC: Any, dtype: str) -> Any:
        import tensorflow as tf

        shape = tf.shape(image_HWC)
        # Rows of W * C values: TensorFlow broadcasts along a last axis of three bands ten times as slowly.
        wide = _wide(image_HWC.dtype, dtype)
        rows = tf.cast(tf.reshape(image_HWC, [-1, shape[-2] * shape[-1]]), wide)
        mean = tf.tile(tf.constant(self.mean, wide), [shape[-2]])
        std = tf.tile(tf.constant(self.std, dtype), [shape[-2]])
        return tf.ensure_shape(tf.reshape(tf.cast(rows - mean, dtype) / std, shape), image_HWC.shape)


def _wide(image: Any, dtype: str) -> Any:
    """Return the type for subtracting the mean: float32 would round values of more than 24 bits."""
    import tensorflow as tf

    image = tf.as_dtype(image)
    exact = image.size <= 2 or image == tf.float32
    return tf.as_dtype(dtype) if exact else tf.float64
