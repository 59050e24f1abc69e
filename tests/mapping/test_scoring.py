"""`predict.py` with labels or a split of the recipe, and results in the data's own codes."""

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml
from numpy.typing import NDArray

from datasets import load_dataset
from datasets.check import check_dataset
from datasets.commands.predict import parse
from segmenter.api.results import MapScores
from segmenter.base.errors import RasterError
from segmenter.config.datasets import FolderConfig
from segmenter.evaluation.scores import MODEL, Protocol
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.style import MapStyle
from segmenter.raster import RasterSpec, write_raster
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map
from tests.helpers.maps import Call, Make, at_batch, expected, ids, pixels
from tests.helpers.refusals import refused


def test_scores_carry_their_protocol(make_geotiff: Make, call: Call, rng: Any, capsys: Any) -> None:
    image = pixels(rng, 80, 90, 3)
    truth = expected(image)
    truth[:, :30] = rng.integers(0, 7, (80, 30))
    make_geotiff("in/a_RGB.tif", image)
    write_raster(Path("truth/a_label.png"), truth, RasterSpec(driver="PNG"))
    assert call("in/a_RGB.tif", "--labels", "truth/{scene}_*.png", "--split-name", "test") == 0
    scores = json.loads(Path("maps/scores.json").read_text())
    assert scores["miou"] == pytest.approx(iou(truth, expected(image)), rel=1e-12)
    assert scores["oa"] == pytest.approx((truth == expected(image)).mean(), rel=1e-12)
    protocol = scores["protocol"]
    assert (protocol["labels"], protocol["split"], protocol["tta"]) == ("full", "test", "none")
    assert protocol["scenes"] == ["a_RGB"]
    table = capsys.readouterr().out
    assert "mIoU" in table
    assert "7 classes, full labels, test split (1 scene), TTA none" in table
    with rasterio.open("maps/confusion.png") as picture:
        assert picture.width > 200


def test_labels_without_a_label_give_maps_and_no_scores(make_geotiff: Make, call: Call, capsys: Any) -> None:
    for name, value in (("a", 255), ("b", 255), ("b", 1)):
        make_geotiff(f"in/{name}.tif", np.ones((9, 9, 3), np.uint8))
        make_geotiff(f"truth/{name}.tif", np.full((9, 9), value, np.uint8), nodata=255)
        assert call("in", "--labels", "truth/{stem}.tif") == (value == 255)
        assert capsys.readouterr().err.count("--labels truth/{stem}.tif") == (value == 255)
        assert Path("maps/scores.json").exists() == (value != 255)


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
    of_part = json.loads(Path("part/scores.json").read_text())
    assert (of_part["miou_interval_over"]["blocks"], of_part["pixels"]) == (9, 300 * 300)


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


@pytest.mark.slow
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
    request = MapRequest(Path("run"), tmp_path, ("a.tif",), format="png")
    info = SimpleNamespace(path=Path("a.tif"), georeferenced=False, size=Size(9000, 9000))
    with refused(RasterError, where="a.tif", fault="use --format geotiff"):
        MapStyle(request, make_classes(3)).check(info, Window(0, 0, 9000, 9000))


SIZE = (37, 53)
TILES = {"1": ("p", "q"), "2": ("p",), "3": ("p", "q")}  # p and q occur in several folders


def iou(truth: NDArray[Any], guess: NDArray[Any]) -> float:
    pairs = [((truth == k) & (guess == k), (truth == k) | (guess == k)) for k in range(7)]
    return float(np.mean([both.sum() / either.sum() for both, either in pairs if either.any()]))


class Tiles:
    """Tiles of three folders, without georeference, each with a label that is partly wrong."""

    def __init__(self, root: Path, make_geotiff: Make, make_png: Make, rng: Any) -> None:
        self.truth: dict[str, NDArray[np.uint8]] = {}
        self.guess: dict[str, NDArray[np.uint8]] = {}
        for tile, parts in TILES.items():
            for part in parts:
                image = rng.integers(0, 255, (*SIZE, 3), np.uint8)
                make_geotiff(f"data/tile_{tile}/images/{part}.tif", image, crs=None)
                truth = expected(image)
                truth[:, : int(rng.integers(5, 40))] = rng.integers(0, 7)
                make_png(f"data/tile_{tile}/masks/{part}.png", truth)
                self.truth[f"{tile}_{part}"], self.guess[f"{tile}_{part}"] = truth, expected(image)
        self.root = root / "data"

    def recipe(self, **changes: Any) -> SimpleNamespace:
        """A recipe in which tile 3 tests and tile 2 validates."""
        section: dict[str, Any] = {
            "kind": "folder",
            "root": str(self.root),
            "images": "tile_{tile}/images/{part}.tif",
            "labels": "tile_{tile}/masks/{part}.png",
            "classes": [{"name": name, "code": code} for code, name in enumerate("abcdefg")],
            "split": {"group": r"(tile_\d+)/", "test": ["tile_3"], "validation": ["tile_2"]},
        }
        return SimpleNamespace(
            name="exact",
            dataset=FolderConfig(**{**section, **changes}),
            tiles=SimpleNamespace(size=64),
            prediction=SimpleNamespace(window=64, batch=4),
            augmentation=SimpleNamespace(scale_to=None),
            training=SimpleNamespace(precision="float32"),
            sampling=SimpleNamespace(scale_strata=()),
        )


