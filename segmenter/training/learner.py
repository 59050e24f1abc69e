"""Learner: a training's model with optimiser and weight average, and the steps that update them.

Agreement of replicas: check that all have the same weights and state, to the bit. They start equal and apply
equal sums, so they stay equal unless a card computes or stores wrongly, or TensorFlow's sums fail. Nothing
else would reveal it: a checkpoint contains only the first replica's state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError, TrainingError
from segmenter.config.devices import DistributionConfig
from segmenter.config.recipe import Recipe
from segmenter.devices.setup import greet_in_half_floats
from segmenter.devices.strategy import Devices
from segmenter.inference.function import on_replicas
from segmenter.inference.prediction import Predictor
from segmenter.model.building import build_model, stages_of
from segmenter.model.stages import pace_of
from segmenter.runs.checkpoints import assign_weights, weight_arrays
from segmenter.runs.resume import Checkpoint
from segmenter.runs.run import Run
from segmenter.training.losses import segmentation_loss
from segmenter.training.optimiser import (
    AveragedWeights,
    Schedule,
    build_optimiser,
    describe_schedule,
    set_trained,
)
from segmenter.training.step import (
    StepParts,
    assign_optimiser,
    make_steps,
    optimiser_arrays,
    tried_xla,
    why_untried,
    with_xla_as_before,
    xla_facts,
    xla_of,
)

_FEW = 3


class ReplicaComparison:
    """Comparison of the replicas' copies of variables, by two numbers of each, computed on the devices."""

    def __init__(self, devices: Devices, variables: Sequence[Any]) -> None:
        """Compare `variables`: Keras variables of which each replica has a copy."""
        self._devices, self._variables = devices, list(variables)
        self._run = tf.function(lambda: devices.strategy.run(self._fingerprints), autograph=False)
        self._said, self._names = False, list[str]()

    def check(self, step: int) -> str:
        """Compare the replicas; return a warning, once, if GPU models are mixed and differ; else empty text.

        Different models sum in different orders, so the last bits of their statistics differ permanently.

        Raises:
            TrainingError: replicas on devices of one model differ.
        """
        if self._devices.replicas == 1 or self._devices.central:
            return ""
        local = [np.asarray(own) for own in self._devices.strategy.experimental_local_results(self._run())]
        fingerprints, self._names, models = self._of_all(local)
        if all(np.array_equal(own, fingerprints[0]) for own in fingerprints):
            return ""
        got = self._differences_text(fingerprints)
        what = f"step {step}: expected the same weights and state on all replicas, got {got}"
        if len(models) == 1:
            raise TrainingError(
                f"{what}; a device computes or stores wrongly (nvidia-smi -q -d ECC), nothing was written: "
                "go on from the last checkpoint with --resume, without that device"
            )
        line = "" if self._said else f"warning: {what}; so do {' and '.join(sorted(models))} side by side"
        self._said = True
        return line

    def _of_all(self, local: list[NDArray[np.int64]]) -> tuple[list[NDArray[np.int64]], list[str], set[str]]:
        """Return fingerprints and names of all replicas of all workers, and their device models."""
        workers, used = self._devices.workers, self._devices.used
        if workers.count == 1:
            return local, list(self._devices.names), {device.model for device in used}
        own = {"found": [a.tolist() for a in local], "models": [device.model for device in used]}
        answers = [json.loads(text) for text in workers.exchange(json.dumps(own))]
        names = [f"{n} of {workers.name(i)}" for i in range(workers.count) for n in self._devices.names]
        fingerprints = [np.array(a, np.int64) for one in answers for a in one["found"]]
        return fingerprints, names, {model for one in answers for model in one["models"]}

    def _differences_text(self, fingerprints: Sequence[NDArray[np.int64]]) -> str:
        """Return text on the replicas and variables that differ from the first replica's."""
        others = [r for r, own in enumerate(fingerprints) if not np.array_equal(own, fingerprints[0])]
        rows = np.unique(
            np.concatenate([np.flatnonzero((fingerprints[r] != fingerprints[0]).any(axis=1)) for r in others])
        )
        names = ", ".join(self._variables[row].path for row in rows[:_FEW])
        more = f" and {len(rows) - _FEW} more" if len(rows) > _FEW else ""
        on = ", ".join(self._names[r] for r in others)
        return f"others on {on} than on {self._names[0]} for {names}{more}"

    def _fingerprints(self) -> Any:
        return tf.stack([_fingerprint(tf.convert_to_tensor(v.value)) for v in self._variables])


