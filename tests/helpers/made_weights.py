"""Files of PyTorch, made without it: both formats of `torch.save`, right and wrong ones."""

import io
import pickle
import sys
import types
import zipfile
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.model.architectures import units

STORAGES = {"f4": "FloatStorage", "f2": "HalfStorage", "f8": "DoubleStorage", "i8": "LongStorage"}


@dataclass
class Stored:
    """A tensor as PyTorch writes it: a view of a storage.

    Attributes:
        claimed: number of elements that the storage is said to have.
        key: of the storage.
    """

    values: NDArray[Any]
    key: str
    offset: int = 0
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] | None = None
    storage: str = ""
    claimed: int | None = None

    def count(self) -> int:
        return self.values.size if self.claimed is None else self.claimed


def stored(tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """Each array as a tensor with a storage of its own."""
    return OrderedDict((name, Stored(np.asarray(a), str(i))) for i, (name, a) in enumerate(tensors.items()))


class _StorageId:
    def __init__(self, tensor: Stored) -> None:
        self.tensor = tensor


class _Pickler(pickle._Pickler):  # the one in Python can be told what an object is pickled as
    def persistent_id(self, found: Any) -> Any:
        if not isinstance(found, _StorageId):
            return None
        tensor = found.tensor
        name = tensor.storage or STORAGES[tensor.values.dtype.str[1:]]
        return ("storage", getattr(sys.modules["torch"], name), tensor.key, "cpu", tensor.count())

    def reducer_override(self, found: Any) -> Any:
        if not isinstance(found, Stored):
            return NotImplemented
        size = found.size if found.size is not None else found.values.shape
        steps = np.cumprod([1, *size[:0:-1]])[::-1] if size else []
        stride = found.stride if found.stride is not None else tuple(int(n) for n in steps)
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (_StorageId(found), found.offset, size, stride, False, OrderedDict())


@contextmanager
def _torch() -> Iterator[None]:
    """Modules called torch, as pickling looks each name up."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in (*STORAGES.values(), "BFloat16Storage", "QInt8Storage"):
        setattr(torch, name, type(name, (), {"__module__": "torch"}))

    def rebuild(*_: Any) -> None: ...

    rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = "torch._utils", *["_rebuild_tensor_v2"] * 2
    utils._rebuild_tensor_v2 = rebuild  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def pickled(found: Any) -> bytes:
    buffer = io.BytesIO()
    with _torch():
        _Pickler(buffer, 2).dump(found)
    return buffer.getvalue()


def _tensors(found: Any) -> list[Stored]:
    """One tensor of each storage."""
    if isinstance(found, Stored):
        return [found]
    tensors = [t for value in found.values() for t in _tensors(value)] if isinstance(found, dict) else []
    return list({tensor.key: tensor for tensor in tensors}.values())


def zip_file(
    path: Path, found: Any, *, code: bytes | None = None, compression: int = zipfile.ZIP_STORED
) -> Path:
    """What `torch.save` writes since 1.6; `code`: another pickle in it."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled(found) if code is None else code)
        archive.writestr("archive/byteorder", "little")
        for tensor in _tensors(found):
            archive.writestr(f"archive/data/{tensor.key}", tensor.values.tobytes())
        archive.writestr("archive/version", "3\n")
    return path


def legacy_file(path: Path, found: Any, *, code: bytes | None = None) -> Path:
    """What `torch.save` wrote before 1.6."""
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}]
    tensors = _tensors(found)
    parts = [*(pickle.dumps(part, 2) for part in head), pickled(found) if code is None else code]
    parts.append(pickle.dumps([t.key for t in tensors], 2))
    for tensor in tensors:
        parts += [tensor.values.size.to_bytes(8, "little"), tensor.values.tobytes()]
    path.write_bytes(b"".join(parts))
    return path


def encoder_tensors(
    encoder: str, channels: int = 3, prefix: str = "", seed: int = 1
) -> dict[str, NDArray[Any]]:
    """Random weights of an encoder under PyTorch's names, with those of a classifier behind it."""
    rng = np.random.default_rng(seed)
    found: dict[str, NDArray[Any]] = {}
    for unit in units(encoder, channels):
        height, width, inputs, last = unit.shape
        shape = (inputs, 1, height, width) if unit.depthwise else (last, inputs, height, width)
        fan = height * width * (1 if unit.depthwise else inputs)
        found[f"{prefix}{unit.torch_conv}.weight"] = rng.normal(0, fan**-0.5, shape).astype(np.float32)
        for part, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.2), ("running_var", 0.5)):
            values = rng.uniform(low, low + 1, unit.outputs)
            found[f"{prefix}{unit.torch_norm}.{part}"] = values.astype(np.float32)
        found[f"{prefix}{unit.torch_norm}.num_batches_tracked"] = np.array(7)
    found[f"{prefix}fc.weight"] = np.ones((10, unit.outputs), np.float32)
    found[f"{prefix}fc.bias"] = np.ones(10, np.float32)
    return found