@pytest.fixture
def tiles(tmp_path: Path, make_geotiff: Make, make_png: Make, rng: Any) -> Tiles:
    return Tiles(tmp_path, make_geotiff, make_png, rng)


def scores_of() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path("maps/scores.json").read_text())
    return found


def test_a_split_is_scored_by_scene_and_in_total(tiles: Tiles, call: Call, capsys: Any) -> None:
    assert call("--split", "test", "--pictures", recipe=tiles.recipe()) == 0
    scores, scenes = scores_of(), ["3_p", "3_q"]
    assert scores["protocol"]["split"] == "test"
    assert scores["protocol"]["scenes"] == scenes == list(scores["per_scene"])
    truth, guess = (np.concatenate([a[s] for s in scenes]) for a in (tiles.truth, tiles.guess))
    assert scores["miou"] == pytest.approx(iou(truth, guess), rel=1e-12)
    for name, entry in scores["per_scene"].items():
        assert entry["miou"] == pytest.approx(iou(tiles.truth[name], tiles.guess[name]), rel=1e-12)
        assert entry["oa"] == pytest.approx((tiles.truth[name] == tiles.guess[name]).mean(), rel=1e-12)
        assert entry["pixels"] == SIZE[0] * SIZE[1]
        np.testing.assert_array_equal(ids(Path("maps") / entry["map"]), tiles.guess[name])
        assert (Path("maps") / entry["map"].replace(".tif", ".view.png")).is_file()
    lines = capsys.readouterr().out.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("scene"))
    rows = lines[head : head + 3]
    assert [row.split()[0] for row in rows] == ["scene", *scenes]
    assert len({len(row) for row in rows}) == 1
    assert rows[1].split()[1] == f"{100 * scores['per_scene']['3_p']['miou']:.2f}"
    assert any(re.search(r"test split \(2 scenes\)", line) for line in lines)


def test_scenes_of_different_scale_are_scored_by_scale_too(tiles: Tiles, call: Call, capsys: Any) -> None:
    """The scale is in the recipe: 30 cm for p and 2 m for q; scores of each are those of its scenes."""
    for part, name in (("p", "30cm"), ("q", "200cm")):
        for tile in (t for t in TILES if part in TILES[t]):
            for kind, end in (("images", "tif"), ("masks", "png")):
                folder = tiles.root / f"tile_{tile}" / kind
                (folder / f"{part}.{end}").rename(folder / f"{part}_{name}.{end}")
    scale = {"pattern": r"_(\d+)cm\.", "unit": "cm"}
    assert call("--split", "test", recipe=tiles.recipe(metres_per_pixel=scale)) == 0
    found = scores_of()["per_scale"]
    assert list(found) == ["0.18–0.35 m", "1.4–2.8 m"]
    for entry, scene in zip(found.values(), ("3_p", "3_q"), strict=True):
        assert entry["scenes"] == 1
        assert entry["miou"] == pytest.approx(iou(tiles.truth[scene], tiles.guess[scene]), rel=1e-12)
    confusion = np.sum([entry["confusion"] for entry in found.values()], axis=0)
    np.testing.assert_array_equal(confusion, scores_of()["confusion"])
    assert "metres a pixel" in capsys.readouterr().out
    assert call("--split", "test", "--redo", recipe=tiles.recipe(metres_per_pixel=0.3)) == 0
    assert "per_scale" not in scores_of()  # one scale


def test_a_scale_of_the_recipe_goes_before_the_georeference(tiles: Tiles, call: Call, capsys: Any) -> None:
    with rasterio.open(tiles.root / "tile_3" / "images" / "p.tif", "r+") as image:
        image.crs, image.transform = "EPSG:25833", rasterio.Affine(1.2, 0, 0, 0, -1.2, 0)
    recipe = tiles.recipe(metres_per_pixel=0.6)
    assert call("--split", "test", "--gsd", 0.6, recipe=recipe) == 0
    assert "and 1 more: a pixel is 0.6 m, within 1 % of 0.6 m: not resampled" in capsys.readouterr().out
    assert call(tiles.root / "tile_3" / "images" / "p.tif", "--gsd", 0.6, output="alone") == 0
    assert "p.tif: a pixel is 1.2 m, resampled to 0.6 m for the model" in capsys.readouterr().out