def _fingerprint(values: Any) -> Any:
    """Return (2,) int64: Σ b and Σ b² modulo 2^64 over the values' bits b as whole numbers.

    The first detects any single difference, both together several. Positions are not included: their indices
    would come from the GPU's host.
    """
    if values.dtype.is_floating:
        values = tf.bitcast(values, {2: tf.int16, 4: tf.int32, 8: tf.int64}[values.dtype.size])
    bits = tf.cast(values, tf.int64)
    return tf.stack([tf.reduce_sum(bits), tf.reduce_sum(bits * bits)])


class Learner:
    """Model, optimiser and weight average of a training, on its devices.

    Attributes:
        model: Keras model; `averaged`: its weight average, or None.
        steps: compiled function (stack, count) of several steps, for the weights trained now (`enter`).
        frozen: True while the late weights are frozen; None before `enter`.
    """

    def __init__(
        self,
        run: Run,
        devices: Devices,
        steps: int,
        class_weights: Sequence[float] | None,
        class_shares: Sequence[float],
    ) -> None:
        """Build model, optimiser, weight average and step.

        Args:
            class_weights, class_shares: (K,), as in `losses.segmentation_loss`.
        """
        recipe, strategy = run.recipe, devices.strategy
        self._run, self._devices = run, devices
        greet_in_half_floats()
        keras.utils.set_random_seed(recipe.seed)
        with strategy.scope():
            self.model = self._build()
            self.pace = pace_of(stages_of(self.model, recipe.model), recipe.training)
            self.optimiser = build_optimiser(recipe.training, self.model, steps, pace=self.pace)
            averaged = self._build() if recipe.training.ema else None
        self.averaged = None
        if averaged is not None:
            self.averaged = AveragedWeights(strategy, self.model, averaged, recipe.training.ema)
        batch = recipe.training.global_batch
        self.parts = StepParts(
            strategy,
            self.model,
            self.optimiser,
            segmentation_loss(recipe.loss, class_weights, batch, class_shares),
            run.normalisation,
            recipe.sampling.min_pixels,
            recipe.training.accumulate,
            self.averaged,
            xla_of(recipe, devices),
            batch,
        )
        holders = (self.model, self.optimiser, *([] if averaged is None else [averaged]))
        self._agreement = ReplicaComparison(devices, [v for each in holders for v in each.variables])
        self.steps: Any = None
        self.frozen: bool | None = None
        self._shown, self._on_host = averaged or self.model, None
        if devices.predicts_on_host:
            with tf.device("CPU:0"):
                self._on_host = self._build()
        self._predict = on_replicas(self._on_host or self._shown, run.normalisation, devices)
        self._rate = Schedule(recipe.training, steps)

    def _build(self) -> Any:
        recipe = self._run.recipe
        form = recipe.model, self._run.band_count, len(self._run.classes)
        return build_model(*form, dtype=recipe.training.precision, synchronised=True)

    @property
    def computed_on(self) -> dict[str, str]:
        """Facts that the last bits depend on: devices, their settings, the choice of `xla: auto`."""
        facts = self._devices.computed_on | xla_facts(self._run.recipe.training, self.parts)
        return facts | _settings_of_bits(self._run.recipe.distribution, self._devices)

    def describe(self) -> list[str]:
        """Return lines on the learning rate, the stages' rates, the micro-batches, and XLA left out."""
        recipe = self._run.recipe
        schedule = describe_schedule(recipe.training, self._rate.steps)
        untried = why_untried(recipe, self._devices) if recipe.training.xla == "auto" else ""
        xla = f"xla: auto: not compiled, {untried}" if untried else ""
        parts = self.pace.describe(), describe_accumulation(recipe, self._devices), xla
        return [*filter(None, (schedule, *parts))]

    def disagreement(self, step: int) -> str:
        """Compare the replicas' copies after a step, as `ReplicaComparison.check` does."""
        return self._agreement.check(step)

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1, including steps skipped by a loss scale."""
        with tf.device("CPU:0"):  # not on a device that computes
            return float(self._rate(step - 1))

    # ---------------------------------------------------------------------------------- steps

    def enter(self, epoch: int) -> bool:
        """Build the steps for the weights that train in an epoch; return False if already in use."""
        frozen = self.pace.is_frozen(epoch)
        if frozen == self.frozen:
            return False
        set_trained(self.model, self.pace, epoch)
        self.steps, self.frozen = make_steps(self.parts), frozen
        return True

    def choose_xla(self, stack: Any) -> str:
        """Try XLA once on a step's batch if the recipe leaves it open; return a line on the choice."""
        if self.parts.xla is not None:
            return ""
        timed = not self._run.recipe.distribution.deterministic
        self.parts, line = tried_xla(self.parts, stack, timed=timed)
        self.steps = make_steps(self.parts)
        return line

    def predictor(self) -> Predictor:
        """Return the prediction function for validation, with the current weights."""
        if self._on_host is not None:
            assign_weights(self._on_host, weight_arrays(self._shown, "model"), "model")
        return self._predict

    # ---------------------------------------------------------------------------------- state

    def resume(self, start: Checkpoint) -> None:
        """Restore weights, optimiser and the choice of XLA from a checkpoint.

        Raises:
            CheckpointError: the checkpoint does not fit.
        """
        try:
            self.assign(start.arrays)
        except (KeyError, ValueError) as error:
            raise CheckpointError(start.path, f"does not fit this recipe's optimiser ({error})") from None
        self.parts = with_xla_as_before(self.parts, start.facts, self._devices)

    def assign(self, arrays: Mapping[str, Any]) -> None:
        """Restore weights, their average and the optimiser from arrays of `state`."""
        assign_weights(self.model, arrays, "model")
        assign_optimiser(self.optimiser, dict(arrays))
        if self.averaged is not None:
            assign_weights(self.averaged.model, arrays, "ema")
            self.averaged.assign(dict(arrays))

    def state(self) -> dict[str, Any]:
        """Return all trained state as named arrays: weights, their average, the optimiser's state."""
        arrays = weight_arrays(self.model, "model")
        if self.averaged is not None:
            arrays |= weight_arrays(self.averaged.model, "ema") | self.averaged.arrays()
        return {**arrays, **optimiser_arrays(self.optimiser)}


def _settings_of_bits(config: DistributionConfig, devices: Devices) -> dict[str, str]:
    """Return the settings that a resumed run may change and that its bits depend on, on these devices."""
    on_cpus = all(name.startswith("CPU") for name in devices.names)
    names = [*([] if on_cpus else ["deterministic"]), *(["cross_device"] if devices.replicas > 1 else [])]
    return {f"distribution.{name}": str(getattr(config, name)).lower() for name in names}


def describe_accumulation(recipe: Recipe, devices: Devices) -> str:
    """Return text on gradient accumulation under this recipe; empty text without it."""
    training = recipe.training
    if training.accumulate == 1:
        return ""
    at_once = training.global_batch // training.accumulate
    each = sorted({tiles // training.accumulate for tiles in devices.replica_tiles(training.global_batch)})
    line = (
        f"accumulation: {training.accumulate} micro-batches of {at_once} tiles, "
        f"{' to '.join(map(str, (each[0], each[-1])[: len(each)]))} on "
        f"each device, make a step of {training.global_batch}"
    )
    if recipe.model.batch_norms(training.freeze_norms):
        line += (
            f"; BatchNorm's statistics are those of {at_once} tiles, all else is of {training.global_batch}"
        )
    return line
