"""`predict.py` end to end: what is written, refused or asked for, how it ends; the model is a stand-in."""

import json
import signal
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from datasets import load_dataset
from datasets.check import check_dataset
from segmenter.base.errors import DatasetError, RasterError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Window
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster import RasterSpec, raster_info, write_raster
from segmenter.tiles.index import build_index
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore
from segmenter.training.prepare import prepare_tiles
from tests.helpers.child_predict import COMMAND, ENVIRONMENT
from tests.helpers.made_training import made
from tests.helpers.maps import Call, Make, expected, ids, names, pixels
from tests.helpers.refusals import refused
from tests.helpers.trained_run import trained_run


def test_a_map_is_exact_and_complete(make_geotiff: Make, call: Call, rng: Any, capsys: Any) -> None:
    image = pixels(rng, 131, 203, 3)
    source = make_geotiff("in/a.tif", image)
    assert call(source) == 0
    assert "1 map in maps: 0.0 Mpixel, " in capsys.readouterr().out
    result = Path("maps/a.tif")
    np.testing.assert_array_equal(ids(result), expected(image))
    with rasterio.open(result) as file, rasterio.open(source) as original:
        assert (file.crs, file.bounds, file.shape) == (original.crs, original.bounds, original.shape)
        assert (file.nodata, file.dtypes, file.compression.name) == (255, ("uint8",), "deflate")
        assert file.profile["tiled"]
        assert (file.colormap(1)[1], file.colormap(1)[255]) == ((0, 0, 255, 255), (0, 0, 0, 0))
        tags = file.tags()
        assert (tags["CLASS_0"], tags["CODE_6"], tags["SOURCE"], tags["RUN"]) == ("a", "6", "a.tif", "exact")
    assert names("maps") == ["a.tif"]


@pytest.mark.parametrize(
    "transform",
    [Affine(2, 0, 100, 0, 2, 50), Affine(1.7, 0.5, 100, 1.0, -0.9, 200)],
    ids=["south-up", "rotated"],
)
def test_a_box_is_found_in_any_grid(call: Call, rng: Any, transform: Affine) -> None:
    """Every pixel whose centre lies in the box is in the part, at the place where it was."""
    image = pixels(rng, 60, 80, 3)
    write_raster(Path("a.tif"), image, RasterSpec(transform=transform))
    x, y = transform @ (40, 30)
    assert call("a.tif", "--bbox", x - 9, y - 7, x + 9, y + 7) == 0
    with rasterio.open("maps/a.tif") as file:
        col, row = (round(v) for v in ~transform @ (file.transform @ (0, 0)))
        np.testing.assert_array_equal(
            file.read(1), expected(image)[row : row + file.height, col : col + file.width]
        )
        rows, cols = np.mgrid[:60, :80] + 0.5
        xs, ys = transform @ (cols, rows)
        inside = (abs(xs - x) < 9) & (abs(ys - y) < 7)
        assert inside.any()
        assert inside[row : row + file.height, col : col + file.width].sum() == inside.sum()
        assert file.height < 60
        assert file.width < 80


def test_inputs_beside_the_box_are_left_out_and_counted(call: Call, capsys: Any) -> None:
    for index in range(3):
        place = Affine(1, 0, 100 * index, 0, -1, 100)
        write_raster(Path(f"{index}.tif"), np.ones((100, 100, 3), np.uint8), RasterSpec(transform=place))
    assert call("0.tif", "1.tif", "2.tif", "--bbox", 150, 20, 210, 80) == 0
    assert "1 input lies beside the bounding box" in capsys.readouterr().out
    sizes = {name: raster_info(Path("maps") / name).size for name in names("maps")}
    assert {name: (s.height, s.width) for name, s in sizes.items()} == {"1.tif": (60, 50), "2.tif": (60, 10)}
    assert call("0.tif", "--bbox", 900, 0, 901, 1, output="none") == 2
    assert "1 inputs" in capsys.readouterr().err
    spec = RasterSpec(transform=Affine(1, 0, 100, 0, -1, 100), crs=rasterio.CRS.from_epsg(25833))
    write_raster(Path("placed.tif"), np.ones((100, 100, 3), np.uint8), spec)
    assert call("1.tif", "placed.tif", "--bbox", 150, 20, 160, 80, output="both") == 0
    assert "EPSG:25833, no CRS" in capsys.readouterr().err


def test_differences_from_training_are_one_line_each(make_geotiff: Make, call: Call, capsys: Any) -> None:
    first = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint16))
    make_geotiff("in/b.tif", np.ones((9, 9, 3), np.uint16))
    assert call(first.parent, metres_per_pixel=1.2) == 0
    warnings = capsys.readouterr().err.splitlines()
    found = [warning.partition(" and 1 more: ")[2] for warning in warnings]
    assert ["uint16" in found[0], "1.2 m" in found[1], len(found)] == [True, True, 2]


