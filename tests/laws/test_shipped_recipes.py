"""Law 2 for every shipped recipe with its defaults, by `train.py`: several devices train what one does.

A ResNet-50 trains at a hundredth of its learning rate. Adam's first updates are almost the gradients' signs,
and on a deep network each makes roundings up to a hundred times larger: at the recipe's rate, one rounding of
each initial weight on one device makes as much difference after every step as several devices do, 1e-2 at the
seventh. A hundredth of an update is still four digits above the limit.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from segmenter.config.recipe import TrainingConfig
from tests.helpers.laboratory import LIMIT
from tests.helpers.made_training import made, train, weights
from tests.helpers.several_workers import ROOT, addresses, ended_with
from tests.helpers.small_training import difference

RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
EPOCHS, STEPS = 2, {"dubai_pretrained": 16}
Arrays = dict[str, np.ndarray]
_SLOWER = {"naic2020_pretrained": 0.01, "potsdam_pretrained": 0.01}


def shipped(name: str, folder: Path) -> Path:
    """The recipe with made scenes, small tiles, in float64; network, loss and optimiser are as shipped."""
    path = made(folder / "data")
    ours, theirs = (yaml.safe_load(p.read_text()) for p in (path, ROOT / "configs" / f"{name}.yaml"))
    recipe = {**theirs, "dataset": ours["dataset"], "prediction": ours["prediction"]}
    recipe["tiles"] = {**theirs.get("tiles", {}), "size": ours["tiles"]["size"], "overlap": 0}
    recipe["model"] = {key: value for key, value in theirs["model"].items() if key != "weights"}
    few = {"global_batch": 8, "epochs": EPOCHS, "precision": "float64", "warmup": 2}
    rate = theirs["training"].get("learning_rate", TrainingConfig().learning_rate) * _SLOWER.get(name, 1.0)
    recipe["training"] = {**theirs["training"], **few, "learning_rate": rate}
    path.write_text(yaml.safe_dump(recipe))
    return path


def of_the_model(run: Path) -> Arrays:
    return {n: a for n, a in weights(run).items() if n.startswith("model/")}


def in_two_processes(recipe: Path, run: Path) -> Arrays:
    """As on two machines: each process has a device, the first writes the run."""
    cluster = ",".join(addresses(2))
    call = [sys.executable, "train.py", str(recipe), "--run", str(run), "--cluster", cluster, "--index"]
    with ended_with([[*call, str(index)] for index in range(2)]) as running:
        said = [worker.communicate()[0] for worker in running]
    assert [worker.returncode for worker in running] == [0, 0], said
    return of_the_model(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_several_devices_train_what_one_does(name: str, tmp_path: Path) -> None:
    recipe, runs = shipped(name, tmp_path), dict[int | str, Arrays]()
    for devices in (1, 4):
        run = tmp_path / str(devices)
        train(recipe, "--run", str(run), "--logical-devices", str(devices))
        runs[devices] = of_the_model(run)
        assert weights(run)["position"][0] == STEPS.get(name, 14)
    runs["two processes"] = in_two_processes(recipe, tmp_path / "two")
    for devices in (4, "two processes"):
        assert runs[devices].keys() == runs[1].keys()
        trained = [n for n in runs[1] if not n.endswith("/masks")]
        assert difference([runs[devices][n] for n in trained], [runs[1][n] for n in trained]) <= LIMIT
