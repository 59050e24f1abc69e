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
import time
from pathlib import Path
from typing import Any, Literal

from segmenter.config.reading import default_recipe, load_recipe
from segmenter.config.recipe import DistributionConfig, LossConfig, ModelConfig, TrainingConfig
from segmenter.devices.strategy import Devices, load_tensorflow, make_devices

BANDS, CLASSES = 3, 6
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


def rate_of(
    devices: Devices, model: ModelConfig, loss: LossConfig, training: TrainingConfig, side: int, calls: int
) -> float:
    """Images a second of the training step, over calls after the two that compile and warm up."""
    import tensorflow as tf

    steps, count = training_steps(devices, model, loss, training), tf.constant(training.steps_per_call)
    stack = made_stack(devices, training.steps_per_call, training.global_batch, side)
    seconds = 0.0
    for call in range(calls + 2):
        if call == 2:
            seconds = -time.perf_counter()
        float(steps(stack, count)[0][-1])  # the losses come back when the steps are done
    return calls * training.steps_per_call * training.global_batch / (seconds + time.perf_counter())


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


def training_steps(devices: Devices, config: ModelConfig, loss: LossConfig, training: TrainingConfig) -> Any:
    """The program's compiled steps (`step.make_steps`) of a model on these devices."""
    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimisers import build_optimiser
    from segmenter.training.step import StepParts, make_steps

    with devices.strategy.scope():
        model = build_model(config, BANDS, CLASSES, dtype=training.precision, synchronised=True)
        optimiser = build_optimiser(training, model, 10_000)
    share = segmentation_loss(loss, None, training.global_batch)
    normalisation = Normalisation.of([120.0] * BANDS, [60.0] * BANDS)
    parts = StepParts(
        devices.strategy,
        model,
        optimiser,
        share,
        normalisation,
        32,
        training.accumulate,
        xla=training.xla is True,
    )
    return make_steps(parts)


def made_stack(devices: Devices, steps: int, images: int, side: int) -> Any:
    """Synthetic batches of several steps, dealt to the devices."""
    import tensorflow as tf

    shape = (steps, images, side, side)
    image = tf.cast(tf.random.stateless_uniform((*shape, BANDS), (1, 2), 0, 256, tf.int32), tf.uint8)
    label = tf.cast(tf.random.stateless_uniform(shape, (3, 4), 0, CLASSES, tf.int32), tf.uint8)
    return devices.distributed((image, tf.ones(shape, tf.bool), label), axis=1)


if __name__ == "__main__":
    main()
