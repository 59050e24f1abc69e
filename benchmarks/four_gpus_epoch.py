"""Estimate of an epoch on 4 × RTX 2080 Ti: steps, input, validation, checkpoints and the cold start.

On paper, as `benchmarks.four_gpus`, whose step it takes. An epoch of ISPRS Potsdam: 22 scenes to train on, 2
to validate on. Prints one JSON line a precision; `--page` renews tables of docs/four_gpus.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from benchmarks.four_gpus import (
    HARD,
    IMAGES,
    MACHINES,
    MIDDLE,
    PRECISIONS,
    REPLICAS,
    Assumed,
    Plan,
    Step,
    compute_seconds,
    expected,
    step_of,
)
from benchmarks.page import renew, table
from benchmarks.step_cost import Operation, prediction_operations
from segmenter.config.recipe import UNetConfig
from segmenter.devices.strategy import load_tensorflow

STEPS = 190
"""Of 64 tiles, in an epoch on 22 scenes."""
VALIDATED = 2 * 6000**2
"""Pixels of the validation scenes."""
RADIUS = 107
"""The default model's receptive field reaches so many pixels to each side: a window's border is not kept."""
_STRIDE = 16
CHECKPOINTS, CHECKPOINT = 3, (0.2, 0.5)
"""Written in an epoch; seconds for each, measured: 94 MB."""
_MARK = "<!-- {} table: python -m benchmarks.four_gpus_epoch --page -->"
_SIDE = 512
"""Of the window that is traced: operations beside convolutions grow with its pixels too."""


@dataclass(frozen=True)
class Feed:
    """Attributes:
    tiles: a second that the host makes at most, the least and the most measured; its processes cannot more.
    """

    tiles: tuple[float, float]


ONE_PROCESS = {
    "tile files, flips, turns and brightness": Feed((390, 470)),
    "tiled GeoTIFFs in place, flips and turns": Feed((360, 490)),
    "tiled GeoTIFFs in place, configs/potsdam.yaml": Feed((300, 370)),
    "decoded copies, flips and turns": Feed((1900, 1900)),
    "decoded copies, configs/potsdam.yaml": Feed((790, 790)),
}
"""Measured with threads of one process, on any number of cores: one over the time that a tile holds Python's
lock. This is before labels' handles were kept and before worker processes."""


@dataclass(frozen=True)
class Epoch:
    """What an epoch is made of beside its steps.

    Attributes:
        feed: tiles a second that the input makes; infinite: always enough.
        ahead: batches of 64 under way when an epoch begins: the first is done when all of them are.
        window: of the validation, in pixels.
        validating: devices that validate.
    """

    feed: float = float("inf")
    ahead: int = 0
    window: int = 1024
    validating: int = REPLICAS


@dataclass(frozen=True)
class Seconds:
    """Of an epoch."""

    steps: float
    cold: float
    validation: float
    checkpoints: float

    @property
    def all(self) -> float:
        """One after the other."""
        return self.steps + self.cold + self.validation + self.checkpoints


def epoch_of(plan: Plan, machine: Assumed, epoch: Epoch, replicas: int) -> Seconds:
    """With one GPU or with four; one takes four times as many steps of a quarter of the tiles."""
    step: Step = step_of(plan, machine)
    tiles = STEPS * REPLICAS * IMAGES
    rate = min(IMAGES / step.single if replicas == 1 else REPLICAS * IMAGES / step.all, epoch.feed)
    cold = epoch.ahead * replicas * IMAGES / epoch.feed
    validated = VALIDATED / megapixels(plan.model, plan.precision, machine, epoch.window) / 1e6
    devices = min(epoch.validating, replicas)
    return Seconds(tiles / rate, cold, validated / devices, CHECKPOINTS * sum(CHECKPOINT) / 2)


