"""Meeting of the workers before TensorFlow joins them: its own wait hears neither Ctrl-C nor a limit of time.

The others call the chief, on the port that TensorFlow will use, with one line of JSON each; when all have,
it answers all. Nothing of it is encrypted, and nothing else than JSON is read.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from typing import Any

from segmenter.base.errors import DeviceError, WorkerError, shortened
from segmenter.devices.machines.cluster import Cluster

_MOST = 1 << 16
"""Bytes of a message; a thousand addresses are half of that."""
_POLL = 0.5
"""Seconds after which a wait looks at signals, and a follower calls again."""
_ANSWER = 5.0
"""Seconds that a caller has to say who it is, and that a follower waits longer than the chief."""


def meet(cluster: Cluster, timeout: float) -> None:
    """Return when all workers are there.

    Raises:
        DeviceError: the chief's port is in use.
        WorkerError: some did not come in time, or have other addresses; all that came get the same line.
    """
    if cluster.chief:
        _receive(cluster, timeout)
    else:
        _call(cluster, timeout)


def listening(cluster: Cluster) -> socket.socket:
    """A socket that listens on this worker's port.

    Raises:
        DeviceError: it is in use.
    """
    host, port = _split(cluster.addresses[cluster.index])
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("", port))
        listener.listen(cluster.workers)
    except OSError as error:
        listener.close()
        raise DeviceError(
            f"{cluster.name()}: cannot listen on port {port} of this machine: {error.strerror}; is the "
            "training running already? Otherwise name another port, to all workers"
        ) from None
    return listener


def _receive(cluster: Cluster, timeout: float) -> None:
    until = time.monotonic() + timeout
    came: dict[int, socket.socket] = {}
    with listening(cluster) as listener, contextlib.ExitStack() as opened:
        listener.settimeout(_POLL)
        while len(came) < cluster.workers - 1:
            if time.monotonic() > until:
                names = [cluster.name(i) for i in range(1, cluster.workers) if i not in came]
                raise _refused(came, _late(", ".join(names), timeout))
            with contextlib.suppress(OSError, ValueError):
                caller = opened.enter_context(listener.accept()[0])
                said = _heard(caller, _ANSWER)
                index = int(said["index"])
                if said["addresses"] != list(cluster.addresses):
                    line = f"{cluster.name(0)}: expected the same addresses on all workers, here " + ",".join(
                        cluster.addresses
                    )
                    _send(caller, {"error": f"{line}, on one that calls itself worker {index} others"})
                    continue
                came[index] = caller  # of two with one number the later: the other may have been stopped
        _answer(came, {"go": True})


def _call(cluster: Cluster, timeout: float) -> None:
    until = time.monotonic() + timeout
    address = _split(cluster.addresses[0])
    while True:
        with contextlib.suppress(OSError, ValueError), socket.create_connection(address, _POLL) as line:
            _send(line, {"index": cluster.index, "addresses": list(cluster.addresses)})
            said = _heard(line, until + _ANSWER - time.monotonic())
            if "error" in said:
                raise WorkerError(str(said["error"]))
            return
        if time.monotonic() > until:
            raise WorkerError(_late(cluster.name(0), timeout))
        time.sleep(_POLL)


def _late(names: str, timeout: float) -> str:
    return (
        f"{names} did not come within {timeout:g} s (distribution.start_timeout): is it running, with the "
        "same addresses, and is its port open?"
    )


def _refused(came: dict[int, socket.socket], line: str) -> WorkerError:
    _answer(came, {"error": line})
    return WorkerError(line)


def _answer(came: dict[int, socket.socket], said: dict[str, Any]) -> None:
    for caller in came.values():
        with contextlib.suppress(OSError):  # it will be missed soon enough
            _send(caller, said)


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _send(line: socket.socket, said: dict[str, Any]) -> None:
    line.sendall(json.dumps(said).encode() + b"\n")


def _heard(line: socket.socket, seconds: float) -> Any:
    """A message; ValueError where there is none, or no such."""
    until, content = time.monotonic() + seconds, b""
    line.settimeout(_POLL)
    while not content.endswith(b"\n") and len(content) < _MOST:
        with contextlib.suppress(TimeoutError):
            part = line.recv(4096)
            content += part
            if not part:
                break
        if time.monotonic() > until:
            break
    said = json.loads(content)
    if not isinstance(said, dict) or (
        not {"index", "addresses"} <= said.keys() and not {"go", "error"} & said.keys()
    ):
        raise ValueError(f"expected a worker's message, got {shortened(str(said), 60)}")
    return said
