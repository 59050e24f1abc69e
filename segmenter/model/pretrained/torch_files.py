"""Tensors of PyTorch files (.pth, .pt, .ckpt) without PyTorch: pickles may name only tensors.

Both formats of `torch.save` are read: the zip archive (since 1.6) and the older one of several pickles
followed by raw storages. Sizes, strides and offsets are checked against the storage, and arrays are views of
it, so memory never exceeds the file's size.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import WeightsError, shorten
from segmenter.base.files import check_stored, read_regular, write_whole
from segmenter.base.invocation import installation

INSTALL = installation("pretrained")
_SAFE_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U8": "u1", "BOOL": "?",
}  # fmt: skip


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors by name; bfloat16 as float32.

    Raises:
        WeightsError: the file is missing, truncated or damaged, has numbers of another type, or the package
            to read it is not installed.
    """
    safetensors = _library(path)
    content = read_weights(path)
    try:
        tensors = safetensors.deserialize(content)  # the library checks the table against the file
    except safetensors.SafetensorError as error:
        what = shorten(" ".join(str(error).split()))
        raise WeightsError(path, f"no whole .safetensors file ({what})", remedy="get it again") from None
    return {name: _array(path, name, part) for name, part in sorted(tensors, key=lambda each: str(each[0]))}


def write_safetensors(path: Path, tensors: dict[str, NDArray[Any]]) -> None:
    """Write tensors to a file, completely or not at all.

    Raises:
        WeightsError: together they are larger than any network (they may be views of few numbers).
    """
    _library(path)
    if (total := sum(array.nbytes for array in tensors.values())) > MOST_BYTES:
        raise WeightsError(path, expected=f"at most {MOST_BYTES >> 30} GiB of tensors", got=total >> 30)
    from safetensors.numpy import save

    write_whole(path, save({name: np.array(array, order="C") for name, array in tensors.items()}))


def _library(path: Path) -> Any:
    try:
        import safetensors
    except ImportError:
        raise WeightsError(path, f"the package safetensors is not installed: {INSTALL}") from None
    return safetensors


def _array(path: Path, name: str, part: dict[str, Any]) -> NDArray[Any]:
    if part["dtype"] not in _SAFE_TYPES:
        raise WeightsError(f"{path}: {name}", expected=f"one of {', '.join(_SAFE_TYPES)}", got=part["dtype"])
    if len(part["shape"]) > MOST_AXES:
        raise WeightsError(f"{path}: {name}", expected=f"at most {MOST_AXES} axes", got=len(part["shape"]))
    values = np.frombuffer(part["data"], _SAFE_TYPES[part["dtype"]]).reshape(part["shape"])
    return upper_halves(values) if part["dtype"] == "BF16" else values


MOST_BYTES = 4 << 30
_MAGIC, _PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
MOST_AXES = 8
_MOST_ENTRIES = 1 << 20
"""Tensors, storages and pairs of dictionaries in a pickle, which may name one list again and again."""
_TYPES: dict[str, np.dtype[Any]] = {
    "torch FloatStorage": np.dtype("<f4"),
    "torch DoubleStorage": np.dtype("<f8"),
    "torch HalfStorage": np.dtype("<f2"),
    "torch BFloat16Storage": np.dtype("<u2"),  # the upper half of a float32
    "torch LongStorage": np.dtype("<i8"),
    "torch IntStorage": np.dtype("<i4"),
    "torch ShortStorage": np.dtype("<i2"),
    "torch CharStorage": np.dtype("i1"),
    "torch ByteStorage": np.dtype("u1"),
    "torch BoolStorage": np.dtype("?"),
}
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "network", "backbone", "encoder")
"""Keys under which training programs store the weights, besides the optimiser and the epoch."""

_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, OSError, ValueError, KeyError, TypeError, EOFError),
    *(RuntimeError, NotImplementedError, MemoryError, OverflowError),
)
"""Errors of `zipfile`, NumPy and the code here about changed files; RuntimeError: "encrypted"."""

Read = Callable[[str], memoryview]


class PickleError(ValueError):
    """A pickle is damaged, or names more than plain data and tensors."""


class _Storage(NamedTuple):  # which a pickle cannot change once it is made
    key: str
    kind: str
    length: int


