"""Messages between the processes of a training: a line of JSON each, over TCP, in a private network."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from segmenter.base.files import Closing


class Line(Closing):
    """A connection that carries messages; within its context it is open.

    Attributes:
        socket: of the connection, for its options.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._file = connection.makefile("rb")

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send a message; return whether it went out."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """Return the next message; None if the other end is gone, says no message, or takes too long."""
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
    """Return a socket that listens on the port of an address of this machine.

    On all of the machine's networks: how the others call it need not be a name of its own network.

    Raises:
        OSError: it is in use, or the address is unknown.
    """
    host, port = split(address)
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(("", port), family=family, backlog=backlog)
