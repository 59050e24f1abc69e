"""A real browser for pages: opened from disk at a width, without network; skipped where there is none."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.time_limits import wait_until

pytest.importorskip("selenium", reason="the package selenium is not here: pip install -e '.[test]'")
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
WIDE, PHONE, PAPER = 1400, 390, 180 / 25.4 * 96  # CSS pixels; A4 less its margins is 180 mm wide
PATIENCE = 3600.0
Driver = Any  # selenium.webdriver.Chrome


@contextmanager
def browser(profile: Path) -> Iterator[Driver]:
    """Headless Chromium with a profile of its own in an empty folder; skipped where there is none."""
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    chromedriver = shutil.which("chromedriver")
    if not program or not chromedriver:
        pytest.skip(
            f"no {'Chromium or Chrome' if not program else 'chromedriver'} on PATH to open the report in"
        )
    options = webdriver.ChromeOptions()
    options.binary_location = program
    root = hasattr(os, "geteuid") and os.geteuid() == 0  # root has no user namespace for the sandbox
    for flag in (*_FLAGS, f"--user-data-dir={profile}", *(["--no-sandbox"] if root else [])):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    # Selenium's own limits are seconds of the clock; what hangs ends by the test's limit.
    chrome = _started(options, chromedriver)
    chrome.command_executor._client_config.timeout = PATIENCE
    chrome.set_script_timeout(PATIENCE)
    chrome.set_page_load_timeout(PATIENCE)
    try:
        yield chrome
    finally:
        chrome.quit()


def _started(options: webdriver.ChromeOptions, chromedriver: str) -> Driver:
    """Selenium and Chromium wait a minute for each other: a busy machine needs more attempts."""
    for _ in range(5):
        with suppress(WebDriverException):
            return webdriver.Chrome(options=options, service=Service(chromedriver))
    return webdriver.Chrome(options=options, service=Service(chromedriver))


def resize(driver: Driver, width: int) -> None:
    """Give the window a width."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def widths(driver: Driver) -> list[list[float]]:
    """Of each chart: its drawing's width, its place's width, and its left edge."""
    return driver.execute_script(
        "return [...document.querySelectorAll('.chart')].map(c => [c.querySelector('.main-svg')"
        ".getBoundingClientRect().width, c.clientWidth, c.getBoundingClientRect().left])"
    )


def eventually(check: Callable[[], bool]) -> None:
    """What the page does after a delay of its own."""
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
        "return [...document.querySelectorAll('.chart')].every(c => c.querySelector('.main-svg .trace, "
        ".main-svg .hm image, .main-svg .heatmaplayer'))"
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
