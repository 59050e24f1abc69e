"""Scale of the scenes of an index: as the recipe says it, else of their georeference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from segmenter.base.errors import DatasetError
from segmenter.base.threads import in_threads
from segmenter.config.recipe import Recipe
from segmenter.grid.gsd import scene_strata
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import raster_info
from segmenter.raster.remote.settings import RemotePath
from segmenter.sampling import TileStrata
from segmenter.tiles.index import TileIndex

_MOST, _MOST_REMOTE = 1000, 100
"""Scenes whose headers are read, where some will do."""


def some_of(scenes: Sequence[Scene]) -> Sequence[Scene]:
    """All scenes, or a bounded number at even distances: a header takes 3 ms, in a bucket a request."""
    most = _MOST_REMOTE if any(isinstance(scene.image, RemotePath) for scene in scenes) else _MOST
    if len(scenes) <= most:
        return scenes
    return [scenes[i] for i in np.linspace(0, len(scenes) - 1, most).round().astype(int)]


def scene_scales(
    dataset: Dataset, scenes: Sequence[Scene], *, progress: bool = True
) -> tuple[float | None, ...]:
    """`Dataset.scale_of` each scene; headers are read only where the recipe does not say the scale.

    Raises:
        RasterError: a header cannot be read.
    """

    def find(scene: Scene) -> float | None:
        if scene.metres_per_pixel is not None:
            return scene.metres_per_pixel
        return dataset.scale_of(scene, raster_info(scene.image).metres_per_pixel)

    return tuple(in_threads(find, scenes, description="scales", unit="scene", progress=progress))


def with_scales(index: TileIndex, dataset: Dataset, recipe: Recipe, *, progress: bool = True) -> TileIndex:
    """The index with its scenes' scales and strata, where the recipe asks for any.

    Raises:
        DatasetError: the scale of a scene is not known.
    """
    boundaries = recipe.sampling.scale_strata
    metres = _asked_scales(dataset, index.scenes, recipe, progress=progress)
    if metres is None:
        return index
    strata = None
    if boundaries:
        found = scene_strata(metres, boundaries)
        strata = TileStrata(found.number_S[index.scene_N], found.titles)
    return replace(index, metres_S=np.array(metres, np.float64), strata=strata)


def check_scales(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse what asks for the scale of training scenes whose scale is not known; reads headers.

    Raises:
        DatasetError: naming the first of them.
    """
    _asked_scales(dataset, dataset.of("train"), recipe, progress=False)


def _asked_scales(
    dataset: Dataset, scenes: Sequence[Scene], recipe: Recipe, *, progress: bool
) -> tuple[float | None, ...] | None:
    """The scales of scenes, each of them known; None where the recipe asks for none."""
    if not recipe.sampling.scale_strata and recipe.augmentation.scale_to is None:
        return None
    asking = "augmentation.scale_to" if recipe.augmentation.scale_to else "sampling.scale_strata"
    metres = scene_scales(dataset, scenes, progress=progress)
    unknown = [scene for scene, m in zip(scenes, metres, strict=True) if m is None]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise DatasetError(
            f"{asking}: expected the metres a pixel of every scene, unknown for {unknown[0].name}{more}: "
            f"{unknown[0].image} has no georeference that tells them; say them with dataset.metres_per_pixel"
        )
    return metres
