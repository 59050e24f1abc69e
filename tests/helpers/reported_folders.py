"""Folders that practitioners report, written small: kinds of images and labels, lists, sheets, dates."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import rasterio
import shapely
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.warp import transform_bounds

from tests.helpers import made_folders as made

Codes = NDArray[np.uint8]
SIDE = 64
COLOURS = {0: (0, 0, 0), 1: (48, 112, 32), 2: (176, 112, 32)}
MTL = "GROUP = LANDSAT_METADATA_FILE\n  COLLECTION_NUMBER = 02\n  WRS_TYPE = 2\n  UTM_ZONE = 33\n" + "".join(
    f"  QUANTIZE_CAL_MIN_BAND_{k} = 1\n  REFLECTANCE_ADD_BAND_{k} = -0.2\n" for k in range(1, 8)
)


def field_of(seed: int, count: int = 3, block: int = 16, side: int = SIDE) -> Codes:
    """Return an (H, W) label of random blocks."""
    few = np.random.default_rng(seed).integers(0, count, (side // block,) * 2)
    few.flat[:count] = range(count)
    return np.kron(few, np.ones((block, block), np.int64)).astype(np.uint8)


def picture(label: Codes, seed: int, bands: int = 3) -> NDArray[np.uint8]:
    """Return an (H, W, bands) image whose bands tell the classes apart."""
    base = np.array([[50 + 60 * (c % 3) + 17 * b * ((c + b) % 3) for b in range(bands)] for c in range(300)])
    noise = np.random.default_rng(seed).integers(-12, 13, (*label.shape, bands))
    return (base[label] + noise).clip(1, 255).astype(np.uint8)


def objects_of(label: Codes, first: int = 1) -> NDArray[np.int64]:
    """Return numbers of the connected areas of all classes but 0."""
    numbers, count = np.zeros(label.shape, np.int64), first - 1
    for code in np.unique(label[label > 0]):
        parts, own = cv2.connectedComponents((label == code).astype(np.uint8), connectivity=4)
        numbers[own > 0] = own[own > 0] + count
        count += parts - 1
    return numbers


def edges_of(mask: NDArray[Any], wide: int = 1) -> Codes:
    edge = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8))
    return cv2.dilate(edge, np.ones((wide, wide), np.uint8)).astype(np.uint8)


@dataclass
class Folder:
    """A folder that rows are written to."""

    root: Path

    def save(self, path: str, array: NDArray[Any], at: int | None = None, **options: Any) -> None:
        """Write a raster; `at`: its georeference, in scenes to the east."""
        where = {} if at is None else made.place(100 * at)
        made.save(self.root / path, array, **where, **options)

    def text(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def pairs(self, count: int = 8, number: int = 3, shift: int = 0, **options: Any) -> None:
        """Write images `images/s0.tif` … and their labels `labels/s0.tif` …"""
        for i in range(count):
            label = field_of(i, number)
            self.save(f"images/s{i}.tif", picture(label, i), i)
            self.save(f"labels/s{i}.tif", label + shift, i, **options)

    def areas(self, file: str, boxes: Any, fields: Mapping[str, Any], **options: Any) -> None:
        raw = pytest.importorskip("pyogrio.raw")
        shapes = shapely.to_wkb(np.array([shapely.box(*box) for box in boxes]))
        form = {"geometry_type": "Polygon", "crs": "EPSG:25833", **options}
        values_of = [np.array(own, object) for own in fields.values()]
        raw.write(self.root / file, shapes, values_of, list(fields), **form)


# ------------------------------------------------------------------------------------------ kinds of labels


def instances(
    images: str,
    semantic: str,
    objects: str,
    *,
    form: str = "colours",
    legend: tuple[str, str] = ("", ""),
    first: int = 1,
) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        rng, start = np.random.default_rng(5), first
        palette = {i: tuple(map(int, rng.integers(1, 255, 3))) for i in range(1, 300)} | {0: (0, 0, 0)}
        for i in range(8):
            label = field_of(i, block=8)
            numbers = objects_of(label, start)
            start += int(numbers.max()) - start + 1 if first > 1 else 0
            to.save(images.format(i), picture(label, i))
            if form == "colours":
                to.save(semantic.format(i), made.painted(label, COLOURS))
                to.save(objects.format(i), made.painted(numbers, palette))
            else:
                to.save(semantic.format(i), label)
                to.save(objects.format(i), numbers.astype(np.uint16))
        if legend[0]:
            to.text(*legend)

    return make


def boundary(mask: str, edge: str, wide: int = 1, value: int = 255) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(8):
            label = (field_of(i, 3) == 1).astype(np.uint8)
            to.save(f"images/{i}.png", picture(label, i))
            to.save(mask.format(i), label * value)
            to.save(edge.format(i), edges_of(label, wide) * value)

    return make


def vertices(to: Folder) -> None:
    for i in range(8):
        label = (field_of(i, 3) == 1).astype(np.uint8)
        sides = [np.abs(np.diff(label.astype(int), axis=axis, append=0)) for axis in (0, 1)]
        vertex = cv2.dilate((sides[0] & sides[1]).astype(np.uint8), np.ones((3, 3)))
        for path, array in (("images", picture(label, i)), ("a", label), ("z", vertex)):
            to.save(f"{path}/{i}.tif", array)


def numbered_objects(count: int) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(6):
            numbers = objects_of(field_of(i, 4, 128 // count, 128) * np.uint8(1))
            to.save(f"images/{i}.tif", picture(np.minimum(numbers, 250).astype(np.uint8), i))
            to.save(f"labels/{i}.tif", numbers.astype(np.uint16))

    return make


def bits(to: Folder) -> None:
    for i in range(6):
        label = field_of(i, 5)
        to.save(f"images/{i}.tif", picture(label, i, 4).astype(np.uint16))
        to.save(f"quality/{i}.tif", np.array([21824, 21888, 21952, 22280, 22144], np.uint16)[label])


def bits_beside(to: Folder) -> None:
    for i in range(6):
        label = field_of(i, 3)
        to.save(f"images/{i}.tif", picture(label, i, 4).astype(np.uint16))
        to.save(f"z/{i}.tif", label)
        to.save(f"b/{i}.tif", np.array([21824, 21888, 21952, 22280, 22144], np.uint16)[field_of(i + 9, 5)])


def two_labels(truth: str, other: str) -> Callable[[Folder], None]:
    """Labels, and others of the same classes that are wrong here and there."""

    def make(to: Folder) -> None:
        for i in range(8):
            label = field_of(i)
            wrong = np.where(np.random.default_rng(i).random(label.shape) < 0.1, 0, label).astype(np.uint8)
            for path, array in (("images", picture(label, i)), (truth, label), (other, wrong)):
                to.save(f"{path}/{i}.tif", array, i)

    return make


# ------------------------------------------------------------------------------------------ kinds of images


def quality(image: str, flags: str, label: str, bands: int = 8) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(8):
            drawn, rng = field_of(i), np.random.default_rng(i)
            clear = np.kron(rng.random((8, 8)) < 0.8, np.ones((8, 8)))
            udm = np.stack([clear if b % 2 else 1 - clear for b in range(bands)], axis=2).astype(np.uint8)
            udm[..., bands - 1] = rng.integers(60, 101, clear.shape)
            to.save(image.format(i), picture(drawn, i, 4).astype(np.uint16) * 20, i, nodata=0)
            to.save(flags.format(i), udm, i)
            to.save(label.format(i), drawn, i)

    return make


def preview(image: str, copy: str, label: str, form: str = "rgb", bands: int = 4) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(8):
            drawn = field_of(i)
            light = picture(drawn, i, bands)
            stretched = 255 * (light / 255.0) ** 0.7
            if form == "decibels":
                to.save(image.format(i), (light / 12.0 - 25).astype(np.float32), i)
                small = np.dstack([stretched, light[..., 0] // 2 + light[..., 1] // 2])
            else:
                to.save(image.format(i), light.astype(np.uint16) * 20, i)
                small = stretched[..., :3]
            if form == "half":
                small = small[::2, ::2]
            to.save(copy.format(i), small.astype(np.uint8), i if form == "placed" else None)
            to.save(label.format(i), drawn, i)

    return make


def optical_and_sar(to: Folder) -> None:
    for i in range(6):
        label = field_of(i)
        for kind, array in (
            ("s1", picture(label, i, 2).astype(np.float32)),
            ("s2", picture(label, i, 4)),
            ("lc", label),
        ):
            to.save(f"ROIs_{kind}/ROIs_{kind}_p{i}.tif", array, i)


# ------------------------------------------------------------------------------------------- lists of classes


def listed(file: str, text: str, number: int = 3, shift: int = 0) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        to.pairs(number=number, shift=shift)
        to.text(file, text)

    return make


def metadata(to: Folder) -> None:
    for i in range(8):
        label = field_of(i)
        to.save(f"LC08_192023_2020060{i}.tif", picture(label, i, 7), i)
        to.save(f"LC08_192023_2020060{i}_lc.tif", label + 1, i)
        to.text(f"LC08_192023_2020060{i}_MTL.txt", MTL)


# ----------------------------------------------------------------------------------- zeros, fill and nodata


def heights(to: Folder) -> None:
    for i in range(8):
        label = field_of(i)
        above = np.where(label == 0, 0, 3 + np.random.default_rng(i).random(label.shape))
        image = np.dstack([above, picture(label, i, 2) / 255]).astype(np.float32)
        to.save(f"images/{i}.tif", image, i, nodata=-9999)
        to.save(f"labels/{i}.tif", label, i)


def dark(bands: tuple[int, ...], dtype: str = "uint8", count: int = 3) -> Callable[[Folder], None]:
    """Images that are 0 in some bands where the label is 0."""

    def make(to: Folder) -> None:
        for i in range(8):
            label = field_of(i)
            image = picture(label, i, count)
            image[label == 0, :] = np.where(np.isin(range(count), bands), 0, image[label == 0, :])
            to.save(f"images/{i}.tif", image.astype(dtype), i)
            to.save(f"labels/{i}.tif", label, i)

    return make


def filled(value: float, dtype: str, scale: float = 1.0, offset: float = 0.0) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(8):
            label = field_of(i)
            image = (picture(label, i) * scale + offset).astype(dtype)
            image[:10] = value
            to.save(f"images/{i}.tif", image, i)
            to.save(f"labels/{i}.tif", label, i)

    return make


def national(to: Folder) -> None:
    codes = np.kron(np.random.default_rng(3).choice([11, 21, 31], (8, 64)), np.ones((16, 16))).astype(
        np.uint8
    )
    codes[:, 500:] = 0
    for i in range(8):
        to.save(f"images/s{i}.tif", picture(field_of(i), i, 4), i)
    made.save(to.root / "landcover.tif", codes, **made.place(0), nodata=0)


def burnt(share: float) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(8):
            label = field_of(i, 3) + 1
            label[: int(SIDE * (1 - share))] = 0
            to.save(f"images/s{i}.tif", picture(label, i), i)
            to.save(f"labels/s{i}.tif", label, i, nodata=0)

    return make


def bands_of_labels(of_even: Callable[[Codes], NDArray[Any]]) -> Callable[[Folder], None]:
    """Labels in one band, every other one in more."""

    def make(to: Folder) -> None:
        for i in range(8):
            label = field_of(i)
            to.save(f"images/s{i}.png", picture(label, i))
            to.save(f"labels/s{i}.png", label if i % 2 else of_even(label))

    return make


def two_tags(to: Folder) -> None:
    """Labels with a quarter of no data: 255 in some files; 0, a class of the others, in the rest."""
    for i in range(8):
        label, tag = field_of(i), 255 * (i % 2)
        to.save(f"images/s{i}.tif", picture(label, i), i)
        label[:16] = tag
        to.save(f"labels/s{i}.tif", label, i, nodata=tag)


def one_without_place(to: Folder) -> None:
    """Every other label is larger than its image, by pixels of another value; one pair has no place."""
    for i in range(8):
        label, at = field_of(i), None if i == 5 else i
        to.save(f"images/s{i}.tif", picture(label, i), at)
        to.save(
            f"labels/s{i}.tif", label if i % 2 else np.pad(label, ((0, 2), (0, 3)), constant_values=9), at
        )


def mosaic(frame: int, images: int = 6, cut: int = 0) -> Callable[[Folder], None]:
    """One raster of labels, 20 pixels wider than all images on each side, less `cut` columns."""

    def make(to: Folder) -> None:
        label = np.full((SIDE + 40, 100 * images + 40), frame, np.uint8)
        for i in range(images):
            own = field_of(i) + 1
            to.save(f"images/s{i}.tif", picture(own, i), i)
            label[20 : 20 + SIDE, 20 + 100 * i : 20 + 100 * i + SIDE] = own
        where = made.place(-20)
        where["transform"] @= rasterio.Affine.translation(0, -20)
        made.save(to.root / "labels.tif", label[:, : label.shape[1] - cut], **where)

    return make


def one_nowhere(to: Folder) -> None:
    """One raster of labels in degrees; an image has coordinates that no CRS has."""
    for i in range(8):
        at = made.place(100 * i) if i != 5 else made.place(1 << 100)
        made.save(to.root / f"images/s{i}.tif", picture(field_of(i), i), **at)
    around = made.LEFT - 50, made.TOP - 100, made.LEFT + 500, made.TOP + 50
    west, south, east, north = transform_bounds("EPSG:25833", "EPSG:4326", *around)
    label = np.kron(np.random.default_rng(0).integers(1, 4, (15, 55)), np.ones((20, 20), np.int64))
    grid = rasterio.Affine((east - west) / 1100, 0, west, 0, (south - north) / 300, north)
    made.save(to.root / "lc.tif", label.astype(np.uint8), crs="EPSG:4326", transform=grid)


# ------------------------------------------------------------------------------ polygons, sheets, dates


def corners(i: int, k: int = 0) -> tuple[float, float, float, float]:
    """Return a box inside image i."""
    x, y = made.LEFT + made.METRES * (100 * i + 5 * k), made.TOP
    return x + 1, y - 20, x + 3, y - 5


def several_layers(rival: bool) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(4):
            to.save(f"ortho/s{i}.tif", picture(field_of(i), i), i)
        boxes = [corners(i, k) for i in range(4) for k in range(6)]
        words = ["wood", "water", "town"] * 8
        name = {"soil": ["clay", "sand"] * 12} if rival else {"fua_name": ["Berlin"] * 24}
        to.areas("map.gpkg", boxes, name, layer="boundary", driver="GPKG")
        to.areas("map.gpkg", boxes, {"class_2018": words}, layer="landuse", driver="GPKG")

    return make


def layers(*names: str, **fields: list[str | None]) -> Callable[[Folder], None]:
    """Layers of the same polygons in one file, with numbers and other attributes."""

    def make(to: Folder) -> None:
        for i in range(4):
            to.save(f"ortho/s{i}.tif", picture(field_of(i), i), i)
        boxes = [corners(i, k) for i in range(4) for k in range(6)]
        for name in names:
            to.areas("map.gpkg", boxes, {"number": range(24), **fields}, layer=name, driver="GPKG")

    return make


def area_of_interest(count: int) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(count):
            to.save(f"ortho/s{i}.tif", picture(field_of(i), i), i)
        boxes = [corners(i, k) for i in range(count) for k in range(6)]
        words = (["wood", "water"] * len(boxes))[: len(boxes)]
        to.areas("training.shp", boxes, {"class": words})
        to.areas("aoi.shp", [(*corners(0)[:2], *corners(count)[2:])], {"id": [1]})

    return make


def file_of_each_class(to: Folder) -> None:
    for i in range(3):
        to.save(f"ortho/s{i}.tif", picture(field_of(i), i), i)
    for word in ("wood", "water", "town"):
        to.areas(f"{word}.shp", [corners(i) for i in range(3)], {"id": [1, 2, 3]})


def sheets(names: Callable[[int], str], wide: int = 2) -> Callable[[Folder], None]:
    """Images of 64 pixels, side by side, and labels that are as wide as some of them."""

    def make(to: Folder) -> None:
        for i in range(8):
            made.save(to.root / f"images/t{SIDE * i}.tif", picture(field_of(i), i), **made.place(SIDE * i))
        for i in range(0, 8, wide):
            label = np.hstack([field_of(k) for k in range(i, i + wide)])
            made.save(to.root / f"labels/{names(SIDE * i)}.tif", label, **made.place(SIDE * i))

    return make


def dates(form: str, days: Callable[[int, int], object]) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(6):
            label = field_of(i)
            to.save(f"labels/tile_{i:02}.tif", label, i)
            for k in range(3):
                to.save(form.format(i, days(i, k)), picture(label, i + k), i)

    return make


def without_zeros(to: Folder) -> None:
    for i in range(1, 13):
        to.save(f"images/img_{i}.png", picture(field_of(i), i))
        to.save(f"masks/mask_{i:03}.png", field_of(i))


def two_numbers_without_zeros(to: Folder) -> None:
    for i in range(4):
        for k in range(8, 12):
            to.save(f"a/p{i}_{k}.tif", picture(field_of(i), i))
            to.save(f"b/q{i:02}_{k:03}.tif", field_of(i))


def points(to: Folder) -> None:
    raw = pytest.importorskip("pyogrio.raw")
    to.save("ortho.tif", picture(field_of(0), 0), 0)
    shapes = shapely.to_wkb(np.array([shapely.Point(*corners(0, k)[:2]) for k in range(4)]))
    form = {"geometry_type": "Point", "crs": "EPSG:25833", "driver": "GPKG"}
    raw.write(to.root / "points.gpkg", shapes, [np.array(["a", "b"] * 2, object)], ["class"], **form)


def coco(to: Folder) -> None:
    for i in range(6):
        to.save(f"train/img{i}.png", picture(field_of(i), i))
    to.text("train/_annotations.coco.json", json.dumps({"info": {}, "images": [], "annotations": []}))


def labelme(to: Folder) -> None:
    for i in range(6):
        to.save(f"img{i}.png", picture(field_of(i), i))
        to.text(
            f"img{i}.json", json.dumps({"version": "5", "shapes": [{"label": "roof"}], "imageData": None})
        )


# ------------------------------------------------------------------------------------- labels that do not fit


def misfits(bad: int, total: int = 10, *, placed: bool = True) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        for i in range(total):
            label = field_of(i)
            to.save(f"images/s{i}.tif", picture(label, i), i if placed else None)
            to.save(f"labels/s{i}.tif", label[: 60 if i < bad else None], i if placed else None)

    return make


def damaged(kind: str) -> Callable[[Folder], None]:
    def make(to: Folder) -> None:
        to.pairs(10)
        file = to.root / f"{kind}/s4.tif"
        file.write_bytes(file.read_bytes()[: file.stat().st_size * 3 // 4])

    return make


def elsewhere(to: Folder) -> None:
    """A label of ten lies on the ground of another place."""
    to.pairs(10)
    to.save("labels/s4.tif", field_of(4), 40)


def south_up(to: Folder) -> None:
    for i in range(6):
        label = field_of(i)
        to.save(f"images/s{i}.tif", picture(label, i), i)
        place = made.place(100 * i)
        turned = place["transform"] @ type(place["transform"])(1, 0, 0, 0, -1, SIDE)
        made.save(to.root / f"labels/s{i}.tif", label[::-1], crs=place["crs"], transform=turned)


def roboflow(to: Folder) -> None:
    for split in ("train", "valid", "test"):
        for i in range(4):
            label = field_of(i + len(split))
            to.save(f"{split}/a{i}_jpg.rf.{i}.jpg", picture(label, i))
            to.save(f"{split}/a{i}_jpg.rf.{i}_mask.png", label)
        to.text(f"{split}/_classes.csv", "Pixel Value, Class\n0, background\n1, roof\n2, road\n")


def junk(to: Folder) -> None:
    to.pairs()
    to.text("__MACOSX/images/._s0.tif", "x")
    to.text(".ipynb_checkpoints/a.txt", "x")
    to.text("Thumbs.db", "x")


def floats(to: Folder) -> None:
    for i in range(6):
        label = field_of(i)
        image = picture(label, i).astype(np.float64)
        drawn = label.astype(np.float32)
        image[:5], drawn[:9] = np.nan, np.nan
        to.save(f"images/s{i}.tif", image, i)
        to.save(f"labels/s{i}.tif", drawn, i)


def arcgis(to: Folder) -> None:
    for i in range(8):
        label, name = field_of(i), f"00000000{i}"
        to.save(f"images/{name}.png", picture(label, i))
        to.save(f"labels/{name}.png", label)
        for kind in ("images", "labels"):
            to.text(f"{kind}/{name}.pgw", f"0.5\n0\n0\n-0.5\n{300000 + 200 * i}.25\n5700000.25\n")
    classes_of = [{"Value": code, "Name": name, "Color": COLOURS[code]} for code, name in CLASSES.items()]
    to.text("esri_model_definition.emd", json.dumps({"ImageHeight": 64, "Classes": classes_of}))
    to.text("map.txt", "".join(f"images/00000000{i}.png  labels/00000000{i}.png\n" for i in range(8)))


def shifted(to: Folder) -> None:
    for i in range(6):
        label, place = field_of(i), made.place(100 * i)
        to.save(f"images/s{i}.tif", picture(label, i), i)
        moved = place["transform"] @ type(place["transform"]).translation(0.6 if i % 2 else 0.4, 0)
        made.save(to.root / f"labels/s{i}.tif", label, crs=place["crs"], transform=moved)


def averaged_overviews(to: Folder) -> None:
    """Overviews have values between those of two classes; the pixels have not."""
    for i in range(8):
        label = np.array([1, 2, 9], np.uint8)[field_of(i)]
        to.save(f"images/s{i}.tif", picture(label, i), i)
        to.save(f"labels/s{i}.tif", label, i)
        with rasterio.open(to.root / f"labels/s{i}.tif", "r+") as file:
            file.build_overviews([2, 4], Resampling.average)


def two_latitudes(to: Folder) -> None:
    """Pixels of a web map are as wide on the ground as at the equator, times the cosine of the latitude."""
    side = 0.5971642834779395
    for i in range(8):
        north = 8_399_737.8898 if i % 2 else 0.0  # at 60 degrees
        place = {"crs": "EPSG:3857", "transform": rasterio.Affine(side, 0, 1e6 + 100 * i, 0, -side, north)}
        label = field_of(i)
        made.save(to.root / f"images/s{i}.tif", picture(label, i), **place)
        made.save(to.root / f"labels/s{i}.tif", label, **place)


def without_test_masks(to: Folder) -> None:
    for split, count in (("train", 8), ("test", 3)):
        for i in range(count):
            label = field_of(i + 20 * (split == "test"))
            to.save(f"{split}/images/{split[0]}{i}.png", picture(label, i))
            if split == "train":
                to.save(f"{split}/masks/{split[0]}{i}.png", label)


def geojson(to: Folder) -> None:
    (to.root / "geojson").mkdir()
    for i in range(6):
        to.save(f"rgb/{i}.tif", picture(field_of(i), i), i)
        if i != 3:
            to.areas(f"geojson/{i}.geojson", [corners(i, k) for k in range(3)], {"height": [1.5 * i, 2, 3]})


CLASSES = {0: "background", 1: "tree", 2: "roof"}
LABELMAP = "# label:color_rgb:parts:actions\nbackground:0,0,0::\ntree:48,112,32::\nroof:176,112,32::\n"
