"""Micro-batches over several processes, under a strategy that train.py does not offer."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.helpers.equivalence_matrix import LIMIT, SEEN
from tests.helpers.small_training import NO_NORM, PER_PIXEL, Training, batches, difference

WORKERS = 2


@pytest.mark.slow
def test_micro_batches_over_two_processes_equal_the_batch_on_one_device(
    tensorflow: ModuleType, tmp_path: Path
) -> None:
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(WORKERS))
    command = [sys.executable, "-m", "tests.helpers.child_worker"]
    running = [
        subprocess.Popen(
            [*command, str(i), addresses, str(tmp_path / f"{i}.npz")], cwd=Path(__file__).parents[2]
        )
        for i in range(WORKERS)
    ]
    assert [worker.wait() for worker in running] == [0] * WORKERS
    one = Training(NO_NORM, PER_PIXEL)
    start = one.weights()
    one.each(batches(2))
    assert difference(start, one.weights()) > SEEN
    for i in range(WORKERS):
        with np.load(tmp_path / f"{i}.npz") as found:
            assert difference(list(found.values()), one.weights()) <= LIMIT


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports
