"""Laboratory of equivalence: runs rows of the matrix on one and several devices, with equal weights.

A row of the matrix is a loss, a batch and a clipping. Compiling a step for four replicas takes far longer
than running it, so one compiled step has the losses of many rows, multiplied by 1 for the current row and 0
for others, and takes batches of any size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets.commands.gpu.bench import unequal_copies
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.grid.labels import IGNORE
from segmenter.model.normalisation import Normalisation
from segmenter.model.stages import Pace, pace_of


@functools.cache
def strategy_of(replicas: int) -> Any:
    """Return one strategy for each number of logical CPU devices in a process."""
    import tensorflow as tf

    from segmenter.devices.strategy import mirrored_strategy

    if replicas == 1:
        return tf.distribute.OneDeviceStrategy("CPU:0")
    return mirrored_strategy([f"CPU:{i}" for i in range(replicas)])


BATCH, SIDE, BANDS, CLASSES, STEPS = 8, 32, 3, 4, 5
MODEL = UNetConfig(width=2, max_width=8)
"""The default U-Net's topology, narrow; 2 × 2 at the deepest level: of one, BatchNorm would divide noise."""
WEIGHTS = (1.0, 3.0, 0.5, 2.0)
SHARES = (0.5, 0.01, 0.2, 0.29)
"""Shares of the classes in the training pixels, for logit adjustment."""
LIMIT = 1e-10
"""Exact is a difference up to that."""
DRAWS = (1, 2, 3)
"""Seeds that say which weights are rounded up, which down."""
KINDS = ("loss", "gradients", "weights", "statistics")

Result = Mapping[str, Sequence[NDArray[Any]]]
"""Kind → tensors: loss and gradients of the first step, weights and BatchNorm statistics after the last.

Beside the kinds that are compared, `held`: the tiles of the global batch that hold each class.
"""


@dataclass(frozen=True)
class Row:
    """One row of the matrix.

    Attributes:
        lopsided: True: all pixels of images 1 to 3 and almost all of image 0 are ignored, so that of four
            replicas with two images each, the first has almost no labels and the second none.
        images: images of the global batch; with fewer than `BATCH`, some replicas get fewer or none.
        clip: `norm`, `value` or nothing.
        blocks: True: labels are blocks of 8 × 8 pixels; else every pixel has a random one.
        paced: True: the encoder is frozen, and the head trains at half the decoder's rate.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    lopsided: bool = False
    images: int = BATCH
    clip: str = ""
    blocks: bool = False
    depth: int = MODEL.depth
    paced: bool = False

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Class weights of the loss."""
        return None if self.loss.class_weights == "none" else WEIGHTS

    @property
    def global_batch(self) -> int | None:
        """Global batch for the loss; None if a batch may be short."""
        return BATCH if self.images == BATCH else None


def only(term: str, **options: Any) -> LossConfig:
    """Return a loss configuration with a single term."""
    return LossConfig(**{"cross_entropy": 0.0, term: 1.0, **options})


_ALL = dict.fromkeys(("cross_entropy", "focal", "dice", "jaccard", "tversky", "lovasz"), 0.5)
SUM = LossConfig(**_ALL, class_weights=WEIGHTS, label_smoothing=0.1)
EMPHASES = LossConfig(
    focal=0.5,
    dice=0.5,
    ohem=0.25,
    ohem_threshold=0.2,
    logit_adjustment=0.7,
    boundary=5.0,
    boundary_width=2.0,
    class_weights=WEIGHTS,
    normalisation="per_pixel",
)
ROWS = {
    "cross-entropy, nothing ignored": Row(),
    "sum of all": Row(SUM, True),
    "these per pixel, with weights": Row(EMPHASES, True, blocks=True),
    "clipped by norm": Row(lopsided=True, clip="norm"),
}
"""The laws' tests have one for each factor beside these."""


def batch(row: Row) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]:
    """Return image, valid and label of a row's global batch."""
    rng = np.random.default_rng(7)
    image = rng.integers(0, 256, (BATCH, SIDE, SIDE, BANDS), np.uint8)
    valid = rng.random((BATCH, SIDE, SIDE)) > 0.1
    label = rng.integers(0, CLASSES, (BATCH, SIDE, SIDE), np.uint8)
    if row.blocks:
        label = label[:, ::8, ::8].repeat(8, axis=1).repeat(8, axis=2)
    if row.lopsided:
        label[0, 1:] = IGNORE
        label[1:4] = IGNORE
    return image[: row.images], valid[: row.images], label[: row.images]


def difference(a: Result, b: Result, kind: str) -> float:
    """Return the largest |a − b| over all tensors of a kind, relative to the largest |b|; NaN if any is."""
    largest = np.max([np.abs(x).max() for x in b[kind]])
    return float(np.max([np.abs(x - y).max() for x, y in zip(a[kind], b[kind], strict=True)]) / largest)


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
