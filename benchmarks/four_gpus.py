"""Estimate of 4 × RTX 2080 Ti on PCIe: compute, collectives and input of one training step, on paper.

Computed from the operations that TensorFlow traces for the real model (`step_cost`) and the assumptions
below; nothing here is measured. Prints one JSON line a precision; `--page` renews the tables of
docs/four_gpus.md, which explains them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.page import renew, table
from benchmarks.step_cost import Operation, norm_channels, parameters, step_operations
from segmenter.config.recipe import ModelConfig, UNetConfig
from segmenter.devices.strategy import load_tensorflow

REPLICAS, IMAGES, SIDE = 4, 16, 256
PRECISIONS = ("float32", "mixed_float16")
_BLOCKS = ("down0", "down1", "down2", "down3", "bottom", "up3", "up2", "up1", "up0", "logits")
_MARK = "<!-- {} table: python -m benchmarks.four_gpus --page -->"


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
        gradient_bytes: that a weight's gradient takes in the all-reduce.
        accumulated: micro-batches between two of them.
        hidden: share of the gradients' all-reduce that runs beside the backward pass.
        norm_collectives: a BatchNorm layer's, forward and backward together.
        update: operations of the update; None: as many as TensorFlow traces.
        traffic: share of the memory traffic beside convolutions that is left, where it is fused.
    """

    model: UNetConfig = field(default_factory=UNetConfig)
    precision: str = "float32"
    images: int = IMAGES
    gradient_bytes: int = 4
    accumulated: int = 1
    hidden: float = 0.0
    norm_collectives: int = 2
    update: int | None = None
    traffic: float = 1.0


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
    """The formula of docs/four_gpus.md."""
    operations = _operations(plan.model, plan.precision, True)
    scale = plan.images / IMAGES
    convolutions, others = compute_seconds(operations, machine)
    sent = norm_bytes(plan.model, plan.norm_collectives)
    norms = sum(_collective(bytes, machine) for bytes in sent)
    gradient = plan.gradient_bytes * parameters_of(plan.model)
    # Concatenated before and split after: each reads and writes all of it.
    packing = 4 * gradient / (machine.bandwidth * machine.memory_reached)
    reduced = (_collective(gradient, machine) * (1 - plan.hidden) + packing) / plan.accumulated
    batch = plan.images * SIDE * SIDE * 5  # three bands, valid and label: a byte each
    copies = REPLICAS * batch / machine.host
    waits = machine.head_start * (len(sent) + 1 / plan.accumulated)
    started = machine.launch * (launches(plan)[1])
    update = max(0.0, started - update_seconds(operations, machine)) / plan.accumulated
    left = others * scale * plan.traffic
    host = machine.launch * launches(plan)[0]
    return Step(convolutions * scale, left, norms, reduced, waits, update, copies, host)


def launches(plan: Plan) -> tuple[int, int]:
    """Operations of a replica's step that the host starts: all, and those after the gradients' sum."""
    operations = _operations(plan.model, plan.precision, True)
    traced = sum(op.update for op in operations)
    update = traced if plan.update is None else plan.update
    return len(operations) - traced + update, update


def update_seconds(operations: Iterable[Operation], machine: Assumed) -> float:
    """That the update itself takes on the card."""
    return sum(compute_seconds([op for op in operations if op.update], machine))


def compute_seconds(operations: Iterable[Operation], machine: Assumed) -> tuple[float, float]:
    """Of the convolutions, and of all other operations."""
    rates = machine.flops * machine.reached, machine.half_flops * machine.half_reached
    bandwidth = machine.bandwidth * machine.memory_reached
    seconds = [(op.flops > 0, op.seconds(*rates, bandwidth)) for op in operations]
    return sum(s for conv, s in seconds if conv), sum(s for conv, s in seconds if not conv)


def norm_bytes(model: ModelConfig, collectives: int = 2) -> list[int]:
    """Of each collective of the BatchNorm layers: all replicas' rows forward, two sums backward."""
    each = [[4 * REPLICAS * (2 * channels + 1), 8 * channels] for channels in norm_channels_of(model)]
    return [bytes for layer in each for bytes in layer[:collectives]]


