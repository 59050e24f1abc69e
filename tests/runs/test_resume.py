"""Resuming and extending: which checkpoint, the same plan, versions and learning rates."""

import dataclasses
import os
import shlex
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import CheckpointError, ConfigError, DamagedCheckpointError, OutputError
from segmenter.base.sealed import seal
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.runs import resume
from segmenter.runs.checkpoints import BEST, checkpoints
from segmenter.runs.records import WINDOWS
from segmenter.runs.resume import (
    Position,
    check_as_seen,
    check_extension,
    check_rates,
    checkpoint_to_resume,
    newest_record,
    set_aside_after,
    unfinished_line,
    with_extension,
)
from segmenter.runs.run import Extension, load_run
from segmenter.runs.score_files import BEST_FILES, LAST_FILES, SUMMARY
from segmenter.sampling import Plan
from segmenter.training.prepare import check_run_directory
from tests.helpers.forbidden import forbidden, small_files
from tests.helpers.made_runs import MACHINE, RECIPE, plan_of, save
from tests.helpers.made_runs import recipe_of as made_recipe
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run, trained_run


def damage(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def test_a_checkpoint_says_what_it_was_made_with(tmp_path: Path) -> None:
    save(tmp_path, 6)
    checkpoint = checkpoint_to_resume(tmp_path)
    assert checkpoint.position == Position(6, 1, 2, 0.5)
    facts = checkpoint.facts
    assert (facts.seed, facts.epoch, facts.step, facts.planned_epoch) == (0, 1, 2, 1)
    assert facts.replicas == 4
    assert facts.computed_on == MACHINE
    assert {"tensorflow", "keras", "numpy", "coverage-segmenter"} <= facts.versions.keys()
    assert facts.versions["numpy"] == np.__version__
    assert recipe_from(facts.recipe, "test") == RECIPE
    assert facts.plan == plan_of().fingerprint


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"epochs": 3, "of": 10}, True),
        ({"epochs": 3}, False),
        ({"epochs": 4, "of": 10, "stop_after": 2, "without_gain": 2}, False),
        ({"epochs": 3, "of": 10, "checkpoint": False}, False),
    ],
    ids=["stopped", "finished", "ended early", "handed over without checkpoints"],
)
def test_a_stopped_training_is_told_with_its_epochs(how: dict[str, Any], said: bool, tmp_path: Path) -> None:
    assert ("3 of 10" in unfinished_line(trained_run(tmp_path / "run", **how))) is said


def test_a_command_that_is_told_can_be_typed(tmp_path: Path) -> None:
    run = trained_run(tmp_path / "it's my run", epochs=3, of=10)
    command = shlex.split(unfinished_line(run).rpartition("to go on: ")[2])
    assert command[-4:] == [str(run.path / "recipe.yaml"), "--run", str(run.path), "--resume"]


def test_at_an_epochs_end_the_plan_is_that_of_the_epoch_that_was_done() -> None:
    assert [Position(s, s // 4, s % 4, 0).planned_epoch for s in (1, 3, 4, 5, 8)] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("other", [plan_of(last=30), plan_of(blocks=2)], ids=["tile", "blocks"])
def test_another_plan_is_refused(tmp_path: Path, other: Plan) -> None:
    path = save(tmp_path, 6)
    checkpoint = checkpoint_to_resume(tmp_path)
    checkpoint.check_plan(plan_of().fingerprint, 4)
    with refused(CheckpointError, where=path.name, fault="epoch 2 "):
        checkpoint.check_plan(other.fingerprint, other.steps)


def test_a_position_beyond_the_plan_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 6)
    checkpoint = checkpoint_to_resume(tmp_path)
    beyond = dataclasses.replace(checkpoint, position=Position(6, 0, 5, 0.5))
    with refused(CheckpointError, fault="1 was planned"):
        beyond.check_plan(plan_of().fingerprint, 4)


def test_other_versions_and_devices_are_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 6)
    assert checkpoint_to_resume(tmp_path).warnings(4, MACHINE) == []
    (line,) = checkpoint_to_resume(tmp_path).warnings(1, MACHINE)
    assert line.startswith(f"warning: {path.name}: made on 4 devices, this is 1: ")
    (line,) = checkpoint_to_resume(tmp_path).warnings(4, {**MACHINE, "threads of an operation": "8"})
    assert line.endswith("the bits of what follows may differ: threads of an operation 2 → 8")
    before = resume.installed_versions()
    monkeypatch.setattr(resume, "installed_versions", lambda: {**before, "numpy": "3.0.0"})
    checkpoint = checkpoint_to_resume(tmp_path)
    (line,) = checkpoint.warnings(4, MACHINE)
    assert line.endswith(f"the bits of what follows may differ: numpy {np.__version__} → 3.0.0")
    with pytest.raises(CheckpointError, match=rf"\(numpy {np.__version__} → 3.0.0\)"):
        checkpoint.check_plan(plan_of(last=30).fingerprint, 4)


