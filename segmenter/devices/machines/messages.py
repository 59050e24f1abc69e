"""Messages between the processes of a training: JSON lines over TCP, in a private network."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from segmenter.base.files import Closing


class Line(Closing):
    """Connection for messages; open within its context.

    Attributes:
        socket: the connection's socket, for its options.
    """

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
