"""PyTorch's files are read as data: whatever a pickle wants beyond tensors is refused, and nothing is run."""

import builtins
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import WeightsError
from segmenter.model.pretrained.torch_files import read_safetensors, read_torch
from tests.helpers.made_weights import Stored, legacy_file, pickled, stored, zip_file
from tests.helpers.refusals import refused

Write = Callable[..., Path]
_SCORE = Stored(np.array(0.5), "99")
both = pytest.mark.parametrize("write", [zip_file, legacy_file])


@pytest.fixture
def tensors(rng: np.random.Generator) -> dict[str, Any]:
    return {
        "a.weight": rng.normal(size=(5, 3, 7, 1)).astype(np.float32),
        "half": rng.normal(size=11).astype(np.float16),
        "double": rng.normal(size=(2, 1)),
        "count": np.array(41),
        "none": np.zeros((0, 3), np.float32),
    }


@both
@pytest.mark.parametrize(
    "wrap",
    [
        lambda t: t,
        lambda t: {"state_dict": t, "best_acc1": _SCORE},
        lambda t: {"model": {"loss": _SCORE, "state_dict": t}},
    ],
    ids=["plain", "beside-a-score", "two-levels"],
)
def test_tensors_come_back_with_name_type_and_value(
    tmp_path: Path, tensors: dict[str, Any], write: Write, wrap: Callable[[Any], Any]
) -> None:
    found = read_torch(write(tmp_path / "w.pth", wrap(stored(tensors))))
    assert list(found) == list(tensors)
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@both
def test_views_of_one_storage_are_views(tmp_path: Path, write: Write) -> None:
    values = np.arange(24, dtype=np.float32)
    part, transposed = Stored(values, "0", 5, (2, 2), (10, 3)), Stored(values, "0", 0, (4, 6), (1, 4))
    found = read_torch(write(tmp_path / "w.pth", {"part": part, "transposed": transposed}))
    np.testing.assert_array_equal(found["part"], [[5, 8], [15, 18]])
    np.testing.assert_array_equal(found["transposed"], values.reshape(6, 4).T)


def test_brain_floats_are_the_upper_halves_of_floats(tmp_path: Path) -> None:
    exact = np.array([1.0, -2.5, 0.0, 384.0], np.float32)
    halves = (exact.view(np.uint32) >> 16).astype("<u2")
    path = zip_file(tmp_path / "w.pth", {"w": Stored(halves, "0", storage="BFloat16Storage")})
    np.testing.assert_array_equal(read_torch(path)["w"], exact)


class _Hostile:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self._reduced = (function, arguments)

    def __reduce__(self) -> Any:
        return self._reduced


