"""Imitations of the published datasets: procedural scenes in their exact formats, names and codes.

For demos, tests, and trying a recipe before the data is available; scores on them are meaningless for real
data. Each scene is keyed by (seed, dataset, number): the same seed gives the same bytes, independent of other
scenes.
"""

from __future__ import annotations

import contextlib
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from affine import Affine
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError, counted
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap
from segmenter.raster import RasterSpec, write_raster

from ..published import (
    METRES_PER_PIXEL,
    NAIC2020_ROUND1,
    NAIC2020_ROUND2,
    POTSDAM,
    POTSDAM_TEST,
    POTSDAM_TRAIN,
)
from . import Cover, render_country, render_town

POTSDAM_CRS = "EPSG:25833"
"""UTM zone 33 north, as published."""
BORDER = 3
"""Pixels to either side of a class border that the noBoundary labels leave black."""
NAIC2020_GSD = (0.1, 4.0)
"""Metres per pixel, finest and coarsest, as in the contest's imagery."""
NAIC2020_SCENES = 100_000
"""Labelled tiles of a round."""

_EASTING, _NORTHING = 364_000.0, 5_810_000.0
"""Metres in EPSG:25833, near Potsdam: the upper left corner of the place where row 1, column 1 would lie."""
_IMAGES: dict[str, tuple[str, tuple[int, ...]]] = {
    "2_Ortho_RGB": ("RGB", (0, 1, 2)),
    "3_Ortho_IRRG": ("IRRG", (3, 0, 1)),
    "4_Ortho_RGBIR": ("RGBIR", (0, 1, 2, 3)),
}
_BANDS = ("red", "green", "blue", "near infrared")
_LABELS, _ERODED = "5_Labels_all", "5_Labels_all_noBoundary"

_POTSDAM_OF: dict[Cover, str] = {
    Cover.ROAD: "impervious surfaces",
    Cover.PAVING: "impervious surfaces",
    Cover.PARKING: "impervious surfaces",
    Cover.BUILDING: "building",
    Cover.LAWN: "low vegetation",
    Cover.MEADOW: "low vegetation",
    Cover.TREE: "tree",
    Cover.CAR: "car",
    Cover.CLUTTER: "clutter",
}
_ROUND1_OF: dict[Cover, str] = {
    Cover.WATER: "water",
    Cover.ROAD: "transport",
    Cover.CAR: "transport",
    Cover.PARKING: "transport",
    Cover.PAVING: "transport",
    Cover.AIRPORT: "transport",
    Cover.BUILDING: "building",
    Cover.GREENHOUSE: "building",
    Cover.CROPS: "farmland",
    Cover.LAWN: "grassland",
    Cover.MEADOW: "grassland",
    Cover.TREE: "woodland",
    Cover.FOREST: "woodland",
    Cover.SOIL: "bare soil",
    Cover.EARTHWORKS: "bare soil",
    Cover.CLUTTER: "other",
    Cover.SPORTS: "other",
}
_ROUND2_OF: dict[Cover, str] = _ROUND1_OF | {
    Cover.ROAD: "road",
    Cover.CAR: "road",
    Cover.PAVING: "road",
    Cover.PARKING: "car park",
    Cover.AIRPORT: "airport",
    Cover.SPORTS: "sports ground",
    Cover.GREENHOUSE: "greenhouse",
    Cover.LAWN: "urban green",
    Cover.MEADOW: "natural grassland",
    Cover.TREE: "planted woodland",
    Cover.FOREST: "natural woodland",
    Cover.SOIL: "natural bare soil",
    Cover.EARTHWORKS: "man-made bare soil",
}