def test_a_map_of_a_stopped_training_says_so(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    trained_run(Path("run"), epochs=3, of=10)
    assert call(source, "--json") == 0
    answer = capsys.readouterr()
    (line,) = json.loads(answer.out)["warnings"]
    assert "3 of 10" in line
    assert line in answer.err


def test_a_scale_that_augmentation_showed_is_no_other(make_geotiff: Make, call: Call, capsys: Any) -> None:
    """Their geometric mean is what `--gsd auto` takes, not the only one that was seen."""
    for name, side in (("fine", 0.1), ("coarse", 3.9), ("beyond", 9.0)):
        transform = rasterio.Affine(side, 0, 368000, 0, -side, 5808000)
        make_geotiff(f"in/{name}.tif", np.ones((9, 9, 3), np.uint8), transform=transform)
    path = make_geotiff("in/last.tif", np.ones((9, 9, 3), np.uint8))
    assert call(path.parent, metres_per_pixel=0.63, scale_to=(0.1, 4.0)) == 0
    (warning,) = capsys.readouterr().err.splitlines()
    assert "beyond.tif: a pixel is 9 m" in warning


def test_a_window_smaller_than_the_halo_is_refused(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", np.ones((99, 99, 3), np.uint8))
    network = NetworkGeometry(8, 40, 100.0)
    assert call(source, "--memory", "4GB", network=network) == 0
    assert call(source, "--window-size", 64, network=network) == 2
    assert "80 pixels, twice" in capsys.readouterr().err


def test_an_input_is_never_replaced(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    before = source.read_bytes()
    assert call(source, output="in") == 2
    assert "choose another" in capsys.readouterr().err
    assert call("in", output="in") == 2
    assert "another folder" in capsys.readouterr().err
    write_raster(Path("truth/a.tif"), np.ones((9, 9), np.uint8))
    assert call(source, "--labels", "truth/{stem}.tif", output="truth") == 2
    assert "would replace" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_a_broken_output_does_not_cost_the_others(make_geotiff: Make, call: Call, capsys: Any) -> None:
    for name in ("a", "b"):
        make_geotiff(f"in/{name}.tif", np.ones((700, 30, 3), np.uint8))
    Path("maps/a.tif").mkdir(parents=True)
    assert call("in") == 1
    assert "maps/a.tif: could" in capsys.readouterr().err
    assert names("maps") == ["a.tif", "b.tif"]
    assert Path("maps/b.tif").is_file()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--part", "0", "0", "90", "9"], "reach beyond"),
        (["--bbox", "0", "0", "1", "1"], "geotransform"),
        (["--bands", "1,2,9"], "expected band 9"),
        (["--max-pixels", "1000"], "1000 allowed"),
    ],
)
def test_what_does_not_fit_a_file_is_its_failure(
    make_geotiff: Make, call: Call, capsys: Any, options: list[str], line: str
) -> None:
    source = make_geotiff("in/a.tif", np.ones((40, 40, 3), np.uint8), crs=None)
    assert call(source, *options) == 1
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert not Path("maps").exists()


def test_the_result_can_be_had_as_json(make_geotiff: Make, make_png: Make, call: Call, capsys: Any) -> None:
    """One object on stdout and the words on stderr, also where an input fails; nothing after a wrong call."""
    rng = np.random.default_rng(0)
    for name in "ab":
        make_geotiff(f"in/{name}.tif", pixels(rng, 40, 50, 3))
        make_png(f"truth/{name}.png", rng.integers(0, 7, (40, 50), np.uint8))
    asked = ("in", "--json", "--labels", "truth/{stem}.png", "--confidence", "--pictures")
    assert call(*asked) == 0
    told = capsys.readouterr()
    result = json.loads(told.out)
    assert "2 maps" in told.err
    assert result["counts"] == {"written": 2, "kept": 0, "failures": 0}
    files = [name for one in result["maps"] for name in one["files"]] + result["further"]
    assert sorted(files) == sorted(p.name for p in Path("maps").iterdir() if p.name[0] != ".")
    assert result["maps"][0] == {
        "map": "a.tif",
        "image": "in/a.tif",
        "files": ["a.tif", "a.confidence.tif", "a.qml", "a.confidence.qml", "a.tif.aux.xml"],
        "kept": False,
    }
    saved = json.loads(Path("maps/scores.json").read_text())
    assert {key: saved[key] for key in result["scores"]} == result["scores"]
    Path("in/c.tif").write_bytes(b"no raster")
    assert call(*asked) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["counts"] == {"written": 0, "kept": 2, "failures": 1}
    assert "c.tif" in result["failures"][0]
    assert call("nowhere.tif", "--json") == 2
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_an_interruption_ends_cleanly(tmp_path: Path, make_geotiff: Make) -> None:
    source = make_geotiff("in/a.tif", np.ones((8_000, 70, 3), np.uint8))
    options = ["--output", str(tmp_path / "maps"), "--window-size", "64", "--batch", "1"]
    command = [*COMMAND, "0.05", "1000000000", str(source), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    for _ in range(12):  # the writer has its file by then
        assert process.stdout.readline() == "batch\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert (process.returncode, err) == (143, "interrupted\n")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


Images = Callable[..., Dataset]
SHAPE = (40, 50)
ASKED = "band 4 is tagged as alpha, but holds measurements and no mask; say which bands to use, by "
ASKED += "dataset.bands in the recipe or --bands of predict.py: 1,2,3,4 or 1,2,3"


@pytest.fixture
def images(tmp_path: Path, make_geotiff: Make, make_classes: Any) -> Images:
    """`images(array, …)`: a dataset of them, of which `splits` may say what each is for."""

    def make(*arrays: Any, splits: tuple[Split, ...] = (), **options: Any) -> Dataset:
        scenes = []
        for i, array in enumerate(arrays):
            files = make_geotiff(f"{i}.tif", array, **options), make_geotiff(f"{i}_l.tif", array[..., 0] % 3)
            scenes.append(Scene(str(i), *files, str(i), splits[i] if splits else "train"))
        return Dataset("made", tmp_path, tuple(scenes), make_classes(3))

    return make


def near_infrared(rng: Any) -> Any:
    """RGB and a band that is often 0 and never near 255."""
    values = rng.integers(1, 200, (*SHAPE, 4), np.uint8)
    values[rng.random(SHAPE) < 0.3, 3] = 0
    return values


def test_alpha_that_is_measurements(images: Images, rng: Any, call: Call, capfd: Any) -> None:
    values = near_infrared(rng)
    dataset = images(values, alpha=True)
    (scene,) = dataset.scenes
    expected = f"{scene.image}: {ASKED}"
    report = check_dataset(dataset, progress=False)
    assert ("bands", expected) in [(finding.kind, finding.text) for finding in report.findings]
    with pytest.raises(RasterError) as training:
        build_index(dataset, "train", TilesConfig(size=32, overlap=0), progress=False)
    assert str(training.value) == expected
    for count in (3, 4):
        assert call(scene.image, band_count=count) == 1
        assert capfd.readouterr().err == f"error: {expected}\n"


def test_named_bands_are_all_read(images: Images, rng: Any, call: Call, capfd: Any) -> None:
    values = near_infrared(rng)
    dataset = replace(images(values, alpha=True), bands=(1, 2, 3, 4))
    assert check_dataset(dataset, progress=False).clean
    build_index(dataset, "train", TilesConfig(size=32, overlap=0), progress=False)
    store = SceneStore(dataset, dataset.scenes, 32, dataset.root / "cache", progress=False)
    image, valid, _ = store.read(0, Window(0, 0, *SHAPE))
    np.testing.assert_array_equal(image, values)
    assert valid.all()
    path = dataset.scenes[0].image
    assert call(path, "--bands", "1,2,3,4", band_count=4) == 0
    assert call(path, "--redo", bands=(1, 2, 3), band_count=3) == 0
    assert capfd.readouterr().err == ""


def test_an_image_with_more_bands_than_the_others(images: Images, rng: Any) -> None:
    three, four = rng.integers(1, 9, (*SHAPE, 3), np.uint8), rng.integers(1, 9, (*SHAPE, 4), np.uint8)
    asks = "; say which bands to use, by dataset.bands in the recipe or --bands of predict.py: 1,2,3"
    dataset = images(three, three, four, photometric="minisblack")
    odd = dataset.scenes[2].image
    (text,) = [finding.text for finding in check_dataset(dataset, progress=False).findings]
    assert text == f"{odd}: expected 3 bands of uint8 as most have, got 4 of uint8{asks}"
    with refused(DatasetError, expected="3 bands as 0.tif", got=4, remedy=asks[2:]):
        band_statistics(dataset, progress=False)
    named = replace(dataset, bands=(1, 2, 3))
    assert check_dataset(named, progress=False).clean
    assert len(band_statistics(named, progress=False).mean_C) == 3


@pytest.mark.parametrize(("bands", "dtype"), [(4, np.uint8), (3, np.uint16)])
def test_training_looks_before_it_starts(
    tmp_path: Path, make_geotiff: Make, rng: Any, bands: int, dtype: Any
) -> None:
    """The scene that validates, too: before hours are spent."""
    recipe = load_recipe(made(tmp_path / "data"))
    values = rng.integers(1, 9, (97, 83, bands), dtype)
    make_geotiff("odd.tif", values, photometric="minisblack", crs=None)
    (tmp_path / "odd.tif").replace(tmp_path / "data" / "images" / "s4.tif")
    with refused(DatasetError, where="s4.tif", expected="3 bands"):
        prepare_tiles(recipe, load_dataset(recipe))
