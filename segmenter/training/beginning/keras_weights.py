"""Weights of `keras.applications`: loaded by Keras into its network, copied layer by layer."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import WeightsError, shorten
from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.encoders.keras_applications import SOURCES
from segmenter.model.pretrained.encoder_weights import EncoderWeights
from segmenter.model.pretrained.keras_files import cached_file, check_keras_weights, file_bands, no_network
from segmenter.model.pretrained.value_range import (
    CAFFE,
    channels_for,
    check_photographs,
    describe,
    fit_kernel,
)

_COUNTED = re.compile(r"/variable(_\d+)?$")
"""Keras names the weight of ConvNeXt's layer scale by a count through the process; here it is gamma."""
_LAST_NORM = re.compile(r"^(.*_layernormalization|layer_normalization(_\d+)?)/")
"""ConvNeXt's last layer has no fixed name either; the encoder names it after the previous layer."""
_SIDE = 224


def weight_key(path: str) -> str:
    """Return a variable's path without the parts that differ between models."""
    return _LAST_NORM.sub("layer_normalization/", _COUNTED.sub("/gamma", "/".join(path.split("/")[-2:])))


def keras_encoder_weights(config: EncoderDecoderConfig, bands: int) -> EncoderWeights:
    """Return a recipe's weights for an encoder of `keras.applications`.

    Raises:
        WeightsError: the weights cannot be downloaded, or a file is damaged or of another network.
    """
    check_keras_weights(config.encoder, str(config.weights))
    network, file = _load_network(config)
    arrays = {weight_key(v.path): np.asarray(v.numpy(), np.float32) for v in network.variables if v.shape}
    for name, array in arrays.items():
        if not np.isfinite(array).all():
            raise WeightsError(
                f"{file}: {name}", expected="finite numbers", got="others", remedy="get the file again"
            )
    first = next(name for name, array in arrays.items() if array.ndim == 4)
    kernel = arrays[first]
    check_photographs(config, kernel.shape[2], file)
    if config.encoder == "keras_resnet50" and _as_published(config):
        kernel = _of_rgb(kernel)
    chosen = channels_for(bands, kernel.shape[2], config.weight_bands)
    arrays[first] = fit_kernel(kernel, chosen)
    line = f"encoder {config.encoder}: {{count}} parameters from {file}"
    return EncoderWeights(arrays, f"{line}; {describe(chosen, kernel.shape[2])}")


def _of_rgb(kernel: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert a first layer from BGR 0…255 minus means to RGB of deviation 1."""
    return kernel[:, :, ::-1] * np.array(CAFFE.std, np.float32)[:, None]


def _as_published(config: EncoderDecoderConfig) -> bool:
    return config.weights == "imagenet" or config.input_normalisation == "weights"


def _load_network(config: EncoderDecoderConfig) -> tuple[Any, str]:
    """Return Keras' network with its weights, and the name of their file."""
    source, weights = SOURCES[config.encoder], str(config.weights)
    options: dict[str, Any] = {"include_top": False, **source.options}
    if weights == "imagenet":
        try:
            return source.make(weights="imagenet", input_shape=(_SIDE, _SIDE, 3), **options), str(
                cached_file(config.encoder)
            )
        except Exception as error:  # Keras raises no narrower one where a download fails
            if "URL fetch failure" in str(error):
                raise no_network(config.encoder, error) from None
            raise _unfit(cached_file(config.encoder), config, error) from None
    path = Path(weights)
    channels = file_bands(path, config.encoder)
    network = source.make(weights=None, input_shape=(_SIDE, _SIDE, channels), **options)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a line for each layer that another network has not
            network.load_weights(str(path))
    except Exception as error:  # whatever h5py and Keras think of such a file
        raise _unfit(path, config, error) from None
    return network, str(path)


def _unfit(path: Path, config: EncoderDecoderConfig, error: Exception) -> WeightsError:
    what = shorten(" ".join(str(error).split()))
    if config.weights == "imagenet":  # Keras looks at the name alone where it has no checksum
        return WeightsError(
            path,
            f"not the whole ImageNet weights of {config.encoder} ({what})",
            remedy="was its download cut? Delete it, and it is downloaded again",
        )
    return WeightsError(
        path, f"not the weights of {config.encoder} without its head ({what}); are they of another network?"
    )
