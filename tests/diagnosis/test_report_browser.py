"""The report in a real browser: it opens without errors or network, draws all charts, and names stay text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.made_diagnosis import HOSTILE, NAIC, NAIC_RATES, html_report, made_diagnosis

pytest.importorskip("selenium", reason="the package selenium is not here: pip install -e '.[test]'")
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

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
    resize,
    widths,
)

CASES: dict[str, dict[str, Any]] = {
    "potsdam": {"run": 60, "maps": 6},
    "naic": {"names": NAIC, "rates": NAIC_RATES, "tiles": 3001, "best_effort": [4], "run": 30, "maps": 1},
    "forty": {
        "names": [f"class {i}" for i in range(40)],
        "rates": [0.02 + i / 80 for i in range(40)],
        "maps": 24,
    },
    "one class": {"names": ("water",), "rates": (1.0,), "tiles": 101, "batches": (16,)},
    "refused": {"refused": (16, 32, 64, 128), "maps": 0},
    "hostile": {
        "names": HOSTILE,
        "rates": (0.9, 0.5, 0.3, 0.2, 0.1, 0.05, 0.4, 0.6),
        "dataset": HOSTILE[0],
        "map_names": HOSTILE,
        "maps": 8,
        "run": 5,
        "best_effort": [5],
        "split": HOSTILE[2],
    },
}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def show(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], dict[str, Any]]:
    """`show("naic", 390)`: opens a case's page from disk at a window's width; gives its diagnosis."""
    folder = tmp_path_factory.mktemp("pages")
    made: dict[str, tuple[dict[str, Any], Path]] = {}

    def open_case(case: str, width: int) -> dict[str, Any]:
        if case not in made:
            path = folder / f"{case}.html"
            diagnosis = made_diagnosis(**CASES[case])
            path.write_text(html_report(diagnosis), encoding="utf-8")
            made[case] = diagnosis, path
        open_page(driver, made[case][1], width)
        return made[case][0]

    return open_case


@pytest.mark.parametrize(
    ("case", "width"), [*((case, WIDE) for case in CASES), ("naic", PHONE), ("hostile", PHONE)]
)
def test_opens_without_errors_or_network_and_draws_everything(
    case: str, width: int, show: Callable[[str, int], dict[str, Any]], driver: Driver
) -> None:
    diagnosis = show(case, width)
    check_page(driver, width)
    places = driver.find_elements(By.CLASS_NAME, "chart")
    drawn = driver.find_elements(By.CSS_SELECTOR, ".chart.js-plotly-plot > .plot-container")
    assert len(places) == len(drawn) > 4
    bars = driver.find_elements(By.CSS_SELECTOR, "#class-tiles .bars .point")
    assert len(bars) == len(diagnosis["classes"])
    images = driver.execute_script(
        "return [...document.querySelectorAll('.map .chart')].map(c => c.querySelectorAll('image').length)"
    )
    assert images == [1] * len(diagnosis["maps"])


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_no_text_of_a_chart_is_cut_off(
    width: int, show: Callable[[str, int], dict[str, Any]], driver: Driver
) -> None:
    """Neither ticks nor titles of axes nor legends reach beyond their chart."""
    for case in ("naic", "hostile"):
        show(case, width)
        assert cut_off(driver) == []


def test_names_with_markup_stay_text(show: Callable[[str, int], dict[str, Any]], driver: Driver) -> None:
    show("hostile", WIDE)
    count = "return document.querySelectorAll(arguments[0]).length"
    assert driver.execute_script(count, "img, iframe, object, embed, b, i, svg a, math, .MathJax") == 0
    assert driver.execute_script(count, "script") == 3
    assert driver.execute_script(count, "svg [style*='bold'], svg [style*='italic']") == 0
    ticks = {t.text for t in driver.find_elements(By.CSS_SELECTOR, "#class-tiles .ytick text")}
    expected = {name if len(name) <= 22 else name[:21].rstrip() + "…" for name in HOSTILE}
    assert ticks == expected
    title = driver.find_element(By.TAG_NAME, "h1").text
    assert title == f"Class coverage of {HOSTILE[0]}, {HOSTILE[2]}"
    assert {o.text for o in Select(driver.find_element(By.ID, "map-choice")).options[1:]} == set(HOSTILE)
    maps = {e.text for e in driver.find_elements(By.CSS_SELECTOR, ".map strong")}
    assert maps == set(HOSTILE)


@pytest.mark.parametrize("chart", ["class-tiles", "gaps"])
def test_hover_has_whole_names_as_text(
    chart: str, show: Callable[[str, int], dict[str, Any]], driver: Driver
) -> None:
    diagnosis = show("hostile", WIDE)
    curve = 2 if chart == "gaps" else 0
    layer = f"#{chart} .hoverlayer .hovertext"
    rarest_first = sorted(diagnosis["classes"], key=lambda c: c["tiles"])
    for point, one in enumerate(rarest_first):
        _hover(driver, chart, curve, point)
        eventually(partial(_is_hovered, driver, layer, one["name"]))  # Plotly draws it with a delay
        assert driver.find_elements(By.CSS_SELECTOR, f"{layer} a, {layer} [style*='bold']") == []


def _hover(driver: Driver, chart: str, curve: int, point: int) -> None:
    at = "Plotly.Fx.hover(arguments[0], [{curveNumber: arguments[1], pointNumber: arguments[2]}])"
    driver.execute_script(at, chart, curve, point)


def _is_hovered(driver: Driver, layer: str, name: str) -> bool:
    """Whether the first line of what shows on hover is a name, to the letter."""
    first = "return [...document.querySelectorAll(arguments[0])].map(line => line.textContent)"
    return driver.execute_script(first, f"{layer} .nums .line:first-child") == [name]


def test_maps_and_gaps_follow_the_choice(show: Callable[[str, int], dict[str, Any]], driver: Driver) -> None:
    diagnosis = show("potsdam", WIDE)
    choice = Select(driver.find_element(By.ID, "map-choice"))
    assert choice.first_selected_option.text == "clutter"  # the rarest
    data = "return document.getElementById('map-0').data[0]"
    for c, one in enumerate(diagnosis["classes"]):
        choice.select_by_visible_text(one["name"])
        assert one["name"] in driver.find_element(By.ID, "map-title").text
        z = driver.execute_script(data)["z"]
        truth = diagnosis["maps"][0]["share"][c]
        assert z[11][7] == pytest.approx(100 * truth[11][7], rel=0.05)
    assert not driver.find_element(By.ID, "map-legend-all").is_displayed()
    choice.select_by_index(0)
    assert driver.find_element(By.ID, "map-legend-all").is_displayed()
    assert not driver.find_element(By.ID, "map-legend-one").is_displayed()
    shares = [plane[11][7] for plane in diagnosis["maps"][0]["share"]]
    assert driver.execute_script(data)["z"][11][7] == shares.index(max(shares))
    gaps = Select(driver.find_element(By.ID, "gaps-choice"))
    assert gaps.first_selected_option.text == "64 tiles"
    gaps.select_by_visible_text("16 tiles")
    assert driver.find_element(By.ID, "gaps-title").text.startswith("With 16 shuffled tiles")
    shuffle = driver.execute_script("return document.getElementById('gaps').data[1].x")
    assert max(shuffle) == max(diagnosis["plans"][0]["shuffle"]["longest_gap"])
    assert driver.get_log("browser") == []


def test_charts_follow_the_window(show: Callable[[str, int], dict[str, Any]], driver: Driver) -> None:
    show("potsdam", WIDE)
    for width in (PHONE, WIDE, 700):
        resize(driver, width)
        eventually(lambda: all(abs(drawing - place) <= 1 for drawing, place, _ in widths(driver)))
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize(
    ("case", "width"), [pytest.param("forty", WIDE, marks=pytest.mark.slow), ("hostile", PHONE)]
)
def test_on_paper_no_chart_is_clipped(
    case: str, width: int, show: Callable[[str, int], dict[str, Any]], driver: Driver
) -> None:
    show(case, width)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        eventually(lambda: driver.execute_script("return document.body.classList.contains('paper')"))
        for drawing, place, _ in widths(driver):
            assert drawing == pytest.approx(place, abs=1)
            assert drawing <= PAPER + 1
        edge = driver.execute_script("return document.querySelector('main').getBoundingClientRect().left")
        assert all(left + drawing <= edge + PAPER + 1 for drawing, _, left in widths(driver))
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    eventually(lambda: not driver.execute_script("return document.body.classList.contains('paper')"))
    for drawing, place, _ in widths(driver):
        assert drawing == pytest.approx(place, abs=1)


def test_printing_draws_for_the_paper_and_then_for_the_screen_again(
    show: Callable[[str, int], dict[str, Any]], driver: Driver
) -> None:
    """Through the browser's own printing: what it draws between `beforeprint` and `afterprint`."""
    show("naic", WIDE)
    driver.execute_script(
        "window.widths = []; window.addEventListener('beforeprint', () => window.widths.push("
        "...[...document.querySelectorAll('.chart .main-svg')].map(s => Number(s.getAttribute('width')))))"
    )
    pdf = driver.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})["data"]
    assert len(pdf) > 50_000
    printed = driver.execute_script("return window.widths")
    assert len(printed) > 10
    assert max(printed) <= PAPER + 1
    assert max(drawing for drawing, *_ in widths(driver)) > PAPER  # back on the screen
