"""Training step on 1 … N devices, in each precision, with and without XLA, in images a second.

Runs the program's steps (`steps`) with batches already on the devices. One device and all devices in mixed
precision come first, then both with XLA, so that a truncated section has the main results.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from segmenter.base.errors import SegmenterError
from segmenter.config.recipe import LossConfig, ModelConfig, Recipe, TrainingConfig
from segmenter.devices.strategy import Devices

from .bench import Bench
from .figures import Figure

BANDS, CLASSES = 3, 6
SPEEDUP_OF_FOUR = 3.4
"""Least speed-up of four cards."""
RATE, SPEEDUP = "images/s, {}", "speed-up of {}"
_MOST_SECONDS, _CALLS = 10.0, 8
"""Seconds after which no further single step is timed, and single steps at the most."""
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
        yield Figure(RATE.format(case.name), rates[case])
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
    name = SPEEDUP.format(case.name)
    if not limited:
        return Figure(name, measured, "×")
    return Figure(name, measured, "×", f"≥ {SPEEDUP_OF_FOUR}", measured >= SPEEDUP_OF_FOUR)


def rate_of(
    devices: Devices, model: ModelConfig, loss: LossConfig, training: TrainingConfig, side: int, calls: int
) -> float:
    """Return images a second of the training step, timed after two calls that compile and warm up."""
    import tensorflow as tf

    steps, count = training_steps(devices, model, loss, training), tf.constant(training.steps_per_call)
    stack = made_stack(devices, training.steps_per_call, training.global_batch, side)
    seconds = 0.0
    for call in range(calls + 2):
        if call == 2:
            seconds = -time.perf_counter()
        float(steps(stack, count)[0][-1])  # the losses come back when the steps are done
    return calls * training.steps_per_call * training.global_batch / (seconds + time.perf_counter())


def seconds_of_step(recipe: Recipe) -> float:
    """Time single steps of a recipe's training on made tiles, for some ten seconds; return the mean of one.

    Raises:
        SegmenterError: they do not run here, as where other work fills a card.
    """
    import tensorflow as tf

    from segmenter.devices.strategy import make_devices

    devices, one, training = make_devices(recipe.distribution), tf.constant(1), recipe.training
    steps = training_steps(devices, recipe.model, recipe.loss, training)
    stack = made_stack(devices, training.steps_per_call, training.global_batch, recipe.tiles.size)
    begun = time.perf_counter()
    try:
        float(steps(stack, one)[0][0])  # compiles
        started, calls = time.perf_counter(), 0
        while calls == 0 or (calls < _CALLS and time.perf_counter() - begun < _MOST_SECONDS):
            float(steps(stack, one)[0][0])
            calls += 1
    except tf.errors.OpError as error:
        raise SegmenterError(f"a training step does not run here: {error.message.splitlines()[0]}") from None
    return (time.perf_counter() - started) / calls


def training_steps(devices: Devices, config: ModelConfig, loss: LossConfig, training: TrainingConfig) -> Any:
    """Return the program's compiled steps (`step.make_steps`) for a model on these devices."""
    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
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
    """Return synthetic batches of several steps, distributed to the devices."""
    import tensorflow as tf

    shape = (steps, images, side, side)
    image = tf.cast(tf.random.stateless_uniform((*shape, BANDS), (1, 2), 0, 256, tf.int32), tf.uint8)
    label = tf.cast(tf.random.stateless_uniform(shape, (3, 4), 0, CLASSES, tf.int32), tf.uint8)
    return devices.distributed((image, tf.ones(shape, tf.bool), label), axis=1)