ENCODER = {"kind": "encoder_decoder", "encoder": "efficientnet_lite0"}


@pytest.mark.parametrize(
    ("model", "training", "another"),
    [
        ({"kind": "unet"}, {}, True),
        ({"kind": "unet", "normalisation": "none"}, {}, False),
        ({"kind": "unet", "normalisation": "none", "dropout": 0.1}, {}, True),
        (ENCODER, {}, True),
        (ENCODER, {"freeze_norms": "encoder"}, True),
        (ENCODER, {"freeze_norms": "all"}, False),
        (ENCODER | {"drop_path": 0.1}, {"freeze_norms": "all"}, True),
        (ENCODER, {"accumulate": 1}, False),
    ],
)
def test_micro_batches_on_other_devices_are_another_training_where_images_are_felt(
    tmp_path: Path, model: dict[str, Any], training: dict[str, Any], another: bool
) -> None:
    recipe = made_recipe(model=model, training={"accumulate": 2, **training})
    save(tmp_path, 6, recipe=recipe.model_dump(mode="json"))
    (line,) = checkpoint_to_resume(tmp_path).warnings(1, MACHINE)
    assert line.endswith("the same but for rounding") is not another


def test_settings_that_bits_depend_on_are_told_where_they_count(tmp_path: Path) -> None:
    save(tmp_path, 6)
    checkpoint = checkpoint_to_resume(tmp_path)
    same = {"distribution.deterministic": "false", "distribution.cross_device": "auto"}
    assert (
        checkpoint.warnings(4, MACHINE | same) == []
    )  # which checkpoints of before have in their recipe alone
    for key, value in (("deterministic", "true"), ("cross_device", "nccl")):
        (line,) = checkpoint.warnings(4, MACHINE | same | {f"distribution.{key}": value})
        assert line.endswith(f"distribution.{key} {same[f'distribution.{key}']} → {value}")
    facts = checkpoint.facts.model_copy(update={"computed_on": MACHINE | same})
    assert dataclasses.replace(checkpoint, facts=facts).warnings(4, MACHINE) == []  # on a processor


def test_a_log_of_another_format_is_refused_before_anything_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 4)
    monkeypatch.setattr("segmenter.training.prepare.load_run", lambda _: None)
    (tmp_path / "log.jsonl").write_text(seal('{"format": 1, "step": 2}') + "\n")
    with refused(CheckpointError, fault="log.jsonl, line 1"):
        check_run_directory(tmp_path, RECIPE, resume=True)


def test_the_newest_whole_checkpoint_is_offered(tmp_path: Path) -> None:
    paths = {step: save(tmp_path, step) for step in (4, 8, 12)}
    damage(paths[12])
    with refused(DamagedCheckpointError, remedy="--resume-from 8"):
        checkpoint_to_resume(tmp_path)
    damage(paths[8])
    with refused(DamagedCheckpointError, remedy="--resume-from 4"):
        checkpoint_to_resume(tmp_path)
    assert checkpoint_to_resume(tmp_path, 4).position.done == 4
    damage(paths[4])
    with refused(DamagedCheckpointError, remedy="all 3 checkpoints"):
        checkpoint_to_resume(tmp_path)
    (tmp_path / "best.npz").write_bytes(save(tmp_path, 16).read_bytes())
    damage(checkpoints(tmp_path)[16])
    with refused(DamagedCheckpointError, remedy=f"{tmp_path / 'best.npz'} is whole") as caught:
        checkpoint_to_resume(tmp_path)
    assert str(caught.value).endswith(f"--init-from {tmp_path}")


