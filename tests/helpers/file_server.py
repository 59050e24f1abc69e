"""A server of files on loopback, with ranges, that can misbehave as object stores do."""

import contextlib
import hashlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


@dataclass(frozen=True)
class Asked:
    """One request, and the bytes of its answer's body."""

    method: str
    path: str
    bytes: int


Fault = int | Literal["cut"]
"""A status that is answered instead, or a connection that ends in the middle of the body."""


class FileServer(ThreadingHTTPServer):
    """Serves a folder and notes what it was asked for.

    Attributes:
        asked: the requests that were answered.
        fault: called with the number of each request and its path; what it returns goes wrong.
        tags: whether answers have an ETag.
        conditions: whether `If-Match` counts.
    """

    tags = conditions = True

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[Asked] = []
        self.fault: Callable[[int, str], Fault | None] = lambda number, path: None
        self._count, self._lock = 0, threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def url(self, name: str = "") -> str:
        """Address of a file."""
        return f"http://127.0.0.1:{self.server_port}/{name}"

    def replace_at(self, number: int, file: Path, content: bytes) -> None:
        """Replace a file just before the nth request for it from here on is answered; its date is another."""
        asked = itertools.count(1)

        def swap(_: int, path: str) -> None:
            if path.endswith(file.name) and next(asked) == number:
                file.write_bytes(content)
                os.utime(file, (1e9, 1e9))

        self.fault = swap

    def next_fault(self, path: str) -> Fault | None:
        """What is to go wrong with the request that has just come."""
        with self._lock:
            self._count += 1
            number = self._count
        return self.fault(number, path)

    def handle_error(self, *_: Any) -> None:
        """A client that hangs up is none."""


class _Handler(SimpleHTTPRequestHandler):
    server: FileServer
    protocol_version = "HTTP/1.1"

    def __init__(self, request: Any, address: Any, server: FileServer) -> None:
        super().__init__(request, address, server, directory=str(server.folder))

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = Path(self.translate_path(self.path))
        fault = self.server.next_fault(self.path)
        if isinstance(fault, int) or not path.is_file():
            self._refuse(fault if isinstance(fault, int) else 404)
            return
        data = path.read_bytes()
        tag = f'"{hashlib.md5(data).hexdigest()}"'
        if self.server.conditions and self.headers.get("If-Match", tag) != tag:
            self._refuse(412)
            return
        first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last or len(data)) + 1]
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
        self.send_header("Accept-Ranges", "bytes")
        if self.server.tags:
            self.send_header("ETag", tag)
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self._note(len(part) if body else 0)
        if not body:
            return
        if fault == "cut":
            self.wfile.write(part[: len(part) // 2])
            self.close_connection = True
            return
        self.wfile.write(part)

    def _refuse(self, status: int) -> None:
        self._note(0)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _note(self, count: int) -> None:
        self.server.asked.append(Asked(self.command, self.path, count))

    def log_message(self, *_: Any) -> None:
        """Nothing on the terminal."""


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[FileServer]:
    """The server of a folder, which is made; it has ended after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    with FileServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
