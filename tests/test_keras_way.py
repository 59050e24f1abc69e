"""The Keras way: the example of docs/keras_fit.md as it stands there, on one logical device and on four."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from made_training import ROOT, made

EXAMPLE = ROOT / "docs" / "keras_fit.md"
_RESULT = """
import json
import numpy as np
weights = np.concatenate([v.numpy().ravel() for v in model.variables if "seed" not in v.path])
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
    (code,) = re.findall(r"```python\n(.*?)```", EXAMPLE.read_text(encoding="utf-8"), re.DOTALL)
    for pattern, new in (("REPLICAS = 4", f"REPLICAS = {replicas}"), *changes):
        code, found = re.subn(pattern, new, code)
        assert found, pattern
    return code + _RESULT


def run(folder: Path, code: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TF_ENABLE_ONEDNN_OPTS", None)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.partition("RESULT ")[2])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keras")
    recipe = yaml.safe_load(made(path / "data", scenes=3).read_text())
    recipe["model"]["dropout"] = 0.0  # its masks differ by design
    recipe["training"]["epochs"] = 2
    recipe["dataset"]["split"] = {"validation": ["s2"]}
    (path / "mine.yaml").write_text(yaml.safe_dump(recipe))
    return path


def difference(a: dict[str, Any], b: dict[str, Any]) -> float:
    """Largest difference of losses and weights, relative to the largest of its kind."""
    losses = [np.array([epoch["loss"] for epoch in r["history"]]) for r in (a, b)]
    weights = [np.array(r["weights"]) for r in (a, b)]
    return float(max(np.abs(x - y).max() / np.abs(y).max() for x, y in (losses, weights)))


def test_the_example_learns_and_four_devices_compute_what_one_does(folder: Path) -> None:
    four, one = run(folder, example(4)), run(folder, example(1))
    assert (four["replicas"], one["replicas"]) == (4, 1)
    assert four["history"][1]["loss"] < four["history"][0]["loss"]
    assert difference(four, one) < 1e-3
    for a, b in zip(four["history"], one["history"], strict=True):
        assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
        assert a["miou"] == pytest.approx(b["miou"], abs=0.01)


@pytest.mark.slow
def test_in_float64_nothing_but_rounding_is_left(folder: Path) -> None:
    one = run(folder, example(1, *_EXACT))
    four = run(folder, example(4, *_EXACT))
    assert difference(four, one) <= 1e-10
    assert [e["miou"] for e in four["history"]] == pytest.approx(
        [e["miou"] for e in one["history"]], rel=1e-6
    )
    # The traps, which this comparison sees: gradients that nobody sums, and each device's own BatchNorm.
    for trap in ((", for_fit=True", ""), ("synchronised=devices.replicas > 1", "synchronised=False")):
        assert difference(run(folder, example(4, *_EXACT, trap)), one) > 1e-4, trap
