"""Pairs of encoder and decoder, a small encoder for tests of decoders, and the laws' measures of a pair."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, get_args

import numpy as np
import pytest

from segmenter.config.models import NOT_ATROUS, NOT_RESIDUAL, EncoderDecoderConfig
from segmenter.config.recipe import LossConfig
from segmenter.model.architectures import Block
from tests.helpers.equivalence_matrix import KINDS, difference
from tests.helpers.small_training import SGD, Training, batches

SIDE, STEPS = 64, 3
ENCODERS: tuple[str, ...] = get_args(EncoderDecoderConfig.model_fields["encoder"].annotation)
DECODERS: tuple[str, ...] = get_args(EncoderDecoderConfig.model_fields["decoder"].annotation)
SMALL = "mobilenet_v2"
"""Name under which `small_encoder` stands while a test uses it."""


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


def small_network(*, include_top: bool, weights: None, input_shape: tuple[Any, ...]) -> Any:
    """A network as `keras.applications` has them, of five strided convolutions and two residual blocks."""
    import keras

    layers = keras.layers
    image = keras.Input(input_shape)
    x = image
    for level, width in enumerate((4, 4, 6, 6, 8), 1):
        x = layers.ZeroPadding2D(((0, 1), (0, 1)))(x)
        x = layers.Conv2D(width, 3, strides=2, use_bias=False, name=f"b{level}a_conv")(x)
        x = layers.BatchNormalization(name=f"b{level}a_bn")(x)
        x = layers.ReLU(6.0, name=f"b{level}a_relu")(x)
        if level == 4:
            y = layers.DepthwiseConv2D(3, padding="same", name=f"b{level}b_depthwise")(x)
            y = layers.BatchNormalization(name=f"b{level}b_project")(y)
            y = layers.Dropout(0.5, noise_shape=(None, 1, 1, 1), name=f"b{level}b_drop")(y)
            shortcut = layers.Conv2D(width, 1, name=f"b{level}b_0_bn")(x)
            x = layers.Add(name=f"b{level}b_add")([shortcut, y])
            x = layers.ReLU(name=f"b{level}b_out")(x)
            # a third user of the feature, as in a ResNet
            x = layers.Add(name=f"b{level}c_add")([x, layers.Conv2D(width, 1, name=f"b{level}c_conv")(x)])
    return keras.Model(image, x)


def small_encoder() -> Any:
    """`small_network` as an encoder: for tests of decoders, as it compiles in a tenth of the time."""
    from segmenter.model.encoders.keras_applications import Source

    return Source(small_network, ("b1a_relu", "b2a_relu", "b3a_relu", "b4b_out", "b5a_relu"))


def smallest_of_keras(encoder: str) -> Any:
    """An encoder of `keras.applications` with hardly any blocks, by Keras' own code for the family."""
    from keras.src.applications import convnext, densenet, efficientnet_v2

    from segmenter.model.encoders.keras_applications import SOURCES, Source

    if encoder == "densenet121":
        return replace(SOURCES[encoder], make=partial(densenet.DenseNet, [1, 1, 2, 1]))
    if encoder == "convnext_tiny":
        sizes = ([1, 1, 2, 1], [4, 4, 6, 8])
        return replace(SOURCES[encoder], make=partial(convnext.ConvNeXt, *sizes, name=encoder))
    stages = [
        stage | {"num_repeat": 2 if number == 3 else 1}
        for number, stage in enumerate(efficientnet_v2.DEFAULT_BLOCKS_ARGS["efficientnetv2-b0"])
    ]
    make = partial(efficientnet_v2.EfficientNetV2, 0.25, 1.0, 224, blocks_args=stages)
    ends = ("block2a_project_bn", "block3a_project_bn", "block4b_add", "block6a_project_bn")
    return Source(make, ("block1a_project_activation", *ends), {"include_preprocessing": False})


_STEMS = {"resnet": "RESNET_STEM", "efficientnet_lite": "LITE_STEM"}
"""Family of `model.encoders` → its module's name for the channels of the first convolution."""


