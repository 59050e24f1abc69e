"""`--codes`: maps hold the user's own values, and all that reads a map knows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, DeviceError, SegmenterError
from segmenter.extras.vectors.__main__ import main as vectorise
from segmenter.extras.written_map import WrittenMap
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap, LandCoverClass
from segmenter.mapping.outputs.codes import FileValues, codes_of, free_value, parse_codes
from segmenter.raster import RasterSpec, write_raster
from tests.helpers.child_predict import files, scene
from tests.helpers.maps import Call, Make, at_batch
from tests.helpers.refusals import refused

SMALL, LARGE = (10, 20, 30, 255, 0, 7, 99), (10, 20, 300, 65535, 0, 7, 99)


def named(codes: tuple[int, ...]) -> str:
    return ",".join(f"{'abcdefg'[i]}={code}" for i, code in enumerate(codes))


def held(path: Path) -> tuple[NDArray[Any], Any, str]:
    with rasterio.open(path) as file:
        return file.read(1), file.nodata, file.dtypes[0]


@given(st.lists(st.integers(0, 0xFFFF), min_size=1, max_size=254, unique=True), st.booleans())
def test_ids_come_back_from_whatever_codes(codes: list[int], small: bool) -> None:
    """The value without data is no code, and one of the smallest type that can be."""
    chosen = tuple(dict.fromkeys(code % 256 for code in codes)) if small else tuple(codes)
    values = FileValues(chosen, free_value(chosen))
    assert values.nodata not in chosen
    assert values.dtype == ("uint8" if max(chosen) <= 255 else "uint16")
    ids = np.array([*range(len(chosen)), IGNORE], np.uint8)
    found = values.of(ids)
    assert found.dtype == values.dtype
    assert found.tolist() == [*chosen, values.nodata]
    np.testing.assert_array_equal(values.ids(found), ids)


@pytest.mark.parametrize(
    ("codes", "dtype", "nodata", "cog"),
    [(SMALL, "uint8", 254, ()), (LARGE, "uint16", 65534, ("--cog",))],
    ids=["8 bits", "16 bits, cog"],
)
def test_a_map_holds_the_codes_and_no_data_outside_of_them(
    make_geotiff: Make, call: Call, codes: Any, dtype: str, nodata: int, cog: Any
) -> None:
    scene(make_geotiff, "in/a.tif", 131, 203)
    assert call("in", output="plain") == 0
    assert call("in", "--codes", ",".join(map(str, codes)), *cog) == 0
    ids, _, _ = held(Path("plain/a.tif"))
    assert len(np.unique(ids)) == 8
    table = np.full(256, nodata)
    table[:7] = codes
    values, empty, kind = held(Path("maps/a.tif"))
    assert (empty, kind) == (nodata, dtype)
    np.testing.assert_array_equal(values, table[ids])
    with rasterio.open("maps/a.tif") as file:
        tags = file.tags()
        assert ([tags[f"CODE_{i}"] for i in range(7)], tags["VALUES"]) == ([str(c) for c in codes], "codes")
        if dtype == "uint8":
            assert [file.colormap(1)[code] for code in codes[:2]] == [(255, 255, 255, 255), (0, 0, 255, 255)]
    with WrittenMap(Path("maps/a.tif")) as read:
        np.testing.assert_array_equal(read.read(Window(0, 0, 131, 203))[0], ids)


def test_codes_by_name_of_the_recipe_and_in_a_png(
    tmp_path: Path, make_geotiff: Make, call: Call, make_classes: Any
) -> None:
    scene(make_geotiff, "in/a.tif", 40, 50)
    ids = lambda output: held(tmp_path / output / "a.tif")[0]  # noqa: E731
    for output, codes in (("one", "10,20,30,40,50,60,70"), ("two", "g=70, a = 10,c=30,b=20,d=40,f=60,e=50")):
        assert call("in", "--codes", codes, output=output) == 0
    np.testing.assert_array_equal(ids("one"), ids("two"))
    assert set(np.unique(ids("one"))) == {10, 20, 30, 40, 50, 60, 70, 255}
    classes = make_classes(7, first_code=3)
    assert call("in", "--codes", "recipe", classes=classes) == 0
    assert set(np.unique(ids("maps"))) == {3, 4, 5, 6, 7, 8, 9, 255}
    assert call("in", "--codes", "10,20,30,40,50,60,700", "--format", "png", output="png") == 0
    values, _, kind = held(Path("png/a.png"))
    assert (kind, set(np.unique(values))) == ("uint16", {0, 10, 20, 30, 40, 50, 60, 700})


def test_scores_are_those_of_the_ids_and_of_kept_maps(tmp_path: Path, make_geotiff: Make, call: Call) -> None:
    rng = np.random.default_rng(3)
    scene(make_geotiff, "in/a.tif", 131, 203)
    make_geotiff("truth/a.tif", rng.integers(0, 7, (131, 203), np.uint8))
    arguments = ("in", "--labels", "truth/{stem}.tif", "--quicklook", "--pictures")
    coded = (*arguments, "--codes", named(LARGE))
    assert call(*arguments, output="plain") == 0
    assert call(*coded) == 0
    scores = [json.loads((tmp_path / folder / "scores.json").read_text()) for folder in ("plain", "maps")]
    assert scores[0] == scores[1]
    for name in ("a.quicklook.png", "a.view.png"):
        pictures = [(tmp_path / folder / name).read_bytes() for folder in ("plain", "maps")]
        assert pictures[0] == pictures[1]
    Path("maps/scores.json").unlink()
    assert call(*coded, predictor=None) == 0
    assert json.loads(Path("maps/scores.json").read_text()) == scores[0]


def test_a_stopped_map_goes_on_with_its_codes(make_geotiff: Make, call: Call, monkeypatch: Any) -> None:
    """Styles and pixels counted are those of a map that was not stopped."""
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    scene(make_geotiff, "in/a.tif", 350, 130)
    arguments = ("in", "--codes", named(LARGE), "--window-size", 64, "--batch", 1)
    assert call(*arguments, output="whole") == 0
    assert call(*arguments, predictor=at_batch(13, DeviceError("gone"))) == 1
    assert not Path("maps/a.qml").exists()
    assert Path("maps/.a.tif.partial").exists()
    assert call(*arguments) == 0
    assert files("maps") == files("whole")


def test_polygons_of_a_map_with_codes_have_the_right_names(make_geotiff: Make, call: Call) -> None:
    raw = pytest.importorskip("pyogrio.raw")
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in", output="plain") == 0
    assert call("in", "--codes", named(LARGE)) == 0
    columns: list[dict[str, Any]] = []
    for folder in ("plain", "maps"):
        assert vectorise([folder, "--output", f"{folder}.gpkg"]) == 0
        meta, _, geometry, found = raw.read(f"{folder}.gpkg")
        columns.append({**dict(zip(meta["fields"], found, strict=True)), "geometry": geometry})
    for name in ("class", "class_id", "pixels", "geometry"):
        assert list(columns[0][name]) == list(columns[1][name])
    assert set(zip(columns[1]["class"], columns[1]["code"], strict=True)) == set(
        zip("abcdefg", LARGE, strict=True)
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--codes", "1,2"), "got 2 codes for 7 classes"),
        (("--codes", "a=1,roof=2"), "the run has no class roof"),
        (("--codes", "a=1,b=2"), "no code for c, d, e, f, g"),
        (("--codes", "a=1,a=2"), "a has two codes"),
        (("--codes", "1,2,3,4,5,6,1"), "got 1 twice"),
        (("--codes", "1,2,3,4,5,6,65536"), "got 65536"),
        (("--codes", "1,2,3,4,5,6,7", "--nodata", 6), "no class's code, got 6"),
        (("--codes", "1,2,3,4,5,6,-7"), "expected whole numbers"),
        (("--codes", ""), "expected whole numbers"),
        (("--nodata", 3), "--nodata: expected 7 … 255"),
        (("--nodata", 256), "--nodata: expected 7 … 255"),
    ],
)
def test_what_cannot_be_is_one_line_and_leaves_nothing(
    tmp_path: Path, make_geotiff: Make, call: Call, capsys: Any, given: Any, said: str
) -> None:
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in", *given) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert (out, err.count("\n")) == ("", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_names_may_hold_commas_and_equals_signs() -> None:
    names = ("low vegetation, crops", "a=b", "road")
    classes = ClassMap(tuple(LandCoverClass(name, (0, 0, i), i) for i, name in enumerate(names)))
    assert codes_of("low vegetation, crops=3,a=b=4,road=5", classes) == (3, 4, 5)
    with refused(DatasetError, where="--codes", got="'road=5,tree'"):
        parse_codes("road=5,tree")


def test_a_foreign_map_with_codes_that_cannot_be_is_refused(tmp_path: Path) -> None:
    tags = {"CLASS_0": "a", "CLASS_1": "b", "CODE_0": "7", "CODE_1": "7", "VALUES": "codes"}
    write_raster(tmp_path / "a.tif", np.full((3, 5), 7, np.uint16), RasterSpec(tags=tags))
    with refused(SegmenterError, where="a.tif", got="[7, 7]"):
        WrittenMap(tmp_path / "a.tif")
    write_raster(tmp_path / "b.tif", np.full((3, 5), 9, np.uint16), RasterSpec(tags=tags | {"CODE_1": "8"}))
    with WrittenMap(tmp_path / "b.tif") as found, pytest.raises(SegmenterError, match="2 classes, got 9"):
        found.read(Window(0, 0, 3, 5))
    tags.pop("VALUES")
    write_raster(tmp_path / "c.tif", np.full((3, 5), 0, np.uint16), RasterSpec(tags=tags))
    with refused(SegmenterError, where="c.tif", got="1 bands of uint16"):
        WrittenMap(tmp_path / "c.tif")
