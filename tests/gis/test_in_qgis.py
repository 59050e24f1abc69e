"""Maps in QGIS itself: its legend, what it draws, its projects. Skipped where there is no QGIS."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

from segmenter.labels import ClassMap, LandCoverClass
from segmenter.model.normalisation import Normalisation
from tests.helpers.asking_qgis import ask_qgis
from tests.helpers.child_predict import scene

NAMES = ("building & <shed>", 'road "paved"', "Gebüsch", "水体", "pipeline (buried)", "]]>", "car")
COLOURS = (
    (220, 20, 60),
    (128, 128, 128),
    (154, 205, 50),
    (30, 144, 255),
    (124, 252, 0),
    (1, 2, 3),
    (9, 8, 7),
)
CODES = (10, 20, 300, 40, 0, 65534, 7)
LEGEND = [[name, "#{:02x}{:02x}{:02x}".format(*colour)] for name, colour in zip(NAMES, COLOURS, strict=True)]
MAGENTA = (255, 0, 255)
Make = Callable[..., Path]


@pytest.fixture
def classes() -> ClassMap:
    rows = enumerate(zip(NAMES, COLOURS, strict=True))
    return ClassMap(tuple(LandCoverClass(name, colour, 3 * i) for i, (name, colour) in rows))


def drawn(png: Path) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(cv2.imread(str(png)), cv2.COLOR_BGR2RGB), np.uint8)


def test_qgis_shows_the_classes_by_name_and_colour_and_nothing_else(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], classes: ClassMap
) -> None:
    """Also with codes of 16 bits; without the styles, it shows 256 entries."""
    scene(make_geotiff, "in/a.tif", 131, 203)
    assert call("in", classes=classes) == 0
    codes = ",".join(map(str, CODES))
    assert call("in", "--codes", codes, "--confidence", classes=classes, output="coded") == 0
    assert call("in", "--no-styles", classes=classes, output="bare") == 0
    maps = {name: str(tmp_path / name / "a.tif") for name in ("maps", "coded", "bare")}
    sure = str(tmp_path / "coded" / "a.confidence.tif")
    pictures = {str(tmp_path / f"{name}.png"): maps[name] for name in ("maps", "coded")}
    said = ask_qgis(tmp_path, layers=[*maps.values(), sure], pictures=pictures)["layers"]
    assert said[maps["maps"]]["legend"] == said[maps["coded"]]["legend"] == LEGEND
    assert said[maps["maps"]]["values"] == list(range(7))
    assert said[maps["coded"]]["values"] == list(CODES)
    assert len(said[maps["bare"]]["legend"]) == 256
    assert said[maps["maps"]]["description"] == "Band 1: land-cover class"
    assert [label for label, _ in said[sure]["legend"]] == ["0%", "25%", "50%", "75%", "100%"]
    with rasterio.open(maps["maps"]) as file:
        ids = file.read(1)
    assert len(np.unique(ids)) == 8
    colours = np.array([*COLOURS, *[MAGENTA] * (256 - len(COLOURS))], np.uint8)
    for name in ("maps", "coded"):
        np.testing.assert_array_equal(drawn(tmp_path / f"{name}.png"), colours[ids])


def test_qgis_opens_the_project_wherever_the_folder_lies(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], classes: ClassMap
) -> None:
    """Maps, images and pictures with their styles, the maps on top, 16-bit images not black."""
    right = Affine(0.5, 0, 368000 + 101.5, 0, -0.5, 5808000)
    rng = np.random.default_rng(5)
    for name, transform in (("a", None), ("b & ü", right)):
        where = {} if transform is None else {"transform": transform}
        make_geotiff(f"data/in/{name}.tif", rng.integers(900, 1500, (131, 203, 4), np.uint16), **where)
    seen = {"dtype": "uint16", "bands": (4, 1, 2), "scenes": None}
    seen["normalisation"] = Normalisation((1000.0, 1200.0, 1100.0), (50.0, 100.0, 25.0))
    for ending in ("qgz", "qgs"):
        arguments = ("data/in", "--pictures", "--confidence", "--project", f"data/town.{ending}")
        assert call(*arguments, classes=classes, output="data/maps", **seen) == 0
    shutil.move(tmp_path / "data", tmp_path / "else where")
    path, plain = (str(tmp_path / "else where" / f"town.{ending}") for ending in ("qgz", "qgs"))
    found = ask_qgis(tmp_path, projects=[path, plain], pictures={str(tmp_path / "p.png"): path})["projects"]
    assert found[path] == found[plain]
    said = found[path]
    assert (said["read"], said["crs"]) == (True, "EPSG:25833")
    groups = [(name, group["shown"], group["count"]) for name, group in said["groups"].items()]
    hidden = [("confidence", False, 2), ("pictures", False, 2)]
    assert groups == [("maps", True, 2), *hidden, ("images", True, 2)]
    layers = [layer for group in said["groups"].values() for layer in group["layers"].values()]
    assert len(layers) == 8
    assert all(layer["valid"] for layer in layers)
    maps, images = said["groups"]["maps"]["layers"], said["groups"]["images"]["layers"]
    assert list(maps) == list(images) == ["a", "b & ü"]
    assert all(layer["legend"] == LEGEND and layer["crs"] == "EPSG:25833" for layer in maps.values())
    assert all(image["bands"] == [4, 1, 2] for image in images.values())
    assert images["a"]["stretch"] == [[900, 1100], [1000, 1400], [1050, 1150]]
    picture = drawn(tmp_path / "p.png").reshape(-1, 3)
    assert {tuple(colour) for colour in np.unique(picture, axis=0).tolist()} <= {*COLOURS, MAGENTA}


def test_what_qgis_saves_is_left_and_a_project_it_saved_is_refused(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], classes: ClassMap, capsys: Any
) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    arguments = ("in", "--project", "town.qgz")
    assert call(*arguments, classes=classes) == 0
    first = (tmp_path / "town.qgz").read_bytes()
    assert call(*arguments, classes=classes, predictor=None) == 0  # by us: written again, the same
    assert (tmp_path / "town.qgz").read_bytes() == first
    ask_qgis(
        tmp_path,
        saved_styles=[str(tmp_path / "maps" / "a.tif")],
        statistics=[str(tmp_path / "maps" / "a.tif")],
        saved_projects=[str(tmp_path / "town.qgz")],
    )
    style, table = tmp_path / "maps" / "a.qml", tmp_path / "maps" / "a.tif.aux.xml"
    theirs = style.read_bytes(), table.read_bytes()
    assert b"STATISTICS_MEAN" in theirs[1]
    assert b"GDALRasterAttributeTable" in theirs[1]
    capsys.readouterr()
    assert call(*arguments, classes=classes, predictor=None) == 2
    said = capsys.readouterr().err
    assert "--project town.qgz: exists, and is not as predict.py wrote it (QGIS has saved it since?)" in said
    assert said.count("\n") == 1
    assert call("in", classes=classes, predictor=None) == 0
    assert (style.read_bytes(), table.read_bytes()) == theirs
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    assert source.exists()
    assert call("in", classes=classes) == 0
    assert "maps/a.qml: is a style that was saved by QGIS or by hand, and is left" in capsys.readouterr().err
    assert style.read_bytes() == theirs[0]
    assert b"STATISTICS_MEAN" not in table.read_bytes()  # of another map


def test_of_images_that_lie_nowhere_the_first_is_shown(
    tmp_path: Path, make_png: Make, call: Callable[..., int], classes: ClassMap
) -> None:
    """They all lie in one place; maps as PNG show their classes too."""
    rng = np.random.default_rng(5)
    for name in "ab":
        make_png(f"in/{name}.png", rng.integers(0, 255, (60, 90, 3), np.uint8))
    assert call("in", "--project", "p.qgz", "--format", "png", classes=classes) == 0
    path = str(tmp_path / "p.qgz")
    said = ask_qgis(tmp_path, projects=[path])["projects"][path]
    assert (said["read"], said["crs"]) == (True, "")
    maps, images = (said["groups"][name]["layers"] for name in ("maps", "images"))
    for layers in (maps, images):
        assert [(name, layer["valid"], layer["shown"]) for name, layer in layers.items()] == [
            ("a", True, True),
            ("b", True, False),
        ]
    assert maps["a"]["legend"] == LEGEND
    assert maps["a"]["values"] == [3 * i for i in range(7)]
    assert maps["a"]["extent"] == images["a"]["extent"] == [0, -60, 90, 0]
