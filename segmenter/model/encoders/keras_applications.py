"""Encoders of `keras.applications`, for any number of bands, rebuilt with this project's layers.

Keras' network is created without head and weights, and rebuilt layer by layer with the same names.
Differences:
- BatchNorm is over all replicas, if requested, with the same bits at inference. Its momentum is 0.9, as in
  the rest of the network: Keras' 0.99 and MobileNetV2's 0.999 lag hundreds of steps behind, but pretrained
  weights should soon learn this imagery's statistics.
- Dropout and stochastic depth, whose masks are the same on every replica, are left out; `drop_path` puts
  `DropPath` at the end of each residual branch.
- ConvNeXt's layer scale, whose weight has no name in Keras, names it `gamma`.
- If a stage must keep its stride, its step becomes dilation of all later layers (Chen et al. 2017,
  arXiv:1706.05587): values on the coarse grid equal the original's.
- A tensor with three users is shared (`Layers.share`), and LayerNorm uses its input twice (`ChannelNorm`).
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import keras

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.layers import ChannelNorm, Layers, LayerScale

_MOMENTUM = 0.9
_UNNAMED = re.compile(r"(zero_padding2d|add)(_\d+)?")
"""Names that Keras counts through the process, and which so differ from one model to the next."""
_OMITTED = ("Dropout", "StochasticDepth")


@dataclass(frozen=True)
class KerasNetwork:
    """A network of `keras.applications`.

    Attributes:
        features: layers at strides 2, 4, 8, 16 and 32; `before NAME`: the input of a layer, `end`: the
            network's output; None for a stride without features.
    """

    make: Callable[..., keras.Model]
    features: tuple[str | None, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    def network(self, bands: int) -> keras.Model:
        """Return Keras' own network up to the last feature, with random weights."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This model usually expects 1 or 3 input channels")
            whole = self.make(
                include_top=False, weights=None, input_shape=(None, None, bands), **self.options
            )
        return keras.Model(whole.inputs[0], [_tensor(whole, name) for name in self.features if name])

    def __call__(self, image: Any, layers: Layers, config: EncoderDecoderConfig) -> list[Any]:
        """Build the encoder; see `model.encoders`."""
        outputs = iter(_Rebuilding(self, image.shape[-1], layers, config).features(image))
        return [next(outputs) if name else None for name in self.features]


class _Made(NamedTuple):
    """A rebuilt tensor.

    Attributes:
        tensor: tensor for the network's next layers.
        scale: its stride in Keras' network, larger than here if the stride is kept.
        feature: tensor for the decoder.
    """

    tensor: Any
    name: str
    scale: int
    feature: Any


