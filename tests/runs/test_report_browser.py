"""The report of a training in a real browser: no errors, no network, all drawn, on a phone and on paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from segmenter.runs.report.sections import write_report
from tests.helpers.browser import (
    PAPER,
    PHONE,
    WIDE,
    Driver,
    browser,
    check_page,
    cut_off,
    eventually,
    open_page,
    widths,
)
from tests.helpers.made_diagnosis import HOSTILE, NAIC
from tests.helpers.trained_run import trained_run

CASES: dict[str, dict[str, Any]] = {
    "whole": {"names": NAIC},
    "without a validation": {"validations": False, "epochs": 1, "windows": 0},
    "forty": {"names": [f"class {i}" for i in range(40)], "absent": [3]},
    "hostile": {"names": HOSTILE, "scenes": HOSTILE},
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def show(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], None]:
    """`show("whole", 390)`: opens a case's page at a window's width."""
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, Path] = {}

    def make(case: str) -> Path:
        run = folder / case
        trained_run(run, **CASES[case])
        return write_report(run)

    def open_case(case: str, width: int) -> None:
        if case not in made:
            made[case] = make(case)
        open_page(driver, made[case], width)

    return open_case


@pytest.mark.parametrize(
    ("case", "width"),
    [("whole", PHONE), ("without a validation", PHONE), ("forty", PHONE), ("hostile", WIDE)],
)
def test_opens_without_errors_or_network_and_draws_everything(
    case: str, width: int, show: Callable[[str, int], None], driver: Driver
) -> None:
    show(case, width)
    check_page(driver, width)
    assert cut_off(driver) == []
    shown = driver.execute_script(
        "return [...document.images].map(i => i.complete && i.naturalWidth > 0 && i.clientWidth > 40)"
    )
    assert shown == [True] * (12 if CASES[case].get("windows", True) else 0)
    # Image, label and map stand beside each other, to be compared.
    rows = driver.execute_script(
        "return [...document.querySelectorAll('.pictures')].map(row => "
        "new Set([...row.querySelectorAll('img')].map(i => i.getBoundingClientRect().top)).size)"
    )
    assert rows == [1] * (len(shown) // 3)


def test_on_paper_no_chart_is_clipped(show: Callable[[str, int], None], driver: Driver) -> None:
    show("whole", WIDE)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        eventually(lambda: driver.execute_script("return document.body.classList.contains('paper')"))
        assert all(drawing <= PAPER + 1 for drawing, *_ in widths(driver))
        edges = driver.execute_script(
            "return [...document.images].map(i => i.getBoundingClientRect().right"
            " - document.querySelector('main').getBoundingClientRect().left)"
        )
        assert max(edges) <= PAPER + 1
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
