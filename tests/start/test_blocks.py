"""Blocks inside a scene: parts lie a buffer apart, use each pixel once, and are no leak."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import maximum_filter

from datasets import load_dataset
from datasets.__main__ import main as datasets_main
from datasets.blocks import BlockGrid, block_parts
from datasets.check import check_dataset
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.datasets import FolderSplit
from segmenter.config.reading import load_recipe
from segmenter.grid.geometry import Size
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import SPLITS
from segmenter.raster import LabelRaster
from tests.helpers.made_training import script, train
from tests.helpers.refusals import refused

HEIGHT, WIDTH = 311, 203

sides = st.integers(1, 67)


@given(sides, sides, st.integers(1, 40), st.integers(0, 9), st.integers(0, 99), st.sampled_from((0.0, 0.2)))
def test_parts_lie_a_buffer_apart_and_no_pixel_is_in_two(
    height: int, width: int, side: int, buffer: int, seed: int, test_share: float
) -> None:
    grid = BlockGrid.of(Size(height, width), side, buffer)
    split = FolderSplit.model_validate({"validation_share": 0.3, "test_share": test_share, "seed": seed})
    parts = block_parts({"a": grid}, split)["a"]
    kept = {part: grid.mask(parts, part, np.arange(height), np.arange(width)) for part in SPLITS}
    covered = np.zeros((height, width), int)
    for r, c in grid.blocks:
        covered[grid.rows_R[r] : grid.rows_R[r + 1], grid.cols_C[c] : grid.cols_C[c + 1]] += 1
    assert (covered == 1).all()
    assert (sum(mask.astype(int) for mask in kept.values()) <= 1).all()
    reach = 2 * buffer + 1
    for i, part in enumerate(SPLITS):
        for later in SPLITS[i + 1 :]:
            near = maximum_filter(kept[later], reach, mode="constant", cval=False)
            assert not (kept[part] & near).any()
    last = [p for p in SPLITS if p in parts.values()][-1]
    whole = sum(
        int((grid.rows_R[r + 1] - grid.rows_R[r]) * (grid.cols_C[c + 1] - grid.cols_C[c]))
        for (r, c), part in parts.items()
        if part == last
    )
    assert kept[last].sum() == whole


@given(st.integers(2, 6), st.integers(0, 50))
def test_folds_validate_each_block_once(folds: int, seed: int) -> None:
    grid = BlockGrid.of(Size(60, 50), 10, 0)
    seen = []
    for fold in range(1, folds + 1):
        split = FolderSplit.model_validate({"folds": folds, "fold": fold, "seed": seed})
        parts = block_parts({"a": grid}, split)["a"]
        seen += [block for block, part in parts.items() if part == "validation"]
    assert sorted(seen) == grid.blocks


@pytest.fixture
def recipe(tmp_path: Path, make_geotiff: Callable[..., Path]) -> Callable[..., Path]:
    """`recipe(size=40, …)`: a recipe of one raster with three classes, split by blocks."""
    rng = np.random.default_rng(3)
    rows, cols = np.mgrid[:HEIGHT, :WIDTH]
    label = ((rows // 37 + cols // 29) % 3).astype(np.uint8)
    image = np.clip(label[..., None] * 60 + 40 + rng.normal(0, 8, (HEIGHT, WIDTH, 3)), 0, 255).astype(
        np.uint8
    )
    label[:9] = 9
    make_geotiff("images/a.tif", image)
    make_geotiff("labels/a.tif", label)

    def make(size: float = 40, buffer: int = 7, **more: Any) -> Path:
        split = {"validation_share": 0.2, "blocks": {"size": size, "buffer": buffer}} | more
        content = {
            "dataset": {
                "kind": "folder",
                "root": str(tmp_path),
                "images": "images/{name}.tif",
                "labels": "labels/{name}.tif",
                "classes": [{"name": n, "code": i} for i, n in enumerate("xyz")],
                "ignore": [9],
                "split": {key: value for key, value in split.items() if value is not None},
            },
            "tiles": {"size": 16},
            "model": {"depth": 1, "width": 4},
            "training": {"global_batch": 8, "epochs": 1, "warmup": 1},
            "prediction": {"window": 64},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return make


def test_one_raster_in_three_parts_is_clean_and_no_leak(recipe: Callable[..., Path]) -> None:
    dataset = load_dataset(load_recipe(recipe(test_share=0.2)))
    assert [scene.split for scene in dataset.scenes] == list(SPLITS)
    assert len({scene.image for scene in dataset.scenes}) == 1
    report = check_dataset(dataset, progress=False)
    assert report.findings == ()
    assert (report.pixels_PK > 0).all()
    ids = []
    for scene in dataset.scenes:
        with LabelRaster(scene.label, dataset.classes) as label:
            ids.append(label.ids())
    labelled = np.stack(ids) != IGNORE
    assert labelled.sum(axis=0).max() == 1
    assert not labelled[:, :9].any(), "what was ignored stays so"


def test_labels_are_made_once_and_anew_for_another_split(recipe: Callable[..., Path]) -> None:
    load = lambda **more: load_dataset(load_recipe(recipe(**more)))  # noqa: E731
    first, again, other = load(), load(), load(seed=5)
    stamps = [[scene.label.stat().st_mtime_ns for scene in d.scenes if scene.label] for d in (first, again)]
    assert stamps[0] == stamps[1]
    assert {s.label for s in first.scenes}.isdisjoint({s.label for s in other.scenes})


def test_blocks_in_metres_need_a_scale_and_are_those_in_pixels(recipe: Callable[..., Path]) -> None:
    in_pixels = load_dataset(load_recipe(recipe()))
    blocks = {"size": 20, "unit": "metres", "buffer": 7}
    in_metres = load_dataset(load_recipe(recipe(blocks=blocks)))
    assert [s.label for s in in_metres.scenes] == [s.label for s in in_pixels.scenes]


def test_what_leaves_nothing_to_train_on_is_refused(recipe: Callable[..., Path]) -> None:
    with refused(DatasetError, expected="train"):
        load_dataset(load_recipe(recipe(buffer=400)))


@pytest.mark.parametrize(
    "split",
    [
        {"group": "(a)"},
        {"validation": ["a"], "validation_share": None},
        {"validation_share": None},
        {"folds": 1, "validation_share": None},
        {"folds": 3, "fold": 4, "validation_share": None},
        {"validation_share": 0.6, "test_share": 0.5},
        {"blocks": None, "validation_share": None, "seed": 3},
    ],
)
def test_contradictions_are_refused(recipe: Callable[..., Path], split: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.split"):
        load_recipe(recipe(**split))


def test_a_buffer_below_the_receptive_field_is_refused(
    tensorflow: Any, recipe: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with refused(ConfigError, where="dataset.split.blocks.buffer", got=2):
        datasets_main(["check", str(recipe(buffer=2)), "--set", "model.depth=2"])
    assert datasets_main(["check", str(recipe(buffer=9))]) == 0


@pytest.mark.slow
def test_a_training_validates_and_predicts_its_blocks(recipe: Callable[..., Path], tmp_path: Path) -> None:
    path, run = recipe(buffer=9, test_share=0.2), tmp_path / "run"
    train(path, "--run", str(run))
    scores = json.loads((run / "scores.json").read_text())
    script("predict.py", str(run), "--split", "test", "--output", str(tmp_path / "maps"))
    assert (tmp_path / "maps" / "a.tif").exists()
    tested = json.loads((tmp_path / "maps" / "scores.json").read_text())
    assert 0 < tested["pixels"] < scores["pixels"] * 3 < HEIGHT * WIDTH
    refused = train(path, "--run", str(tmp_path / "b"), "--set", "dataset.split.blocks.buffer=1", check=False)
    assert refused.returncode == 2
    assert not (tmp_path / "b").exists() or not list((tmp_path / "b").iterdir())
