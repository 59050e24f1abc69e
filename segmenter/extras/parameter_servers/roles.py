"""Roles of the processes of a cluster, from the command line or TF_CONFIG; without TensorFlow."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from segmenter.base.errors import ConfigError, shortened
from segmenter.devices.machines.rendezvous import split

ROLES = ("chief", "worker", "ps")
"""As TensorFlow calls them; `ps` is a parameter server."""
_FORM = "--cluster chief=HOST:PORT worker=HOST:PORT,HOST:PORT ps=HOST:PORT"
_MOST_PORT = 65535

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
            got = f"{role} twice" if role in jobs else shortened(role)
            raise ConfigError("--cluster", expected=f"each of the roles {', '.join(ROLES)} once", got=got)
        jobs[role] = tuple(part.strip() for part in listed.split(","))
    _check_addresses(jobs, "--cluster")
    return jobs


def cluster_of_environment(text: str) -> tuple[Jobs, str, int]:
    """Return addresses, this process's role and its index from TF_CONFIG, in TensorFlow's format.

    Raises:
        ConfigError: not of the form {"cluster": {"chief": […], …}, "task": {"type": …, "index": …}}.
    """
    form = 'TF_CONFIG: expected {"cluster": {ROLE: [HOST:PORT, …]}, "task": {"type": ROLE, "index": I}}'
    try:
        data = json.loads(text)
        jobs = {str(role): tuple(map(str, listed)) for role, listed in data["cluster"].items()}
        role, index = str(data["task"]["type"]), int(data["task"]["index"])
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        what = shortened(" ".join(f"{type(error).__name__}: {error}".split()))
        raise ConfigError(f"{form}, got {shortened(text)} ({what})") from None
    if others := [name for name in (*jobs, role) if name not in ROLES]:
        raise ConfigError("TF_CONFIG", expected=f"the roles {', '.join(ROLES)}", got=shortened(others[0]))
    _check_addresses(jobs, "TF_CONFIG")
    return jobs, role, index


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
    return Roles(jobs["chief"][0], jobs["worker"], jobs["ps"], own, _index(jobs, own, number))


def _index(jobs: Jobs, role: str, index: int | None) -> int:
    count = len(jobs[role])
    if index is None and count > 1:
        raise ConfigError(
            "--index", expected=f"which of the {count} of role {role} this is, from 0", got="none"
        )
    if not 0 <= (number := index or 0) < count:
        raise ConfigError("--index", expected=f"0 to {count - 1} for role {role}", got=number)
    return number


def _check_addresses(jobs: Jobs, where: str) -> None:
    seen: set[str] = set()
    for role, listed in jobs.items():
        for address in listed:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) <= _MOST_PORT:
                raise ConfigError(f"{where}: {role}", expected="HOST:PORT", got=f"{shortened(address)!r}")
            if address in seen:
                raise ConfigError(f"{where}: {role}", expected="each address once", got=f"{address} twice")
            seen.add(address)
