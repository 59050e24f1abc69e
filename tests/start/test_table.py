"""The table of layouts: what is seen in a folder, and what comes: right, asked, or refused.

It grows by a row, not by a rule. Rows with a number are situations that practitioners report; the others are
their siblings, made otherwise. Published layouts are in `test_layouts` and `test_several_files`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import pytest
import shapely
from numpy.typing import NDArray

from datasets import load_dataset
from datasets.check import check_dataset
from datasets.start import classes, folder_facts, kinds, legends, look, pixels, polygons
from datasets.start.choice import Choice, asked, nested, recipe_text
from segmenter.base.errors import SegmenterError
from segmenter.config.reading import recipe_from
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


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        make: writes the folder that is seen.
        comes: right, asked or refused.
        keys: settings that come, by the last part of their keys; `names`: names of classes by code; in a row
            that is refused, texts that fields of the error hold.
        rule: function that decides it; None: as any folder is read.
        instead: settings by the lines to paste.
        labels: labels that the user named.
    """

    make: Callable[[Folder], None]
    comes: Literal["right", "asked", "refused"]
    keys: Mapping[str, Any]
    rule: Callable[..., Any] | None = None
    instead: Mapping[str, Any] = field(default_factory=dict)
    labels: str | None = None


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


def predictions(to: Folder) -> None:
    for i in range(8):
        label = field_of(i)
        wrong = np.where(np.random.default_rng(i).random(label.shape) < 0.1, 0, label).astype(np.uint8)
        for path, array in (("images", picture(label, i)), ("labels", label), ("predictions", wrong)):
            to.save(f"{path}/{i}.tif", array, i)


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
CVAT = ("JPEGImages/s{}.png", "SegmentationClass/s{}.png", "SegmentationObject/s{}.png")
YOLO = "path: data\nnc: 3\nnames: [roof, road, water]\n"
SHIFTED = {1: "roof", 2: "road", 3: "water"}
PLANET = ("2022010{}_1010_3B_AnalyticMS_SR.tif", "2022010{}_1010_3B_udm2.tif", "2022010{}_1010_label.tif")
UNNAMED = {code: f"class {code}" for code in (1, 2, 3)}

