"""Steps a second on devices of unequal speed: equal parts of the batch, and shares that fit.

Logical devices of one CPU are as fast as each other. Here each waits for a known time for every tile that it
has, without computing; the model is so small that the wait is most of the step. Shares are measured as
`distribution.shares: auto` measures them. Both steps are timed in turns in the same run. `at_best` is the
ratio without any other cost and with parts of tiles: the largest delay times the mean of 1 / delay. One JSON
line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np

from segmenter.config.recipe import DistributionConfig, Recipe
from segmenter.devices.strategy import Devices, load_tensorflow, make_devices

_CLASSES, _BANDS = 3, 3


def main() -> None:
    """Measure, choose, time both in turns, print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--delays", type=float, nargs="+", default=[10, 10, 20, 20], help="of each device, ms a tile"
    )
    parser.add_argument("--tiles", type=int, default=24, help="of a step, over all devices")
    parser.add_argument("--side", type=int, default=16, help="of a tile in pixels")
    parser.add_argument("--steps", type=int, default=6, help="of a timing")
    parser.add_argument("--rounds", type=int, default=5, help="timings of each; the median counts")
    options = parser.parse_args()
    count = len(options.delays)
    load_tensorflow(count)
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(4 * count)  # each device may wait in its own
    devices = make_devices(DistributionConfig(), count)
    recipe, delays = _recipe(options), np.array(options.delays) / 1000
    fitting, seconds = _measured(recipe, devices, delays)
    equal = _timed(recipe, devices, (options.tiles // count,) * count, delays, options.steps)
    shared = _timed(recipe, devices, fitting, delays, options.steps)
    pairs = [(equal(), shared()) for _ in range(options.rounds)]
    ratio = median(a / b for a, b in pairs)
    figures = {
        "delays_ms": options.delays,
        "measured_ms": [round(1000 * each, 2) for each in seconds],
        "shares": list(fitting),
        "equal_steps_s": round(options.steps / median(a for a, _ in pairs), 2),
        "shared_steps_s": round(options.steps / median(b for _, b in pairs), 2),
        "ratio": round(ratio, 3),
        "at_best": round(max(delays) * float((1 / delays).sum()) / count, 3),
    }
    print(json.dumps({"benchmark": "unequal_cards", **figures}))


def _recipe(options: argparse.Namespace) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "unequal",
            "dataset": {"kind": "potsdam", "root": "."},
            "model": {"depth": 1, "width": 2, "normalisation": "none"},
            "tiles": {"size": options.side},
            "training": {"global_batch": options.tiles},
        }
    )


def _measured(recipe: Recipe, devices: Devices, delays: Any) -> tuple[tuple[int, ...], list[float]]:
    from segmenter.extras.strategies.unequal_cards import TimingProbe, measure_tiles

    def slowed(loss: Any, device: str) -> Any:
        return _waiting(loss, [delays[devices.names.index(device)]])

    probe = TimingProbe(recipe, _BANDS, "uint8", _CLASSES, changed=slowed)
    return measure_tiles(probe, devices.names, recipe.training.global_batch, 1)


def _waiting(loss: Any, delays: Sequence[float]) -> Any:
    """The loss, after a replica has waited for its delay for each of its tiles."""
    import tensorflow as tf

    def wait(seconds: Any) -> Any:
        time.sleep(float(seconds))
        return np.float32(0)

    def waited(label: Any, logits: Any, *weight: Any) -> Any:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seconds = tf.constant(delays, tf.float32)[replica] * tf.cast(tf.shape(label)[0], tf.float32)
        seconds += 0 * tf.reduce_sum(tf.cast(logits, tf.float32))  # else TensorFlow takes it for a constant
        # Stateless: TensorFlow has stateful ones wait for each other; part of the sum: else it is left out.
        nothing = tf.numpy_function(wait, [tf.stop_gradient(seconds)], tf.float32, stateful=False)
        own = loss(label, logits, *weight)
        return own + tf.cast(tf.reshape(tf.stop_gradient(nothing), ()), own.dtype)

    waited.needs_valid_weight = loss.needs_valid_weight  # type: ignore[attr-defined]
    return waited


def _timed(
    recipe: Recipe, devices: Devices, shares: tuple[int, ...], delays: Any, steps: int
) -> Callable[[], float]:
    """Seconds of so many steps over all devices."""
    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation
    from segmenter.training.losses import segmentation_loss
    from segmenter.training.optimiser import build_optimiser
    from segmenter.training.step import StepParts, make_step

    devices, batch = replace(devices, shares=shares), recipe.training.global_batch
    with devices.strategy.scope():
        model = build_model(recipe.model, _BANDS, _CLASSES, dtype="float32", synchronised=True)
        optimiser = build_optimiser(recipe.training, model, 1000)
    loss = _waiting(segmentation_loss(recipe.loss, None, batch), list(delays))
    plain = Normalisation.of([120.0] * _BANDS, [60.0] * _BANDS)
    step = make_step(StepParts(devices.strategy, model, optimiser, loss, plain, 8))
    rng = np.random.default_rng(0)
    shape = (batch, recipe.tiles.size, recipe.tiles.size)
    image, label = rng.integers(0, 256, (*shape, _BANDS), np.uint8), rng.integers(0, 3, shape, np.uint8)
    content = devices.distribute((image, np.ones(shape, np.bool_), label))
    float(step(content).loss)

    def seconds() -> float:
        started = time.perf_counter()
        for _ in range(steps):
            last = step(content)
        float(last.loss)
        return time.perf_counter() - started

    return seconds


if __name__ == "__main__":
    main()
