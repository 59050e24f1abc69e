"""Law 4 with a real network: a run directory, `predict.py`, and a raster that is larger than its windows."""

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import rasterio

from datasets.commands import predict
from segmenter.base.errors import CheckpointError
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices
from segmenter.grid.labels import ClassMap
from segmenter.inference.loading import KeptModels, load_predictor
from segmenter.inference.prediction import ExtraOutputs
from segmenter.runs.checkpoints import assign_weights
from segmenter.runs.run import load_run
from tests.helpers.random_run import random_run
from tests.helpers.refusals import refused

Make = Callable[..., Path]
KILLS_ITSELF = """
import os, runpy, signal, sys, threading, time
def watch(partial, most):
    while not (os.path.exists(partial) and os.path.getsize(partial) > most):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
threading.Thread(target=watch, args=(sys.argv[1], int(sys.argv[2])), daemon=True).start()
sys.argv[:3] = ["predict.py"]
runpy.run_path("predict.py", run_name="__main__")
"""
"""predict.py, killed when its partial map has a size; watched from inside, for busy machines."""


@pytest.fixture(scope="module")
def run_path(
    tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory, make_classes: Callable[..., ClassMap]
) -> Path:
    return random_run(tmp_path_factory.mktemp("run"), make_classes(4))


@pytest.fixture(scope="module")
def models() -> KeptModels:
    """Models that are compiled once."""
    return KeptModels()


@pytest.mark.parametrize("size", [(353, 611), (40, 300), (1, 1)], ids=str)
def test_tiles_disappear(
    run_path: Path, models: KeptModels, make_geotiff: Make, tmp_path: Path, rng: np.random.Generator,
    size: tuple[int, int],
) -> None:  # fmt: skip
    """Ids, confidence and probabilities; of more pixels than one fused loop takes at once."""
    image = rng.integers(1, 1000, (*size, 3), np.uint16)
    image[size[0] // 2 :, : size[1] // 5] = 0
    source = make_geotiff("in/a.tif", image, nodata=0)
    run = load_run(run_path)
    assert run.network.stride == 8
    below, right = -size[0] % 8, -size[1] % 8
    valid = np.pad((image != 0).all(axis=2), ((0, below), (0, right)))[None]
    with models.used():
        predictor = load_predictor(run, ExtraOutputs(confidence=True, probabilities="float16"))
        whole = predictor(np.pad(image, ((0, below), (0, right), (0, 0)))[None], valid).masked(valid)[0]
        arguments = [str(run_path), str(source), "--output", str(tmp_path / "maps")]
        arguments += ["--window-size", "160", "--batch", "3", "--confidence", "--probabilities", "float16"]
        assert predict.main(arguments) == 0
    there = slice(size[0]), slice(size[1])
    expected = whole.ids[there]
    with rasterio.open(tmp_path / "maps" / "a.tif") as result:
        np.testing.assert_array_equal(result.read(1), expected)
    with rasterio.open(tmp_path / "maps" / "a.confidence.tif") as result:
        np.testing.assert_array_equal(result.read(1), whole.confidence[there])
    with rasterio.open(tmp_path / "maps" / "a.probabilities.tif") as result:
        found = np.moveaxis(result.read(), 0, 2)
        known = expected != 255
        np.testing.assert_array_equal(found[known], whole.probabilities[there][known].astype(np.float32))
    if image.size > 10_000:
        assert len(np.unique(expected[expected != 255])) == 4


@pytest.mark.slow
def test_maps_in_mixed_precision_are_of_the_whole_and_of_the_validation(
    tensorflow: ModuleType, make_classes: Callable[..., ClassMap], make_geotiff: Make, tmp_path: Path,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Windows of 16-bit numbers do not show either; the model is, to the bit, the one that was validated."""
    from segmenter.inference.function import on_replicas
    from segmenter.model.building import build_model

    path = random_run(tmp_path / "run", make_classes(4), precision="mixed_float16")
    run = load_run(path)
    image, valid = rng.integers(1, 1000, (1, 224, 344, 3), np.uint16), np.ones((1, 224, 344), np.bool_)
    source = make_geotiff("in/a.tif", image[0])
    maps = {}
    for precision in ("run", "float32"):
        output = tmp_path / precision
        arguments = [str(path), str(source), "--output", str(output), "--window-size", "160", "--batch", "2"]
        assert predict.main([*arguments, "--precision", precision]) == 0
        with rasterio.open(output / "a.tif") as result:
            maps[precision] = result.read(1)
    trained = build_model(run.recipe.model, 3, 4, dtype="mixed_float16", synchronised=True)
    assign_weights(trained, run.weights(), "model")
    devices = Devices(tensorflow.distribute.OneDeviceStrategy("CPU:0"), (Device("CPU:0", "", "", "CPU"),))
    validated = on_replicas(trained, run.normalisation, devices)(image, valid).ids[0]
    np.testing.assert_array_equal(maps["run"], validated)
    differing = (maps["run"] != maps["float32"]).mean()
    assert 0 < differing < 0.02, "the precision decides some pixels, and few"


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["exact", "smooth"])
def test_kill_9_and_on_with_a_network(
    run_path: Path, make_geotiff: Make, tmp_path: Path, rng: np.random.Generator, mode: str
) -> None:
    """Law 3 for maps, with TensorFlow: the files of a killed call that goes on are those of a whole one."""
    source = make_geotiff("in/a.tif", rng.integers(0, 1000, (2500, 1700, 3), np.uint16), nodata=0)
    options = ["--mode", mode, "--window-size", "160", "--batch", "3"]
    options += ["--confidence", "--probabilities", "float16"]

    def ended(folder: str, *program: str) -> int:
        command = [sys.executable, *(program or ("predict.py",)), str(run_path), str(source)]
        command += ["--output", str(tmp_path / folder), *options]
        return subprocess.run(command, cwd=Path(__file__).parents[2], check=False).returncode

    for kept in (1 << 20, 1 << 24):
        killed = ended("maps", "-c", KILLS_ITSELF, str(tmp_path / "maps" / ".a.tif.partial"), str(kept))
        assert killed == -signal.SIGKILL
        assert [path.name for path in (tmp_path / "maps").glob("*.tif")] == []
    assert ended("maps") == ended("whole") == 0
    for path in (tmp_path / "whole").glob("*.tif"):
        assert (tmp_path / "maps" / path.name).read_bytes() == path.read_bytes()
    assert len(list((tmp_path / "whole").glob("*.tif"))) == 3


@pytest.mark.parametrize(("stride", "radius"), [(8, 3), (4, 99), (12, 99)])
def test_a_run_file_that_says_too_little_of_its_model_is_refused(
    run_path: Path, stride: int, radius: int
) -> None:
    """Windows would be cut too narrow, or beside the grid: seams, and no word."""
    run = load_run(run_path)
    wrong = replace(run, network=replace(run.network, stride=stride, radius=radius))
    with refused(CheckpointError, expected="stride 8", got=f"{stride} and {radius}"):
        load_predictor(wrong)
