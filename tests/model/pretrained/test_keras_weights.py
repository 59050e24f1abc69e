"""Weights of keras.applications: from its cache or a file into the rebuilt encoder, or refused in a line."""

import gc
import hashlib
import os
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from keras.src.utils import file_utils

from segmenter.base.errors import WeightsError
from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.encoders import ENCODERS
from segmenter.model.encoders.keras_applications import SOURCES, _tensor
from segmenter.model.layers import Layers
from segmenter.model.pretrained.keras_files import KERNELS, cached_file, check_keras_weights, file_bands
from segmenter.model.pretrained.value_range import CAFFE
from segmenter.training.beginning.fine_tuning import load_encoder
from segmenter.training.beginning.keras_weights import keras_encoder_weights
from tests.helpers.file_server import PROXIES
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures("tensorflow")
FROM_KERAS = [
    pytest.param(name, marks=[pytest.mark.slow] if name != "mobilenet_v2" else []) for name in SOURCES
]
"""Encoders whose weights Keras downloads."""


def config(encoder: str, weights: Path | str, **more: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(kind="encoder_decoder", encoder=encoder, weights=str(weights), **more)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "keras"
    monkeypatch.setenv("KERAS_HOME", str(folder))
    monkeypatch.setattr(keras.src.backend.config, "_KERAS_DIR", str(folder))
    (folder / "models").mkdir(parents=True)
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
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


@cache
def network(encoder: str = "mobilenet_v2") -> Any:
    """Keras' own, with random weights and statistics."""
    source = SOURCES[encoder]
    made = source.make(include_top=False, weights=None, input_shape=(64, 64, 3), **source.options)
    rng = np.random.default_rng(4)
    for variable in made.variables:
        noise = rng.uniform(0.5, 1.5, variable.shape) if len(variable.shape) == 1 else None
        variable.assign(noise if noise is not None else variable.numpy())
    return made


def loaded(encoder: str, weights: Path | str, bands: int = 3, **more: Any) -> tuple[Any, str]:
    image, settings = keras.Input((None, None, bands), name="image"), config(encoder, weights, **more)
    found = keras_encoder_weights(settings, bands)
    features = ENCODERS[encoder](image, Layers(keras.DTypePolicy("float32"), False), settings)
    model = keras.Model(image, [each for each in features if each is not None])
    return model, load_encoder(model, found)


def keras_layout(original: Any, file: Any) -> None:
    """Write weights as the files are laid out that Keras downloads."""
    keras.src.legacy.saving.legacy_h5_format.save_weights_to_hdf5_group(file, original)


@pytest.fixture
def accepted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keras looks for the checksum of the file that is there in place of the published one's.

    Returns:
        Names of the files that it asks its cache for.
    """
    asked: list[str] = []
    real = file_utils.get_file

    def get_file(name: str, origin: str, cache_subdir: str, file_hash: str | None = None) -> str:
        asked.append(name)
        there = Path(os.environ["KERAS_HOME"]) / cache_subdir / name
        if file_hash:
            file_hash = hashlib.new("md5", there.read_bytes(), usedforsecurity=False).hexdigest()
        return str(real(name, origin, cache_subdir=cache_subdir, file_hash=file_hash))

    monkeypatch.setattr(file_utils, "get_file", get_file)
    return asked


def features(original: Any, encoder: str, image: Any) -> list[Any]:
    """Keras' own features of images of deviation 1, as its weights of ImageNet expect them."""
    names = [name for name in SOURCES[encoder].features if name]
    if encoder == "keras_resnet50":
        image = (image * np.array(CAFFE.std, np.float32))[..., ::-1]
    return list(keras.Model(original.inputs[0], [_tensor(original, name) for name in names])(image))


@pytest.mark.slow
@pytest.mark.parametrize("encoder", FROM_KERAS)
def test_imagenet_weights_come_from_keras_own_cache(
    home: Path, no_network: None, accepted: list[str], rng: np.random.Generator, encoder: str
) -> None:
    original = network(encoder)
    file = cached_file(encoder)
    assert file.parent == home / "models"
    with h5py.File(file, "w") as cached:
        keras_layout(original, cached)
    model, line = loaded(encoder, "imagenet")
    assert accepted == [file.name]
    assert line.startswith(f"encoder {encoder}: ")
    assert line.endswith(f"parameters from {file}; first layer: 3 bands as they are")
    image = rng.normal(size=(1, 64, 64, 3)).astype(np.float32)
    for found, wanted in zip(model(image), features(original, encoder, image), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "encoder",
    ["densenet121", *(each for each in FROM_KERAS if each.values[0] not in ("mobilenet_v2", "densenet121"))],
)
def test_a_file_without_the_published_checksum_is_not_taken(
    home: Path, no_network: None, encoder: str
) -> None:
    """Keras downloads it again; of MobileNetV2 it knows no checksum."""
    cached_file(encoder).write_bytes(b"not what was published")
    with refused(WeightsError, fault=f"download {cached_file(encoder).name}"):
        loaded(encoder, "imagenet")


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.3, 0.99])
def test_a_cut_download_in_the_cache_is_to_be_deleted(home: Path, no_network: None, part: float) -> None:
    file = cached_file("mobilenet_v2")
    with h5py.File(file, "w") as cached:
        keras_layout(network(), cached)
    file.write_bytes(file.read_bytes()[: int(part * file.stat().st_size)])
    with refused(WeightsError, fault="ImageNet weights") as caught:
        loaded("mobilenet_v2", "imagenet")
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.slow
def test_the_colours_of_resnet50_are_turned_and_its_scale_is_taken_in(tmp_path: Path) -> None:
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


