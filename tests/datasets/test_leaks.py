"""Scenes of two splits that show the same are found; those that adjoin, or are merely empty, are not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from affine import Affine
from rasterio.warp import transform

from datasets.check import CheckReport, check_dataset
from datasets.leaks import Seen, find_leaks
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.raster import raster_info

Make = Callable[..., Path]
HEIGHT, WIDTH = 23, 31
PIXEL = 0.5
EAST, NORTH = 368_000.0, 5_808_000.0


def pixels(seed: int, bands: int = 3) -> Any:
    return np.random.default_rng(seed).integers(1, 255, (HEIGHT, WIDTH, bands)).astype(np.uint8)


def at(col: float, row: float, degrees: float = 0.0, pixel: float = PIXEL) -> Affine:
    """A transform whose upper left corner lies so many pixels east and south of the first scene's."""
    place = Affine.translation(EAST + col * PIXEL, NORTH - row * PIXEL)
    return place @ Affine.rotation(degrees) @ Affine.scale(pixel, -pixel)


Check = Callable[..., CheckReport]


@pytest.fixture
def check(tmp_path: Path, make_png: Make, make_classes: Callable[..., ClassMap]) -> Check:
    """`check({"a.tif": "train", …})`: the report on these images, each with a label of its own."""

    def run(images: dict[Path, Split], classes: ClassMap | None = None, **options: Any) -> CheckReport:
        scenes = []
        for i, (image, split) in enumerate(images.items()):
            size = raster_info(image).size
            label = np.arange(size.pixels).reshape(size.height, size.width) % 3
            png = make_png(f"label_{i}.png", label.astype(np.uint8))
            scenes.append(Scene(image.stem, image, png, image.stem, split))
        dataset = Dataset("made", tmp_path, tuple(scenes), classes or make_classes(3), **options)
        return check_dataset(dataset, progress=False)

    return run


def leaks(report: CheckReport) -> list[str]:
    return [f.text for f in report.findings if f.kind == "leak"]


def test_the_same_pixels_in_two_splits_are_a_leak_however_they_are_stored(
    check: Check, make_geotiff: Make, make_png: Make
) -> None:
    one = make_geotiff("one.tif", pixels(1), crs=None)
    copy = make_png("copy.png", pixels(1))
    packed = make_geotiff("packed.tif", pixels(1), crs=None, compress="deflate")
    other = make_geotiff("other.tif", pixels(2), crs=None)
    report = check({one: "train", copy: "validation", packed: "train", other: "test"})
    (leak,) = leaks(report)
    assert leak.startswith(f"{one} (train) and {copy} (validation) have the same pixels")
    assert not report.clean
    apart = check({one: "train", packed: "train", other: "test"})
    assert (apart.equal, leaks(apart)) == ((("one", "packed"),), [])


def test_neither_one_other_pixel_nor_empty_tiles_are_a_leak(check: Check, make_geotiff: Make) -> None:
    one, changed, empty = pixels(1), pixels(1), np.full((HEIGHT, WIDTH, 3), 7, np.uint8)
    changed[-1, -1, -1] ^= 1
    for pair in ((one, changed), (empty, empty)):
        train, test = (make_geotiff(f"{i}.tif", image, crs=None) for i, image in enumerate(pair))
        assert leaks(check({train: "train", test: "test"})) == []


@pytest.mark.parametrize(
    ("place", "overlaps"),
    [
        (at(0, 0), "100.0%"),
        (at(10, 10), "38.3%"),
        (at(WIDTH, 0), None),  # adjoins
        (at(WIDTH - 0.5, -HEIGHT + 0.5), None),  # by rounding, half a pixel too near
        (at(0, HEIGHT - 0.4), None),
        (at(5, 5, 30), "62.7%"),
        (at(WIDTH + 9, 15, -45), None),  # their bounding boxes overlap, they do not
        (at(0, 0, pixel=0.25), "100.0%"),
    ],
)
def test_the_same_ground_in_two_splits_is_a_leak(
    place: Affine, overlaps: str | None, check: Check, make_geotiff: Make
) -> None:
    a = make_geotiff("a.tif", pixels(1), transform=at(0, 0))
    b = make_geotiff("b.tif", pixels(2), transform=place)
    found = leaks(check({b: "validation", a: "test"}))
    assert len(found) == (overlaps is not None)
    if overlaps:
        assert f"show the same ground ({overlaps} of the smaller)" in found[0]
    assert leaks(check({a: "train", b: "train"})) == []


