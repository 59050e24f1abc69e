"""Blocks of EfficientNet-Lite and ResNet, with names and shapes of their weights; without TensorFlow.

The law of this module: `units` lists the weights of the encoders that `model.encoders` builds from the same
blocks, with our layers' names and the names in the original PyTorch model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

LITE_STEM = 32
_LITE = {"efficientnet_lite0": (1.0, 1.0), "efficientnet_lite1": (1.0, 1.1), "efficientnet_lite2": (1.1, 1.2)}
"""Width and depth of each as multiples of lite0's."""
_LITE_STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip
"""Blocks, kernel, stride, expansion, channels of each stage
(github.com/tensorflow/tpu, models/official/efficientnet/lite)."""
RESNET_STEM = 64
_RESNET = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}
FAMILIES = {**dict.fromkeys(_LITE, "efficientnet_lite"), **dict.fromkeys(_RESNET, "resnet")}
"""Encoder → its family, of those that this module knows."""


@dataclass(frozen=True)
class Block:
    """A residual block, or one of the same structure without a shortcut.

    Attributes:
        bottleneck: True if it lies between two 1×1 convolutions (ResNet: else a second 3×3 follows).
        feature: True if its output is the last at its stride.
        later: dilation of a second one, applied after the stride.
    """

    name: str
    torch: str
    kernel: int
    stride: int
    inputs: int
    width: int
    outputs: int
    bottleneck: bool
    feature: bool = False
    dilation: int = 1
    later: int = 1


@dataclass(frozen=True)
class ConvUnit:
    """A convolution without bias, followed by BatchNorm.

    Attributes:
        depthwise: True if each channel is convolved separately.
    """

    conv: str
    norm: str
    torch_conv: str
    torch_norm: str
    kernel: int
    inputs: int
    outputs: int
    depthwise: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape of the kernel, in Keras' order."""
        last = (self.inputs, 1) if self.depthwise else (self.inputs, self.outputs)
        return (self.kernel, self.kernel, *last)


def blocks(encoder: str, output_stride: int = 32) -> list[Block]:
    """Return the blocks of an encoder in order; strides beyond the output stride become dilations.

    A convolution whose stride was removed keeps the previous dilation, so that values on the coarse grid
    equal the original's.
    """
    raw = list(_lite(encoder) if encoder in _LITE else _resnet(encoder))
    stride, dilation, chain = 2 if encoder in _LITE else 4, 1, []
    for block in raw:
        own = dilation
        if block.stride > 1 and stride >= output_stride:
            dilation *= block.stride
            block = replace(block, stride=1)
        stride *= block.stride
        chain.append(replace(block, dilation=own, later=dilation))
    return chain


def units(encoder: str, bands: int = 3) -> list[ConvUnit]:
    """Return all convolutions of an encoder with their BatchNorms, in order; the first takes `bands`."""
    lite = encoder in _LITE
    stem = ("_conv_stem", "_bn0", 3, bands, LITE_STEM) if lite else ("conv1", "bn1", 7, bands, RESNET_STEM)
    chain = [ConvUnit("stem_conv", "stem_norm", *stem)]
    for block in blocks(encoder):
        chain += _lite_units(block) if lite else _resnet_units(block)
    return chain


def _lite(encoder: str) -> Iterator[Block]:
    width, depth = _LITE[encoder]
    inputs, number = LITE_STEM, 0
    for stage, (count, kernel, stride, expansion, channels) in enumerate(_LITE_STAGES, start=1):
        outputs = _round_channels(channels * width)
        ends = stage in (1, 7)  # neither stem nor head are repeated more often: "fix_head_stem"
        count = count if ends else math.ceil(count * depth)
        for i in range(count):
            yield Block(
                f"stage{stage}_block{i + 1}",
                f"_blocks.{number}",
                kernel,
                1 if i else stride,
                inputs,
                inputs * expansion,
                outputs,
                expansion > 1,
                feature=i == count - 1 and stage in (1, 2, 3, 5, 7),
            )
            inputs, number = outputs, number + 1


def _round_channels(channels: float) -> int:
    """Round to a multiple of 8 that is at most a tenth smaller."""
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _lite_units(block: Block) -> Iterator[ConvUnit]:
    name, torch, width = block.name, block.torch, block.width
    if block.bottleneck:
        yield ConvUnit(
            f"{name}_expand_conv", f"{name}_expand_norm", f"{torch}._expand_conv", f"{torch}._bn0",
            1, block.inputs, width,
        )  # fmt: skip
    yield ConvUnit(
        f"{name}_depthwise_conv", f"{name}_depthwise_norm", f"{torch}._depthwise_conv", f"{torch}._bn1",
        block.kernel, width, width, depthwise=True,
    )  # fmt: skip
    yield ConvUnit(
        f"{name}_project_conv", f"{name}_project_norm", f"{torch}._project_conv", f"{torch}._bn2",
        1, width, block.outputs,
    )  # fmt: skip


def _resnet(encoder: str) -> Iterator[Block]:
    bottleneck = encoder == "resnet50"
    inputs = RESNET_STEM
    for stage, count in enumerate(_RESNET[encoder], start=1):
        width = 64 * 2 ** (stage - 1)
        outputs = width * 4 if bottleneck else width
        for i in range(count):
            stride = 2 if stage > 1 and i == 0 else 1
            name, torch = f"stage{stage}_block{i + 1}", f"layer{stage}.{i}"
            last = i == count - 1
            yield Block(name, torch, 3, stride, inputs, width, outputs, bottleneck, feature=last)
            inputs = outputs


def _resnet_units(block: Block) -> Iterator[ConvUnit]:
    inputs, width, outputs = block.inputs, block.width, block.outputs
    if block.bottleneck:
        sizes = [(1, inputs, width), (3, width, width), (1, width, outputs)]
    else:
        sizes = [(3, inputs, width), (3, width, outputs)]
    for number, size in enumerate(sizes, start=1):
        names = (f"{block.name}_conv{number}", f"{block.name}_norm{number}")
        yield ConvUnit(*names, f"{block.torch}.conv{number}", f"{block.torch}.bn{number}", *size)
    if has_projection(block):
        names = (f"{block.name}_shortcut_conv", f"{block.name}_shortcut_norm")
        torch = (f"{block.torch}.downsample.0", f"{block.torch}.downsample.1")
        yield ConvUnit(*names, *torch, 1, inputs, outputs)


def has_projection(block: Block) -> bool:
    """Return True if the shortcut of a ResNet block has a convolution, because shapes differ."""
    first_of_stage = block.name.endswith("_block1")
    return first_of_stage and (block.inputs != block.outputs or not block.name.startswith("stage1_"))
