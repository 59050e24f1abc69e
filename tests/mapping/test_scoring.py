"""`predict.py` with labels, and results in the data's own codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from datasets.check import check_dataset
from segmenter.api.results import MapScores
from segmenter.base.errors import RasterError
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference.predictor import Prediction
from segmenter.raster import RasterSpec, write_raster
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.maps import Call, Make, expected, ids, pixels
from tests.helpers.refusals import refused


def test_scores_carry_their_protocol(make_geotiff: Make, call: Call, rng: Any, capsys: Any) -> None:
    image = pixels(rng, 80, 90, 3)
    truth = expected(image)
    truth[:, :30] = rng.integers(0, 7, (80, 30))
    make_geotiff("in/a_RGB.tif", image)
    write_raster(Path("truth/a_label.png"), truth, RasterSpec(driver="PNG"))
    assert call("in/a_RGB.tif", "--labels", "truth/{scene}_*.png", "--split-name", "test") == 0
    scores = json.loads(Path("maps/scores.json").read_text())
    guess, iou = expected(image), []
    for k in range(7):
        both, either = ((truth == k) & (guess == k)).sum(), ((truth == k) | (guess == k)).sum()
        iou.append(both / either)
    assert scores["miou"] == pytest.approx(np.mean(iou), rel=1e-12)
    assert scores["oa"] == pytest.approx((truth == guess).mean(), rel=1e-12)
    protocol = scores["protocol"]
    assert (protocol["labels"], protocol["split"], protocol["tta"]) == ("full", "test", "none")
    assert protocol["scenes"] == ["a_RGB"]
    table = capsys.readouterr().out
    assert "mIoU" in table
    assert "7 classes, full labels, test split (1 scene), TTA none" in table
    with rasterio.open("maps/confusion.png") as picture:
        assert picture.width > 200


@pytest.mark.parametrize("kind", ["nodata", "alpha"])
def test_pixels_without_data_count_nowhere(
    tmp_path: Path, make_geotiff: Make, call: Call, rng: Any, kind: str
) -> None:
    """Scored with the map, and again when the finished map alone is read, under the map's own nodata."""
    image, void = rng.integers(1, 255, (83, 97, 3), np.uint8), np.zeros((83, 97), np.bool_)
    void[:29], void[50:, 70:] = True, True
    options: dict[str, Any] = {"nodata": {"nodata": 0}, "alpha": {"alpha": True}}
    image[void] = 0 if kind == "nodata" else 7
    alpha = [np.where(void, 0, 255).astype(np.uint8)] if kind == "alpha" else []
    truth = exact_map(image, ~void, RADIUS, STRIDE, nodata=3)
    truth[:, 60:] = rng.integers(0, 7, (83, 37))
    right = (exact_map(image, ~void, RADIUS, STRIDE) == truth)[~void].mean()
    make_geotiff("in/a.tif", np.dstack([image, *alpha]), **options[kind])
    make_geotiff("in/b.tif", np.full((17, 19, 3), 9, np.uint8))
    write_raster(Path("truth/a.png"), truth, RasterSpec(driver="PNG"))
    write_raster(Path("truth/b.png"), np.zeros((17, 19), np.uint8), RasterSpec(driver="PNG"))
    asked = ("in", "--nodata", 200)
    assert call(*asked) == 0
    found = []
    for output in ("maps", "again"):  # of which the first has the maps
        assert call(*asked, "--labels", "truth/{scene}.png", output=output) == 0
        found.append(json.loads((tmp_path / output / "scores.json").read_text()))
    assert found[0] == found[1]
    of_a = found[0]["per_scene"]["a"]
    assert (of_a["oa"], of_a["pixels"]) == (pytest.approx(right, rel=1e-12), (~void).sum())
    assert of_a["completeness"] == pytest.approx((~void).mean(), rel=1e-12)
    assert found[0]["per_scene"]["b"]["completeness"] == 1
    assert found[0]["without_data"] == void.sum()


