"""Per-band standardisation: the one copy of it that training and prediction share.

Pixels without data become 0 after it, which is the mean of the training scenes: the value that the model's
own padding has, so that nodata looks to it like the border of an image.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Normalisation:
    """Mean and deviation of each band over the valid pixels of the training scenes, in the data's units."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, mean: Iterable[float], std: Iterable[float]) -> Normalisation:
        """Make one from any sequences of numbers."""
        return cls(tuple(float(m) for m in mean), tuple(float(s) for s in std))

    def to_dict(self) -> dict[str, list[float]]:
        """Return plain data for a run directory; `from_dict` is the inverse."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Normalisation:
        """Restore from `to_dict`."""
        return cls.of(data["mean"], data["std"])

    def apply(
        self, image_HWC: Any, valid_HW: Any = None, dtype: str = "float32", *, by_rows: bool = True
    ) -> Any:
        """Return (pixel − mean) / deviation as a tensor of `dtype`; 0 where a pixel has no data.

        Args:
            image_HWC: a tensor of any type; more axes may go before.
            valid_HW: the same without bands; None: every pixel has data.
            by_rows: as TensorFlow is quickest; else by broadcasting, without a change of shape, as other
                runtimes are. The values are the same.
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
    """Return the type in which the mean is taken off: float32 would round values of more than 24 bits."""
    import tensorflow as tf

    image = tf.as_dtype(image)
    exact = image.size <= 2 or image == tf.float32
    return tf.as_dtype(dtype) if exact else tf.float64