def test_without_a_checkpoint_the_way_out_is_named(tmp_path: Path) -> None:
    """A kill before the first one leaves at most the recipe, the log and a half-written file."""
    (tmp_path / "recipe.yaml").write_text("name: t\n")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".step-00000003.npz.abcdefgh").write_bytes(b"PK")
    for step in (None, 7):
        with refused(CheckpointError, expected="yet", remedy="again without --resume"):
            check_run_directory(tmp_path, RECIPE, resume=True, resume_from=step)
    assert check_run_directory(tmp_path, RECIPE, resume=False) is None


def test_a_best_model_without_checkpoints_is_not_written_over(tmp_path: Path) -> None:
    save(tmp_path, 4).replace(tmp_path / BEST)
    with refused(CheckpointError, fault="run, best.npz, without"):
        check_run_directory(tmp_path, RECIPE, resume=False)


def test_checkpoints_of_another_process_are_seen(tmp_path: Path) -> None:
    check_as_seen(tmp_path, None)
    save(tmp_path, 4)
    with refused(CheckpointError, remedy="again, with --res"):
        check_as_seen(tmp_path, None)
    for step in (None, 4):
        check_as_seen(tmp_path, checkpoint_to_resume(tmp_path, step))
    start = checkpoint_to_resume(tmp_path)
    path = save(tmp_path, 4)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # clocks can be coarse
    with refused(CheckpointError, fault="changed while"):
        check_as_seen(tmp_path, start)
    start = checkpoint_to_resume(tmp_path, 4)
    save(tmp_path, 8)
    with refused(CheckpointError, fault="changed while"):
        check_as_seen(tmp_path, start)


def test_later_checkpoints_are_set_aside(tmp_path: Path) -> None:
    for step in (4, 8, 12):
        save(tmp_path, step)
    (tmp_path / "log.jsonl").write_text("a line\n")
    aside = tmp_path / "checkpoints" / "aside"
    assert set_aside_after(tmp_path, 12) == []
    assert not aside.exists()
    first = set_aside_after(tmp_path, 4)
    assert first == [aside / "1" / "step-00000008.npz", aside / "1" / "step-00000012.npz"]
    kept = {path: path.read_bytes() for path in [*first, aside / "1" / "log.jsonl"]}
    assert set((aside / "1").iterdir()) == kept.keys()
    assert list(checkpoints(tmp_path)) == [4]
    # Done again, and taken back again: what was kept the first time stays as it is.
    save(tmp_path, 8, plan_of(last=30))
    (tmp_path / "log.jsonl").write_text("another line\n")
    assert set_aside_after(tmp_path, 4) == [aside / "2" / "step-00000008.npz"]
    assert (aside / "2" / "log.jsonl").read_text() == "another line\n"
    assert {path: path.read_bytes() for path in (aside / "1").iterdir()} == kept


def test_a_best_from_after_the_step_is_set_aside_with_its_scores(tmp_path: Path) -> None:
    """With the record of the step before, the next validation above that would go over it."""
    save(tmp_path, 8).replace(tmp_path / BEST)
    of_best = (*BEST_FILES, SUMMARY, WINDOWS)
    two = ClassMap(tuple(LandCoverClass(name, (i, i, i), i) for i, name in enumerate("ab")))
    none = ConfusionMatrix(two).scores(Protocol(("a", "b"), "full", "validation", "none", scenes=("x",)))
    for name in (*of_best, *LAST_FILES):
        none.write(tmp_path / name, facts={"epoch": 2, "step": 8})
    save(tmp_path, 4)
    assert set_aside_after(tmp_path, 8) == []
    assert (tmp_path / BEST).is_file()
    aside = tmp_path / "checkpoints" / "aside" / "1"
    assert set_aside_after(tmp_path, 4) == [aside / name for name in (*of_best, BEST, *LAST_FILES)]
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoints"]
    (tmp_path / BEST).write_bytes(b"PK")  # damaged: predict.py names it
    assert set_aside_after(tmp_path, 4) == []


