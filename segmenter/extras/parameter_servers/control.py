"""Line between a cluster's chief and its members: who is there, of which versions, and when it ends.

TensorFlow's servers never end by themselves, and its chief does not see who is lost until a step fails. So
each worker and server holds one connection to the chief's address: it says hello with its versions, is
welcome or refused, and ends when the chief says so or is gone. The chief sees at once who has gone, and who
came back. Of foreign bytes, only short lines of JSON are read, and nothing in them is run.
"""

from __future__ import annotations

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from segmenter.base.errors import DeviceError, plain, shortened
from segmenter.base.version import __version__
from segmenter.extras.parameter_servers.roles import Roles, host_of, port_of

_PATIENCE = 600.0
"""Seconds in which all members have to have come, once the chief has indexed its data: images of containers
are fetched, queues wait."""
_LONGEST = 4096
"""Bytes of a line."""
_AGAIN = 0.5
"""Seconds between two attempts to reach a chief that is not there yet."""
_POLL = 0.2
_COMPARED = {"tensorflow": ("tensorflow", "tensorflow-cpu"), "keras": ("keras",)}

Member = tuple[str, int]
"""(role, index)."""


def versions_here() -> dict[str, str]:
    """Versions that have to be the same in all processes of a cluster."""
    found = {"coverage-segmenter": __version__}
    for name, installed_as in _COMPARED.items():
        for package in installed_as:
            with suppress(PackageNotFoundError):
                found.setdefault(name, version(package))
    return found


# ------------------------------------------------------------------------------------------ the chief


class Watch:
    """The chief's ends of the line.

    Attributes:
        roles: of the cluster.

    Args:
        say: prints a line, from another thread.
    """

    def __init__(self, roles: Roles, say: Callable[[str], None] = print) -> None:
        """Raises DeviceError where the chief's address is taken, or not of this machine."""
        self.roles, self._say = roles, say
        self._changed = threading.Condition()
        self._here: dict[Member, socket.socket] = {}
        self._been: set[Member] = set()
        self._refused = ""
        self._started = False
        self._selector = selectors.DefaultSelector()
        self._listener = _listener(roles.chief)
        self._wake, waking = socket.socketpair()
        for own in (self._listener, waking):
            self._selector.register(own, selectors.EVENT_READ, None)
        self._waking = waking
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._thread.start()

    def wait_for_all(self, patience: float = _PATIENCE) -> None:
        """Return when all members are there.

        Raises:
            DeviceError: naming those that are not there after so many seconds, or are of other versions.
        """
        missing = self.missing
        if missing:
            self._say(f"waiting for {self._titles(missing)}")
        with self._changed:
            self._changed.wait_for(lambda: self._refused or not self.missing, patience)
            if self._refused:
                raise DeviceError(self._refused)
        if missing := self.missing:
            raise DeviceError(
                f"{self._titles(missing)}: not there after {patience:.0f} s; start the same command there "
                "with --role and --index, and see that the chief's port and theirs are open"
            )
        self._started = True

    @property
    def missing(self) -> list[Member]:
        """Members that are not there now."""
        return [member for member in self.roles.members if member not in self._here]

    @property
    def lost_servers(self) -> str:
        """Titles of the servers that have been there and are gone; empty with none."""
        return self._titles([m for m in self.missing if m[0] == "ps" and m in self._been])

    @property
    def lost_workers(self) -> str:
        """Titles of the workers that are gone; empty with none."""
        return self._titles([m for m in self.missing if m[0] == "worker"])

    def close(self, last: str) -> None:
        """Tell all members how the chief has ended, and let them end."""
        self._closed = True
        self._wake.send(b".")
        self._thread.join()
        for connection in self._here.values():
            _send(connection, {"end": last})
            connection.close()
        for own in (self._listener, self._wake, self._waking):
            own.close()
        self._selector.close()

    def _titles(self, members: list[Member]) -> str:
        return ", ".join(self.roles.title(*member) for member in members)

    def _watch(self) -> None:
        lines: dict[socket.socket, _Lines] = {}
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    with suppress(OSError):  # who came may be gone already
                        connection, _address = self._listener.accept()
                        _keep_alive(connection)
                        self._selector.register(connection, selectors.EVENT_READ, connection)
                        lines[connection] = _Lines(connection)
                elif key.data is not None:
                    self._hear(key.data, lines)

    def _hear(self, connection: socket.socket, lines: dict[socket.socket, _Lines]) -> None:
        """What comes of a connection: a hello, or its end. Members say nothing else."""
        member = next((m for m, own in self._here.items() if own is connection), None)
        heard = lines[connection].read()
        if heard is None or member is not None:
            if heard == {} and member is not None:
                return
            self._drop(connection, lines, member)
        elif heard and (refused := self._welcome(connection, heard)):
            _send(connection, {"refused": refused})
            self._drop(connection, lines, None)

    def _drop(
        self, connection: socket.socket, lines: dict[socket.socket, _Lines], member: Member | None
    ) -> None:
        self._selector.unregister(connection)
        connection.close()
        del lines[connection]
        if member is None:
            return
        with self._changed:
            del self._here[member]
            self._changed.notify_all()
        if self._started and member[0] == "worker":  # of a server, the training itself says it
            self._say(f"{self.roles.title(*member)} is lost; its step goes to another worker")

    def _welcome(self, connection: socket.socket, hello: Mapping[str, Any]) -> str:
        """Take in who says hello; why not, where it is refused."""
        member = str(hello.get("role")), hello.get("index")
        if not isinstance(member[1], int) or member not in self.roles.members:
            return shortened(f"{member[0]} {member[1]} is no part of the chief's cluster")
        title, here, there = self.roles.title(*member), versions_here(), hello.get("versions")
        if not isinstance(there, dict):
            return f"{title} says no versions"
        if member in self._here:
            return f"{title} is there already: another process has the same --role and --index"
        if hello.get("cluster") != _addresses(self.roles):
            return self._remember(f"{title} was started with another cluster than the chief's")
        if differ := [name for name in here if there.get(name) != here[name]]:
            said = ", ".join(
                f"{name} {shortened(str(there.get(name)))}, here {here[name]}" for name in differ
            )
            return self._remember(
                f"{title} has other versions than the chief: {plain(said)}; install the same"
            )
        if not _send(connection, {"welcome": True}):
            return "gone"
        again = member in self._been
        with self._changed:
            self._here[member] = connection
            self._been.add(member)
            self._changed.notify_all()
        if again and member[0] == "worker":
            # TensorFlow takes the lost ones in again when all of them are there.
            wait = f"; it works again when {lost} is back too" if (lost := self.lost_workers) else ""
            self._say(f"{title} is back{wait}")
        return ""

    def _remember(self, refused: str) -> str:
        """The first refusal ends a chief that still waits for its members."""
        with self._changed:
            self._refused = self._refused or refused
            self._changed.notify_all()
        if self._started:
            self._say(f"refused: {refused}")
        return refused


