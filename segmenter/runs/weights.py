"""Weights of a Keras model as arrays of a checkpoint, and back; imports no TensorFlow itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError
from segmenter.runs.arrays import Arrays


def _is_dropout(variable: Any) -> bool:
    """Whether a variable says where dropout's masks stand: no part of what a model has learned."""
    return str(variable.path).endswith("/masks")


def weight_arrays(model: Any, prefix: str) -> Arrays:
    """The weights of a Keras model by the path of each variable; of several replicas, the first's."""
    return {f"{prefix}/{variable.path}": np.asarray(variable.numpy()) for variable in model.variables}


def assign_weights(
    model: Any, arrays: Mapping[str, NDArray[Any]], prefix: str, *, predicting: bool = False
) -> None:
    """Set all weights of a model; for predicting, all but where dropout's masks stand.

    Raises:
        CheckpointError: naming the first weight that is missing or of another shape.
    """
    for variable in model.variables:
        if predicting and _is_dropout(variable):
            continue
        value = arrays.get(f"{prefix}/{variable.path}")
        if value is None and _is_dropout(variable):
            raise CheckpointError(
                f"checkpoint: expected where dropout's masks stand ({variable.path}), got none: an older "
                "program wrote it; predict with this run, or use --init-from to start a new one from it"
            )
        if value is None or value.shape != tuple(variable.shape):
            got = "none" if value is None else str(value.shape)
            raise CheckpointError(
                f"checkpoint: expected weight {variable.path} of shape {tuple(variable.shape)}, got {got}"
            )
        variable.assign(value)


def learned_weights(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The weights of a checkpoint that predict: under `model/`, the averaged ones where there are any."""
    prefix = "ema/" if any(name.startswith("ema/") for name in arrays) else "model/"
    return {f"model/{n.removeprefix(prefix)}": array for n, array in arrays.items() if n.startswith(prefix)}


def transfer_weights(
    model: Any, arrays: Mapping[str, NDArray[Any]], *, same_classes: bool = True
) -> tuple[list[str], list[str]]:
    """Set the weights whose name and shape fit, for fine-tuning; (names kept, names that start anew).

    With other classes the head starts anew, even where it has as many outputs.
    """
    kept, fresh = [], []
    for variable in model.variables:
        if _is_dropout(variable):
            continue  # where dropout's randomness stands is no knowledge to carry over
        value = arrays.get(f"model/{variable.path}")
        if variable.path.startswith("logits/") and not same_classes:
            value = None
        if value is not None and value.shape == tuple(variable.shape):
            variable.assign(value)
            kept.append(variable.path)
        else:
            fresh.append(variable.path)
    return kept, fresh