def _collective(bytes: float, machine: Assumed) -> float:
    """α + 2 (R − 1) / R · bytes / β."""
    return machine.latency + 2 * (REPLICAS - 1) / REPLICAS * bytes / machine.bus


@cache
def _operations(model: ModelConfig, precision: str, synchronised: bool) -> list[Operation]:
    return step_operations(model, precision, IMAGES, SIDE, synchronised=synchronised)


parameters_of = cache(parameters)
norm_channels_of = cache(norm_channels)


class Expected(NamedTuple):
    """Smallest and largest over the assumed machines: images a second of one GPU and of four, speed-up."""

    one: tuple[float, float]
    four: tuple[float, float]
    speedup: tuple[float, float]


@cache
def expected(model: UNetConfig, precision: str) -> Expected:
    """What `benchmarks.gpu` prints beside what it measures."""
    steps = [step_of(Plan(model, precision), machine) for machine in MACHINES.values()]
    one = [IMAGES / step.single for step in steps]
    four = [REPLICAS * IMAGES / step.all for step in steps]
    figures = (one, four, [step.speedup for step in steps])
    return Expected(*((min(values), max(values)) for values in figures))


def with_measured(model: UNetConfig, precision: str, latency: float, bus: float) -> float:
    """Speed-up of the middle machine with a measured bus.

    Args:
        latency: seconds of a small sum in a chain, with the wait for the host that is part of it.
        bus: bytes a second.
    """
    machine = replace(MACHINES[MIDDLE], latency=latency, bus=bus, head_start=0.0)
    return step_of(Plan(model, precision), machine).speedup


class Words(NamedTuple):
    """Assumed ranges, for people."""

    latency: str
    bus: str


def assumed_range() -> Words:
    """Of a small sum in a chain of them, which ends with a wait for the host, and of the bus."""
    times = [1e6 * (machine.latency + machine.head_start) for machine in MACHINES.values()]
    buses = [machine.bus / 1e9 for machine in MACHINES.values()]
    return Words(f"{min(times):.0f} … {max(times):.0f} µs", f"{min(buses):.1f} … {max(buses):.1f} GB/s")


# ----------------------------------------------------------------------------------- what is said


def levers(plan: Plan) -> dict[str, Plan]:
    """What would close a gap, each alone."""
    return {
        "as it is": plan,
        "gradients sent as float16": replace(plan, gradient_bytes=2),
        "gradients in 4 packs, 3 of them beside the backward pass": replace(plan, hidden=0.75),
        "no collectives of BatchNorm (other statistics)": replace(plan, norm_collectives=0),
        "accumulation over 2 micro-batches": replace(plan, accumulated=2),
        "32 images a GPU": replace(plan, images=2 * IMAGES),
        "max_width: 256": replace(plan, model=UNetConfig(max_width=256)),
        "width: 24, max_width: 384": replace(plan, model=UNetConfig(width=24, max_width=384)),
        "float16 gradients, max_width: 256": replace(plan, gradient_bytes=2, model=UNetConfig(max_width=256)),
        "update weight by weight, 1284 operations": replace(plan, update=1284),
        "update of one vector, 20 operations": replace(plan, update=20),
        "XLA: half of the traffic beside convolutions, 20 operations": replace(plan, update=20, traffic=0.5),
    }


def line_of(precision: str) -> dict[str, Any]:
    """The JSON line of a precision, in milliseconds and images a second."""
    plan = Plan(precision=precision)
    middle = step_of(plan, MACHINES[MIDDLE])
    keras = sum(compute_seconds(_operations(plan.model, precision, False), MACHINES[MIDDLE]))
    steps = [step_of(plan, machine) for machine in MACHINES.values()]
    return {
        "benchmark": "four_gpus",
        "measured": False,
        "precision": precision,
        **{f"ms_{k}": round(1e3 * v, 1) for k, v in vars(middle).items()},
        "images_per_second_one": round(IMAGES / middle.single, 1),
        "images_per_second_one_with_keras_norm": round(IMAGES / keras, 1),
        "images_per_second_four": round(REPLICAS * IMAGES / middle.all, 1),
        "speedup": round(middle.speedup, 2),
        "speedup_from_to": [round(f(s.speedup for s in steps), 2) for f in (min, max)],
    }


