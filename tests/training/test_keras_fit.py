"""Keras' own `fit`: the example of docs/internals.md as written, on one logical device and on four."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from tests.helpers.made_training import ROOT, made

PAGE = ROOT / "docs" / "internals.md"
_RESULT = """
import json
import numpy as np
weights = np.concatenate([v.numpy().ravel() for v in model.variables if "masks" not in v.path])
print("RESULT", json.dumps({"history": history, "weights": weights.tolist(), "replicas": devices.replicas}))
"""
# In float64, what is left of a difference is rounding; the example itself computes in float32.
_EXACT = (
    (r"keras\.utils\.set_random_seed\(recipe\.seed\)", 'keras.config.set_floatx("float64")\n\\g<0>'),
    (r"dtype=training\.precision", 'dtype="float64"'),
    (r"epoch\), normalisation\)", 'epoch), normalisation, "float64")'),
)


def example(replicas: int, *changes: tuple[str, str]) -> str:
    """The code of the page, changed by regular expressions, each of which has to be found in it."""
    text = PAGE.read_text(encoding="utf-8").partition("## Keras' own fit")[2]
    code = text.partition("```python\n")[2].partition("```")[0]
    for pattern, new in (("REPLICAS = 4", f"REPLICAS = {replicas}"), *changes):
        code, found = re.subn(pattern, new, code)
        assert found, pattern
    return code + _RESULT


def run(folder: Path, code: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_ENABLE_ONEDNN_OPTS", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.partition("RESULT ")[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keras")
    recipe = yaml.safe_load(made(path / "data", scenes=3).read_text())
    recipe["sampling"] = {"per_replica": "off"}  # dealing changes the images' places, and so their masks
    recipe["training"]["epochs"] = 2
    recipe["dataset"]["split"] = {"validation": ["s2"]}
    (path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    return path


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Largest difference of losses and weights, relative to the largest of its kind."""
    losses = [np.array([epoch["loss"] for epoch in r["history"]]) for r in (a, b)]
    weights = [np.array(r["weights"]) for r in (a, b)]
    return float(max(np.abs(x - y).max() / np.abs(y).max() for x, y in (losses, weights)))


def test_the_example_learns_on_four_devices(folder: Path, tmp_path: Path) -> None:
    """In float32, as it stands; Adam makes much of rounding: devices are compared in float64, below.

    The recipe deals classes to replicas, which is the default, and its loss needs the classes' shares.
    """
    recipe = yaml.safe_load((folder / "mine.yaml").read_text())
    del recipe["sampling"]
    recipe["loss"] = {"cross_entropy": 1.0, "logit_adjustment": 1.0}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    four = run(tmp_path, example(4))
    assert four["replicas"] == 4
    assert four["history"][1]["loss"] < four["history"][0]["loss"]


def _applied(tensorflow: ModuleType, gradients: list[float], **settings: Any) -> tuple[Any, Any]:
    """The change of one weight, on each replica, by an optimiser for `fit`; and the optimiser."""
    import keras

    from segmenter.config.recipe import TrainingConfig
    from segmenter.training.optimiser.optimisers import build_optimiser

    tf = tensorflow
    names = [f"CPU:{i}" for i in range(len(gradients))]
    # Not by collectives: a second strategy that uses them over the same devices mixes up their keys.
    strategy = tf.distribute.MirroredStrategy(names, cross_device_ops=tf.distribute.ReductionToOneDevice())
    config = TrainingConfig(schedule="constant", warmup=0, weight_decay=0, learning_rate=1.0, **settings)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        optimiser = build_optimiser(config, model, 100, for_fit=True)
    (weight,) = model.trainable_variables

    @tf.function
    def step() -> None:
        def replica() -> None:
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            optimiser.apply_gradients([(tf.reshape(tf.gather(gradients, number), (1, 1)), weight)])

        strategy.run(replica)

    before = weight.numpy()
    step()
    after = [value.numpy() for value in strategy.experimental_local_results(weight.value)]
    return [float(value[0, 0] - before[0, 0]) for value in after], optimiser


def test_an_optimiser_for_fit_sums_before_it_clips(tensorflow: ModuleType, four_replicas: list[str]) -> None:
    # Nesterov momentum 0.9 from rest: the first step is 1.9 × the gradient.
    free, _ = _applied(tensorflow, [1.0, 2.0, 3.0, 4.0], optimizer="sgd")
    assert free == pytest.approx([-19.0] * 4, rel=1e-5)
    clipped, _ = _applied(tensorflow, [1.0, 2.0, 3.0, 4.0], optimizer="sgd", clip_norm=1.0)
    assert clipped == pytest.approx([-1.9] * 4, rel=1e-5)  # clipped on each replica first: −7.6


@pytest.mark.parametrize("bad", [None, 0, 1, 3])
def test_an_overflow_on_any_replica_is_one_on_all(
    tensorflow: ModuleType, four_replicas: list[str], bad: int | None
) -> None:
    scale = 2.0**15
    gradients = [float("nan") if i == bad else scale * (i + 1) for i in range(4)]
    change, optimiser = _applied(tensorflow, gradients, optimizer="sgd", precision="mixed_float16")
    skipped = bad is not None
    assert change == pytest.approx([0.0 if skipped else -19.0] * 4, rel=1e-5)
    assert float(optimiser.dynamic_scale.numpy()) == (scale / 2 if skipped else scale)
    assert int(optimiser.inner_optimizer.iterations.numpy()) == (0 if skipped else 1)


def test_the_loss_cannot_be_taken_for_a_whole_one(tensorflow: ModuleType, four_replicas: list[str]) -> None:
    from segmenter.training.keras_fit import GlobalLoss

    loss = GlobalLoss(lambda labels, logits: tensorflow.reduce_sum(logits))
    with (
        tensorflow.distribute.MirroredStrategy(four_replicas).scope(),
        pytest.raises(ValueError, match="each replica's share"),
    ):
        loss(np.zeros((1, 2, 2)), np.zeros((1, 2, 2, 3)))


def test_in_float64_nothing_but_rounding_is_left(folder: Path) -> None:
    one = run(folder, example(1, *_EXACT))
    four = run(folder, example(4, *_EXACT))
    assert difference(four, one) <= 1e-10
    assert [e["miou"] for e in four["history"]] == pytest.approx(
        [e["miou"] for e in one["history"]], rel=1e-6
    )


@pytest.mark.slow
def test_the_comparison_sees_the_traps(folder: Path) -> None:
    """Gradients that nobody sums, and each device's own BatchNorm."""
    one = run(folder, example(1, *_EXACT))
    for trap in ((", for_fit=True", ""), ("synchronised=True", "synchronised=False")):
        assert difference(run(folder, example(4, *_EXACT, trap)), one) > 1e-4, trap