@pytest.mark.slow
def test_splits_share_a_folder_and_resume(tiles: Tiles, call: Call, capsys: Any) -> None:
    seen: dict[str, Any] = {}
    for split, names in (("test", ["3_p", "3_q"]), ("validation", ["2_p"]), ("train", ["1_p", "1_q"])):
        assert call("--split", split, recipe=tiles.recipe()) == 0
        seen |= scores_of()["per_scene"]
        assert scores_of()["protocol"]["scenes"] == names
    assert len({entry["map"] for entry in seen.values()}) == 5
    for name, entry in seen.items():
        np.testing.assert_array_equal(ids(Path("maps") / entry["map"]), tiles.guess[name])
    capsys.readouterr()
    (Path("maps") / seen["3_q"]["map"]).unlink()
    assert call("--split", "test", recipe=tiles.recipe()) == 0
    assert "1 of 2 maps are finished and unchanged" in capsys.readouterr().out
    assert {**scores_of()["per_scene"]} == {name: seen[name] for name in ("3_p", "3_q")}


def test_the_protocol_is_that_of_the_validation_in_training(tiles: Tiles, call: Call) -> None:
    from segmenter.training.validation import validation_protocol

    recipe: Any = tiles.recipe()
    assert call("--split", "validation", recipe=recipe) == 0
    found = Protocol.from_dict(scores_of()["protocol"])
    assert found.differences(validation_protocol(load_dataset(recipe))) == []


@pytest.mark.slow
def test_the_labels_and_bands_of_another_recipe_mean_what_it_says(
    tmp_path: Path, tiles: Tiles, call: Call, make_geotiff: Make, make_png: Make, capsys: Any
) -> None:
    """The same classes in another order and with other codes; images with a band more before the others."""
    for name, truth in tiles.truth.items():
        folder, part = f"data/tile_{name[0]}", name[2:]
        with rasterio.open(tmp_path / folder / "images" / f"{part}.tif") as file:
            bands = file.read().transpose(1, 2, 0)
        make_geotiff(f"{folder}/wide/{part}.tif", np.concatenate([255 - bands[..., :1], bands], 2), crs=None)
        codes = np.where(truth == 0, 250, 100 - truth).astype(np.uint8)
        make_png(f"{folder}/other/{part}.png", codes)
    files = {"images": "tile_{tile}/wide/{part}.tif", "labels": "tile_{tile}/other/{part}.png"}
    classes = [{"name": n, "code": 250 if n == "a" else 100 - "abcdefg".index(n)} for n in "gfedcba"]
    other = tiles.recipe(**files, classes=classes, bands=[2, 3, 4])
    data = {"name": "other", "dataset": other.dataset.model_dump(mode="json")}
    Path("other.yaml").write_text(yaml.safe_dump(data))
    arguments = ("--split", "test", "--pictures", "--recipe", "other.yaml")
    assert call(*arguments, recipe=tiles.recipe(), bands=(1, 2, 3)) == 0
    truth, guess = (np.concatenate([a[s] for s in ("3_p", "3_q")]) for a in (tiles.truth, tiles.guess))
    assert scores_of()["miou"] == pytest.approx(iou(truth, guess), rel=1e-12)
    capsys.readouterr()
    assert call(*arguments, recipe=tiles.recipe(), bands=(1, 2, 3)) == 0
    assert "2 of 2 maps are finished" in capsys.readouterr().out
    data["dataset"]["classes"] = data["dataset"]["classes"][:6]
    Path("other.yaml").write_text(yaml.safe_dump(data))
    assert call(*arguments, recipe=tiles.recipe()) == 2
    assert "only" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("split", "learned", "code"), [("test", "1", 0), ("test", "3", 2), ("train", "2", 0)]
)
def test_scenes_that_trained_a_run_are_not_scored_for_another(
    tiles: Tiles, call: Call, capsys: Any, split: str, learned: str, code: int
) -> None:
    """By the run's own recipe; what is scored is that of `--recipe`, or of the first of several runs."""
    other = tiles.recipe(split={"group": r"(tile_\d+)/", "test": ["tile_3"], "validation": ["tile_1"]})
    Path("other.yaml").write_text(
        yaml.safe_dump({"name": "other", "dataset": other.dataset.model_dump(mode="json")})
    )
    held_out = {"test": [f"tile_{n}" for n in "123" if n != learned]}
    own = tiles.recipe(split={"group": r"(tile_\d+)/", **held_out})
    assert call("--split", split, "--recipe", "other.yaml", recipe=own, path=Path("r")) == code
    assert ("which trained" in capsys.readouterr().err) == (code == 2)