def make_potsdam(
    root: Path, *, scenes: int, seed: int, size: int = 6000, padded_names: bool = False
) -> list[Path]:
    """Write Potsdam-like scenes: three image sets, full and eroded labels.

    Args:
        root: folder to write to; the published subfolders are made in it.
        scenes: number of scenes, 1 … 38, with published names; from two on, both splits get some.
        seed: determines the content.
        size: pixels on a side; 6000 as published. The ground sampling distance stays 5 cm.
        padded_names: write `02_10` for `2_10`, as some published archives do.

    Returns:
        The RGB images, in the order of their scenes.

    Raises:
        DatasetError: the number is invalid, or files would be overwritten.
    """
    _in_range("scenes", scenes, 1, len(POTSDAM_TRAIN) + len(POTSDAM_TEST))
    _in_range("size", size, 1, 20_000)
    names = potsdam_names(scenes)
    refuse_to_overwrite([p for name in names for p in _potsdam_files(root, name, padded_names).values()])
    with make_whole(root) as aside:
        for name in Bar(names, desc="making Potsdam-like scenes", unit="scene"):
            _write_potsdam_scene(_potsdam_files(aside, name, padded_names), name, seed, Size(size, size))
    return [_potsdam_files(root, name, padded_names)["2_Ortho_RGB"] for name in names]


def potsdam_names(scenes: int) -> list[str]:
    """Return the names of `scenes` scenes: about five for training per test scene; from two on, both.

    Each split is used from its start, so that a larger number only adds scenes. From 30 on the 24 training
    scenes are used up, and all further ones are test scenes.
    """
    if scenes < 2:
        return list(POTSDAM_TRAIN[:scenes])
    tested = max(1, round(scenes / 6), scenes - len(POTSDAM_TRAIN))
    return [*POTSDAM_TRAIN[: scenes - tested], *POTSDAM_TEST[:tested]]


def _potsdam_files(root: Path, name: str, padded: bool) -> dict[str, Path]:
    row, col = name.split("_")
    stem = f"top_potsdam_{int(row):02d}_{int(col):02d}" if padded else f"top_potsdam_{name}"
    images = {folder: root / folder / f"{stem}_{kind}.tif" for folder, (kind, _) in _IMAGES.items()}
    labels = {_LABELS: root / _LABELS / f"{stem}_label.tif"}
    labels[_ERODED] = root / _ERODED / f"{stem}_label_noBoundary.tif"
    return images | labels


def _write_potsdam_scene(files: dict[str, Path], name: str, seed: int, size: Size) -> None:
    rendering = render_town(size, METRES_PER_PIXEL, _generator(seed, "potsdam", *map(int, name.split("_"))))
    ids = _class_ids(rendering.cover_HW, POTSDAM, _POTSDAM_OF)
    colours = POTSDAM.palette()[ids]
    grid: dict[str, Any] = {"crs": POTSDAM_CRS, "transform": potsdam_transform(name, size)}
    for folder, (_, bands) in _IMAGES.items():
        described = [_BANDS[band] for band in bands]
        write_raster(
            files[folder], rendering.image_HWC[..., list(bands)], RasterSpec(descriptions=described, **grid)
        )
    write_raster(files[_LABELS], colours, RasterSpec(**grid))
    colours[class_borders(ids)] = 0
    write_raster(files[_ERODED], colours, RasterSpec(**grid))


def potsdam_transform(name: str, size: Size) -> Affine:
    """Return the transform from pixels to EPSG:25833 metres; a name's row counts south, its column east."""
    row, col = map(int, name.split("_"))
    west = _EASTING + (col - 1) * size.width * METRES_PER_PIXEL
    north = _NORTHING - (row - 1) * size.height * METRES_PER_PIXEL
    return Affine(METRES_PER_PIXEL, 0.0, west, 0.0, -METRES_PER_PIXEL, north)


