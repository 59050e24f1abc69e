"""Server of pages on the loopback: routes by their first word, a token in each address, no foreign origin."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from segmenter.base.errors import SegmenterError

IDLE_SECONDS = 600.0
"""Seconds after the last request until the server ends; an open page asks `alive` every 30 s."""
_LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_EVERYWHERE = ("0.0.0.0", "::")
_MOST_BODY = 1 << 20
_JSON = "application/json; charset=utf-8"
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' blob: data:; style-src 'self' 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


@dataclass(frozen=True)
class Asked:
    """A request: words of the path behind the token, query and body."""

    words: tuple[str, ...]
    query: Mapping[str, str]
    body: bytes = b""

    def number(self, place: int) -> int:
        """Return a word as a whole number.

        Raises:
            SegmenterError: it is missing or none.
        """
        try:
            return int(self.words[place])
        except (IndexError, ValueError):
            raise SegmenterError("the address", expected="a whole number", got="/".join(self.words)) from None


@dataclass(frozen=True)
class Answer:
    """A response; `stays`: the browser may keep it, as the address holds the file's stamp."""

    content: bytes
    kind: str = _JSON
    status: int = 200
    stays: bool = False

    @classmethod
    def of(cls, value: Any, status: int = 200) -> Answer:
        """Return a value as JSON."""
        return cls(json.dumps(value, allow_nan=False).encode(), status=status)


Routes = Mapping[str, Callable[[Asked], Answer]]
"""`METHOD WORD` → function; `GET ` is the page itself."""


class PageServer(ThreadingHTTPServer):
    """Server of one page.

    Attributes:
        token: first word of every address; all others are refused.
        address: address of the page, with the token.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        routes: Routes,
        token: str = "",
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Listen at an address; port 0: any free one.

        Raises:
            SegmenterError: the address cannot be used.
        """
        self.routes, self.token, self.clock = routes, token or secrets.token_urlsafe(18), clock
        self._shown = f"[{host}]" if ":" in host else host.lower()
        self._names = None if host in _EVERYWHERE else {*_LOOPBACK, self._shown}
        self.last: float | None = None
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), _Handler)
        except (OSError, OverflowError) as error:
            raise SegmenterError(
                f"{host}:{port}", f"cannot listen there: {error}", remedy="say another --host or --port"
            ) from None

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        """Address of the page on this machine."""
        is_own = self._names is None or self._shown in _LOOPBACK
        return f"http://{'localhost' if is_own else self._shown}:{self.port}/{self.token}/"

    def admits(self, headers: Message[str, str]) -> bool:
        """Return True for a request of our own page, or of somebody who typed the address."""
        host = headers.get("Host", "").lower()
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        if self._names is not None and name not in self._names:
            return False
        origin, site = headers.get("Origin"), headers.get("Sec-Fetch-Site")
        return origin in (None, f"http://{host}") and site in (None, "none", "same-origin")

    def serve(self) -> None:
        """Answer until ten minutes after the last page has gone."""
        with suppress(_NoPageError):
            self.serve_forever(poll_interval=0.5)

    def service_actions(self) -> None:
        """Leave the loop once no page is open; before the first one, wait."""
        if self.last is not None and self.clock() - self.last > IDLE_SECONDS:
            raise _NoPageError

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet about a browser that closed its connection; anything else is our defect."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _NoPageError(Exception):
    """The last page has gone."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "segmenter", ""
    disable_nagle_algorithm = True
    wbufsize = -1
    server: PageServer

    def do_GET(self) -> None:
        self._respond()

    def do_POST(self) -> None:
        self._respond()

    def _respond(self) -> None:
        answer = self._answer()
        self.send_response(answer.status)
        headers = {
            **_HEADERS,
            "Content-Type": answer.kind,
            "Content-Length": str(len(answer.content)),
            "Cache-Control": "private, max-age=86400, immutable" if answer.stays else "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer.content)

    def _answer(self) -> Answer:
        size = self.headers.get("Content-Length", "0")
        if not size.isdecimal() or int(size) > _MOST_BODY or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows is not read
            return _refuse(413, "this body is too long")
        body = self.rfile.read(int(size))
        try:
            path, query = urlsplit(self.path)[2:4]
        except ValueError:
            return _refuse(400, "this is no address")
        first, *words = (unquote(word) for word in path.removeprefix("/").split("/"))
        server = self.server
        if not secrets.compare_digest(first.encode(), server.token.encode()):
            return _refuse(403, "open the address that `segmenter view` printed")
        if not server.admits(self.headers):
            return _refuse(403, "this page answers itself alone")
        server.last = server.clock()
        route = server.routes.get(f"{self.command} {words[0] if words else ''}")
        if not words or route is None:
            return _refuse(404, "there is no such page")
        try:
            return route(Asked(tuple(words), dict(parse_qsl(query)), body))
        except SegmenterError as error:
            return Answer.of({"error": str(error)}, 404)

    def log_message(self, *parts: Any) -> None:
        """Print nothing: the terminal is for what the user has to know."""


def _refuse(status: int, why: str) -> Answer:
    return Answer.of({"error": why}, status)