def megapixels(model: UNetConfig, precision: str, machine: Assumed, window: int) -> float:
    """Megapixels a second that one card predicts: of the computed pixels, those within the borders."""
    convolutions, others = compute_seconds(_predicting(model, precision), machine)
    kept = window - 2 * (-(-RADIUS // _STRIDE) * _STRIDE)
    return _SIDE**2 / 1e6 / (convolutions + others) * (max(kept, _STRIDE) / window) ** 2


def predicted_megapixels(model: UNetConfig, precision: str, window: int) -> tuple[float, float]:
    """The range over the assumed machines."""
    found = [megapixels(model, precision, machine, window) for machine in MACHINES.values()]
    return min(found), max(found)


@cache
def _predicting(model: UNetConfig, precision: str) -> list[Operation]:
    return prediction_operations(model, precision, _SIDE)


# ----------------------------------------------------------------------------------- what is said


def variants() -> dict[str, Epoch]:
    """From an input that is always enough to what an epoch was before this page was worked out anew."""
    potsdam = ONE_PROCESS["decoded copies, configs/potsdam.yaml"]
    in_place = ONE_PROCESS["tiled GeoTIFFs in place, configs/potsdam.yaml"]
    good = Epoch()
    one = replace(good, window=512, validating=1)
    return {
        "input always ready, validation on all devices, windows of 1024": good,
        "the same, validation on one device": replace(good, validating=1),
        "the same, windows of 512": one,
        "the same, decoded copies by threads of one process": replace(one, feed=min(potsdam.tiles), ahead=16),
        "the same, tiled GeoTIFFs in place": replace(one, feed=min(in_place.tiles), ahead=16),
    }


def result_table() -> list[str]:
    """What the page says first: speed-ups of a step and of an epoch."""
    rows = []
    for precision in PRECISIONS:
        plan = Plan(precision=precision)
        low, high = expected(plan.model, precision).speedup
        step = step_of(plan, MACHINES[MIDDLE])
        first, *_, last = (f"{gain(plan, epoch, MIDDLE):.1f} ×" for epoch in variants().values())
        rates = [f"{rate:.0f}" for rate in (IMAGES / step.single, REPLICAS * IMAGES / step.all)]
        rows.append([precision, f"{step.speedup:.1f} ×", f"{low:.1f} … {high:.1f} ×", first, last, *rates])
    head = ["precision", "step", "its range", "epoch, input ready", "epoch as it was", "images/s, one"]
    return table([*head, "images/s, four"], rows)


def epochs_table() -> list[str]:
    """Seconds of an epoch on the middle machine, and the speed-up on the one that is hardest to scale on."""
    rows = []
    for precision in PRECISIONS:
        plan = Plan(precision=precision)
        for name, epoch in variants().items():
            four = epoch_of(plan, MACHINES[MIDDLE], epoch, REPLICAS)
            one = epoch_of(plan, MACHINES[MIDDLE], epoch, 1)
            parts = (four.steps, four.cold, four.validation, four.checkpoints, four.all, one.all)
            cells = [f"{part:.1f}" for part in parts]
            rows.append([precision, name, *cells, *(f"{gain(plan, epoch, m):.2f}" for m in (MIDDLE, HARD))])
    head = [
        "precision",
        "epoch",
        "steps, s",
        "cold start",
        "validation",
        "checkpoints",
        "four GPUs",
        "one GPU",
    ]
    return table([*head, "speed-up", "hard"], rows, words=2)


def gain(plan: Plan, epoch: Epoch, machine: str) -> float:
    """Of an epoch on four GPUs over one, where one has the same input and validation."""
    one, four = (epoch_of(plan, MACHINES[machine], epoch, replicas).all for replicas in (1, REPLICAS))
    return one / four


def inputs_table() -> list[str]:
    """What the input makes beside what four GPUs take."""
    taken = {p: REPLICAS * IMAGES / step_of(Plan(precision=p), MACHINES[MIDDLE]).all for p in PRECISIONS}
    rows = []
    for name, feed in ONE_PROCESS.items():
        low, high = feed.tiles
        made = f"{low:.0f}" if low == high else f"{low:.0f} … {high:.0f}"
        rows.append([name, made, *(f"{low / rate:.1f}" for rate in taken.values())])
    needs = [f"of the {rate:.0f} that {precision} takes" for precision, rate in taken.items()]
    return table(["input", "tiles/s at most", *needs], rows)


def main() -> None:
    """Print the lines; with `--page`, renew its tables too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the tables in this page")
    arguments = parser.parse_args()
    load_tensorflow()
    for precision in PRECISIONS:
        plan = Plan(precision=precision)
        gains = {name: round(gain(plan, epoch, MIDDLE), 2) for name, epoch in variants().items()}
        first, *_, last = gains.values()
        line = {"benchmark": "four_gpus_epoch", "measured": False, "precision": precision}
        print(
            json.dumps({**line, "speedup_input_ready": first, "speedup_as_it_was": last, "speedups": gains})
        )
    tables: dict[str, Callable[[], list[str]]] = {
        "result": result_table,
        "epochs": epochs_table,
        "inputs": inputs_table,
    }
    if arguments.page:
        for name, lines in tables.items():
            renew(arguments.page, _MARK.format(name), lines())


if __name__ == "__main__":
    main()
