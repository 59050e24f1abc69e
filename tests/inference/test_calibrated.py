"""Calibrated models: the compiled model gives softmax(log p / T + b), alone, mirrored and with others."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import softmax

from segmenter.base.errors import CheckpointError
from segmenter.evaluation.calibration import Calibration, Fitted, Measures
from segmenter.grid.labels import ClassMap
from segmenter.inference.loading import KeptModels, load_predictor
from segmenter.inference.prediction import ExtraOutputs
from segmenter.runs.checkpoints import load_arrays, save_arrays
from segmenter.runs.ensemble import join_runs, without_calibration
from segmenter.runs.records import CALIBRATION, calibrated_head, save_best, save_calibration
from segmenter.runs.run import Run, load_run
from tests.helpers.made_runs import rewritten
from tests.helpers.random_run import random_run
from tests.helpers.refusals import refused

WANTED = ExtraOutputs(confidence=True, probabilities="float32")
MEASURES = Measures(0.1, 0.5, 0.6, ((4, 0.5, 0.4),) * 15, (0.1,) * 20, 0.1)
HEAD: dict[str, Any] = {"kind": "encoder_decoder", "encoder": "efficientnet_lite0", "decoder": "fpn"}


def calibrate(run: Path, temperature: float, bias: tuple[float, ...]) -> None:
    fitted = Fitted(Calibration(temperature, bias), MEASURES, MEASURES, MEASURES)
    save_calibration(load_run(run), fitted, pixels=60, scenes=2, fitted_on=[])


def pixels(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    return rng.integers(1, 1000, (*shape, 3), np.uint16), np.ones(shape, bool)


@pytest.fixture
def run(tensorflow: ModuleType, tmp_path: Path, make_classes: Callable[..., ClassMap]) -> Path:
    """A U-Net with random weights of five classes."""
    return random_run(tmp_path / "run", make_classes(5), depth=1)


@pytest.mark.parametrize(
    ("shape", "bias"),
    [
        ((3, 24, 40), (1.0, -0.5, 0.25, 0.25, -1.0)),
        pytest.param((1, 8, 8), (0.0,) * 5, marks=pytest.mark.slow),
        pytest.param((2, 104, 56), (1.0, -0.5, 0.25, 0.25, -1.0), marks=pytest.mark.slow),
    ],
)
def test_a_calibrated_model_is_the_formula(
    run: Path, rng: np.random.Generator, shape: tuple[int, ...], bias: tuple[float, ...]
) -> None:
    image = pixels(rng, shape)
    before = load_predictor(load_run(run), WANTED)(*image)
    calibrate(run, 1.7, bias)
    after = load_predictor(load_run(run), WANTED)(*image)
    assert after.probabilities is not None
    log = np.log(before.probabilities.astype(np.float64))
    np.testing.assert_allclose(after.probabilities, softmax(log / 1.7 + bias, axis=-1), atol=1e-6)
    if not any(bias):  # but for ties within a rounding
        top = np.sort(log, axis=-1)
        same = (after.ids == before.ids) | (top[..., -1] - top[..., -2] < 1e-5)
        assert same.all()
    plain = load_predictor(without_calibration(load_run(run)), WANTED)(*image)
    np.testing.assert_array_equal(plain.probabilities, before.probabilities)


@pytest.mark.slow
@pytest.mark.parametrize("tta", ["none", pytest.param("flips", marks=pytest.mark.slow)])
def test_an_ensemble_averages_calibrated_probabilities(
    run: Path, tmp_path: Path, make_classes: Callable[..., ClassMap], rng: np.random.Generator, tta: str
) -> None:
    other = random_run(tmp_path / "other", make_classes(5), seed=8, depth=1, mean=300)
    calibrate(run, 2.5, (0.5, -0.5, 0.0, 0.0, 0.0))
    image = pixels(rng, (2, 24, 40))
    each = [load_predictor(load_run(path), WANTED, tta)(*image).probabilities for path in (run, other)]
    both = load_predictor(join_runs([load_run(path) for path in (run, other)]), WANTED, tta)(*image)
    np.testing.assert_allclose(both.probabilities, sum(each) / 2, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_head_below_a_bilinear_enlargement_is_calibrated_alike(
    tensorflow: ModuleType, tmp_path: Path, make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    run = random_run(tmp_path / "run", make_classes(5), model_section=HEAD)
    image = pixels(rng, (1, 64, 96))
    before = load_predictor(load_run(run), WANTED)(*image).probabilities
    calibrate(run, 0.6, (0.5, -0.5, 0.0, 0.0, 0.0))
    after = load_predictor(load_run(run), WANTED)(*image).probabilities
    formula = softmax(np.log(before.astype(np.float64)) / 0.6 + [0.5, -0.5, 0, 0, 0], axis=-1)
    np.testing.assert_allclose(after, formula, atol=2e-5)


@pytest.mark.slow
def test_a_calibration_changes_the_checksum_and_cached_models(run: Path, rng: np.random.Generator) -> None:
    image, models = pixels(rng, (1, 8, 8)), KeptModels()
    checksum = load_run(run).checksum()
    with models.used():
        before = load_predictor(load_run(run), WANTED)(*image)
        calibrate(run, 3.0, (0.0,) * 5)
        after = load_predictor(load_run(run), WANTED)(*image)
    assert (after.confidence != before.confidence).any()
    assert load_run(run).checksum() != checksum
    assert without_calibration(load_run(run)).checksum() == checksum


def test_a_calibration_of_other_weights_is_refused_whatever_their_step(
    run: Path, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> None:
    other = random_run(tmp_path / "other", make_classes(5), seed=8, depth=1)
    calibrate(run, 2.0, (0.0,) * 5)
    calibrate(other, 3.0, (0.0,) * 5)
    mine, best = (run / CALIBRATION).read_bytes(), load_arrays(run / "best.npz")
    (run / CALIBRATION).write_bytes((other / CALIBRATION).read_bytes())
    for use in (Run.calibration, Run.checksum, load_predictor):
        with refused(CheckpointError, where=run / CALIBRATION, fault="other weights", remedy="calibrate"):
            use(load_run(run))
    assert without_calibration(load_run(run)).checksum() != without_calibration(load_run(other)).checksum()

    (run / CALIBRATION).write_bytes(mine)
    further = {"position": np.array([7.0, 1, 0]), "optimiser/0": np.ones(3)}  # which predict nothing
    save_arrays(run / "best.npz", best | further)
    assert load_run(run).calibration() == Calibration(2.0, (0.0,) * 5)
    changed = next(name for name in best if name.startswith("model/") and best[name].size)
    save_arrays(run / "best.npz", best | further | {changed: best[changed] + 1})
    with refused(CheckpointError, where=run / CALIBRATION):
        load_run(run).calibration()


def test_a_new_best_model_is_not_calibrated_by_the_one_before(run: Path) -> None:
    calibrate(run, 2.0, (0.0,) * 5)
    arrays = load_arrays(run / "best.npz")
    save_best(run, {name: array + 1 for name, array in arrays.items()})
    assert load_run(run).calibration() is None


def test_a_calibration_of_an_earlier_version_is_known_by_its_step(run: Path) -> None:
    calibrate(run, 2.0, (0.0,) * 5)
    rewritten(run / CALIBRATION, weights="", fitted_on=[], step=7)
    assert load_run(run).calibration() is None
    save_arrays(run / "best.npz", {**load_arrays(run / "best.npz"), "position": np.array([7.0, 1, 0])})
    assert load_run(run).calibration() == Calibration(2.0, (0.0,) * 5)


def test_a_model_without_the_layer_of_the_logits_takes_no_calibration() -> None:
    arrays = {"model/head/kernel": np.ones((1, 1, 3, 2), np.float32)}
    assert calibrated_head(arrays, Calibration(2.0, (0.0, 0.0))) == {}


def test_damaged_calibrations_are_refused_naming_the_file(run: Path) -> None:
    calibrate(run, 2.0, (0.0,) * 5)
    file = run / CALIBRATION
    whole = file.read_bytes()
    for change in (
        {"temperature": 0.0},
        {"bias": [0.0] * 4},
        {"bias": ["a"] * 5},
        {"format": 2},
        {"before__bins": []},
        {"further": 1},
    ):
        file.write_bytes(whole)
        rewritten(file, **change)
        with pytest.raises(CheckpointError, match=CALIBRATION):
            load_predictor(load_run(run))
    file.write_bytes(whole.replace(b"2.0", b"2.5", 1))
    with pytest.raises(CheckpointError, match=CALIBRATION):
        load_run(run).checksum()
    assert load_predictor(replace(load_run(run), calibrated=False)).classes == 5
