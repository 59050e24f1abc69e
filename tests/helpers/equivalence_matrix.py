"""Rows of the matrix of `equivalence`, the naive variant of each, and the difference of two runs.

A row is a loss, a batch and a clipping. Compiling a step for four replicas takes far longer than running it:
one compiled step knows the losses of many rows, each times a factor that is 1 for the row's and else 0, and
takes batches of any size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.labels import IGNORE
from segmenter.model.normalisation import Normalisation
from segmenter.model.stages import Pace, pace_of
from tests.helpers.keras_update import KerasUpdate
from tests.helpers.replicas import strategy_of as strategy_of
from tests.helpers.replicas import unequal_copies

BATCH, SIDE, BANDS, CLASSES, STEPS = 8, 32, 3, 4, 5
MODEL = UNetConfig(width=2, max_width=8)
"""The default U-Net's topology, narrow.

At 32 pixels its deepest level has 2 × 2: a single one would not vary, and BatchNorm would divide noise.
"""
WEIGHTS = (1.0, 3.0, 0.5, 2.0)
SHARES = (0.5, 0.01, 0.2, 0.29)
"""Of the classes in the training pixels, for logit adjustment."""
LIMIT, SEEN = 1e-10, 1e-4
"""Exact is a difference up to the first; a naive variant has to be off by more than the second."""
KINDS = ("loss", "gradients", "weights", "statistics")
LEARNING_RATE, CLIP_NORM, CLIP_VALUE = 0.05, 0.01, 0.001

Naive = Literal["", "means", "norm", "clip"]
NAIVE: Mapping[Naive, str] = {
    "means": "mean of the replicas' own losses",
    "norm": "local BatchNorm",
    "clip": "clipped before the sum",
}

Result = Mapping[str, Sequence[NDArray[Any]]]
"""Kind → tensors: loss and gradients of the first step, weights and BatchNorm statistics after the last.

Beside the kinds that are compared, `held`: the tiles of the global batch that hold each class.
"""


@dataclass(frozen=True)
class Row:
    """One row of the matrix.

    Attributes:
        loss: the recipe's section.
        lopsided: ignored are all pixels of images 1 to 3 and almost all of image 0, else none: of four
            replicas with two images each, the first has almost nothing to learn from, the second nothing.
        images: in the global batch; fewer than `BATCH` leave replicas with fewer or none.
        clip: `norm`, `value` or nothing.
        naive: which variant it guards against, of `NAIVE`.
        blocks: labels are blocks of 8 × 8 pixels, else every pixel has its own.
        depth: of the model.
        paced: the encoder is frozen, and the head trains at half the rate of the decoder.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    lopsided: bool = False
    images: int = BATCH
    clip: str = ""
    naive: Naive = "means"
    blocks: bool = False
    depth: int = MODEL.depth
    paced: bool = False

    @property
    def weights(self) -> tuple[float, ...] | None:
        """The class weights."""
        return None if self.loss.class_weights == "none" else WEIGHTS

    @property
    def global_batch(self) -> int | None:
        """As the loss gets it: None where a batch may be short."""
        return BATCH if self.images == BATCH else None


def only(term: str, **options: Any) -> LossConfig:
    """One term."""
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
    "cross-entropy, nothing ignored": Row(naive="norm"),
    "cross-entropy": Row(lopsided=True),
    "cross-entropy per pixel": Row(LossConfig(normalisation="per_pixel"), True),
    "class weights": Row(LossConfig(class_weights=WEIGHTS), True),
    "class weights per pixel, nothing ignored": Row(
        LossConfig(class_weights=WEIGHTS, normalisation="per_pixel")
    ),
    "class weights per pixel": Row(LossConfig(class_weights=WEIGHTS, normalisation="per_pixel"), True),
    "label smoothing": Row(LossConfig(label_smoothing=0.1), True),
    "focal": Row(only("focal"), True),
    "focal per pixel": Row(only("focal", normalisation="per_pixel"), True),
    "Dice, nothing ignored": Row(only("dice")),
    "Dice": Row(only("dice"), True),
    "Jaccard": Row(only("jaccard"), True),
    "Tversky": Row(only("tversky"), True),
    "Lovász": Row(only("lovasz"), True),
    "sum of all": Row(SUM, True),
    "OHEM": Row(LossConfig(ohem=0.25), True),
    "logit adjustment": Row(LossConfig(logit_adjustment=1.0), True),
    "boundary": Row(LossConfig(boundary=10.0, boundary_width=2.0), True, blocks=True),
    "these per pixel, with weights": Row(EMPHASES, True, blocks=True),
    "1 image, these per pixel": Row(EMPHASES, images=1, blocks=True),
    "5 of 8 images": Row(images=5),
    "5 of 8 images per pixel": Row(LossConfig(normalisation="per_pixel"), True, images=5),
    "5 of 8 images, sum of all": Row(SUM, images=5),
    "1 image": Row(images=1),
    "1 image, sum of all": Row(SUM, images=1),
    "clipped by norm": Row(lopsided=True, clip="norm", naive="clip"),
    "clipped by value": Row(lopsided=True, clip="value", naive="clip"),
}
"""One factor at a time."""


