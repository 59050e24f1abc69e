"""Law 4 with an encoder of `keras.applications`: its padding is not TensorFlow's `same`."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import rasterio

from datasets.commands import predict
from segmenter.grid.labels import ClassMap
from segmenter.model.receptive_field import NetworkGeometry, network_geometry
from segmenter.runs.run import load_run
from tests.helpers.random_run import random_run
from tests.helpers.small_encoders import narrow


@pytest.fixture(scope="module")
def network(tensorflow: ModuleType) -> Any:
    """MobileNetV2 down to an eighth, and a decoder of all its scales; random weights and statistics."""
    import keras

    image = keras.Input((None, None, 3))
    encoder = keras.applications.MobileNetV2(
        input_shape=(None, None, 3), alpha=0.35, include_top=False, weights=None, input_tensor=image
    )
    names = ["Conv1_relu", "block_1_expand_relu", "block_3_expand_relu", "block_6_expand_relu"]
    *skips, x = (encoder.get_layer(name).output for name in [*names[1:], "block_6_project_BN"])
    for skip in [*reversed(skips), image]:
        x = keras.layers.UpSampling2D(2)(x)
        x = keras.layers.Concatenate()([x, skip])
        x = keras.layers.ReLU()(keras.layers.Conv2D(8, 1)(keras.layers.DepthwiseConv2D(3, padding="same")(x)))
    model = keras.Model(image, keras.layers.Conv2D(3, 1, name="logits")(x))
    rng = np.random.default_rng(7)
    for variable in model.variables:
        shape = tuple(variable.shape)
        if "moving_variance" in variable.path or "gamma" in variable.path:
            variable.assign(rng.uniform(0.5, 2, shape))
        elif "kernel" in variable.path:
            fan = np.prod(shape[:2] if "depthwise" in variable.path else shape[:-1])
            variable.assign(rng.normal(size=shape) * (2 / fan) ** 0.5)
        else:
            variable.assign(rng.normal(size=shape) / 3)
    head = model.get_layer("logits")
    head.bias.assign(head.bias - model(rng.normal(size=(1, 128, 128, 3))).numpy().mean(axis=(0, 1, 2)))
    return model


@pytest.fixture(scope="module")
def geometry(network: Any) -> NetworkGeometry:
    found = network_geometry(network)
    assert found.stride == 16
    assert found.unlimited == ""
    return found


@pytest.fixture(scope="module")
def compute(tensorflow: ModuleType, network: Any) -> Any:
    """The model as prediction compiles it: one graph for all shapes."""
    spec = tensorflow.TensorSpec((None, None, None, 3))
    return tensorflow.function(lambda x: network(x, training=False), input_signature=[spec])


def test_windows_of_one_shape_agree_to_the_bit(
    compute: Any, geometry: NetworkGeometry, rng: np.random.Generator
) -> None:
    """Wherever they lie on the stride's grid: no seams."""
    radius = geometry.radius or 0
    image, side = rng.normal(size=(1, 288, 304, 3)).astype(np.float32), 240
    first = compute(image[:, :side, :side]).numpy()
    for down, right in [(16, 0), (48, 64), (0, 32)]:
        other = compute(image[:, down : down + side, right : right + side]).numpy()
        one = first[:, down:, right:][:, radius : -radius or None, radius : -radius or None]
        two = other[:, : side - down, : side - right][:, radius : -radius or None, radius : -radius or None]
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize(
    ("size", "decoder"),
    [
        pytest.param("narrow", "unet", marks=pytest.mark.slow),
        pytest.param("whole", "unet", marks=pytest.mark.slow),
        pytest.param("whole", "fpn", marks=pytest.mark.slow),
    ],
)
def test_maps_of_a_run_are_those_of_the_whole(
    tensorflow: ModuleType, make_classes: Callable[..., ClassMap], make_geotiff: Any, tmp_path: Path,
    rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, size: str, decoder: str,
) -> None:  # fmt: skip
    """From a run directory by `predict.py`, as a user's: many small windows against one that holds all."""
    if size == "narrow":
        narrow("efficientnet_lite", monkeypatch)
    described = {"kind": "encoder_decoder", "encoder": "efficientnet_lite0", "decoder": decoder}
    path = random_run(tmp_path / "run", make_classes(4), model_section={**described, "decoder_width": 8})
    network = load_run(path).network
    assert network.stride == 32
    assert network.radius is not None
    side, (height, width) = 2 * network.radius + 96, (2 * network.radius + 301, 2 * network.radius + 467)
    source = make_geotiff("in/a.tif", rng.integers(1, 1000, (height, width, 3), np.uint16))
    found = {}
    for window in (side, 32 * (width // 32 + 1)):
        output = tmp_path / str(window)
        options = ["--window-size", str(window), "--batch", "1", "--mode", "exact"]
        options += ["--probabilities", "float16", "--output", str(output)]
        assert predict.main([str(path), str(source), *options]) == 0
        with rasterio.open(output / "a.tif") as ids, rasterio.open(output / "a.probabilities.tif") as each:
            found[window] = ids.read(1), each.read().astype(np.float32)
    (ids, shares), (whole, expected) = found.values()
    np.testing.assert_allclose(shares, expected, atol=1e-3)
    best = np.sort(expected, axis=0)
    clear = best[-1] - best[-2] > 2e-3
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(ids[clear], whole[clear])
    assert len(np.unique(whole)) >= 3
