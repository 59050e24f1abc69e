"""Cluster of a training: the addresses of its workers, and the index of this process.

The recipe sets how workers train together (`distribution.strategy`); the command or its environment lists
them: `--cluster` and `--index`, `--cluster slurm`, or TensorFlow's own TF_CONFIG.

The workers meet before TensorFlow connects them, since TensorFlow's wait ignores Ctrl-C and time limits: each
sends a message to the chief, a JSON line on the port that TensorFlow will use; once the chief has all, it
answers all. Messages are not encrypted.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from segmenter.base.errors import (
    ConfigError,
    DeviceError,
    WorkerError,
    error_parts,
    failing,
    shorten,
)
from segmenter.base.files import Closing


class Connection(Closing):
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
    with failing(
        DeviceError,
        cluster.name(),
        f"cannot listen on port {split(address)[1]} of this machine",
        "is the training running already? Otherwise name another port, to all workers",
    ):
        return listen(address, cluster.workers)


def _receive(cluster: Cluster, timeout: float) -> None:
    until = time.monotonic() + timeout
    callers: dict[int, Connection] = {}
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
            caller = opened.enter_context(Connection(connection))
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
        with contextlib.suppress(OSError), Connection(socket.create_connection(address, _POLL)) as line:
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


def _answer(callers: dict[int, Connection], message: dict[str, Any]) -> None:
    for caller in callers.values():
        caller.send(message)


SLURM = "slurm"
_ADDRESS = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:]+\]):(\d{1,5})")
_STRATEGIES = ("auto", "multi_worker_mirrored")
_EXAMPLE = "host1:2222,host2:2222"
_SLURM_PORT = 8888
"""Port of the first task on a host, as in TensorFlow's SlurmClusterResolver; further ones have the next."""


@dataclass(frozen=True)
class Cluster:
    """Workers of a training.

    Attributes:
        index: index of this process, from 0; worker 0 is the chief.
        addresses: host:port of each worker; with Slurm, empty until `resolved`.
    """

    index: int
    workers: int
    source: str
    addresses: tuple[str, ...] = ()

    @property
    def chief(self) -> bool:
        """True if this worker writes the run."""
        return self.index == 0

    def name(self, index: int | None = None) -> str:
        """Return a worker's name for messages: this worker's, or that of `index`."""
        number = self.index if index is None else index
        where = f" ({self.addresses[number]})" if self.addresses else ""
        return f"worker {number}{where}"

    def resolved(self, environment: Mapping[str, str]) -> Cluster:
        """Return the cluster with its addresses; imports TensorFlow to read Slurm's list of hosts.

        Raises:
            DeviceError: Slurm's list of hosts cannot be read.
        """
        return self if self.addresses else replace(self, addresses=_slurm_addresses(environment))

    def tf_config(self) -> str:
        """Return TF_CONFIG's content for this worker, which TensorFlow's strategies read."""
        task = {"type": "worker", "index": self.index}
        return json.dumps({"cluster": {"worker": list(self.addresses)}, "task": task})


def find_cluster(
    strategy: str, asked: str | None, index: int | None, environment: Mapping[str, str]
) -> Cluster | None:
    """Return the cluster of this process; None for a training by one process.

    Raises:
        ConfigError: the settings contradict each other, or describe no cluster.
    """
    if asked is None and index is not None:
        raise ConfigError("--index", expected=f"--cluster {_EXAMPLE} with it", got="none")
    if asked is not None and strategy not in _STRATEGIES:
        raise ConfigError(
            "--cluster", expected="distribution.strategy: auto or multi_worker_mirrored with it", got=strategy
        )
    if strategy not in _STRATEGIES:
        return None
    if asked == SLURM:
        return _of_slurm(index, environment)
    if asked is not None:
        addresses = checked_addresses(asked.split(","), "--cluster")
        return Cluster(own_index(index, len(addresses), "--index"), len(addresses), "--cluster", addresses)
    if environment.get("TF_CONFIG", "").strip():
        return _of_tf_config(environment["TF_CONFIG"])
    if strategy == "multi_worker_mirrored":
        raise ConfigError(
            "distribution.strategy: multi_worker_mirrored",
            expected=f"a cluster, by --cluster {_EXAMPLE} --index I, by --cluster slurm, or by TF_CONFIG",
            got="none",
            remedy="on one machine use auto",
        )
    return None


