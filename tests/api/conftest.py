"""Fixtures of the tests of Python's door: one run, a scene with its label, and where they lie."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from segmenter import OpenRun, open_run
from segmenter.grid.colours import default_colours
from segmenter.grid.labels import ClassMap, LandCoverClass
from tests.helpers.made_rasters import PLACE, written
from tests.helpers.random_run import random_run


@pytest.fixture(scope="session")
def run_folder(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run directory `runs/mine`, of random weights."""
    folder = tmp_path_factory.mktemp("api")
    (folder / "runs").mkdir()
    names = ("water", "road", "field", "house")
    classes = map(LandCoverClass, names, default_colours(names), range(len(names)))
    random_run(folder / "runs" / "mine", ClassMap(tuple(classes)))
    return folder


@pytest.fixture(scope="session")
def run(run_folder: Path) -> OpenRun:
    """It, opened; its models are compiled once for all tests."""
    return open_run(run_folder / "runs" / "mine")


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """`a.tif`, 150 × 260 pixels of uint16, and `a_label.png` with the codes 0 to 2."""
    folder = tmp_path_factory.mktemp("pair")
    rng = np.random.default_rng(3)
    image, label = rng.integers(1, 1000, (150, 260, 3), np.uint16), np.full((150, 260), 2, np.uint8)
    label[:60, :104], label[100:118, 40:150] = 0, 1
    return written(folder / "a.tif", image, **PLACE), written(folder / "a_label.png", label)
