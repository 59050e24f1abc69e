"""Names of weights in PyTorch → those of our encoders, with the axes in Keras' order.

The map (docs/models.md has it in words) is `architectures.units`: `<conv>.weight` and
`<norm>.{weight,bias,running_mean,running_var}`. A prefix such as `encoder.` or `module.backbone.` is found by
the first block's convolution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import WeightsError
from segmenter.model.architectures import Unit, units

_NORM = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_COUNTER, _VARIANCE = "num_batches_tracked", "running_var"
_HEADS = ("fc", "head", "classifier", "_conv_head", "_bn1", "_fc")
"""What classifies behind the encoder: left out."""

Tensors = Mapping[str, NDArray[Any]]


def encoder_arrays(encoder: str, tensors: Tensors, file: str) -> tuple[dict[str, NDArray[np.float32]], int]:
    """Path of each weight of an encoder → its array, the first layer's for the bands of the file.

    Also gives the number of tensors of the file that are no part of the encoder (heads, decoders).

    Raises:
        WeightsError: naming the first weight that is missing, of another shape, not finite, or that no
            such encoder has.
    """
    chain = units(encoder)
    prefix = _prefix(chain, tensors, encoder, file)
    own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
    arrays, known = {}, set()
    for path, name, axes, shape in _wanted(chain):
        arrays[path] = _array(
            own.get(name), name, axes, shape, encoder, file, first=path == "stem_conv/kernel"
        )
        known.add(name)
    left = [n for n in own if n not in known and not n.endswith(_COUNTER) and n.split(".")[0] not in _HEADS]
    if prefix == "":  # with one, others may stand beside the encoder under names without it
        _refuse_unknown(left, encoder, file)
    else:
        stages = {unit.torch_conv.split(".")[0] for unit in chain}
        _refuse_unknown([n for n in left if n.split(".")[0] in stages], encoder, file)
    counters = sum(name.endswith(_COUNTER) for name in tensors)
    return arrays, len(tensors) - len(known) - counters


def _refuse_unknown(left: list[str], encoder: str, file: str) -> None:
    if left:
        raise WeightsError(
            f"{file}: expected the weights of {encoder}, got {len(left)} that it has not, the first is "
            f"{min(left)}; are they of another architecture?"
        )


def _prefix(chain: list[Unit], tensors: Tensors, encoder: str, file: str) -> str:
    key = f"{chain[1].torch_conv}.weight"
    ends = [name.removesuffix(key) for name in tensors if name.endswith(key)]
    found = [prefix for prefix in ends if prefix == "" or prefix.endswith(".")]
    if len(found) == 1:
        return found[0]
    if found:
        raise WeightsError(
            f"{file}: expected the weights of one {encoder}, got several, under "
            f"{', '.join(map(repr, sorted(found)[:4]))}; take one with convert-weights --prefix {max(found)}"
        )
    first = min(tensors, default="none")
    raise WeightsError(
        f"{file}: expected the weights of {encoder}, with {key} among them, got {len(tensors)} others (the "
        f"first is {first}); are they of another architecture?"
    )


def _wanted(chain: list[Unit]) -> Iterator[tuple[str, str, tuple[int, ...], tuple[int, ...]]]:
    """Our path, their name, the order of their axes in ours, our shape."""
    for unit in chain:
        axes = (2, 3, 0, 1) if unit.depthwise else (2, 3, 1, 0)
        yield f"{unit.conv}/kernel", f"{unit.torch_conv}.weight", axes, unit.shape
        for ours, theirs in _NORM.items():
            yield f"{unit.norm}/{ours}", f"{unit.torch_norm}.{theirs}", (0,), (unit.outputs,)


def _array(
    tensor: NDArray[Any] | None,
    name: str,
    axes: tuple[int, ...],
    shape: tuple[int, ...],
    encoder: str,
    file: str,
    *,
    first: bool,
) -> NDArray[np.float32]:
    """A tensor as our weight; of the first layer any number of channels will do."""
    if tensor is None:
        raise WeightsError(f"{file}: expected the weights of {encoder}, got none called {name}")
    got = tuple(tensor.shape[i] for i in axes) if tensor.ndim == len(axes) else tensor.shape
    if first and len(got) == 4:
        shape = (*shape[:2], got[2], shape[3])
    if got != shape or tensor.dtype.kind != "f" or not tensor.size:
        wanted = tuple(shape[axes.index(i)] for i in range(len(axes)))
        raise WeightsError(
            f"{file}: {name}: expected floats of shape {wanted} for {encoder}, got {tensor.dtype} of "
            f"{tensor.shape}; are they of another architecture?"
        )
    array = np.ascontiguousarray(tensor.transpose(axes), np.float32)
    if not np.isfinite(array).all():
        raise WeightsError(f"{file}: {name}: expected finite numbers, got others; get the file again")
    if name.endswith(_VARIANCE) and array.min() < 0:
        raise WeightsError(f"{file}: {name}: expected a variance, got {array.min():.4g}; get the file again")
    return array