class _Tensor(NamedTuple):
    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def read_torch(path: Path) -> dict[str, NDArray[Any]]:
    """Return the weights in a PyTorch file by name, as NumPy arrays that share the file's memory.

    From a training checkpoint, the entry `state_dict`, `model` or similar is taken.

    Raises:
        WeightsError: the file is missing, truncated, of another format, or would run code.
    """
    content = read_weights(path)
    try:
        if zipfile.is_zipfile(io.BytesIO(content)):
            unpickled, read = _open_zip(content)
        else:
            unpickled, read = _legacy(content)
        return _arrays(_state(unpickled), read)
    except PickleError as error:
        raise WeightsError(
            f"{path}: refused",
            expected="tensors and plain data only",
            got=shorten(str(error)),
            remedy="nothing of it was run",
        ) from None
    except _DAMAGE as error:
        what = shorten(" ".join(str(error).split())) or type(error).__name__
        raise WeightsError(path, f"no whole file of PyTorch's ({what})", remedy="get it again") from None


def read_weights(path: Path) -> bytes:
    """Return the bytes of a weight file.

    Raises:
        SegmenterError: the file is missing, too large, not regular or unreadable.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        what = "there is none" if isinstance(error, FileNotFoundError) else str(error.strerror)
        raise WeightsError(path, expected=f"a file of weights, {what}") from None
    if size > MOST_BYTES:
        raise WeightsError(path, expected=f"at most {MOST_BYTES >> 30} GiB", got=f"{size >> 30} GiB")
    return read_regular(path, max(size, 1))  # which takes memory for as many bytes as it may read


# ------------------------------------------------------------------------------------- the pickle


class _Unpickler(pickle._Unpickler):  # in Python: the one in C takes memory for any number in the memo
    """Unpickler that resolves only the names that PyTorch writes for tensors."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.storages: dict[str, _Storage] = {}
        self._entries = 0

    def plain(self) -> Any:
        """Return the object that begins at the file's position.

        Raises:
            PickleError: the pickle is damaged, or names something forbidden; the message names it.
        """
        try:
            return self.load()
        except PickleError:
            raise
        except Exception as error:  # of any kind: Python's documentation names no complete list
            text = f"{type(error).__name__}: {error}"
            raise PickleError(f"damaged pickle ({text})") from None

    def find_class(self, module: str, name: str, /) -> Any:
        makers = {
            "collections OrderedDict": self._dictionary,
            "torch._utils _rebuild_tensor_v2": self._tensor,
            "torch._utils _rebuild_parameter": lambda data, *_: _check_kind(data, _Tensor),
        }
        if (full_name := f"{module} {name}") in _TYPES:
            return full_name
        if full_name not in makers:
            raise PickleError(f"the name {module}.{name}")
        return makers[full_name]

    def persistent_load(self, identity: Any, /) -> _Storage:
        self._count(1)
        kind, name, key, _place, count, *view = _check_kind(identity, tuple)
        if kind != "storage" or any(view):
            raise PickleError("a persistent id of another kind than a storage")
        if _check_kind(name, str) not in _TYPES:
            raise PickleError(f"{name} as the type of a storage")
        storage = _Storage(_check_kind(key, str), name, _check_kind(count, int))
        if self.storages.setdefault(storage.key, storage) != storage:
            raise PickleError(f"two storages called {storage.key}")
        return storage

    def _dictionary(self, pairs: Iterable[tuple[Any, Any]] = ()) -> OrderedDict[Any, Any]:
        self._count(len(_check_kind(pairs, list)) if pairs else 1)
        return OrderedDict(pairs)

    def _tensor(self, *arguments: Any) -> _Tensor:
        self._count(1)
        return _tensor(*arguments)

    def _count(self, entries: int) -> None:
        self._entries += entries
        if self._entries > _MOST_ENTRIES:
            raise PickleError(f"more than {_MOST_ENTRIES:,} tensors, storages and pairs")


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    """Return the view of a storage, after checking that it is inside."""
    storage = _check_kind(storage, _Storage)
    numbers = [_check_kind(n, int) for n in (offset, *_check_kind(size, tuple), *_check_kind(stride, tuple))]
    if len(size) != len(stride) or len(size) > MOST_AXES or min(numbers) < 0:
        raise PickleError(f"a tensor of size {size} and strides {stride} from {offset}")
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    # Fewer elements than the storage has: a stride of 0 would make any size out of one number.
    if 0 not in size and (last >= storage.length or math.prod(size) > storage.length):
        raise PickleError(
            f"a tensor of size {size} and strides {stride} from {offset} in a storage of {storage.length}"
        )
    return _Tensor(storage, offset, size, stride)


