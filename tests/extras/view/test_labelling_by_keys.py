"""The labelling page in a browser, by the keyboard alone: what it says is saved is in the file."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'")

from datasets.commands.view_kinds import routes_of
from segmenter.extras.vector_files.database import UNCLEAR
from segmenter.extras.view.opening import Wanted
from tests.helpers.geopackage import changed
from tests.helpers.page_client import headless, press, served, text_of, until
from tests.helpers.sampled_points import NAMES, sampled_points

pytestmark = pytest.mark.browser

BACKSPACE = "\ue003"


def held(path: Path) -> list[str | None]:
    with sqlite3.connect(path) as file:
        found = [answer for (answer,) in file.execute("SELECT reference FROM points ORDER BY id")]
    file.close()
    return found


def answered(page: Any, count: int) -> None:
    until(lambda: text_of(page, "count").startswith(f"{count} of 60"), f"{count} answers")


def test_points_are_labelled_by_keys(tmp_path: Path) -> None:
    path = sampled_points(tmp_path)
    with routes_of(Wanted((path,), tmp_path / "images")) as routes, served(routes) as server:
        with headless(tmp_path / "one", server.address) as page:
            until(lambda: "Point 1" in text_of(page, "question"))
            for number, key in enumerate("123120", 1):
                press(page, key)
                answered(page, number)
            assert held(path)[:7] == [*NAMES, *NAMES[:2], UNCLEAR, None]
            press(page, BACKSPACE)
            until(lambda: "Point 6" in text_of(page, "question"))
            press(page, BACKSPACE)
            until(lambda: "Point 5" in text_of(page, "question"))
            pressed = "return document.querySelector('[aria-pressed=true]').dataset.answer"
            assert page.execute_script(pressed) == NAMES[1]
            press(page, "3")
            until(lambda: "Point 7" in text_of(page, "question"))
            assert held(path)[4] == NAMES[2]
            press(page, "9", "x", "\ue00c")
            assert held(path)[6] is None, "keys of no class"
            size = "const i = document.querySelector('img'); return i.complete && i.naturalWidth"
            until(lambda: page.execute_script(size) == 129)
            press(page, "+")
            until(lambda: page.execute_script(size) == 65)
            page.get("about:blank")
        with headless(tmp_path / "two", server.address, 390, 844, dark=True) as page:
            until(lambda: "Point 7" in text_of(page, "question"))
            assert page.execute_script("return document.documentElement.scrollWidth <= innerWidth")
            changed(path, ("UPDATE points SET reference = ? WHERE id = 7", (NAMES[1],)))
            press(page, "1")
            until(lambda: "changed by another program" in text_of(page, "status"))
            assert "Point 7" in text_of(page, "question")
            assert held(path)[6] == NAMES[1]
            press(page, "1")
            until(lambda: "Point 8" in text_of(page, "question"))
            assert held(path)[6] == NAMES[0]


def test_a_second_page_reads_until_it_takes_over(tmp_path: Path) -> None:
    path = sampled_points(tmp_path)
    with (
        routes_of(Wanted((path,), tmp_path / "images")) as routes,
        served(routes) as server,
        headless(tmp_path / "one", server.address) as one,
        headless(tmp_path / "two", server.address) as two,
    ):
        until(lambda: "Point 1" in text_of(one, "question") and "Point 1" in text_of(two, "question"))
        press(one, "1")
        answered(one, 1)
        press(two, "2")
        button = "return document.querySelector('#status button')"
        until(lambda: two.execute_script(button))
        two.execute_script(button).click()
        until(lambda: "writes now" in text_of(two, "status"))
        assert held(path)[:2] == [NAMES[0], None]
        press(two, "2")
        until(lambda: "changed by another program" in text_of(two, "status"))
        press(two, "2")
        answered(two, 1)
        press(one, "3")
        until(lambda: "Another page" in text_of(one, "status"))
    assert held(path)[:3] == [NAMES[1], None, None]


def test_after_the_last_point_the_page_names_the_next_command(tmp_path: Path) -> None:
    path = sampled_points(tmp_path)
    changed(path, ("UPDATE points SET reference = ? WHERE id < 60", (NAMES[0],)))
    with (
        routes_of(Wanted((path,), tmp_path / "images")) as routes,
        served(routes) as server,
        headless(tmp_path / "one", server.address) as page,
    ):
        until(lambda: "Point 60" in text_of(page, "question"))
        press(page, "2")
        until(lambda: "All are answered" in text_of(page, "question"))
        assert f"accuracy estimate {path}" in text_of(page, "detail")
        assert "60 points" in text_of(page, "intervals")
        press(page, BACKSPACE)
        until(lambda: "Point 60" in text_of(page, "question"))


def test_names_are_text(tmp_path: Path) -> None:
    names = ("<img src=x onerror=document.title=1>", "</script><b>x", "a\"'&amp;")
    path = sampled_points(tmp_path, names=names).rename(tmp_path / "<b>.gpkg")
    with (
        routes_of(Wanted((path,), tmp_path / "images")) as routes,
        served(routes) as server,
        headless(tmp_path / "one", server.address) as page,
    ):
        until(lambda: "Point 1" in text_of(page, "question"))
        for name in names:
            assert name in text_of(page, "answers")
        assert text_of(page, "title") == "<b>.gpkg"
        assert page.execute_script("return document.querySelectorAll('b, #answers img').length") == 0
        press(page, "1")
        answered(page, 1)
    assert held(path)[0] == names[0]