def batch(row: Row) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]:
    """Image, valid and label of a row's global batch."""
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
    """Largest |a − b| over all tensors of a kind, relative to the largest |b|; NaN if any is."""
    largest = np.max([np.abs(x).max() for x in b[kind]])
    return float(np.max([np.abs(x - y).max() for x, y in zip(a[kind], b[kind], strict=True)]) / largest)


@dataclass(frozen=True)
class Setting:
    """What a step is compiled for: the replicas, the clipping, and what it does naively."""

    replicas: int
    clip: str = ""
    naive: Naive = ""
    depth: int = MODEL.depth
    paced: bool = False


class Laboratory:
    """Runs rows; keeps what it has compiled and computed.

    Args:
        strategies: makes the strategy of so many replicas, once for each number.
        dtype: that all is computed in.
    """

    def __init__(
        self, rows: Mapping[str, Row], strategies: Callable[[int], Any] = strategy_of, dtype: str = "float64"
    ) -> None:
        self._rows, self._strategies, self._dtype = dict(rows), strategies, dtype
        self._trainers: dict[Setting, _Trainer] = {}
        self._results: dict[tuple[str, Setting], Result] = {}

    def exact(self, name: str, replicas: int) -> Result:
        """A row as the program computes it."""
        row = self._rows[name]
        return self._result(name, Setting(replicas, row.clip, depth=row.depth, paced=row.paced))

    def naive(self, name: str, replicas: int) -> Result:
        """A row with the mistake that it guards against."""
        row = self._rows[name]
        return self._result(name, Setting(replicas, row.clip, row.naive, row.depth, row.paced))

    def differences(self, name: str, replicas: int, *, naive: bool = False) -> dict[str, float]:
        """Kind → the difference from one device, which is never naive."""
        many = self.naive(name, replicas) if naive else self.exact(name, replicas)
        one = self.exact(name, 1)
        return {kind: difference(many, one, kind) for kind in KINDS}

    def unequal_copies(self) -> int:
        """Variables, of all that was trained, that are not the same to the bit on all of its replicas."""
        return sum(trainer.unequal_copies() for trainer in self._trainers.values())

    def _result(self, name: str, setting: Setting) -> Result:
        if (name, setting) not in self._results:
            if setting not in self._trainers:
                compiled_for = setting.clip, setting.depth, setting.paced
                rows = [r for r in self._rows.values() if (r.clip, r.depth, r.paced) == compiled_for]
                rows = [r for r in rows if setting.naive in ("", r.naive)]
                strategy = self._strategies(setting.replicas)
                self._trainers[setting] = _Trainer(setting, rows, strategy, self._dtype)
            self._results[name, setting] = self._trainers[setting].run(self._rows[name])
        return self._results[name, setting]


