"""Requests to a served page, as its script makes them, and its server in a thread."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from segmenter.extras.view.server import PageServer, Routes


class PageClient:
    """A page of a server; `seen` has the bytes of all that it was answered."""

    def __init__(self, port: int, token: str, page: str = "one") -> None:
        self._port, self._token, self.page, self.seen = port, token, page, b""

    def ask(self, path: str, body: Any = None) -> tuple[int, bytes]:
        """Return status and content of an answer; a body is posted, with the page's name."""
        connection = http.client.HTTPConnection("localhost", self._port, timeout=60)
        content = None if body is None else json.dumps({"page": self.page, **body})
        connection.request("GET" if body is None else "POST", f"/{self._token}/{path}", content)
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        self.seen += found[1]
        return found

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
def served(routes: Routes) -> Iterator[PageServer]:
    """Serve routes in a thread."""
    with PageServer(routes) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