def test_files_that_are_no_weights_of_the_encoder_are_refused(tmp_path: Path) -> None:
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


@contextmanager
def broken_proxy(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All requests go to a proxy that gives one answer and hangs up."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                if client.recv(4096):
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        for name in PROXIES:
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.getsockname()[1]}")
        # urllib keeps the proxies of its first use in the process, which may have been another test's.
        monkeypatch.setattr(urllib.request, "_opener", None)
        try:
            yield
        finally:
            socket.create_connection(server.getsockname()).close()  # where nobody has asked it
            thread.join()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 403 Forbidden\r\n\r\n", b"HTTP/1.1 " + b"9" * 70_000 + b"\r\n\r\n"],
    ids=["nothing", "refusal", "endless"],
)
def test_a_broken_proxy_is_one_line(answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with broken_proxy(answer, monkeypatch), pytest.raises(WeightsError) as caught:
        check_keras_weights("mobilenet_v2", "imagenet")
    said = str(caught.value)
    assert said.startswith("model.weights: imagenet: ")
    assert "download mobilenet_v2_weights" in said
    assert "by hand" in said
    assert "\n" not in said
    assert len(said) < 900
    del caught
    gc.collect()  # urllib of Python 3.11.2 leaves its socket to it


def _add(file: Any, shape: tuple[int, ...], count: int) -> None:
    for number in range(count):
        file.create_dataset(f"more/{number}", shape, "f4")  # without values, it takes no room


@pytest.mark.parametrize("encoder", KERNELS)
def test_a_file_of_another_encoder_is_refused_before_the_data_are_indexed(
    encoder: str, tmp_path: Path
) -> None:
    """An encoder has the arrays that tell it apart, and no other encoder's (B1: those of B0)."""
    for other, kernel in KERNELS.items():
        path = tmp_path / f"{other}.h5"
        with h5py.File(path, "w") as file:
            _add(file, *kernel)
        if other == encoder or (encoder, other) == ("efficientnet_v2_b0", "efficientnet_v2_b1"):
            assert file_bands(path, encoder) == 3
        else:
            got = 7 if encoder == "efficientnet_v2_b1" and other == "efficientnet_v2_b0" else "none"
            with refused(WeightsError, fault=f"shape {KERNELS[encoder][0]}, got {got}"):
                file_bands(path, encoder)


@pytest.mark.parametrize("encoder", FROM_KERAS)
def test_the_kernel_that_tells_an_encoder_is_in_its_network_and_in_no_other(encoder: str) -> None:
    shapes = [tuple(variable.shape) for variable in network(encoder).variables]
    told = {other for other, (kernel, least) in KERNELS.items() if shapes.count(kernel) >= least}
    assert told - {encoder} == ({"efficientnet_v2_b0"} if encoder == "efficientnet_v2_b1" else set())
    assert shapes.count(KERNELS[encoder][0]) == KERNELS[encoder][1]
    assert KERNELS.keys() == SOURCES.keys()
