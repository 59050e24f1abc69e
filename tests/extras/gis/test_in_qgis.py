"""Maps in QGIS itself: its legend and what it draws. Skipped where there is no QGIS."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from segmenter.grid.labels import ClassMap, LandCoverClass
from tests.helpers.child_predict import scene
from tests.helpers.maps import Call, Make

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


@pytest.fixture
def classes() -> ClassMap:
    rows = enumerate(zip(NAMES, COLOURS, strict=True))
    return ClassMap(tuple(LandCoverClass(name, colour, 3 * i) for i, (name, colour) in rows))


def drawn(png: Path) -> NDArray[np.uint8]:
    return np.asarray(cv2.cvtColor(cv2.imread(str(png)), cv2.COLOR_BGR2RGB), np.uint8)


def test_qgis_shows_the_classes_by_name_and_colour_and_nothing_else(
    tmp_path: Path, make_geotiff: Make, call: Call, classes: ClassMap
) -> None:
    """Also with codes of 16 bits; without the styles, it shows 256 entries."""
    scene(make_geotiff, "in/a.tif", 131, 203)
    assert call("in", classes=classes) == 0
    codes = ",".join(map(str, CODES))
    assert call("in", "--codes", codes, "--confidence", classes=classes, output="coded") == 0
    assert call("in", "--no-styles", classes=classes, output="bare") == 0
    maps = {name: str(tmp_path / name / "a.tif") for name in ("maps", "coded", "bare")}
    sure = str(Path("coded/a.confidence.tif"))
    pictures = {str(Path(f"{name}.png")): maps[name] for name in ("maps", "coded")}
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
        np.testing.assert_array_equal(drawn(Path(f"{name}.png")), colours[ids])


def test_what_qgis_saves_is_left(
    tmp_path: Path, make_geotiff: Make, call: Call, classes: ClassMap, capsys: Any
) -> None:
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in", classes=classes) == 0
    map_file = str(Path("maps/a.tif"))
    ask_qgis(tmp_path, saved_styles=[map_file], statistics=[map_file])
    style, table = Path("maps/a.qml"), Path("maps/a.tif.aux.xml")
    theirs = style.read_bytes(), table.read_bytes()
    assert b"STATISTICS_MEAN" in theirs[1]
    assert b"GDALRasterAttributeTable" in theirs[1]
    assert call("in", classes=classes, predictor=None) == 0
    assert (style.read_bytes(), table.read_bytes()) == theirs
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    capsys.readouterr()
    assert call("in", classes=classes) == 0
    assert "maps/a.qml: is a style" in capsys.readouterr().err
    assert style.read_bytes() == theirs[0]
    assert b"STATISTICS_MEAN" not in table.read_bytes()  # of another map


def test_qgis_shows_classes_of_a_png(tmp_path: Path, make_png: Make, call: Call, classes: ClassMap) -> None:
    make_png("in/a.png", np.random.default_rng(5).integers(0, 255, (60, 90, 3), np.uint8))
    assert call("in", "--format", "png", classes=classes) == 0
    path = str(Path("maps/a.png"))
    said = ask_qgis(tmp_path, layers=[path])["layers"][path]
    assert said["legend"] == LEGEND
    assert said["values"] == [3 * i for i in range(7)]


_PYTHON = Path("/usr/bin/python3")
_LIBRARY = Path("/usr/lib/python3/dist-packages/qgis")
_SCRIPT = Path(__file__).parents[2] / "helpers" / "qgis_look.py"


def ask_qgis(folder: Path, **asked: Any) -> dict[str, Any]:
    """Return QGIS' words on files, see `qgis_look`; skip the test where there is none.

    Args:
        folder: for its settings.
    """
    if not (_PYTHON.exists() and _LIBRARY.is_dir()):
        pytest.skip("QGIS is not installed (Debian: apt-get install python3-qgis qgis-providers)")
    foreign = ("PYTHON", "GDAL", "PROJ")  # of our own libraries
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {"QT_QPA_PLATFORM": "offscreen", "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        [_PYTHON, "-W", "ignore", _SCRIPT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
