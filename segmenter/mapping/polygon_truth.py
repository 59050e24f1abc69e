"""Labels of a call that are polygons: rasterised on the grid of each image, as a recipe's are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.errors import DatasetError, SegmenterError
from segmenter.files import caches, real
from segmenter.labels import ClassMap
from segmenter.threads import in_threads
from segmenter.vectors import INSTALL

if TYPE_CHECKING:
    from segmenter.runs.ensemble import AnyRun

Labels = Mapping[Path, Path | SegmenterError]
"""Image → its label, or why it has none."""


def rasterised_truth(labels: Labels, run: AnyRun, asked: str, *, shared: bool) -> tuple[Labels, ClassMap]:
    """Rasters in place of files of polygons, and what their values mean.

    The rule is that of the run's recipe (`dataset.vector`), or of its defaults. The rasters are kept in the
    user's cache.

    Args:
        asked: for messages.
        shared: whether one file is meant for all images.

    Raises:
        DatasetError: the extra is missing.
    """
    try:
        from segmenter.vectors.label_files import LabelFiles
        from segmenter.vectors.rule import BurnRule
    except ModuleNotFoundError as error:
        raise DatasetError(f"{asked}: polygons need the package {error.name}: {INSTALL}") from None
    dataset = run.recipe.dataset
    rule = BurnRule.of(getattr(dataset, "vector", None), run.classes, getattr(dataset, "ignore", ()))
    files = LabelFiles(caches() / "labels", rule)

    def rasterised(image: Path) -> Path | SegmenterError:
        polygons = labels[image]
        if isinstance(polygons, SegmenterError):
            return polygons
        try:
            found = files.label(str(real(image)), image, polygons, shared=shared)
        except SegmenterError as error:
            return error
        return found or DatasetError(f"{image}: no polygon of {polygons} lies on it")

    made = in_threads(rasterised, list(labels), description="rasterising", unit="label")
    found = dict(zip(labels, made, strict=True))
    files.tidy()
    return found, rule.classes
