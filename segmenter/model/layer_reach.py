"""Reach of Keras' layers along an axis: the input pixels that an output pixel depends on, and sizes.

Each kind of layer is one row of a table; a layer not in it has an unknown reach, which is never guessed. A
foreign class does not match by its name alone. Keras is imported when the first of its layers is looked up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any, Protocol

from segmenter.model.graph import Call

Interval = tuple[int, int]
_CHANNELS = (-1, 3)
_OPERATORS = {"Add", "Subtract", "Multiply", "Divide", "TrueDivide", "Maximum", "Minimum"}
"""Operations that `x + y` becomes in a functional model. ConvNeXt's blocks end so."""


class GlobalLayerError(ValueError):
    """The model has a layer that uses the whole image, or one of unknown reach."""


@dataclass(frozen=True)
class Extent:
    """Pixels of a tensor along an axis: N / scale + offset, for N image pixels, a multiple of the stride."""

    scale: Fraction = Fraction(1)
    offset: int = 0


class Reach(Protocol):
    """Interface: input pixels that a layer uses along an axis."""

    def size(self, given: Extent) -> Extent:
        """Return the extent of the output for an input of extent `given`."""

    def needed(self, given: Extent, output: Interval) -> Interval:
        """Return the first and last input pixel that the output interval (first, last) depends on."""


