"""Reports of coverage and of a training in a browser: no errors, no network, all drawn, names stay text.

A real browser opens the pages from disk at a width; what needs one is skipped where there is none.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from segmenter.runs.report.sections import write_report
from tests.helpers.browser import Driver, chromium, resize
from tests.helpers.made_diagnosis import HOSTILE, NAIC, NAIC_RATES, html_report, made_diagnosis
from tests.helpers.time_limits import wait_until
from tests.helpers.trained_run import trained_run

pytestmark = pytest.mark.browser

WIDE, PHONE, PAPER = 1400, 390, 180 / 25.4 * 96  # CSS pixels; A4 less its margins is 180 mm wide
FORTY = [f"class {i}" for i in range(40)]
CASES: dict[str, dict[str, Any]] = {
    "potsdam": {"run": 60, "maps": 6},
    "naic": {"names": NAIC, "rates": NAIC_RATES, "tiles": 3001, "best_effort": [4], "run": 30, "maps": 1},
    "forty": {"names": FORTY, "rates": [0.02 + i / 80 for i in range(40)], "maps": 24},
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
RUNS: dict[str, dict[str, Any]] = {
    "whole": {"names": NAIC},
    "without a validation": {"validations": False, "epochs": 1, "windows": 0},
    "forty": {"names": FORTY, "absent": [3]},
    "hostile": {"names": HOSTILE, "scenes": HOSTILE},
}
Show = Callable[[str, int], dict[str, Any]]


def slow(case: str, width: int) -> Any:
    return pytest.param(case, width, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    with chromium(tmp_path_factory.mktemp("profile")) as started:
        yield started


def widths(driver: Driver) -> list[list[float]]:
    """Return for each chart its drawing's width, its place's width, and its left edge."""
    return driver.execute_script(
        "return [...document.querySelectorAll('.chart')].map(c => [c.querySelector('.main-svg, canvas')"
        ".getBoundingClientRect().width, c.clientWidth, c.getBoundingClientRect().left])"
    )


def eventually(check: Callable[[], bool]) -> None:
    """Wait for what the page does after a delay of its own."""
    assert wait_until(check), "did not happen"


def open_page(driver: Driver, path: Path, width: int) -> None:
    """Open a page from disk, and wait until its script has drawn it."""
    resize(driver, width)
    driver.get(path.as_uri())
    # The driver may come back before the page's last script has run.
    eventually(lambda: driver.execute_script("return document.documentElement.dataset.drawn") == "yes")


def check_page(driver: Driver, width: int) -> None:
    """No error, no network, all charts drawn; nothing sticks out of the window, charts fill their places."""
    assert driver.get_log("browser") == []
    assert driver.execute_script("return performance.getEntriesByType('resource').map(e => e.name)") == []
    assert driver.execute_script(
        "return [...document.querySelectorAll('.chart')].every(c => c.querySelector('.main-svg .trace > *, "
        "canvas'))"
    )
    assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    for drawing, place, left in widths(driver):
        assert left >= 0
        assert drawing == pytest.approx(place, abs=1)


def cut_off(driver: Driver) -> list[str]:
    """Texts of charts (ticks, titles of axes, legends) that reach beyond their chart."""
    found: list[str] = driver.execute_script(
        """return [...document.querySelectorAll('.chart')].flatMap(c => {
          const box = c.getBoundingClientRect();
          return [...c.querySelectorAll('.main-svg text')].filter(t => t.textContent).filter(t => {
            const b = t.getBoundingClientRect();
            return b.width > 0 && (b.left < box.left - 2 || b.right > box.right + 2 || b.top < box.top - 2
              || b.bottom > box.bottom + 2);
          }).map(t => c.id + ': ' + t.textContent);
        })"""
    )
    return found


@pytest.fixture
def show(driver: Driver, tmp_path: Path) -> Show:
    """`show("naic", 390)`: opens a case's page from disk at a window's width; gives its diagnosis."""

    def open_case(case: str, width: int) -> dict[str, Any]:
        diagnosis = made_diagnosis(**CASES[case])
        page = tmp_path / f"{case}.html"
        page.write_text(html_report(diagnosis), encoding="utf-8")
        assert page.stat().st_size < 3 << 19, "1.5 MiB"
        open_page(driver, page, width)
        return diagnosis

    return open_case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "width"),
    [
        *(("potsdam", WIDE), ("hostile", PHONE), ("refused", PHONE)),
        *(slow(case, WIDE) for case in ("naic", "forty", "one class", "hostile")),
    ],
)
def test_opens_without_errors_or_network_and_draws_everything(
    case: str, width: int, show: Show, driver: Driver
) -> None:
    """Neither ticks nor titles of axes nor legends reach beyond their chart."""
    diagnosis = show(case, width)
    check_page(driver, width)
    assert cut_off(driver) == []
    places = driver.find_elements(By.CLASS_NAME, "chart")
    drawn = driver.find_elements(By.CSS_SELECTOR, ".chart > svg, .chart > canvas")
    assert len(places) == len(drawn) > 4
    bars = driver.find_elements(By.CSS_SELECTOR, "#class-tiles .trace .point")
    assert len(bars) == len(diagnosis["classes"])
    images = driver.execute_script(
        "return [...document.querySelectorAll('.map .chart')].map(c => c.querySelectorAll('canvas').length)"
    )
    assert images == [1] * driver.execute_script(
        "return (JSON.parse(document.getElementById('data').textContent).maps || {maps: []}).maps.length"
    )
    assert bool(images) == bool(diagnosis["maps"])


def test_names_with_markup_stay_text(show: Show, driver: Driver) -> None:
    diagnosis = show("hostile", WIDE)
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
    texts = driver.execute_script(
        "return [...document.querySelectorAll('#gaps .trace')].map("
        "each => [...each.querySelectorAll('title')].map(title => title.textContent.split('\\n')[0]))"
    )
    classes = sorted(diagnosis["classes"], key=lambda c: c["tiles"])
    assert texts[2] == [one["name"] for one in classes], "shown on hover, to the letter"


@pytest.mark.slow
def test_maps_and_gaps_follow_the_choice_and_charts_the_window(show: Show, driver: Driver) -> None:
    diagnosis = show("potsdam", WIDE)
    choice = Select(driver.find_element(By.ID, "map-choice"))
    assert choice.first_selected_option.text == "clutter"  # the rarest
    cells = "return document.getElementById('map-0').cells"
    for c, one in enumerate(diagnosis["classes"]):
        choice.select_by_visible_text(one["name"])
        assert one["name"] in driver.find_element(By.ID, "map-title").text
        z = driver.execute_script(cells)
        truth = diagnosis["maps"][0]["share"][c]
        assert z[11][7] == pytest.approx(100 * truth[11][7], rel=0.05)
    assert not driver.find_element(By.ID, "map-legend-all").is_displayed()
    choice.select_by_index(0)
    assert driver.find_element(By.ID, "map-legend-all").is_displayed()
    assert not driver.find_element(By.ID, "map-legend-one").is_displayed()
    shares = [plane[11][7] for plane in diagnosis["maps"][0]["share"]]
    assert driver.execute_script(cells)[11][7] == shares.index(max(shares))
    gaps = Select(driver.find_element(By.ID, "gaps-choice"))
    assert gaps.first_selected_option.text == "64 tiles"
    gaps.select_by_visible_text("16 tiles")
    assert driver.find_element(By.ID, "gaps-title").text.startswith("With 16 shuffled tiles")
    longest = f"{max(diagnosis['plans'][0]['shuffle']['longest_gap']):,} at the longest"
    titles = driver.execute_script(
        "return [...document.querySelectorAll('#gaps title')].map(each => each.textContent)"
    )
    assert any(longest in text for text in titles)
    for width in (PHONE, 700):
        resize(driver, width)
        eventually(lambda: all(abs(drawing - place) <= 1 for drawing, place, _ in widths(driver)))
        assert driver.execute_script("return document.documentElement.scrollWidth") <= width
    assert driver.get_log("browser") == []


@pytest.mark.slow
def test_printing_draws_for_the_paper_and_then_for_the_screen_again(show: Show, driver: Driver) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "width"),
    [("hostile", PHONE), slow("whole", PHONE), slow("without a validation", PHONE), slow("forty", WIDE)],
)
def test_a_trainings_report_is_drawn_on_the_screen_and_on_paper(
    case: str, width: int, driver: Driver, tmp_path: Path
) -> None:
    run = tmp_path / case
    trained_run(run, **RUNS[case])
    open_page(driver, write_report(run), width)
    check_page(driver, width)
    assert cut_off(driver) == []
    shown = driver.execute_script(
        "return [...document.images].map(i => i.complete && i.naturalWidth > 0 && i.clientWidth > 40)"
    )
    assert shown == [True] * (12 if RUNS[case].get("windows", True) else 0)
    # Image, label and map stand beside each other, to be compared.
    rows = driver.execute_script(
        "return [...document.querySelectorAll('.pictures')].map(row => "
        "new Set([...row.querySelectorAll('img')].map(i => i.getBoundingClientRect().top)).size)"
    )
    assert rows == [1] * (len(shown) // 3)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        eventually(lambda: driver.execute_script("return document.body.classList.contains('paper')"))
        left = "document.querySelector('main').getBoundingClientRect().left"
        edge = driver.execute_script(f"return {left}")
        for drawing, place, start in widths(driver):
            assert drawing == pytest.approx(place, abs=1)
            assert start + drawing <= edge + PAPER + 1
        ends = f"return [...document.images].map(i => i.getBoundingClientRect().right - {left})"
        assert max(driver.execute_script(ends), default=0) <= PAPER + 1
    finally:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
