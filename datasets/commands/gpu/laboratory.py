"""Laboratory of equivalence: runs rows of the matrix on one and several devices, with equal weights."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.model.normalisation import Normalisation
from segmenter.model.stages import Pace, pace_of

from .matrix import (
    BANDS,
    BATCH,
    CLASSES,
    DRAWS,
    KINDS,
    MODEL,
    SHARES,
    STEPS,
    Result,
    Row,
    batch,
    difference,
)
from .replicas import strategy_of, unequal_copies

LEARNING_RATE = 0.05
CLIPS = {"norm": 0.01, "value": 0.001}


@dataclass(frozen=True)
class Setting:
    """Key of a compiled step: replicas, clipping and model."""

    replicas: int
    clip: str = ""
    depth: int = MODEL.depth
    paced: bool = False

    @classmethod
    def of(cls, row: Row, replicas: int) -> Setting:
        """Return the setting of a row."""
        return cls(replicas, row.clip, row.depth, row.paced)


class Laboratory:
    """Runs rows of the matrix; caches compiled steps and results.

    Args:
        strategies: makes the strategy for a number of replicas, once for each number.
    """

    def __init__(
        self,
        rows: Mapping[str, Row],
        strategies: Callable[[int], Any] = strategy_of,
        dtype: str = "float64",
        steps: int = STEPS,
    ) -> None:
        self.rows, self.strategies, self.dtype, self._steps = dict(rows), strategies, dtype, steps
        self._trainers: dict[Setting, Trainer] = {}
        self._results: dict[tuple[str, Setting, int], Result] = {}

    def exact(self, name: str, replicas: int, rounded: int = 0) -> Result:
        """Return the result of a row as the program computes it.

        Args:
            rounded: seed that rounds each initial weight up or down by one bit; 0: no rounding.
        """
        return self.result(name, Setting.of(self.rows[name], replicas), rounded)

    def differences(self, name: str, replicas: int, *, rounded: int = 0) -> dict[str, float]:
        """Return the difference from one device, for each kind of tensor."""
        many, one = (self.exact(name, number, rounded) for number in (replicas, 1))
        return {kind: difference(many, one, kind) for kind in KINDS}

    def roundings(self, name: str) -> dict[str, float]:
        """Return, per kind, the largest effect of rounding initial weights on one device, in three draws."""
        one, drawn = self.exact(name, 1), [self.exact(name, 1, draw) for draw in DRAWS]
        return {kind: max(difference(other, one, kind) for other in drawn) for kind in KINDS}

    def unequal_copies(self) -> int:
        """Count the trained variables whose copies differ between replicas in any bit."""
        return sum(trainer.unequal_copies() for trainer in self._trainers.values())

    def result(self, name: str, setting: Setting, rounded: int = 0) -> Result:
        """Return the result of a row, computed by the trainer of a setting."""
        if (name, setting, rounded) not in self._results:
            if setting not in self._trainers:
                self._trainers[setting] = self.trainer(setting)
            run = self._trainers[setting].run(self.rows[name], self._steps, rounded)
            self._results[name, setting, rounded] = run
        return self._results[name, setting, rounded]

    def trainer(self, setting: Setting) -> Trainer:
        """Make the trainer of all rows that share one compiled step."""
        rows = [row for row in self.rows.values() if Setting.of(row, setting.replicas) == setting]
        return Trainer(setting, rows, self.strategies(setting.replicas), self.dtype)


class Trainer:
    """A model with its compiled step; each run starts from the same weights."""

    def __init__(self, setting: Setting, rows: Sequence[Row], strategy: Any, dtype: str) -> None:
        from segmenter.training.optimiser import set_trained
        from segmenter.training.step import StepParts, make_step

        self.setting, self._strategy = setting, strategy
        start = _initial_weights(setting.depth)
        with self._strategy.scope():
            self._model = _model(setting.depth, self.synchronised, dtype)
            self._optimiser = self.make_optimiser(self._model)
        if (pace := _pace(self._model, setting)) is not None:
            set_trained(self._model, pace, 0)
        self._start = list(zip(self._model.variables, start, strict=True))
        self._start += [(v, v.numpy()) for v in self._optimiser.variables]
        normalisation = Normalisation.of([120.0] * BANDS, [60.0] * BANDS)
        self._factors, loss = self._switchable(rows, dtype)
        self._step = make_step(
            StepParts(self._strategy, self._model, self._optimiser, loss, normalisation, 8)
        )
        self.compile()

    @property
    def synchronised(self) -> bool:
        """True if BatchNorm is over the global batch."""
        return self.setting.replicas > 1

    def make_loss(self, row: Row) -> Callable[[Any, Any], Any]:
        """Make the loss of a row."""
        from segmenter.training.losses import segmentation_loss

        return segmentation_loss(row.loss, row.weights, row.global_batch, SHARES)

    def make_optimiser(self, model: Any) -> Any:
        """Make the optimiser, with the setting's clipping."""
        from segmenter.training.optimiser import build_optimiser

        norm, value = (limit if self.setting.clip == kind else 0.0 for kind, limit in CLIPS.items())
        config = TrainingConfig(
            global_batch=BATCH,
            optimizer="sgd",
            learning_rate=LEARNING_RATE,
            weight_decay=0,
            schedule="constant",
            warmup=0,
            clip_norm=norm,
            clip_value=value,
        )
        return build_optimiser(config, model, STEPS, pace=_pace(model, self.setting))

    def compile(self) -> None:
        """Compile the step for batches of any size."""
        self._step.get_concrete_function(self._any_size())

    def run(self, row: Row, steps: int, rounded: int) -> Result:
        """Run `steps` steps on the row's batch."""
        for term, factor in self._factors.items():
            factor.assign(float(term == _term(row)))
        for variable, value in self._start:
            variable.assign(value)
        if rounded:
            self._round(rounded)
        parts = self._dealt(batch(row))
        before = self._trainable()
        loss, held = (np.asarray(part) for part in self._step(parts)[:2])
        gradients = [a - b for a, b in zip(before, self._trainable(), strict=True)]
        for _ in range(steps - 1):
            self._step(parts)
        assert self._step.experimental_get_tracing_count() == 1, "a batch was compiled anew"
        statistics = [v.numpy() for v in self._model.non_trainable_variables if "moving" in v.path]
        tensors = ([loss], gradients, self._trainable(), statistics, [held[0]])
        return dict(zip((*KINDS, "held"), tensors, strict=True))

    def unequal_copies(self) -> int:
        return unequal_copies(self._strategy, [*self._model.variables, *self._optimiser.variables])

    def _switchable(
        self, rows: Sequence[Row], dtype: str
    ) -> tuple[dict[_Term, Any], Callable[[Any, Any], Any]]:
        """Return a 0/1 factor for each different loss of the rows, and the sum of losses times factors."""
        import tensorflow as tf

        terms = {_term(row): self.make_loss(row) for row in rows}
        factors = {term: tf.Variable(0.0, dtype=dtype, trainable=False) for term in terms}

        def loss(labels: Any, logits: Any) -> Any:
            return tf.add_n([factors[term] * share(labels, logits) for term, share in terms.items()])

        return factors, loss

    def _round(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for variable in self._model.trainable_variables:
            value = variable.numpy()
            ends = np.where(rng.random(value.shape) < 0.5, -np.inf, np.inf).astype(value.dtype)
            variable.assign(np.nextafter(value, ends))

    def _trainable(self) -> list[NDArray[Any]]:
        return [v.numpy() for v in self._model.trainable_variables]

    def _dealt(self, content: Sequence[NDArray[Any]]) -> Any:
        """Give each replica its contiguous block, as tf.distribute does: the last ones may get nothing."""
        import tensorflow as tf

        if self.setting.replicas == 1:
            return tuple(tf.constant(part) for part in content)
        block = -(-len(content[0]) // self.setting.replicas)

        def own(context: Any) -> Any:
            first = context.replica_id_in_sync_group * block
            return tuple(tf.constant(part[first : first + block]) for part in content)

        return self._strategy.experimental_distribute_values_from_function(own)

    def _any_size(self) -> Any:
        """Return the type of a distributed batch with any number of images on each replica."""
        import tensorflow as tf

        full, short = (self._dealt(batch(Row(images=images))) for images in (BATCH, 1))
        types = [
            (tf.type_spec_from_value(a), tf.type_spec_from_value(b)) for a, b in zip(full, short, strict=True)
        ]
        return tuple(a.most_specific_common_supertype([b]) for a, b in types)


def _model(depth: int, synchronised: bool, dtype: str = "float64") -> Any:
    from segmenter.model.building import build_model

    config = MODEL.model_copy(update={"depth": depth})
    return build_model(config, BANDS, CLASSES, dtype=dtype, synchronised=synchronised)


@functools.cache
def _initial_weights(depth: int) -> list[NDArray[Any]]:
    """Return initial weights, drawn once: setting the seed makes TensorFlow recompile everything."""
    import keras

    keras.utils.set_random_seed(1)
    return [v.numpy() for v in _model(depth, False).variables]


_Term = tuple[LossConfig, int | None]


def _term(row: Row) -> _Term:
    return row.loss, row.global_batch


def _pace(model: Any, setting: Setting) -> Pace | None:
    """Return the pace that freezes the encoder until the second epoch; None if not `paced`."""
    if not setting.paced:
        return None
    from segmenter.model.building import stages_of

    config = TrainingConfig(epochs=2, freeze_encoder=1, rates={"head": 0.5})
    return pace_of(stages_of(model, UNetConfig(depth=setting.depth)), config)