def class_borders(ids_HW: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return an (H, W) mask of pixels with another class within a disc of `BORDER` pixels, as published."""
    reach = np.arange(-BORDER, BORDER + 1)
    disc = (reach[:, None] ** 2 + reach[None] ** 2 <= BORDER**2).astype(np.uint8)
    edges: NDArray[np.bool_] = cv2.dilate(ids_HW, disc) != cv2.erode(ids_HW, disc)
    return edges


def make_naic2020(root: Path, *, scenes: int, seed: int, round: int = 1, size: int = 256) -> list[Path]:
    """Write NAIC2020-like tiles: `train/images/NNNN.tif` and `train/labels/NNNN.png`, without georeference.

    Labels have one band: 16-bit codes 100 … 800 in round 1, 8-bit codes 1 … 17 in round 2. The ground
    sampling distance differs from tile to tile, evenly in its logarithm.

    Args:
        root: folder to write to.
        scenes: number of tiles.
        seed: determines the content.
        round: round of the contest, 1 or 2.
        size: pixels on a side; 256 as published.

    Returns:
        The images, in the order of their numbers.

    Raises:
        DatasetError: a number is invalid, or files would be overwritten.
    """
    _in_range("scenes", scenes, 1, NAIC2020_SCENES)
    _in_range("round", round, 1, 2)
    _in_range("size", size, 1, 4096)
    classes, covers = (NAIC2020_ROUND1, _ROUND1_OF) if round == 1 else (NAIC2020_ROUND2, _ROUND2_OF)
    digits = max(4, len(str(scenes)))
    images = [root / "train" / "images" / f"{n:0{digits}d}.tif" for n in range(1, scenes + 1)]
    labels = [root / "train" / "labels" / f"{path.stem}.png" for path in images]
    refuse_to_overwrite([*images, *labels])
    with make_whole(root) as aside:
        for number, pair in enumerate(
            zip(Bar(images, desc="making tiles", unit="tile"), labels, strict=True), start=1
        ):
            image, label = (aside / path.relative_to(root) for path in pair)
            rng = _generator(seed, "naic2020", number)
            gsd = float(np.exp(rng.uniform(*np.log(NAIC2020_GSD))))
            rendering = render_country(Size(size, size), gsd, rng)
            codes = classes.codes()[_class_ids(rendering.cover_HW, classes, covers)]
            write_raster(image, rendering.image_HWC[..., :3])
            write_raster(label, codes if round == 1 else codes.astype(np.uint8), RasterSpec(driver="PNG"))
    return images


def _generator(seed: int, dataset: str, *number: int) -> np.random.Generator:
    _in_range("seed", seed, 0, 2**63 - 1)
    return np.random.default_rng(np.random.SeedSequence([seed, zlib.crc32(dataset.encode()), *number]))


def _class_ids(cover_HW: NDArray[np.uint8], classes: ClassMap, of: dict[Cover, str]) -> NDArray[np.uint8]:
    """Return (H, W) class ids; a cover without a class in the dataset is an error."""
    table = np.full(len(Cover), 255, np.uint8)
    for cover, name in of.items():
        table[cover] = classes.names.index(name)
    ids: NDArray[np.uint8] = table[cover_HW]
    assert ids.max(initial=0) < len(classes)
    return ids


def _in_range(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise DatasetError(what, expected=f"a number from {least} to {most}", got=value)


def refuse_to_overwrite(paths: Sequence[Path]) -> None:
    """Refuse to overwrite files, which may be real data."""
    existing = [path for path in paths if path.exists()]
    if existing:
        raise DatasetError(
            existing[0],
            f"exists already ({len(existing)} of the {counted(len(paths), 'file')} to make)",
            remedy="nothing was written: give an empty folder, or remove them first",
        )


@contextlib.contextmanager
def make_whole(root: Path) -> Iterator[Path]:
    """Yield a temporary folder; move its files to the same places below `root` if no error occurs.

    Its name is hidden, so that datasets ignore leftovers of a killed process; the next call removes these.
    """
    was_there, aside = root.exists(), root / ".making"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        yield aside
        for file in sorted(path for path in aside.rglob("*") if path.is_file()):
            place = root / file.relative_to(aside)
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
        if not was_there:
            with contextlib.suppress(OSError):  # it holds what was made
                root.rmdir()
