"""Pairs of encoder and decoder, and the laws' measures of a pair."""

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np

from segmenter.config.models import NOT_ATROUS, NOT_RESIDUAL, EncoderDecoderConfig
from segmenter.config.recipe import LossConfig
from tests.helpers.laboratory import KINDS, difference
from tests.helpers.small_training import SGD, Training, batches

SIDE, STEPS = 64, 3
ENCODERS: tuple[str, ...] = get_args(EncoderDecoderConfig.model_fields["encoder"].annotation)
DECODERS: tuple[str, ...] = get_args(EncoderDecoderConfig.model_fields["decoder"].annotation)


def pair(encoder: str, decoder: str, **options: Any) -> EncoderDecoderConfig:
    """A narrow decoder on an encoder, with all randomness and atrous convolutions where it has them."""
    if decoder == "deeplabv3plus" and encoder not in NOT_ATROUS:
        options = {"output_stride": 16, **options}
    if encoder not in NOT_RESIDUAL:
        options = {"drop_path": 0.2, **options}
    if decoder == "deeplabv3plus":
        options = {"image_pooling": True, **options}
    return EncoderDecoderConfig(
        kind="encoder_decoder", encoder=encoder, decoder=decoder, decoder_width=8, dropout=0.1, **options
    )


RATE = 0.0005
"""Learning rate. At 0.005 these random networks grow a rounding a hundred times a step, here ten to twenty:
`studies.encoder_equivalence --growth` measures it on one device."""


class PairLaboratory:
    """Trainings of one pair on one device and on several; the step on one device is compiled once."""

    def __init__(self, config: EncoderDecoderConfig) -> None:
        self._config, self._stack = config, batches(STEPS, SIDE)
        self._training = SGD.model_copy(update={"learning_rate": RATE})
        self._one = Training(config, LossConfig(), training=self._training)
        self._at_two: dict[str, Any] = {}
        self._first = self._run(self._one)

    def differences(self, replicas: int) -> dict[str, float]:
        """Kind → largest difference of R replicas from one device, relative to the largest of its kind."""
        many = self._run(Training(self._config, LossConfig(), replicas, training=self._training))
        return {kind: difference(many, self._first, kind) for kind in KINDS}

    def resumed(self) -> tuple[list[bytes], list[bytes]]:
        """Weights after all steps in one go, and after two, a checkpoint, loss of all state, the rest."""
        from segmenter.runs.checkpoints import assign_weights
        from segmenter.training.step import assign_optimiser

        model, optimiser = self._one.model, self._one.optimiser
        straight = [v.numpy().tobytes() for v in model.variables]
        for variable in self._state():
            variable.assign(np.ones(variable.shape))
        assign_weights(model, self._at_two, "model")
        assign_optimiser(optimiser, self._at_two)
        self._one.each(tuple(part[2:] for part in self._stack))
        return straight, [v.numpy().tobytes() for v in model.variables]

    def wide_sums(self) -> list[str]:
        """Sums of more than two tensors in the step, which TensorFlow takes in any order."""
        batch = self._one.devices.distribute(tuple(part[0] for part in self._stack))
        graph = self._one.step.get_concrete_function(batch).graph.as_graph_def()
        nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
        data = {n.name: [i for i in n.input if not i.startswith("^")] for n in nodes if n.op == "AddN"}
        return [name for name, inputs in data.items() if len(inputs) > 2]

    def _state(self) -> list[Any]:
        return [*self._one.model.variables, *self._one.optimiser.variables]

    def _run(self, training: Training) -> Mapping[str, list[Any]]:
        """Losses, gradients of the first step, weights and statistics after the last."""
        from segmenter.runs.checkpoints import weight_arrays
        from segmenter.training.step import optimiser_arrays

        before = _trainable(training)
        losses, after = training.each(tuple(part[:1] for part in self._stack)), _trainable(training)
        losses += training.each(tuple(part[1:2] for part in self._stack))
        if training is self._one:
            self._at_two = weight_arrays(training.model, "model") | optimiser_arrays(training.optimiser)
        losses += training.each(tuple(part[2:] for part in self._stack))
        moving = [v.numpy() for v in training.model.variables if "moving" in v.path]
        gradients = [a - b for a, b in zip(before, after, strict=True)]
        found = ([np.array(losses)], gradients, _trainable(training), moving)
        return dict(zip(KINDS, found, strict=True))


def _trainable(training: Training) -> list[Any]:
    return [v.numpy() for v in training.model.trainable_variables]
