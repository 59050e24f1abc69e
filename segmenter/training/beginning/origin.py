"""Records of a run's origin and of its scenes (`runs.records`, `runs.scenes`), written when it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import ConvexHull, QhullError

from segmenter.base.errors import SegmenterError
from segmenter.base.threads import in_threads
from segmenter.config.sampling import SamplingConfig
from segmenter.grid.scenes import SPLITS, Dataset, Scene, path_below
from segmenter.raster import raster_info
from segmenter.raster.ground import lon_lat_corners
from segmenter.runs.records import MOST_OUTLINES, ChosenBy, GroundPlace, Origin, load_origin, save_origin
from segmenter.runs.run import Run
from segmenter.runs.scenes import Digests, KnownScene, RunScenes, load_scenes, save_scenes
from segmenter.tiles.gsd import some_of
from segmenter.tiles.index import TileIndex, cache_folder
from segmenter.tiles.scene_files import scene_digests
from segmenter.training.beginning.fine_tuning import StartingRun

_DIGITS = 6
"""Decimal places of degrees: 0.1 m."""


def record_origin(
    run: Run,
    dataset: Dataset,
    index: TileIndex,
    source: StartingRun | None,
    computed_on: Mapping[str, str],
    chosen: ChosenBy | None = None,
    *,
    resumed: bool,
) -> None:
    """Write the origin of a starting training, once: a resumed run keeps its first record.

    Reads headers of training scenes, at most 1,000.

    Args:
        computed_on, chosen: as in `Origin`, whose `chosen_by` the second is.
        resumed: True for a resumed run: without a record, its start is unknown.

    Raises:
        SegmenterError: the record cannot be written.
    """
    if resumed and load_origin(run.path) is not None:
        return
    begun = started_from = None
    if not resumed:
        begun = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        started_from = "" if source is None else source.run.recipe.name
    origin = origin_of(run.recipe.sampling, dataset, index, begun, started_from)
    save_origin(run.path, origin.model_copy(update={"computed_on": dict(computed_on), "chosen_by": chosen}))


def record_scenes(run: Path, dataset: Dataset, digests: Digests, *, resumed: bool) -> None:
    """Write the role of each scene of a starting training, once: a resumed run keeps its first record.

    Args:
        digests: of the scenes that train and validate.
        resumed: True for a resumed run: only a record of before, which lacks the roles, is replaced.

    Raises:
        SegmenterError: a test image cannot be read, or the record cannot be written.
    """
    if resumed and (known := load_scenes(run)) is not None and known.told:
        return
    tested = scene_digests(dataset.of("test"), cache_folder(dataset))
    places = _places(dataset.scenes)
    parts = {} if dataset.deal is None else dataset.deal.parts
    scenes = {
        scene.name: KnownScene(
            *{**digests, **tested}[scene.name],
            path=path_below(dataset.root, (*scene.files, scene.image)[0]),
            group=scene.group,
            part="" if scene.blocks else parts.get(scene.group, ""),
            place=places.get(scene.name),
            role=scene.split,
            blocks=scene.blocks,
        )
        for scene in dataset.scenes
    }
    for file, _ in dataset.unused:
        path = path_below(dataset.root, file)
        scenes.setdefault(path, KnownScene("", "", path, role="left out"))
    save_scenes(run, RunScenes(scenes, () if dataset.deal is None else (dataset.deal,)))


def _places(scenes: Sequence[Scene]) -> dict[str, tuple[float, float, float, float]]:
    """Return west, south, east and north in degrees by scene, of up to 1,000 scenes with georeference."""
    asked, found = some_of(scenes), dict[str, tuple[float, float, float, float]]()
    headers = in_threads(_corners, asked, description="places", unit="scene")
    for scene, corners in zip(asked, headers, strict=True):
        if corners is not None:
            west, south, east, north = map(float, (*corners.min(axis=0), *corners.max(axis=0)))
            found[scene.name] = (
                *(round(west, _DIGITS), round(south, _DIGITS)),
                *(round(east, _DIGITS), round(north, _DIGITS)),
            )
    return found


def _corners(scene: Scene) -> NDArray[np.float64] | None:
    with suppress(SegmenterError):  # said where its pixels are read
        return lon_lat_corners(raster_info(scene.image))
    return None


def origin_of(
    sampling: SamplingConfig, dataset: Dataset, index: TileIndex, begun: str | None, started_from: str | None
) -> Origin:
    """Return the record of a training on these tiles; the last two arguments are as in `Origin`."""
    names = dataset.classes.names
    held_K = (index.counts_NK >= sampling.min_pixels).sum(axis=0)
    asked = some_of(index.scenes)
    headers = list(in_threads(lambda s: _header(s, dataset), asked, description="places", unit="scene"))
    scales = [metres for _, metres in headers if metres]
    return Origin(
        begun=begun,
        scenes={split: len(dataset.of(split)) for split in SPLITS},
        tiles=len(index),
        tiles_left_out=index.left_out,
        tile_px=index.tile.height,
        pixels=dict(zip(names, index.counts_NK.sum(axis=0).tolist(), strict=True)),
        tiles_with=dict(zip(names, held_K.tolist(), strict=True)),
        metres_per_pixel=(min(scales), max(scales)) if scales else None,
        place=place_of([corners for corners, _ in headers if corners is not None]),
        started_from=started_from,
    )


def _header(scene: Scene, dataset: Dataset) -> tuple[NDArray[np.float64] | None, float | None]:
    """Return corners in degrees and metres a pixel; None if unknown."""
    with suppress(SegmenterError):  # what is wrong with a file is said where its pixels are read
        info = raster_info(scene.image)
        return lon_lat_corners(info), dataset.scale_of(scene, info.metres_per_pixel)
    return None, dataset.scale_of(scene, None)


def place_of(outlines: Sequence[NDArray[np.float64]]) -> GroundPlace | None:
    """Return the location of scenes with (4, 2) corners in degrees; None without scenes."""
    if not outlines:
        return None
    exact = len(outlines) <= MOST_OUTLINES
    rings = outlines if exact else [_around(np.concatenate(list(outlines)))]
    return GroundPlace(rings=tuple(map(_close_ring, rings)), scenes=len(outlines), exact=exact)


def _around(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the convex hull of points, or their bounding rectangle if they lie on a line."""
    try:
        return np.asarray(points[ConvexHull(points).vertices], np.float64)
    except QhullError:
        (west, south), (east, north) = points.min(axis=0), points.max(axis=0)
        return np.array([(west, south), (east, south), (east, north), (west, north)], np.float64)


def _close_ring(corners: NDArray[np.float64]) -> tuple[tuple[float, float], ...]:
    """Return a closed ring, counter-clockwise as in GeoJSON."""
    x, y = corners[:, 0] - corners[0, 0], corners[:, 1] - corners[0, 1]
    area = float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum())
    ring = corners if area >= 0 else corners[::-1]
    points = [(round(float(lon), _DIGITS), round(float(lat), _DIGITS)) for lon, lat in ring]
    return (*points, points[0])