def _check_kind(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise PickleError(f"a {type(value).__name__} where a {kind.__name__} is due")
    return value


# ---------------------------------------------------------------------------------- the containers


def _open_zip(content: bytes) -> tuple[Any, Read]:
    archive = zipfile.ZipFile(io.BytesIO(content))
    check_stored(archive, len(content))
    names = archive.namelist()
    pickles = [name for name in names if name.endswith("/data.pkl") or name == "data.pkl"]
    if len(pickles) != 1:
        raise ValueError("expected one data.pkl in it")
    root = pickles[0].removesuffix("data.pkl")
    if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
        raise ValueError("its numbers are big-endian")
    unpickled = _Unpickler(io.BytesIO(archive.read(pickles[0]))).plain()
    return unpickled, lambda key: memoryview(archive.read(f"{root}data/{key}"))


def _legacy(content: bytes) -> tuple[Any, Read]:
    file = io.BytesIO(content)
    if content[:1] != b"\x80" or _Unpickler(file).plain() != _MAGIC:
        raise ValueError("another format")
    if _Unpickler(file).plain() != _PROTOCOL or not _Unpickler(file).plain()["little_endian"]:
        raise ValueError("another version of the format")
    weights = _Unpickler(file)
    unpickled, storages = weights.plain(), weights.storages
    parts: dict[str, memoryview] = {}
    for key in _check_kind(_Unpickler(file).plain(), list):
        start = file.tell() + 8
        size = storages[key].length * _TYPES[storages[key].kind].itemsize
        if int.from_bytes(file.read(8), "little") != storages[key].length or start + size > len(content):
            raise ValueError(f"the storage {key} is cut or of another size")
        parts[key] = memoryview(content)[start : start + size]
        file.seek(start + size)
    return unpickled, parts.__getitem__


def _state(found: Any) -> dict[str, _Tensor]:
    """Return the weights by name: the deepest level, below wrappers, with most tensors.

    Other tensors may be present, such as the loss or the best score.
    """
    levels: list[dict[str, _Tensor]] = []
    for _ in range(3):
        if not isinstance(found, dict):
            break
        levels.append({n: v for n, v in found.items() if isinstance(n, str) and isinstance(v, _Tensor)})
        found = next((found[key] for key in _WRAPPERS if isinstance(found.get(key), dict)), None)
    if most := max(levels, key=len, default={}):
        return most
    raise ValueError("expected weights by name in it, at most under state_dict or model")


def _arrays(state: Mapping[str, _Tensor], read: Read) -> dict[str, NDArray[Any]]:
    flat: dict[str, NDArray[Any]] = {}
    arrays = {}
    for name, tensor in state.items():
        storage = tensor.storage
        if storage.key not in flat:
            flat[storage.key] = _numbers(read(storage.key), storage)
        values = flat[storage.key]
        if len(values) < storage.length:
            raise ValueError(f"the storage {storage.key} is cut")
        if 0 in tensor.size:
            arrays[name] = np.zeros(tensor.size, values.dtype)
            continue
        arrays[name] = np.lib.stride_tricks.as_strided(
            values[tensor.offset : storage.length],
            tensor.size,
            [step * values.itemsize for step in tensor.stride],
            writeable=False,
        )
    return arrays


def _numbers(raw: memoryview, storage: _Storage) -> NDArray[Any]:
    kind = _TYPES[storage.kind]
    if len(raw) != storage.length * kind.itemsize:
        raise ValueError(f"the storage {storage.key} has {len(raw)} bytes for {storage.length} numbers")
    values = np.frombuffer(raw, kind)
    if storage.kind == "torch BFloat16Storage":
        return upper_halves(values)
    return values


def upper_halves(values: NDArray[Any]) -> NDArray[np.float32]:
    """Convert bfloat16 values, read as 16-bit integers, to float32, of which they are the upper halves."""
    return (values.astype(np.uint32) << 16).view(np.float32)
