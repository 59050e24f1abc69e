"""Scores that the confusion matrix does not hold: their counts, their options, and their place in files.

Such a score takes a module with a `MapTally`, as `shapes`, and its option and row here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from segmenter.base.options import option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from segmenter.evaluation.protocol import Protocol as Rules
    from segmenter.grid.geometry import Size, Window

    Ids = NDArray[np.uint8]

FURTHER = {"boundary": ("Boundary IoU", "iou", "miou"), "objects": ("Object F1", "f1", "mf1")}
"""Keys in files of scores, with title, key of the classes' values, and key of their mean."""
_STRIP_PIXELS = 1 << 21
"""Most pixels of a strip, unless a row has more; `shapes` takes some 60 bytes for each, 170 in pure noise."""


class Tally(Protocol):
    """Counts of maps against labels in plain arrays; `scores.ConfusionMatrix` is the first."""

    def add(self, truth: Ids, predicted: Ids, window: Window) -> None:
        """Count a window of (H, W) class ids; `IGNORE` is no class."""

    def merge(self, other: Self) -> None:
        """Add the counts of other maps."""


class MapTally(Tally, Protocol):
    """Counts of a finished map, whose windows are strips from the top down.

    Attributes:
        margin: rows above and below a strip that `add` sees too, as far as the map has them.
    """

    margin: int

    def close(self) -> None:
        """End the map."""

    def facts(self, protocol: Rules) -> dict[str, Any]:
        """Return scores of the protocol's classes for JSON, by keys of `FURTHER`; null where undefined."""

    def table(self, protocol: Rules) -> str:
        """Return a terminal table of the scores, in percent."""


@dataclass(frozen=True, kw_only=True)
class FurtherScores:
    """Options of further scores."""

    shapes: int | None = option(
        None,
        "score shapes as well: Boundary IoU of pixels within PX pixels of another class (3, for example), "
        "and F1 of objects (default: neither)",
        "PX",
        group="scores",
        least=1,
        most=1000,
    )

    def tallies(self, names: Sequence[str]) -> list[MapTally]:
        """Create an empty tally for each requested score; `names`: those of the classes."""
        asked: list[MapTally] = []
        if self.shapes is not None:
            from segmenter.evaluation.shapes import Shapes  # brings OpenCV and SciPy

            asked.append(Shapes(tuple(names), self.shapes))
        return asked


def count_map(
    tally: MapTally,
    read: Callable[[Window], tuple[Ids, Ids]],
    size: Size,
    left_out: Sequence[int] = (),
    strip_pixels: int = _STRIP_PIXELS,
) -> None:
    """Count a map; memory depends on a strip, not on the raster.

    Args:
        read: returns (H, W) class ids of label and map in a window of the map; `IGNORE` is no class.
        size: size of the map.
        left_out: true classes whose pixels are not scored.
    """
    import numpy as np  # which --help does without

    from segmenter.grid.geometry import Window
    from segmenter.grid.labels import IGNORE
    from segmenter.grid.windows import row_strips

    for strip in row_strips(size, strip_pixels):
        top, stop = max(0, strip.row - tally.margin), min(size.height, strip.row_stop + tally.margin)
        truth, ids = read(Window(top, 0, stop - top, size.width))
        unscored = np.isin(truth, [*left_out, IGNORE]) | (ids == IGNORE)
        truth, ids = np.where(unscored, np.uint8(IGNORE), np.stack([truth, ids]))
        tally.add(truth, ids, strip)
    tally.close()