def checked_addresses(listed: Sequence[Any], where: str) -> tuple[str, ...]:
    """Return addresses as text; refuse those that are none, or are listed twice."""
    addresses = tuple(str(address).strip() for address in listed)
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[1]) < 1 << 16:
            raise ConfigError(where, expected=_EXAMPLE, got=shorten(address or "an empty address"))
    if twice := [address for i, address in enumerate(addresses) if address in addresses[:i]]:
        raise ConfigError(where, expected="each address once", got=f"{twice[0]} twice")
    return addresses


def own_index(index: Any, workers: int, where: str) -> int:
    """Return the index of this process; refuse one that is missing or too large."""
    if type(index) is not int or not 0 <= index < workers:
        of = f"0 to {workers - 1}" if workers > 1 else "0"
        got = "none" if index is None else shorten(str(index))
        raise ConfigError(where, expected=f"the number of this worker, {of}", got=got)
    return index


def read_tf_config(text: str) -> tuple[dict[str, list[Any]], str, Any]:
    """Return the addresses by job, and this process's job and index, from TF_CONFIG; all unchecked.

    Raises:
        ConfigError: the text has another form.
    """
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        jobs = {str(job): list(addresses) for job, addresses in dict(cluster).items() if addresses}
        return jobs, str(task.get("type")), task.get("index")
    except (ValueError, TypeError, AttributeError):
        layout = (
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
        )
        raise ConfigError("TF_CONFIG", expected=f"JSON like {layout}", got=shorten(text, 100)) from None


def _of_tf_config(text: str) -> Cluster | None:
    """Return the cluster in TF_CONFIG; its jobs may be `worker` and at most one `chief`, which is first."""
    jobs, kind, index = read_tf_config(text)
    if not jobs:
        return None
    if others := set(jobs) - {"chief", "worker"}:
        raise ConfigError(
            "TF_CONFIG",
            expected="jobs chief and worker for multi_worker_mirrored",
            got=sorted(others)[0],
            remedy="parameter servers need distribution.strategy: parameter_server",
        )
    chiefs = jobs.get("chief", [])
    if len(chiefs) > 1:
        raise ConfigError("TF_CONFIG", expected="one chief at most", got=len(chiefs))
    addresses = checked_addresses([*chiefs, *jobs.get("worker", [])], "TF_CONFIG")
    if kind not in jobs:
        raise ConfigError("TF_CONFIG: task.type", expected=f"one of {', '.join(jobs)}", got=shorten(kind))
    own = own_index(index, len(jobs[kind]), f"TF_CONFIG: task.index of {kind}")
    return Cluster(own + (len(chiefs) if kind == "worker" else 0), len(addresses), "TF_CONFIG", addresses)


# ------------------------------------------------------------------------------------------- Slurm


def _of_slurm(index: int | None, environment: Mapping[str, str]) -> Cluster:
    if index is not None:
        raise ConfigError("--index", "Slurm numbers its tasks itself: leave it out with --cluster slurm")
    names = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE")
    if missing := [name for name in names if name not in environment]:
        raise ConfigError(
            "--cluster slurm",
            expected=f"to be started by srun, {missing[0]} is not set",
            remedy="see docs/machines.md",
        )
    number, workers = (int(environment[name]) for name in names[:2])
    return Cluster(own_index(number, workers, "SLURM_PROCID"), workers, "Slurm")


def _slurm_addresses(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return host:port of each task, in the order of Slurm's numbers.

    TensorFlow's SlurmClusterResolver parses the list; its own result is sorted by host names as text, which
    would swap n2 and n10, and it divides by the number of GPUs, which may be 0.
    """
    from tensorflow.python.distribute.cluster_resolver import slurm_cluster_resolver as slurm

    try:
        hosts = slurm.expand_hostlist(environment["SLURM_STEP_NODELIST"])
        tasks = slurm.expand_tasks_per_node(environment["SLURM_STEP_TASKS_PER_NODE"])
        addresses = [
            f"{host}:{_SLURM_PORT + task}"
            for host, count in zip(hosts, tasks, strict=True)
            for task in range(count)
        ]
    except ValueError as error:
        raise DeviceError("--cluster slurm", f"cannot read Slurm's list of hosts: {error}") from None
    return tuple(addresses)
