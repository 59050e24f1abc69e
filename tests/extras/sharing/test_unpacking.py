"""Packed runs of anybody: damage and tricks are refused in one line; what a killed call left goes."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.base.files import folder_aside, remove_killed, written_whole
from segmenter.base.sealed import sealed
from segmenter.extras.sharing.archive import pack_run, unpack_run
from segmenter.runs.run import load_run
from tests.helpers.made_described import contents, left_behind
from tests.helpers.refusals import refused


def not_unpacked(file: Path, folder: Path, match: str = "") -> None:
    """Unpacking fails in one line, and leaves nothing."""
    folder.mkdir(exist_ok=True)
    with refused(SegmenterError, where=str(file)) as raised:
        unpack_run(file, folder / "theirs")
    assert "\n" not in str(raised.value)
    assert re.search(match, str(raised.value))
    assert left_behind(folder) == []


def changed(packed: Path, output: Path, change: Callable[[dict[str, bytes]], Any], sums: bool = True) -> Path:
    """Another packed run with changed files, and with right checksums where `sums`."""
    with zipfile.ZipFile(packed) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    if sums and "SHA256SUMS" in files:
        del files["SHA256SUMS"]
        lines = [f"{hashlib.sha256(c).hexdigest()}  {n}\n" for n, c in sorted(files.items())]
        files["SHA256SUMS"] = "".join(lines).encode()
    with zipfile.ZipFile(output, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return output


def test_a_file_that_is_cut_or_changed_anywhere_is_refused(packed: Path, tmp_path: Path) -> None:
    whole, file = packed.read_bytes(), tmp_path / "b.zip"
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        file.write_bytes(whole[:length])
        not_unpacked(file, tmp_path / "out", "cut short|holds no")
    right = contents(unpack_run(packed, tmp_path / "right")[0])
    for place in range(0, len(whole), len(whole) // 41):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
        folder = tmp_path / "out" / str(place)
        with suppress(CheckpointError):  # else it is a time of the zip file, on which nothing depends
            assert contents(unpack_run(file, folder)[0]) == right
        assert folder.exists() == (folder / "SHA256SUMS").is_file()
    assert sorted(path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "/tmp/evil.json",
        "checkpoints/../../evil.npz",
        "evil.py",
        "checkpoints/step-1.npz/x",
        "a\\..\\b",
    ],
)
def test_names_that_lead_elsewhere_are_refused(packed: Path, tmp_path: Path, name: str) -> None:
    file = changed(packed, tmp_path / "b.zip", lambda files: files.update({name: b"x"}))
    not_unpacked(file, tmp_path / "out", "which none has")
    assert left_behind(tmp_path) == ["b.zip", "out"]


def test_what_would_grow_or_is_named_twice_or_is_no_packed_run_is_refused(
    packed: Path, tmp_path: Path, run: Path
) -> None:
    file = changed(packed, tmp_path / "b.zip", lambda files: None)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("run.json", b"{}")
    not_unpacked(file, tmp_path / "out", "named twice")

    with zipfile.ZipFile(packed) as whole, zipfile.ZipFile(tmp_path / "b.zip", "w", 8) as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name))
    not_unpacked(tmp_path / "b.zip", tmp_path / "out", "compressed")

    not_unpacked(run, tmp_path / "out", "a pipe or")
    not_unpacked(tmp_path / "none.zip", tmp_path / "out", "No such file")
    not_unpacked(run / "best.npz", tmp_path / "out", "no SHA256SUMS")


def edited(file: str, **values: Any) -> Callable[[dict[str, bytes]], None]:
    """A change of a sealed JSON file, sealed again."""

    def change(files: dict[str, bytes]) -> None:
        data = {key: value for key, value in json.loads(files[file]).items() if key != "crc"}
        files[file] = sealed(json.dumps({**data, **values})).encode()

    return change


@pytest.mark.parametrize(
    ("change", "sums", "match"),
    [
        (lambda files: files.pop("run.json"), True, "no run.json"),
        (lambda files: files.pop("SHA256SUMS"), True, "no SHA256SUMS"),
        (lambda files: files.update({"recipe.yaml": b"name: x\n"}), False, "recipe.yaml in it"),
        (lambda files: files.update({"recipe.yaml": b"name: x\n"}), True, "edited or damaged"),
        (lambda files: files.update({"best.npz": b"no arrays"}), True, "damaged checkpoint"),
        (lambda files: files.pop("best.npz"), True, "names best.npz, "),
        (lambda files: files.pop("best.npz"), False, "best.npz .* SHA256SUMS"),
        (lambda files: files.update({"SHA256SUMS": b"../../x"}), False, "SHA256SUMS, line 1"),
        (edited("pack.json", format=2), True, "format 1, got 2"),
        (edited("pack.json", fingerprint="?"), True, "pack.json .* fingerprint"),
        (lambda files: files.update({"pack.json": b"{}"}), True, "pack.json is damaged"),
    ],
)
def test_what_is_no_run_is_refused(
    packed: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], Any], sums: bool, match: str
) -> None:
    not_unpacked(changed(packed, tmp_path / "b.zip", change, sums), tmp_path / "out", match)


def test_a_packed_run_in_the_place_of_a_run_is_told_how_to_unpack(packed: Path) -> None:
    with refused(CheckpointError, where="mine.run.zip", got="a file", remedy="segmenter.runs unpack"):
        load_run(packed)


def test_a_name_that_is_no_folder_asks_for_one(packed: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert unpack_run(packed, None)[0] == Path("runs/mine")
    for name in ("../../x", "\x1b[31mx", "a\u202eb", "a\nb", "a\0b"):
        file = changed(packed, tmp_path / "b.zip", edited("pack.json", name=name))
        with refused(SegmenterError, where="b.zip", fault="folder", remedy="--output") as raised:
            unpack_run(file, None)
        assert str(raised.value).isprintable()


ROOT = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
def kill(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{what} = kill
{setup}
{call}
"""
PACK = "from segmenter.extras.sharing.archive import pack_run, unpack_run"
CALLS = {
    "pack": (PACK, "pack_run(Path({run!r}), Path({to!r}))"),
    "anonymous": (PACK, "pack_run(Path({run!r}), Path({to!r}), anonymous=True)"),
    "unpack": (PACK, "unpack_run(Path({packed!r}), Path({to!r}))"),
    "polygons": (
        "from segmenter.extras.vectors.writing import polygon_file",
        "kept = polygon_file(Path({to!r}), None)\nkept.__enter__()\nkill()",
    ),
}


