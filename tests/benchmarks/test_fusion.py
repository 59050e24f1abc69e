"""Bytes of a step with fusion, counted by hand on a small graph."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from benchmarks.fusion import fused_bytes


def test_what_is_fused_is_not_written_and_what_a_convolution_reads_is(tensorflow: ModuleType) -> None:
    tf = tensorflow
    kernel = tf.ones((1, 1, 2, 4))

    @tf.function
    def step(x: Any) -> Any:
        y = tf.nn.relu(x * 2.0 + 1.0)  # read by a convolution: written
        z = tf.nn.conv2d(y, kernel, 1, "SAME")
        return tf.reduce_sum(tf.square(z - 3.0))  # a sum takes in what it adds up

    graph = step.get_concrete_function(tf.TensorSpec((1, 8, 8, 2))).graph
    x, z, k, scalar, axes = 4 * 128, 4 * 256, 4 * 8, 4, 4 * 4
    alone, fused = fused_bytes(graph)
    relu, convolution, total = (x + 2 * scalar) + x, x + k + z, (z + scalar + axes) + scalar
    assert fused == relu + convolution + total
    before = 2 * (2 * x + scalar) + 2 * x  # product and sum, each with a number; then the ReLU
    after = (2 * z + scalar) + 2 * z + (z + axes + scalar)
    assert alone == before + convolution + after
