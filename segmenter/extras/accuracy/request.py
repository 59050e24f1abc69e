"""Options of `accuracy sample` and `accuracy estimate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from segmenter.base.errors import ConfigError
from segmenter.base.options import OverwriteOptions, option
from segmenter.extras.accuracy.estimators import Unit

Allocation = Literal["proportional", "equal", "neyman"]


@dataclass(frozen=True, kw_only=True)
class EstimateRequest:
    """Labelled points, and options of the estimates."""

    points: Path = option(
        ..., "NAME.gpkg of `sample`, or a table with stratum,mapped,reference", "POINTS", positional=True
    )
    areas: Path | None = option(None, "areas of the strata, as a table with stratum,area[,pixels]", "CSV")
    unit: Unit | None = option(None, "of the areas in CSV")
    report: Path | None = option(None, "write a page with the results", "HTML")
    keep: tuple[Path, ...] = option((), "map, folder of maps or run to note them in", "PATH", again=True)
    labels: Path | None = option(None, "labels that AcATaMa saved", "FILE")
    json: bool = option(False, "print all estimates as JSON")

    def __post_init__(self) -> None:
        if self.report is not None and self.report.suffix.lower() not in (".html", ".htm"):
            raise ConfigError("--report", expected="a name that ends with .html", got=self.report)


@dataclass(frozen=True, kw_only=True)
class SampleRequest(OverwriteOptions):
    """Maps, and options of their sample."""

    maps: tuple[Path, ...] = option(..., "GeoTIFFs, or folders of them", "MAP", positional=True, several=True)
    output: Path = option(..., "NAME.gpkg", "FILE")
    points: int | None = option(None, "number of points (default: 600)", "N", least=1)
    error: float | None = option(
        None, "as many points as give overall accuracy this standard error", "SHARE", least=1e-9
    )
    allocation: Allocation = option("proportional", "of points to strata")
    floor: int | None = option(
        None, "least points of a stratum, from 2 (default: 50, or half of an equal part)", "N", least=1
    )
    expect: str = option("0.8", "user's accuracies to plan with: 0.8 or building=0.7,road=0.6", "SHARES")
    strata: Path | None = option(
        None,
        "another map whose classes are the strata; of several maps a folder of files of their names",
        "MAP",
    )
    grid: float | None = option(
        None,
        "cells of this side are the strata (pixels without georeference)",
        "METRES",
        least=1e-9,
    )
    before: Path | None = option(
        None, "older map, or a folder of files of the maps' names: classes are then changes", "MAP"
    )
    seed: int = option(0, "of the draw", "N", least=0)
    chips: Path | None = option(
        None, "folder of images of the maps' names: a picture of each point's surroundings", "FOLDER"
    )

    def __post_init__(self) -> None:
        if self.points is not None and self.error is not None:
            raise ConfigError(
                "--points and --error", expected="one of them", got="both", remedy="leave one out"
            )
        if self.strata is not None and self.grid is not None:
            raise ConfigError(
                "--strata and --grid", expected="one of them", got="both", remedy="leave one out"
            )
        if self.error is not None and not _LEAST_ERROR <= self.error < 0.5:
            share = f"a share from {_LEAST_ERROR:g} to 0.5, such as 0.01"
            raise ConfigError("--error", expected=share, got=f"{self.error:g}")


_LEAST_ERROR = 5e-4
"""Standard error of a million points at most."""
