"""Options of `segmenter review`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import ConfigError
from segmenter.base.options import option, positive


@dataclass(frozen=True, kw_only=True)
class ReviewRequest:
    """Options of a review."""

    run: Path = option(..., "run directory, or folder of folds", "RUN", positional=True)
    unlabelled: tuple[str, ...] = option(
        (), "write what to label next in these", "IMAGES", several=True, path=True
    )
    output: Path = option(Path("review"), "folder to write (default: review)", "FOLDER")
    cell: int | None = option(None, "side of squares (default: 16, to label 128)", "PX", read=positive(int))
    most: int = option(200, "findings (default: 200)", "N", read=positive(int))
    points: int | None = option(None, "places to label (default: 50)", "N", read=positive(int))
    apart: int | None = option(None, "between places (default: 256)", "PX", read=positive(int))
    insist: bool = option(False, "take other pixel types or units")
    overwrite: bool = option(False, "replace results")

    def __post_init__(self) -> None:
        if self.cell is not None and self.cell < _LEAST_CELL:
            raise ConfigError("--cell", expected=f"at least {_LEAST_CELL} pixels", got=self.cell)
        if not self.unlabelled and (self.points or self.apart):
            raise ConfigError("--points and --apart", "are for --unlabelled", remedy="name its images")


_LEAST_CELL = 8