def test_a_recipe_without_that_split_is_refused_in_one_line(tiles: Tiles, call: Call, capsys: Any) -> None:
    recipe = tiles.recipe(split={"group": r"(tile_\d+)/", "validation": ["tile_2"]})
    assert call("--split", "test", recipe=recipe) == 2
    error = capsys.readouterr().err
    assert "4 train, 1 validation" in error
    assert error.count("\n") == 1
    assert not Path("maps").exists()


def test_where_a_recipes_data_are_gone_the_way_out_is_named(tiles: Tiles, call: Call, capsys: Any) -> None:
    assert call("--split", "test", recipe=tiles.recipe(root="gone")) == 2
    assert "--recipe" in capsys.readouterr().err


def test_options_may_stand_before_between_and_behind_the_inputs() -> None:
    for order in ("--output o r a b", "r --output o a b", "r a --output o b", "r a --cog b --output o"):
        args = parse(order.split())[0].request
        assert (str(args.run), args.inputs, str(args.output)) == ("r", ("a", "b"), "o")
    for dashed in (["r", "--output", "o", "--", "a", "-b"], ["--output", "o", "--", "r", "a", "-b"]):
        assert parse(dashed)[0].request.inputs == ("a", "./-b")
    boxed = "r --bbox -1 2 3 4 --output o a --labels t --split-name x"
    box = parse(boxed.split())[0].request
    assert (box.inputs, box.bbox, box.split_name) == (("a",), (-1, 2, 3, 4), "x")


def test_maps_are_not_put_where_the_next_call_would_take_them_for_scenes(
    make_geotiff: Make, make_png: Make, call: Call, tiles: Tiles, capsys: Any
) -> None:
    for name in "abc":
        make_geotiff(f"flat/images/{name}.tif", np.ones((*SIZE, 3), np.uint8), crs=None)
        make_png(f"flat/labels/{name}.png", np.zeros(SIZE, np.uint8))
    files = {"root": str(Path.cwd() / "flat"), "images": "**/{name}.tif", "labels": "labels/{name}.png"}
    recipe = tiles.recipe(**files, split={"test": ["c"]})
    assert call("--split", "test", recipe=recipe, output="flat/maps") == 2
    assert "flat/maps: c.tif would" in capsys.readouterr().err
    assert not Path("flat/maps").exists()
    files["images"] = "images/{name}.tif"
    for _ in range(2):
        recipe = tiles.recipe(**files, split={"test": ["c"]})
        assert call("--split", "test", recipe=recipe, output="flat/maps") == 0


@pytest.mark.parametrize("placed", [True, False])
def test_a_label_of_several_images(
    make_geotiff: Make, call: Call, rng: Any, capsys: Any, placed: bool
) -> None:
    """Fine for two images of one place, refused where nothing says on which of them it lies."""
    where = {} if placed else {"crs": None}
    images = {name: rng.integers(0, 255, (*SIZE, 3), np.uint8) for name in "ab"}
    for name, image in images.items():
        make_geotiff(f"st/{name}/x.tif", image, **where)
    make_geotiff("st/a_lab/x.tif", expected(images["a"]), **where)
    code = call("st/[ab]/x.tif", "--labels", "st/a_lab/{stem}.tif")
    error = capsys.readouterr().err
    if placed:
        assert code == 0
        assert scores_of()["per_scene"]["a_x"]["oa"] == 1
        assert scores_of()["per_scene"]["b_x"]["oa"] < 0.9
        return
    assert code == 2
    assert "st/a_lab/x.tif for st/a/x.tif" in error
    assert error.count("\n") == 1
    assert not Path("maps").exists()
    assert call("st/b/x.tif", "--labels", "st/a_lab/{stem}.tif") == 0  # said for this one


def test_maps_and_scores_are_of_one_model_while_a_training_replaces_it(
    make_geotiff: Make, call: Call, rng: Any
) -> None:
    image = pixels(rng, 80, 90, 3)
    make_geotiff("in/a.tif", image)
    write_raster(Path("truth/a.png"), expected(image), RasterSpec(driver="PNG"))
    asked = ("in", "--labels", "truth/{scene}.png")
    models = ["first"]

    def replaced_at_loading(wanted: Any = None, **_: Any) -> Any:
        models.append("second")
        return at_batch(0, lambda: None)(wanted)

    changing = {"checksum": lambda: models[-1]}
    assert call(*asked, predictor=replaced_at_loading, **changing) == 2
    assert not Path("maps").exists()
    assert call(*asked, predictor=at_batch(1, lambda: models.append("third")), **changing) == 0
    assert scores_of()[MODEL] == "second"
