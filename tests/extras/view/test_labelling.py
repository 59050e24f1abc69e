"""Labelling in a page: blind, in the drawn order, one page at a time, as if it were done in QGIS."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest
import rasterio

pytest.importorskip("pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'")

from datasets.commands.accuracy import main as accuracy
from datasets.commands.view_kinds import routes_of
from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.extras.vector_files.database import UNCLEAR
from segmenter.extras.view.labelling import SIDES
from segmenter.extras.view.opening import Wanted
from tests.helpers.geopackage import changed
from tests.helpers.page_client import PageClient, served
from tests.helpers.sampled_points import NAMES, sampled_points


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    sampled_points(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


@pytest.fixture
def page(folder: Path) -> Iterator[PageClient]:
    with routes_of(Wanted((folder / "points.gpkg",), folder / "images")) as routes, served(routes) as server:
        yield PageClient(server)


def truth(row: Any) -> str:
    """A class that follows from a point's number."""
    return NAMES[(7 * int(row["number"])) % 3]


def estimated(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert accuracy(["estimate", str(path), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_points_come_in_their_order_and_the_estimate_is_that_of_the_same_labels_in_qgis(
    page: PageClient, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    in_qgis = Path(shutil.copy(folder / "points.gpkg", folder / "qgis.gpkg"))
    row, numbers, intervals, labels = page.get("next/0"), [], [], []
    while row is not None:
        numbers.append(row["number"])
        text = UNCLEAR if row["number"] % 13 == 0 else truth(row)
        status, saved = page.answer(row, text)
        assert (status, saved["row"]["answer"]) == (200, text)
        if text != UNCLEAR:
            labels.append(("UPDATE points SET reference = ? WHERE id = ?", (text, row["number"])))
        if len(numbers) % 10 == 0 and len(numbers) >= 40:
            intervals.append(saved["progress"]["intervals"][-1])
            changed(in_qgis, *labels)
            overall = estimated(in_qgis, capsys)["overall"]
            assert intervals[-1][1:] == [overall["low"], overall["high"]]
        row = page.get(f"next/{row['fid']}")
    assert numbers == list(range(1, 61))
    assert estimated(folder / "points.gpkg", capsys) == estimated(in_qgis, capsys)
    assert len({points for points, _, _ in intervals}) == 3
    progress = page.get("state?page=one")["progress"]
    assert (progress["answered"], progress["total"], progress["unclear"]) == (60, 60, 4)


@pytest.mark.slow
def test_what_the_map_says_is_nowhere_in_what_the_page_receives(folder: Path, made: Path) -> None:
    """Two files that differ in nothing but the map's classes give the same bytes to a page."""
    path, seen = folder / "points.gpkg", []
    for order in (NAMES, (*NAMES[1:], NAMES[0])):
        shutil.copy(made / "points.gpkg", path)
        turned = " ".join(f"WHEN '{a}' THEN '{b}'" for a, b in zip(NAMES, order, strict=True))
        for field in ("mapped", "stratum"):
            changed(path, f"UPDATE points SET {field} = CASE {field} {turned} END")
        with routes_of(Wanted((path,), folder / "images")) as routes, served(routes) as server:
            page = PageClient(server)
            page.ask("")
            page.ask("label.js")
            page.get("state?page=one")
            row = page.get("next/0")
            for number in range(9):
                page.ask(f"place/{row['fid']}/image/{SIDES[number % 6]}")
                page.answer(row, truth(row))
                page.ask(f"before/{row['fid']}")
                page.ask(f"after/{row['fid']}")
                page.ask(f"row/{row['fid']}")
                row = page.get(f"next/{row['fid']}")
            for path_ in ("value/0/1/1", "tile/0/map/0/0/0", "sight/0/0/0/9/9", "list/0", "place/1/map/33"):
                assert page.ask(path_)[0] == 404
        seen.append(page.seen)
    at = next((i for i in range(len(seen[0])) if seen[0][i : i + 1] != seen[1][i : i + 1]), 0)
    assert seen[0] == seen[1], (seen[0][at - 300 : at + 100], seen[1][at - 300 : at + 100])
    assert len(seen[0]) > 10_000


@pytest.mark.slow
def test_an_answer_given_anew_moves_no_interval_before_ten_more(page: PageClient) -> None:
    """Else whoever changes one answer to and fro reads from the interval what the map says there."""
    row = page.get("next/0")
    for _ in range(50):
        _, saved = page.answer(row, truth(row))
        row = page.get(f"next/{row['fid']}")
    before = saved["progress"]["intervals"]
    for name in (*NAMES, UNCLEAR, None, NAMES[0]):
        status, saved = page.answer(page.get(f"row/{saved['row']['fid']}"), name)
        assert status == 200
        assert saved["progress"]["intervals"] == before
    assert before


def test_a_server_that_is_started_anew_tells_no_interval_before_the_next_tenth_answer(folder: Path) -> None:
    """Else two intervals are one answer apart."""
    wanted, told = Wanted((folder / "points.gpkg",), folder / "images"), []
    for answers in (39, 2, 9):
        with routes_of(wanted) as routes, served(routes) as server:
            page = PageClient(server)
            row = page.get("next/0")
            told.append(len(page.get("state?page=one")["progress"]["intervals"]))
            for _ in range(answers):
                _, saved = page.answer(row, truth(row))
                row = page.get(f"next/{row['fid']}")
            told.append([points for points, _, _ in saved["progress"]["intervals"]])
    assert told[2:] == [0, [40], 0, [50]]


def test_one_page_writes_and_others_read_until_they_take_over(page: PageClient) -> None:
    other = PageClient(page.server, "other")
    first = page.get("next/0")
    _, saved = page.answer(first, NAMES[0])
    assert other.get(f"row/{first['fid']}") == saved["row"]
    second = other.get("next/0")
    status, refusal = other.answer(second, NAMES[1])
    assert (status, refusal["changed"]) == (409, False)
    assert not other.get("state?page=other")["progress"]["writes"]
    assert other.ask("claim", {})[0] == 200
    assert other.answer(second, NAMES[1])[0] == 200
    assert page.answer(page.get("next/0"), NAMES[1])[0] == 409
    assert other.ask("leave", {})[0] == 200
    assert page.answer(page.get("next/0"), NAMES[1])[0] == 200


def test_a_second_server_reads_and_a_new_sample_waits(page: PageClient, folder: Path) -> None:
    path = folder / "points.gpkg"
    _, saved = page.answer(page.get("next/0"), NAMES[0])
    with routes_of(Wanted((path,), folder / "images")) as routes, served(routes) as server:
        other = PageClient(server)
        assert other.get(f"row/{saved['row']['fid']}") == saved["row"]
        assert other.answer(other.get("next/0"), NAMES[0])[0] == 409
    with pytest.raises(SegmenterError):
        accuracy(
            [
                "sample",
                str(folder / "maps"),
                "--points",
                "60",
                "--floor",
                "4",
                "--output",
                str(path),
                "--overwrite",
            ]
        )


def test_a_point_that_qgis_changed_in_between_is_shown_again(page: PageClient, folder: Path) -> None:
    row = page.get("next/0")
    changed(folder / "points.gpkg", ("UPDATE points SET reference = ? WHERE fid = ?", (NAMES[2], row["fid"])))
    status, refusal = page.answer(row, NAMES[0])
    assert (status, refusal["changed"]) == (409, True)
    again = page.get(f"row/{row['fid']}")
    assert again["answer"] == NAMES[2]
    assert page.get("next/0")["fid"] != row["fid"]
    assert page.answer(again, NAMES[0])[0] == 200


def test_a_place_is_the_image_around_the_pixel(page: PageClient, folder: Path) -> None:
    with rasterio.open(folder / "images" / "a.tif") as file:
        image = np.moveaxis(file.read(), 0, 2)
    padded = np.zeros((101 + 130, 203 + 130, 4), np.uint8)
    padded[65:166, 65:268, :3], padded[65:166, 65:268, 3] = image, 255
    row = page.get("next/0")
    for _ in range(12):
        at_row, at_col = map(int, re.findall(r"\d+", row["detail"].split("row")[1]))
        status, content = page.ask(f"place/{row['fid']}/image/129")
        assert status == 200
        picture = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
        expected = padded[at_row + 1 : at_row + 130, at_col + 1 : at_col + 130]
        np.testing.assert_array_equal(cv2.cvtColor(picture, cv2.COLOR_BGRA2RGBA), expected)
        row = page.get(f"after/{row['fid']}")


def test_back_and_on_walk_over_all_points(page: PageClient) -> None:
    forth, row = [], page.get("after/0")
    while row is not None:
        forth.append(row["fid"])
        row = page.get(f"after/{row['fid']}")
    back, row = [], page.get("before/0")
    while row is not None:
        back.append(row["fid"])
        row = page.get(f"before/{row['fid']}")
    assert back == forth[::-1]
    assert len(forth) == 60


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"page": "a"}',
        b'{"page": "a", "fid": "1", "stamp": "", "answer": "water"}',
        b'{"page": "a", "fid": 1, "stamp": "", "answer": ["water"]}',
        b'{"page": "a", "fid": 1, "stamp": "", "answer": "lava"}',
        b'{"page": {}, "fid": 1, "stamp": "", "answer": null}',
        b'{"page": "a", "fid": 1e99, "stamp": "", "answer": null}',
    ],
)
def test_a_body_that_is_no_answer_is_refused(folder: Path, body: bytes) -> None:
    from segmenter.extras.view.server import Asked

    with routes_of(Wanted((folder / "points.gpkg",), None)) as routes:
        with pytest.raises(SegmenterError):
            routes["POST answer"](Asked(("answer",), {}, body))
        assert '"answered": 0' in routes["GET state"](Asked(("state",), {})).content.decode()


def test_points_without_an_image_have_the_pictures_of_their_sample(folder: Path) -> None:
    shutil.rmtree(folder / "images" / "none", ignore_errors=True)
    with routes_of(Wanted((folder / "points.gpkg",), None)) as routes, served(routes) as server:
        page = PageClient(server)
        row = page.get("next/0")
        assert row["layers"] == []
        assert "--images" in row["fault"]
        chips = folder / "points.chips"
        chips.mkdir()
        picture = cv2.imencode(".png", np.zeros((5, 5, 3), np.uint8))[1].tobytes()
        (chips / f"{row['number']}.png").write_bytes(picture)
        assert page.get("next/0")["layers"] == ["picture"]
        assert page.ask(f"place/{row['fid']}/picture/129") == (200, picture)


@pytest.mark.parametrize(
    "change", ["id = '../../images/a'", "row = 'x'", "col = NULL", "row = -4", "map = '../../../etc/passwd'"]
)
def test_an_edited_point_is_an_error_of_one_line(folder: Path, change: str) -> None:
    changed(folder / "points.gpkg", f"UPDATE points SET {change} WHERE fid = 1")
    (folder / "images" / "a.png").write_bytes(b"secret")
    with routes_of(Wanted((folder / "points.gpkg",))) as routes, served(routes) as server:
        page = PageClient(server)
        replies = [page.ask("row/1"), page.ask("place/1/image/33"), page.ask("place/1/picture/33")]
        assert {status for status, _ in replies} <= {200, 404}
        assert all(isinstance(json.loads(content), dict) for _, content in replies)
        assert "secret" not in page.seen.decode()


def test_only_one_file_of_questions_is_shown(folder: Path) -> None:
    points = folder / "points.gpkg"
    for wrong in (Wanted((points, folder / "maps")), Wanted((points,), labels="{stem}.tif")):
        with pytest.raises(SegmenterError), routes_of(wrong):
            pass
    (folder / "other.gpkg").write_bytes(b"")
    with pytest.raises(DatasetError), routes_of(Wanted((folder / "other.gpkg",), None)):
        pass


def test_kill_9_of_the_server_loses_no_answer_that_the_page_saw_saved(folder: Path) -> None:
    path, saved = folder / "points.gpkg", {}
    for stop in (7, 15):
        words = ["view", str(path), "--no-browser", "--images", str(folder / "images")]
        call = [sys.executable, "-c", f"from datasets.commands import main; main({words})"]
        with subprocess.Popen(call, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            address = re.search(r"localhost:(\d+)/([^/]+)/", child.stdout.readline())
            assert address is not None
            page = PageClient(SimpleNamespace(port=int(address[1]), token=address[2]))
            row = page.get("next/0")
            for _ in range(stop):
                status, answer = page.answer(row, truth(row))
                assert status == 200
                saved[row["number"]] = answer["row"]["answer"]
                row = page.get(f"next/{row['fid']}")
            os.kill(child.pid, signal.SIGKILL)
    with routes_of(Wanted((path,), folder / "images")) as routes, served(routes) as server:
        page = PageClient(server)
        held, row = {}, page.get("after/0")
        while row is not None:
            held[row["number"]] = row["answer"]
            row = page.get(f"after/{row['fid']}")
        assert {number: held[number] for number in saved} == saved
        assert sum(text != "" for text in held.values()) == len(saved) == 22
        assert page.answer(page.get("next/0"), NAMES[0])[0] == 200
