"""Files of prediction sets: bits of the classes whose probability reaches the thresholds of the run."""

import csv
import json
import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import rasterio
import yaml

from datasets.commands.predict import main as predict
from datasets.commands.review import main as review
from datasets.commands.train import main as train
from segmenter import open_run
from segmenter.base.errors import CheckpointError, ConfigError
from segmenter.base.sealed import seal, unseal
from segmenter.evaluation.prediction_sets import bits
from segmenter.extras.review.teaching import spots
from segmenter.grid.labels import IGNORE
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.session import map_rasters
from segmenter.runs.records import SETS
from segmenter.runs.run import load_run
from segmenter.runs.set_file import load_sets
from tests.helpers.made_training import made
from tests.helpers.refusals import refused


@pytest.fixture(scope="module")
def run(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was calibrated at the end of its training; a corner of its test image has no data."""
    folder = tmp_path_factory.mktemp("sets")
    recipe = made(folder, scenes=7)
    content = yaml.safe_load(recipe.read_text())
    content["dataset"]["split"] = {"validation": ["s3", "s4", "s5"], "test": ["s6"]}
    content["distribution"] = {"strategy": "one_device"}
    recipe.write_text(yaml.safe_dump(content))
    with rasterio.open(folder / "images/s6.tif", "r+") as image:
        image.nodata = 0
        image.write(np.zeros((3, 11, 13), np.uint8), window=rasterio.windows.Window(0, 0, 13, 11))
    assert train([str(recipe), "--run", str(folder / "run")]) == 0
    return folder / "run"


@pytest.mark.parametrize("promise", ["0.8", "0.95"])
def test_a_bit_says_that_a_class_reaches_its_threshold(run: Path, tmp_path: Path, promise: str) -> None:
    image = run.parent / "images/s6.tif"
    assert predict([str(run), str(image), "--output", str(tmp_path), "--sets", promise, "--confidence"]) == 0
    assert not (tmp_path / "s6.sets.qml").exists(), "bits are no share that a ramp could show"
    assert (tmp_path / "s6.confidence.qml").exists()
    with rasterio.open(tmp_path / "s6.sets.tif") as file:
        written, nodata = file.read(1), file.nodata
    with rasterio.open(image) as file:
        pixels_HWC = np.moveaxis(file.read(), 0, 2)
    opened = open_run(run)
    own = opened.predict(pixels_HWC, nodata=0, probabilities=True)
    ids = opened.predict(pixels_HWC, nodata=0)
    known = load_run(run)
    thresholds = load_sets(known, float(promise))
    flat = own.reshape(-1, own.shape[-1])
    if (calibration := known.calibration()) is not None:
        flat = calibration.undone(flat)
    seen = ids.reshape(-1) != IGNORE
    assert 0 < (~seen).sum() < len(seen) / 2
    expected = np.zeros(len(flat), np.uint8)
    expected[seen] = bits(thresholds.members(flat[seen], ids.reshape(-1)[seen]))
    assert nodata == 0
    assert (written.reshape(-1) == expected).mean() > 0.999, "but for probabilities at a threshold"
    assert (written.reshape(-1)[seen] >> ids.reshape(-1)[seen] & 1).all(), "the mapped class is in"
    assert not written.reshape(-1)[~seen].any()


def test_sizes_of_sets_are_counted_while_maps_are_written(run: Path, tmp_path: Path) -> None:
    """So the line on them needs no file: those of `--output s3://` are gone by then."""
    images = tuple(f"{run.parent}/images/{name}.tif" for name in ("s5", "s6"))
    result = map_rasters(MapRequest(run=run, inputs=images, output=tmp_path, sets="0.9"))
    expected = np.zeros(65, int)
    for name in ("s5", "s6"):
        with rasterio.open(tmp_path / f"{name}.sets.tif") as file:
            bits_HW = file.read(1)
        expected += np.bincount([bin(value).count("1") for value in bits_HW.reshape(-1)], minlength=65)
    assert np.array_equal(result.outcome.set_sizes, expected)
    assert expected[0] == 11 * 13, "no data"


def test_maps_are_made_anew_after_another_fit_of_the_sets(run: Path, tmp_path: Path) -> None:
    again = shutil.copytree(run, tmp_path / "again")
    words = [str(again), str(run.parent / "images/s6.tif"), "--output", str(tmp_path), "--sets", "0.9"]
    assert predict(words) == 0
    file = tmp_path / "s6.sets.tif"
    before = file.read_bytes()
    content = unseal((again / SETS).read_bytes())
    assert content is not None
    content["thresholds"]["90"] = [0.0] * 3
    (again / SETS).write_text(seal(json.dumps(content)))
    assert predict(words) == 0
    assert file.read_bytes() != before
    with rasterio.open(file) as written:
        values = written.read(1)
    assert set(np.unique(values)) == {0, 7}, "all classes, or no data"


def test_a_larger_promise_has_no_smaller_sets(run: Path) -> None:
    known = load_run(run)
    each = [np.array(load_sets(known, promise).each_K) for promise in (0.8, 0.9, 0.95)]
    assert (each[0] >= each[1]).all()
    assert (each[1] >= each[2]).all()


@pytest.mark.slow
def test_probabilities_are_written_beside_sets_as_without_them(run: Path, tmp_path: Path) -> None:
    image = str(run.parent / "images/s6.tif")
    for name, more in (("a", []), ("b", ["--sets", "0.9"])):
        asked = [str(run), image, "--output", str(tmp_path / name), "--probabilities", "uint8", *more]
        assert predict(asked) == 0
    found = []
    for name in "ab":
        with rasterio.open(tmp_path / name / "s6.probabilities.tif") as file:
            found.append((file.read(), file.dtypes, file.nodata))
    assert np.abs(found[0][0].astype(int) - found[1][0]).max() <= 1
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("words", [("--tta", "flips"), ("--tta", "auto"), ("--gsd", "0.7")])
def test_what_validation_did_not_have_is_refused(run: Path, tmp_path: Path, words: tuple[str, str]) -> None:
    with refused(ConfigError):
        predict([str(run), str(run.parent / "images"), "--output", str(tmp_path), "--sets", "0.9", *words])
    with refused(ConfigError):
        both = f"{run},{shutil.copytree(run, tmp_path / 'other')}"
        predict([both, str(run.parent / "images"), "--output", str(tmp_path), "--sets", "0.9"])


def test_a_run_without_thresholds_says_how_to_make_them(run: Path, tmp_path: Path) -> None:
    (run / SETS).rename(tmp_path / SETS)
    try:
        with refused(CheckpointError, remedy="calibrate"):
            predict([str(run), str(run.parent / "images"), "--output", str(tmp_path), "--sets", "0.9"])
    finally:
        (tmp_path / SETS).rename(run / SETS)


@pytest.mark.slow
def test_places_to_label_are_ordered_by_the_classes_of_their_sets(run: Path, tmp_path: Path) -> None:
    image, side = run.parent / "images/s6.tif", 16
    assert predict([str(run), str(image), "--output", str(tmp_path), "--sets", "0.9"]) == 0
    how = ["--sets", "0.9", "--cell", str(side), "--apart", str(side), "--points", "9", "--output"]
    assert review([str(run), "--unlabelled", str(image), *how, str(tmp_path / "next")]) == 0
    with rasterio.open(tmp_path / "s6.sets.tif") as file:
        sizes = np.bitwise_count(file.read(1)).astype(np.float64)
    further = len(load_run(run).classes) - 1
    rows = list(csv.DictReader((tmp_path / "next/next.csv").read_text().splitlines()))
    assert len(rows) == 9
    for row in rows:
        top, left = int(row["row"]), int(row["col"])
        cell = sizes[top : top + side, left : left + side]
        doubt = (cell[cell > 0] - 1).mean() / further
        assert float(row["doubt"]) == pytest.approx(doubt, abs=2e-3)
        assert float(row["disagreement"]) == 0
    folds = [load_run(run)] * 2
    with refused(ConfigError, where="--sets", got="2 folds"):
        spots(folds, [str(image)], side, 1, 1, promise=0.9)
    with refused(ConfigError):
        review([str(run), "--sets", "0.9", "--output", str(tmp_path / "labels")])
