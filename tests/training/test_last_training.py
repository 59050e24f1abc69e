"""The last training before shipping: all scenes but the test, for the steps that validation chose."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from datasets import load_dataset
from datasets.commands.calibrate import main as calibrate
from datasets.commands.last_training import _epochs, chosen_by
from datasets.commands.predict import main as predict
from datasets.commands.train import main as train
from datasets.commands.train_stages import with_validation
from datasets.known import dataset_of_run
from segmenter.base.errors import CheckpointError, ConfigError, DatasetError
from segmenter.config.reading import load_recipe
from segmenter.runs.checkpoints import checkpoints
from segmenter.runs.records import load_origin
from segmenter.runs.report.run_record import read_story
from segmenter.runs.report.sections import html_report
from segmenter.runs.run import load_run
from segmenter.runs.score_files import BEST_FILES, load_score
from segmenter.tiles.index import build_index
from segmenter.training.prepare import epoch_plan
from tests.helpers.made_training import made, weights
from tests.helpers.refusals import refused


@pytest.fixture(scope="module")
def chosen(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A recipe whose scenes train, validate and test, and the run that validated, calibrated."""
    folder = tmp_path_factory.mktemp("all")
    recipe = made(folder, scenes=7)
    content = yaml.safe_load(recipe.read_text())
    content["dataset"]["split"] = {"validation": ["s4", "s5"], "test": ["s6"]}
    content["distribution"] = {"strategy": "one_device"}
    content["training"] |= {"epochs": 4, "best_by": "iou:scarce", "stop_after": 4}
    recipe.write_text(yaml.safe_dump(content))
    assert train([str(recipe), "--run", str(folder / "made")]) == 0
    return recipe, folder / "made"


@pytest.fixture(scope="module")
def shipped(chosen: tuple[Path, Path]) -> Path:
    """The run that is trained on all scenes."""
    recipe, before = chosen
    assert train([str(recipe), "--all", str(before)]) == 0
    return before.with_name("made_all")


def test_all_scenes_but_the_test_train_for_the_steps_that_validation_chose(
    chosen: tuple[Path, Path], shipped: Path
) -> None:
    before, run = chosen[1], load_run(shipped)
    roles = {scene.name: scene.split for scene in dataset_of_run(run).scenes}
    assert roles == {**{f"s{number}": "train" for number in range(6)}, "s6": "test"}
    best = load_score(before / BEST_FILES[0])
    assert best is not None
    origin = load_origin(run.path)
    assert origin is not None
    assert origin.chosen_by is not None
    assert (origin.chosen_by.runs, origin.chosen_by.steps) == ((str(before),), best.step)
    assert origin.chosen_by.miou == (best.scores.miou,), "the score of the run that chose, named so"
    done = int(weights(run.path)["position"].ravel()[0])
    epoch = done // run.recipe.training.epochs
    assert abs(done - best.step) <= epoch / 2, "whole epochs, the nearest number of them"
    assert run.weights_file().parent.name == "checkpoints", "the last weights, no best"
    assert load_score(run.path / BEST_FILES[0]) is None
    assert f"{best.scores.miou:.1%}"[:-1] in html_report(read_story(run.path))


def test_the_calibration_is_a_copy_that_names_its_source(chosen: tuple[Path, Path], shipped: Path) -> None:
    own, source = load_run(shipped).calibration_file(), load_run(chosen[1]).calibration_file()
    assert own is not None
    assert source is not None
    assert own.copied_from == str(chosen[1])
    assert source.copied_from == ""
    assert (own.temperature, own.bias) == (source.temperature, source.bias)
    assert own.weights == load_run(shipped).fingerprint() != source.weights


def test_no_scene_is_left_to_validate(shipped: Path, tmp_path: Path) -> None:
    maps = ["--output", str(tmp_path / "maps")]
    with refused(DatasetError):
        predict([str(shipped), "--split", "validation", *maps])
    assert predict([str(shipped), "--split", "test", *maps, "--tta", "auto"]) == 0
    protocol = json.loads((tmp_path / "maps" / "scores.json").read_text())["protocol"]
    assert protocol["tta"] == "all", "what its recipe trains with"


@pytest.mark.parametrize("words", [("--folds", "2"), ("--resume-from", "3")])
def test_options_of_a_training_that_validates_are_refused(
    chosen: tuple[Path, Path], words: tuple[str, str]
) -> None:
    with refused(ConfigError):
        train([str(chosen[0]), "--all", str(chosen[1]), *words])


def test_the_run_of_all_scenes_has_no_sets_and_names_the_run_that_has(
    chosen: tuple[Path, Path], shipped: Path, tmp_path: Path
) -> None:
    for call in (
        lambda: predict([str(shipped), "--split", "test", "--output", str(tmp_path / "m"), "--sets", "0.9"]),
        lambda: calibrate([str(shipped)]),
    ):
        with refused(CheckpointError, where=str(shipped), remedy=str(chosen[1])):
            call()


def test_steps_of_another_batch_are_refused_and_those_of_a_stopped_training_told(
    chosen: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused(ConfigError, where="training.global_batch", got=4):
        train([str(chosen[0]), "--all", str(chosen[1]), "--set", "training.global_batch=4"])
    recipe = load_run(chosen[1]).recipe
    chosen_by(chosen[1], recipe)
    assert "--resume" not in capsys.readouterr().err
    stopped = shutil.copytree(chosen[1], tmp_path / "stopped")
    checkpoints(stopped)[max(checkpoints(stopped))].unlink()
    chosen_by(stopped, recipe)
    assert "--resume" in capsys.readouterr().err


def test_a_run_must_have_validated(chosen: tuple[Path, Path], tmp_path: Path) -> None:
    with refused(CheckpointError, got="no validation"):
        train([str(chosen[0]), "--all", str(tmp_path)])


@pytest.mark.parametrize("replicas", [1, 4])
def test_steps_are_counted_in_epochs_as_long_as_those_of_the_run_that_chose(
    chosen: tuple[Path, Path], tmp_path: Path, replicas: int
) -> None:
    """Where every replica holds every class, an epoch is of another length."""
    before = shutil.copytree(chosen[1], tmp_path / "before")
    replace(load_run(before), planned_replicas=replicas).save()
    recipe = load_recipe(chosen[0], ["sampling.per_replica=guarantee"])
    dataset = with_validation(load_dataset(recipe))
    tiles = build_index(dataset, "train", recipe.tiles, progress=False)
    each = epoch_plan(recipe, tiles, dataset.classes.names, 0, replicas).steps
    best = chosen_by(before, recipe)
    assert _epochs(recipe, best) == (max(1, round(best.steps / each)), each)
