"""The line between chief and members: who is there, who is refused and why, who ends when."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from segmenter.base.errors import DeviceError, TrainingError
from segmenter.extras.parameter_servers.control import Watch, check_port, stay, versions_here, watching
from segmenter.extras.parameter_servers.roles import Roles
from tests.helpers.made_cluster import addresses
from tests.helpers.refusals import refused
from tests.helpers.time_limits import wait_until


@pytest.fixture
def roles() -> Roles:
    chief, *others = addresses(4)
    return Roles(chief, tuple(others[:2]), (others[2],))


class Member:
    """A member's end in a thread."""

    def __init__(self, roles: Roles, role: str, index: int) -> None:
        self.lines: list[str] = []
        self.code: Any = None
        self._roles = replace(roles, role=role, index=index)
        self._thread = threading.Thread(target=self._stay, daemon=True)
        self._thread.start()

    def _stay(self) -> None:
        try:
            self.code = stay(self._roles, self.lines.append)
        except DeviceError as error:
            self.code = str(error)

    def ended(self) -> Any:
        self._thread.join()
        return self.code


@contextmanager
def raw(roles: Roles, role: str = "worker", index: int = 0, **facts: Any) -> Iterator[socket.socket]:
    """A connection that says hello with some facts of its own."""
    host, port = roles.chief.split(":")
    listed = [[roles.chief], list(roles.workers), list(roles.servers)]
    hello = {"role": role, "index": index, "versions": versions_here(), "cluster": listed, **facts}
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(json.dumps(hello).encode() + b"\n")
        yield connection


def test_members_end_with_the_chief_and_say_so(roles: Roles) -> None:
    members = [Member(roles, "worker", 0)]  # before there is a chief
    assert wait_until(lambda: members[0].lines == [f"worker 0: waiting for the chief at {roles.chief}"])
    with watching(roles, print) as watch:
        members += [Member(roles, "worker", 1), Member(roles, "ps", 0)]
        watch.wait_for_all()
        assert watch.missing == []
    assert [member.ended() for member in members] == [0, 0, 0]
    assert members[2].lines[-1] == "ps 0: the chief has ended, so this ends"
    check_port("the chief's", roles.chief)  # free again


def test_members_end_with_a_chief_that_fails_or_is_gone_without_a_word(roles: Roles) -> None:
    member = Member(roles, "worker", 0)
    with suppress(TrainingError), watching(roles, print) as watch:
        assert wait_until(lambda: ("worker", 0) not in watch.missing)
        raise TrainingError
    assert (member.ended(), member.lines[-1]) == (0, "worker 0: the chief has failed, so this ends")

    host, port = roles.chief.split(":")
    with socket.create_server((host, int(port))) as gone:
        member = Member(roles, "worker", 0)
        gone.accept()[0].close()
    assert (member.ended(), member.lines[-1]) == (
        1,
        f"worker 0: the chief at {roles.chief} is gone, so this ends",
    )


def test_the_chief_names_who_is_not_there(roles: Roles) -> None:
    lines: list[str] = []
    with watching(roles, lines.append) as watch, raw(roles):
        assert wait_until(lambda: ("worker", 0) not in watch.missing)
        with refused(DeviceError, where=f"worker 1 ({roles.workers[1]}), ps 0"):
            watch.wait_for_all(0.0)
    assert lines == [f"waiting for worker 1 ({roles.workers[1]}), ps 0 ({roles.servers[0]})"]


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        ({"versions": {"tensorflow": "2.0"}}, {"fault": "tensorflow 2.0, here"}),
        ({"cluster": []}, {"fault": "worker 0"}),
    ],
)
def test_a_member_that_differs_is_refused_by_name_before_the_first_step(
    roles: Roles, facts: dict[str, Any], fields: dict[str, object]
) -> None:
    with watching(roles, print) as watch, raw(roles, **facts) as connection:
        with refused(DeviceError, **fields):
            watch.wait_for_all()
        assert b"refused" in connection.recv(4096)


def test_a_second_process_of_a_role_and_one_of_no_role_are_refused(roles: Roles) -> None:
    with watching(roles, print) as watch, raw(roles):
        assert wait_until(lambda: ("worker", 0) not in watch.missing)
        assert f"{roles.title('worker', 0)} is there already" in Member(roles, "worker", 0).ended()
        with raw(roles, "worker", 7) as connection:
            assert b"worker 7 is no part of the chief's cluster" in connection.recv(4096)


def test_foreign_bytes_change_nothing(roles: Roles) -> None:
    host, port = roles.chief.split(":")
    with watching(roles, print) as watch, raw(roles):
        assert wait_until(lambda: ("worker", 0) not in watch.missing)
        for sent in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\x00" * 4000,
            b"[1]\n",
            b'{"role": [1], "index": {}}\n',
            b"",
        ):
            # The chief may hang up before all was sent or read.
            with socket.create_connection((host, int(port))) as connection, suppress(OSError):
                connection.sendall(sent)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(4096):
                    pass
        assert watch.missing == [("worker", 1), ("ps", 0)]


def test_lost_and_returned_workers_are_named(roles: Roles) -> None:
    lines: list[str] = []
    with watching(roles, lines.append) as watch, raw(roles, "ps"):
        with raw(roles), raw(roles, index=1):
            watch.wait_for_all()
        assert wait_until(lambda: len(watch.missing) == 2)
        assert watch.lost_servers == ""
        del lines[:]
        with raw(roles, index=1):
            assert wait_until(lambda: lines)
            zero, one = (roles.title("worker", index) for index in (0, 1))
            assert lines == [f"{one} is back; it works again when {zero} is back too"]
            with raw(roles):
                assert wait_until(lambda: lines[1:] == [f"{zero} is back"])
        assert wait_until(lambda: len(lines) == 4)
        assert sorted(lines[2:]) == [
            f"{title} is lost; its step goes to another worker" for title in (zero, one)
        ]


def test_a_lost_server_is_known(roles: Roles) -> None:
    with watching(roles, print) as watch, raw(roles), raw(roles, index=1):
        with raw(roles, "ps"):
            watch.wait_for_all()
            assert watch.lost_servers == ""
        assert wait_until(lambda: watch.lost_servers == roles.title("ps", 0))


def test_a_port_that_is_taken_is_refused_by_name(roles: Roles) -> None:
    watch = Watch(roles)
    try:
        with refused(DeviceError, where=f"chief ({roles.chief})", fault="Address already"):
            Watch(roles)
        with refused(DeviceError, where="worker 0", fault="Address already"):
            check_port("worker 0", roles.chief)
    finally:
        watch.close("has ended")
