"""Run directories: whole or absent, told when damaged, nothing in them runs code."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter import checkpoint
from segmenter.checkpoint import Run, load_run
from segmenter.config import recipe_from
from segmenter.errors import CheckpointError
from segmenter.labels import ClassMap
from segmenter.network import NetworkGeometry
from segmenter.normalisation import Normalisation


@pytest.fixture
def run(tmp_path: Path, make_classes: Any) -> Run:
    recipe = recipe_from({"name": "t", "dataset": {"kind": "potsdam", "root": "x"}}, "test")
    return Run(
        path=tmp_path / "run",
        recipe=recipe,
        classes=make_classes(3),
        bands=(4, 1),
        band_count=2,
        dtype="uint16",
        normalisation=Normalisation.of([1.5, 2.0], [0.1, 3.0]),
        metres_per_pixel=0.05,
        labels="eroded",
        network=NetworkGeometry(16, 107),
    )


def test_a_run_comes_back_as_it_was(run: Run) -> None:
    run.save()
    assert load_run(run.path) == run
    assert isinstance(load_run(run.path).classes, ClassMap)


def test_what_is_no_run_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a run directory as train.py leaves it"):
        load_run(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1}', '{"format": 2}'])
def test_a_damaged_run_is_told(run: Run, content: str) -> None:
    run.save()
    (run.path / "run.json").write_text(content)
    with pytest.raises(CheckpointError, match=r"damaged|expected format 1"):
        load_run(run.path)


def test_a_run_without_checkpoint_is_told(run: Run) -> None:
    run.save()
    with pytest.raises(CheckpointError, match=r"there is none yet"):
        run.weights_file()


def test_only_the_newest_checkpoints_are_kept_and_the_best_is_preferred(run: Run) -> None:
    for step in (5, 10, 200):
        checkpoint.save_checkpoint(run.path, step, {"a": np.arange(step)}, keep=2)
    names = sorted(p.name for p in (run.path / "checkpoints").iterdir())
    assert names == ["step-00000010.npz", "step-00000200.npz"]
    assert run.weights_file().name == "step-00000200.npz"
    checkpoint.save_arrays(run.path / "best.npz", {"a": np.zeros(1)})
    assert run.weights_file().name == "best.npz"


@pytest.mark.parametrize("fault", ["flipped", "cut", "empty", "pickle"])
def test_a_damaged_checkpoint_is_told(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "step-00000001.npz"
    checkpoint.save_arrays(path, {"weights": np.random.default_rng(0).normal(size=(64, 64))})
    content = bytearray(path.read_bytes())
    if fault == "flipped":
        content[len(content) // 2] ^= 0xFF
    elif fault == "cut":
        del content[len(content) // 2 :]
    elif fault == "empty":
        content.clear()
    path.write_bytes(content)
    if fault == "pickle":
        np.savez(path, weights=np.array([{"code": "would run"}], dtype=object))
    with pytest.raises(CheckpointError, match=r"step-00000001.npz: damaged checkpoint"):
        checkpoint.load_arrays(path)


def test_weights_of_another_model_are_refused(tensorflow: ModuleType) -> None:
    from segmenter.model import build_model
    from segmenter.schema import ModelConfig

    three, four = (build_model(ModelConfig(depth=1, width=2), 3, k) for k in (3, 4))
    arrays = checkpoint.weight_arrays(three, "model")
    with pytest.raises(CheckpointError, match=r"expected weight logits/kernel of shape \(1, 1, 2, 4\), got"):
        checkpoint.assign_weights(four, arrays, "model")
    kept, fresh = checkpoint.transfer_weights(four, arrays)
    assert fresh == ["logits/kernel", "logits/bias"]
    assert len(kept) + len(fresh) == len(four.variables)
    for variable in four.variables:
        if variable.path in kept:
            np.testing.assert_array_equal(variable.numpy(), arrays[f"model/{variable.path}"])


def test_the_files_are_plain(run: Run) -> None:
    run.save()
    data = json.loads((run.path / "run.json").read_text())
    assert data["normalisation"] == {"mean": [1.5, 2.0], "std": [0.1, 3.0]}
