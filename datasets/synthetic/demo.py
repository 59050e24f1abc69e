"""Imagery of the demo: crops, meadows, woods, buildings, roads, and solar parks in one tile of forty.

All classes share their colours and their local contrast; the arrangement of the pattern, such as rows, clumps
or panels, tells them apart. Solar parks are rare by intent: most random batches have none.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path

import numpy as np
from affine import Affine
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.grid.geometry import Size
from segmenter.raster import RasterSpec, write_raster

from .canvas import Canvas, Cover, Pattern, Points, Season, Sun, Surface, parcel_corners, rectangle
from .make import make_whole, refuse_to_overwrite
from .scene import Camera
from .town import Site

SIDE, TILE, GSD = 512, 128, 0.25
"""Pixels of a scene and of a tile on a side; metres per pixel."""
TRAIN, VALIDATION, TEST = 20, 2, 3
"""Scenes of each split; the recipe's tiles of the first are 320, of which 8 show a solar park."""
_PARKS_IN_TRAINING, _PARKS_ELSEWHERE = 8, 2
"""Training scenes with one solar park, parks of each other scene."""
_CRS = "EPSG:25833"
_WEST, _NORTH = 420_000.0, 5_810_000.0
_STEP, _ROAD = 30.0, 6.5
"""Metres from one corner of the parcels to the next, and across a road."""
_CODE = {
    Cover.CROPS: 0,
    Cover.MEADOW: 1,
    Cover.FOREST: 2,
    Cover.BUILDING: 3,
    Cover.ROAD: 4,
    Cover.SPORTS: 5,
}
_PATTERN = {
    Cover.CROPS: "rows",
    Cover.MEADOW: "grain",
    Cover.FOREST: "cells",
    Cover.BUILDING: "seams",
    Cover.ROAD: "slabs",
    Cover.SPORTS: "checks",
}
_COLOURS = {
    Cover.CROPS: "crops",
    Cover.MEADOW: "grass",
    Cover.FOREST: "forest",
    Cover.BUILDING: "roof",
    Cover.ROAD: "street",
    Cover.SPORTS: "roof",
}
_USES = {Cover.CROPS: 0.30, Cover.MEADOW: 0.24, Cover.FOREST: 0.22, Cover.BUILDING: 0.24}
"""Uses of a parcel and their shares; buildings stand on a meadow."""


def make_demo(root: Path, *, seed: int) -> list[Path]:
    """Write the scenes of the demo: `images/NAME.tif`, red, green and blue, and `labels/NAME.tif`, codes.

    Args:
        seed: determines the content.

    Returns:
        The images, in the order of the splits: train, validation, test.

    Raises:
        DatasetError: files would be overwritten.
    """
    names = [name for names in scene_names().values() for name in names]
    images = [root / "images" / f"{name}.tif" for name in names]
    labels = [root / "labels" / f"{name}.tif" for name in names]
    refuse_to_overwrite([*images, *labels])
    with make_whole(root) as aside:
        for number, name in enumerate(Bar(names, desc="making scenes", unit="scene")):
            key = [seed, zlib.crc32(b"demo"), number]
            image, codes = _scene(_parks(number), np.random.default_rng(np.random.SeedSequence(key)))
            corner = _WEST + number % 5 * 2 * SIDE * GSD, _NORTH - number // 5 * 2 * SIDE * GSD
            grid = RasterSpec(crs=_CRS, transform=Affine(GSD, 0.0, corner[0], 0.0, -GSD, corner[1]))
            write_raster(aside / "images" / f"{name}.tif", image, grid)
            write_raster(aside / "labels" / f"{name}.tif", codes, grid)
    return images


def scene_names() -> dict[str, list[str]]:
    """Return the names of the scenes of each split."""
    counts = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    return {split: [f"{split}_{number:02d}" for number in range(1, n + 1)] for split, n in counts.items()}


