"""Going on with a run: from which checkpoint, and whether what it was made with is what is here.

Law 3, *resume*: N steps, stop, resume, M steps are N + M steps in one go, bit for bit on a CPU. That takes
the same recipe, the same plan and the same versions; the checkpoint says which it was made with.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from segmenter import __version__
from segmenter.array_file import META, Arrays, load_arrays
from segmenter.checkpoint import checkpoints, newest_checkpoint, newest_whole
from segmenter.errors import CheckpointError, DamagedCheckpointError
from segmenter.sampler import Plan
from segmenter.schema import Recipe

_FORMAT = 2
"""1: without `META` and digest."""
_PACKAGES = {
    "tensorflow": ("tensorflow", "tensorflow-cpu"),
    **{name: (name,) for name in ("keras", "numpy", "scipy", "albumentations", "opencv-python-headless")},
}
"""Whose versions the bits may depend on, with the names they are installed under."""
_ASIDE = "aside"


class Position(NamedTuple):
    """Where a training stands: optimiser steps done, the next step of which epoch's plan, the best mIoU."""

    done: int
    epoch: int
    step: int
    best_miou: float

    @property
    def planned_epoch(self) -> int:
        """The epoch that the last step was in."""
        return self.epoch if self.step else max(self.epoch - 1, 0)


