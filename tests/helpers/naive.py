"""Matrix of equivalence, with the naive variants of training from which its rows tell the program."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

from segmenter.config.recipe import LossConfig
from segmenter.grid.labels import IGNORE
from tests.helpers.laboratory import (
    CLIPS,
    EMPHASES,
    KINDS,
    LEARNING_RATE,
    SHARES,
    SUM,
    WEIGHTS,
    Laboratory,
    Row,
    Setting,
    Trainer,
    difference,
    only,
)


class KerasUpdate:
    """An optimiser of Keras as a step takes one: it clips, and looks for an overflow, before it sums.

    With `step.sum_over_replicas` patched away, that is.
    """

    def __init__(self, optimiser: Any, model: Any) -> None:
        optimiser.build(model.trainable_variables)
        self.own = optimiser
        self.dynamic_scale = getattr(optimiser, "dynamic_scale", None)
        self.scale_loss = optimiser.scale_loss

    @property
    def variables(self) -> list[Any]:
        return list(self.own.variables)

    def flat(self, gradients: Any, trained: Any) -> Any:
        return gradients

    def apply(self, gradients: Any, trained: Any, then: Any = None) -> Any:
        import tensorflow as tf

        self.own.apply(gradients, trained)
        return tf.constant(True)


SEEN = 1e-4
"""A naive variant has to be off by more than that."""
Naive = Literal["", "means", "norm", "clip"]
NAIVE: Mapping[Naive, str] = {
    "means": "mean of the replicas' own losses",
    "norm": "local BatchNorm",
    "clip": "clipped before the sum",
}


@dataclass(frozen=True)
class Guarded(Row):
    """A row with the naive variant that it guards against."""

    naive: Naive = "means"


ROWS = {
    "cross-entropy, nothing ignored": Guarded(naive="norm"),
    "cross-entropy": Guarded(lopsided=True),
    "cross-entropy per pixel": Guarded(LossConfig(normalisation="per_pixel"), True),
    "class weights": Guarded(LossConfig(class_weights=WEIGHTS), True),
    "class weights per pixel, nothing ignored": Guarded(
        LossConfig(class_weights=WEIGHTS, normalisation="per_pixel")
    ),
    "class weights per pixel": Guarded(LossConfig(class_weights=WEIGHTS, normalisation="per_pixel"), True),
    "label smoothing": Guarded(LossConfig(label_smoothing=0.1), True),
    "focal": Guarded(only("focal"), True),
    "focal per pixel": Guarded(only("focal", normalisation="per_pixel"), True),
    "Dice, nothing ignored": Guarded(only("dice")),
    "Dice": Guarded(only("dice"), True),
    "Jaccard": Guarded(only("jaccard"), True),
    "Tversky": Guarded(only("tversky"), True),
    "Lovász": Guarded(only("lovasz"), True),
    "sum of all": Guarded(SUM, True),
    "OHEM": Guarded(LossConfig(ohem=0.25), True),
    "logit adjustment": Guarded(LossConfig(logit_adjustment=1.0), True),
    "boundary": Guarded(LossConfig(boundary=10.0, boundary_width=2.0), True, blocks=True),
    "these per pixel, with weights": Guarded(EMPHASES, True, blocks=True),
    "1 image, these per pixel": Guarded(EMPHASES, images=1, blocks=True),
    "5 of 8 images": Guarded(images=5),
    "5 of 8 images per pixel": Guarded(LossConfig(normalisation="per_pixel"), True, images=5),
    "5 of 8 images, sum of all": Guarded(SUM, images=5),
    "1 image": Guarded(images=1),
    "1 image, sum of all": Guarded(SUM, images=1),
    "clipped by norm": Guarded(lopsided=True, clip="norm", naive="clip"),
    "clipped by value": Guarded(lopsided=True, clip="value", naive="clip"),
}
"""One factor at a time."""


@dataclass(frozen=True)
class NaiveSetting(Setting):
    """Key of a compiled step with a mistake."""

    naive: Naive = ""


class NaiveLaboratory(Laboratory):
    """Runs rows as the program does, and with the mistake that each guards against."""

    def naive(self, name: str, replicas: int) -> dict[str, float]:
        """Kind → the difference of the naive variant from one device, which is exact."""
        row = self.rows[name]
        assert isinstance(row, Guarded)
        setting = NaiveSetting(replicas, row.clip, row.depth, row.paced, row.naive)
        many, one = self.result(name, setting), self.exact(name, 1)
        return {kind: difference(many, one, kind) for kind in KINDS}

    def trainer(self, setting: Setting) -> Trainer:
        if not isinstance(setting, NaiveSetting):
            return super().trainer(setting)
        compiled_for = setting.clip, setting.depth, setting.paced, setting.naive
        rows = [row for row in self.rows.values() if isinstance(row, Guarded)]
        rows = [row for row in rows if (row.clip, row.depth, row.paced, row.naive) == compiled_for]
        return NaiveTrainer(setting, rows, self.strategies(setting.replicas), self.dtype)


class NaiveTrainer(Trainer):
    """A trainer with a mistake."""

    setting: NaiveSetting

    @property
    def synchronised(self) -> bool:
        return super().synchronised and self.setting.naive != "norm"

    def make_loss(self, row: Row) -> Callable[[Any, Any], Any]:
        if self.setting.naive != "means":
            return super().make_loss(row)
        return mean_of_means(row.loss, row.weights, row.global_batch, SHARES)

    def make_optimiser(self, model: Any) -> Any:
        if self.setting.naive != "clip":
            return super().make_optimiser(model)
        import keras

        norm, value = (limit if self.setting.clip == kind else None for kind, limit in CLIPS.items())
        return KerasUpdate(
            keras.optimizers.SGD(LEARNING_RATE, 0.9, nesterov=True, global_clipnorm=norm, clipvalue=value),
            model,
        )

    def compile(self) -> None:
        """The trap: Keras' own optimiser, which clips a replica's gradients and then sums them."""
        if self.setting.naive != "clip":
            super().compile()
            return
        with mock.patch("segmenter.training.step.sum_over_replicas", lambda gradients: gradients):
            super().compile()


def mean_of_means(
    config: LossConfig, weights: Any, batch: int | None, shares: Any
) -> Callable[[Any, Any], Any]:
    """The trap: each replica's own loss, of its own images that have a valid pixel, over the replicas."""
    import tensorflow as tf

    from segmenter.training.losses import segmentation_loss

    alone = segmentation_loss(config, weights, None, shares)

    def loss(labels: Any, logits: Any) -> Any:
        labelled = tf.reduce_any(labels != IGNORE, axis=(1, 2))
        replicas = tf.distribute.get_replica_context().num_replicas_in_sync
        with mock.patch("segmenter.training.losses.replicas", return_value=1):
            own = alone(tf.boolean_mask(labels, labelled), tf.boolean_mask(logits, labelled))
        return own / replicas

    return loss
