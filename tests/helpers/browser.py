"""Headless Chromium for tests of pages; what needs it is skipped, with a reason, where there is none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("selenium", reason="the package selenium is not here: pip install -e '.[test]'")
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.chrome.service import Service

_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_FLAGS = (
    *("--headless=new", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
    "--force-color-profile=srgb",
)
PATIENCE = 3600.0
Driver = Any  # selenium.webdriver.Chrome


@contextmanager
def chromium(profile: Path) -> Iterator[Driver]:
    """Start a browser with a profile of its own, or skip the test."""
    program = next(filter(None, map(shutil.which, _BROWSERS)), None)
    chromedriver = shutil.which("chromedriver")
    if not program or not chromedriver:
        pytest.skip(
            f"no {'Chromium or Chrome' if not program else 'chromedriver'} on PATH to open the page in"
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


def resize(driver: Driver, width: int, height: int = 900) -> None:
    """Give the window a size."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
