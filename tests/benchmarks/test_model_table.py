"""Arithmetic of the model table against TensorFlow's own counts."""

from __future__ import annotations

from types import ModuleType

from benchmarks.model_table import BASELINE, flops, models


def test_arithmetic_is_what_tensorflow_counts(tensorflow: ModuleType) -> None:
    import keras

    layers = keras.layers
    image = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, 2, padding="same")(image)
    x = layers.DepthwiseConv2D(3, padding="same")(layers.ZeroPadding2D(1)(x))
    x = layers.Cropping2D(1)(layers.Conv2D(8, 3, padding="same", dilation_rate=1)(x))
    x = layers.SeparableConv2D(6, 3, padding="same")(x)
    model = keras.Model(image, layers.Conv2D(4, 1)(layers.Conv2DTranspose(6, 2, 2)(x)))
    spec = tensorflow.TensorSpec((1, 32, 32, 3))
    graph = tensorflow.function(lambda x: model(x, training=False)).get_concrete_function(spec).graph
    count = tensorflow.compat.v1.profiler.ProfileOptionBuilder
    options = count(count.float_operation()).with_empty_output().build()
    options["account_type_regexes"] = [".*Conv2D.*", ".*Depthwise.*"]
    counted = tensorflow.compat.v1.profiler.profile(graph, options=options).total_float_ops
    assert flops(model, 32) == counted > 0


def test_every_recipe_is_in_the_table() -> None:
    assert {BASELINE, "dubai", "naic2020"} <= set(models())
