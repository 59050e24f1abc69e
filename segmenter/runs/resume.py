"""Resuming and extending a run: checks that recipe, data and versions are unchanged.

Law 3, *resume*: N steps, stop, resume, M steps are N + M steps in one go, bit for bit on a CPU. This requires
the same recipe, plan and versions; a checkpoint records those it was made with.

An extended run equals, bit for bit, a run with the larger number of epochs from its start. Everything except
the learning rate is a function of seed and step. So an extension is possible if the learning rates of the
finished steps are the same in both. Only its validations may be one more: the last epoch of before had one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from segmenter.base.errors import (
    CheckpointError,
    ConfigError,
    DamagedCheckpointError,
    extended_error,
    shorten,
)
from segmenter.base.files import FileState, file_state, make_folder, remove_leftovers, write_whole
from segmenter.base.invocation import invocation, quote_path
from segmenter.base.terminal import say
from segmenter.base.version import __version__
from segmenter.config.reading import flat_settings, recipe_from
from segmenter.config.recipe import Recipe, TrainingConfig
from segmenter.runs.checkpoints import (
    BEST,
    META,
    Arrays,
    checkpoints,
    load_arrays,
    load_some,
    newest_checkpoint,
    newest_whole,
)
from segmenter.runs.log import LOG
from segmenter.runs.records import CALIBRATION, SETS, WINDOWS
from segmenter.runs.run import RECIPE_FILE, Extension, Run
from segmenter.runs.score_files import BEST_FILES, SUMMARY, later_scores

_PACKAGES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    **{name: (name,) for name in ("keras", "numpy", "scipy", "albumentations", "opencv-python-headless")},
}
"""Whose versions the bits may depend on, with the names they are installed under."""
_ASIDE = "aside"
EXTENDS = "training.epochs"
"""The setting that makes a run longer."""
_WITH_IT = "training.warmup"
"""Setting that may be needed with it: a warm-up takes at most a tenth of the steps, now more."""
_TO_THE_END = ("poly", "cosine")
"""Schedules that fall from the warm-up to the last step: another last step is another rate at each."""


class Position(NamedTuple):
    """Position of a training.

    Attributes:
        epoch, step: epoch of the next step, and its number in the epoch's plan.
        best_score: highest value so far of the score that selects the best model.
        without_gain: number of validations since then.
    """

    done: int = 0
    epoch: int = 0
    step: int = 0
    best_score: float = -1.0
    without_gain: int = 0

    def after(self, steps: int) -> Position:
        """Return the position after more steps of the same epoch."""
        return self._replace(done=self.done + steps, step=self.step + steps)

    def at_next_epoch(self) -> Position:
        """Return the position before the first step of the next epoch."""
        return self._replace(epoch=self.epoch + 1, step=0)

    @property
    def planned_epoch(self) -> int:
        """Epoch of the last step."""
        return self.epoch if self.step else max(self.epoch - 1, 0)

    def ended_early(self, training: TrainingConfig) -> bool:
        """Return True if `stop_after` validations without improvement ended it before the last epoch."""
        patience = training.stop_after
        return bool(patience) and self.epoch < training.epochs and self.without_gain >= patience


Seen = tuple[FileState, ...]
"""States of the checkpoints of a run, and of the best."""


class CheckpointFacts(BaseModel):
    """Record in a checkpoint of how it was made.

    Attributes:
        planned_epoch: epoch of the last step.
        computed_on: further facts that its bits depend on (`devices.setup`).
    """

    model_config = ConfigDict(frozen=True, strict=True)

    versions: dict[str, str]
    seed: int
    epoch: int
    step: int
    planned_epoch: int
    plan: str
    replicas: int
    recipe: dict[str, Any]
    computed_on: dict[str, str]


@dataclass(frozen=True)
class Checkpoint:
    """An undamaged checkpoint.

    Attributes:
        seen: the run's checkpoints when this one was chosen, for `check_as_seen`.
    """

    path: Path
    arrays: Arrays
    position: Position
    facts: CheckpointFacts
    seen: Seen = ()

    def check_plan(self, fingerprint: str, steps: int) -> None:
        """Refuse to go on where the rest of an epoch would not be the rest of the plan that was begun.

        Args:
            fingerprint, steps: of the plan of the epoch `position.planned_epoch`, as it is made here.

        Raises:
            CheckpointError: it is another.
        """
        at = self.position
        if self.facts.plan != fingerprint or at.step > steps:
            changed = version_changes(self.facts)
            why = ", ".join(changed) or "the tiles, or the planner, have changed"
            raise CheckpointError(
                self.path,
                f"epoch {at.planned_epoch + 1} was planned otherwise when it was begun ({why})",
                remedy="use --init-from to start a new run from it",
            )

    def warnings(self, replicas: int, computed_on: Mapping[str, str]) -> list[str]:
        """Return a line for each difference that changes the rest of the training.

        Args:
            computed_on: facts here, as in `CheckpointFacts`.
        """
        lines = []
        if changed := version_changes(self.facts):
            lines.append(
                f"made with other versions, the bits of what follows may differ: {', '.join(changed)}"
            )
        settings = flat_settings(recipe_from(self.facts.recipe, str(self.path)))
        there = {key: str(settings[key]).lower() for key in computed_on if key in settings}
        there |= {key: value for key, value in self.facts.computed_on.items() if key not in settings}
        if changed := _changes(there, computed_on):
            lines.append(f"computed otherwise, the bits of what follows may differ: {', '.join(changed)}")
        if self.facts.replicas != replicas:
            follows = _on_other_devices(self.facts.recipe)
            lines.append(f"made on {self.facts.replicas} devices, this is {replicas}: {follows}")
        elif self.facts.computed_on.get("shares") != computed_on.get("shares"):
            lines.append(f"made with other shares: {_on_other_devices(self.facts.recipe)}")
        return [f"warning: {self.path.name}: {line}" for line in lines]


def _on_other_devices(recipe: Mapping[str, Any]) -> str:
    """Return text on how another number of devices changes the rest of a training."""
    known = recipe_from(dict(recipe), "the checkpoint's recipe")
    model, micro_batches = known.model, known.training.accumulate
    felt = ["BatchNorm's statistics"] if model.batch_norms(known.training.freeze_norms) else []
    felt += ["dropout's masks"] if model.dropout or getattr(model, "drop_path", 0) else []
    if micro_batches > 1 and felt:
        return (
            f"the rest of the training will differ in more than rounding: each of the "
            f"{micro_batches} micro-batches of a step holds other images, and so {' and '.join(felt)} differ"
        )
    return "the rest of the training will be the same but for rounding"


def facts_array(
    recipe: Recipe, plan: str, position: Position, replicas: int, computed_on: Mapping[str, str]
) -> NDArray[np.uint8]:
    """Return the array `META` of a checkpoint; `plan` is the fingerprint of `position.planned_epoch`'s."""
    facts = CheckpointFacts(
        versions=installed_versions(),
        seed=recipe.seed,
        epoch=position.epoch,
        step=position.step,
        planned_epoch=position.planned_epoch,
        plan=plan,
        replicas=replicas,
        recipe=recipe.model_dump(mode="json"),
        computed_on=dict(computed_on),
    )
    return np.frombuffer(facts.model_dump_json().encode(), np.uint8)


