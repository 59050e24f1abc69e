"""Law 2 for every shipped recipe with its defaults, by `train.py`: several devices train what one does."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.helpers.equivalence_matrix import LIMIT
from tests.helpers.made_training import made, train, weights
from tests.helpers.several_workers import ROOT
from tests.helpers.small_training import difference

RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
EPOCHS, STEPS = 2, 14


def shipped(name: str, folder: Path) -> Path:
    """The recipe with made scenes, small tiles, in float64; network, loss and optimiser are as shipped."""
    path = made(folder / "data")
    ours, theirs = (yaml.safe_load(p.read_text()) for p in (path, ROOT / "configs" / f"{name}.yaml"))
    recipe = {**theirs, "dataset": ours["dataset"], "prediction": ours["prediction"]}
    recipe["tiles"] = {**theirs.get("tiles", {}), "size": ours["tiles"]["size"]}
    recipe["model"] = {key: value for key, value in theirs["model"].items() if key != "weights"}
    few = {"global_batch": 8, "epochs": EPOCHS, "precision": "float64", "warmup": 2}
    recipe["training"] = {**theirs["training"], **few}
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_several_devices_train_what_one_does(name: str, tmp_path: Path) -> None:
    recipe, runs = shipped(name, tmp_path), {}
    for devices in (1, 2, 4):
        run = tmp_path / str(devices)
        train(recipe, "--run", str(run), "--logical-devices", str(devices))
        runs[devices] = {n: a for n, a in weights(run).items() if n.startswith("model/")}
        assert weights(run)["position"][0] == STEPS
    for devices in (2, 4):
        assert runs[devices].keys() == runs[1].keys()
        trained = [n for n in runs[1] if not n.endswith("/masks")]
        assert difference([runs[devices][n] for n in trained], [runs[1][n] for n in trained]) <= LIMIT
