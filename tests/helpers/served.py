"""A page's server within a test, and raw requests to it."""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from segmenter.extras.view.server import PageServer


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@contextmanager
def serving(server: PageServer) -> Iterator[PageServer]:
    """Answer in a thread for the time of the block."""
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def request(
    server: PageServer, path: str, method: str = "GET", body: bytes | None = None, **headers: str
) -> Reply:
    """Send a request whose path is not changed; `Sec_Fetch_Site` in place of hyphens."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        sent = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, body, sent)
        reply = connection.getresponse()
        return Reply(reply.status, dict(reply.getheaders()), reply.read())
    finally:
        connection.close()