@dataclass(frozen=True)
class Sliding:
    """A window that slides over the pixels: convolutions, pools, padding, cropping, single pixels.

    Attributes:
        span: distance from the window's first pixel to its last.
        stride: pixels from one window to the next.
        padding: pixels before and after, negative for cropping; None: TensorFlow's `same`.
    """

    span: int = 0
    stride: int = 1
    padding: tuple[int, int] | None = (0, 0)

    def size(self, given: Extent) -> Extent:
        """Return ⌊(n + padding − span − 1) / stride⌋ + 1; `same`: ⌈n / stride⌉."""
        if self.padding is None:
            return Extent(given.scale * self.stride, -(-given.offset // self.stride))
        left = given.offset + sum(self.padding) - self.span - 1
        return Extent(given.scale * self.stride, left // self.stride + 1)

    def needed(self, given: Extent, output: Interval) -> Interval:
        """Return the inputs i · stride − before … + span of output pixel i."""
        before = self._before(given)
        return output[0] * self.stride - before, output[1] * self.stride - before + self.span

    def _before(self, given: Extent) -> int:
        """Return the padding before; for `same` half of ⌈n / stride⌉ · stride − n + span + 1 − stride."""
        if self.padding is not None:
            return self.padding[0]
        return max(-given.offset % self.stride + self.span + 1 - self.stride, 0) // 2


@dataclass(frozen=True)
class Transposed:
    """Transposed convolution: input pixel i contributes to outputs i · stride − before … + span.

    Attributes:
        more: output pixels beyond stride × input pixels.
    """

    span: int
    stride: int
    before: int
    more: int

    def size(self, given: Extent) -> Extent:
        """Return n · stride + more."""
        return Extent(given.scale / self.stride, given.offset * self.stride + self.more)

    def needed(self, given: Extent, output: Interval) -> Interval:
        """Return the inputs that contribute to the outputs; first > last if there are none."""
        first, last = output
        return -((self.span - first - self.before) // self.stride), (last + self.before) // self.stride


@dataclass(frozen=True)
class Enlarging:
    """`UpSampling2D`: pixels repeated, or bilinear with half-pixel centres."""

    factor: int
    bilinear: bool

    def size(self, given: Extent) -> Extent:
        """Return n · factor."""
        return Extent(given.scale / self.factor, given.offset * self.factor)

    def needed(self, given: Extent, output: Interval) -> Interval:
        """Return the inputs around the source position (i + ½) / factor − ½ of bilinear interpolation."""
        first, last = output
        if not self.bilinear:
            return first // self.factor, last // self.factor
        twice = 2 * self.factor
        return (2 * first + 1 - self.factor) // twice, -((self.factor - 2 * last - 1) // twice)


def reach(call: Call, axis: int) -> Reach:
    """Return the reach of a call along rows (0) or columns (1).

    Raises:
        GlobalLayerError: the reach is unlimited or unknown; the message names the layer.
    """
    if type(call.operation) in _operators():
        return _operator(call, axis)
    is_known = type(call.operation) in _layers()
    if is_known and call.kind in _WHOLE:
        raise GlobalLayerError(f"{call} looks at the whole image")
    if not is_known:
        raise GlobalLayerError(f"{call} is of a kind whose reach is not known")
    if getattr(call.operation, "data_format", None) == "channels_first":
        raise GlobalLayerError(f"{call} has its channels first: its reach is not known")
    if call.training and call.kind in _OTHERWISE_IN_TRAINING:
        raise GlobalLayerError(f"{call} computes as in training: it depends on the whole batch or on chance")
    activation = getattr(call.operation, "activation", None)
    if activation is not None and not _pointwise_function(activation):
        raise GlobalLayerError(f"{call} has an activation of its own, whose reach is not known")
    return _KINDS[call.kind](call, axis)


def takes_several(call: Call) -> bool:
    """Return True if a call joins tensors pixel by pixel, so its inputs may differ in reach."""
    return call.kind in _JOINING | _OPERATORS


@cache
def _layers() -> frozenset[type]:
    """Return the layer classes in the tables below: Keras' public layers, ConvNeXt's two, and ours."""
    import keras
    from keras.src.applications import convnext  # its layers have no public name

    from segmenter.model import batchnorm, dropout, layers
    from segmenter.model.decoders import pooling

    ours = batchnorm.SyncBatchNorm, dropout.GlobalDropout, dropout.DropPath, pooling.PartMeans
    own = (*ours, layers.Share, layers.ChannelNorm, layers.LayerScale, layers.BilinearUpSampling)
    borrowed = convnext.LayerScale, convnext.StochasticDepth
    names = (_KINDS.keys() | _WHOLE) - {each.__name__ for each in (*own, *borrowed)}
    return frozenset({getattr(keras.layers, name) for name in names} | {*own, *borrowed})


@cache
def _operators() -> frozenset[type]:
    """Return the classes of `keras.ops` behind operators such as `x + y`."""
    from keras.src.ops import numpy as operators  # these classes have no public name

    return frozenset(getattr(operators, name) for name in _OPERATORS)


def _pointwise_function(activation: Any) -> bool:
    """Return True for Keras' own activation functions, which work on single pixels."""
    import keras

    pointwise = keras.layers.ReLU, keras.layers.LeakyReLU, keras.layers.ELU
    return type(activation) in pointwise or activation in vars(keras.activations).values()


def _pixelwise(call: Call, axis: int) -> Reach:
    return Sliding()


def _operator(call: Call, axis: int) -> Reach:
    """Return the reach of an operator (`x + y`, `keras.ops.add`) on tensors or a number."""
    tensors = {id(tensor) for tensor in call.node.input_tensors}
    operands = (*call.node.arguments.args, *call.node.arguments.kwargs.values())
    if not all(isinstance(each, int | float) or id(each) in tensors for each in operands):
        raise GlobalLayerError(f"{call} has an operand whose reach is not known")
    return Sliding()


def _of_channels(call: Call, axis: int) -> Reach:
    """Return the reach of a layer with an axis, which normalises or joins along it."""
    axes = call.operation.axis
    axes = (axes,) if isinstance(axes, int) else tuple(axes or ())
    if not axes or not all(each in _CHANNELS for each in axes):
        raise GlobalLayerError(f"{call} works along the axes {axes}, not along the channels alone")
    return Sliding()


def _convolution(call: Call, axis: int) -> Reach:
    layer = call.operation
    span = (layer.kernel_size[axis] - 1) * _of_axis(layer.dilation_rate, axis)
    return Sliding(span, _of_axis(layer.strides, axis), _padding(call))


def _pooling(call: Call, axis: int) -> Reach:
    layer = call.operation
    return Sliding(_of_axis(layer.pool_size, axis) - 1, _of_axis(layer.strides, axis), _padding(call))


def _padding(call: Call) -> tuple[int, int] | None:
    if call.operation.padding not in ("same", "valid"):
        raise GlobalLayerError(f"{call} pads by {call.operation.padding!r}: its reach is not known")
    return None if call.operation.padding == "same" else (0, 0)


def _zeros_around(call: Call, axis: int) -> Reach:
    before, after = call.operation.padding[axis]
    return Sliding(padding=(before, after))


def _cropping(call: Call, axis: int) -> Reach:
    before, after = call.operation.cropping[axis]
    return Sliding(padding=(-before, -after))


def _transposed(call: Call, axis: int) -> Reach:
    """Return the reach of a transposed convolution, with sizes by Keras' own function.

    The function: `keras.src.backend.common.backend_utils.compute_conv_transpose_output_shape`. TensorFlow
    computes the gradient of a convolution from the output's size to the input's: with `same`, that
    convolution pads ⌊(span + 1 − stride − more) / 2⌋ before.
    """
    layer, same = call.operation, _padding(call) is None
    kernel, stride = layer.kernel_size[axis], _of_axis(layer.strides, axis)
    span = (kernel - 1) * _of_axis(layer.dilation_rate, axis)
    extra = layer.output_padding
    if extra is None:
        more = 0 if same else max(span + 1 - stride, 0)
    else:
        more = ((span + 1) % 2 if same else span + 1) - stride + _of_axis(extra, axis)
    return Transposed(span, stride, max(span + 1 - stride - more, 0) // 2 if same else 0, more)


def _enlarging(call: Call, axis: int) -> Reach:
    layer = call.operation
    factor, kind = _of_axis(layer.size, axis), layer.interpolation
    if kind not in ("nearest", "bilinear"):
        raise GlobalLayerError(f"{call} enlarges by {kind!r}: its reach is not known")
    if kind == "bilinear" and factor & (factor - 1):
        # TensorFlow computes (i + ½) / factor − ½ in float32, which is exact for powers of two alone.
        raise GlobalLayerError(f"{call} enlarges bilinearly by {factor}: its rounding depends on the place")
    return Enlarging(factor, kind == "bilinear")


def _of_axis(value: Any, axis: int) -> int:
    return int(value if isinstance(value, int) else value[axis])


_DROPPING = {
    *("Dropout", "SpatialDropout2D", "GaussianDropout", "GaussianNoise", "AlphaDropout"),
    *("GlobalDropout", "DropPath", "StochasticDepth"),
}
_BATCH_NORMS = {"BatchNormalization", "SyncBatchNorm"}
_OTHERWISE_IN_TRAINING = _DROPPING | _BATCH_NORMS
_JOINING = {"Add", "Average", "Maximum", "Minimum", "Multiply", "Subtract", "Concatenate"}
_PIXELWISE = {
    *("Activation", "ReLU", "LeakyReLU", "ELU", "Identity", "ActivityRegularization", "LayerScale", "Share"),
    "Dense",  # of a pixel's channels, however many axes are before them
    *_DROPPING,
    *(_JOINING - {"Concatenate"}),
}
_WHOLE = {
    *("GlobalAveragePooling2D", "GlobalMaxPooling2D", "AdaptiveAveragePooling2D", "AdaptiveMaxPooling2D"),
    *("Flatten", "Resizing", "CenterCrop", "GroupNormalization", "PartMeans"),
    *("Attention", "AdditiveAttention", "MultiHeadAttention", "GroupQueryAttention"),
}
_KINDS: dict[str, Callable[[Call, int], Reach]] = {
    **dict.fromkeys(_PIXELWISE, _pixelwise),
    **dict.fromkeys(_BATCH_NORMS, _of_channels),
    "Concatenate": _of_channels,
    "LayerNormalization": _of_channels,
    "ChannelNorm": _of_channels,
    "Softmax": _of_channels,
    "Conv2D": _convolution,
    "DepthwiseConv2D": _convolution,
    "SeparableConv2D": _convolution,
    "MaxPooling2D": _pooling,
    "AveragePooling2D": _pooling,
    "ZeroPadding2D": _zeros_around,
    "Cropping2D": _cropping,
    "Conv2DTranspose": _transposed,
    "UpSampling2D": _enlarging,
    "BilinearUpSampling": _enlarging,
}
