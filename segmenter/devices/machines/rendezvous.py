"""Rendezvous of workers before TensorFlow connects them: TensorFlow's wait ignores Ctrl-C and time limits.

Each worker sends a message to the chief, on the port that TensorFlow will use; once it has all, it answers
all. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Mapping
from typing import Any

from segmenter.base.errors import DeviceError, WorkerError
from segmenter.base.files import Closing
from segmenter.devices.machines.cluster import Cluster


class Line(Closing):
    """Connection for messages; open within its context."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._file = connection.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; return True if it was sent."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the connection is closed, too slow, or sends something else."""
        try:
            message = json.loads(self._file.readline())
        except (OSError, ValueError):
            return None
        return message if isinstance(message, dict) else None

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()


def split(address: str) -> tuple[str, int]:
    """Return host, without the brackets of IPv6, and port of HOST:PORT."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def listen(address: str, backlog: int) -> socket.socket:
    """Return a socket that listens on an address's port on this machine.

    It listens on all networks: the address that others use may not be one of this machine's own.

    Raises:
        OSError: the port is in use, or the address is unknown.
    """
    host, port = split(address)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(("", port), family=family, backlog=backlog)


_POLL = 0.5
"""Seconds after which the chief looks at the clock, and a follower calls again."""
_ANSWER = 5.0
"""Seconds that a caller has to say who it is, and that a follower waits longer than the chief."""


def meet(cluster: Cluster, timeout: float) -> None:
    """Return when all workers are present.

    Raises:
        DeviceError: the chief's port is in use.
        WorkerError: workers are missing at the time limit, or have other addresses.
    """
    if cluster.chief:
        _receive(cluster, timeout)
    else:
        _call(cluster, timeout)


def listening(cluster: Cluster) -> socket.socket:
    """Return a socket that listens on this worker's port.

    Raises:
        DeviceError: the port is in use.
    """
    address = cluster.addresses[cluster.index]
    try:
        return listen(address, cluster.workers)
    except OSError as error:
        raise DeviceError(
            f"{cluster.name()}: cannot listen on port {split(address)[1]} of this machine: {error.strerror}; "
            "is the training running already? Otherwise name another port, to all workers"
        ) from None


def _receive(cluster: Cluster, timeout: float) -> None:
    until = time.monotonic() + timeout
    callers: dict[int, Line] = {}
    with listening(cluster) as listener, contextlib.ExitStack() as opened:
        listener.settimeout(_POLL)
        while len(callers) < cluster.workers - 1:
            if time.monotonic() > until:
                names = [cluster.name(i) for i in range(1, cluster.workers) if i not in callers]
                error = _late(", ".join(names), timeout)
                _answer(callers, {"error": error})
                raise WorkerError(error)
            try:
                connection = listener.accept()[0]
            except TimeoutError:
                continue
            connection.settimeout(_ANSWER)
            caller = opened.enter_context(Line(connection))
            if (hello := caller.receive()) is None:
                continue
            if hello["addresses"] != list(cluster.addresses):
                expected = ",".join(cluster.addresses)
                caller.send(
                    {
                        "error": f"{cluster.name(0)}: expected the same addresses on all workers, here "
                        f"{expected}, on one that calls itself worker {hello['index']} others"
                    }
                )
                continue
            callers[hello["index"]] = caller  # of two with one number the later: the other may be stopped
        _answer(callers, {"go": True})


def _call(cluster: Cluster, timeout: float) -> None:
    until = time.monotonic() + timeout
    address = split(cluster.addresses[0])
    while True:
        with contextlib.suppress(OSError), Line(socket.create_connection(address, _POLL)) as line:
            line.send({"index": cluster.index, "addresses": list(cluster.addresses)})
            line.socket.settimeout(max(_POLL, until + _ANSWER - time.monotonic()))
            if (answer := line.receive()) is not None:
                if "error" in answer:
                    raise WorkerError(answer["error"])
                return
        if time.monotonic() > until:
            raise WorkerError(_late(cluster.name(0), timeout))
        time.sleep(_POLL)


def _late(names: str, timeout: float) -> str:
    return (
        f"{names} did not come within {timeout:g} s (distribution.start_timeout): is it running, with the "
        "same addresses, and is its port open?"
    )


def _answer(callers: dict[int, Line], message: dict[str, Any]) -> None:
    for caller in callers.values():
        caller.send(message)