def killed(folder: Path, call: str, what: str, **names: str) -> None:
    setup, text = CALLS[call]
    code = KILLED.format(what=what, setup=setup, call=text.format(**names))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("pack", "os.replace"),
        ("unpack", "os.rename"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (("anonymous", "os.fsync"), ("unpack", "os.fsync"))
        ),
    ],
)
def test_packing_and_unpacking_again_leaves_only_what_is_asked_for(
    call: str, what: str, run: Path, packed: Path, tmp_path: Path
) -> None:
    target = tmp_path / "a.b"
    killed(tmp_path, call, what, run=str(run), packed=str(packed), to=str(target))
    (tmp_path / ".a.b.notes.txt").write_text("mine")
    if call == "unpack":
        unpack_run(packed, target)
    else:
        pack_run(run, target, anonymous=call == "anonymous")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.b.notes.txt", "a.b"]


@pytest.mark.parametrize("ending", ["gpkg", pytest.param("parquet", marks=pytest.mark.slow)])
def test_polygons_written_again_leave_only_their_file(ending: str, tmp_path: Path) -> None:
    pytest.importorskip("pyogrio")
    from segmenter.extras.vectors.writing import polygon_file

    target = tmp_path / f"areas.{ending}"
    killed(tmp_path, "polygons", "os.nothing", to=str(target))
    with polygon_file(target, None):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_what_another_is_writing_stays(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with folder_aside(target) as folder, written_whole(target) as file:
        (folder / "half").touch()
        file.write(b"whole")
        with folder_aside(target) as other:
            assert other != folder
        remove_killed(target)
        assert (folder / "half").exists()
    assert target.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [target]
