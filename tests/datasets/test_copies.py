"""Copies and windows of one picture are found by their pixels under any names; look-alikes are not."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom

from datasets.contents import Contents
from datasets.copies import prove_common
from datasets.landmarks import Guess
from datasets.leaks import AuditedScene, Leak, cut_pictures, find_leaks
from datasets.neighbours import borders_of, pictures_of
from segmenter.grid.geometry import Size, Window
from segmenter.grid.scenes import Scene
from segmenter.raster import raster_info
from tests.helpers import made_folders as made

Image = NDArray[np.uint8]


@cache
def land(seed: int, size: tuple[int, int] = (300, 340)) -> Image:
    """Return an image (H, W, 3) of things of many sizes."""
    rng = np.random.default_rng(seed)
    grown = sum(
        width * gaussian_filter(rng.normal(size=(*size, 3)), (width, width, 0.5)) for width in (1.2, 3, 9)
    )
    return (128 + 90 * np.asarray(grown)).clip(0, 255).astype(np.uint8)


def stored(path: Path, image: NDArray[Any], quality: int) -> Path:
    """Write an image as PNG, as JPEG of this quality, or as GeoTIFF if it is of another type."""
    if image.dtype != np.uint8:
        return made.save(path.with_suffix(".tif"), image)
    kind = {"driver": "JPEG", "QUALITY": quality} if quality else {"driver": "PNG"}
    size = {"height": image.shape[0], "width": image.shape[1], "count": 3, "dtype": "uint8"}
    path = path.with_suffix(".jpg" if quality else ".png")
    with rasterio.open(path, "w", **kind, **size) as file:
        file.write(np.ascontiguousarray(np.moveaxis(image, 2, 0)))
    return path


def leaks(folder: Path, *images: NDArray[Any], quality: int = 0) -> list[Leak]:
    """Return the leaks from the first image, which trains, to the others, which test, under odd names."""
    seen = []
    for i, image in enumerate(images):
        path = stored(folder / f"{'qwertz'[i]}", image, quality if i else 0)
        scene = Scene(path.stem, path, None, path.stem, "test" if i else "train")
        seen.append(AuditedScene(scene, None, raster_info(path), landmarks=Contents().image(path).landmarks))
    return find_leaks(seen)


def smaller(image: Image, factor: float) -> Image:
    width = max(0.0, 0.4 / factor - 0.4)
    smooth = gaussian_filter(image.astype(np.float32), (width, width, 0))
    sized: Image = (
        zoom(smooth, (factor, factor, 1), order=1, grid_mode=True, mode="nearest")
        .clip(0, 255)
        .astype(np.uint8)
    )
    return sized


SEEDS = [31, 32]
COPIES: dict[str, Callable[[Image], Image]] = {
    "a quarter in common": lambda image: image[113:, 97:],
    "a strip in common": lambda image: image[:, 181:],
    "shifted by odd numbers": lambda image: image[7:263, 11:267],
    "turned by 90": lambda image: np.rot90(image[:251]),
    "turned by 180": lambda image: np.rot90(image, 2),
    "turned by 270": lambda image: np.rot90(image[:, :233], 3),
    "mirrored": lambda image: image[:, ::-1],
    "transposed": lambda image: image.transpose(1, 0, 2),
    "half as large": lambda image: smaller(image, 0.5),
    "darker": lambda image: (image * 0.8 + 9).astype(np.uint8),
    "larger by half": lambda image: smaller(image[:257], 1.5),
}


@pytest.mark.parametrize("kind", COPIES)
@pytest.mark.parametrize("seed", SEEDS)
def test_copies_of_other_pixels_are_leaks(kind: str, seed: int, tmp_path: Path) -> None:
    image = land(seed)
    (leak,) = leaks(tmp_path, image, np.ascontiguousarray(COPIES[kind](image)), land(seed + 100))
    assert {leak.first.name, leak.second.name} == {"q", "w"}


UNITS: dict[str, tuple[str, float, float]] = {
    "16-bit": ("uint16", 0, 40),
    "negative numbers": ("int16", -3000, 20),
    "decibels": ("float32", -25, 0.1),
    "float from 0 to 1": ("float32", 0, 1 / 255),
    "float from -1 to 1": ("float32", -1, 2 / 255),
    "a tiny range": ("float32", 0, 1e-9),
    "a small range far from 0": ("float32", 300, 1e-3),
}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("bands", [1, 3])
def test_copies_are_leaks_in_any_unit(unit: str, bands: int, tmp_path: Path) -> None:
    dtype, least, step = UNITS[unit]
    for kind, change in list(COPIES.items())[::2]:
        images = land(31), change(land(31)), land(131)
        (folder := tmp_path / kind).mkdir()
        values = [(least + step * image[..., :bands].astype(np.float64)).astype(dtype) for image in images]
        found = leaks(folder, *(each[..., 0] if bands == 1 else each for each in values))
        assert [{leak.first.name, leak.second.name} for leak in found] == [{"q", "w"}], kind


@pytest.mark.parametrize("value", [0.0, 0.3, 1e-9, 3e5])
def test_rounding_of_one_colour_proves_nothing(value: float) -> None:
    plain = value * (1 + 1e-7 * np.random.default_rng(3).normal(size=(128, 128)))

    def read(window: Window) -> NDArray[np.float32]:
        return plain[window.slices()].astype(np.float32)

    assert prove_common(Guess(0, 1, np.eye(2, 3), 4), (Size(128, 128), Size(128, 128)), (read, read)) is None


SMALL: dict[str, Callable[[Image], Image]] = {
    "half in common": lambda image: image[3:131, 64:192],
    "a quarter away, turned": lambda image: np.rot90(image[33:161, 31:159]),
    "half as large": lambda image: smaller(image[:128, :128], 0.5),
    "two thirds as large": lambda image: smaller(image[:128, :128], 0.67),
    "noisy": lambda image: (
        (image[:128, :128] + np.random.default_rng(2).normal(0, 9, (128, 128, 3)))
        .clip(0, 255)
        .astype(np.uint8)
    ),
}


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize("seed", SEEDS)
def test_small_tiles_of_one_picture_are_leaks(kind: str, seed: int, tmp_path: Path) -> None:
    image = land(seed)
    copy = np.ascontiguousarray(SMALL[kind](image))
    (leak,) = leaks(tmp_path, image[:128, :128], copy, land(seed + 100)[:128, :128])
    assert {leak.first.name, leak.second.name} == {"q", "w"}


@pytest.mark.parametrize("seed", SEEDS)
def test_recompressed_copies_are_leaks(seed: int, tmp_path: Path) -> None:
    image = land(seed, (256, 256))
    assert len(leaks(tmp_path, image, image, land(seed + 100), quality=60)) == 1


def test_what_only_looks_alike_is_no_leak(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    rows, cols = np.indices((256, 256))

    def noisy(plain: NDArray[np.float64]) -> Image:
        return (plain[..., None] + rng.normal(0, 3, (256, 256, 3))).clip(0, 255).astype(np.uint8)

    fields = 60.0 * ((rows // 19 + cols // 23) % 3) + 50
    kinds = [np.full((256, 256), 90.0), rows / 2 + 40, 128 + 60 * np.sin(cols / 5), fields]
    for i, plain in enumerate(kinds):
        folder = tmp_path / str(i)
        folder.mkdir()
        assert leaks(folder, noisy(plain), noisy(plain), noisy(np.roll(plain, 19, axis=0))) == []
    exact = (fields[..., None] * np.ones(3)).astype(np.uint8)
    assert leaks(tmp_path, exact, np.roll(exact, 57, axis=0)) == [], "a pattern lies over itself"


@pytest.mark.parametrize("scale", [0.34, 0.45, 0.5, 0.7, 1.0])
def test_one_strong_corner_proves_nothing(scale: float) -> None:
    """Two fields in two forests: their corners fit, whatever lies around them."""
    rows, cols = np.indices((128, 128))
    corner = 80.0 * ((rows > 87) & (cols < 88))
    fields = [gaussian_filter(land(seed)[:128, :128].mean(axis=2) / 12, 1) + corner for seed in (61, 62)]
    reads = [lambda window, each=each: each[window.slices()].astype(np.float32) for each in fields]
    sizes, away = (Size(128, 128), Size(128, 128)), 87.5 * (1 - scale)
    guess = Guess(0, 1, np.array([[scale, 0, away], [0, scale, away]]), 4)
    assert prove_common(guess, sizes, (reads[0], reads[1])) is None
    assert prove_common(Guess(0, 1, np.eye(2, 3), 4), sizes, (reads[0], reads[0])) is not None


def test_tiles_of_a_picture_are_neighbours_by_borders_and_numbers() -> None:
    pictures = [land(seed, (256, 320)).mean(axis=2).astype(np.float32) for seed in (51, 52)]
    cut = {
        Path(f"{'ab'[p]}_{row * 5 + col}.png"): picture[row * 64 : row * 64 + 64, col * 64 : col * 64 + 64]
        for p, picture in enumerate(pictures)
        for row in range(4)
        for col in range(5)
    }
    found = pictures_of(list(cut), [borders_of(tile) for tile in cut.values()])
    assert found is not None
    begins, cells_S2 = found
    assert begins == [path.name[:2] for path in cut]
    assert cells_S2.tolist() == [[row, col] for _ in pictures for row in range(4) for col in range(5)]
    windows = {
        Path(f"a_{row * 9 + col}.png"): pictures[0][row * 32 : row * 32 + 64, col * 32 : col * 32 + 64]
        for row, col in np.ndindex(7, 9)
    }
    assert pictures_of(list(windows), [borders_of(tile) for tile in windows.values()]) is None
    alone = [land(seed, (64, 64)).mean(axis=2).astype(np.float32) for seed in range(40)]
    assert pictures_of(list(cut), [borders_of(tile) for tile in alone]) is None


@pytest.mark.parametrize(("between", "warned"), [("train", True), ("left out", False)])
def test_tiles_of_a_picture_warn_where_what_is_held_out_touches_what_trains(
    between: str, warned: bool
) -> None:
    picture = land(53, (256, 320)).mean(axis=2).astype(np.float32)
    seen = []
    for row, col in np.ndindex(4, 5):
        path = Path(f"a_{row * 5 + col}.png")
        split = ["test", between, "train", "train", "train"][col]
        if split != "left out":
            borders = borders_of(picture[row * 64 : row * 64 + 64, col * 64 : col * 64 + 64])
            scene = Scene(path.stem, path, None, path.stem, split)
            seen.append(AuditedScene(scene, None, None, borders=borders))
    assert len(cut_pictures(seen)) == warned
