"""What a session does to a run directory before it trains: under the lock, and such that nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from segmenter.errors import CheckpointError
from segmenter.labels import ClassMap
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.checkpoints import BEST, checkpoints
from segmenter.runs.resume import checkpoint_to_resume
from segmenter.runs.run import Run
from segmenter.training.prepare import check_run_directory
from tests.helpers.made_checkpoints import MACHINE, RECIPE, save


@pytest.fixture
def run(tmp_path: Path, make_classes: Callable[..., ClassMap]) -> Run:
    """A run directory as it is at the start of a training."""
    normalisation, network = Normalisation.of([0.0] * 3, [1.0] * 3), NetworkGeometry(2, 9)
    path = tmp_path / "run"
    run = Run(path, RECIPE, make_classes(3), None, 3, "uint8", normalisation, 1.0, "full", network)
    run.save()
    return run


class Trainer:
    """Stands for one that refuses a checkpoint, or notes what it is given."""

    def __init__(self, run: Run, refuses: bool = False) -> None:
        self.run, self.refuses, self.steps = run, refuses, 40
        self.devices = SimpleNamespace(replicas=4, computed_on=MACHINE)
        self.position: Any = None
        self.log_at_rewind = ""

    def resume(self, start: Any) -> None:
        if self.refuses:
            raise CheckpointError("does not fit")
        self.position = SimpleNamespace(**start.position._asdict())

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
    from segmenter.training import start

    before = contents(gone_on.path)
    with pytest.raises(CheckpointError, match="does not fit"):
        start._resume(Trainer(gone_on, refuses=True), checkpoint_to_resume(gone_on.path, 4))  # type: ignore[arg-type]
    assert contents(gone_on.path) == before


def test_taken_back_the_next_best_is_kept_and_the_later_one_too(
    tensorflow: ModuleType, gone_on: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    from segmenter.training import start

    path, later = gone_on.path, (gone_on.path / BEST).read_bytes()
    trainer = Trainer(gone_on)
    start._resume(trainer, checkpoint_to_resume(path, 4))  # type: ignore[arg-type]
    aside = path / "checkpoints" / "aside" / "1"
    assert (aside / BEST).read_bytes() == later
    assert (aside / "log.jsonl").read_text() == "whole\n"
    assert (path / "log.jsonl").read_text() == "rewound\n"
    assert trainer.position.best_miou == -1
    assert f"({checkpoint_names(8, 12)}, {BEST}) and the log are kept in {aside}\n" in capsys.readouterr().out
    # Killed now, the checkpoint still has the old record; the next start forgets it, too.
    start._resume(trainer, checkpoint_to_resume(path))  # type: ignore[arg-type]
    assert trainer.position.best_miou == -1
    save(path, 4).replace(path / BEST)
    save(path, 4)
    start._resume(trainer, checkpoint_to_resume(path))  # type: ignore[arg-type]
    assert trainer.position.best_miou == 0.5


def checkpoint_names(*steps: int) -> str:
    return ", ".join(f"step-{step:08d}.npz" for step in steps)


class StartedError(Exception):
    """The training would begin now."""


def start(run: Run, monkeypatch: pytest.MonkeyPatch, checkpoint: Any, meanwhile: Callable[[], Any]) -> None:
    """`start_training` up to the trainer; `meanwhile` happens after the first look, before the lock."""
    from segmenter.training import start

    def prepared(*_: Any) -> Run:
        meanwhile()
        return run

    def trainer(*_: Any, **__: Any) -> None:
        raise StartedError

    for name in ("_check_devices", "_check_same_plan", "class_weights", "BatchLoader"):
        monkeypatch.setattr(start, name, lambda *_: None)
    for name in ("_new_run", "load_run"):
        monkeypatch.setattr(start, name, prepared)
    monkeypatch.setattr(start, "Trainer", trainer)
    tiles, devices = SimpleNamespace(index=None, store=None, digests={}), SimpleNamespace(replicas=1)
    start.start_training(RECIPE, None, tiles, devices, run.path, checkpoint=checkpoint)  # type: ignore[arg-type]


@pytest.mark.parametrize("first", [None, 4], ids=["start", "resume"])
def test_what_another_process_trained_meanwhile_is_not_written_over(
    tensorflow: ModuleType, run: Run, monkeypatch: pytest.MonkeyPatch, first: int | None
) -> None:
    """It began and ended between the look at the directory and the lock."""
    if first is not None:
        save(run.path, first)
    checkpoint = check_run_directory(run.path, RECIPE, resume=first is not None)
    with pytest.raises(StartedError):
        start(run, monkeypatch, checkpoint, lambda: None)
    with pytest.raises(CheckpointError, match="another process has trained there"):
        start(run, monkeypatch, checkpoint, lambda: save(run.path, 8))
    assert 8 in checkpoints(run.path)


def test_killed_before_its_first_checkpoint_a_run_starts_again(
    tensorflow: ModuleType, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = run.path / "checkpoints" / ".step-00000003.npz.abcdefgh"
    half.parent.mkdir()
    half.write_bytes(b"PK")
    (run.path / "log.jsonl").write_text('{"step": 2, "loss": 1.0}\n')
    with pytest.raises(CheckpointError, match="start again without --resume"):
        check_run_directory(run.path, RECIPE, resume=True)
    assert check_run_directory(run.path, RECIPE, resume=False) is None
    with pytest.raises(StartedError):
        start(run, monkeypatch, None, lambda: None)
    assert not half.exists()
    assert not (run.path / "log.jsonl").exists()  # else the steps would be in it twice
