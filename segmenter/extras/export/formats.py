"""Files for other runtimes, and the runtimes that read them; libraries are imported when needed.

A runtime is a function of float32 pixels (B, H, W, C) to probabilities (B, H, W, K) and classes (B, H, W),
independent of the axis order in the file.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ExportError, SegmenterError, shorten
from segmenter.base.invocation import installation
from segmenter.base.terminal import stderr_held
from segmenter.extras.export.request import Format
from segmenter.runs.resume import installed_versions

if TYPE_CHECKING:
    from segmenter.extras.export.graph import Exported, Shape

Runtime = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.uint8]]]

INSTALL = installation("export")
SUFFIX: dict[Format, str] = {"onnx": ".onnx", "savedmodel": ".savedmodel"}
RUNTIME: dict[Format, str] = {"onnx": "onnxruntime", "savedmodel": "TensorFlow"}
_NEEDED: dict[Format, tuple[str, ...]] = {
    "onnx": ("tf2onnx", "onnx", "onnxruntime"),
    "savedmodel": (),
}
_LOUD = ("tf2onnx", "tensorflow", "absl")
OPSET = 17
"""Version of 2022, which onnxruntime reads from 1.12 on."""


def check_libraries(format: Format) -> None:
    """Refuse a format whose libraries are not installed, before anything is computed.

    Raises:
        SegmenterError: a library is missing; the message names its package.
    """
    for name in _NEEDED[format]:
        if find_spec(name) is None:
            raise SegmenterError(f"--format {format} needs the package {name.replace('_', '-')}: {INSTALL}")


def write_model(format: Format, exported: Exported, path: Path, facts: Mapping[str, Any]) -> None:
    """Write the file, or the folder for a SavedModel.

    Args:
        facts: JSON values to store in the file, if the format allows it (ONNX).

    Raises:
        ExportError: the format lacks an operation for a part of the model; the message names it.
    """
    with _quiet():
        if format == "onnx":
            texts = {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()}
            _write_onnx(exported, path, texts)
            return
        from segmenter.extras.export.graph import write_savedmodel

        write_savedmodel(exported, path)


def read_model(format: Format, path: Path, shape: Shape) -> Runtime:
    """Load the written file in its runtime, on the CPU.

    Raises:
        ExportError: the runtime rejects the file; the returned function raises it for pixels.
    """
    with _quiet(), _naming(format):
        outputs = _load_runtime(format, path)

    def run(image_BHWC: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        image = image_BHWC.transpose(0, 3, 1, 2) if shape.channels_first else image_BHWC
        with _naming(format):
            results = outputs(np.ascontiguousarray(image))
        probabilities = results["probabilities"]
        if shape.channels_first:
            probabilities = probabilities.transpose(0, 2, 3, 1)
        classes = results.get("classes")
        return probabilities, probabilities.argmax(axis=-1).astype(np.uint8) if classes is None else classes

    return run


def _load_runtime(format: Format, path: Path) -> Callable[[Any], dict[str, Any]]:
    """Load the file in its runtime; return the function from image to named outputs."""
    if format == "onnx":
        return _read_onnx(path)
    from segmenter.extras.export.graph import read_savedmodel

    return read_savedmodel(path)


def versions(format: Format) -> dict[str, str]:
    """Return versions of the libraries that made and checked a file."""
    names = [name.replace("_", "-") for name in _NEEDED[format]]
    ours = installed_versions()
    return {name: version(name) for name in names} | {name: ours[name] for name in ("keras", "tensorflow")}


@contextlib.contextmanager
def _naming(format: Format) -> Iterator[None]:
    """Convert errors of a runtime, whatever their class, to one line."""
    try:
        yield
    except Exception as error:
        text = shorten(" ".join(str(error).split()))
        raise ExportError(f"{RUNTIME[format]} does not take the file that was written: {text}") from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress log messages of converters, from Python or on stderr: our message has the cause."""
    before = {name: logging.getLogger(name).level for name in _LOUD}
    try:
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with stderr_held():
            yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def _write_onnx(exported: Exported, path: Path, facts: Mapping[str, str]) -> None:
    """Write the ONNX file, with the facts as metadata.

    Raises:
        ExportError: ONNX lacks an operation for a part of the model, or the weights are too large.
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
        raise ExportError("ONNX", f"one file holds up to 2 GB, the model is larger ({error})") from None
    path.write_bytes(content)


def _read_onnx(path: Path) -> Callable[[Any], dict[str, Any]]:
    """Load the file in onnxruntime on the CPU; return the function from image to named outputs."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # Threads that wait would take the processor from others, and count as if they computed.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda image: dict(zip(names, session.run(names, {"image": image}), strict=True))


def _name_axes(graph: Any, *, channels_first: bool) -> None:
    """Give variable axes meaningful names; axes with one name have equal length."""
    names = {3: ("batch", "height", "width"), 4: ("batch", "height", "width", "channels")}
    if channels_first:
        names[4] = ("batch", "channels", "height", "width")
    for value in (*graph.input, *graph.output):
        axes = value.type.tensor_type.shape.dim
        for axis, name in zip(axes, names[len(axes)], strict=True):
            if not axis.HasField("dim_value"):
                axis.dim_param = name


def _where(graph: Any, node: Any, name: str, arguments: Any) -> Any:
    """Keep a choice between two tensors as one node; tf2onnx uses products with 0, which spread NaN."""
    node.type = "Where"
    return node


def _is_known(onnx: Any, node: Any) -> bool:
    return node.domain not in ("", "ai.onnx") or bool(onnx.defs.has(node.op_type, OPSET, ""))