def test_the_record_of_the_newest_checkpoint_is_read_without_its_weights(tmp_path: Path) -> None:
    assert newest_record(tmp_path) is None
    for step in (4, 8):
        path = save(tmp_path, step)
    whole, found = checkpoint_to_resume(tmp_path), newest_record(tmp_path)
    assert (found.path, found.position, found.facts) == (whole.path, whole.position, whole.facts)
    assert found.arrays.keys() == {"position", "meta"}
    damage(path)
    with pytest.raises(DamagedCheckpointError, match="damaged checkpoint"):
        newest_record(tmp_path)


def test_the_recipe_is_compared_with_the_checkpoints_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 4)
    edited = RECIPE.model_copy(update={"seed": 5})
    monkeypatch.setattr("segmenter.training.prepare.load_run", lambda _: SimpleNamespace(recipe=edited))
    assert check_run_directory(tmp_path, RECIPE, resume=True) is not None
    with refused(ConfigError, fault="recipe (seed: 0 → 5)"):
        check_run_directory(tmp_path, edited, resume=True)


def test_what_computes_nothing_may_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 4)
    monkeypatch.setattr("segmenter.training.prepare.load_run", lambda _: SimpleNamespace(recipe=RECIPE))
    training = RECIPE.training.model_copy(
        update={"keep_checkpoints": 7, "steps_per_call": 3, "input_workers": 2}
    )
    changed = RECIPE.model_copy(update={"name": "renamed", "training": training})
    assert check_run_directory(tmp_path, changed, resume=True)


def test_a_log_that_cannot_be_written_is_one_line(tensorflow: ModuleType, tmp_path: Path) -> None:
    from segmenter.training.log import TrainLog

    log = TrainLog(tmp_path)
    log.log_steps(1, {"loss": 0.5})
    with small_files(4):  # as full as a disk can be
        with pytest.raises(OutputError, match=r"log\.jsonl"):
            log.log_steps(2, {"loss": 0.5})
        (tmp_path / "log.jsonl").unlink()
        (tmp_path / "log.jsonl").symlink_to("/dev/null")  # which takes anything
        with pytest.raises(OutputError, match="too large"):
            log.log_steps(2, {"loss": 0.5})


def test_a_run_below_a_folder_that_one_may_not_enter_is_one_line(tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    for run in (locked / "run", locked / "runs" / "mine"):
        for how in (False, True):
            with forbidden(locked), refused(CheckpointError, where=str(run), remedy="--run"):
                check_run_directory(run, RECIPE, resume=how)


def test_a_run_on_a_disk_that_is_not_there_is_refused_before_the_data_are_read(tmp_path: Path) -> None:
    (tmp_path / "runs").symlink_to(tmp_path / "unmounted" / "runs")
    with refused(CheckpointError, where=str(tmp_path / "runs" / "mine")):
        check_run_directory(tmp_path / "runs" / "mine", RECIPE, resume=False)


STEPS = 37
"""Steps of an epoch."""
SCHEDULES: dict[str, dict[str, Any]] = {
    "poly": {},
    "cosine": {},
    "constant": {},
    "exponential": {"decay_steps": 29},
    "piecewise": {"boundaries": [50, 90], "values": [1.0, 0.3, 0.1]},
}


def recipe_of(epochs: int, **training: Any) -> Recipe:
    data = RECIPE.model_dump(mode="json")
    return recipe_from({**data, "training": {**data["training"], "epochs": epochs, **training}}, "test")


def is_refused(known: Recipe, now: Recipe, position: Position) -> bool:
    try:
        check_extension(Path("runs/a"), known.training, now.training, position)
        check_rates(Path("runs/a"), known.training, now.training, position.done, STEPS)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 4, 100], ids=lambda steps: f"warm-up {steps}")
