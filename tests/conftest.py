"""Fixtures that several test files share; data for tests is made, small and odd."""

import contextlib
import os
import sqlite3  # noqa: F401 - before TensorFlow, whose own lacks the index of GeoPackages: as load_tensorflow
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# Before any test imports TensorFlow or albumentations: what they read only once.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # no question to a server at import
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN gives empty batches a wrong shape
if "avx512f" not in Path("/proc/cpuinfo").read_text():
    # oneDNN's sums for AVX2 round by a pixel's place in its window: see laws/test_instruction_sets.py.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX")
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # OpenMP's threads spin while they wait: on shared cores, minutes

import hypothesis
import numpy as np
import pytest
from numpy.typing import NDArray

with contextlib.suppress(ModuleNotFoundError):  # the extra `vectors`
    # Before a test loads TensorFlow, and then pyogrio otherwise than the program: its GDAL would call
    # TensorFlow's SQLite, and end the process at a GeoPackage with a view.
    import segmenter.extras.vector_files.library  # noqa: F401
from segmenter.grid.labels import ClassMap, LandCoverClass
from tests.helpers import small_encoders
from tests.helpers.file_server import PROXIES, FileServer, serving
from tests.helpers.made_rasters import PLACE, written
from tests.helpers.s3_server import Store, object_store
from tests.helpers.time_limits import pytest_timeout_cancel_timer, pytest_timeout_set_timer

__all__ = ["pytest_timeout_cancel_timer", "pytest_timeout_set_timer"]  # pytest finds its hooks here

REPLICAS = 4
_SHARED_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"
_COLOURS = ((255, 255, 255), (0, 0, 255), (0, 255, 255), (0, 255, 0), (255, 255, 0), (255, 0, 0))

# The same examples in every run: a failing gate must be repeatable. No database: nothing is left behind.
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True, database=None, max_examples=60)
hypothesis.settings.load_profile("gate")


@pytest.fixture(scope="session")
def shared_data() -> Callable[[str], Path]:
    """`shared_data("dubai")`: a folder of real imagery, or a skip that says what is missing."""

    def find(name: str) -> Path:
        folder = _SHARED_DATA / name
        if not folder.exists():
            pytest.skip(f"real imagery is not here: ../shared/data/{name}")
        return folder

    return find


@pytest.fixture(scope="session")
def tensorflow() -> ModuleType:
    """TensorFlow with four logical CPU devices; every test that needs TensorFlow gets it from here.

    The devices can only be set before TensorFlow is first used, and hold for the whole process.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its imports warn of their own affairs
        import tensorflow as tf
    cpu = tf.config.list_physical_devices("CPU")[0]
    try:
        devices = [tf.config.LogicalDeviceConfiguration()] * REPLICAS
        tf.config.set_logical_device_configuration(cpu, devices)
    except RuntimeError:  # TensorFlow was used before: good enough if it has the devices nevertheless
        there = len(tf.config.list_logical_devices("CPU"))
        if there != REPLICAS:
            pytest.fail(
                f"TensorFlow was used, with {there} CPU devices, before a test asked for the fixture "
                "`tensorflow`; every test that runs TensorFlow code takes that fixture"
            )
    return tf


@pytest.fixture(scope="session")
def four_replicas(tensorflow: ModuleType) -> list[str]:
    """Names of four logical CPU devices, as `tf.distribute.MirroredStrategy` takes them."""
    devices = tensorflow.config.list_logical_devices("CPU")
    assert len(devices) == REPLICAS
    return [f"CPU:{i}" for i in range(REPLICAS)]


@pytest.fixture
def few_blocks(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoders of few blocks stand for their families; MobileNetV2 for those of Keras."""
    small_encoders.few_blocks(monkeypatch)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A server of the folder `served` in the test's folder; GDAL waits for it a hundredth as long as else."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GDAL_HTTP_RETRY_DELAY", "0.005")
    monkeypatch.setenv("GDAL_HTTP_MAX_RETRY", "3")
    with serving(tmp_path / "served") as server:
        yield server


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An S3 store on loopback with an empty bucket, to which the environment leads."""
    with object_store(monkeypatch) as store:
        yield store


@pytest.fixture
def make_geotiff(tmp_path: Path) -> Callable[..., Path]:
    """`make_geotiff("a/b.tif", array, **profile)`: a GeoTIFF below the test's folder.

    The array is (H, W) or (H, W, C). By default UTM 33N with 0.5 m pixels and no nodata; `crs=None` leaves
    georeferencing out. Further keywords: `masks` (H, W) for an internal mask, `colours` (a colour table),
    `descriptions`, `alpha` (True: the last band is tagged as alpha), and any of GDAL's creation options.
    """

    def make(name: str, array: NDArray[Any], *, crs: str | None = "EPSG:25833", **options: Any) -> Path:
        place = {**PLACE, "crs": crs} if crs else {}
        return written(tmp_path / name, array, "GTiff", **{**place, **options})

    return make


@pytest.fixture
def make_png(tmp_path: Path) -> Callable[..., Path]:
    """`make_png("a/b.png", array)`: a PNG below the test's folder; `colours` gives it a palette."""

    def make(name: str, array: NDArray[Any], **options: Any) -> Path:
        return written(tmp_path / name, array, "PNG", **options)

    return make


@pytest.fixture(scope="session")
def make_classes() -> Callable[..., ClassMap]:
    """`make_classes(4)`: a class map with classes `a`, `b`, … and codes 0, 1, … or Potsdam's colours."""

    def make(count: int = 4, encoding: str = "codes", first_code: int = 0, **options: Any) -> ClassMap:
        classes = (
            LandCoverClass(chr(ord("a") + i), _COLOURS[i] if i < 6 else (i, i, i), first_code + i)
            for i in range(count)
        )
        return ClassMap(tuple(classes), encoding, **options)

    return make


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator of its own for each test, the same in each run."""
    return np.random.default_rng(20201107)


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> Callable[..., int]:
    """`call(input..., "--option", band_count=3)`: predict.py in the test's folder with a stand-in for a run.

    Named arguments change the run; maps go to `maps`.
    """
    from tests.helpers.exact_network import fake_run, run_predict

    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any, classes: ClassMap | None = None, output: str = "maps", **changes: Any) -> int:
        run = fake_run(classes or make_classes(7), **changes)
        return run_predict(monkeypatch, run, *arguments, "--output", output)

    return call
