"""Processes that train together on this machine, ended in every case."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.helpers.made_training import ROOT, users_environment


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def addresses(count: int) -> tuple[str, ...]:
    """Addresses of this machine whose ports are free."""
    return tuple(f"127.0.0.1:{port}" for port in free_ports(count))


@contextmanager
def workers(folder: Path, count: int, names: list[str]) -> Iterator[list[subprocess.Popen[str]]]:
    """So many child workers, which are ended with the context in every case."""
    cluster = ",".join(addresses(count))
    child = [sys.executable, "-m", "tests.helpers.child_worker"]
    commands = [[*child, str(i), cluster, str(folder / f"{i}.json"), ",".join(names)] for i in range(count)]
    with ended_with(commands, None, TF_ENABLE_ONEDNN_OPTS="0") as running:
        yield running


@contextmanager
def ended_with(
    commands: list[list[str]], output: int | None = subprocess.PIPE, **more: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Commands side by side, what they say as text; killed with the context in every case."""
    environment = users_environment(**more)
    where: dict[str, Any] = {"stdout": output, "stderr": output and subprocess.STDOUT}
    with ExitStack() as stack:
        running = []
        for command in commands:
            running.append(subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **where))
            stack.enter_context(running[-1])
            stack.callback(running[-1].kill)
        yield running
