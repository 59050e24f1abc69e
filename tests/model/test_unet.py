"""U-Net: what each setting builds predicts windows whose sizes are not known before."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

from segmenter.config.recipe import UNetConfig
from segmenter.model.normalisation import Normalisation


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