class _Rebuilding:
    """Rebuilding of a network, each layer once, in the order of data flow."""

    def __init__(
        self, source: KerasNetwork, bands: int, layers: Layers, config: EncoderDecoderConfig
    ) -> None:
        self._layers, self._config = layers, config
        self._network = source.network(bands)
        self._users = Counter(id(tensor) for tensor in self._network.outputs)
        self._reader: dict[int, keras.Operation] = {}
        for layer in self._network.operations[1:]:
            self._users.update(id(tensor) for tensor in _inputs(layer))
            self._reader.update((id(tensor), layer) for tensor in _inputs(layer))
        self._blocks = sum(type(layer).__name__ == "Add" for layer in self._network.operations)
        self._block = 0

    def features(self, image: Any) -> Iterator[Any]:
        """Return the network's outputs on an image."""
        made = {id(self._network.inputs[0]): _Made(image, "image", 1, image)}
        for layer in self._network.operations[1:]:
            parts = [made[id(tensor)] for tensor in _inputs(layer)]
            made[id(_output(layer))] = self._step(layer, parts)
        return (made[id(tensor)].feature for tensor in self._network.outputs)

    def _step(self, layer: keras.Operation, parts: list[_Made]) -> _Made:
        if type(layer).__name__ in _OMITTED or layer.name.endswith("_identity"):
            return parts[0]
        scale = max(part.scale for part in parts)
        name = re.sub(r"^(layer_normalization)_\d+$", r"\1", layer.name)  # ConvNeXt's last
        if _UNNAMED.fullmatch(name):
            name = f"{parts[-1].name}_{type(layer).__name__.lower()}"
        if type(layer).__name__ == "Add":  # a layer, or the operation of a + b
            parts = self._with_drop_path(name, parts)
        tensors = [part.tensor for part in parts]
        x = tensors if len(tensors) > 1 else tensors[0]
        for each in layer.layers if isinstance(layer, keras.Sequential) else [layer]:
            x = self._layer(each, each.name if each is not layer else name, scale)(x)
            scale *= _step_of(each)
        if self._users[id(_output(layer))] > 2:
            return _Made(self._layers.share(x, 3, name)[-1], name, scale, x)
        return _Made(x, name, scale, x)

    def _with_drop_path(self, name: str, parts: list[_Made]) -> list[_Made]:
        """Return a residual block's summands, with `DropPath` on the branch; its rate grows with depth."""
        self._block += 1
        rate = self._config.drop_path * self._block / self._blocks
        block = name.removesuffix("_add")
        own = [f"{part.name}_".startswith(f"{block}_") and part.name != f"{block}_0_bn" for part in parts]
        return [
            part._replace(tensor=self._layers.drop_path(part.tensor, rate, f"{name}_drop_path"))
            if in_branch
            else part
            for part, in_branch in zip(parts, own, strict=True)
        ]

    def _layer(self, layer: keras.Operation, name: str, scale: int) -> keras.layers.Layer:
        """Return a new layer like one of the network's, for a tensor of stride `scale`."""
        if not isinstance(layer, keras.layers.Layer):
            return keras.layers.Add(dtype=self._layers.policy, name=name)
        if type(layer).__name__ == "LayerScale":  # Keras' leaves its weight to be named by a count
            return LayerScale(layer.init_values, dtype=self._layers.policy, name=name)
        config = {**layer.get_config(), "name": name, "dtype": self._layers.policy}
        if isinstance(layer, keras.layers.LayerNormalization):
            return ChannelNorm.from_config(config)
        if isinstance(layer, keras.layers.BatchNormalization):
            return self._layers.batch_norm.from_config({**config, "momentum": _MOMENTUM})
        output_stride = self._config.output_stride
        dilation = max(1, scale // output_stride)
        if isinstance(layer, keras.layers.ZeroPadding2D):
            reader = self._reader[id(_output(layer))]
            if scale * _step_of(reader) > output_stride and isinstance(reader, _CONVOLUTIONS):
                config["padding"] = dilation * (reader.kernel_size[0] // 2)
        elif isinstance(layer, _CONVOLUTIONS) and scale * _step_of(layer) > output_stride:
            config |= {"strides": 1, "dilation_rate": dilation if layer.kernel_size[0] > 1 else 1}
        return type(layer).from_config(config)


_CONVOLUTIONS = (keras.layers.Conv2D, keras.layers.DepthwiseConv2D)


def _step_of(layer: keras.Operation) -> int:
    """Return the factor by which a layer shrinks an image."""
    if isinstance(layer, keras.Sequential):
        return max(_step_of(each) for each in layer.layers)
    return int(layer.strides[0]) if hasattr(layer, "strides") else 1


def _inputs(layer: keras.Operation) -> list[Any]:
    """Return the input tensors of a layer; for a nested model, `input` would be its own input."""
    return list(layer._inbound_nodes[0].input_tensors)


def _output(layer: keras.Operation) -> Any:
    return layer._inbound_nodes[0].outputs[0]


def _tensor(network: keras.Model, name: str) -> Any:
    if name == "end":
        return network.outputs[0]
    place, _, layer = name.rpartition(" ")
    return _inputs(network.get_layer(layer))[0] if place == "before" else _output(network.get_layer(layer))


_RAW = {"include_preprocessing": False}


def _efficient(make: Callable[..., keras.Model], *ends: str) -> KerasNetwork:
    """Return the source with features at the ends of blocks 1, 2, 3, 5 and 6, without the top convolution."""
    first = "block1a_project_activation" if ends[0] == "1a" else f"block{ends[0]}_add"
    return KerasNetwork(make, (first, *(f"block{end}_add" for end in ends[1:])), _RAW)


SOURCES = {
    "keras_resnet50": KerasNetwork(
        keras.applications.ResNet50,
        ("conv1_relu", "conv2_block3_out", "conv3_block4_out", "conv4_block6_out", "conv5_block3_out"),
    ),
    "mobilenet_v2": KerasNetwork(
        keras.applications.MobileNetV2,
        # Without the last 1×1 convolution to 1280 channels, which serves the classifier.
        ("expanded_conv_project_BN", "block_2_add", "block_5_add", "block_12_add", "block_16_project_BN"),
    ),
    "densenet121": KerasNetwork(
        keras.applications.DenseNet121, ("conv1_relu", "pool2_relu", "pool3_relu", "pool4_relu", "relu")
    ),
    "convnext_tiny": KerasNetwork(
        keras.applications.ConvNeXtTiny,
        (None, *(f"before convnext_tiny_downsampling_block_{i}" for i in range(3)), "end"),
        _RAW,
    ),
    "efficientnet_v2_b0": _efficient(keras.applications.EfficientNetV2B0, "1a", "2b", "3b", "5e", "6h"),
    "efficientnet_v2_b1": _efficient(keras.applications.EfficientNetV2B1, "1b", "2c", "3c", "5f", "6i"),
    "efficientnet_v2_b2": _efficient(keras.applications.EfficientNetV2B2, "1b", "2c", "3c", "5f", "6j"),
    "efficientnet_v2_b3": _efficient(keras.applications.EfficientNetV2B3, "1b", "2c", "3c", "5g", "6l"),
    "efficientnet_v2_s": _efficient(keras.applications.EfficientNetV2S, "1b", "2d", "3d", "5i", "6o"),
}
"""By the name that recipes use."""
