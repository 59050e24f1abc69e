"""ONNX files: written by tf2onnx, read by onnxruntime; both are optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import ExportError

if TYPE_CHECKING:
    from segmenter.extras.export.graph import Exported

OPSET = 17
"""Of 2022, which onnxruntime reads from 1.12 on."""


def write(exported: Exported, path: Path, facts: Mapping[str, str]) -> None:
    """Write the file; the facts become its metadata.

    Raises:
        ExportError: ONNX has no operation for a part of the model, or no room for its weights.
    """
    import onnx
    import tf2onnx  # which imports TensorFlow

    model, _ = tf2onnx.convert.from_function(
        exported.function, exported.signature, opset=OPSET, custom_op_handlers={"SelectV2": (_where, [])}
    )
    missing = sorted({node.op_type for node in model.graph.node if not _is_known(onnx, node)})
    if missing:
        raise ExportError(f"ONNX has no operation for {', '.join(missing)} of this model")
    _name_axes(model.graph, channels_first=exported.channels_first)
    model.producer_name = "coverage-segmenter"
    onnx.helper.set_model_props(model, dict(facts))
    try:
        content = model.SerializeToString()
    except ValueError as error:
        raise ExportError(f"ONNX: one file holds up to 2 GB, the model is larger ({error})") from None
    path.write_bytes(content)


def read(path: Path) -> Callable[[Any], dict[str, Any]]:
    """The file in onnxruntime, on the CPU: image → the outputs by their names."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Threads that wait would take the processor from others, and count as if they computed.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda image: dict(zip(names, session.run(names, {"image": image}), strict=True))


def _name_axes(graph: Any, *, channels_first: bool) -> None:
    """Call the axes that may have any length by what they are: those of one name are equally long."""
    names = {3: ("batch", "height", "width"), 4: ("batch", "height", "width", "channels")}
    if channels_first:
        names[4] = ("batch", "channels", "height", "width")
    for value in (*graph.input, *graph.output):
        axes = value.type.tensor_type.shape.dim
        for axis, name in zip(axes, names[len(axes)], strict=True):
            if not axis.HasField("dim_value"):
                axis.dim_param = name


def _where(graph: Any, node: Any, name: str, arguments: Any) -> Any:
    """A choice between two tensors as one; tf2onnx makes sums of products with 0 of it, where NaN spreads."""
    node.type = "Where"
    return node


def _is_known(onnx: Any, node: Any) -> bool:
    return node.domain not in ("", "ai.onnx") or bool(onnx.defs.has(node.op_type, OPSET, ""))
