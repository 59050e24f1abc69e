"""Which models export: decoders, and layers that other runtimes do not have; all real pairs: slow."""

from __future__ import annotations

from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from benchmarks.export_table import FORMATS, measured, measured_model

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxruntime", "tf2onnx")),
    reason="the libraries of the extra `export` are not installed",
)
LARGEST = 1e-4


def test_our_own_layers_export(tensorflow: ModuleType) -> None:
    """Dropout, drop path, shared tensors, bilinear enlargement, means over parts of the window, and those of
    ConvNeXt, in one small model; windows of any size."""
    import keras

    from segmenter.model.decoders.pooling import pooled
    from segmenter.model.dropout import GlobalDropout
    from segmenter.model.layers import ChannelNorm, Layers, LayerScale

    layers, image = Layers(keras.DTypePolicy("float32"), synchronised=True), keras.Input((None, None, 3))
    x = layers.block(image, 4, "first", strides=2)
    x = keras.layers.Conv2D(4, 3, padding="same", groups=4, name="groups")(x)
    x = LayerScale(0.5, name="scale")(ChannelNorm(name="norm")(x))
    x = keras.layers.Activation("gelu", name="gelu")(x)
    one, two, three = layers.shared(x, 3, "x")
    x = layers.concatenate(
        [one, layers.drop_path(two, 0.5, "path"), pooled(three, 3, 4, layers, "pooled")], "join"
    )
    x = layers.enlarge(GlobalDropout(0.5, name="dropout")(x), 2, "enlarge", smooth=True)
    model = keras.Model(image, keras.layers.Conv2D(5, 1, name="logits")(x))
    found = measured_model(model, ("onnx",))
    assert set(found) == {"onnx"}
    assert all(float(value) < LARGEST for value in found.values()), found


def test_layers_that_runtimes_lack_have_twins(tensorflow: ModuleType) -> None:
    """ConvNeXt's: convolutions in groups of one channel, and GELU."""
    import keras

    from segmenter.extras.export.graph import ErfGelu, plain

    image = keras.Input((None, None, 4))
    x = keras.layers.Conv2D(4, 5, padding="same", groups=4, name="groups")(image)
    x = keras.layers.Activation("gelu", name="gelu")(x)
    model = keras.Model(image, keras.layers.Conv2D(2, 1, name="logits")(x))
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
    copy = plain(model)
    assert [type(layer) for layer in copy.layers[1:3]] == [keras.layers.DepthwiseConv2D, ErfGelu]
    assert copy.get_layer("logits") is model.get_layer("logits")
    pixels = rng.normal(size=(2, 9, 13, 4)).astype(np.float32)
    np.testing.assert_allclose(copy(pixels), model(pixels), atol=1e-4)
    without = keras.Model(image, keras.layers.Conv2D(2, 1)(image))
    assert plain(without) is without


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("scratch+nearest", "scratch+bilinear", "scratch+transpose", "resnet18+fpn", "keras_resnet50+unet"),
        *("efficientnet_lite0+deeplabv3plus", "efficientnet_v2_b0+unet", "mobilenet_v2+upernet"),
        *("densenet121+fpn", "convnext_tiny+upernet"),
    ],
)
def test_each_family_exports(tensorflow: ModuleType, name: str) -> None:
    found: dict[str, Any] = measured(name)
    assert set(found) == set(FORMATS)
    assert all(float(value) < LARGEST for value in found.values()), found
