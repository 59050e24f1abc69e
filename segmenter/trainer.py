"""The one loop: epochs of planned steps, validation on whole scenes, checkpoints, logs."""

from __future__ import annotations

import math
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from segmenter import checkpoint
from segmenter.batches import BatchLoader
from segmenter.checkpoint import Run
from segmenter.errors import CheckpointError, TrainingError
from segmenter.index import TileIndex
from segmenter.inference import predict_function
from segmenter.losses import segmentation_loss
from segmenter.model import build_model
from segmenter.optimisers import build_optimiser
from segmenter.pipeline import epoch_dataset
from segmenter.sampler import Plan, plan
from segmenter.scenes import Dataset
from segmenter.steps import StepParts, assign_optimiser, make_step, optimiser_arrays
from segmenter.strategy import Devices
from segmenter.trainlog import TrainLog
from segmenter.validation import validate, validation_protocol

_LOG_EVERY = 20
"""Steps between two lines of the log: often enough for a curve, rare enough to cost nothing."""
_TOLERATED_OVERFLOWS = 20
"""Steps in a row without a finite loss, in mixed precision, until the loss scale has to have settled."""


_DIVERGED = (
    "step {step}: {what}; the checkpoints before it are whole. Lower training.learning_rate, set "
    "training.clip_norm, or look for odd pixels with datasets check"
)