def blocks_table() -> list[str]:
    """Arithmetic of the convolutions of an image, block by block."""
    rows, found = [], [op for op in _operations(UNetConfig(), PRECISIONS[0], True) if op.flops]
    for block in (*_BLOCKS, "all"):
        own = [op for op in found if block == "all" or op.part.startswith(block)]
        forward = sum(op.flops for op in own if not op.backward)
        rows.append([block, *(f"{x / IMAGES / 1e9:.2f}" for x in (forward, sum(op.flops for op in own)))])
    return table(["block", "GFLOP forward", "GFLOP forward and backward"], rows)


def compute_table() -> list[str]:
    """What the operations of one GPU's step add up to, and how long that takes."""
    rows = []
    for precision in PRECISIONS:
        for synchronised, name in ((False, "Keras' BatchNormalization"), (True, "SyncBatchNorm")):
            operations = _operations(UNetConfig(), precision, synchronised)
            conv, other = compute_seconds(operations, MACHINES[MIDDLE])
            traffic = [sum(op.bytes for op in operations if (op.flops > 0) == c) / 1e9 for c in (True, False)]
            flops = sum(op.flops for op in operations) / 1e12
            cells = (f"{flops:.2f}", f"{traffic[0]:.1f}", f"{traffic[1]:.1f}", f"{1e3 * conv:.0f}")
            rows.append([precision, name, str(len(operations)), *cells, f"{1e3 * other:.0f}"])
    head = ["precision", "BatchNorm", "operations", "TFLOP of convolutions", "their GB", "GB of all others"]
    return table([*head, "ms of convolutions", "ms of all others"], rows, words=2)


def steps_table() -> list[str]:
    """A step of four GPUs under each of the machines."""
    rows = []
    for precision in PRECISIONS:
        for name, machine in MACHINES.items():
            step = step_of(Plan(precision=precision), machine)
            parts: tuple[float, ...] = (step.convolutions, step.others, step.norms, step.gradients)
            parts += (step.waits, step.update, step.all, step.copies)
            rates = IMAGES / step.single, REPLICAS * IMAGES / step.all
            cells = [f"{1e3 * part:.1f}" for part in parts] + [f"{rate:.0f}" for rate in rates]
            rows.append([precision, name, *cells, f"{step.speedup:.2f}"])
    head = ["precision", "machine", "convolutions", "all others", "BatchNorm's collectives", "gradients"]
    head += [
        "waits for the host",
        "update",
        "step, ms",
        "copies beside it",
        "images/s, one",
        "images/s, four",
    ]
    return table([*head, "speed-up"], rows, words=2)


def levers_table() -> list[str]:
    """The speed-up with each lever, on the machine that is hardest to scale on and on the middle one."""
    machines = [MACHINES[HARD], MACHINES[MIDDLE]]
    rows = []
    for name in levers(Plan()):
        cells = []
        for precision in PRECISIONS:
            plan = levers(Plan(precision=precision))[name]
            cells += [f"{step_of(plan, machine).speedup:.2f}" for machine in machines]
            cells.append(f"{REPLICAS * plan.images / step_of(plan, machines[1]).all:.0f}")
        rows.append([name, *cells])
    columns = ("hard", "middle", "images/s, middle")
    return table(["lever", *(f"{p}, {column}" for p in PRECISIONS for column in columns)], rows)


def main() -> None:
    """Print the lines; with `--page`, renew its tables too."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the tables in this page")
    arguments = parser.parse_args()
    load_tensorflow()
    for precision in PRECISIONS:
        print(json.dumps(line_of(precision)), flush=True)
    if arguments.page:
        tables = {
            "blocks": blocks_table,
            "compute": compute_table,
            "steps": steps_table,
            "levers": levers_table,
        }
        for name, lines in tables.items():
            renew(arguments.page, _MARK.format(name), lines())


if __name__ == "__main__":
    main()