@both
@pytest.mark.parametrize(
    ("code", "named"),
    [
        (lambda mark: _Hostile(os.system, f"touch {mark}"), "posix.system"),
        (lambda mark: _Hostile(eval, f"open({str(mark)!r}, 'w')"), "__builtin__.eval"),
        (lambda mark: _Hostile(getattr, _Hostile(__import__, "os"), "system"), "__builtin__.getattr"),
        (lambda mark: {"state_dict": {"w": _Hostile(builtins.open, str(mark), "w")}}, "io.open"),
    ],
    ids=["system", "eval", "getattr", "nested"],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_wants_to_run_code_is_refused_by_name_and_runs_nothing(
    tmp_path: Path, write: Write, code: Any, named: str, protocol: int
) -> None:
    mark = tmp_path / "was-run"
    named = named if protocol == 2 else named.replace("__builtin__", "builtins")
    path = write(tmp_path / "w.pth", {}, code=pickle.dumps(code(mark), protocol))
    with refused(WeightsError, where=f"{path}: refused", got=named.split(".")[1]) as caught:
        read_torch(path)
    assert named in str(caught.value)
    assert str(caught.value).count("\n") == 0
    assert not mark.exists()


@pytest.mark.parametrize(
    ("code", "got"),
    [
        (b"\x80\x02ctorch\nQInt8Storage\n.", "the name torch.QInt8Storage"),
        (b"(U\x07touch xios\nsystem\n.", "the name os.system"),  # a call without a GLOBAL
        (b"\x80\x02ctorch\nFloatStorage\n)R.", "damaged pickle"),
        (b"\x80\x02h\x07.", "damaged pickle"),
        (b"\x80\x02\x8b\xff\xff\xff\x7f.", "damaged pickle"),  # a number of 2 GiB
    ],
)
@both
def test_a_damaged_pickle_is_refused(tmp_path: Path, write: Write, code: bytes, got: str) -> None:
    with refused(WeightsError, where="w.pth: refused", got=got):
        read_torch(write(tmp_path / "w.pth", {}, code=code))


_PAIRS = b"](U\x01aK\x01\x86U\x01bK\x01\x86eq\x00"


@pytest.mark.parametrize(
    "code",
    [
        b"\x80\x02" + _PAIRS + b"ccollections\nOrderedDict\nq\x01(" + b"h\x01h\x00\x85R" * 60 + b"t.",
        pickled(stored({f"{i}.weight": np.zeros(1) for i in range(60)})),
    ],
    ids=["pairs", "tensors"],
)
def test_too_many_entries_are_refused(tmp_path: Path, code: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segmenter.model.pretrained.torch_files._MOST_ENTRIES", 100)
    with refused(WeightsError, where="w.pth: refused", got="100 tensors, storages"):
        read_torch(zip_file(tmp_path / "w.pth", {}, code=code))


_TEN = np.arange(10, dtype=np.float32)


@pytest.mark.parametrize(
    "tensor",
    [
        Stored(_TEN, "0", 0, (11,), (1,)),
        Stored(_TEN, "0", 0, (2, 2), (1, 9)),
        Stored(_TEN, "0", -1, (2,), (1,)),
        Stored(_TEN, "0", 9, (2,), (-1,)),
        Stored(_TEN, "0", 0, (1 << 40,), (0,)),  # a terabyte out of one number
        Stored(_TEN, "0", 0, (1 << 62, 1 << 62), (0, 0)),
        Stored(_TEN, "0", 0, (2, 2), (1,)),
        Stored(_TEN, "0", 0, (1,) * 9, (1,) * 9),
    ],
)
def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path, tensor: Stored) -> None:
    for write in (zip_file, legacy_file):
        with refused(WeightsError, where="w.pth: refused", got="tensor"):
            read_torch(write(tmp_path / "w.pth", {"w": tensor}))


@pytest.mark.parametrize("claimed", [11, 1 << 60])
def test_a_storage_larger_than_its_bytes_is_refused(tmp_path: Path, claimed: int) -> None:
    tensor = Stored(_TEN, "0", 0, (10,), (1,), claimed=claimed)
    with pytest.raises(WeightsError, match="has 40 bytes"):
        read_torch(zip_file(tmp_path / "w.pth", {"w": tensor}))
    with refused(WeightsError, where="w.pth", fault="another size"):
        read_torch(legacy_file(tmp_path / "w.pth", {"w": tensor}))


@both
def test_a_cut_file_is_refused_wherever_it_is_cut(
    tmp_path: Path, tensors: dict[str, Any], write: Write
) -> None:
    whole = write(tmp_path / "w.pth", stored(tensors)).read_bytes()
    for length in [0, 1, 7, *range(20, len(whole), 61), len(whole) - 1]:
        cut = tmp_path / "cut.pth"
        cut.write_bytes(whole[:length])
        with pytest.raises(WeightsError) as caught:
            read_torch(cut)
        assert str(cut) in str(caught.value)


def test_a_bomb_is_refused_unopened(tmp_path: Path) -> None:
    zeros = {"w": Stored(np.zeros(1 << 20, np.float32), "0")}
    with refused(WeightsError, where="w.pth", fault="compressed"):
        read_torch(zip_file(tmp_path / "w.pth", zeros, compression=zipfile.ZIP_DEFLATED))


@pytest.mark.parametrize("found", [{"epoch": 3}, {"model": {"a": {"b": 1}}}, [1, 2]])
def test_a_file_without_weights_is_refused(tmp_path: Path, found: Any) -> None:
    with refused(WeightsError, where="w.pth", fault="weights"):
        read_torch(zip_file(tmp_path / "w.pth", found))


@pytest.mark.parametrize("axes", [9, 100])
def test_a_tensor_of_too_many_axes_is_refused(axes: int, tmp_path: Path) -> None:
    header = {"w": {"dtype": "F32", "shape": [1] * axes, "data_offsets": [0, 4]}}
    text = json.dumps(header).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(4))
    with refused(WeightsError, where="w", got=axes):
        read_safetensors(path)
