"""Start of a training: what is checked, and what happens to its run directory before the first step."""

import shutil
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from datasets import load_dataset
from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.devices import strategy
from segmenter.grid.scenes import Dataset
from segmenter.runs.checkpoints import BEST, checkpoints
from segmenter.runs.log import log_line
from segmenter.runs.resume import checkpoint_to_resume
from segmenter.runs.run import Run, load_run
from segmenter.training.prepare import Tiles, check_run_directory, prepare_tiles
from segmenter.training.start import CheckedTraining, check_training, open_training, resume_from
from tests.helpers.made_runs import MACHINE, save
from tests.helpers.made_training import made
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run


class Prepared(NamedTuple):
    """Arguments of a training of the made scenes."""

    recipe: Recipe
    dataset: Dataset
    tiles: Tiles
    devices: strategy.Devices


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run directory as it is at the start of a training."""
    return bare_run(tmp_path / "run")


class Trainer:
    """Stands for one that refuses a checkpoint, or notes what it is given."""

    def __init__(self, run: Run, refuses: bool = False) -> None:
        self.run, self.refuses, self.steps = run, refuses, 40
        self.devices, self.learner = SimpleNamespace(replicas=4), SimpleNamespace(computed_on=MACHINE)
        self.position: Any = None
        self.log_at_rewind = ""

    def resume(self, start: Any) -> None:
        if self.refuses:
            raise CheckpointError("does not fit")
        self.position = start.position

    def rewind_log(self) -> None:
        (self.run.path / "log.jsonl").write_text("rewound\n")


@pytest.fixture
def gone_on(run: Run) -> Run:
    """Steps 4, 8 and 12 are there, and the best is of step 8."""
    save(run.path, 8).replace(run.path / BEST)
    for step in (4, 8, 12):
        save(run.path, step)
    (run.path / "log.jsonl").write_text("whole\n")
    return run


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_that_is_refused_moves_nothing(tensorflow: ModuleType, gone_on: Run) -> None:
    before = contents(gone_on.path)
    with refused(CheckpointError, fault="does"):
        resume_from(Trainer(gone_on, refuses=True), checkpoint_to_resume(gone_on.path, 4))  # type: ignore[arg-type]
    assert contents(gone_on.path) == before


def test_taken_back_the_next_best_is_kept_and_the_later_one_too(
    tensorflow: ModuleType, gone_on: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path, later = gone_on.path, (gone_on.path / BEST).read_bytes()
    trainer = Trainer(gone_on)
    resume_from(trainer, checkpoint_to_resume(path, 4))  # type: ignore[arg-type]
    aside = path / "checkpoints" / "aside" / "1"
    assert (aside / BEST).read_bytes() == later
    assert (aside / "log.jsonl").read_text() == "whole\n"
    assert (path / "log.jsonl").read_text() == "rewound\n"
    assert trainer.position.best_score == -1
    assert f"({checkpoint_names(8, 12)}, {BEST}) and the log are kept in {aside}\n" in capsys.readouterr().out
    # Killed now, the checkpoint still has the old record; the next start forgets it, too.
    resume_from(trainer, checkpoint_to_resume(path))  # type: ignore[arg-type]
    assert trainer.position.best_score == -1
    save(path, 4).replace(path / BEST)
    save(path, 4)
    resume_from(trainer, checkpoint_to_resume(path))  # type: ignore[arg-type]
    assert trainer.position.best_score == 0.5


def checkpoint_names(*steps: int) -> str:
    return ", ".join(f"step-{step:08d}.npz" for step in steps)


@pytest.fixture(scope="module")
def prepared(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("start")
    recipe = load_recipe(made(folder / "data"))
    dataset = load_dataset(recipe)
    devices = strategy.make_devices(recipe.distribution, None)
    return Prepared(recipe, dataset, prepare_tiles(recipe, dataset), devices)


def check(prepared: Prepared, path: Path, *, resume: bool = False) -> CheckedTraining:
    """A training in `path`, checked as train.py does."""
    recipe, dataset, tiles, devices = prepared
    checkpoint = check_run_directory(path, recipe, resume=resume)
    return check_training(recipe, dataset, tiles, devices, path, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def opened(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of step 0."""
    path = tmp_path_factory.mktemp("opened") / "run"
    with open_training(check(prepared, path)) as trainer:
        trainer.save()
    return path


def test_a_check_writes_nothing(prepared: Prepared, opened: Path, tmp_path: Path) -> None:
    check(prepared, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    before = contents(opened)
    check(prepared, opened, resume=True)
    assert contents(opened) == before


def test_an_open_training_stands_at_its_checkpoint_and_keeps_others_out(
    prepared: Prepared, opened: Path
) -> None:
    checked = check(prepared, opened, resume=True)
    with open_training(checked) as trainer:
        assert trainer.position.done == checked.checkpoint.position.done
        assert trainer.run == load_run(opened)
        with refused(SegmenterError, where="run", fault="another process"), open_training(checked):
            pass


@pytest.mark.parametrize("resume", [False, True], ids=["start", "resume"])
def test_what_another_process_trained_meanwhile_is_not_written_over(
    prepared: Prepared, opened: Path, tmp_path: Path, resume: bool
) -> None:
    """It began and ended between the look at the directory and the lock."""
    path = tmp_path / "run"
    if resume:
        shutil.copytree(opened, path)
    checked = check(prepared, path, resume=resume)
    save(path, 8)
    before = contents(path)
    with (
        refused(CheckpointError, fault="another process"),
        open_training(checked),
    ):
        pass
    assert {file: content for file, content in contents(path).items() if file.name != ".lock"} == before
    assert 8 in checkpoints(path)


def test_killed_before_its_first_checkpoint_a_run_starts_again(prepared: Prepared, tmp_path: Path) -> None:
    path = tmp_path / "run"
    half = path / "checkpoints" / ".step-00000003.npz.abcdefgh"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"PK")
    (path / "log.jsonl").write_text(log_line({"step": 2, "loss": 1.0}))
    with refused(CheckpointError, where="run", remedy="again without --resume"):
        check_run_directory(path, prepared.recipe, resume=True)
    with open_training(check(prepared, path)) as trainer:
        assert trainer.position.done == 0
        assert not half.exists()
        assert not (path / "log.jsonl").exists()  # else the steps would be in it twice
