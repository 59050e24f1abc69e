"""The page's server: nothing without the token, for no other origin, and no file but its own."""

import socket
import threading
from collections.abc import Iterator
from email.message import Message

import pytest

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.extras.view.server import IDLE_SECONDS, Answer, Asked, PageServer
from tests.helpers.refusals import refused
from tests.helpers.served import request, serving


def echo(asked: Asked) -> Answer:
    return Answer.of({"words": asked.words, "query": dict(asked.query), "body": asked.body.decode()})


def mistake(asked: Asked) -> Answer:
    raise DatasetError("a.tif", "has been removed")


ROUTES = {"GET ": echo, "GET echo": echo, "POST echo": echo, "GET mistake": mistake}


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving(PageServer(ROUTES)) as started:
        yield started


def test_the_token_is_asked_for_before_anything_else(server: PageServer) -> None:
    for path in (
        "/",
        "/echo",
        "/x/echo",
        f"/{server.token[:-1]}/echo",
        f"/{server.token}x/echo",
        "//",
        "/%00/echo",
    ):
        assert request(server, path).status == 403, path
    assert request(server, f"/{server.token}/echo").status == 200
    assert len(server.token) >= 24
    with PageServer(ROUTES) as another:
        assert another.token != server.token


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_pages_of_others_are_refused_with_the_token(server: PageServer, method: str) -> None:
    path, own = f"/{server.token}/echo", f"127.0.0.1:{server.port}"
    assert request(server, path, method, Origin=f"http://{own}").status == 200
    for origin in (
        "http://evil.example",
        f"https://{own}",
        f"http://{own}0",
        f"http://localhost:{server.port}",
        "null",
    ):
        assert request(server, path, method, Origin=origin).status == 403, origin
    for site in ("cross-site", "same-site"):
        assert request(server, path, method, Sec_Fetch_Site=site).status == 403
    assert request(server, path, method, Sec_Fetch_Site="same-origin").status == 200


def test_a_name_that_a_foreign_server_gives_to_this_machine_is_refused(server: PageServer) -> None:
    path = f"/{server.token}/echo"
    for host in ("evil.example", f"evil.example:{server.port}", "localhost.evil.example:80", ""):
        assert request(server, path, Host=host).status == 403, host
    for host in (f"localhost:{server.port}", "LOCALHOST", "[::1]:80"):
        assert request(server, path, Host=host).status == 200, host


def test_a_container_keeps_the_token_and_takes_any_host() -> None:
    with serving(PageServer(ROUTES, host="0.0.0.0")) as server:
        assert request(server, f"/{server.token}/echo", Host="gpu7.example:8080").status == 200
        assert request(server, "/x/echo", Host="gpu7.example:8080").status == 403


OWN = [("127.0.0.1", "localhost"), ("0.0.0.0", "localhost"), ("127.0.0.2", "127.0.0.2")]


@pytest.mark.parametrize(("host", "shown"), OWN)
def test_the_address_leads_to_the_page(host: str, shown: str) -> None:
    with PageServer(ROUTES, host=host) as server:
        assert server.address == f"http://{shown}:{server.port}/{server.token}/"
        headers = Message()
        headers["Host"] = f"{shown}:{server.port}"
        assert server.admits(headers)


def test_paths_are_words_that_lead_nowhere_else(server: PageServer) -> None:
    for path in (
        "../../etc/passwd",
        "%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "index.html",
        "echo/..",
    ):
        reply = request(server, f"/{server.token}/{path}")
        assert reply.status == 404 or reply.json["words"] == ["echo", ".."], path
        assert b"root:" not in reply.body


def test_words_queries_and_bodies_reach_the_route(server: PageServer) -> None:
    reply = request(server, f"/{server.token}/echo/a%20b/%C3%A9%2F?bands=3,2&x=%26", "POST", b"text")
    assert reply.json == {"words": ["echo", "a b", "é/"], "query": {"bands": "3,2", "x": "&"}, "body": "text"}


def test_answers_are_kept_from_other_pages_and_from_caches(server: PageServer) -> None:
    headers = request(server, f"/{server.token}/echo").headers
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert "default-src 'self'" in headers["Content-Security-Policy"]
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert "Access-Control-Allow-Origin" not in headers


def test_a_users_mistake_is_one_line_and_a_defect_ends_no_server(server: PageServer) -> None:
    reply = request(server, f"/{server.token}/mistake")
    assert (reply.status, reply.json) == (404, {"error": "a.tif: has been removed"})
    assert request(server, f"/{server.token}/echo", "DELETE").status == 501
    assert request(server, f"/{server.token}/echo", Content_Length="-1").status == 413
    assert request(server, f"/{server.token}/echo", "POST", Content_Length=f"{1 << 21}").status == 413
    for said, status in (
        (b"\x00\xff not http\r\n\r\n", b"400"),
        (b"GET http://[ HTTP/1.1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", b"413"),
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(said)
            assert status in raw.recv(1000)
    assert request(server, f"/{server.token}/echo").status == 200


def test_it_ends_ten_minutes_after_the_last_page_and_waits_for_the_first() -> None:
    now = [0.0]
    server = PageServer(ROUTES, clock=lambda: now[0])
    thread = threading.Thread(target=server.serve)
    thread.start()
    now[0] = 10 * IDLE_SECONDS
    assert request(server, "/x/echo").status == 403  # who has no token keeps nothing open
    assert server.last is None
    assert request(server, f"/{server.token}/echo").status == 200
    now[0] += IDLE_SECONDS - 1
    assert request(server, f"/{server.token}/echo").status == 200
    now[0] += IDLE_SECONDS + 1
    thread.join()
    server.server_close()


def test_an_address_that_cannot_be_used_is_refused(server: PageServer) -> None:
    with refused(SegmenterError, where=f"127.0.0.1:{server.port}", remedy="--port"):
        PageServer(ROUTES, port=server.port)
    with refused(SegmenterError, remedy="--host"):
        PageServer(ROUTES, host="203.0.113.7")
