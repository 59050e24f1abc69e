"""Labels of a call that are made on the grid of each image, of polygons or rasters, as a recipe's are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.base.files import caches, real
from segmenter.base.invocation import installation
from segmenter.base.threads import in_threads
from segmenter.grid.labels import ClassMap
from segmenter.raster.placed import PlacedLabels

if TYPE_CHECKING:
    from segmenter.extras.vectors.label_files import LabelFiles
    from segmenter.runs.ensemble import AnyRun

Labels = Mapping[Path, Path | SegmenterError]
"""Image → its label, or why it has none."""


def rasterised_truth(labels: Labels, run: AnyRun, asked: str, *, shared: bool) -> tuple[Labels, ClassMap]:
    """Return rasters in place of files of polygons, and what their values mean.

    The rule is that of the run's recipe (`dataset.vector`), or of its defaults. The rasters are kept in the
    user's cache.

    Args:
        asked: for messages.
        shared: whether one file is meant for all images.

    Raises:
        DatasetError: the extra is missing.
    """
    try:
        from segmenter.extras.vectors.label_files import LabelFiles
        from segmenter.extras.vectors.rule import BurnRule
    except ModuleNotFoundError as error:
        raise DatasetError(
            f"{asked}: polygons need the package {error.name}: {installation('vectors')}"
        ) from None
    dataset = run.recipe.dataset
    rule = BurnRule.of(getattr(dataset, "vector", None), run.classes, getattr(dataset, "ignore", ()))
    return _made(labels, LabelFiles(caches() / "labels", rule), shared=shared)


def placed_truth(
    labels: Labels, classes: ClassMap, drivers: Sequence[str], *, shared: bool
) -> tuple[Labels, ClassMap]:
    """As `rasterised_truth`, of rasters that are placed by their georeference; `classes`: of their values."""
    return _made(labels, PlacedLabels(caches() / "labels", classes, drivers), shared=shared)


def _made(labels: Labels, files: LabelFiles | PlacedLabels, *, shared: bool) -> tuple[Labels, ClassMap]:
    def made(image: Path) -> Path | SegmenterError:
        source = labels[image]
        if isinstance(source, SegmenterError):
            return source
        try:
            found = files.label(str(real(image)), image, source, shared=shared)
        except SegmenterError as error:
            return error
        return found or DatasetError(f"{image}: no label of {source} lies on it")

    found = in_threads(made, list(labels), description="labels onto images", unit="label")
    files.tidy()
    return dict(zip(labels, found, strict=True)), files.classes