def version_changes(facts: CheckpointFacts) -> list[str]:
    """Return text such as `numpy 2.3.1 → 2.4.0` for each package that differs here."""
    return _changes(facts.versions, installed_versions())


def _changes(there: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    names = [name for name in {**here, **there} if here.get(name) != there.get(name)]
    return [f"{name} {there.get(name, 'none')} → {here.get(name, 'none')}" for name in names]


def installed_versions() -> dict[str, str]:
    """Return the version of each package that the bits may depend on."""
    versions = {"coverage-segmenter": __version__}
    for name, installed_as in _PACKAGES.items():
        for package in installed_as:
            try:
                versions.setdefault(name, version(package))
            except PackageNotFoundError:
                continue
    return versions


# ------------------------------------------------------------------------------ which to go on from


def checkpoint_to_resume(run: Path, step: int | None = None) -> Checkpoint:
    """Return the checkpoint of a step, or the newest; does not import TensorFlow.

    Raises:
        CheckpointError: there is no checkpoint of that step, or it has no position.
        DamagedCheckpointError: the checkpoint is damaged; the message names another to resume from.
    """
    seen = _checkpoint_states(run)  # before any is read
    by_step = checkpoints(run)
    if not by_step:
        start = (
            f"a new run can start from its best model: --init-from {quote_path(run)} --run OTHER"
            if (run / BEST).exists()
            else "start again without --resume, or name another directory with --run"
        )
        raise CheckpointError(
            run, expected="a run directory with a checkpoint to go on from, there is none yet", remedy=start
        )
    if step is not None and step not in by_step:
        steps = ", ".join(map(str, by_step))
        raise CheckpointError(f"{run}: --resume-from {step}", expected=f"one of {steps}")
    path = newest_checkpoint(run) if step is None else by_step[step]
    try:
        return replace(_checkpoint(path, load_arrays(path)), seen=seen)
    except DamagedCheckpointError as error:
        raise extended_error(error, remedy=_instead(run, path)) from None


def newest_record(run: Path) -> Checkpoint | None:
    """Return position and facts of a run's newest checkpoint, without weights; None if it has none.

    Raises:
        CheckpointError: the checkpoint is damaged or lacks them.
    """
    return record_of(newest_checkpoint(run)) if checkpoints(run) else None


def record_of(path: Path) -> Checkpoint:
    """Return position and facts of a checkpoint or best model, without weights.

    Raises:
        CheckpointError: the file is damaged or lacks them.
    """
    return _checkpoint(path, load_some(path, ("position", META)))


def unfinished_line(run: Run) -> str:
    """Return a line on a training that was stopped, with how to go on; empty if it ended, or if unknown."""
    with suppress(CheckpointError):
        at, epochs = record_of(newest_checkpoint(run.path)).position, run.recipe.training.epochs
        if at.epoch < epochs and not at.ended_early(run.recipe.training):
            recipe, folder = quote_path(run.path / RECIPE_FILE), quote_path(run.path)
            resume = f"{invocation('train')} {recipe} --run {folder} --resume"
            return f"{run.path}: {at.epoch} of {epochs} epochs are trained; to go on: {resume}"
    return ""


def _checkpoint_states(run: Path) -> Seen:
    states = (file_state(path) for path in (*checkpoints(run).values(), run / BEST))
    return tuple(state for state in states if state[1] >= 0)  # of files that exist


def check_as_seen(run: Path, start: Checkpoint | None) -> None:
    """Refuse to resume, or to start (None), if another process has trained here meanwhile.

    Between the first check of the run directory and its lock, minutes may pass while files are indexed, so
    this is checked again with the lock.

    Raises:
        CheckpointError: the checkpoints have changed.
    """
    if _checkpoint_states(run) != (start.seen if start is not None else ()):
        raise CheckpointError(
            run,
            "its checkpoints have changed while this program was getting ready: another process has trained "
            "there",
            remedy="start again, with --resume to go on from its newest, or name another with --run",
        )


def _checkpoint(path: Path, arrays: Arrays) -> Checkpoint:
    try:
        done, epoch, step, best, *more = arrays["position"].tolist()
        (without_gain,) = more or (0,)  # which checkpoints of before it was counted do not have
        position = Position(int(done), int(epoch), int(step), float(best), int(without_gain))
        facts = CheckpointFacts.model_validate_json(arrays[META].tobytes())
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        what = shorten(" ".join(str(error).split()))
        raise CheckpointError(path, f"not a checkpoint that train.py wrote ({what})") from None
    if min(*position[:3], position.without_gain) < 0:
        raise CheckpointError(path, f"not a checkpoint that train.py wrote (position {position[:3]})")
    return Checkpoint(path, arrays, position, facts)


def _instead(run: Path, damaged: Path) -> str:
    """Return advice on a damaged checkpoint."""
    whole = newest_whole(run, but=damaged)
    if whole is not None:
        step = next(step for step, path in checkpoints(run).items() if path == whole)
        return f"the one of step {step} is whole: go on from it with --resume-from {step}"
    others = len(checkpoints(run)) - 1
    every = f"all {others + 1} checkpoints are damaged" if others else "there is no other"
    best = run / BEST
    if best.is_file() and _is_whole(best):
        return f"{every}, but {best} is whole: start a new run from it with --init-from {quote_path(run)}"
    return f"{every}: start anew in another directory with --run"


def _is_whole(path: Path) -> bool:
    try:
        load_arrays(path)
    except CheckpointError:
        return False
    return True


_WITH_BEST = (*BEST_FILES, SUMMARY, WINDOWS, CALIBRATION, SETS, BEST)
"""Files of the best model."""


def set_aside_after(run: Path, step: int) -> list[Path]:
    """Move files from after a step into a subfolder, and copy the log there; return their new paths.

    These are checkpoints, the best model with its scores, and the last validation's scores. Training will
    repeat these steps with the same result; files are moved and not deleted, since the user may want to keep
    them.
    """
    later = [path for number, path in checkpoints(run).items() if number > step]
    if _step_of(run / BEST) > step:
        later += [path for name in _WITH_BEST if (path := run / name).is_file()]
    later += later_scores(run, step)
    if not later:
        return []
    log = run / LOG
    try:
        folder = _new_folder(run / "checkpoints" / _ASIDE)
        if log.is_file():
            write_whole(folder / log.name, log.read_bytes())
        return [path.replace(folder / path.name) for path in later]
    except OSError as error:
        what = f"cannot set what is from after step {step} aside: {error.strerror}"
        raise CheckpointError(run / "checkpoints" / _ASIDE, what) from None


def _new_folder(parent: Path) -> Path:
    """Make and return the next of the folders `1`, `2` …"""
    numbers = [int(path.name) for path in parent.glob("*") if path.name.isdecimal()]
    folder = parent / str(max(numbers, default=0) + 1)
    make_folder(folder)
    return folder


def _step_of(path: Path) -> int:
    """Return the step of a checkpoint; -1 if missing or unknown."""
    try:
        return _checkpoint(path, load_arrays(path)).position.done
    except CheckpointError:
        return -1


# -------------------------------------------------------------------------------------------------- extending


def extends(changed: Iterable[str]) -> bool:
    """Return True if these settings, changed on resuming, are an extension."""
    keys = set(changed)
    return EXTENDS in keys and keys <= {EXTENDS, _WITH_IT}


def check_extension(path: Path, before: TrainingConfig, now: TrainingConfig, position: Position) -> str:
    """Refuse a change that is not an extension, before data are read; return a line on the extension.

    Raises:
        ConfigError: the change is no extension; the message has an alternative.
    """
    where = f"{path}: {EXTENDS}: {before.epochs} → {now.epochs}"
    begun = position.epoch + bool(position.step)
    if now.epochs < begun or (now.epochs < before.epochs and now.epochs == position.epoch):
        least = begun + (not position.step)
        raise ConfigError(
            where,
            expected=f"at least {least}, since {begun} of its epochs are done or begun",
            remedy=f"it has {before.epochs}: --set {EXTENDS}={before.epochs} goes on with these",
        )
    if now.stop_after and position.without_gain >= now.stop_after:
        count = position.without_gain
        raise ConfigError(
            f"{where}: the run ended early, after {count} validation{'s' * (count > 1)} without a gain: to "
            f"go on, set training.stop_after to more than {count}, or to 0, as well"
        )
    if now.schedule in _TO_THE_END and position.done > max(before.warmup, now.warmup) + 1:
        raise ConfigError(where, _falls(path, now, position.done))
    return f"{EXTENDS}: {before.epochs} → {now.epochs}, from step {position.done} on"


def check_rates(path: Path, known: TrainingConfig, now: TrainingConfig, done: int, epoch_steps: int) -> None:
    """Refuse an extension that would change the learning rates of finished steps.

    Raises:
        ConfigError: the rates differ; the message has an alternative.
    """
    before, after = (warmup_steps(each, each.epochs * epoch_steps) for each in (known, now))
    if now.schedule in _TO_THE_END and done > before + 1:  # the first after the warm-up has the peak
        why = _falls(path, now, done)
        raise ConfigError(path, f"{EXTENDS}: {known.epochs} → {now.epochs}: {why}")
    if before != after:
        total = known.epochs * epoch_steps
        raise ConfigError(
            f"{path}: {EXTENDS}: {known.epochs} → {now.epochs}: the warm-up was {before} steps of {total}, "
            f"and would be {after} of {now.epochs * epoch_steps}: keep it with --set {_WITH_IT}={before}"
        )


def warmup_steps(config: TrainingConfig, steps: int) -> int:
    """Return the warm-up steps of a training of `steps` steps: at most a tenth of them."""
    return min(config.warmup, steps // 10)


def _falls(path: Path, now: TrainingConfig, done: int) -> str:
    return (
        f"training.schedule: {now.schedule} falls to 0 at the last step, so that with another number of "
        f"epochs the {done} steps done would have had other rates; start a new run from its weights "
        f"(--init-from {quote_path(path)} --run OTHER); constant, exponential and piecewise can go on"
    )


def with_extension(run: Run, recipe: Recipe, checkpoint: Checkpoint) -> Run:
    """Return the run as resumed from a checkpoint under a recipe, with the extension recorded."""
    done = checkpoint.position.done
    earlier = tuple(each for each in run.extensions if each.step < done)
    before, now = checkpoint.facts.recipe.get("training", {}).get("epochs"), recipe.training.epochs
    new = (Extension(done, before, now),) if isinstance(before, int) and before != now else ()
    return replace(run, recipe=recipe, extensions=earlier + new)


def clear(run: Path) -> None:
    """Remove the files of a training that ended before its first checkpoint, to start again."""
    sweep(run)
    (run / LOG).unlink(missing_ok=True)


def sweep(run: Path) -> None:
    """Remove the half-written files that a killed training left in a run directory."""
    if left := sum(remove_leftovers(folder) for folder in (run, run / "checkpoints")):
        say(f"removed {left} file{'s' * (left > 1)} that a killed training left half-written")
