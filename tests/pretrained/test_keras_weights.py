"""Weights of keras.applications: from its cache or a file into the rebuilt encoder, or refused in a line."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from segmenter.config.models import EncoderDecoderConfig
from segmenter.errors import WeightsError
from segmenter.pretrained.keras_files import cached_file, check_keras_weights, file_bands

pytestmark = pytest.mark.usefixtures("tensorflow")


def config(encoder: str, weights: Path | str, **more: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(kind="encoder_decoder", encoder=encoder, weights=str(weights), **more)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keras' folder, empty."""
    import keras

    folder = tmp_path / "keras"
    monkeypatch.setenv("KERAS_HOME", str(folder))
    monkeypatch.setattr(keras.src.backend.config, "_KERAS_DIR", str(folder))
    (folder / "models").mkdir(parents=True)
    return folder


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network: every connection is refused."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # urllib keeps the proxies of its first use in the process, which may have been another test's.
    monkeypatch.setattr(urllib.request, "_opener", None)


def network(encoder: str = "mobilenet_v2", channels: int = 3) -> Any:
    """Keras' own, with random weights and statistics."""
    from segmenter.model.encoders.keras_applications import SOURCES

    source = SOURCES[encoder]
    made = source.make(include_top=False, weights=None, input_shape=(64, 64, channels), **source.options)
    rng = np.random.default_rng(4)
    for variable in made.variables:
        noise = rng.uniform(0.5, 1.5, variable.shape) if len(variable.shape) == 1 else None
        variable.assign(noise if noise is not None else variable.numpy())
    return made


def loaded(encoder: str, weights: Path | str, bands: int = 3, **more: Any) -> tuple[Any, str]:
    import keras

    from segmenter.model.encoders import ENCODERS
    from segmenter.model.layers import Layers
    from segmenter.training.keras_weights import keras_encoder_weights
    from segmenter.training.pretraining import load_encoder

    image, settings = keras.Input((None, None, bands), name="image"), config(encoder, weights, **more)
    features = ENCODERS[encoder](image, Layers(keras.DTypePolicy("float32"), False), settings)
    model = keras.Model(image, [each for each in features if each is not None])
    return model, load_encoder(model, keras_encoder_weights(settings, bands))


def keras_layout(original: Any, file: Any) -> None:
    """Write weights as the files are laid out that Keras downloads."""
    import keras

    keras.src.legacy.saving.legacy_h5_format.save_weights_to_hdf5_group(file, original)


def test_imagenet_weights_come_from_keras_own_cache(
    home: Path, refused: None, rng: np.random.Generator
) -> None:
    import keras

    original = network()
    file = cached_file("mobilenet_v2")
    assert file.parent == home / "models"
    original.save_weights(home / "w.weights.h5")
    with h5py.File(file, "w") as cached:
        keras_layout(original, cached)
    model, line = loaded("mobilenet_v2", "imagenet")
    assert line.startswith("encoder mobilenet_v2: ")
    assert line.endswith(f"parameters from {file}; first layer: 3 bands as they are")
    image = rng.normal(size=(1, 64, 64, 3)).astype(np.float32)
    end = original.get_layer("block_16_project_BN").output
    wanted = keras.Model(original.inputs[0], end)(image)
    np.testing.assert_allclose(model(image)[-1], wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())

    four, line = loaded("mobilenet_v2", home / "w.weights.h5", 4)
    assert line.endswith("first layer: 4 bands from 3: red, green, blue, mean, times 3/4")
    grey = np.repeat(image[..., :1], 4, axis=-1)
    for a, b in zip(four(grey), model(grey[..., :3]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-3 * np.abs(b).max())


@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_a_cut_download_in_the_cache_is_to_be_deleted(home: Path, refused: None, part: float) -> None:
    file = cached_file("mobilenet_v2")
    with h5py.File(file, "w") as cached:
        keras_layout(network(), cached)
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with pytest.raises(WeightsError, match=r"not the whole ImageNet weights.*cut\? Delete it") as caught:
        loaded("mobilenet_v2", "imagenet")
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


def test_without_a_network_a_line_says_what_to_do(home: Path, refused: None) -> None:
    for check in (
        lambda: check_keras_weights("mobilenet_v2", "imagenet"),
        lambda: loaded("mobilenet_v2", "imagenet"),
    ):
        with pytest.raises(WeightsError, match=r"cannot download mobilenet_v2.*refused.*by hand") as caught:
            check()
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:This model usually expects:UserWarning")
def test_the_colours_of_resnet50_are_turned_and_its_scale_is_taken_in(tmp_path: Path) -> None:
    from segmenter.pretrained.input_scale import CAFFE
    from segmenter.training.keras_weights import keras_encoder_weights

    original = network("keras_resnet50")
    original.save_weights(tmp_path / "w.weights.h5")
    kernel = original.get_layer("conv1_conv").kernel.numpy()
    settings = config("keras_resnet50", tmp_path / "w.weights.h5", input_normalisation="weights")
    found = keras_encoder_weights(settings, 3).arrays["conv1_conv/kernel"]
    rgb = np.random.default_rng(0).uniform(0, 255, (50, 3))
    bgr = (rgb - CAFFE.mean)[:, ::-1]  # the input that Keras' `mode="caffe"` gives
    scaled = (rgb - CAFFE.mean) / CAFFE.std
    np.testing.assert_allclose(scaled @ found[3, 3], bgr @ kernel[3, 3], rtol=1e-3, atol=1e-3)
    plain = keras_encoder_weights(config("keras_resnet50", tmp_path / "w.weights.h5"), 3)
    np.testing.assert_array_equal(plain.arrays["conv1_conv/kernel"], kernel)
    network("keras_resnet50", 4).save_weights(tmp_path / "four.weights.h5")
    settings = config("keras_resnet50", tmp_path / "four.weights.h5", input_normalisation="weights")
    with pytest.raises(WeightsError, match=r"expected weights of red, green and blue, .* got 4 channels"):
        keras_encoder_weights(settings, 4)


def test_files_that_are_no_weights_of_the_encoder_are_refused(tmp_path: Path) -> None:
    from segmenter.training.keras_weights import keras_encoder_weights

    file, cut, empty = (tmp_path / f"{name}.weights.h5" for name in ("w", "cut", "empty"))
    network().save_weights(file)
    cut.write_bytes(file.read_bytes()[:100_000])
    h5py.File(empty, "w").close()
    assert file_bands(file, "mobilenet_v2") == 3
    for path, message in (
        (cut, r"no whole \.h5 file"),
        (empty, "expected the arrays of densenet121, got none"),
        (tmp_path / "none.h5", "no such file"),
        (tmp_path / "w.safetensors", r"expected imagenet or a \.h5 or \.weights\.h5 file"),
        (file, "not the weights of densenet121 without its head"),
    ):
        with pytest.raises(WeightsError, match=message) as caught:
            keras_encoder_weights(config("densenet121", path), 3)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
