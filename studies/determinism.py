"""Cost of repeatable bits: loss and gradients of the demo's model, again and again, in three ways.

`keras_norm`: with Keras' BatchNorm, whose input gets three gradients; `ours`: as training runs;
`deterministic`: with `distribution.deterministic: true` besides. Each in processes of its own, by turns,
since the setting holds for a whole process. Prints the ratio of the medians to `ours`, of the time and of
the processor's time, which other work on the machine disturbs less; and how many different results there
were among the repetitions of all processes together: 1 where all agree bit for bit.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from segmenter.config.reading import load_recipe
from segmenter.config.recipe import DistributionConfig
from segmenter.devices.strategy import load_tensorflow, make_devices

RECIPE = Path(__file__).parents[1] / "configs" / "potsdam_small.yaml"
WAYS = ("ours", "deterministic", "keras_norm")
BANDS, CLASSES = 3, 6


def main() -> None:
    """Without `--way`: run all ways in processes of their own and print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="processes for each way")
    parser.add_argument("--repeats", type=int, default=10, help="steps in each process")
    parser.add_argument("--way", choices=WAYS, help="measure one way in this process")
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(_measured(arguments.way, arguments.repeats)))
        return
    times: dict[str, dict[str, list[float]]] = {
        kind: {way: [] for way in WAYS} for kind in ("seconds", "busy")
    }
    results: dict[str, set[str]] = {way: set() for way in WAYS}
    for _ in range(arguments.rounds):
        for way in WAYS:
            command = [sys.executable, "-m", "studies.determinism", "--way", way]
            found = subprocess.check_output([*command, "--repeats", str(arguments.repeats)], text=True)
            line = json.loads(found.splitlines()[-1])
            for kind in times:
                times[kind][way] += line[kind]
            results[way] |= set(line["results"])
    figures: dict[str, Any] = {}
    for kind, name in (("seconds", "time"), ("busy", "processor_time")):
        typical = {way: statistics.median(values) for way, values in times[kind].items()}
        figures |= {f"{name}_{way}_of_ours": round(typical[way] / typical["ours"], 3) for way in WAYS[1:]}
    figures |= {f"results_{way}": len(results[way]) for way in WAYS}
    print(json.dumps({"benchmark": "determinism", "steps": len(times["seconds"]["ours"]), **figures}))


def _measured(way: str, repeats: int) -> dict[str, Any]:
    """Of each repetition, after one to warm up: seconds, those of processor time, a digest of the result."""
    load_tensorflow()
    make_devices(DistributionConfig(deterministic=way == "deterministic"))
    gradients = _gradients(synchronised=way != "keras_norm")
    gradients()
    seconds, busy, results = [], [], []
    for _ in range(repeats):
        started, used = time.perf_counter(), time.process_time()
        tensors = [tensor.numpy() for tensor in gradients()]
        seconds.append(time.perf_counter() - started)
        busy.append(time.process_time() - used)
        results.append(hashlib.sha256(b"".join(tensor.tobytes() for tensor in tensors)).hexdigest())
    return {"seconds": seconds, "busy": busy, "results": results}


def _gradients(*, synchronised: bool) -> Any:
    """A compiled function without arguments that gives loss and gradients of the recipe's model."""
    import keras
    import tensorflow as tf

    from segmenter.model.building import build_model
    from segmenter.training.losses import segmentation_loss

    recipe = load_recipe(RECIPE)
    keras.utils.set_random_seed(0)
    model = build_model(recipe.model, BANDS, CLASSES, synchronised=synchronised)
    images, side = recipe.training.global_batch, recipe.tiles.size
    loss = segmentation_loss(recipe.loss, [1.0, 2.0, 0.5, 1.0, 3.0, 1.5], images)
    pixels = tf.random.stateless_normal((images, side, side, BANDS), (1, 2))
    label = tf.random.stateless_uniform((images, side, side), (3, 4), 0, CLASSES, tf.int32)
    label = tf.cast(label, tf.uint8)

    @tf.function
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            value = loss(label, model(pixels, training=True))
        return [value, *tape.gradient(value, [v.value for v in model.trainable_variables])]

    return gradients


if __name__ == "__main__":
    main()
