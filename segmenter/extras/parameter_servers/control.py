"""Control connections between a cluster's chief and members: presence, versions, end.

TensorFlow's servers never end by themselves, and its chief does not notice a lost member until a step fails.
So each worker and server keeps a connection to the chief's address: it sends its versions, is accepted or
refused, and ends when the chief says so or is gone. The chief notices lost and returning members at once.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from segmenter.base.errors import ConfigError, DeviceError, failing, plain, shorten
from segmenter.devices.machines.cluster import (
    Connection,
    checked_addresses,
    listen,
    own_index,
    read_tf_config,
    split,
)
from segmenter.runs.resume import installed_versions

ROLES = ("chief", "worker", "ps")
"""As TensorFlow calls them; `ps` is a parameter server."""
_FORM = "--cluster chief=HOST:PORT worker=HOST:PORT,HOST:PORT ps=HOST:PORT"

Jobs = dict[str, tuple[str, ...]]
"""Role → the addresses of its processes, HOST:PORT, by their index."""


@dataclass(frozen=True)
class Roles:
    """A cluster of a chief, workers and parameter servers, and the role of this process.

    Attributes:
        workers, servers: addresses of workers and servers, by index.
    """

    chief: str
    workers: tuple[str, ...]
    servers: tuple[str, ...]
    role: str = "chief"
    index: int = 0

    @property
    def members(self) -> dict[tuple[str, int], str]:
        """Addresses of all processes but the chief, by (role, index)."""
        pairs = (("worker", self.workers), ("ps", self.servers))
        return {(role, i): address for role, listed in pairs for i, address in enumerate(listed)}

    @property
    def address(self) -> str:
        """Address of this process."""
        return self.chief if self.role == "chief" else self.members[self.role, self.index]

    @property
    def place_on_host(self) -> int:
        """Number of workers with a lower index on this worker's host: its position among the host's GPUs."""
        host = split(self.address)[0]
        return sum(split(other)[0] == host for other in self.workers[: self.index])

    def title(self, role: str, index: int) -> str:
        """Return the title of a process, for messages: `worker 1 (host:port)`."""
        return f"{role} {index} ({self.members[role, index]})"


def parse_cluster(words: Sequence[str]) -> Jobs:
    """Parse `ROLE=HOST:PORT,HOST:PORT …` to addresses by role; a list without a role is for workers.

    Raises:
        ConfigError: a role or address is invalid or repeated.
    """
    jobs: Jobs = {}
    for word in words:
        role, equals, listed = word.partition("=")
        role, listed = (role, listed) if equals else ("worker", role)
        if role not in ROLES or role in jobs:
            got = f"{role} twice" if role in jobs else shorten(role)
            raise ConfigError("--cluster", expected=f"each of the roles {', '.join(ROLES)} once", got=got)
        jobs[role] = tuple(part.strip() for part in listed.split(","))
    checked_addresses([address for listed in jobs.values() for address in listed], "--cluster")
    return jobs


def cluster_of_environment(text: str) -> tuple[Jobs, str, Any]:
    """Return addresses, this process's role and its index from TF_CONFIG, in TensorFlow's format.

    Raises:
        ConfigError: not of that form, or a role or address is invalid.
    """
    listed, role, index = read_tf_config(text)
    if others := [name for name in (*listed, role) if name not in ROLES]:
        raise ConfigError("TF_CONFIG", expected=f"the roles {', '.join(ROLES)}", got=shorten(others[0]))
    checked_addresses([address for each in listed.values() for address in each], "TF_CONFIG")
    return {name: tuple(map(str, each)) for name, each in listed.items()}, role, index


def roles_of(
    words: Sequence[str] | None,
    role: str | None = None,
    index: int | None = None,
    environment: Mapping[str, str] | None = None,
) -> Roles:
    """Return this process's role in a cluster with parameter servers.

    Args:
        words: values of `--cluster`; None: TF_CONFIG is used.
        role, index: values of `--role` and `--index`; None: the chief, and 0 if there is only one.
        environment: environment variables; None: those of the process.

    Raises:
        ConfigError: a value is missing, or not part of the cluster; the message names it.
    """
    variables = os.environ if environment is None else environment
    if words:
        jobs, own, number, where = parse_cluster(words), role or "chief", index, "--cluster"
    elif text := variables.get("TF_CONFIG"):
        if role is not None or index is not None:
            raise ConfigError("--role, --index: TF_CONFIG says them; expected --cluster with them, got none")
        (jobs, own, number), where = cluster_of_environment(text), "TF_CONFIG"
    else:
        raise ConfigError(
            "distribution.strategy: parameter_server",
            expected=f"its processes by {_FORM}, with --role and --index for each but the chief, or by "
            "TF_CONFIG",
            got="neither",
        )
    if missing := [name for name in ROLES if not jobs.get(name)]:
        raise ConfigError(where, expected=f"a chief, workers and servers ({_FORM})", got=f"no {missing[0]}")
    if len(jobs["chief"]) != 1:
        raise ConfigError(where, expected="one chief", got=len(jobs["chief"]))
    count = len(jobs[own])
    number = own_index(0 if number is None and count == 1 else number, count, "--index")
    return Roles(jobs["chief"][0], jobs["worker"], jobs["ps"], own, number)


_PATIENCE = 600.0
"""Seconds in which all members have to have come, once the chief has indexed its data: images of containers
are fetched, queues wait."""
_AGAIN = 0.5
"""Seconds between two attempts to reach a chief that is not there yet."""
_HELLO = 5.0
"""Seconds that who connects has to say hello in."""

_COMPARED = ("coverage-segmenter", "tensorflow", "keras")

Member = tuple[str, int]
"""(role, index)."""


def versions_here() -> dict[str, str]:
    """Return the versions that must be equal in all processes of a cluster."""
    return {name: version for name, version in installed_versions().items() if name in _COMPARED}


# ------------------------------------------------------------------------------------------ the chief


class Watch:
    """The chief's connections to the members of its cluster."""

    def __init__(self, roles: Roles, say: Callable[[str], None] = print) -> None:
        """Listen for members.

        Raises:
            DeviceError: the chief's address is in use, or not on this machine.
        """
        self.roles, self._say = roles, say
        self._changed = threading.Condition()
        self._here: dict[Member, Connection] = {}
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
        """Wait until all members are connected.

        Raises:
            DeviceError: members are missing after `patience` seconds or have other versions.
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
                self._titles(missing),
                f"not there after {patience:.0f} s",
                remedy="start the same command there with --role and --index, and see that the chief's port "
                "and theirs are open",
            )
        self._started = True

    @property
    def missing(self) -> list[Member]:
        """Members that are not connected now."""
        return [member for member in self.roles.members if member not in self._here]

    @property
    def lost_servers(self) -> str:
        """Titles of the servers that were connected and are gone; empty if there are none."""
        return self._titles([m for m in self.missing if m[0] == "ps" and m in self._been])

    @property
    def lost_workers(self) -> str:
        """Titles of the workers that are gone; empty if there are none."""
        return self._titles([m for m in self.missing if m[0] == "worker"])

    def close(self, last: str) -> None:
        """Tell all members how the chief has ended, so that they end."""
        self._closed = True
        self._wake.send(b".")
        self._thread.join()
        for line in self._here.values():
            line.send({"end": last})
            line.close()
        for own in (self._listener, self._wake, self._waking):
            own.close()
        self._selector.close()

    def _titles(self, members: list[Member]) -> str:
        return ", ".join(self.roles.title(*member) for member in members)

    def _watch(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    with suppress(OSError):  # who came may be gone already
                        connection, _address = self._listener.accept()
                        connection.settimeout(_HELLO)
                        _keep_alive(connection)
                        self._selector.register(connection, selectors.EVENT_READ, Connection(connection))
                elif key.data is not None:
                    self._hear(key.data)

    def _hear(self, line: Connection) -> None:
        """Handle a connection: a hello, or its end. Members send nothing else."""
        member = next((m for m, own in self._here.items() if own is line), None)
        hello = line.receive()
        if hello is None or member is not None:
            self._drop(line, member)
        elif refused := self._welcome(line, hello):
            line.send({"refused": refused})
            self._drop(line, None)

    def _drop(self, line: Connection, member: Member | None) -> None:
        self._selector.unregister(line.socket)
        line.close()
        if member is None:
            return
        with self._changed:
            del self._here[member]
            self._changed.notify_all()
        if self._started and member[0] == "worker":  # of a server, the training itself says it
            self._say(f"{self.roles.title(*member)} is lost; its step goes to another worker")

    def _welcome(self, line: Connection, hello: Mapping[str, Any]) -> str:
        """Register a member from its hello; return the reason if it is refused, else empty text."""
        member = str(hello.get("role")), hello.get("index")
        if not isinstance(member[1], int) or member not in self.roles.members:
            return shorten(f"{member[0]} {member[1]} is no part of the chief's cluster")
        title, here, there = self.roles.title(*member), versions_here(), hello.get("versions", {})
        if member in self._here:
            return f"{title} is there already: another process has the same --role and --index"
        if hello.get("cluster") != _addresses(self.roles):
            return self._remember(f"{title} was started with another cluster than the chief's")
        if differ := [name for name in here if there.get(name) != here[name]]:
            differences = ", ".join(
                f"{name} {shorten(str(there.get(name)))}, here {here[name]}" for name in differ
            )
            return self._remember(
                f"{title} has other versions than the chief: {plain(differences)}; install the same"
            )
        if not line.send({"welcome": True}):
            return "gone"
        again = member in self._been
        with self._changed:
            self._here[member] = line
            self._been.add(member)
            self._changed.notify_all()
        if again and member[0] == "worker":
            # TensorFlow takes the lost ones in again when all of them are there.
            wait = f"; it works again when {lost} is back too" if (lost := self.lost_workers) else ""
            self._say(f"{title} is back{wait}")
        return ""

    def _remember(self, refused: str) -> str:
        """Store the first refusal, which ends a chief that still waits for members; return it."""
        with self._changed:
            self._refused = self._refused or refused
            self._changed.notify_all()
        if self._started:
            self._say(f"refused: {refused}")
        return refused


@contextmanager
def watching(roles: Roles, say: Callable[[str], None] = print) -> Iterator[Watch]:
    """Yield the chief's watch over its members; end the members with the context."""
    watch = Watch(roles, say)
    last = "has failed"
    try:
        yield watch
        last = "has ended"
    finally:
        watch.close(last)


