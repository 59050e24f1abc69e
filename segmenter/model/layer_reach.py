"""Reach of Keras' layers along an axis: the input pixels that an output pixel depends on, and sizes.

Each kind of layer is one row of a table; a layer not in it has an unknown reach, which is never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from segmenter.model.graph import LayerCall

Interval = tuple[int, int]


class GlobalLayerError(ValueError):
    """The model has a layer that uses the whole image, or one of unknown reach."""


@dataclass(frozen=True)
class Extent:
    """Length of a tensor's axis, given the image's length N, a multiple of the stride: N / scale + offset."""

    scale: Fraction = Fraction(1)
    offset: int = 0


class Reach(Protocol):
    """Interface: input pixels that a layer uses along an axis."""

    def size(self, given: Extent) -> Extent:
        """Return the extent of the output for an input of extent `given`."""

    def input_interval(self, given: Extent, output: Interval) -> Interval:
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

    def input_interval(self, given: Extent, output: Interval) -> Interval:
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
    """Same-padded transposed convolution: input i contributes to outputs i · stride − before … + span."""

    span: int
    stride: int

    def size(self, given: Extent) -> Extent:
        """Return n · stride."""
        return Extent(given.scale / self.stride, given.offset * self.stride)

    def input_interval(self, given: Extent, output: Interval) -> Interval:
        """Return the inputs that contribute to the outputs; first > last if there are none."""
        first, last = output
        before = max(self.span + 1 - self.stride, 0) // 2
        return -((self.span - first - before) // self.stride), (last + before) // self.stride


@dataclass(frozen=True)
class Enlarging:
    """`UpSampling2D`: pixels repeated, or bilinear with half-pixel centres."""

    factor: int
    bilinear: bool

    def size(self, given: Extent) -> Extent:
        """Return n · factor."""
        return Extent(given.scale / self.factor, given.offset * self.factor)

    def input_interval(self, given: Extent, output: Interval) -> Interval:
        """Return the inputs around the source position (i + ½) / factor − ½ of bilinear interpolation."""
        first, last = output
        if not self.bilinear:
            return first // self.factor, last // self.factor
        twice = 2 * self.factor
        return (2 * first + 1 - self.factor) // twice, -((self.factor - 2 * last - 1) // twice)


def reach(call: LayerCall, axis: int) -> Reach:
    """Return the reach of a call along rows (0) or columns (1).

    Raises:
        GlobalLayerError: the reach is unlimited or unknown; the message names the layer.
    """
    if call.kind in _WHOLE:
        raise GlobalLayerError(f"{call} looks at the whole image")
    if call.kind not in _KINDS:
        raise GlobalLayerError(f"{call} is of a kind whose reach is not known")
    return _KINDS[call.kind](call, axis)


def _pixelwise(call: LayerCall, axis: int) -> Reach:
    return Sliding()


def _convolution(call: LayerCall, axis: int) -> Reach:
    layer = call.operation
    span = (layer.kernel_size[axis] - 1) * layer.dilation_rate[axis]
    return Sliding(span, layer.strides[axis], None if layer.padding == "same" else (0, 0))


def _pooling(call: LayerCall, axis: int) -> Reach:
    layer = call.operation
    padding = None if layer.padding == "same" else (0, 0)
    return Sliding(layer.pool_size[axis] - 1, layer.strides[axis], padding)


def _zeros_around(call: LayerCall, axis: int) -> Reach:
    before, after = call.operation.padding[axis]
    return Sliding(padding=(before, after))


def _transposed_reach(call: LayerCall, axis: int) -> Reach:
    layer = call.operation
    if layer.padding != "same" or layer.output_padding is not None or max(layer.dilation_rate) > 1:
        raise GlobalLayerError(f"{call} pads otherwise than a decoder here: its reach is not known")
    return Transposed(layer.kernel_size[axis] - 1, layer.strides[axis])


def _enlarging(call: LayerCall, axis: int) -> Reach:
    factor, kind = call.operation.size[axis], call.operation.interpolation
    if kind == "bilinear" and factor & (factor - 1):
        # TensorFlow computes (i + ½) / factor − ½ in float32, which is exact for powers of two alone.
        raise GlobalLayerError(f"{call} enlarges bilinearly by {factor}: its rounding depends on the place")
    return Enlarging(factor, kind == "bilinear")


_WHOLE = {"GlobalAveragePooling2D", "PartMeans"}
_KINDS: dict[str, Callable[[LayerCall, int], Reach]] = {
    **dict.fromkeys(("Activation", "ReLU", "Dense", "LayerScale", "Share", "Add", "Multiply"), _pixelwise),
    **dict.fromkeys(("GlobalDropout", "DropPath", "Concatenate", "ChannelNorm"), _pixelwise),
    **dict.fromkeys(("BatchNormalization", "SyncBatchNorm"), _pixelwise),
    **dict.fromkeys(("Conv2D", "DepthwiseConv2D"), _convolution),
    **dict.fromkeys(("MaxPooling2D", "AveragePooling2D"), _pooling),
    "ZeroPadding2D": _zeros_around,
    "Conv2DTranspose": _transposed_reach,
    **dict.fromkeys(("UpSampling2D", "BilinearUpSampling"), _enlarging),
}
