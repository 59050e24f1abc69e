"""Cluster of a training: the addresses of its workers, and the index of this process.

The recipe sets how workers train together (`distribution.strategy`); the command or its environment lists
them: `--cluster` and `--index`, `--cluster slurm`, or TensorFlow's own TF_CONFIG.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from segmenter.base.errors import ConfigError, DeviceError, shortened

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
        workers: number of workers.
        source: origin of this information, for messages.
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

    Args:
        strategy: the recipe's `distribution.strategy`.
        asked: `--cluster`.
        index: `--index`.

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
        addresses = _addresses(asked.split(","), "--cluster")
        return Cluster(_index(index, len(addresses), "--index"), len(addresses), "--cluster", addresses)
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


def _addresses(listed: Sequence[Any], where: str) -> tuple[str, ...]:
    addresses = tuple(str(address).strip() for address in listed)
    for address in addresses:
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[1]) < 1 << 16:
            raise ConfigError(where, expected=_EXAMPLE, got=shortened(address or "an empty address"))
    if twice := [address for i, address in enumerate(addresses) if address in addresses[:i]]:
        raise ConfigError(where, expected="each address once", got=f"{twice[0]} twice")
    return addresses


def _index(index: Any, workers: int, where: str) -> int:
    if type(index) is not int or not 0 <= index < workers:
        of = f"0 to {workers - 1}" if workers > 1 else "0"
        got = "none" if index is None else shortened(str(index))
        raise ConfigError(where, expected=f"the number of this worker, {of}", got=got)
    return index


def _of_tf_config(text: str) -> Cluster | None:
    """Return the cluster in TF_CONFIG; its jobs may be `worker` and at most one `chief`, which is first."""
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster") or {}, config.get("task") or {}
        jobs = {str(job): list(addresses) for job, addresses in dict(cluster).items() if addresses}
        kind, index = str(task.get("type")), task.get("index")
    except (ValueError, TypeError, AttributeError):
        layout = (
            '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}'
        )
        raise ConfigError("TF_CONFIG", expected=f"JSON like {layout}", got=shortened(text, 100)) from None
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
    addresses = _addresses([*chiefs, *jobs.get("worker", [])], "TF_CONFIG")
    if kind not in jobs:
        raise ConfigError("TF_CONFIG: task.type", expected=f"one of {', '.join(jobs)}", got=shortened(kind))
    own = _index(index, len(jobs[kind]), f"TF_CONFIG: task.index of {kind}")
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
    try:
        number, workers = (int(environment[name]) for name in names[:2])
    except ValueError:
        raise ConfigError(
            "--cluster slurm", expected="numbers in SLURM_PROCID and SLURM_STEP_NUM_TASKS"
        ) from None
    return Cluster(_index(number, workers, "SLURM_PROCID"), workers, "Slurm")


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
    if len(addresses) != int(environment["SLURM_STEP_NUM_TASKS"]):
        raise DeviceError(
            "--cluster slurm",
            expected=f"{environment['SLURM_STEP_NUM_TASKS']} tasks on Slurm's hosts",
            got=len(addresses),
        )
    return tuple(addresses)
