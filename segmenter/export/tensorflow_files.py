"""SavedModel and LiteRT files: both are written by TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from segmenter.errors import ExportError, OutputError, shortened
from segmenter.export.graph import Exported

_MISSING = re.compile(r"ops: (.+)")
"""The operations that LiteRT lacks, in what its converter says."""


def tensorflow_version() -> str:
    """Of the TensorFlow that is loaded."""
    return str(tf.__version__)


def write_savedmodel(exported: Exported, path: Path) -> None:
    """Write the folder.

    Raises:
        OutputError: it cannot be written.
    """
    module = _module(exported)
    module.serve = exported.function
    # Gradients are ours alone; they are no part of a model that predicts.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    concrete = exported.function.get_concrete_function()
    try:
        tf.saved_model.save(module, str(path), signatures=concrete, options=options)
    except tf.errors.OpError as error:
        raise OutputError(
            f"{path.parent.parent}: cannot write it: {error.message}; is the disk full?"
        ) from None


def read_savedmodel(path: Path) -> Callable[[Any], dict[str, Any]]:
    """The folder, loaded again: image → the outputs by their names."""
    loaded = tf.saved_model.load(str(path))
    serve = loaded.signatures["serving_default"]

    def run(image: Any, loaded: Any = loaded) -> dict[str, Any]:  # what was loaded holds the weights
        return {name: tensor.numpy() for name, tensor in serve(image=tf.constant(image)).items()}

    return run


def write_litert(exported: Exported, path: Path, *, fp16: bool) -> None:
    """Write the file.

    Args:
        fp16: weights in 16 bits; what computes in 32 widens them.

    Raises:
        ExportError: LiteRT has no operation for a part of the model.
    """
    concrete = exported.function.get_concrete_function()
    converter = tf.lite.TFLiteConverter.from_concrete_functions([concrete], _module(exported))
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


def _module(exported: Exported) -> Any:
    """What holds the variables, so that they are saved."""
    module = tf.Module()
    module.weights = [variable.value for variable in exported.variables]
    return module
