"""Models predict windows of any size, and come back from Keras' own files and copies."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.config.recipe import UNetConfig
from segmenter.model.normalisation import Normalisation
from tests.helpers.encoder_pairs import DECODERS, ENCODERS, pair


@pytest.mark.parametrize("upsampling", ["nearest", "bilinear", "transpose"])
def test_every_way_of_enlarging_predicts(tensorflow: ModuleType, upsampling: str) -> None:
    import keras

    from segmenter.inference.function import predict_function
    from segmenter.model.building import build_model

    keras.utils.set_random_seed(3)
    model = build_model(UNetConfig(depth=2, width=4, upsampling=upsampling), 3, 4)
    predict = predict_function(model, Normalisation.of([120.0] * 3, [60.0] * 3))
    pixels = np.random.default_rng(1).integers(0, 256, (2, 44, 28, 3), np.uint8)
    expected = np.argmax(model((pixels - np.float32(120)) / np.float32(60), training=False), axis=-1)
    for part in (pixels, pixels[:1, :20]):
        found = predict(part, np.ones(part.shape[:3], np.bool_)).ids
        assert found.shape == part.shape[:3]
    agreed = predict(pixels, np.ones(pixels.shape[:3], np.bool_)).ids == expected
    assert agreed.mean() > 0.99  # rounding decides where two classes are level
    assert len(np.unique(expected)) > 1


MODELS = {
    "unet": UNetConfig(depth=1, width=4, dropout=0.2),
    **{f"{encoder}, fpn": pair(encoder, "fpn") for encoder in ENCODERS},
    **{f"resnet18, {decoder}": pair("resnet18", decoder) for decoder in DECODERS},
}
QUICK = {("unet", "mixed_float16"), ("efficientnet_lite0, fpn", "float32")}
CASES = [(name, dtype) for name in MODELS for dtype in ("float32", "mixed_float16")]


@pytest.mark.parametrize(
    ("name", "dtype"), [pytest.param(*e, marks=[] if e in QUICK else [pytest.mark.slow]) for e in CASES]
)
def test_a_model_that_keras_saved_is_the_same(
    tensorflow: ModuleType, tmp_path: Path, rng: np.random.Generator, name: str, dtype: str
) -> None:
    import keras

    from segmenter.model.building import build_model

    model = build_model(MODELS[name], 3, 4, dtype=dtype, synchronised=True)
    image = rng.normal(size=(2, 64, 64, 3)).astype(np.float32)
    model(image, training=True)  # statistics and masks that are not those of a new model
    model.save(tmp_path / "x.keras")
    loaded, copy = keras.models.load_model(tmp_path / "x.keras"), keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    for other in (loaded, copy):
        assert [type(layer) for layer in other.layers] == [type(layer) for layer in model.layers]
        for training in (False, True):
            np.testing.assert_array_equal(*(_output(each, image, training) for each in (other, model)))


def _output(model: Any, image: Any, training: bool) -> Any:
    """Call a model as it is now: a step of training counts a mask and moves the statistics."""
    before = model.get_weights()
    found = model(image, training=training).numpy()
    model.set_weights(before)
    return found