class Facts(BaseModel):
    """What a checkpoint was made with, as it is written into it.

    Attributes:
        format: of the checkpoint.
        versions: package → version.
        seed: the recipe's.
        epoch, step: the next step of the plan.
        planned_epoch: the epoch that the last step was in.
        plan: fingerprint of that epoch's plan.
        replicas: devices that it was made on.
        recipe: resolved.
    """

    model_config = ConfigDict(frozen=True, strict=True)

    format: int = _FORMAT
    versions: dict[str, str]
    seed: int
    epoch: int
    step: int
    planned_epoch: int
    plan: str
    replicas: int
    recipe: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole; `facts` is None in one of an older program."""

    path: Path
    arrays: Arrays
    position: Position
    facts: Facts | None

    def check_plan(self, plan: Plan) -> None:
        """Refuse to go on where the rest of an epoch would not be the rest of the plan that was begun.

        Args:
            plan: of the epoch `position.planned_epoch`, as it is made here.

        Raises:
            CheckpointError: it is another.
        """
        at = self.position
        known = self.facts.plan if self.facts is not None else fingerprint(plan)
        if known != fingerprint(plan) or at.step > plan.steps:
            changed = version_changes(self.facts)
            why = ", ".join(changed) or "the tiles, or the planner, have changed"
            raise CheckpointError(
                f"{self.path}: epoch {at.planned_epoch + 1} was planned otherwise when it was begun ({why}); "
                "use --init-from to start a new run from it"
            )

    def warnings(self, replicas: int) -> list[str]:
        """A line for each thing that makes the rest another than it would have been without the stop."""
        if self.facts is None:
            return []
        lines = []
        if changed := version_changes(self.facts):
            lines.append(
                f"made with other versions, the bits of what follows may differ: {', '.join(changed)}"
            )
        if self.facts.replicas != replicas:
            lines.append(
                f"made on {self.facts.replicas} devices, this is {replicas}: what follows is the same but "
                "for rounding and, with dropout, for the images that its masks fall on"
            )
        return [f"warning: {self.path.name}: {line}" for line in lines]


def facts_array(recipe: Recipe, plan: Plan, position: Position, replicas: int) -> NDArray[np.uint8]:
    """What a checkpoint carries as `META`; `plan` is that of the epoch `position.planned_epoch`."""
    facts = Facts(
        versions=_versions(),
        seed=recipe.seed,
        epoch=position.epoch,
        step=position.step,
        planned_epoch=position.planned_epoch,
        plan=fingerprint(plan),
        replicas=replicas,
        recipe=recipe.model_dump(mode="json"),
    )
    return np.frombuffer(facts.model_dump_json().encode(), np.uint8)


def fingerprint(plan: Plan) -> str:
    """SHA-256 of the rows of a plan."""
    rows = np.ascontiguousarray(plan.rows_SB, "<i8")
    return hashlib.sha256(repr((rows.shape, plan.blocks)).encode() + rows.tobytes()).hexdigest()


def version_changes(facts: Facts | None) -> list[str]:
    """`numpy 2.3.1 → 2.4.0` for each package that is another here."""
    if facts is None:
        return []
    here, there = _versions(), facts.versions
    names = [name for name in here | there if here.get(name) != there.get(name)]
    return [f"{name} {there.get(name, 'none')} → {here.get(name, 'none')}" for name in names]


def _versions() -> dict[str, str]:
    found = {"coverage-segmenter": __version__}
    for name, installed_as in _PACKAGES.items():
        for package in installed_as:
            try:
                found.setdefault(name, version(package))
            except PackageNotFoundError:
                continue
    return found


# ------------------------------------------------------------------------------ which to go on from


def checkpoint_to_resume(run: Path, step: int | None = None) -> Checkpoint:
    """The checkpoint of a step, or the newest; imports no TensorFlow.

    Raises:
        CheckpointError: there is none of that step, or it does not hold a position.
        DamagedCheckpointError: it is damaged; says from which one it can go on instead.
    """
    there = checkpoints(run)
    if step is not None and step not in there:
        known = f"one of {', '.join(map(str, there))}" if there else "a checkpoint, there is none yet"
        raise CheckpointError(f"{run}: --resume-from {step}: expected {known}")
    path = newest_checkpoint(run) if step is None else there[step]
    try:
        return _checkpoint(path, load_arrays(path))
    except DamagedCheckpointError as error:
        raise DamagedCheckpointError(f"{error}; {_instead(run, path)}") from None


def _checkpoint(path: Path, arrays: Arrays) -> Checkpoint:
    try:
        done, epoch, step, best = arrays["position"].tolist()
        position = Position(int(done), int(epoch), int(step), float(best))
        facts = Facts.model_validate_json(arrays[META].tobytes()) if META in arrays else None
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        what = " ".join(str(error).split())
        raise CheckpointError(f"{path}: not a checkpoint that train.py wrote ({what})") from None
    if facts is not None and facts.format > _FORMAT:
        raise CheckpointError(
            f"{path}: expected format {_FORMAT} or older, got {facts.format}; use a newer program"
        )
    if min(position[:3]) < 0:
        raise CheckpointError(f"{path}: not a checkpoint that train.py wrote (position {position[:3]})")
    return Checkpoint(path, arrays, position, facts)


def _instead(run: Path, damaged: Path) -> str:
    """What to do without a damaged checkpoint."""
    whole = newest_whole(run, but=damaged)
    if whole is not None:
        step = next(step for step, path in checkpoints(run).items() if path == whole)
        return f"the one of step {step} is whole: go on from it with --resume-from {step}"
    others = len(checkpoints(run)) - 1
    every = f"all {others + 1} checkpoints are damaged" if others else "there is no other"
    best = run / "best.npz"
    if best.is_file() and _is_whole(best):
        return f"{every}, but {best} is whole: start a new run from it with --init-from {run}"
    return f"{every}: start anew in another directory with --run"


def _is_whole(path: Path) -> bool:
    try:
        load_arrays(path)
    except CheckpointError:
        return False
    return True


def set_aside_after(run: Path, step: int) -> list[Path]:
    """Move the checkpoints after a step out of the way, and keep a copy of the log; gives where they are.

    What was done after the step is done again, to the same result, and would meet them; but nothing is
    deleted that the user may have meant to keep.
    """
    later = [path for number, path in checkpoints(run).items() if number > step]
    folder = run / "checkpoints" / _ASIDE
    try:
        if later:
            folder.mkdir(exist_ok=True)
            if (run / "log.jsonl").is_file():
                shutil.copy2(run / "log.jsonl", folder / "log.jsonl")
        return [path.replace(folder / path.name) for path in later]
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot set later checkpoints aside: {error.strerror}") from None
