"""What a killed call leaves goes with the next of the same command; what another is at work on stays."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segmenter.base.files import folder_aside, remove_killed, written_whole
from segmenter.extras.sharing.archive import pack_run, unpack_run

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
