"""Estimate of 4 × RTX 2080 Ti on PCIe: one training step of each kind of model, on paper.

Computed from the operations that TensorFlow traces for the real model (`step_cost`) and the assumptions
below; nothing here is measured. Prints one JSON line a case; `--page` renews the tables of
studies/four_gpus.md, which explains them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.page import renew, table
from studies.step_cost import (
    Operation,
    norm_channels,
    parameters,
    prediction_operations,
    step_operations,
    training_bytes,
)
from segmenter.config.models import EncoderDecoderConfig
from segmenter.config.recipe import ModelConfig, UNetConfig
from segmenter.devices.strategy import load_tensorflow

REPLICAS, IMAGES, SIDE = 4, 16, 256
PRECISIONS = ("float32", "mixed_float16")
_WINDOW = 512
"""Side of the window that is traced for prediction."""
MEMORY, _PER_WEIGHT = 10e9, 16
"""Bytes of an 11 GB card beside CUDA's and cuDNN's; of a weight, its gradient and two moments."""
_MARK = "<!-- {} table: python -m studies.four_gpus --page -->"


@dataclass(frozen=True)
class Assumed:
    """A machine: the card's data sheet, and what of it is reached.

    Attributes:
        flops, half_flops: of float32, and of tensor cores that add up in float32; a second.
        bandwidth: of the card's memory, bytes a second.
        reached, half_reached: share of the arithmetic that convolutions reach.
        memory_reached: share of the bandwidth that other operations reach.
        latency: seconds of a collective of no bytes.
        bus: bytes a second of an all-reduce, as NCCL's tests count them.
        host: bytes a second from host memory to all cards together.
        launch: seconds that the host takes for starting an operation.
        head_start: seconds that a card waits after a collective until the host has started the next
            operation: TensorFlow's collectives are done for the host when the card has done them, not before.
    """

    flops: float = 13.4e12
    half_flops: float = 53.8e12
    bandwidth: float = 616e9
    reached: float = 0.6
    half_reached: float = 0.4
    memory_reached: float = 0.8
    latency: float = 30e-6
    bus: float = 5e9
    host: float = 8e9
    launch: float = 7.5e-6
    head_start: float = 100e-6


MACHINES = {
    "fast cards, slow bus": Assumed(
        reached=0.8, half_reached=0.55, memory_reached=0.9, latency=50e-6, bus=3.5e9, host=6e9, launch=10e-6,
        head_start=150e-6,
    ),
    "middle": Assumed(),
    "slow cards, fast bus": Assumed(
        reached=0.45, half_reached=0.25, memory_reached=0.7, latency=20e-6, bus=6e9, host=12e9, launch=5e-6,
        head_start=50e-6,
    ),
}  # fmt: skip
HARD, MIDDLE, EASY = MACHINES


@dataclass(frozen=True)
class Plan:
    """What is trained and how; the defaults are the program's.

    Attributes:
        images: of a replica.
        frozen: `training.freeze_norms`.
    """

    model: ModelConfig = field(default_factory=UNetConfig)
    precision: str = "float32"
    images: int = IMAGES
    frozen: str = "none"


def _encoder(encoder: str, decoder: str) -> ModelConfig:
    return EncoderDecoderConfig(kind="encoder_decoder", encoder=encoder, decoder=decoder)


MODELS: dict[str, ModelConfig] = {
    "U-Net": UNetConfig(),
    "EfficientNet-Lite0 + U-Net": _encoder("efficientnet_lite0", "unet"),
    "ResNet-50 + FPN": _encoder("resnet50", "fpn"),
}


@dataclass(frozen=True)
class Step:
    """Seconds of a step, of each replica; the batches for the next one are copied to all beside it.

    Attributes:
        waits: for the host, after collectives.
        update: for the host, which starts the operations after the gradients' sum one by one.
        launches: that the host takes for all operations of a replica.
    """

    convolutions: float
    others: float
    norms: float
    gradients: float
    waits: float
    update: float
    copies: float
    launches: float

    @property
    def single(self) -> float:
        """One GPU alone, with its images and the same layers: the host starts operations ahead."""
        return max(self.convolutions + self.others, self.copies / REPLICAS, self.launches)

    @property
    def all(self) -> float:
        """All replicas together."""
        computing = self.convolutions + self.others
        serial = computing + self.norms + self.gradients + self.waits + self.update
        return max(serial, self.copies, self.launches)

    @property
    def speedup(self) -> float:
        """Images a second over those of one GPU."""
        return REPLICAS * self.single / self.all


def step_of(plan: Plan, machine: Assumed) -> Step:
    """Compute the formula of studies/four_gpus.md."""
    operations = _operations(plan.model, plan.precision, plan.frozen)
    scale = plan.images / IMAGES
    convolutions, others = compute_seconds(operations, machine)
    sent = norm_bytes(plan.model, plan.frozen)
    norms = sum(_collective(bytes, machine) for bytes in sent)
    gradient = 4 * parameters_of(plan.model)
    reduced = _collective(gradient, machine) + _packing(plan.model, machine)
    batch = plan.images * SIDE * SIDE * 5  # three bands, valid and label: a byte each
    copies = REPLICAS * batch / machine.host
    waits = machine.head_start * (len(sent) + 1)
    started = machine.launch * sum(op.update for op in operations)
    update = max(0.0, started - update_seconds(operations, machine))
    host = machine.launch * len(operations)
    return Step(convolutions * scale, others * scale, norms, reduced, waits, update, copies, host)


def update_seconds(operations: Iterable[Operation], machine: Assumed) -> float:
    """That the update itself takes on the card."""
    return sum(compute_seconds([op for op in operations if op.update], machine))


def compute_seconds(operations: Iterable[Operation], machine: Assumed) -> tuple[float, float]:
    """Of the convolutions, and of all other operations."""
    rates = machine.flops * machine.reached, machine.half_flops * machine.half_reached
    bandwidth = machine.bandwidth * machine.memory_reached
    seconds = [(op.flops > 0, op.seconds(*rates, bandwidth)) for op in operations]
    return sum(s for conv, s in seconds if conv), sum(s for conv, s in seconds if not conv)


def _packing(model: ModelConfig, machine: Assumed) -> float:
    """Return the seconds of concatenating gradients and splitting them: each reads and writes all of it."""
    return 4 * 4 * parameters_of(model) / (machine.bandwidth * machine.memory_reached)


def norm_bytes(model: ModelConfig, frozen: str = "none") -> list[int]:
    """Of each collective of the BatchNorm layers that are not frozen: rows forward, two sums backward."""
    each = [[4 * REPLICAS * (2 * channels + 1), 8 * channels] for channels in norm_channels_of(model, frozen)]
    return [bytes for layer in each for bytes in layer]


def _collective(bytes: float, machine: Assumed) -> float:
    """α + 2 (R − 1) / R · bytes / β."""
    return machine.latency + 2 * (REPLICAS - 1) / REPLICAS * bytes / machine.bus


@cache
def _operations(model: ModelConfig, precision: str, frozen: str) -> list[Operation]:
    return step_operations(model, precision, IMAGES, SIDE, synchronised=True, frozen=frozen)


parameters_of = cache(parameters)
norm_channels_of = cache(norm_channels)


def megapixels(model: ModelConfig, precision: str, machine: Assumed) -> float:
    """Return what one card maps a second, borders of the windows included."""
    return _WINDOW**2 / 1e6 / sum(compute_seconds(_predicting(model, precision), machine))


@cache
def _predicting(model: ModelConfig, precision: str) -> list[Operation]:
    return prediction_operations(model, precision, _WINDOW)


# ----------------------------------------------------------------------------------- what is said


def cases() -> dict[str, Plan]:
    """Return the steps that the page tells of: the models as they are, and with what helps four cards."""
    half = "mixed_float16"
    found = {f"{name}, {p}": Plan(model, p) for name, model in MODELS.items() for p in PRECISIONS}
    for name, model in MODELS.items():
        found[f"{name}, {half}, 32 tiles a card"] = Plan(model, half, images=2 * IMAGES)
        if not isinstance(model, UNetConfig):
            found[f"{name}, {half}, 64 tiles a card"] = Plan(model, half, images=4 * IMAGES)
            found[f"{name}, {half}, freeze_norms: encoder"] = Plan(model, half, frozen="encoder")
    return dict(sorted(found.items(), key=lambda case: list(MODELS).index(case[0].split(",")[0])))


def line_of(name: str, plan: Plan) -> dict[str, Any]:
    """Return the JSON line of a case, in milliseconds and images a second."""
    middle = step_of(plan, MACHINES[MIDDLE])
    steps = [step_of(plan, machine) for machine in MACHINES.values()]
    return {
        "benchmark": "four_gpus",
        "measured": False,
        "case": name,
        **{f"ms_{k}": round(1e3 * v, 1) for k, v in vars(middle).items()},
        "images_per_second_one": round(plan.images / middle.single, 1),
        "images_per_second_four": round(REPLICAS * plan.images / middle.all, 1),
        "speedup": round(middle.speedup, 2),
        "speedup_from_to": [round(f(s.speedup for s in steps), 2) for f in (min, max)],
    }


def speeds_table() -> list[str]:
    """Return the range of each case first, then the middle machine's step in milliseconds."""
    rows = []
    for name, plan in cases().items():
        line = line_of(name, plan)
        low, high = line["speedup_from_to"]
        moved = line["ms_norms"] + line["ms_gradients"] + line["ms_waits"] + line["ms_update"]
        computed = f"{line['ms_convolutions']:.0f} + {line['ms_others']:.0f}"
        rates = (f"{line[f'images_per_second_{n}']:.0f}" for n in ("one", "four"))
        rows.append(
            [
                name,
                f"{low:.1f} … {high:.1f} ×",
                computed,
                f"{moved:.0f}",
                f"{line['ms_launches']:.0f}",
                *rates,
            ]
        )
    head = ["model", "four of one", "convolutions + others, ms", "moved and waited, ms", "launches, ms"]
    return table([*head, "tiles/s, one", "tiles/s, four"], rows)


def cards_table() -> list[str]:
    """Return how many tiles of a size one card holds in mixed precision."""
    rows = []
    for name, model in MODELS.items():
        left = MEMORY - _PER_WEIGHT * parameters_of(model)
        cells = []
        for side in (256, 512, 1024):
            each = training_bytes(model, side)
            cells.append(f"{each / 1e6:.0f} MB, {left // each:.0f}")
        rows.append([name, *cells])
    return table(["a tile's memory, tiles of a card", "256²", "512²", "1024²"], rows)


def main() -> None:
    """Print the lines; with `--page`, renew its tables too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the tables in this page")
    arguments = parser.parse_args()
    load_tensorflow()
    for name, plan in cases().items():
        print(json.dumps(line_of(name, plan)), flush=True)
    if arguments.page:
        for name, lines in {"speeds": speeds_table, "cards": cards_table}.items():
            renew(arguments.page, _MARK.format(name), lines())


if __name__ == "__main__":
    main()
