"""Targets among weights from elsewhere: PyTorch's files of both formats, safetensors, Keras' files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from fuzz.target import Facts, digest
from segmenter.model.pretrained.keras_files import KERNELS, file_bands
from segmenter.model.pretrained.torch_files import read_safetensors, read_torch, write_safetensors

_SHAPES = {"conv.weight": (4, 3, 3, 3), "norm.weight": (4,), "norm.running_var": (4,)}
PICKLES = (
    *(
        b"cos\nsystem\n",
        b"cbuiltins\neval\n",
        b"ctorch.storage\n_load_from_bytes\n",
        b"c__builtin__\ngetattr\n",
    ),
    *(
        b"R",
        b"b",
        b"\x81",
        b"\x93",
        b"(",
        b"t",
        b"\x85",
        b"\x86",
        b"\x87",
        b"d",
        b"}",
        b"s",
        b"u",
        b"]",
        b"a",
        b"e",
    ),
    *(
        b"0",
        b"1",
        b"2",
        b"h\x00",
        b"j\x00\x00\x00\x00",
        b"q\x00",
        b"r\xff\xff\xff\x7f",
        b"\x94",
        b"Q",
        b"P9\n",
    ),
    *(b"X\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 7 + b"\x7f", b"\x8e" + b"\xff" * 8, b"\x8b\xff\xff\xff\x7f"),
    *(b"I999999999999\n", b"L-1L\n", b"Fnan\n", b"\x95" + b"\xff" * 8, b"\x82\x01", b"i__main__\nx\n", b"."),
    b")" + b"\x94h\x00\x86" * 40,
)
"""Opcodes that run, build, repeat or ask for much, to be put anywhere."""


def _arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in _SHAPES.items()}


def _text(text: str) -> bytes:
    return b"X" + len(text).to_bytes(4, "little") + text.encode()


def _numbers(*values: int) -> bytes:
    return b"(" + b"".join(b"J" + value.to_bytes(4, "little") for value in values) + b"t"


def _state(arrays: dict[str, np.ndarray]) -> bytes:
    """The pickle of a dictionary of tensors, as PyTorch writes it, opcode by opcode: it is not installed."""
    code = b"\x80\x02}" + _text("state_dict") + b"ccollections\nOrderedDict\n)R("
    for key, (name, array) in enumerate(arrays.items()):
        strides = [step // array.itemsize for step in array.strides]
        storage = b"(" + _text("storage") + b"ctorch\nFloatStorage\n" + _text(str(key)) + _text("cpu")
        code += _text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n("
        code += storage + b"J" + array.size.to_bytes(4, "little") + b"tQ"
        code += (
            b"K\x00" + _numbers(*array.shape) + _numbers(*strides) + b"\x89ccollections\nOrderedDict\n)RtR"
        )
    return code + b"us."


def make_torch(folder: Path) -> None:
    """The same weights as PyTorch writes them since 1.6, and as it did before."""
    arrays = _arrays()
    with zipfile.ZipFile(folder / "new.pth", "w") as archive:
        archive.writestr("archive/data.pkl", _state(arrays))
        archive.writestr("archive/byteorder", "little")
        for key, array in enumerate(arrays.values()):
            archive.writestr(f"archive/data/{key}", array.tobytes())
    version = b"M" + (1001).to_bytes(2, "little")
    magic = b"\x8a\x0a" + 0x1950A86A20F9469CFC6C.to_bytes(10, "little")
    system = b"}(" + _text("protocol_version") + version + _text("little_endian") + b"\x88u"
    parts = [b"\x80\x02" + part + b"." for part in (magic, version, system)]
    keys = b"".join(_text(str(key)) for key in range(len(arrays)))
    parts += [_state(arrays), b"\x80\x02](" + keys + b"e."]
    for array in arrays.values():
        parts += [array.size.to_bytes(8, "little"), array.tobytes()]
    (folder / "old.pth").write_bytes(b"".join(parts))


def read_pickled(file: Path) -> Facts:
    """Names and values; sizes are checked, so that no view is larger than the file."""
    return _facts(read_torch(file))


def make_safetensors(folder: Path) -> None:
    """The same as a table and numbers."""
    write_safetensors(folder / "a.safetensors", _arrays())


def read_table(file: Path) -> Facts:
    """Names and values."""
    return _facts(read_safetensors(file))


def make_keras(folder: Path) -> None:
    """A file of Keras' in small: arrays in groups."""
    import h5py

    with h5py.File(folder / "a.weights.h5", "w") as file:
        for name, array in _arrays().items():
            file.create_dataset(f"layers/{name.replace('.', '/vars/')}", data=array.T)
        file.create_dataset("layers/told/vars/0", KERNELS["mobilenet_v2"][0], "f4")  # empty: takes no room


def read_keras(file: Path) -> Facts:
    """Bands of its first layer: what is looked at before Keras loads it."""
    return [digest(file_bands(file, "mobilenet_v2"))]


def _facts(found: dict[str, np.ndarray]) -> Facts:
    return [f"{name} {digest(np.array(array))}" for name, array in found.items()]