@contextmanager
def watching(roles: Roles, say: Callable[[str], None] = print) -> Iterator[Watch]:
    """The chief's watch, for as long as the context lasts."""
    watch = Watch(roles, say)
    last = "has failed"
    try:
        yield watch
        last = "has ended"
    finally:
        watch.close(last)


# ---------------------------------------------------------------------------------------- its members


def stay(roles: Roles, say: Callable[[str], None] = print) -> int:
    """Say hello to the chief, as soon as there is one, and return when it ends; the exit code.

    0: the chief has said how it ended; 1: it is gone without a word.

    Raises:
        DeviceError: the chief refuses this process.
    """
    own = f"{roles.role} {roles.index}"
    connection = _reach(roles, own, say)
    with connection:
        lines = _Lines(connection)
        _send(connection, {"role": roles.role, "index": roles.index, **_facts(roles)})
        while (heard := lines.read()) is not None:
            if "refused" in heard:
                raise DeviceError(f"the chief ({roles.chief}) refuses {own}: {heard['refused']}")
            if "welcome" in heard:
                say(f"{own}: with the chief at {roles.chief}")
            if "end" in heard:
                last = plain(str(heard["end"]))
                say(f"{own}: the chief {last}, so this ends")
                return 0
    say(f"{own}: the chief at {roles.chief} is gone, so this ends")
    return 1


def _reach(roles: Roles, own: str, say: Callable[[str], None]) -> socket.socket:
    """A connection to the chief, waited for as long as it takes: the chief may index for hours."""
    said = False
    while True:
        with suppress(OSError):
            connection = socket.create_connection((host_of(roles.chief), port_of(roles.chief)), timeout=10)
            connection.settimeout(None)
            _keep_alive(connection)
            return connection
        if not said:
            say(f"{own}: waiting for the chief at {roles.chief}")
            said = True
        time.sleep(_AGAIN)


def _facts(roles: Roles) -> dict[str, Any]:
    return {"versions": versions_here(), "cluster": _addresses(roles)}


def _addresses(roles: Roles) -> list[list[str]]:
    return [[roles.chief], list(roles.workers), list(roles.servers)]


# ------------------------------------------------------------------------------------------- sockets


class _Lines:
    """Lines of JSON of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._left = connection, b""

    def read(self) -> dict[str, Any] | None:
        """The next object; {} where a line has not come whole; None at the end, or where it is none."""
        if b"\n" not in self._left:
            try:
                heard = self._connection.recv(_LONGEST)
            except OSError:
                heard = b""
            if not heard:
                return None
            self._left += heard
        line, ended, rest = self._left.partition(b"\n")
        if not ended:
            return {} if len(self._left) < _LONGEST else None
        self._left = rest
        try:
            found = json.loads(line)
        except ValueError:  # also of bytes that are no text
            return None
        return found if isinstance(found, dict) and found else None


def _send(connection: socket.socket, message: Mapping[str, Any]) -> bool:
    """Whether it went out."""
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True


def _listener(address: str) -> socket.socket:
    host, port = host_of(address), port_of(address)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # On all of the machine's networks: how the others call it need not be a name of its own network.
        return socket.create_server(("", port), family=family, backlog=1024)
    except OSError as error:
        raise DeviceError(f"chief ({address}): cannot listen there: {error.strerror or error}") from None


def check_port(title: str, address: str) -> None:
    """Raise DeviceError where another process listens at this machine's port of an address.

    TensorFlow's servers would share it, and each would get some of the other's calls.
    """
    try:
        socket.create_server(("", port_of(address))).close()
    except OSError as error:
        raise DeviceError(f"{title}: cannot listen there: {error.strerror or error}") from None


def _keep_alive(connection: socket.socket) -> None:
    """Notice a machine that has lost its power, or its network, within half a minute."""
    options = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