def narrow(family: str, monkeypatch: pytest.MonkeyPatch, by: int = 16) -> None:
    """Encoders of a family with a sixteenth of the channels and a block a stage, in the second two.

    The family's own code builds them, so that they are of it as the large ones are.
    """
    encoder = import_module(f"segmenter.model.encoders.{family}")
    monkeypatch.setattr(encoder, _STEMS[family], getattr(encoder, _STEMS[family]) // by)
    monkeypatch.setattr(encoder, "blocks", _fewer(encoder.blocks, by))


def _fewer(blocks: Callable[[str, int], list[Block]], by: int) -> Callable[[str, int], list[Block]]:
    def fewer(encoder: str, output_stride: int) -> list[Block]:
        every = blocks(encoder, output_stride)
        ends = {block.name.partition("_")[0] for block in every if block.feature}
        kept = [b for b in every if b.name.endswith("_block1") or b.name == "stage2_block2"]
        last = {block.name.partition("_")[0]: block.name for block in kept}
        found, inputs = [], kept[0].inputs // by
        for block in kept:
            stage, outputs = block.name.partition("_")[0], max(2, block.outputs // by)
            width = max(2, inputs * block.width // block.inputs)
            feature = stage in ends and last[stage] == block.name
            found.append(replace(block, inputs=inputs, width=width, outputs=outputs, feature=feature))
            inputs = outputs
        return found

    return fewer


RATE = 0.0005
"""Learning rate. At 0.005 these random networks grow a rounding a hundred times a step, here ten to twenty:
`benchmarks.encoder_equivalence --growth` measures it on one device."""


class PairLaboratory:
    """Trainings of one pair on one device and on several; the step on one device is compiled once."""

    def __init__(self, config: EncoderDecoderConfig, rate: float = RATE) -> None:
        self._config, self._stack = config, batches(STEPS, SIDE)
        self._training = SGD.model_copy(update={"learning_rate": rate})
        self._one = Training(config, LossConfig(), training=self._training)
        self._start = [variable.numpy() for variable in self._state()]
        self._at_two: dict[str, Any] = {}
        self._first = self._run(self._one)

    def differences(self, replicas: int) -> dict[str, float]:
        """Kind → largest difference of R replicas from one device, relative to the largest of its kind."""
        many = self._run(Training(self._config, LossConfig(), replicas, training=self._training))
        return {kind: difference(many, self._first, kind) for kind in KINDS}

    def resumed(self) -> tuple[list[bytes], list[bytes]]:
        """Weights after all steps in one go, and after two, a checkpoint, loss of all state, the rest."""
        from segmenter.runs.weights import assign_weights
        from segmenter.training.step import assign_optimiser

        model, optimiser = self._one.model, self._one.optimiser
        straight = [v.numpy().tobytes() for v in model.variables]
        for variable in self._state():
            variable.assign(np.ones(variable.shape))
        assign_weights(model, self._at_two, "model")
        assign_optimiser(optimiser, self._at_two)
        self._one.each(tuple(part[2:] for part in self._stack))
        return straight, [v.numpy().tobytes() for v in model.variables]

    def grown(self, by: float) -> list[float]:
        """What start weights that are off by `by`, relatively and at random, come to after each step.

        Both trainings are of one device: it is the network's own doing, not that of replicas. Relative to
        the largest weight.
        """
        rng = np.random.default_rng(0)
        found: list[list[Mapping[str, list[Any]]]] = []
        for off in (0.0, by):
            for variable, start in zip(self._state(), self._start, strict=True):
                variable.assign(start)
            for variable in self._one.model.trainable_variables:
                variable.assign(variable.numpy() * (1 + off * rng.standard_normal(variable.shape)))
            found.append([])
            for step in range(STEPS):
                self._one.each(tuple(part[step : step + 1] for part in self._stack))
                found[-1].append({"weights": _trainable(self._one)})
        return [difference(other, straight, "weights") for straight, other in zip(*found, strict=True)]

    def wide_sums(self) -> list[str]:
        """Sums of more than two tensors in the step, which TensorFlow takes in any order."""
        batch = self._one.devices.distributed(tuple(part[0] for part in self._stack))
        graph = self._one.step.get_concrete_function(batch).graph.as_graph_def()
        nodes = [*graph.node, *(node for called in graph.library.function for node in called.node_def)]
        data = {n.name: [i for i in n.input if not i.startswith("^")] for n in nodes if n.op == "AddN"}
        return [name for name, inputs in data.items() if len(inputs) > 2]

    def _state(self) -> list[Any]:
        return [*self._one.model.variables, *self._one.optimiser.variables]

    def _run(self, training: Training) -> Mapping[str, list[Any]]:
        """Losses, gradients of the first step, weights and statistics after the last."""
        from segmenter.runs.weights import weight_arrays
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