# ---------------------------------------------------------------------------------------- its members


def stay(roles: Roles, say: Callable[[str], None] = print) -> int:
    """Join the chief as soon as it is up; when it ends, return the exit code.

    0: the chief has announced its end; 1: it has disappeared.

    Raises:
        DeviceError: the chief refuses this process.
    """
    own = f"{roles.role} {roles.index}"
    with Connection(_reach(roles, own, say)) as line:
        line.send({"role": roles.role, "index": roles.index, **_facts(roles)})
        while (message := line.receive()) is not None:
            if "refused" in message:
                raise DeviceError(f"the chief ({roles.chief}) refuses {own}: {message['refused']}")
            if "welcome" in message:
                say(f"{own}: with the chief at {roles.chief}")
            if "end" in message:
                say(f"{own}: the chief {message['end']}, so this ends")
                return 0
    say(f"{own}: the chief at {roles.chief} is gone, so this ends")
    return 1


def _reach(roles: Roles, own: str, say: Callable[[str], None]) -> socket.socket:
    """Connect to the chief, waiting without limit: the chief may index for hours."""
    announced = False
    while True:
        with suppress(OSError):
            connection = socket.create_connection(split(roles.chief), timeout=10)
            connection.settimeout(None)
            _keep_alive(connection)
            return connection
        if not announced:
            say(f"{own}: waiting for the chief at {roles.chief}")
            announced = True
        time.sleep(_AGAIN)


def _facts(roles: Roles) -> dict[str, Any]:
    return {"versions": versions_here(), "cluster": _addresses(roles)}


def _addresses(roles: Roles) -> list[list[str]]:
    return [[roles.chief], list(roles.workers), list(roles.servers)]


# ------------------------------------------------------------------------------------------- sockets


def _listener(address: str) -> socket.socket:
    with failing(DeviceError, f"chief ({address})", "cannot listen there"):
        return listen(address, 1024)


def check_port(title: str, address: str) -> None:
    """Raise DeviceError if another process listens on this machine's port of an address.

    TensorFlow's servers would share the port, and each would get some of the other's calls.
    """
    with failing(DeviceError, title, "cannot listen there"):
        socket.create_server(("", split(address)[1])).close()


def _keep_alive(connection: socket.socket) -> None:
    """Detect a machine that has lost power or network within half a minute."""
    options = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 4))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in options:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
