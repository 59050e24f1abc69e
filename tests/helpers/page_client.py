"""Requests to a served page, as its script makes them; and the page in a browser, driven by keys alone."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from segmenter.extras.view.server import PageServer, Routes
from tests.helpers.served import request, serving
from tests.helpers.time_limits import wait_until


def served(routes: Routes) -> AbstractContextManager[PageServer]:
    """Serve routes in a thread."""
    return serving(PageServer(routes))


class PageClient:
    """A page of a server; `seen` has the bytes of all that it was answered."""

    def __init__(self, server: Any, page: str = "one") -> None:
        """Open a page.

        Args:
            server: it, or what has its `port` and `token`.
        """
        self.server, self.page, self.seen = server, page, b""

    def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Return status and content of an answer; a body is posted, with the page's name."""
        content = None if body is None else json.dumps({"page": self.page, **body}).encode()
        method = "GET" if body is None else "POST"
        reply = request(self.server, f"/{self.server.token}/{path}", method, content)
        self.seen += reply.body
        return reply.status, reply.body

    def get(self, path: str) -> Any:
        """Return an answer's JSON."""
        status, content = self.ask(path)
        assert status == 200, content
        return json.loads(content)

    def answer(self, row: Any, text: str | None) -> tuple[int, Any]:
        """Answer a question."""
        status, content = self.ask("answer", {"fid": row["fid"], "stamp": row["stamp"], "answer": text})
        return status, json.loads(content)


@contextmanager
def headless(
    profile: Path, address: str, width: int = 1400, height: int = 900, *, dark: bool = False
) -> Iterator[Any]:
    """Yield a browser on a page, which reports no fault to its console but refused answers."""
    from tests.helpers.browser import chromium, resize

    with chromium(profile) as page:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        resize(page, width, height)
        page.get(address)
        yield page
        assert [line["message"] for line in page.get_log("browser") if "409" not in line["message"]] == []


def until(true: Callable[[], Any], what: str = "") -> None:
    """Wait until something is true."""
    assert wait_until(true), f"it did not happen: {what}"


def press(page: Any, *keys: str) -> None:
    """Press keys, one after the other."""
    from selenium.webdriver.common.action_chains import ActionChains

    for key in keys:
        ActionChains(page).send_keys(key).perform()


def text_of(page: Any, id_: str) -> str:
    """Return the text of an element."""
    return str(page.execute_script("return document.getElementById(arguments[0]).innerText", id_))