class _Trainer:
    """A model with its compiled step, which starts each run from the same weights."""

    def __init__(self, setting: Setting, rows: Sequence[Row], strategy: Any, dtype: str) -> None:
        from segmenter.training.freezing import set_trained
        from segmenter.training.step import StepParts, make_step

        self._setting = setting
        self._strategy = strategy
        start = _initial_weights(setting.depth)
        with self._strategy.scope():
            synchronised = setting.replicas > 1 and setting.naive != "norm"
            self._model = _model(setting.depth, synchronised, dtype)
            self._optimiser = _optimiser(setting, self._model)
        if (pace := _pace(self._model, setting)) is not None:
            set_trained(self._model, pace, 0)
        self._start = list(zip(self._model.variables, start, strict=True))
        self._start += [(v, v.numpy()) for v in self._optimiser.variables]
        normalisation = Normalisation.of([120.0] * BANDS, [60.0] * BANDS)
        self._factors, loss = _switchable(rows, setting.naive == "means", dtype)
        self._step = make_step(
            StepParts(self._strategy, self._model, self._optimiser, loss, normalisation, 8)
        )
        with _clipping_before_the_sum() if setting.naive == "clip" else nullcontext():
            self._step.get_concrete_function(self._any_size())

    def run(self, row: Row) -> Result:
        """`STEPS` steps on the row's batch."""
        for term, factor in self._factors.items():
            factor.assign(float(term == _term(row)))
        for variable, value in self._start:
            variable.assign(value)
        parts = self._dealt(batch(row))
        before = self._trainable()
        loss, held = (np.asarray(part) for part in self._step(parts)[:2])
        gradients = [a - b for a, b in zip(before, self._trainable(), strict=True)]
        for _ in range(STEPS - 1):
            self._step(parts)
        assert self._step.experimental_get_tracing_count() == 1, "a batch was compiled anew"
        statistics = [v.numpy() for v in self._model.non_trainable_variables if "moving" in v.path]
        found = ([loss], gradients, self._trainable(), statistics, [held[0]])
        return dict(zip((*KINDS, "held"), found, strict=True))

    def unequal_copies(self) -> int:
        return unequal_copies(self._strategy, [*self._model.variables, *self._optimiser.variables])

    def _trainable(self) -> list[NDArray[Any]]:
        return [v.numpy() for v in self._model.trainable_variables]

    def _dealt(self, content: Sequence[NDArray[Any]]) -> Any:
        """Each replica's contiguous block, as tf.distribute deals a batch: the last ones may get nothing."""
        import tensorflow as tf

        if self._setting.replicas == 1:
            return tuple(tf.constant(part) for part in content)
        block = -(-len(content[0]) // self._setting.replicas)

        def own(context: Any) -> Any:
            first = context.replica_id_in_sync_group * block
            return tuple(tf.constant(part[first : first + block]) for part in content)

        return self._strategy.experimental_distribute_values_from_function(own)

    def _any_size(self) -> Any:
        """The type of a dealt batch with any number of images on each replica."""
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
    """Drawn once: setting the seed makes TensorFlow compile anew all that it has compiled."""
    import keras

    keras.utils.set_random_seed(1)
    return [v.numpy() for v in _model(depth, False).variables]


_Term = tuple[LossConfig, int | None]


def _term(row: Row) -> _Term:
    return row.loss, row.global_batch


def _switchable(
    rows: Sequence[Row], naive: bool, dtype: str
) -> tuple[dict[_Term, Any], Callable[[Any, Any], Any]]:
    """A factor for each different loss of the rows, and the sum of all, each times its factor."""
    import tensorflow as tf

    from segmenter.training.losses import segmentation_loss

    make = _mean_of_means if naive else segmentation_loss
    terms = {_term(row): make(row.loss, row.weights, row.global_batch, SHARES) for row in rows}
    factors = {term: tf.Variable(0.0, dtype=dtype, trainable=False) for term in terms}

    def loss(labels: Any, logits: Any) -> Any:
        return tf.add_n([factors[term] * share(labels, logits) for term, share in terms.items()])

    return factors, loss


def _optimiser(setting: Setting, model: Any) -> Any:
    import keras

    from segmenter.training.optimisers import build_optimiser

    norm, value = (limit if setting.clip == kind else 0.0 for kind, limit in _CLIPS.items())
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
    if setting.naive != "clip":
        return build_optimiser(config, model, STEPS, pace=_pace(model, setting))
    plain = keras.optimizers.SGD(
        LEARNING_RATE, 0.9, nesterov=True, global_clipnorm=norm or None, clipvalue=value or None
    )
    return KerasUpdate(plain, model)


def _pace(model: Any, setting: Setting) -> Pace | None:
    """The encoder waits for the second epoch."""
    if not setting.paced:
        return None
    from segmenter.model.building import stages_of

    config = TrainingConfig(epochs=2, freeze_encoder=1, rates={"head": 0.5})
    return pace_of(stages_of(model, UNetConfig(depth=setting.depth)), config)


_CLIPS = {"norm": CLIP_NORM, "value": CLIP_VALUE}


@contextmanager
def _clipping_before_the_sum() -> Iterator[None]:
    """The trap: Keras' own optimiser, which clips a replica's gradients and then sums them."""
    with mock.patch("segmenter.training.step.sum_over_replicas", lambda gradients: gradients):
        yield


def _mean_of_means(config: LossConfig, weights: Any, _: int | None, shares: Any) -> Callable[[Any, Any], Any]:
    """The trap: each replica's own loss, of its own images that have a valid pixel, over the replicas."""
    import tensorflow as tf

    from segmenter.training.losses import segmentation_loss

    alone = segmentation_loss(config, weights, None, shares)

    def loss(labels: Any, logits: Any) -> Any:
        labelled = tf.reduce_any(labels != IGNORE, axis=(1, 2))
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        with mock.patch("segmenter.training.losses.replicas.replicas", return_value=1):
            own = alone(tf.boolean_mask(labels, labelled), tf.boolean_mask(logits, labelled))
        return own / replicas

    return loss
