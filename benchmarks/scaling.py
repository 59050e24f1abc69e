"""Throughput of training on 1, 2, … N GPUs in images a second, as a share of N times one.

The steps of the program, the recipe's model and loss and a synthetic batch that stays on the devices, one
device being the baseline with the same layers, `SyncBatchNorm` too, as the trainer has them: what is left out
is the input, which `pipeline` measures. Each device gets as many images, however many
devices there are, and each number of devices a process of its own.

On a machine without a GPU it says so and ends; `--logical` tries the code on logical CPU devices, whose
rates mean nothing, as they share the processor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from datasets.commands.gpu.steps import rate_of
from segmenter.config.reading import default_recipe, load_recipe
from segmenter.config.recipe import DistributionConfig
from segmenter.devices.strategy import load_tensorflow, make_devices

PRECISIONS = ("float32", "mixed_float16")


def main(arguments: list[str] | None = None) -> None:
    """Print one JSON line; the exit code is 0 without GPUs too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", help="whose model and loss; without: the defaults")
    parser.add_argument("--logical", type=int, metavar="N", help="logical CPU devices in place of GPUs")
    parser.add_argument("--local", type=int, default=16, help="images of a step on each device")
    parser.add_argument("--side", type=int, default=256, help="of an image, in pixels")
    parser.add_argument("--calls", type=int, default=10, help="timed calls, of so many steps as the recipe's")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--one", nargs=2, metavar=("N", "PRECISION"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.one:
        print(json.dumps(_in_this_process(given, int(given.one[0]), given.one[1])))
        return
    found = given.logical or _gpus()
    line: dict[str, Any] = {"benchmark": "scaling", "devices": found}
    if not found:
        print(json.dumps({**line, "measured": False, "why": "TensorFlow finds no GPU on this machine"}))
        return
    kind = "logical CPU" if given.logical else "GPU"
    passed = sys.argv[1:] if arguments is None else arguments
    rates = {p: [_in_a_process(passed, n, p) for n in range(1, found + 1)] for p in PRECISIONS}
    print(
        json.dumps(
            {**line, "kind": kind, "measured": not given.logical, **{p: scaling(r) for p, r in rates.items()}}
        )
    )


def scaling(rates: list[float]) -> dict[str, list[float]]:
    """Of the images a second with 1, 2, … devices: these, and what each is of so many times the first."""
    efficiency = [round(rate / (n * rates[0]), 3) for n, rate in enumerate(rates, 1)]
    return {"images_per_second": [round(rate, 1) for rate in rates], "efficiency": efficiency}


def _gpus() -> int:
    load_tensorflow()
    import tensorflow as tf

    return len(tf.config.list_physical_devices("GPU"))


def _in_a_process(passed: list[str], count: int, precision: str) -> float:
    command = [sys.executable, "-m", "benchmarks.scaling", *passed, "--one", str(count), precision]
    return float(json.loads(subprocess.check_output(command, text=True).splitlines()[-1]))


def _in_this_process(given: argparse.Namespace, count: int, precision: str) -> float:
    overrides = given.overrides
    recipe = load_recipe(Path(given.recipe), overrides) if given.recipe else default_recipe(overrides)
    model, loss = recipe.model, recipe.loss
    training = recipe.training.model_copy(
        update={"precision": precision, "global_batch": count * given.local}
    )
    logical = count if given.logical else None
    load_tensorflow(logical)
    devices = make_devices(distribution(count, logical is not None), logical)
    return rate_of(devices, model, loss, training, given.side, given.calls)


def distribution(count: int, logical: bool) -> DistributionConfig:
    """The recipe's section for the first so many GPUs, or for all logical CPU devices there are."""
    if logical:
        return DistributionConfig()
    strategy: Literal["one_device", "mirrored"] = "one_device" if count == 1 else "mirrored"
    return DistributionConfig(strategy=strategy, devices=tuple(range(count)))


if __name__ == "__main__":
    main()