def test_ground_is_compared_across_reference_systems(check: Check, make_geotiff: Make) -> None:
    place = Affine(10, 0, 499_900, 0, -10, 5_000_000)
    a = make_geotiff("a.tif", pixels(1), crs="EPSG:32633", transform=place)
    # The same place on the neighbouring zone's grid, and one some kilometres beside it.
    (x,), (y,) = transform("EPSG:32633", "EPSG:32632", [499_900], [5_000_000])
    same = make_geotiff("same.tif", pixels(2), crs="EPSG:32632", transform=Affine(10, 0, x, 0, -10, y))
    away = make_geotiff("away.tif", pixels(3), crs="EPSG:32632", transform=Affine(10, 0, x + 5000, 0, -10, y))
    assert len(leaks(check({a: "train", same: "test"}))) == 1
    assert leaks(check({a: "train", away: "test"})) == []


def test_extents_overlap_where_data_do_not(check: Check, make_geotiff: Make) -> None:
    left, right = pixels(1), pixels(2)
    left[:, WIDTH // 2 :] = 0
    right[:, : WIDTH // 2] = 0
    a, b = (make_geotiff(f"{n}.tif", p, nodata=0) for n, p in (("a", left), ("b", right)))
    whole = make_geotiff("whole.tif", pixels(3))
    assert leaks(check({a: "train", b: "test"})) == []
    assert "48.4% of the smaller" in leaks(check({a: "train", whole: "test"}))[0]


def test_without_any_crs_plain_coordinates_count_unless_they_begin_at_0(check: Check, make_png: Make) -> None:
    a, b = make_png("a.png", pixels(1)), make_png("b.png", pixels(2))
    for origin, number in (("4 6", 1), ("0 0", 0)):
        east, north = map(float, origin.split())
        for path in (a, b):  # a world file gives the middle of the first pixel
            text = f"0.5\n0\n0\n-0.5\n{east + 0.25}\n{north - 0.25}\n"
            path.with_suffix(".pgw").write_text(text)
        assert len(leaks(check({a: "train", b: "test"}))) == number


def test_many_scenes_are_compared_in_little_work(make_geotiff: Make) -> None:
    """A grid of 2,500 adjoining scenes, every other one a test: no leak, and then one between them."""
    info = raster_info(make_geotiff("a.tif", pixels(1)))

    def seen(i: int, col: float, row: float) -> Seen:
        scene = Scene(str(i), Path(f"{i}.tif"), None, str(i), "train" if i % 2 else "test")
        return Seen(scene, None, replace(info, transform=at(col * WIDTH, row * HEIGHT)))

    grid = [seen(i, i % 50, i // 50) for i in range(2500)]
    assert find_leaks(grid) == []
    found = find_leaks([*grid, seen(2501, 10.5, 10)])
    assert 1 <= len(found) <= 2
    assert "2501.tif" in found[0].text()


def test_classes_of_one_colour_are_a_finding(check: Check, make_geotiff: Make) -> None:
    names = ("wood", "road", "path\u200b")
    colours = ((1, 2, 3), (31, 119, 180), (31, 119, 180))
    classes = ClassMap(tuple(map(LandCoverClass, names, colours, range(3))))
    report = check({make_geotiff("a.tif", pixels(1)): "train"}, classes=classes)
    shown = "path\\u200b"
    assert f"road, {shown}: have one colour, #1f77b4; give each its own" in report.text()
    assert not report.clean
    assert all(line.isprintable() for line in report.text().split("\n"))
