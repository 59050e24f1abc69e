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
        """From any sequences of numbers."""
        return cls(tuple(float(m) for m in mean), tuple(float(s) for s in std))

    def to_dict(self) -> dict[str, list[float]]:
        """What a run directory keeps; `from_dict` is the inverse."""
        return {"mean": list(self.mean), "std": list(self.std)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Normalisation:
        """Inverse of `to_dict`."""
        return cls.of(data["mean"], data["std"])

    def apply(self, image_BHWC: Any, valid_BHW: Any, dtype: str = "float32") -> Any:
        """(pixel − mean) / deviation as a tensor of `dtype`; 0 where a pixel has no data."""
        import tensorflow as tf

        scaled = (tf.cast(image_BHWC, dtype) - tf.constant(self.mean, dtype)) / tf.constant(self.std, dtype)
        return tf.where(valid_BHW[..., tf.newaxis], scaled, tf.zeros((), dtype))
