"""Rendezvous of workers before TensorFlow connects them: TensorFlow's wait ignores Ctrl-C and time limits.

Each worker sends a message to the chief, on the port that TensorFlow will use; once it has all, it answers
all. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from segmenter.base.errors import DeviceError, WorkerError, error_parts, failing
from segmenter.devices.machines.cluster import Cluster
from segmenter.devices.machines.messages import Line, listen, split

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
    with failing(
        DeviceError,
        cluster.name(),
        f"cannot listen on port {split(address)[1]} of this machine",
        "is the training running already? Otherwise name another port, to all workers",
    ):
        return listen(address, cluster.workers)


def _receive(cluster: Cluster, timeout: float) -> None:
    until = time.monotonic() + timeout
    callers: dict[int, Line] = {}
    with listening(cluster) as listener, contextlib.ExitStack() as opened:
        listener.settimeout(_POLL)
        while len(callers) < cluster.workers - 1:
            if time.monotonic() > until:
                names = [cluster.name(i) for i in range(1, cluster.workers) if i not in callers]
                error = _late(", ".join(names), timeout)
                _answer(callers, {"error": error_parts(error)})
                raise error
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
                error = WorkerError(
                    cluster.name(0),
                    expected=f"the same addresses on all workers, here {expected}, on one that calls itself "
                    f"worker {hello['index']} others",
                )
                caller.send({"error": error_parts(error)})
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
                    raise WorkerError(**answer["error"])
                return
        if time.monotonic() > until:
            raise _late(cluster.name(0), timeout)
        time.sleep(_POLL)


def _late(names: str, timeout: float) -> WorkerError:
    return WorkerError(
        f"{names} did not come within {timeout:g} s (distribution.start_timeout)",
        "is it running, with the same addresses, and is its port open?",
    )


def _answer(callers: dict[int, Line], message: dict[str, Any]) -> None:
    for caller in callers.values():
        caller.send(message)