TABLE: dict[str, Row] = {
    # kinds of labels
    "1 CVAT: classes and objects as colours, a list of three": Row(
        instances(*CVAT, legend=("labelmap.txt", LABELMAP)),
        "right",
        {"labels": "SegmentationClass/{name}.png", "names": [*CLASSES.values()]},
        kinds.fit_lists,
    ),
    "2 labelme: codes of classes and of objects, a list of three": Row(
        instances(*CVAT, form="codes", legend=("class_names.txt", "_background_\ntree\nroof\n")),
        "right",
        {"labels": "SegmentationClass/{name}.png", "names": {**CLASSES, 0: "_background_"}},
        kinds.fit_lists,
    ),
    "classes and objects, no list": Row(
        instances("im/{}.png", "a/{}.png", "b/{}.png"),
        "right",
        {"labels": "a/{name}.png"},
        pixels.object_purity,
    ),
    "classes and objects that are counted on from image to image": Row(
        instances("im/{}.tif", "z/{}.tif", "a/{}.tif", form="codes", first=2),
        "right",
        {"labels": "z/{name}.tif"},
        pixels.object_purity,
    ),
    "3 masks of areas and of their borders": Row(
        boundary("polygon_masks/{}.png", "boundary_masks/{}.png"),
        "right",
        {"labels": "polygon_masks/{name}.png"},
        pixels.edge_share,
    ),
    "wide contours, by names that tell nothing": Row(
        boundary("y/{}.png", "x/{}.png", 5, 1), "right", {"labels": "y/{name}.png"}, pixels.edge_share
    ),
    "corners beside the areas": Row(vertices, "right", {"labels": "a/{name}.tif"}, pixels.edge_share),
    "objects alone": Row(numbered_objects(8), "refused", {"got": "objects"}, pixels.count_objects),
    "many objects, named as labels": Row(
        numbered_objects(32),
        "refused",
        {"where": "labels", "got": "objects"},
        pixels.count_objects,
        labels="labels",
    ),
    "flags in bits as labels": Row(bits, "refused", {"where": "labels"}, pixels.are_bits),
    "flags in bits beside labels": Row(bits_beside, "right", {"labels": "z/{name}.tif"}, pixels.are_bits),
    "41 predictions beside the truth": Row(predictions, "right", {"labels": "labels/{name}.tif"}),
    # kinds of images
    "4 PlanetScope: usable data masks": Row(
        quality(*PLANET), "right", {"images": "{name}_3B_AnalyticMS_SR.tif"}, pixels.has_flags
    ),
    "5 the same, labels in a folder": Row(
        quality(PLANET[0], PLANET[1], "labels/2022010{}_1010.tif"),
        "right",
        {"images": "{name}_3B_AnalyticMS_SR.tif"},
        pixels.has_flags,
    ),
    "flags by a name that tells nothing": Row(
        quality("b/{}.tif", "a/{}.tif", "c/{}.tif", 4), "right", {"images": "b/{name}.tif"}, pixels.has_flags
    ),
    "more bands of flags than of light": Row(
        quality("s{}_x.tif", "s{}_rgb.tif", "s{}_mask.tif", 12),
        "right",
        {"images": "{name}_x.tif"},
        pixels.has_flags,
    ),
    "6 previews of 8 bits without georeference": Row(
        preview("chip_00{}.tif", "chip_00{}_rgb.png", "chip_00{}_mask.tif"),
        "right",
        {"images": "{name}.tif"},
        pixels.is_copy,
    ),
    "7 SAR in decibels and its quicklook": Row(
        preview("p{}.tif", "p{}_quicklook.png", "p{}_label.tif", "decibels", 2),
        "right",
        {"images": "{name}.tif"},
        pixels.is_copy,
    ),
    "a preview with georeference": Row(
        preview("img/{}.tif", "rgb/{}.tif", "label/{}.tif", "placed"),
        "right",
        {"images": "img/{name}.tif"},
        pixels.is_copy,
    ),
    "a preview of half the size": Row(
        preview("x/{}.tif", "image/{}.png", "mask/{}.tif", "half"),
        "right",
        {"images": "x/{name}.tif"},
        pixels.is_copy,
    ),
    "30 optical and SAR": Row(optical_and_sar, "right", {"images": "ROIs_s2/ROIs_s2_{name}.tif"}),
    # lists of classes
    "8 three names for 1, 2, 3": Row(
        listed("classes.txt", "roof\nroad\nwater\n", shift=1),
        "right",
        {"names": SHIFTED},
        legends.codes_of_names,
    ),
    "9 labelme's list with __ignore__": Row(
        listed("labels.txt", "__ignore__\n_background_\ntree\nroof\n"),
        "right",
        {"names": {**CLASSES, 0: "_background_"}},
        legends.codes_of_names,
    ),
    "10 YOLO's list, the last class does not occur": Row(
        listed("data.yaml", YOLO),
        "asked",
        {"names": {0: "roof", 1: "road", 2: "water"}},
        legends.codes_of_names,
        {"names": {0: "background", 1: "roof", 2: "road"}},
    ),
    "three names for 0 … 3: 0 is none of them": Row(
        listed("obj.names", "roof\nroad\nwater\n", 4),
        "right",
        {"names": {0: "background", **SHIFTED}},
        legends.codes_of_names,
    ),
    "three names for 1 and 2": Row(
        listed("classes.txt", "roof\nroad\nwater\n", 2, 1),
        "asked",
        {"names": {1: "roof", 2: "road"}},
        legends.codes_of_names,
        {"names": {1: "road", 2: "water"}},
    ),
    "a list numbered from 0, labels from 1": Row(
        listed("classes.csv", "id,name\n0,roof\n1,road\n2,water\n", shift=1),
        "asked",
        {"names": SHIFTED},
        legends.codes_of_names,
        {"names": {1: "road", 2: "water", 3: "class 3"}},
    ),
    "a list numbered from 1, labels from 0": Row(
        listed("classes.csv", "id,name\n1,roof\n2,road\n3,water\n"),
        "asked",
        {"names": {0: "background", 1: "roof", 2: "road"}},
        legends.codes_of_names,
        {"names": {0: "roof", 1: "road", 2: "water"}},
    ),
    "a list that begins with what is none of the others": Row(
        listed("classes.txt", "background\ntree\nroof\n"), "right", {"names": CLASSES}, legends.codes_of_names
    ),
    "11 metadata of Landsat": Row(metadata, "right", {"names": UNNAMED}, legends.is_of_classes),
    "12 a table of sites": Row(
        listed("sites.csv", "id,site,country\n1,Berlin,Germany\n2,Paris,France\n3,Rome,Italy\n", shift=1),
        "right",
        {"names": UNNAMED},
        legends.is_of_classes,
    ),
    "a table without titles, in a file of any name": Row(
        listed("table.csv", "1,Berlin\n2,Paris\n3,Rome\n", shift=1),
        "asked",
        {"names": {1: "Berlin", 2: "Paris", 3: "Rome"}},
        legends.is_of_classes,
        {"names": UNNAMED},
    ),
    "a table of more numbers than the labels have": Row(
        listed("data.csv", "".join(f"{k},parcel {k}\n" for k in range(1, 40)), shift=1),
        "right",
        {"names": UNNAMED},
        legends.is_of_classes,
    ),
    "dates by number": Row(
        listed("info.csv", "scene;date\n1;June\n2;July\n3;May\n", shift=1),
        "right",
        {"names": UNNAMED},
        legends.is_of_classes,
    ),
    # zeros, fill and nodata
    "13 heights of 0 on the ground": Row(
        heights, "right", {"codes": [0, 1, 2], "ignore": None}, classes.is_zero_a_class
    ),
    "14 water whose red is 0": Row(
        dark((0,)), "right", {"codes": [0, 1, 2], "ignore": None}, classes.is_zero_a_class
    ),
    "an index of one band that is 0 on a class": Row(
        dark((0,), "float32", 1), "asked", {"codes": [0, 1, 2]}, classes.is_zero_a_class, {"codes": [1, 2]}
    ),
    "all bands 0 on a third of the pixels": Row(
        dark((0, 1, 2)),
        "asked",
        {"codes": [1, 2], "ignore": [0]},
        classes.is_zero_a_class,
        {"codes": [0, 1, 2]},
    ),
    "15 -9999 in floats": Row(filled(-9999, "float32", 1 / 255), "right", {"fill": "-9999"}),
    "16 65535 in 16 bits": Row(filled(65535, "uint16", 20), "right", {"fill": "65535"}),
    "-32768 in signed numbers": Row(filled(-32768, "int16", 10), "right", {"fill": "-32768"}),
    "0 above decibels": Row(filled(0, "float32", 1 / 12, -25), "right", {"fill": "0"}),
    "white borders of 8 bits": Row(filled(255, "uint8"), "right", {"fill": None}),
    "17 a national map, nodata 0 outside": Row(
        national,
        "asked",
        {"codes": [11, 21, 31], "label_nodata": "ignore"},
        look.is_tag_a_class,
        {"codes": [0, 11, 21, 31], "label_nodata": "class"},
    ),
    "18 three classes burnt on 12 %": Row(
        burnt(0.12), "asked", {"codes": [1, 2, 3], "label_nodata": "ignore"}, look.is_tag_a_class
    ),
    "three classes burnt on 80 %": Row(
        burnt(0.8),
        "asked",
        {"codes": [0, 1, 2, 3], "label_nodata": "class"},
        look.is_tag_a_class,
        {"codes": [1, 2, 3], "label_nodata": "ignore"},
    ),
    "32 NaN in images and labels": Row(floats, "right", {"codes": [0, 1, 2]}),
    # polygons, sheets, dates
    "21 a layer of classes and its boundary": Row(
        several_layers(False),
        "right",
        {"layer": "landuse", "class_names": ["town", "water", "wood"]},
        polygons.classes_told,
    ),
    "two layers that tell classes": Row(several_layers(True), "asked", {}, polygons.classes_told, {}),
    "25 an area of interest beside labels": Row(
        area_of_interest(3), "right", {"labels": "training.shp"}, polygons.classes_told
    ),
    "the same of one image": Row(
        area_of_interest(1), "right", {"labels": "training.shp"}, polygons.classes_told
    ),
    "25 a shapefile of each class": Row(file_of_each_class, "refused", {"remedy": "ogrmerge"}),
    "22 three dates in names, one label a place": Row(
        dates("images/tile_{:02}_{}.tif", lambda i, k: 2019 + k),
        "asked",
        {"images": "images/{name}_{date}.tif", "scenes": 18, "groups": 6},
        folder_facts.with_dates,
        {"scenes": 6},
    ),
    "dates in folders": Row(
        dates("{1}/tile_{0:02}.tif", lambda i, k: 2019 + k),
        "asked",
        {"images": "{date}/{name}.tif", "scenes": 18, "groups": 6},
        folder_facts.with_dates,
        {"scenes": 6},
    ),
    "each image of another date": Row(
        dates("s2/tile_{:02}_{}.tif", lambda i, k: 20200101 + 137 * i + 11 * k),
        "right",
        {"images": "s2/{name}_{date}.tif", "scenes": 18, "groups": 6},
        folder_facts.with_dates,
    ),
    "23 two sheets for all images": Row(
        sheets(lambda x: f"sheet{x % 7}", 4), "refused", {"remedy": "rio merge"}, folder_facts.refuse_sheets
    ),
    "24 labels of twice the size, of which some have names of images": Row(
        sheets(lambda x: f"t{x}"), "refused", {"remedy": "rio merge"}, folder_facts.refuse_sheets
    ),
    "26 numbers without zeros": Row(without_zeros, "refused", {"remedy": "img_001.png"}),
    "two numbers without zeros": Row(two_numbers_without_zeros, "refused", {"fault": "zeros"}),
    "27 COCO": Row(coco, "refused", {"fault": "_annotations.coco.json"}),
    "labelme's polygons": Row(labelme, "refused", {"fault": "img0.json"}),
    # labels that do not fit
    "labels with fewer rows, all placed": Row(
        misfits(5), "right", {"labels_by": "georeference", "scenes": 10, "leave_out": None}
    ),
    "one of ten, not placed": Row(
        misfits(1, placed=False), "right", {"labels_by": None, "scenes": 9, "leave_out": ["s0"]}
    ),
    "three of ten, not placed": Row(misfits(3, placed=False), "refused", {"got": "3 of 10"}),
    "a label cut short": Row(damaged("labels"), "right", {"leave_out": ["s4"], "scenes": 9}),
    "an image cut short": Row(damaged("images"), "right", {"scenes": 10}),
    "a label on other ground": Row(elsewhere, "right", {"scenes": 9}),
    "35 labels with the south up": Row(south_up, "right", {"scenes": 6, "labels_by": "georeference"}),
    # right before
    "28 Roboflow": Row(roboflow, "right", {"names": {0: "background", 1: "roof", 2: "road"}, "scenes": 12}),
    "20 chips of ArcGIS with world files and a list": Row(
        arcgis, "right", {"names": {0: "background", 1: "tree", 2: "roof"}, "scenes": 8, "labels_by": None}
    ),
    "36 labels shifted by less than a pixel": Row(shifted, "right", {"scenes": 6, "leave_out": None}),
    "37 test without masks": Row(
        without_test_masks, "right", {"images": "train/images/{name}.png", "scenes": 8}
    ),
    "39 polygons of each image, one lacks": Row(
        geojson, "right", {"labels": "geojson/{name}.geojson", "scenes": 5}
    ),
    "38 files of operating systems": Row(junk, "right", {"scenes": 8, "leave_out": None}),
    "40 points": Row(points, "refused", {}, polygons.classes_told),
}


def settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what rows name of a section `dataset`."""
    recipe = recipe_from({"name": "made", "dataset": data}, "made")
    dataset = load_dataset(recipe)
    named, split = data["classes"], data.get("split", {})
    coded = all("code" in each for each in named)
    flat = {**data.get("vector", {}), **data}
    return {
        **{
            key: flat.get(key) for key in ("images", "labels", "layer", "ignore", "label_nodata", "labels_by")
        },
        "names": {each["code"]: each["name"] for each in named}
        if coded
        else [each["name"] for each in named],
        "class_names": [each["name"] for each in named],
        "codes": [each.get("code") for each in named],
        "leave_out": split.get("leave_out"),
        "scenes": len(dataset.scenes),
        "groups": len({scene.group for scene in dataset.scenes}),
    }


@pytest.mark.parametrize("name", TABLE)
def test_a_row_comes_out_right_asked_or_refused(name: str, tmp_path: Path) -> None:
    row = TABLE[name]
    row.make(Folder(tmp_path))
    if row.comes == "refused":
        with pytest.raises(SegmenterError) as caught:
            look.look(tmp_path, tmp_path / row.labels if row.labels else None)
        for key, text in row.keys.items():
            assert text in str(getattr(caught.value, key)), str(caught.value)
        return
    choices = look.look(tmp_path)
    open_ones = [choice for choice in choices if choice.question]
    assert len(open_ones) == (row.comes == "asked"), open_ones
    data = nested(choices)["dataset"]
    seen = settings(data)
    fill = {**row.keys}.pop("fill", ...)
    assert seen == seen | {key: value for key, value in row.keys.items() if key != "fill"}
    if fill is not ...:
        report = check_dataset(made.planned(tmp_path)[2], progress=False)
        told = [finding.text for finding in report.findings if finding.kind == "fill value"]
        assert len(told) == (0 if fill is None else len(report.dataset.scenes))
        assert all(f" {fill} " in text for text in told)
    for choice in open_ones:
        assert choice.lines()
        other = settings({**data, **{key.partition(".")[2]: value for key, value in choice.instead.items()}})
        assert other == other | dict(row.instead)
        assert other != seen


def test_at_most_14_rules_read_a_folder_each_with_a_sentence_and_rows_that_need_it() -> None:
    rules = Counter(row.rule for row in TABLE.values() if row.rule is not None)
    assert len(rules) <= 14
    assert min(rules.values()) >= 2
    assert all(rule.__doc__ for rule in rules)


def test_of_three_questions_two_are_asked() -> None:
    three = [Choice(f"dataset.{key}", 0, "", question=key, instead={f"dataset.{key}": 1}) for key in "abc"]
    few = asked(three)
    assert [choice.question for choice in few] == ["a", "b", ""]
    assert few[2].other
    text = recipe_text(few, "start")
    assert [line.partition("#")[2].strip() for line in text.splitlines() if line.endswith(": 1")] == [
        "a: 1",
        "b: 1",
    ]