def test_it_is_refused_exactly_where_a_rate_of_the_past_would_be_another(
    tensorflow: ModuleType, schedule: str, warmup: int
) -> None:
    from segmenter.training.optimiser import Schedule

    setting = {"schedule": schedule, "warmup": warmup, **SCHEDULES[schedule]}
    known, seen = recipe_of(2, **setting), set()

    def rates_of(recipe: Recipe) -> Any:
        schedule = Schedule(recipe.training, recipe.training.epochs * STEPS)
        return np.asarray(schedule(tensorflow.range(2 * STEPS))).tolist()

    past = rates_of(known)
    for epochs in (3, 31):
        now = recipe_of(epochs, **setting)
        rates = rates_of(now)
        for done in (1, 3, 4, 5, 6, 7, 8, 9, 13, STEPS, 2 * STEPS - 1, 2 * STEPS):
            expected = past[:done] != rates[:done]
            position = Position(done, done // STEPS, done % STEPS)
            assert is_refused(known, now, position) == expected, (epochs, done)
            seen.add(expected)
    if schedule in ("poly", "cosine"):  # until the warm-up is done nothing has fallen
        assert seen == ({True, False} if warmup <= 7 else {True})
    else:
        assert seen == {warmup > 7}


def test_a_warm_up_that_was_cut_is_kept_by_saying_its_length() -> None:
    known, position = recipe_of(2, schedule="constant", warmup=100), Position(2 * STEPS, 2, 0)
    now = recipe_of(9, schedule="constant", warmup=100)
    with pytest.raises(ConfigError, match=r"7 steps of 74, .* --set training.warmup=7$"):
        check_rates(Path("runs/a"), known.training, now.training, position.done, STEPS)
    falling = (recipe_of(n, schedule="poly", warmup=100).training for n in (2, 9))
    with refused(ConfigError, where="runs/a", fault="falls to 0"):  # which no warm-up mends
        check_rates(Path("runs/a"), *falling, 2 * STEPS, STEPS)
    assert not is_refused(known, recipe_of(9, schedule="constant", warmup=7), position)


@pytest.mark.parametrize(
    ("now", "position", "said"),
    [
        ({"epochs": 1}, Position(50, 1, 13), "expected at least 2, since 2 "),
        ({"epochs": 1}, Position(37, 1, 0), "expected at least 2, since 1 "),
        ({"epochs": 5, "stop_after": 2}, Position(74, 2, 0, 0.5, 2), "the run ended"),
        ({"epochs": 5, "schedule": "cosine", "warmup": 4}, Position(74, 2, 0), "training.schedule: cosine"),
    ],
    ids=["fewer than begun", "as many as done, of more", "ended early", "falls to the end"],
)
def test_what_is_no_extension_is_refused_in_one_line_that_says_what_to_do(
    now: dict[str, Any], position: Position, said: str
) -> None:
    now = {"schedule": "constant", **now}
    known = recipe_of(2, **{key: value for key, value in now.items() if key not in ("epochs", "stop_after")})
    with pytest.raises(ConfigError) as error:
        check_extension(Path("runs/a"), known.training, recipe_of(**now).training, position)
    assert str(error.value).startswith(f"runs/a: training.epochs: 2 → {now['epochs']}: {said}")
    assert "\n" not in str(error.value)


def test_a_run_records_what_made_it_longer_and_older_ones_have_no_such_record(tmp_path: Path) -> None:
    run = bare_run(tmp_path / "run", recipe=recipe_of(2, schedule="constant"))
    assert b"extensions" not in (run.path / "run.json").read_bytes()
    assert load_run(run.path).extensions == ()
    facts = {"recipe": run.recipe.model_dump(mode="json")}
    save(run.path, 8, **facts)
    longer = recipe_of(5, schedule="constant")
    went_on = with_extension(run, longer, checkpoint_to_resume(run.path))
    went_on.save()
    assert load_run(run.path).extensions == (Extension(8, 2, 5),)
    assert load_run(run.path).recipe.training.epochs == 5
    # Killed before its first checkpoint, and resumed: recorded once.
    assert with_extension(went_on, longer, checkpoint_to_resume(run.path)).extensions == (Extension(8, 2, 5),)
    # Or given up: not at all.
    assert with_extension(went_on, run.recipe, checkpoint_to_resume(run.path)).extensions == ()
    save(run.path, 12, recipe=longer.model_dump(mode="json"))
    again = with_extension(went_on, recipe_of(6, schedule="constant"), checkpoint_to_resume(run.path))
    assert again.extensions == (Extension(8, 2, 5), Extension(12, 5, 6))
