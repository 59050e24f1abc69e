"""`--init-from`: what fits is kept and named by stage; what hardly fits is refused before data are read."""

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

import train
from segmenter.base.errors import CheckpointError, run_script
from segmenter.config.reading import load_recipe
from segmenter.model.normalisation import Normalisation
from segmenter.model.size import stage_of, weight_shapes
from segmenter.runs.checkpoints import save_checkpoint
from segmenter.runs.records import Origin, save_origin
from segmenter.runs.run import load_run
from segmenter.tiles.scene_files import save_digests
from segmenter.training import prepare
from segmenter.training.beginning.fine_tuning import (
    check_fit,
    describe_kept,
    find_source,
    fitting,
    lines_of_change,
)
from tests.helpers.made_training import made
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run

NAMES = ("left", "right", "scarce")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("fine") / "data", scenes=5)


def trained(
    folder: Path, recipe: Path, *settings: str, bands: int = 3, names: tuple[str, ...] = NAMES
) -> Path:
    """A run directory with a checkpoint, as a training under a recipe leaves it."""
    loaded = load_recipe(recipe, settings)
    scale = Normalisation.of([0.0] * bands, [1.0] * bands)
    bare_run(folder, names, loaded, normalisation=scale, band_count=bands, metres_per_pixel=1.0)
    shapes = weight_shapes(loaded.model, bands, len(names))
    arrays = {f"model/{path}": np.zeros(shape, np.float32) for path, shape in shapes.items()}
    save_checkpoint(folder, 7, {**arrays, "position": np.zeros(4)}, keep=2)
    return folder


def stages(shapes: Iterable[str], model: Any) -> dict[str, str]:
    return {path: stage_of(path, model) for path in shapes}


def start(monkeypatch: pytest.MonkeyPatch, recipe: Path, *arguments: str) -> int:
    """train.py up to where the data would be read: code 99."""

    def read(*_: Any) -> None:
        raise SystemExit(99)

    monkeypatch.setattr(prepare, "prepare_tiles", read)
    monkeypatch.setattr(sys, "argv", ["train.py", str(recipe), *arguments])
    try:
        return run_script(train.main)
    except SystemExit as ended:
        return int(str(ended.code))