class StoppedError(Exception):
    """Training was told to stop by a signal, and left a checkpoint."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


@dataclass
class Position:
    """Where a training stands: optimiser steps done, and the next step of the plan."""

    done: int = 0
    epoch: int = 0
    step: int = 0
    best_miou: float = -1.0


@dataclass
class Trainer:
    """Trains a run's model on the tiles of an index.

    Attributes:
        run: the directory, recipe and what the model's input means.
        index: tiles of the training scenes.
        loader: makes the batches.
        devices: strategy and replicas.
        dataset: its validation scenes are validated on, where it has any.
        class_weights: (K,) weights in cross-entropy, or None.
    """

    run: Run
    index: TileIndex
    loader: BatchLoader
    devices: Devices
    dataset: Dataset
    class_weights: tuple[float, ...] | None = None
    position: Position = field(default_factory=Position)

    def __post_init__(self) -> None:
        recipe = self.run.recipe
        self.first_plan = self._plan(0)
        self.steps = recipe.training.epochs * self.first_plan.steps
        keras_seed(recipe.seed)
        with self.devices.strategy.scope():
            self.model = build_model(
                recipe.model,
                self.run.band_count,
                len(self.run.classes),
                dtype=recipe.training.precision,
                synchronised=True,
            )
            self._optimiser = build_optimiser(recipe.training, self.model, self.steps)
        loss = segmentation_loss(recipe.loss, self.class_weights, recipe.training.global_batch)
        self._step = make_step(
            StepParts(
                self.devices.strategy,
                self.model,
                self._optimiser,
                loss,
                self.run.normalisation,
                recipe.sampling.min_pixels,
            )
        )
        self._predict = predict_function(self.model, self.run.normalisation)
        self._log = TrainLog(self.run.path)

    # ---------------------------------------------------------------------------------- state

    def resume(self) -> None:
        """Go on from the newest checkpoint: weights, optimiser, position."""
        path = checkpoint.newest_checkpoint(self.run.path)
        arrays = checkpoint.load_arrays(path)
        checkpoint.assign_weights(self.model, arrays, "model")
        try:
            assign_optimiser(self._optimiser, arrays)
            done, epoch, step, best = arrays["position"].tolist()
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{path}: does not fit this recipe's optimiser ({error})") from None
        self.position = Position(int(done), int(epoch), int(step), float(best))
        self._log.rewind(self.position.done, validated=self.position.step == 0)

    def save(self) -> Path:
        """Write the checkpoint of the present step."""
        keep = self.run.recipe.training.keep_checkpoints
        return checkpoint.save_checkpoint(self.run.path, self.position.done, self._arrays(), keep)

    def _arrays(self) -> dict[str, Any]:
        at = self.position
        position = np.array([at.done, at.epoch, at.step, at.best_miou], np.float64)
        weights = checkpoint.weight_arrays(self.model, "model")
        if not all(np.isfinite(array).all() for array in weights.values()):
            raise TrainingError(_DIVERGED.format(step=at.done, what="a weight is not finite"))
        return {**weights, **optimiser_arrays(self._optimiser), "position": position}

    # ----------------------------------------------------------------------------------- loop

    def train(self) -> None:
        """Train to the last epoch.

        Raises:
            TrainingError: the loss is not finite, or a step fell short of its promise in strict mode.
            StoppedError: a signal came; the checkpoint of the last whole step is written.
        """
        epochs = self.run.recipe.training.epochs
        with _stop_signal() as stop, tqdm(total=self.steps, initial=self.position.done, unit="step") as bar:
            while self.position.epoch < epochs:
                self._epoch(bar, stop)
                self.save()  # before the validation: killed in it, a resumed run validates again
                self.position.epoch, self.position.step = self.position.epoch + 1, 0
                last = self.position.epoch == epochs
                if self.dataset.of("validation") and (
                    last or not self.position.epoch % self.run.recipe.training.validate_every
                ):
                    self._validate(bar)
                self.save()
                if stop and not last:
                    raise StoppedError(stop[0])
        self._log.curves()

    def _plan(self, epoch: int) -> Plan:
        recipe = self.run.recipe
        return plan(
            self.index.counts_NK,
            recipe.training.global_batch,
            recipe.sampling,
            recipe.seed,
            epoch,
            names=self.run.classes.names,
            replicas=self.devices.replicas,
        )

    def _epoch(self, bar: Any, stop: list[int]) -> None:
        epoch, at = self.position.epoch, self.position
        rows = self._plan(epoch)
        batches = epoch_dataset(self.loader, rows, epoch, at.step)
        meter = _Meter(self, rows, bar)
        iterator = iter(batches)
        for _ in range(at.step, rows.steps):
            waited = time.perf_counter()
            batch = self._next(iterator)
            meter.waited += time.perf_counter() - waited
            # Read only when the next step is under way: the host must not make the devices wait.
            meter.push(self._computed(batch))
            at.step += 1
            at.done += 1
            if stop:
                meter.close()
                self.save()
                raise StoppedError(stop[0])
        meter.close()

    def _computed(self, batch: Any) -> Any:
        try:
            return self._step(batch)
        except tf.errors.ResourceExhaustedError as error:
            message = str(error).splitlines()[0]
            raise TrainingError(
                f"out of memory at {self.run.recipe.training.global_batch} tiles of "
                f"{self.run.recipe.tiles.size} pixels a step on {self.devices.replicas} devices: lower "
                f"training.global_batch, tiles.size or model.width ({message})"
            ) from None

    def _next(self, iterator: Any) -> Any:
        """The next batch; a fault of a file is raised as what it is, not as TensorFlow wraps it."""
        try:
            return self.devices.dealt(next(iterator))
        except tf.errors.OpError:
            if self.loader.fault is not None:
                raise self.loader.fault from None
            raise

    def _validate(self, bar: Any) -> None:
        bar.set_description("validating")
        confusion = validate(self.run, self._predict, self.dataset)
        protocol = validation_protocol(self.dataset)
        scores = confusion.scores(protocol)
        self._log.validated(self.position.done, self.position.epoch, scores, confusion)
        tqdm.write(f"after epoch {self.position.epoch}:\n{scores.table()}")
        # The best is saved with the record it sets, so that resuming from it knows it.
        if scores.miou > self.position.best_miou:
            self.position.best_miou = scores.miou
            scores.write(self.run.path / "best_scores.json")
            checkpoint.save_arrays(self.run.path / "best.npz", self._arrays())


class _Meter:
    """Reads the steps' results one step late, shows them, logs them, and stops what goes wrong."""

    def __init__(self, trainer: Trainer, rows: Plan, bar: Any) -> None:
        self._trainer, self._rows, self._bar = trainer, rows, bar
        self._pending: tuple[int, Any] | None = None
        self._losses: list[float] = []
        self._held: list[Any] = []
        self._not_finite = 0
        self.short_steps = 0
        self._short_before = 0
        self._drawn = trainer.loader.drawn
        self.waited = 0.0
        self._read = 0
        self._started = time.perf_counter()

    def push(self, result: Any) -> None:
        """Take the result of a step, read that of the one before."""
        self.drain()
        self._pending = (self._trainer.position.done + 1, result)

    def drain(self) -> None:
        """Read the step that is still pending."""
        if self._pending is None:
            return
        step, (loss, held) = self._pending
        self._pending = None
        self._take(step, float(loss), np.asarray(held))

    def _take(self, step: int, loss: float, held_2K: Any) -> None:
        self._check_finite(step, loss)
        # In how many replicas' parts each promised class has to be: in all, if each was planned for.
        lost = [c for c in self._rows.promised if held_2K[1, c] < self._rows.blocks]
        if lost:
            self._short(step, lost)
        self._losses.append(loss)
        self._held.append(held_2K)
        if self._read == 0:
            self._started, self.waited = time.perf_counter(), 0.0  # compiling is no part of the rate
        self._read += 1
        rate = self._rate()
        classes = f"{np.count_nonzero(held_2K[0])}/{held_2K.shape[1]}"
        shown = {"loss": f"{loss:.3f}", "images/s": f"{rate:.0f}", "classes": classes}
        if self.short_steps:
            shown["short"] = str(self.short_steps)
        self._bar.set_description(f"epoch {self._trainer.position.epoch + 1}", refresh=False)
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update(1)
        if step % _LOG_EVERY == 0:
            self.write(step)

    def _check_finite(self, step: int, loss: float) -> None:
        self._not_finite = 0 if math.isfinite(loss) else self._not_finite + 1
        mixed = self._trainer.run.recipe.training.precision != "float32"
        if self._not_finite > (_TOLERATED_OVERFLOWS if mixed else 0):
            raise TrainingError(_DIVERGED.format(step=step, what=f"the loss is {loss}"))

    def _short(self, step: int, lost: list[int]) -> None:
        names = ", ".join(self._trainer.run.classes.names[c] for c in lost)
        self.short_steps += 1
        if self._trainer.run.recipe.sampling.coverage == "strict":
            raise TrainingError(f"step {step}: expected every promised class in the step, {names} is missing")
        tqdm.write(f"warning: step {step} holds no tile of {names}, which the plan promised")

    def _rate(self) -> float:
        """Tiles a second since the first step was done."""
        seconds = time.perf_counter() - self._started
        return self._rows.rows_SB.shape[1] * (self._read - 1) / seconds if self._read > 1 else 0.0

    def write(self, step: int) -> None:
        """A line of the log over the steps since the last one."""
        if not self._losses:
            return
        seconds = time.perf_counter() - self._started
        self._trainer._log.trained(
            step,
            {
                "epoch": self._trainer.position.epoch + 1,
                "loss": float(np.mean(self._losses)),
                "learning_rate": float(self._trainer._optimiser.learning_rate),
                "images_per_second": self._rate(),
                "waiting_for_data": self.waited / max(seconds, 1e-9),
                **self._coverage(),
            },
        )
        self._losses, self._held, self._short_before = [], [], self.short_steps

    def _coverage(self) -> dict[str, Any]:
        """What the steps since the last line held, beside what was promised; read by the diagnosis."""
        held_N2K = np.stack(self._held)
        loader = self._trainer.loader
        drawn, self._drawn = loader.drawn.since(self._drawn), loader.drawn
        return {
            "steps": len(held_N2K),
            "classes_in_batch": float((held_N2K[:, 0] > 0).sum(axis=1).mean()),
            "classes_per_replica": float(held_N2K[:, 1].sum(axis=1).mean() / self._trainer.devices.replicas),
            "short_steps": self.short_steps - self._short_before,
            "held_steps": (held_N2K[:, 0] > 0).sum(axis=0).tolist(),
            "promised": list(self._rows.promised),
            "best_effort": list(self._rows.best_effort),
            "tiles_drawn": drawn.tiles,
            "tiles_redrawn": drawn.redrawn,
            "tiles_replaced": drawn.replaced,
        }

    def close(self) -> None:
        """Read and log what is left."""
        self.drain()
        self.write(self._trainer.position.done)


def keras_seed(seed: int) -> None:
    """Seed the initialisers and dropout of the models built from here on."""
    import keras

    keras.utils.set_random_seed(seed)
    tf.random.set_seed(seed)


@contextmanager
def _stop_signal() -> Iterator[list[int]]:
    """SIGINT or SIGTERM fills the list, to be seen after the step under way; a second one ends at once."""
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def catch(number: int, _frame: Any) -> None:
        caught.append(number)
        tqdm.write("stopping after this step or validation; once more ends at once", file=sys.stderr)
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, catch)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
