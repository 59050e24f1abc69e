"""Files of Keras' weights that cannot be looked at, downloaded or read whole are refused in one line."""

from __future__ import annotations

import os
import socket
import threading
import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import pytest

from segmenter.base.errors import WeightsError
from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.pretrained.keras_files import KERNELS, cached_file, check_keras_weights, file_bands
from tests.helpers.file_server import PROXIES
from tests.helpers.forbidden import forbidden


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


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 403 Forbidden\r\n\r\n", b"HTTP/1.1 " + b"9" * 70_000 + b"\r\n\r\n"],
    ids=["nothing", "nonsense", "refusal", "endless"],
)
def test_a_broken_proxy_is_one_line(answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_HOME", str(tmp_path))
    with broken_proxy(answer, monkeypatch), pytest.raises(WeightsError) as caught:
        check_keras_weights("mobilenet_v2", "imagenet")
    said = str(caught.value)
    assert said.startswith("model.weights: imagenet: cannot download mobilenet_v2_weights")
    assert "by hand" in said
    assert "\n" not in said
    assert len(said) < 900


def test_a_file_or_cache_below_a_folder_that_one_may_not_enter_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    with h5py.File(folder / "w.h5", "w") as file:
        file["a"] = [1.0]
    monkeypatch.setenv("KERAS_HOME", str(folder))
    "".encode("idna")  # imports what addresses need
    with broken_proxy(b"", monkeypatch), forbidden(folder):
        with pytest.raises(WeightsError, match=r"w\.h5: no whole \.h5 file of Keras' \(.*Permission denied"):
            file_bands(folder / "w.h5", "mobilenet_v2")
        with pytest.raises(WeightsError, match="cannot download mobilenet_v2"):
            check_keras_weights("mobilenet_v2", "imagenet")
    assert cached_file("mobilenet_v2").parent == folder / "models"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "w.h5"
    os.mkfifo(pipe)
    opened = os.open(pipe, os.O_RDWR)  # so that a reader that does not refuse it fails, and never waits
    try:
        with pytest.raises(WeightsError, match=r"w\.h5: expected a file, got a pipe or a device"):
            file_bands(pipe, "mobilenet_v2")
    finally:
        os.close(opened)


def _add(file: Any, shape: tuple[int, ...], count: int) -> None:
    for number in range(count):
        file.create_dataset(f"more/{number}", shape, "f4")  # without values, it takes no room


@pytest.mark.parametrize("encoder", KERNELS)
def test_a_file_of_another_encoder_is_refused_before_the_data_are_indexed(
    encoder: str, tmp_path: Path
) -> None:
    """Of the arrays that tell encoders apart, one has those of its own, and no other (B1: those of B0)."""
    for other, kernel in KERNELS.items():
        path = tmp_path / f"{other}.h5"
        with h5py.File(path, "w") as file:
            _add(file, *kernel)
        if other == encoder or (encoder, other) == ("efficientnet_v2_b0", "efficientnet_v2_b1"):
            assert file_bands(path, encoder) == 3
        else:
            with pytest.raises(WeightsError) as refused:
                file_bands(path, encoder)
            got = 7 if encoder == "efficientnet_v2_b1" and other == "efficientnet_v2_b0" else "none"
            assert str(refused.value) == (
                f"{path}: not the weights of {encoder} without its head (expected {KERNELS[encoder][1]} of "
                f"shape {KERNELS[encoder][0]}, got {got}); are they of another network?"
            )


SLOW = [pytest.param(e, marks=[pytest.mark.slow] if e != "mobilenet_v2" else []) for e in KERNELS]


@pytest.mark.parametrize("encoder", SLOW)
def test_the_kernel_that_tells_an_encoder_is_in_its_network_and_in_no_other(
    tensorflow: ModuleType, encoder: str
) -> None:
    from segmenter.model.encoders.keras_applications import SOURCES

    source = SOURCES[encoder]
    network = source.make(include_top=False, weights=None, input_shape=(64, 64, 3), **source.options)
    shapes = [tuple(variable.shape) for variable in network.variables]
    told = {other for other, (kernel, least) in KERNELS.items() if shapes.count(kernel) >= least}
    assert told - {encoder} == ({"efficientnet_v2_b0"} if encoder == "efficientnet_v2_b1" else set())
    assert shapes.count(KERNELS[encoder][0]) == KERNELS[encoder][1]
    assert KERNELS.keys() == SOURCES.keys()


def test_the_weights_of_another_network_are_refused_without_a_word_of_keras(
    tensorflow: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from segmenter.model.encoders.keras_applications import SOURCES
    from segmenter.training.beginning.keras_weights import keras_encoder_weights

    source = SOURCES["mobilenet_v2"]
    file = tmp_path / "w.weights.h5"
    shape = (64, 64, 3)
    source.make(include_top=False, weights=None, input_shape=shape, **source.options).save_weights(file)
    with h5py.File(file, "a") as changed:  # what is refused before Keras is asked
        _add(changed, *KERNELS["densenet121"])
    config = EncoderDecoderConfig(kind="encoder_decoder", encoder="densenet121", weights=str(file))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with pytest.raises(WeightsError, match="not the weights of densenet121") as caught:
            keras_encoder_weights(config, 3)
    assert "\n" not in str(caught.value)
    assert [str(one.message) for one in warned if "keras" in one.filename] == []
    assert capfd.readouterr().err == ""
