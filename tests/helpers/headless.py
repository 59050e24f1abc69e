"""Headless Chromium that a test drives by keys, as a user who has no mouse."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from shutil import which
from typing import Any

import pytest


@contextmanager
def headless(address: str, width: int = 1400, height: int = 900, *, dark: bool = False) -> Iterator[Any]:
    """Yield a browser on a page; skip the test, with the reason, where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="the package selenium is not here")
    browser, driver = which("chromium") or which("google-chrome"), which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("Chromium and its chromedriver are not here")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        page.get(address)
        yield page
        assert [line["message"] for line in page.get_log("browser") if "409" not in line["message"]] == []
    finally:
        page.quit()


def until(true: Callable[[], Any], what: str = "") -> Any:
    """Return what a function gives once it is true; fail if that takes ten seconds."""
    for _ in range(200):
        if found := true():
            return found
        time.sleep(0.05)
    raise AssertionError(f"it did not happen: {what}")


def press(page: Any, *keys: str) -> None:
    """Press keys, one after the other."""
    from selenium.webdriver.common.action_chains import ActionChains

    for key in keys:
        ActionChains(page).send_keys(key).perform()


def text_of(page: Any, id_: str) -> str:
    """Return the text of an element."""
    return str(page.execute_script("return document.getElementById(arguments[0]).innerText", id_))
