"""A run goes on only with the files it was begun with: the same bytes, wherever and whenever they lie."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import rasterio

from datasets import load_dataset
from segmenter.base.errors import CheckpointError
from segmenter.base.files import PIECES
from segmenter.config.reading import load_recipe
from segmenter.model.normalisation import Normalisation
from segmenter.runs.run import Run
from segmenter.tiles.scene_files import FILE, PIECE_BYTES, file_digest, save_digests
from segmenter.training.prepare import Tiles, changed_data, prepare_tiles
from tests.helpers.made_training import made
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run


def prepared(folder: Path) -> Tiles:
    recipe = load_recipe(folder / "recipe.yaml", [f"dataset.root={folder}"])
    return prepare_tiles(recipe, load_dataset(recipe))


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data that are indexed and measured already."""
    folder = made(tmp_path_factory.mktemp("begun") / "data").parent
    prepared(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path, begun: Path) -> Path:
    return shutil.copytree(begun, tmp_path / "data")


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Run:
    """A run that is begun with the data."""
    tiles, recipe = prepared(data), load_recipe(data / "recipe.yaml")
    scale = Normalisation.of(tiles.statistics.mean_C, tiles.statistics.std_C)
    run = replace(
        bare_run(tmp_path / "run", recipe=recipe),
        classes=load_dataset(recipe).classes,
        normalisation=scale,
        tiles=tiles.fingerprint(),
    )
    run.save()
    save_digests(run.path, tiles.digests)
    return run


def invert(file: Path) -> None:
    with rasterio.open(file, "r+") as raster:
        raster.write(255 - raster.read())


def test_copied_elsewhere_with_other_times_the_data_are_the_same(
    data: Path, run: Run, tmp_path: Path
) -> None:
    assert changed_data(run, prepared(data)) == ""
    copy = tmp_path / "elsewhere"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns(".tile-index"))
    for file in copy.rglob("*.tif"):
        os.utime(file, (1, 1))
    assert changed_data(run, prepared(copy)) == ""


@pytest.mark.parametrize(
    ("scenes", "said"),
    [
        (["s4"], "image of scene s4 "),  # the one that validates: the best model hangs on it
        (["s0", "s3"], "s0 has changed, and 1 more"),
    ],
)
def test_a_run_does_not_go_on_with_other_images_under_the_same_labels(
    tensorflow: ModuleType, data: Path, run: Run, scenes: list[str], said: str
) -> None:
    from segmenter.training.checks import check_same_plan

    for scene in scenes:
        invert(data / "images" / f"{scene}.tif")
    checkpoint: Any = None  # is not looked at any more
    with refused(CheckpointError, fault=said):
        check_same_plan(run, prepared(data), 1, checkpoint)


def test_labels_with_the_same_counts_new_and_lost_scenes_are_seen(data: Path, run: Run) -> None:
    counts = prepared(data).index.fingerprint()
    with rasterio.open(data / "labels" / "s1.tif", "r+") as raster:
        label = raster.read()
        label[0, 2, 39:41] = label[0, 2, 40:38:-1]  # of two classes, in one tile
        raster.write(label)
    assert prepared(data).index.fingerprint() == counts
    assert changed_data(run, prepared(data)) == "the label of scene s1 has changed"
    for part in ("images", "labels"):
        (data / part / "s2.tif").rename(data / part / "s7.tif")
    assert changed_data(run, prepared(data)) == "scene s7 is new, and 2 more differences"


def test_where_the_run_does_not_say_which_the_change_is_seen_all_the_same(data: Path, run: Run) -> None:
    (run.path / FILE).unlink()
    assert changed_data(run, prepared(data)) == ""
    invert(data / "images" / "s2.tif")
    other = json.dumps({"format": 2, "scenes": prepared(data).digests})
    for content in (None, "{", other, '{"scenes": [1]}', "[" * 100_000):
        if content is not None:
            (run.path / FILE).write_text(content)
        assert changed_data(run, prepared(data)) == (
            "training images or labels have changed (scenes.json, missing or not readable, would name them)"
        )


def test_values_that_no_piece_shows_are_seen_in_the_statistics(data: Path, run: Run) -> None:
    tiles = prepared(data)
    tiles.statistics.mean_C[1] += 1e-5 * tiles.statistics.std_C[1]
    mean = run.normalisation.mean[1]
    assert changed_data(run, tiles) == (
        f"band 2 of the training images has changed (mean {mean:.6g} → {tiles.statistics.mean_C[1]:.6g})"
    )


def test_any_byte_of_a_small_file_counts_and_of_a_large_one_a_bounded_part_is_read(tmp_path: Path) -> None:
    file, rng = tmp_path / "f", np.random.default_rng(2)
    content = rng.integers(0, 256, 2000, np.uint8)
    file.write_bytes(content.tobytes())
    found = {file_digest(file)}
    for place in rng.integers(0, 2000, 50):
        other = content.copy()
        other[place] ^= 1
        file.write_bytes(other.tobytes())
        found.add(file_digest(file))
    file.write_bytes(content.tobytes() + b"\0")
    assert len(found | {file_digest(file)}) > 48
    size = 3 << 30  # sparse: takes no space
    with file.open("wb") as large:
        large.truncate(size)
    before, zeros = read_so_far(), file_digest(file)
    assert read_so_far() - before < 2 * PIECES * PIECE_BYTES
    for place in (0, size - 1, (size - PIECE_BYTES) * 7 // (PIECES - 1)):
        with file.open("r+b") as large:
            large.seek(place)
            large.write(b"\1")
        assert file_digest(file) != zeros
        zeros = file_digest(file)


def read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])
