"""What a step costs more where its replicas are processes that talk over loopback, and not threads of one.

    python -m studies.worker_overhead [--rounds 3] [--steps 20]

The same step on two CPU devices: of one process, and of two workers with one each (`multi_worker_mirrored`,
sums by gRPC rings). Baseline, in the same run: one process with two replicas; both take turns. Times are of a
step, once it is compiled; processor time is that of all processes. This shows the overhead, not what a second
machine would gain.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections import defaultdict
from statistics import median
from unittest import mock

from tests.helpers.several_workers import ROOT, free_ports

WIDTHS = (8, 32)
"""Of a U-Net of depth 3: 0.12 and 1.9 million parameters, whose gradients are summed in each step."""
_SIDE = 64
_REPLICAS = 2


def main() -> None:
    """Run both in turns, print a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20, help="of a round")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        width, processes, index, addresses = json.loads(given.child)
        print(json.dumps(_child(width, processes, index, addresses, given.steps)))
        return
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _ in range(given.rounds):
        for width in WIDTHS:
            found[f"one_process_{width}"].append(_timed(width, 1, given.steps))
            found[f"two_workers_{width}"].append(_timed(width, 2, given.steps))
    line: dict[str, object] = {"benchmark": "worker_overhead"}
    for number, kind in enumerate(("clock", "processor")):
        ms = {name: 1000 * median(times[number] for times in all_) for name, all_ in found.items()}
        line |= {f"{kind}_ms_{name}": round(value, 1) for name, value in ms.items()}
        for width in WIDTHS:
            line[f"{kind}_ratio_{width}"] = round(ms[f"two_workers_{width}"] / ms[f"one_process_{width}"], 2)
    print(json.dumps(line))


def _timed(width: int, processes: int, steps: int) -> tuple[float, float]:
    """(clock, processor) seconds of a step."""
    addresses = ",".join(f"127.0.0.1:{port}" for port in free_ports(processes))
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "studies.worker_overhead", "--steps", str(steps)),
                *("--child", json.dumps([width, processes, index, addresses])),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(processes)
    ]
    try:
        told = [one.communicate()[0] for one in running]
    finally:
        for one in running:
            one.kill()
            one.wait()
    each = [json.loads(text.strip().splitlines()[-1]) for text in told]
    return max(clock for clock, _ in each), sum(processor for _, processor in each)


def _child(width: int, processes: int, index: int, addresses: str, steps: int) -> list[float]:
    from segmenter.config.devices import DistributionConfig
    from segmenter.config.recipe import LossConfig, UNetConfig
    from segmenter.devices.machines.cluster import find_cluster
    from segmenter.devices.setup import load_tensorflow
    from segmenter.devices.strategy import make_devices
    from tests.helpers.small_training import Training, batches

    several = processes > 1
    load_tensorflow(1 if several else _REPLICAS, clustered=several)
    cluster = find_cluster("auto", addresses, index, {}) if several else None
    devices = make_devices(DistributionConfig(), None if several else _REPLICAS, cluster)
    with devices.workers.shared_end():
        with mock.patch("tests.helpers.small_training.strategy_of", return_value=devices.strategy):
            training = Training(UNetConfig(depth=3, width=width), LossConfig(), _REPLICAS, "float32")
        training.devices = devices
        image, valid, label = batches(1, _SIDE)
        own = devices.own_rows(image.shape[1])
        batch = devices.distribute(tuple(part[0, own] for part in (image, valid, label)))
        for _ in range(3):
            float(training.step(batch)[0])
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            float(training.step(batch)[0])
        return [(time.perf_counter() - clock) / steps, (time.process_time() - processor) / steps]


if __name__ == "__main__":
    main()
