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
        ...,
        "labelled points: NAME.gpkg of `accuracy sample`, or a CSV table with the columns "
        "stratum,mapped,reference",
        "POINTS",
        positional=True,
    )
    areas: Path | None = option(
        None,
        "CSV table with the area of each stratum, in the columns stratum,area[,pixels] (default: areas in "
        "the GeoPackage)",
        "CSV",
    )
    unit: Unit | None = option(
        None, "unit of the areas in --areas: square metres, hectares, square kilometres or pixels"
    )
    report: Path | None = option(None, "HTML page to write with the results (default: none)", "HTML")
    keep: tuple[Path, ...] = option(
        (),
        "map, folder of maps, or run directory into whose metadata the estimates are written, too; may be "
        "repeated (default: none)",
        "PATH",
        again=True,
    )
    labels: Path | None = option(None, "file in which AcATaMa saved the labels of these points", "FILE")
    json: bool = option(False, "print all estimates as one JSON object on stdout, all other text on stderr")

    def __post_init__(self) -> None:
        if self.report is not None and self.report.suffix.lower() not in (".html", ".htm"):
            raise ConfigError("--report", expected="a name that ends with .html", got=self.report)


@dataclass(frozen=True, kw_only=True)
class SampleRequest(OverwriteOptions):
    """Maps, and options of their sample."""

    maps: tuple[Path, ...] = option(
        ...,
        "class maps whose accuracy is to be measured, from which the points are drawn: GeoTIFFs, or "
        "folders of them",
        "MAP",
        positional=True,
        several=True,
    )
    output: Path = option(..., "GeoPackage to write, NAME.gpkg", "FILE")
    points: int | None = option(None, "number of points to draw (default: 600)", "N", least=1)
    error: float | None = option(
        None,
        "standard error of overall accuracy to aim at, as a share such as 0.01; sets the number of points",
        "SHARE",
        least=1e-9,
    )
    allocation: Allocation = option(
        "proportional",
        "division of the points among the strata: in proportion to area, equally, or (neyman) more where "
        "--expect says that the map errs (default: proportional)",
    )
    floor: int | None = option(
        None,
        "smallest number of points in each stratum, at least 2 (default: 50, but no more than half of what "
        "equal parts would be)",
        "N",
        least=1,
    )
    expect: str = option(
        "0.8",
        "user's accuracies to plan with, as shares: one for all classes or building=0.7,road=0.6 (default: "
        "0.8)",
        "SHARES",
    )
    strata: Path | None = option(
        None,
        "another class map whose classes are the strata; for several maps, a folder with files of the same "
        "names (default: the classes of MAP)",
        "MAP",
    )
    grid: float | None = option(
        None,
        "side of the square cells that are the strata, in metres (in pixels without georeference), in "
        "place of classes",
        "METRES",
        least=1e-9,
    )
    before: Path | None = option(
        None,
        "older class map, or a folder of files with the maps' names, to sample changes: the classes are "
        "then pairs such as forest → water",
        "MAP",
    )
    seed: int = option(
        0, "seed of the random points; the same seed gives the same points (default: 0)", "N", least=0
    )
    chips: Path | None = option(
        None,
        "folder of images with the maps' names; a picture of each point's surroundings is written for the "
        "labelling",
        "FOLDER",
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
