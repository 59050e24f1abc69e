"""Training step on a CPU beside PyTorch's: the same U-Net, cross-entropy, AdamW and batch, in turns.

PyTorch computes with channels_last. Each is a process of its own with as many threads; rounds of both
alternate, so that what else the machine does falls on both. On a busy machine take `--threads 1`: PyTorch's
threads spin while they wait for each other. Prints one JSON line; without `--torch-python` our side alone.
As `train.py` does on a CPU, freed memory is kept (`segmenter.base.machine.keep_freed_memory`); `--given-back` adds
our side without that.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.base.machine import keep_freed_memory

_TORCH = Path(__file__).with_name("cpu_step_torch.py")


def main() -> None:
    """Time both, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", type=Path, metavar="FILE", help="an interpreter that has PyTorch")
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--side", type=int, default=128, help="of a tile, in pixels")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--xla", action="store_true", help="our step with training.xla")
    parser.add_argument("--given-back", action="store_true", help="also with freed memory given back at once")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each; the median counts")
    parser.add_argument("--steps", type=int, default=3, help="of a round")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _serve(json.loads(given.child))
        return
    names = ("depth", "width", "side", "batch", "threads", "xla")
    settings = {**{name: getattr(given, name) for name in names}, "classes": 6}
    task, back = (json.dumps({**settings, "keep": keep}) for keep in (True, False))
    sides = {"ours": [sys.executable, "-m", "studies.cpu_step", "--child", task]}
    if given.given_back:
        sides["given_back"] = [sys.executable, "-m", "studies.cpu_step", "--child", back]
    if given.torch_python:
        sides["torch"] = [str(given.torch_python), str(_TORCH), task]
    print(json.dumps({"benchmark": "cpu_step", **_measured(sides, given.rounds, given.steps)}))


def _measured(sides: dict[str, list[str]], rounds: int, steps: int) -> dict[str, Any]:
    """Medians of a step in seconds, by the clock and of processor time, and ours over PyTorch's."""
    running = {
        name: subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name, command in sides.items()
    }
    figures: dict[str, Any] = {f"parameters_{name}": int(_line(side)) for name, side in running.items()}
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in running}
    for _ in range(rounds):
        for name, side in running.items():
            found[name].append(tuple(float(part) / steps for part in _line(side, steps).split()))
    for side in running.values():
        side.communicate()
    medians = {name: [median(column) for column in zip(*times, strict=True)] for name, times in found.items()}
    for kind, of in zip(("clock", "processor"), zip(*medians.values(), strict=True), strict=True):
        figures |= {f"{kind}_s_{name}": round(value, 3) for name, value in zip(medians, of, strict=True)}
        for name, value in list(zip(medians, of, strict=True))[1:]:
            figures[f"{kind}_ours_over_{name}"] = round(of[0] / value, 3)
    return figures


def _line(side: Any, asked: int | None = None) -> str:
    """The next line of a process, after asking for so many steps."""
    if asked is not None:
        side.stdin.write(f"{asked}\n")
        side.stdin.flush()
    line = side.stdout.readline()
    if not line:
        raise SystemExit(f"{' '.join(side.args[:2])}: ended with exit code {side.wait()}")
    return str(line)


def _serve(task: dict[str, Any]) -> None:
    """Our side: say how many weights there are; then, for each line that comes, time some steps."""
    step, weights = _step(task)
    for _ in range(2):
        step()
    print(weights, flush=True)
    for line in sys.stdin:
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - clock, time.process_time() - processor, flush=True)


def _step(task: dict[str, Any]) -> tuple[Callable[[], float], int]:
    from segmenter.devices.strategy import load_tensorflow

    load_tensorflow()
    if task["keep"]:
        keep_freed_memory()
    import numpy as np
    import tensorflow as tf

    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts, make_step

    tf.config.threading.set_intra_op_parallelism_threads(task["threads"])
    strategy, classes = tf.distribute.OneDeviceStrategy("CPU:0"), task["classes"]
    with strategy.scope():
        config = UNetConfig(depth=task["depth"], width=task["width"])
        model = build_model(config, 3, classes, synchronised=True)
        optimiser = build_optimiser(TrainingConfig(), model, 1000)
    loss = segmentation_loss(LossConfig(), None, task["batch"])
    plain = Normalisation.of([120.0] * 3, [60.0] * 3)
    run = make_step(StepParts(strategy, model, optimiser, loss, plain, 32, xla=task["xla"]))
    rng, shape = np.random.default_rng(0), (task["batch"], task["side"], task["side"])
    image, label = rng.integers(0, 256, (*shape, 3), np.uint8), rng.integers(0, classes, shape, np.uint8)
    batch = tuple(map(tf.constant, (image, np.ones(shape, np.bool_), label)))
    return lambda: float(run(batch).loss), sum(int(np.prod(v.shape)) for v in model.trainable_variables)


if __name__ == "__main__":
    main()
