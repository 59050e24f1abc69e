"""Files for other runtimes, and these runtimes to read them again; libraries are imported when needed.

A runtime is a function of float32 pixels (B, H, W, C) to probabilities (B, H, W, K) and classes (B, H, W),
whatever the order of axes in the file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.errors import ExportError, SegmenterError, shortened
from segmenter.export.request import Format

if TYPE_CHECKING:
    from segmenter.export.graph import Exported, Shape

Runtime = Callable[[NDArray[np.float32]], tuple[NDArray[np.float32], NDArray[np.uint8]]]

INSTALL = "pip install 'coverage-segmenter[export]' (in a checkout: make export)"
OPSET = 17
"""Of ONNX: of 2022, which onnxruntime reads from 1.12 on."""
SUFFIX: dict[Format, str] = {"onnx": ".onnx", "savedmodel": ".savedmodel", "litert": ".tflite"}
_NEEDED: dict[Format, tuple[str, ...]] = {
    "onnx": ("tf2onnx", "onnx", "onnxruntime"),
    "savedmodel": (),
    "litert": ("ai_edge_litert",),
}
_MISSING = re.compile(r"ops: (.+)")
_LOUD = ("tf2onnx", "tensorflow", "absl")


def check_libraries(format: Format) -> None:
    """Refuse a format whose libraries are not installed, before anything is computed.

    Raises:
        SegmenterError: naming the package.
    """
    from importlib.util import find_spec

    for name in _NEEDED[format]:
        if find_spec(name) is None:
            raise SegmenterError(f"--format {format} needs the package {name.replace('_', '-')}: {INSTALL}")


def write_model(
    format: Format, exported: Exported, path: Path, facts: Mapping[str, Any], *, fp16: bool
) -> None:
    """Write the file, or the folder of a SavedModel.

    Args:
        facts: that go into the file, where its format has a place for them (ONNX).
        fp16: for LiteRT: weights in 16 bits. Elsewhere the model itself computes in them.

    Raises:
        ExportError: the format has no operation for a part of the model; names it.
    """
    with _quiet():
        if format == "onnx":
            _write_onnx(exported, path, facts)
        elif format == "savedmodel":
            _write_savedmodel(exported, path)
        else:
            _write_litert(exported, path, fp16=fp16)


def read_model(format: Format, path: Path, shape: Shape) -> Runtime:
    """The written file in its runtime, on the CPU."""
    opened = {"onnx": _onnx_runtime, "savedmodel": _savedmodel_runtime, "litert": _litert_runtime}[format]
    outputs = opened(path)

    def run(image_BHWC: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        image = image_BHWC.transpose(0, 3, 1, 2) if shape.channels_first else image_BHWC
        found = outputs(np.ascontiguousarray(image))
        probabilities = found["probabilities"]
        if shape.channels_first:
            probabilities = probabilities.transpose(0, 2, 3, 1)
        classes = found.get("classes")
        return probabilities, probabilities.argmax(axis=-1).astype(np.uint8) if classes is None else classes

    return run


def versions(format: Format) -> dict[str, str]:
    """Versions of the libraries that made and checked a file."""
    from importlib.metadata import version

    names = (*_NEEDED[format], "keras")
    return {name.replace("_", "-"): version(name.replace("_", "-")) for name in names} | _tensorflow()


def _tensorflow() -> dict[str, str]:
    return {"tensorflow": str(sys.modules["tensorflow"].__version__)}


def _write_onnx(exported: Exported, path: Path, facts: Mapping[str, Any]) -> None:
    import onnx
    import tf2onnx

    model, _ = tf2onnx.convert.from_function(
        exported.function, exported.signature, opset=OPSET, custom_op_handlers={"SelectV2": (_where, [])}
    )
    model.producer_name = "coverage-segmenter"
    for key, value in facts.items():
        onnx.helper.set_model_props(model, {p.key: p.value for p in model.metadata_props} | {key: value})
    missing = sorted({node.op_type for node in model.graph.node if not _has(onnx, node)})
    if missing:
        raise ExportError(f"ONNX has no operation for {', '.join(missing)} of this model")
    try:
        content = model.SerializeToString()
    except ValueError as error:
        raise ExportError(
            f"ONNX: the model has more than 2 GB of weights, which one file cannot hold ({error})"
        ) from None
    path.write_bytes(content)


def _where(graph: Any, node: Any, name: str, arguments: Any) -> Any:
    """A choice between two tensors as one; tf2onnx makes sums of products with 0 of it, where NaN spreads."""
    node.type = "Where"
    return node


def _has(onnx: Any, node: Any) -> bool:
    return node.domain not in ("", "ai.onnx") or bool(onnx.defs.has(node.op_type, OPSET, node.domain))


def _write_savedmodel(exported: Exported, path: Path) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.weights = [variable.value for variable in exported.variables]
    module.serve = exported.function
    # Gradients are ours alone; they are no part of a model that predicts.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    signatures = exported.function.get_concrete_function()
    tf.saved_model.save(module, str(path), signatures=signatures, options=options)


def _write_litert(exported: Exported, path: Path, *, fp16: bool) -> None:
    import tensorflow as tf

    module = tf.Module()
    module.weights = [variable.value for variable in exported.variables]
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [exported.function.get_concrete_function()], module
    )
    if fp16:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    try:
        content = converter.convert()
    except Exception as error:  # the converter's own kinds of errors; all say which operations they are
        found = _MISSING.search(str(error))
        text = found[1] if found else shortened(" ".join(str(error).split()))
        raise ExportError(f"LiteRT has no operation for {text} of this model") from None
    path.write_bytes(content)


def _onnx_runtime(path: Path) -> Callable[[Any], dict[str, Any]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda image: dict(zip(names, session.run(names, {"image": image}), strict=True))


def _savedmodel_runtime(path: Path) -> Callable[[Any], dict[str, Any]]:
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    serve = loaded.signatures["serving_default"]

    def run(image: Any, loaded: Any = loaded) -> dict[str, Any]:  # what it was loaded as keeps its weights
        return {name: tensor.numpy() for name, tensor in serve(image=tf.constant(image)).items()}

    return run


def _litert_runtime(path: Path) -> Callable[[Any], dict[str, Any]]:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(path))
    serve = interpreter.get_signature_runner("serving_default")
    return lambda image: dict(serve(image=image))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what converters log, from Python or on the process's stderr: our line says what is wrong."""
    before = {name: logging.getLogger(name).level for name in _LOUD}
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        for name in _LOUD:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with tempfile.TemporaryFile() as unheard:
            os.dup2(unheard.fileno(), 2)
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def as_metadata(facts: Mapping[str, Any]) -> dict[str, str]:
    """Facts as ONNX keeps them: a text each, in JSON."""
    return {key: json.dumps(value, ensure_ascii=False) for key, value in facts.items()}
