"""Labels of a call that are polygons, by the rule of the run's recipe (`dataset.vector`) or its defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segmenter.base.errors import DatasetError
from segmenter.base.files import caches
from segmenter.base.invocation import installation

if TYPE_CHECKING:
    from segmenter.extras.vectors.label_files import LabelFiles
    from segmenter.runs.ensemble import AnyRun


def polygon_labels(run: AnyRun, asked: str) -> LabelFiles:
    """Return what makes rasters of files of polygons; they are kept in the user's cache.

    Args:
        asked: the argument that names the files, for messages.

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
    return LabelFiles(caches() / "labels", rule)
