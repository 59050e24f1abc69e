"""SavedModel folders, and the version of TensorFlow that writes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from segmenter.base.errors import OutputError
from segmenter.extras.export.graph import Exported


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


def _module(exported: Exported) -> Any:
    """What holds the variables, so that they are saved."""
    module = tf.Module()
    module.weights = [variable.value for variable in exported.variables]
    return module
