"""The files of a map: what they hold, codes of the user's own, styles; other programs read them."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from rio_cogeo import cog_validate

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.evaluation.figures import Example
from segmenter.extras.written_map import WrittenMap
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap, LandCoverClass
from segmenter.inference.predictor import ExtraOutputs, Prediction
from segmenter.mapping.outputs.codes import FileValues, codes_of, free_value, parse_codes
from segmenter.mapping.outputs.pictures import windows_to_show
from segmenter.raster import RasterSpec, open_raster, read_label, write_raster
from tests.helpers.child_predict import files, scene, without_styles
from tests.helpers.exact_network import RADIUS, STRIDE, exact_network
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.maps import Call, Make
from tests.helpers.refusals import refused
from tests.helpers.s3_server import Store

ALL = ("--confidence", "--quicklook", "--probabilities")


def holed(rng: Any, height: int, width: int) -> NDArray[np.uint8]:
    image = rng.integers(1, 255, (height, width, 3), np.uint8)
    image[height // 3 : height // 2, width // 4 :] = 0
    return image


def whole(image: NDArray[np.uint8], kind: Any) -> Prediction:
    """What the model says of the whole image at once."""
    height, width = image.shape[:2]
    pad = ((0, -height % STRIDE), (0, -width % STRIDE))
    valid = np.pad((image != 0).all(axis=2), pad)[None]
    padded = np.pad(image, (*pad, (0, 0)))[None] * valid[..., None]
    model = exact_network(RADIUS, STRIDE, wanted=ExtraOutputs(confidence=True, probabilities=kind))
    return model(padded, valid)[0][:height, :width]


def read(path: Path) -> NDArray[Any]:
    with rasterio.open(path) as file:
        return np.moveaxis(file.read(), 0, 2).squeeze()


@pytest.mark.parametrize(("kind", "cog"), [("uint8", ()), ("float16", ("--cog",))], ids=str)
def test_every_file_of_a_map(make_geotiff: Make, call: Call, rng: Any, kind: str, cog: Any) -> None:
    image = holed(rng, 331, 243)
    source = make_geotiff("in/a.tif", image, nodata=0)
    assert call(source, *ALL, kind, *cog) == 0
    folder, said = Path("maps"), whole(image, kind)
    empty = (image == 0).any(axis=2)
    names = ["a.confidence.tif", "a.probabilities.tif", "a.quicklook.png", "a.tif"]
    styles = [f"a{kind}.qml" for kind in ("", ".confidence", ".probabilities")] + ["a.tif.aux.xml"]
    assert {p.name for p in folder.glob("[!.]*")} == {*names, *styles}
    np.testing.assert_array_equal(read(folder / "a.tif"), np.where(empty, 255, said.ids))
    assert said.confidence is not None
    np.testing.assert_array_equal(read(folder / "a.confidence.tif"), np.where(empty, 0, said.confidence))
    found = read(folder / "a.probabilities.tif")
    if kind == "uint8":
        np.testing.assert_array_equal(found[~empty], np.minimum(said.probabilities, 254)[~empty])
        assert (found[empty] == 255).all()
    else:
        np.testing.assert_array_equal(found[~empty].astype(np.float16), said.probabilities[~empty])
        assert np.isnan(found[empty]).all()
    with rasterio.open(source) as original:
        for name in ("a.tif", "a.confidence.tif", "a.probabilities.tif"):
            with rasterio.open(folder / name) as file:
                assert (file.crs, file.bounds, file.shape) == (original.crs, original.bounds, original.shape)
                np.testing.assert_array_equal(file.dataset_mask() > 0, ~empty)
                assert (file.tags()["CLASS_2"], file.tags()["SOURCE"]) == ("c", "a.tif")
                if name == "a.probabilities.tif":
                    assert file.descriptions == tuple("abcdefg")
                if "8" in file.dtypes[0] and name != "a.tif":
                    assert set(file.scales) == {1 / 255}


def test_other_programs_read_them(make_geotiff: Make, call: Call, rng: Any) -> None:
    """OpenCV has a TIFF and a PNG reader of its own."""
    image = holed(rng, 90, 203)
    assert call(make_geotiff("in/a.tif", image, nodata=0), *ALL, "uint8") == 0
    said, empty = whole(image, "uint8"), (image == 0).any(axis=2)
    confidence = cv2.imread(str(Path("maps/a.confidence.tif")), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(confidence, np.where(empty, 0, said.confidence))
    picture = cv2.imread(str(Path("maps/a.quicklook.png")), cv2.IMREAD_UNCHANGED)
    drawn = picture[:90, :203]  # below is the legend
    np.testing.assert_array_equal(drawn[..., 3] == 0, empty)
    np.testing.assert_array_equal((drawn[..., :3] == (255, 0, 0)).all(axis=2), ~empty & (said.ids == 1))


def test_overviews_hold_only_classes_that_are_there(make_geotiff: Make, call: Call) -> None:
    """Of classes 0 and 4 an average would make 2; rio-cogeo's validator has nothing to say."""

    def halves(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        return Prediction((image[..., 0] > 100).astype(np.uint8) * 4)

    stripes = np.zeros((1100, 1300, 3), np.uint8)
    stripes[:, ::3] = stripes[::5] = 200
    model = FunctionPredictor(halves)
    assert call(make_geotiff("in/a.tif", stripes), "--cog", predictor=lambda *_, **__: model) == 0
    path = Path("maps/a.tif")
    assert cog_validate(str(path), quiet=True) == (True, [], [])
    with rasterio.open(path) as file:
        assert file.overviews(1) == [2, 4]
        assert file.colormap(1)[1] == (0, 0, 255, 255)
        for level in range(2):
            with rasterio.open(path, overview_level=level) as overview:
                assert set(np.unique(overview.read(1))) <= {0, 4}


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1024, 3), (1025, 33), (2049, 5)])
def test_a_quick_look_is_the_map(make_geotiff: Make, call: Call, rng: Any, height: int, width: int) -> None:
    image = rng.integers(1, 255, (height, width, 3), np.uint8)
    assert call(make_geotiff("in/a.tif", image), "--quicklook", "--window-size", 256) == 0
    step = -(-max(height, width) // 1024)
    ids = read("maps/a.tif").reshape(height, width)[::step, ::step]
    colours = np.array([(255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0)])
    whole = read("maps/a.quicklook.png")
    picture, legend = whole[: ids.shape[0], : ids.shape[1]], whole[ids.shape[0] :]
    assert max(picture.shape) <= 1024
    for value, colour in enumerate(colours):
        np.testing.assert_array_equal((picture[..., :3] == colour).all(axis=2), ids == value)
        assert (legend[..., :3] == colour).all(axis=2).sum() > 60
    assert (whole[: ids.shape[0], ids.shape[1] :, 3] == 0).all()


def test_a_certain_class_is_not_taken_for_no_data(make_geotiff: Make, call: Call) -> None:
    def certain(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        ids = np.full(valid.shape, 2, np.uint8)
        return Prediction(ids, None, np.where(np.arange(7) == 2, 255, 0 * ids[..., None]).astype(np.uint8))

    model = FunctionPredictor(certain, ExtraOutputs(probabilities="uint8"), 7)
    image = np.ones((20, 30, 3), np.uint8)
    image[3] = 0
    options = ("--probabilities", "uint8")
    assert call(make_geotiff("in/a.tif", image, nodata=0), *options, predictor=lambda *_, **__: model) == 0
    found = read("maps/a.probabilities.tif")
    assert (found[3] == 255).all()
    assert (np.delete(found, 3, axis=0) == np.where(np.arange(7) == 2, 254, 0)).all()


def test_thinned_image_validity_and_label_stay_together(make_geotiff: Make) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 200, (203, 101)).astype(np.uint8)
    path = make_geotiff("a.tif", ids, nodata=7)
    shape = Size(50, 25)
    with open_raster(path) as raster:
        image, valid = raster.thinned(Window(0, 0, 203, 101), shape)
    label = read_label(path, shape=shape)
    np.testing.assert_array_equal(image[..., 0], label)
    np.testing.assert_array_equal(valid, label != 7)
    assert IGNORE not in label


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


def test_a_file_that_is_no_longer_asked_for_may_go(make_geotiff: Make, call: Call) -> None:
    scene(make_geotiff, "in/a.tif", 131, 203)
    assert call("in", "--confidence", "--probabilities", "uint8") == 0
    first = Path("maps/a.tif").stat().st_mtime_ns
    Path("maps/a.probabilities.tif").unlink()
    assert call("in", "--confidence", predictor=None) == 0
    Path("maps/a.confidence.tif").write_bytes(b"changed")
    assert call("in", predictor=None) == 0
    assert Path("maps/a.tif").stat().st_mtime_ns == first
    assert call("in", "--confidence") == 0
    assert Path("maps/a.confidence.tif").read_bytes() != b"changed"


def test_what_is_gone_is_written_again_without_the_model(make_geotiff: Make, call: Call, capsys: Any) -> None:
    """The same bytes, with the pixels of each class; also where a later version first writes them."""
    scene(make_geotiff, "in/a.tif", 131, 203)
    maps = Path("maps")
    assert call("in", "--confidence", "--codes", "1,2,3,4,5,6,700") == 0
    before = files(maps)
    assert set(before) - set(without_styles(before)) == {"a.qml", "a.confidence.qml", "a.tif.aux.xml"}
    for gone in (["a.qml"], ["a.tif.aux.xml"], ["a.qml", "a.confidence.qml", "a.tif.aux.xml"]):
        for name in gone:
            (maps / name).unlink()
        capsys.readouterr()
        assert call("in", "--confidence", "--codes", "1,2,3,4,5,6,700", predictor=None) == 0
        assert capsys.readouterr().out == "1 of 1 maps are finished and unchanged\n"
        assert files(maps) == before
    assert call("in", "--confidence", "--codes", "1,2,3,4,5,6,700", "--no-styles", predictor=None) == 0
    assert files(maps) == before


def test_a_changed_style_is_no_reason_for_a_new_map(make_geotiff: Make, call: Call, capsys: Any) -> None:
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in") == 0
    style, table = Path("maps/a.qml"), Path("maps/a.tif.aux.xml")
    style.write_text("<qgis>of someone</qgis>")
    table.write_text("<PAMDataset><Metadata><MDI key='a'>b</MDI></Metadata></PAMDataset>")
    assert call("in", predictor=None) == 0
    assert style.read_text() == "<qgis>of someone</qgis>"
    assert "'a'" in table.read_text()
    capsys.readouterr()
    assert call("in", "--redo") == 0
    assert capsys.readouterr().err.startswith("warning: maps/a.qml: ")
    assert style.read_text() == "<qgis>of someone</qgis>"
    assert "GDALRasterAttributeTable" in table.read_text()  # what was there was of the older file


def test_no_style_lies_beside_the_image_itself(tmp_path: Path, make_png: Make, call: Call) -> None:
    """QGIS would show the image by it."""
    image = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
    source = make_png("a.png", image)
    assert call(source, "--format", "geotiff", output=".") == 0
    assert sorted(files(tmp_path)) == ["a.png", "a.tif", "a.tif.aux.xml"]


def test_an_unwritable_style_is_no_half(
    make_geotiff: Make, call: Call, monkeypatch: Any, capsys: Any
) -> None:
    """The older map and its style stay."""
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in") == 0
    before = files("maps")
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "a.tif.aux.xml" in path.name:
            write(path, content[:100])
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert call("in") == 1
    assert "files cannot" in capsys.readouterr().err.splitlines()[-1]
    assert files("maps") == before
    assert [path.name for path in Path("maps").glob(".*")] == [".journal.jsonl"]


def test_styles_of_a_bucket_come_back(make_geotiff: Make, call: Call, store: Store, monkeypatch: Any) -> None:
    """The map itself is not sent again, nor looked at: the table has no pixels then."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    scene(make_geotiff, "in/a.tif", 40, 50)
    output = f"s3://{store.bucket}/maps"
    assert call("in", output=output) == 0
    kinds = ["qml", "tif", "tif.aux.xml"]
    assert store.keys() == [f"maps/a.{kind}" for kind in kinds]
    before = {kind: store.get(f"maps/a.{kind}") for kind in kinds}
    for kind in ("qml", "tif.aux.xml"):
        store.client.delete_object(Bucket=store.bucket, Key=f"maps/a.{kind}")
    store.asked.clear()
    assert call("in", output=output, predictor=None) == 0
    sent = [path for method, path in store.asked if method == "PUT"]
    assert sorted(path.split("?")[0].rpartition("/")[2] for path in sent) == ["a.qml", "a.tif.aux.xml"]
    assert store.get("maps/a.qml") == before["qml"]
    assert b"GDALRasterAttributeTable" in store.get("maps/a.tif.aux.xml")
    assert not list(Path("cache").rglob("*.*ml"))


@pytest.mark.parametrize("labelled", [True, False])
def test_a_thinned_picture_shows_six_windows_in_full(
    labelled: bool,
) -> None:
    """Those with the most wrong pixels come first, then those with the most classes; none twice."""
    tile, step, side = 64, 4, 1024
    found = np.zeros((side // step, side // step), np.uint8)
    label = found.copy()
    for k, (row, col) in enumerate([(3, 5), (15, 15), (0, 0), (7, 7), (9, 2)]):
        part = (slice(row * 16, row * 16 + 16), slice(col * 16, col * 16 + 16))
        found[part] = np.arange(16) % (2 + k)  # classes
        label[part] = found[part]
        label[part][: 2 * k] = 6  # wrong rows
    example = Example("m", np.zeros((*found.shape, 3)), found < 9, label if labelled else None, found)
    shown = windows_to_show(example, Window(100, 50, side, side), step, tile)
    cells = [((w.row - 100) // tile, (w.col - 50) // tile) for w in shown]
    assert len(shown) == len(set(cells)) == 6
    assert {(w.height, w.width) for w in shown} == {(tile, tile)}
    assert cells[0] == (9, 2)
    assert cells[1] == (7, 7)
    assert cells[2] == (0, 0)
    assert {cells[3], cells[4]} == {(3, 5), (15, 15)}
