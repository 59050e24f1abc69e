"""A cluster with parameter servers on this machine: a chief, workers and servers as train.py's processes."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.helpers.made_training import ROOT
from tests.helpers.several_workers import addresses

SERVED = ("--set", "distribution.strategy=parameter_server", "--set", "training.input_workers=0")


def is_free(address: str) -> bool:
    """Whether nobody listens there."""
    host, port = address.split(":")
    try:
        socket.create_server((host, int(port))).close()
    except OSError:
        return False
    return True


class Cluster:
    """Processes, all of which are ended when the context is left.

    Attributes:
        members: (role, index) → process.
    """

    def __init__(self, folder: Path, recipe: Path, workers: int, servers: int, *arguments: str) -> None:
        listed = {"chief": addresses(1), "worker": addresses(workers), "ps": addresses(servers)}
        self.addresses = [a for group in listed.values() for a in group]
        self.counts = {"worker": workers, "ps": servers}
        cluster = [f"{role}={','.join(group)}" for role, group in listed.items()]
        self._command = [sys.executable, "train.py", str(recipe), *SERVED, *arguments, "--cluster", *cluster]
        self._folder = folder
        self.members: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, role: str, index: int = 0, *arguments: str) -> None:
        more = [] if role == "chief" else ["--role", role, "--index", str(index)]
        environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
        with self._file(role, index).open("ab") as file:
            self.members[role, index] = subprocess.Popen(
                [*self._command, *more, *arguments],
                cwd=ROOT,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def start_all(self, *of_chief: str) -> None:
        for role, count in self.counts.items():
            for index in range(count):
                self.start(role, index)
        self.start("chief", 0, *of_chief)

    def said(self, role: str, index: int = 0) -> str:
        return self._file(role, index).read_text(errors="replace")

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait; the chief must live."""
        while not condition():
            assert self.members["chief", 0].poll() is None, self.said("chief")
            time.sleep(0.01)

    def kill(self, role: str, index: int = 0) -> None:
        assert self.members[role, index].poll() is None, self.said(role, index)
        self.members[role, index].send_signal(signal.SIGKILL)
        self.members[role, index].wait()

    def codes(self) -> dict[tuple[str, int], int]:
        """Exit codes, when all have ended."""
        return {member: process.wait() for member, process in self.members.items()}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.members.values():
            process.kill()
            process.wait()

    def _file(self, role: str, index: int) -> Path:
        return self._folder / f"{role}-{index}.txt"
