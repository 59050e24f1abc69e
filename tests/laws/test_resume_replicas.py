"""A checkpoint of several replicas resumes on one, and the other way round, within law 2's tolerance."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml
from numpy.typing import NDArray

from segmenter.config.recipe import UNetConfig
from segmenter.runs.checkpoints import assign_weights, checkpoints, load_arrays, save_arrays, weight_arrays
from segmenter.training.step import assign_optimiser, optimiser_arrays
from tests.helpers.laboratory import LIMIT
from tests.helpers.made_training import apart, made, train_here, weights
from tests.helpers.small_training import PER_IMAGE, Training, batches, difference

NARROW = UNetConfig(depth=1, width=2)
STEPS, STOP = 5, 3


def state(training: Training) -> dict[str, NDArray[Any]]:
    """What a checkpoint holds of it."""
    return {
        **weight_arrays(training.model, "model"),
        **optimiser_arrays(training.optimiser),
        **weight_arrays(training.averaged.model, "ema"),
        **training.averaged.arrays(),
    }


def load(training: Training, path: Path, *, optimiser: bool = True) -> None:
    arrays = load_arrays(path)
    assign_weights(training.model, arrays, "model")
    assign_weights(training.averaged.model, arrays, "ema")
    training.averaged.assign(arrays)
    if optimiser:
        assign_optimiser(training.optimiser, arrays)


def kinds(arrays: dict[str, NDArray[Any]]) -> dict[str, list[NDArray[Any]]]:
    """Weights with BatchNorm's statistics, their averages, and the moments: what has a tolerance."""
    prefixes = ("model/", "ema/", "optimiser/")
    return {p: [a for name, a in arrays.items() if name.startswith(p) and a.ndim] for p in prefixes}


@pytest.fixture(scope="module")
def trainings(tensorflow: ModuleType) -> dict[int, Training]:
    return {r: Training(NARROW, PER_IMAGE, r, average=0.7) for r in (1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_stopped_on_some_replicas_resumed_on_others(
    trainings: dict[int, Training], tmp_path: Path, before: int, after: int
) -> None:
    stack = batches(STEPS)
    early, late = (tuple(part[i] for part in stack) for i in (slice(None, STOP), slice(STOP, None)))
    start, stop = tmp_path / "start.npz", tmp_path / "stop.npz"
    save_arrays(start, state(trainings[1]))

    load(trainings[before], start)
    trainings[before].each(early)
    save_arrays(stop, state(trainings[before]))
    load(trainings[after], stop)
    trainings[after].each(late)
    resumed = state(trainings[after])

    for training in trainings.values():
        load(training, start)
        training.each(stack)
        whole = state(training)
        assert resumed.keys() == whole.keys()
        for kind, arrays in kinds(whole).items():
            assert difference(kinds(resumed)[kind], arrays) <= LIMIT, kind
        for name, array in whole.items():
            if not array.ndim:  # steps, updates of the average
                assert resumed[name] == array, name


@pytest.fixture(scope="module")
def run_on(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """`run_on(2)`: a run on two devices, with dropout and quotas, whose tiles are dealt to the replicas.

    In float64: AdamW divides by the gradients' size, and so makes of the rounding of weights that have hardly
    any a change that can be seen, on each number of devices another one.
    """
    folder = tmp_path_factory.mktemp("replicas")
    recipe = made(folder / "data")
    text = yaml.safe_load(recipe.read_text())
    assert text["model"]["dropout"] > 0
    text |= {"sampling": {"quota": "rarity"}}
    text["training"] |= {"epochs": 2, "precision": "float64"}
    recipe.write_text(yaml.safe_dump(text))

    def run_on(replicas: int) -> Path:
        run = folder / str(replicas)
        if not run.exists():
            assert train_here(recipe, run, *devices(replicas)) == 0
        return run

    return run_on


def devices(replicas: int) -> tuple[str, str]:
    name = "one_device" if replicas == 1 else "mirrored"
    return f"distribution.strategy={name}", f"distribution.devices={list(range(replicas))}"


@pytest.mark.slow
def test_replicas_train_as_one(run_on: Callable[[int], Path]) -> None:
    assert apart(run_on(1), run_on(2)) <= LIMIT
    one, other = weights(run_on(1)), weights(run_on(2))
    assert one.keys() == other.keys()
    assert np.array_equal(one["model/dropout/masks"], other["model/dropout/masks"])


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_a_run_goes_on_with_other_devices(
    run_on: Callable[[int], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    before: int,
    after: int,
) -> None:
    run = tmp_path / "run"
    shutil.copytree(run_on(before), run)
    recipe = run_on(before).parent / "data" / "recipe.yaml"
    first = min(checkpoints(run))
    assert train_here(recipe, run, *devices(after), step=first) == 0
    output = capsys.readouterr().out
    assert f"resumed after step {first} of {2 * first}" in output
    assert f"made on {before} devices, this is {after}" in output
    assert apart(run, run_on(before)) <= LIMIT
    np.testing.assert_array_equal(weights(run)["position"][:3], weights(run_on(before))["position"][:3])
