"""Weights for a recipe's encoder: found, read, named and fitted to its bands, before TensorFlow is loaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segmenter.base.errors import WeightsError
from segmenter.base.invocation import invocation
from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.architectures import FAMILIES
from segmenter.model.pretrained.first_layer import channels_for, describe, fitted
from segmenter.model.pretrained.packages import packaged_weights
from segmenter.model.pretrained.safe_tensors import read_safetensors
from segmenter.model.pretrained.torch_files import read_torch
from segmenter.model.pretrained.torch_names import encoder_arrays
from segmenter.model.pretrained.value_range import check_photographs

_FIRST = "stem_conv/kernel"


@dataclass(frozen=True)
class EncoderWeights:
    """Weights that an encoder starts from.

    Attributes:
        arrays: layer and name of each weight, as in its path in the model → its array; of layers that the
            model does not have, too.
        described: what they are and where they are from, in a line; `{count}` stands for the parameters.
    """

    arrays: dict[str, Any]
    described: str

    def said(self, count: str) -> str:
        """The line, with the number of parameters that were loaded."""
        return self.described.replace("{count}", count, 1)


def torch_encoder_weights(config: EncoderDecoderConfig, bands: int) -> EncoderWeights:
    """The weights that a recipe names for an EfficientNet-Lite or ResNet; imports no TensorFlow.

    Args:
        bands: that the model sees.

    Raises:
        WeightsError: in one line: they are not there, damaged, of another architecture, or of other
            channels than the normalisation that is asked for.
    """
    path, tensors = _tensors(config)
    arrays, others = encoder_arrays(config.encoder, tensors, str(path))
    kernel = arrays[_FIRST]
    channels = kernel.shape[2]
    check_photographs(config, channels, str(path))
    chosen = channels_for(bands, channels, config.weight_bands)
    arrays[_FIRST] = fitted(kernel, chosen)
    line = f"encoder {config.encoder}: {{count}} parameters from {path}"
    if others:
        line += f" ({others} tensors of other parts left out)"
    return EncoderWeights(arrays, f"{line}; {describe(chosen, channels)}")


def _tensors(config: EncoderDecoderConfig) -> tuple[Path, dict[str, Any]]:
    weights, family = str(config.weights), FAMILIES[config.encoder]
    if weights == "imagenet":
        if family != "efficientnet_lite":
            raise WeightsError(
                f"model.weights: imagenet: no package has them for {config.encoder}; expected a .safetensors "
                "file with torchvision's or timm's names, or encoder: keras_resnet50 or efficientnet_lite0"
            )
        path = packaged_weights(config.encoder)
        return path, read_torch(path)
    path = Path(weights)
    if path.suffix in (".pth", ".pt", ".ckpt", ".bin", ".tar"):
        raise WeightsError(
            f"model.weights: {path}: expected a .safetensors file; convert it with: "
            f"{invocation('convert-weights')} FILE.pth OUT.safetensors"
        )
    if path.suffix != ".safetensors":
        raise WeightsError(
            f"model.weights: {path}: expected a .safetensors file for {config.encoder}"
            + (" or imagenet" if family == "efficientnet_lite" else "")
        )
    return path, read_safetensors(path)
