"""Processes that train together on this machine, ended in every case."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


@contextmanager
def workers(folder: Path, count: int, names: list[str]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """So many child workers, which are ended with the context in every case."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(count))
    command = [sys.executable, "-m", "tests.helpers.child_worker"]
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": "0"}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for i in range(count):
            own = [*command, str(i), addresses, str(folder / f"{i}.json"), ",".join(names)]
            running.append(subprocess.Popen(own, cwd=ROOT, env=environment))
        yield running
    finally:
        for worker in running:
            worker.kill()
            worker.wait()


@contextmanager
def ended_with(commands: list[list[str]]) -> Iterator[list[subprocess.Popen[str]]]:
    """Commands side by side, what they say as text; killed with the context in every case."""
    environment = {k: v for k, v in os.environ.items() if k != "TF_ENABLE_ONEDNN_OPTS"}
    running: list[subprocess.Popen[str]] = []
    try:
        for command in commands:
            to = subprocess.PIPE, subprocess.STDOUT
            started = subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stdout=to[0], stderr=to[1]
            )
            running.append(started)
        yield running
    finally:
        for worker in running:
            worker.kill()
            worker.wait()
            if worker.stdout is not None:
                worker.stdout.close()
