"""Answers in a GeoPackage: durable, never over another program's change, one process at a time."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from segmenter.base.errors import DatasetError, OutputError, SegmenterError
from tests.helpers.refusals import refused

pytest.importorskip("pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'")

from segmenter.extras.vector_files.answers import AnswerChangedError, AnswerTable
from segmenter.extras.vector_files.database import UNCLEAR
from segmenter.extras.vector_files.library import pyogrio
from tests.helpers.geopackage import changed
from tests.helpers.sampled_points import NAMES, sampled_points

COLUMNS = ("id", "map", "row", "col")


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sampled_points(tmp_path_factory.mktemp("sampled"))


@pytest.fixture
def points(sampled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(sampled, tmp_path))


def opened(path: Path) -> AnswerTable:
    return AnswerTable(path, "points", COLUMNS)


def test_an_answer_changes_its_field_alone_and_the_file_stays_a_whole_geopackage(points: Path) -> None:
    before = pyogrio.raw.read(points, layer="points", return_fids=True)
    with opened(points) as table:
        fourth = table.rows()[3]
        assert table.write(fourth.fid, fourth.stamp, "Wald ¼").answer == "Wald ¼"
        assert table.counts() == {"": 59, "Wald ¼": 1}
    after = pyogrio.raw.read(points, layer="points", return_fids=True)
    names = list(before[0]["fields"])
    for name, old, new in zip(names, before[3], after[3], strict=True):
        expected = [*old[:3], "Wald ¼", *old[4:]] if name == "reference" else list(old)
        assert list(new) == expected, name
    assert list(before[2]) == list(after[2])
    box = pyogrio.read_bounds(points, layer="points")[1][:, 3]
    near = pyogrio.raw.read(points, layer="points", bbox=(*box[:2] - 0.1, *box[:2] + 0.1), return_fids=True)
    assert fourth.fid in near[1], "found by the spatial index"
    with sqlite3.connect(points) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    file.close()


@pytest.mark.parametrize("wal", [False, True])
def test_a_row_that_another_program_changed_is_read_again_and_never_overwritten(
    points: Path, wal: bool
) -> None:
    if wal:  # as QGIS opens a GeoPackage
        changed(points, "PRAGMA journal_mode = WAL")
    with opened(points) as table:
        first, second = table.rows()[:2]
        changed(points, ("UPDATE points SET reference = ? WHERE fid = ?", (NAMES[2], first.fid)))
        with pytest.raises(AnswerChangedError):
            table.write(first.fid, first.stamp, NAMES[0])
        now = table.rows()[0]
        assert now.answer == NAMES[2]
        assert table.write(first.fid, now.stamp, NAMES[0]).answer == NAMES[0]
        changed(points, ("DELETE FROM points WHERE fid = ?", (second.fid,)))
        with pytest.raises(AnswerChangedError):
            table.write(second.fid, second.stamp, NAMES[0])


def test_another_sample_under_the_same_name_takes_no_answer(points: Path, tmp_path: Path) -> None:
    other = sampled_points(tmp_path / "other", seed=1)
    with opened(points) as table:
        row = table.rows()[0]
        shutil.copy(other, points)
        with pytest.raises(AnswerChangedError):
            table.write(row.fid, row.stamp, NAMES[0])
        assert table.counts() == {"": 60}


def test_a_transaction_of_another_program_is_waited_for_and_a_long_one_named(
    points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("segmenter.extras.vector_files.database._WAIT_SECONDS", 0.1)
    with opened(points) as table:
        row = table.rows()[0]
        other = sqlite3.connect(points, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(OutputError):
            table.write(row.fid, row.stamp, NAMES[0])
        other.execute("ROLLBACK")
        other.close()
        assert table.write(row.fid, row.stamp, NAMES[0]).answer == NAMES[0]


def test_one_process_writes_and_others_read(points: Path) -> None:
    with opened(points) as one, opened(points) as other:
        row = one.write(1, one.rows()[0].stamp, NAMES[0])
        assert other.rows()[0] == row
        with pytest.raises(SegmenterError):
            other.write(1, row.stamp, NAMES[1])
        assert one.write(1, row.stamp, UNCLEAR).answer == UNCLEAR
    with opened(points) as later:
        assert later.write(1, later.rows()[0].stamp, None).answer == ""


_LABELS = """
import sys
from pathlib import Path
from segmenter.extras.vector_files.answers import AnswerTable
table = AnswerTable(Path(sys.argv[1]), "points", ("id", "map", "row", "col"))
rows = table.rows()
while True:
    for number, row in enumerate(rows):
        answer = sys.argv[2 + (number + len(row.answer)) % 3]
        rows[number] = table.write(row.fid, row.stamp, answer)
        print(row.fid, rows[number].answer, flush=True)
"""


@pytest.mark.slow
def test_kill_9_while_labelling_loses_no_acknowledged_answer(points: Path) -> None:
    for stop in (25, 32, 60):
        call = [sys.executable, "-c", _LABELS, str(points), *NAMES]
        with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(stop)]
            os.kill(child.pid, signal.SIGKILL)
            lines += [line for line in child.stdout if line.endswith("\n")]
        pairs = [line.rstrip("\n").split(" ", 1) for line in lines]
        acknowledged = {int(fid): answer for fid, answer in pairs}
        with opened(points) as table:
            held = {row.fid: row.answer for row in table.rows()}
        apart = [fid for fid, answer in acknowledged.items() if held[fid] != answer]
        assert apart in ([], [int(pairs[-1][0]) % len(held) + 1]), "but the one on its way"
        assert set(held.values()) <= {"", *NAMES}


def test_what_a_killed_program_left_of_a_transaction_is_undone(points: Path) -> None:
    from datasets.commands.accuracy import main

    code = (
        "import os, sqlite3, sys\n"
        "file = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "file.execute('PRAGMA cache_size = 1'); file.execute('PRAGMA cache_spill = 1')\n"
        "for name in ('ST_IsEmpty', 'ST_MinX', 'ST_MaxX', 'ST_MinY', 'ST_MaxY'):\n"
        "    file.create_function(name, 1, lambda _: 0)\n"
        "file.execute('BEGIN IMMEDIATE')\n"
        "file.execute('UPDATE points SET reference = hex(zeroblob(3000))')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, str(points)], check=False)
        assert Path(f"{points}-journal").stat().st_size
        with pytest.raises(DatasetError):
            main(["estimate", str(points)])  # no point has a label
        assert not Path(f"{points}-journal").exists()
        with opened(points) as table:
            assert table.counts() == {"": 60}


def test_a_file_that_is_no_sample_is_refused(points: Path, tmp_path: Path) -> None:
    with refused(DatasetError, expected="the field rank"):
        AnswerTable(points, "points", ("rank",))
    (tmp_path / "empty.gpkg").write_bytes(b"SQLite format 3\0")
    with pytest.raises(SegmenterError):
        opened(tmp_path / "empty.gpkg")
