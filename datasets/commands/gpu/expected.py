"""Say what studies/four_gpus.md expects of 2080 Ti for the default model: sizes of `Sizes`, nothing measured.

`python -m benchmarks.four_gpus` computes these numbers, and a test compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

REPLICAS = 4
LATENCY, BUS = "70 … 200 µs", "3.5 … 6.0 GB/s"
"""Latency of a small sum in a chain, with the wait for the host at its end; bandwidth of the bus."""
_RADIUS, _STRIDE = 107, 16
"""The default model's receptive field to each side, and its stride."""


@dataclass(frozen=True)
class Step:
    """A training step.

    Attributes:
        one, four, speedup: images a second of one card and of four, and their ratio: from the hardest
            assumed machine to the easiest.
        single, own: seconds of the middle machine: of one card, and of each of four without its sums.
        sums, moved: how many of a step, and their bytes.
    """

    one: tuple[float, float]
    four: tuple[float, float]
    speedup: tuple[float, float]
    single: float
    own: float
    sums: int
    moved: int

    def with_sums(self, latency: float, bus: float) -> float:
        """Return the speed-up with these sums.

        Args:
            latency: seconds of a small one, with the wait for the host that is part of it.
            bus: bytes a second; a sum moves 2 (R − 1) / R times its bytes.
        """
        moved = 2 * (REPLICAS - 1) / REPLICAS * self.moved / bus
        return REPLICAS * self.single / (self.own + self.sums * latency + moved)


STEPS = {
    "float32": Step((52.28, 84.02), (202.0, 302.5), (3.600, 3.864), 0.24015, 0.24041, 37, 31_517_112),
    "mixed_float16": Step((95.45, 162.7), (358.8, 535.7), (3.292, 3.759), 0.12188, 0.12214, 37, 31_517_112),
}
MAPPED = {"float32": (10.95, 17.89), "mixed_float16": (18.34, 31.03)}
"""Megapixels a second of one card, borders of the windows included."""


def mapped(precision: str, window: int) -> str:
    """Return what one card maps a second at least and at most, of which a window's border is not kept."""
    kept = max(window - 2 * (-(-_RADIUS // _STRIDE) * _STRIDE), _STRIDE)
    low, high = ((kept / window) ** 2 * rate for rate in MAPPED[precision])
    return f"{low:.3g} … {high:.3g} MPx/s"