def test_a_run_of_which_little_fits_is_refused_before_the_data_are_read(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = trained(tmp_path / "source", recipe, "model.width=3", "model.normalisation=none")
    call = ("--run", str(tmp_path / "run"), "--init-from", str(source))
    assert start(monkeypatch, recipe, *call) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "(model.width: 3 there, 4 here, model.normalisation" in line
    assert "--init-from-partial" in line
    assert not (tmp_path / "run").exists()
    assert start(monkeypatch, recipe, *call, "--init-from-partial") == 99


def with_encoder(recipe: Path, folder: Path, encoder: str) -> Path:
    """The recipe with an encoder of the literature."""
    content = yaml.safe_load(recipe.read_text())
    content["model"] = {"kind": "encoder_decoder", "encoder": encoder}
    path = folder / f"{encoder}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_run_of_another_encoder_is_refused_before_the_data_are_read(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unet = trained(tmp_path / "unet", recipe)
    mobile = with_encoder(recipe, tmp_path, "mobilenet_v2")
    resnet = replace(load_run(unet), path=tmp_path / "resnet", recipe=load_recipe(
        with_encoder(recipe, tmp_path, "keras_resnet50")))  # fmt: skip
    resnet.save()
    save_checkpoint(resnet.path, 7, {"model/conv1_conv/kernel": np.zeros(3), "position": np.zeros(4)}, keep=2)
    for source, difference in (
        (unet, "model.kind: unet there, encoder_decoder here"),
        (resnet.path, "model.encoder: keras_resnet50 there, mobilenet_v2 here"),
    ):
        call = ("--run", str(tmp_path / "run"), "--init-from", str(source))
        assert start(monkeypatch, mobile, *call) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"encoder ({difference}); take" in line
        assert start(monkeypatch, mobile, *call, "--init-from-partial") == 99


def test_a_run_of_the_same_encoder_is_measured_by_the_built_model(recipe: Path, tmp_path: Path) -> None:
    from datasets import load_dataset

    path = with_encoder(recipe, tmp_path, "mobilenet_v2")
    run = replace(
        load_run(trained(tmp_path / "unet", recipe)), path=tmp_path / "run", recipe=load_recipe(path)
    )
    run.save()
    save_checkpoint(run.path, 7, {"model/a/kernel": np.zeros(4), "position": np.zeros(4)}, keep=2)
    loaded = load_recipe(path, ["model.decoder=fpn"])
    source = find_source(run.path, loaded, load_dataset(loaded))
    check_fit(source, {"a/kernel": (4,), "b/kernel": (4,)}, loaded, list(NAMES))
    with refused(CheckpointError, where="run", got="9 parameters (model.decoder: unet"):
        check_fit(source, {"a/kernel": (4,), "b/kernel": (5,)}, loaded, list(NAMES))
    check_fit(replace(source, partial=True), {"b/kernel": (5,)}, loaded, list(NAMES))


@pytest.mark.parametrize(
    ("bands", "names", "said"),
    [
        (3, NAMES, "1,835 of 1,835 parameters (100.0%) kept; kept: encoder stage 1, bottleneck, decoder"),
        (5, NAMES, "(94.1%) kept; kept: bottleneck, decoder stage 1, head; kept in part: encoder stage 1"),
        (3, ("a", "b"), "kept: encoder stage 1, bottleneck, decoder stage 1; anew: head"),
    ],
)
def test_other_bands_or_classes_start_anew_where_they_must_and_are_named_by_stage(
    recipe: Path, tmp_path: Path, bands: int, names: tuple[str, ...], said: str
) -> None:
    from datasets import load_dataset

    loaded = load_recipe(recipe)
    source = find_source(trained(tmp_path, recipe, bands=bands, names=names), loaded, load_dataset(loaded))
    shapes = weight_shapes(loaded.model, 3, 3)
    assert said in describe_kept(shapes, fitting(source, shapes, list(NAMES)), stages(shapes, loaded.model))


def test_what_is_foretold_is_what_is_kept(tensorflow: ModuleType, recipe: Path, tmp_path: Path) -> None:
    from datasets import load_dataset
    from segmenter.model.building import build_model
    from segmenter.runs.checkpoints import transfer_weights

    loaded = load_recipe(recipe)
    source = find_source(trained(tmp_path, recipe, bands=5), loaded, load_dataset(loaded))
    model = build_model(loaded.model, 3, 3)
    kept, _ = transfer_weights(model, source.weights)
    assert set(kept) == set(fitting(source, weight_shapes(loaded.model, 3, 3), list(NAMES)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "directory as train.py"),
        (lambda run: next((run / "checkpoints").iterdir()).unlink(), "checkpoint"),
        (lambda run: next((run / "checkpoints").iterdir()).write_bytes(b"PK"), "damaged checkpoint"),
    ],
    ids=["no run", "no checkpoint", "damaged"],
)
def test_a_source_that_cannot_be_used_is_refused_before_the_data_are_read(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], Any], message: str,
) -> None:  # fmt: skip
    source = trained(tmp_path / "source", recipe)
    spoil(source)
    assert start(monkeypatch, recipe, "--run", str(tmp_path / "run"), "--init-from", str(source)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_partial_alone_says_what_it_lacks(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert start(monkeypatch, recipe, "--init-from-partial") == 2
    assert "--init-from-partial says how" in capsys.readouterr().err


BEFORE = {"a": ("1", "2"), "b": ("3", "4"), "c": ("5", "6"), "d": ("7", "8")}


def test_new_corrected_and_missing_scenes_are_named_with_the_classes_that_moved(tmp_path: Path) -> None:
    run = bare_run(tmp_path / "run")
    assert list(lines_of_change(run, BEFORE, {"water": 3})) == [], "a run without a record"
    save_digests(run.path, BEFORE)
    (line,) = lines_of_change(run, BEFORE, {"water": 3})
    assert not any(f"({name})" in line for name in BEFORE)
    tiles = {"scenes": {}, "tiles": 9, "tiles_left_out": 0, "tile_px": 64, "tiles_with": {}}
    save_origin(run.path, Origin.model_validate({**tiles, "pixels": {"water": 1000, "forest": 50}}))
    now = {"a": ("1", "2"), "b": ("3", "corrected"), "c": ("other", "6"), "e": ("9", "10")}
    scenes, classes = lines_of_change(run, now, {"water": 1500, "forest": 50, "road": 7})
    parts = scenes.split("; ")
    assert [part[part.rindex("(") :] for part in parts] == ["(e)", "(c)", "(b)", "(d)"]
    assert "water 1,000 → 1,500" in classes
    assert "road 0 → 7" in classes
    assert "forest" not in classes
