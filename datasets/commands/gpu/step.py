"""Training step on 1 … N devices, in each precision, with and without XLA, in images a second.

Runs the program's steps (`steps`) with batches already on the devices. One device and all devices in mixed
precision come first, then both with XLA, so that a truncated section has the main results.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from segmenter.config.recipe import LossConfig, TrainingConfig

from . import expected
from .bench import Bench
from .figures import Figure
from .steps import rate_of

SPEEDUP_OF_FOUR = 3.4
"""Least speed-up of four cards: the lower end of the expectation in studies/four_gpus.md."""
RATE, SPEEDUP = "images/s, {}", "speed-up of {}"
_BFLOAT16_SINCE = (8, 0)
"""Compute capability: Ampere."""


@dataclass(frozen=True)
class Case:
    """A step to time."""

    precision: str
    replicas: int
    xla: bool = False

    @property
    def name(self) -> str:
        """Name for printing and look-up."""
        plural = "s" * (self.replicas > 1)
        return f"{self.replicas} device{plural}, {self.precision}" + ", XLA" * self.xla


TINY_CASES = [
    *(Case("mixed_float16", 1), Case("mixed_float16", 2), Case("float32", 1, xla=True)),
    Case("mixed_bfloat16", 1),
]
"""Each kind once: compiling takes most of the time."""


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield images a second of each case, and the speed-up over one device."""
    rates: dict[Case, float] = {}
    for case in cases(bench):
        try:
            rates[case] = rate(bench, case)
        except Exception as error:  # one case may not fit, or not compile: the others are still worth it
            line = f"{type(error).__name__}: {(str(error).strip() or '?').splitlines()[0]}"
            yield Figure(RATE.format(case.name), None, note=line[:300])
            continue
        yield Figure(RATE.format(case.name), rates[case], "", _expected(case, "rate"))
        one = rates.get(Case(case.precision, 1, case.xla))
        if case.replicas > 1 and one:
            yield speedup(bench, case, rates[case] / one)


def cases(bench: Bench) -> list[Case]:
    """Return the cases in timing order."""
    most = bench.most if bench.place != "parts" else 1  # parts of a card share it: no speed-up to be seen
    ends, between = sorted({1, most}), range(2, most)
    both = ["float32", "mixed_float16"]
    every = [*both, *(["mixed_bfloat16"] if has_bfloat16(bench) else [])]
    listed = [Case("mixed_float16", n, xla) for xla in (False, True) for n in ends]
    listed += [Case(precision, n) for precision in ("float32", *every[2:]) for n in ends]
    listed += [Case("float32", n, xla=True) for n in ends]
    listed += [Case(precision, n) for precision in both for n in between]
    return TINY_CASES if bench.sizes.tiny else listed


def has_bfloat16(bench: Bench) -> bool:
    """Return whether the device supports bfloat16: a CPU does, slowly."""
    if bench.place == "logical":
        return True
    bench.start()
    import tensorflow as tf

    details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[0])
    return tuple(details.get("compute_capability", (0, 0))) >= _BFLOAT16_SINCE


def rate(bench: Bench, case: Case) -> float:
    """Return images a second of a case."""
    sizes, devices = bench.sizes, bench.devices(case.replicas)
    import keras  # brings TensorFlow, which has to be told of its devices first

    training = TrainingConfig(global_batch=case.replicas * sizes.images, xla=case.xla).model_copy(
        update={"precision": case.precision}  # bfloat16 is no setting of a recipe: no 2080 Ti has it
    )
    try:
        return rate_of(devices, sizes.model, LossConfig(), training, sizes.side, sizes.calls)
    finally:
        keras.backend.clear_session()
        gc.collect()  # the weights of this case, before the next one needs the memory


def speedup(bench: Bench, case: Case, measured: float) -> Figure:
    """Return the speed-up over one device; for four cards with a limit."""
    limited = bench.place == "cards" and case.replicas == 4 and not case.xla
    expectation = _expected(case, "speedup")
    if limited:
        expectation = f"≥ {SPEEDUP_OF_FOUR}; {expectation}"
    holds = measured >= SPEEDUP_OF_FOUR if limited else None
    return Figure(SPEEDUP.format(case.name), measured, "×", expectation, holds)


def _expected(case: Case, what: Literal["rate", "speedup"]) -> str:
    """Return the expected range for 2080 Ti, from slow to fast cards; empty if the page has none."""
    if case.precision not in expected.STEPS or case.xla or case.replicas not in (1, 4):
        return ""
    step = expected.STEPS[case.precision]
    if what == "speedup":
        return f"{step.speedup[0]:.2f} … {step.speedup[1]:.2f} ×" if case.replicas == 4 else ""
    low, high = step.one if case.replicas == 1 else step.four
    return f"{low:.0f} … {high:.0f}"