def test_few_scenes_give_miou_an_interval_over_blocks(make_geotiff: Make, call: Call, rng: Any) -> None:
    """The same from maps as they are made, in windows of two sizes, and from finished ones."""
    for name, (height, width) in {"a": (515, 389), "b": (301, 203)}.items():
        image = pixels(rng, height, width, 3)
        wrong = np.kron(rng.random((height // 64 + 1, width // 64 + 1)) < 0.3, np.ones((64, 64), np.bool_))
        make_geotiff(f"in/{name}.tif", image)
        truth = np.where(wrong[:height, :width], 0, expected(image)).astype(np.uint8)
        write_raster(Path(f"truth_{name}.png"), truth, RasterSpec(driver="PNG"))
    found = []
    for options in (("--window-size", 64), ("--window-size", 192, "--redo"), ()):
        assert call("in", "--labels", "truth_{scene}.png", *options) == 0
        found.append(json.loads(Path("maps/scores.json").read_text()))
    assert found[0] == found[1] == found[2]
    low, high = found[0]["miou_interval"]
    assert low < found[0]["miou"] < high
    assert found[0]["miou_interval_over"] == {"blocks": 20 + 6, "side": 128}
    of_a, of_b = (found[0]["per_scene"][name] for name in "ab")
    assert of_a["miou_interval_over"] == {"blocks": 20, "side": 128}
    assert of_b["miou_interval"] is None
    maps = MapScores.read(Path("maps/scores.json"))
    assert maps.miou_interval == (low, high)
    assert "over 26 blocks of 128 px" in repr(maps)
    part = ("--part", 100, 50, 300, 300)
    assert call("in/a.tif", "--labels", "truth_a.png", *part, output="part") == 0
    assert json.loads(Path("part/scores.json").read_text())["miou_interval_over"]["blocks"] == 9


def test_only_the_part_is_scored(make_geotiff: Make, call: Call, rng: Any) -> None:
    image = pixels(rng, 80, 90, 3)
    make_geotiff("in/a.tif", image)
    truth = np.full((80, 90), 6, np.uint8)
    truth[13:60, 21:70] = expected(image)[13:60, 21:70]
    write_raster(Path("truth.png"), truth, RasterSpec(driver="PNG"))
    assert call("in/a.tif", "--labels", "truth.png", "--part", 13, 21, 47, 49) == 0
    scores = json.loads(Path("maps/scores.json").read_text())
    assert (scores["oa"], scores["pixels"]) == (1.0, 47 * 49)


@pytest.mark.parametrize(("name", "counted"), [("potsdam-6", 6), ("potsdam-5", 5)])
def test_potsdam_protocols_by_name(make_geotiff: Make, call: Call, rng: Any, name: str, counted: int) -> None:
    names = ("impervious surfaces", "building", "low vegetation", "tree", "car", "clutter")
    colours = ((255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0))
    table = tuple(LandCoverClass(n, c, i) for i, (n, c) in enumerate(zip(names, colours, strict=True)))
    classes = ClassMap(table, "colours", ((0, 0, 0),))
    truth = rng.integers(0, 6, (40, 40))
    label = np.array(colours, np.uint8)[truth]
    label[:3] = 0  # the eroded border
    make_geotiff("in/top_potsdam_2_13_RGB.tif", pixels(rng, 40, 40, 3))
    write_raster(Path("top_potsdam_2_13_label_noBoundary.tif"), label)

    def half_right(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        ids = np.zeros(valid.shape, np.uint8)
        ids[:, :40, :20] = truth[:, :20]
        return Prediction(ids)

    labels = ("--labels", "{scene}_label_noBoundary.tif", "--protocol", name)
    kind = {"classes": classes, "predictor": lambda *_, **__: FunctionPredictor(half_right)}
    assert call("in/top_potsdam_2_13_RGB.tif", *labels, labels="eroded", **kind) == 0
    scores = json.loads(Path("maps/scores.json").read_text())
    assert scores["protocol"]["name"] == name
    assert len(scores["iou"]) == counted
    assert scores["pixels"] == (truth[3:] < counted).sum()


def test_an_unfit_protocol_is_refused_before_the_work(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    write_raster(Path("t.png"), np.zeros((9, 9), np.uint8), RasterSpec(driver="PNG"))
    for options, said in (
        (("potsdam-6",), "expected eroded labels"),
        (("potsdam-6", "--label-kind", "eroded"), "have no class 'impervious surfaces'"),
        (("vaihingen",), "known: potsdam-6, potsdam-5"),
    ):
        assert call(source, "--labels", "t.png", "--protocol", *options) == 2
        assert said in capsys.readouterr().err
    assert not Path("maps").exists()


def test_an_unknown_label_costs_only_the_score(make_geotiff: Make, call: Call, rng: Any, capsys: Any) -> None:
    for name, value in (("a", 0), ("b", 77)):
        make_geotiff(f"in/{name}.tif", pixels(rng, 90, 20, 3))
        truth = np.zeros((90, 20), np.uint8)
        truth[70, 3] = value
        write_raster(Path(f"truth/{name}.png"), truth, RasterSpec(driver="PNG"))
    assert call("in", "--labels", "truth/{stem}.png") == 1
    said = capsys.readouterr()
    assert "b.png: codes" in said.err
    assert "77 (1 px)" in said.err
    assert "left out" in said.err
    assert json.loads(Path("maps/scores.json").read_text())["protocol"]["scenes"] == ["a"]
    assert Path("maps/b.tif").is_file()


PLACE = rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000)


@pytest.mark.parametrize(
    ("profile", "said"),
    [
        ({"transform": PLACE @ PLACE.translation(0, 4000)}, r"4,000.0 pixels from .* \(2.0 km"),
        ({"transform": PLACE @ PLACE.scale(2)}, "lies up to 37.4 pixels from its image .*in/a.tif"),
        ({"crs": "EPSG:25832"}, "got EPSG:25832; its centre lies 406.9 km from that of .*in/a.tif"),
        ({"crs": 'LOCAL_CS["site",UNIT["metre",1]]'}, "its image's CRS EPSG:25833, got site"),
    ],
)
def test_a_label_of_another_place_is_refused_as_check_refuses_it(
    tmp_path: Path, make_geotiff: Make, make_classes: Any, call: Call, capsys: Any, profile: Any, said: str
) -> None:
    image = make_geotiff("in/a.tif", np.ones((21, 31, 3), np.uint8))
    good = make_geotiff("good/a.tif", np.zeros((21, 31), np.uint8))
    moved = make_geotiff("moved/a.tif", np.zeros((21, 31), np.uint8), **profile)
    assert call(image, "--labels", good) == 0
    Path("maps/scores.json").unlink()
    for part in ((), ("--part", 3, 4, 5, 6)):
        assert call(image, "--labels", moved, *part) == 1
        error = capsys.readouterr().err.strip()
        assert re.search(said, error)
        assert not Path("maps/scores.json").exists()
        dataset = Dataset("made", tmp_path, (Scene("a", image, moved, "a", "train"),), make_classes(1))
        found = [f.text for f in check_dataset(dataset, progress=False).findings]
        assert [f"error: {text}" for text in found] == [error]


def test_a_world_file_is_a_place_and_a_plain_mask_lies_on_its_image(
    make_geotiff: Make, make_png: Make, call: Call, capsys: Any
) -> None:
    image = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8), crs=None, transform=PLACE)
    label = make_png("a.png", np.zeros((9, 9), np.uint8))
    assert call(image, "--labels", label) == 0
    label.with_suffix(".pgw").write_text("0.5\n0\n0\n-0.5\n368010.25\n5807999.75\n")
    assert call(image, "--labels", label) == 1
    assert "a.png: lies up" in capsys.readouterr().err
    label.with_suffix(".pgw").write_text("0.5\n0\n0\n-0.5\n368000.25\n5807999.75\n")
    assert call(image, "--labels", label) == 0


def test_naic_results_are_pngs_with_the_original_codes(make_geotiff: Make, call: Call, rng: Any) -> None:
    classes = ClassMap(tuple(LandCoverClass(f"c{i}", (i, i, i), 100 * (i + 1)) for i in range(8)))
    images = {f"{i}": pixels(rng, 256, 256, 3) for i in range(3)}
    images["2"][:50] = 0
    for stem, image in images.items():
        make_geotiff(f"in/{stem}.tif", image, crs=None, nodata=0 if stem == "2" else None)
    make_geotiff("in/placed.tif", images["0"])
    recipe = SimpleNamespace(
        name="n",
        dataset=SimpleNamespace(kind="naic2020", maps_hold_codes=True),
        prediction=SimpleNamespace(window=512, batch=2),
        augmentation=SimpleNamespace(scale_to=None),
        training=SimpleNamespace(precision="float32"),
    )
    assert call(Path("in"), classes=classes, recipe=recipe) == 0
    names = {p.name for p in Path("maps").glob("[!.]*")}
    styles = {f"{stem}.qml" for stem in ("0", "1", "2", "placed")} | {"placed.tif.aux.xml"}
    assert names - styles == {"0.png", "1.png", "2.png", "placed.tif"}
    assert styles <= names
    for stem in ("0", "1"):
        got = ids(f"maps/{stem}.png")
        assert got.dtype == np.uint16
        np.testing.assert_array_equal(got, 100 * (expected(images[stem]).astype(int) + 1))
    assert (ids("maps/2.png")[:50] == 0).all()
    assert ids("maps/placed.tif").max() < 8


def test_a_png_that_loses_the_place_says_so(make_geotiff: Make, call: Call, capsys: Any) -> None:
    assert call(make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8)), "--format", "png") == 0
    assert "georeference" in capsys.readouterr().err
    assert ids("maps/a.png").dtype == np.uint8


def test_a_png_too_large_for_memory_is_refused(make_classes: Any, tmp_path: Path) -> None:
    from segmenter.grid.geometry import Size, Window
    from segmenter.mapping.outputs.finished import MapStyle
    from segmenter.mapping.request.map_request import MapRequest

    request = MapRequest(Path("run"), tmp_path, ("a.tif",), format="png")
    info = SimpleNamespace(path=Path("a.tif"), georeferenced=False, size=Size(9000, 9000))
    with refused(RasterError, where="a.tif", fault="use --format geotiff"):
        MapStyle(request, make_classes(3)).check(info, Window(0, 0, 9000, 9000))
