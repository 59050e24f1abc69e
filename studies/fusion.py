"""Bytes that a training step moves when neighbouring operations are fused, as XLA does it, on paper.

Counted on the graph that `step_cost` counts operation by operation; nothing is compiled or run. Elementwise
operations and broadcasts are computed where a sum, a concatenation or another of them reads them, also twice,
and write nothing, unless a convolution, a pooling or an output needs them in memory. Each kernel writes its
result and reads once what its chain begins with. XLA on a GPU does about this; it also merges sums over the
same tensors, which is left out. Prints one JSON line a precision.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection
from typing import Any

from studies.step_cost import MOVES_NOTHING, bytes_of, flops_of, needed, traced_step
from segmenter.config.recipe import UNetConfig
from segmenter.devices.strategy import load_tensorflow

_FUSED = frozenset(
    (
        *("Abs", "AddN", "AddV2", "BroadcastTo", "Cast", "DivNoNan", "Equal", "Exp", "Fill", "Greater"),
        *("GreaterEqual", "IsFinite", "Less", "Log", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum"),
        *("Minimum", "Mul", "MulNoNan", "Neg", "NotEqual", "OneHot", "Pow", "RealDiv", "Reciprocal", "Relu"),
        *(
            "FusedBatchNormV3",
            "ReluGrad",
            "Rsqrt",
            "RsqrtGrad",
            "Select",
            "SelectV2",
            "Sign",
            "Sqrt",
            "Square",
        ),
        *("SquaredDifference", "Sub", "Tile", "ZerosLike", "OnesLike", "Slice", "StridedSlice", "Unpack"),
    )
)
"""Computed where they are read."""
_TAKES_IN = frozenset(
    (
        "All",
        "ArgMax",
        "AssignVariableOp",
        "ConcatV2",
        "L2Loss",
        "Max",
        "Mean",
        "Pack",
        "Pad",
        "Sum",
        "Transpose",
    )
)
"""What they read may be computed there. All others, as convolutions and pooling, read from memory."""


def fused_bytes(graph: Any) -> tuple[int, int]:
    """Bytes that a traced step reads and writes, each operation a kernel, and fused."""
    operations = [op for op in needed(graph) if op.type not in MOVES_NOTHING]
    alone = sum(bytes_of(t) for op in operations for t in (*op.inputs, *op.outputs))
    asked = [t for op in operations if op.type not in _FUSED | _TAKES_IN for t in op.inputs]
    written = {_source(t).op.name for t in (*graph.outputs, *asked)}
    writing = [op for op in operations if op.type not in _FUSED or op.name in written]
    return alone, sum(_kernel(op, written) for op in writing)


def _source(tensor: Any) -> Any:
    """The tensor itself, before it was handed on."""
    while tensor.op.type in MOVES_NOTHING and tensor.op.inputs:
        tensor = tensor.op.inputs[0]
    return tensor


def _kernel(operation: Any, written: Collection[str]) -> int:
    """Bytes of an operation that writes, with all that is fused into it."""
    waiting, read = list(operation.inputs), {}
    while waiting:
        tensor = _source(waiting.pop())
        if tensor.ref() in read:
            continue
        fused = tensor.op.type in _FUSED and tensor.op.name not in written
        read[tensor.ref()] = 0 if fused else bytes_of(tensor)
        waiting += list(tensor.op.inputs) if fused else []
    return sum(read.values()) + sum(map(bytes_of, operation.outputs))


def line_of(precision: str, images: int, side: int) -> dict[str, Any]:
    """GB of a step of one replica, apart for what computes convolutions and all others."""
    graph, _ = traced_step(UNetConfig(), precision, images, side, synchronised=True)
    alone, fused = fused_bytes(graph)
    convolutions = sum(bytes_of(t) for op in needed(graph) if flops_of(op) for t in (*op.inputs, *op.outputs))
    return {
        "benchmark": "fusion",
        "measured": False,
        "precision": precision,
        "gb_each_operation_a_kernel": round(alone / 1e9, 1),
        "gb_fused": round(fused / 1e9, 1),
        "gb_of_convolutions": round(convolutions / 1e9, 1),
        "saved": round(1 - fused / alone, 3),
    }


def main() -> None:
    """Print the lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--side", type=int, default=256, help="of an image, in pixels")
    given = parser.parse_args()
    load_tensorflow()
    for precision in ("float32", "mixed_float16"):
        print(json.dumps(line_of(precision, given.images, given.side)), flush=True)


if __name__ == "__main__":
    main()
