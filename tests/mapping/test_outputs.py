"""The files of a map: what they hold, and that other programs read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rio_cogeo import cog_validate

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.inference.predictor import ExtraOutputs, Prediction
from segmenter.mapping.jobs import MapJob, RasterRequest
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.mapping.outputs.pictures import draw_view
from segmenter.mapping.request.map_request import MapRequest
from segmenter.raster import RasterSpec, open_raster, raster_info, read_label, write_raster
from tests.helpers.exact_network import RADIUS, STRIDE, exact_network
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.maps import Call, Make

ALL = ("--confidence", "--quicklook", "--probabilities")


def scene(rng: Any, height: int, width: int) -> NDArray[np.uint8]:
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
    image = scene(rng, 331, 243)
    source = make_geotiff("in/a.tif", image, nodata=0)
    assert call(source, *ALL, kind, *cog) == 0
    folder, said = Path("maps"), whole(image, kind)
    empty = (image == 0).any(axis=2)
    names = ["a.confidence.tif", "a.probabilities.tif", "a.quicklook.png", "a.tif"]
    styles = [f"a{kind}.qml" for kind in ("", ".confidence", ".probabilities")] + ["a.tif.aux.xml"]
    assert {p.name for p in folder.glob("[!.]*")} == {*names, *styles}
    np.testing.assert_array_equal(read(folder / "a.tif"), np.where(empty, 255, said.ids))
    assert said.confidence is not None
    assert said.probabilities is not None
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
    image = scene(rng, 90, 203)
    assert call(make_geotiff("in/a.tif", image, nodata=0), *ALL, "uint8") == 0
    said, empty = whole(image, "uint8"), (image == 0).any(axis=2)
    confidence = cv2.imread(str(Path("maps/a.confidence.tif")), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(confidence, np.where(empty, 0, said.confidence))
    picture = cv2.imread(str(Path("maps/a.quicklook.png")), cv2.IMREAD_UNCHANGED)
    np.testing.assert_array_equal(picture[..., 3] == 0, empty)
    np.testing.assert_array_equal((picture[..., :3] == (255, 0, 0)).all(axis=2), ~empty & (said.ids == 1))


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
    picture = read("maps/a.quicklook.png").reshape(*ids.shape, 4)
    assert max(picture.shape) <= 1024
    for value, colour in enumerate(colours):
        np.testing.assert_array_equal((picture[..., :3] == colour).all(axis=2), ids == value)


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


@pytest.mark.parametrize(
    ("size", "png"), [(Size(37, 53), True), (Size(1, 5), False), (Size(2600, 650), False)]
)
def test_a_view_is_drawn_beside_the_map(
    tmp_path: Path, make_geotiff: Any, make_classes: Any, size: Size, png: bool
) -> None:
    classes = make_classes(3, first_code=100)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3, (size.height, size.width)).astype(np.uint8)
    image = make_geotiff("in.tif", np.repeat(ids[..., None] * 50, 3, axis=2))
    label = make_geotiff("label.tif", classes.codes()[ids])
    request = MapRequest(Path("run"), tmp_path, ("in.tif",), format="png" if png else "geotiff")
    style = MapStyle(request, classes)
    info = raster_info(image)
    job = MapJob(RasterRequest(None, 3), info, Window.of(size), "in", style.path("map", info), label)
    write_raster(job.output, style.file_values(job).of(ids), RasterSpec(driver="PNG" if png else "GTiff"))
    draw_view(job, style)
    with rasterio.open(tmp_path / "map.view.png") as picture:
        assert 300 < picture.width < 4000
        drawn = {tuple(c) for c in picture.read()[:3].reshape(3, -1).T.tolist()}
    assert {tuple(c.colour) for c in classes.classes} <= drawn


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