def _parks(number: int) -> int:
    """Return the solar parks of a scene: in training some have one, most none."""
    if number >= TRAIN:
        return _PARKS_ELSEWHERE
    return int((number + 1) * _PARKS_IN_TRAINING // TRAIN > number * _PARKS_IN_TRAINING // TRAIN)


def _scene(parks: int, rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the (H, W, 3) image and (H, W) codes of a scene."""
    season, camera = Season.draw(rng), Camera.draw(rng)
    canvas = Canvas(Size(SIDE, SIDE), GSD, Sun.draw(rng))
    corners = parcel_corners(canvas, _STEP, 1, 0.15, rng)
    houses: list[Points] = []
    for row, col in product(range(len(corners) - 1), range(corners.shape[1] - 1)):
        parcel = corners[[row, row, row + 1, row + 1], [col, col + 1, col + 1, col]]
        houses += _parcel(canvas, parcel, season, rng)
    for start, stop in _roads(corners, rng):
        (x, y), run = (start + stop) / 2, stop - start
        length, turn = float(np.hypot(*run)) + _ROAD, float(np.arctan2(run[1], run[0]))
        _paint(canvas, rectangle(x, y, length, _ROAD, turn), Cover.ROAD, season, rng)
    for house in houses:
        canvas.cast(house, 3.0)
    canvas.apply_shadows()
    for house in houses:
        _paint(canvas, house, Cover.BUILDING, season, rng)
    for place in rng.choice((SIDE // TILE) ** 2, parks, replace=False):
        row, col = divmod(int(place), SIDE // TILE)
        x, y = ((at + 0.5) * TILE * GSD + rng.uniform(-1, 1) for at in (col, row))
        _park(canvas, (x, y), season, rng)
    table = np.full(len(Cover), 255, np.uint8)
    table[list(_CODE)] = list(_CODE.values())
    return camera.expose(canvas.reflectance_HWC, rng)[..., :3], table[canvas.cover_HW]


def _parcel(canvas: Canvas, parcel: Points, season: Season, rng: np.random.Generator) -> Iterator[Points]:
    """Paint a parcel; yield the outlines of its buildings."""
    kinds, shares = list(_USES), list(_USES.values())
    kind = kinds[int(rng.choice(len(kinds), p=shares))]
    _paint(canvas, parcel, Cover.MEADOW if kind is Cover.BUILDING else kind, season, rng)
    if kind is Cover.BUILDING:
        (x, y), turn = parcel.mean(0), float(np.arctan2(*(parcel[1] - parcel[0])[::-1]))
        yield rectangle(x, y, rng.uniform(14, 20), rng.uniform(11, 14), turn + rng.normal(0, 0.1))


def _park(canvas: Canvas, place: tuple[float, float], season: Season, rng: np.random.Generator) -> None:
    """Paint the nine tables of a solar park around a place, each in a colour of its own."""
    side, turn = rng.uniform(18, 20), rng.uniform(0, np.pi)
    frame = Site(*place, side, side, turn)
    for along, across in product((-side / 3, 0.0, side / 3), repeat=2):
        table = frame.part(along, across, side / 3, side / 3)
        _paint(canvas, table.outline(), Cover.SPORTS, season, rng)


def _paint(canvas: Canvas, outline: Points, cover: Cover, season: Season, rng: np.random.Generator) -> None:
    """Paint a surface in one of its season's colours; contrast and period come from one range for all."""
    pattern = Pattern(_PATTERN[cover], rng.uniform(1.5, 2.2), rng.uniform(0.20, 0.28), rng.uniform(0, np.pi))
    canvas.paint(outline, Surface(season.colour(_COLOURS[cover], rng), pattern), cover, rng)


def _roads(corners: Points, rng: np.random.Generator) -> Iterator[tuple[Points, Points]]:
    """Yield the ends of roads, along whole rows of parcels' borders."""
    for lines in (corners, corners.swapaxes(0, 1)):
        for line in lines:
            if rng.random() < 0.3:
                yield from pairwise(line)
