"""Expected figures of studies/four_gpus.md for four 2080 Ti, the default model and the default `Sizes`.

None of them was measured; `python -m studies.four_gpus` computes the page's tables.
"""

from __future__ import annotations

from typing import NamedTuple

LATENCY, BUS = "70 … 200 µs", "3.5 … 6.0 GB/s"
"""Latency of a small sum in a chain, with the wait for the host at its end; bandwidth of the bus."""
_RADIUS, _STRIDE = 107, 16
"""The default model's receptive field to each side, and its stride."""


class Step(NamedTuple):
    """Images a second of one card and of four, and their ratio: (slowest, fastest) assumed machine."""

    one: tuple[float, float]
    four: tuple[float, float]
    speedup: tuple[float, float]


STEPS = {
    "float32": Step((52.34, 84.14), (202.2, 302.9), (3.600, 3.864)),
    "mixed_float16": Step((95.66, 163.2), (359.5, 537.0), (3.291, 3.758)),
}
MAPPED = {"float32": (10.95, 17.89), "mixed_float16": (18.34, 31.03)}
"""Megapixels a second of one card, borders of the windows included."""


def mapped(precision: str, window: int) -> str:
    """Return the range of one card's mapping speed, after discarding the windows' borders."""
    inner = max(window - 2 * (-(-_RADIUS // _STRIDE) * _STRIDE), _STRIDE)
    low, high = ((inner / window) ** 2 * rate for rate in MAPPED[precision])
    return f"{low:.3g} … {high:.3g} MPx/s"
