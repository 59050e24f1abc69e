"""Calibration: the fit finds what made the data; measures are those of their definitions."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

from segmenter.config.losses import LossConfig
from segmenter.evaluation.calibration import (
    COVERAGES,
    Calibration,
    expected_calibration_error,
    fit,
    fit_held_out,
    measures,
    prior_correction,
    reliability,
    risk_coverage,
)
from segmenter.training.calibrating import prior_bias

COUNT = 60_000


def drawn(rng: np.random.Generator, probabilities_NK: NDArray[Any]) -> NDArray[np.int64]:
    """Labels drawn from the probabilities of each pixel."""
    below_NK = probabilities_NK.cumsum(axis=1) < rng.random((len(probabilities_NK), 1))
    return np.asarray(below_NK.sum(axis=1).clip(0, probabilities_NK.shape[1] - 1))


@pytest.mark.parametrize(
    ("classes", "dtype", "temperature"), [(2, np.float64, 0.4), (7, np.float32, 1.0), (19, np.float32, 2.7)]
)
def test_a_fit_finds_the_temperature_and_bias_of_the_data(
    rng: np.random.Generator, classes: int, dtype: Any, temperature: float
) -> None:
    logits = rng.normal(size=(COUNT, classes)) * 2
    bias = rng.normal(size=classes) * 0.5
    bias -= bias.mean()
    label = drawn(rng, softmax(logits + bias, axis=1))
    found = fit((logits * temperature + rng.normal(size=(COUNT, 1)) * 9).astype(dtype), label)
    assert found.temperature == pytest.approx(temperature, rel=0.04)
    np.testing.assert_allclose(found.bias, bias, atol=0.1)
    assert sum(found.bias) == pytest.approx(0, abs=1e-9)
    alone = fit((logits * temperature).astype(dtype), drawn(rng, softmax(logits, axis=1)), with_bias=False)
    assert alone.temperature == pytest.approx(temperature, rel=0.04)
    assert not alone.shifts


def test_a_fit_is_a_minimum_of_the_likelihoods_loss(rng: np.random.Generator) -> None:
    """Up to the weight of the prior bias, which 60,000 pixels make small."""
    logits = rng.normal(size=(COUNT, 5)) * 3
    label = drawn(rng, softmax(logits / 2 + np.arange(5) / 4, axis=1))
    found = fit(logits, label)
    best = measures(found.apply(logits), label).nll
    for _ in range(20):
        step = rng.normal(size=5) * 0.1
        other = Calibration(found.temperature * float(np.exp(step[0])), tuple(np.array(found.bias) + step))
        assert measures(other.apply(logits), label).nll > best


def test_unseen_classes_keep_the_prior_bias_and_little_seen_ones_stay_near(rng: np.random.Generator) -> None:
    logits = rng.normal(size=(5000, 5))
    label = rng.integers(0, 3, 5000)
    label[:2] = 3
    assert fit(logits, label).bias[4] == 0
    prior = np.array([0.5, 0.5, 0.5, 0.5, -2.0])
    bias = fit(logits, label, prior).bias
    assert bias[4] == -2
    assert sum(bias) == pytest.approx(0, abs=1e-9)
    free = np.log(2 / 1666)  # the shift that the two pixels alone ask for
    assert free / 2 < bias[3] - bias[0] < 0


def test_the_calibration_error_is_that_of_a_naive_loop(rng: np.random.Generator) -> None:
    confidence, right = rng.random(997), rng.random(997) < 0.6
    confidence[:3] = 0, 1, 1 / 3
    total = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        inside |= (confidence == 0) & (number == 0)
        if inside.any():
            total += inside.sum() * abs(right[inside].mean() - confidence[inside].mean())
    bins = reliability(confidence, right)
    assert expected_calibration_error(bins) == pytest.approx(total / 997)
    assert sum(count for count, _, _ in bins) == 997


def test_risk_falls_with_a_good_order_and_ties_share_their_errors() -> None:
    confidence = np.linspace(1, 0, 100)
    risks, area = risk_coverage(confidence, np.arange(100) < 60)
    assert risks[: COVERAGES.index(0.6) + 1] == (0.0,) * 12
    assert risks[-1] == pytest.approx(0.4)
    assert area == pytest.approx(np.mean(np.maximum(0, np.arange(1, 101) - 60) / np.arange(1, 101)))
    tied, same = risk_coverage(np.ones(100), np.arange(100) < 60)
    np.testing.assert_allclose(tied, 0.4)
    assert same == pytest.approx(0.4)


def _rebalanced(rng: np.random.Generator) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Logits of Bayes' rule under equal shares, of pixels whose true shares are unequal."""
    true = np.array([0.7, 0.2, 0.08, 0.02])
    label = rng.choice(4, COUNT, p=true)
    seen = rng.normal(size=(COUNT, 4)) + 2 * np.eye(4)[label]
    return 2 * seen, label, true, np.full(4, 0.25)


def test_prior_correction_gives_back_the_true_shares(rng: np.random.Generator) -> None:
    logits, label, true, learnt = _rebalanced(rng)
    before = log_softmax(logits, axis=1)
    corrected = Calibration(1.0, tuple(prior_correction(true, learnt))).apply(logits)
    first, then = measures(before, label), measures(corrected, label)
    assert then.nll < first.nll
    assert then.ece < 0.01
    for c in range(4):  # of each class: in the largest probability, too low and too high ones cancel
        errors = [
            expected_calibration_error(reliability(np.exp(log[:, c]), label == c))
            for log in (before, corrected)
        ]
        assert errors[1] < errors[0] / 2
    shares = np.bincount(label, minlength=4) / COUNT
    np.testing.assert_allclose(np.exp(corrected).mean(axis=0), shares, atol=0.005)
    assert abs(np.exp(before).mean(axis=0) - shares).max() > 0.03
    np.testing.assert_allclose(fit(logits, label).bias, prior_correction(true, learnt), atol=0.1)


@pytest.mark.parametrize("tau", [0.0, 0.5, 1.0])
def test_the_prior_bias_knows_sampling_class_weights_and_logit_adjustment(tau: float) -> None:
    true, shown = np.array([0.6, 0.3, 0.1, 0.0]), np.array([0.4, 0.3, 0.3, 0.0])
    weights = (1.0, 1.0, 5.0, 1.0)
    loss = LossConfig(class_weights=weights, logit_adjustment=tau)
    bias = prior_bias(loss, true, shown)
    learnt = shown[:3] ** (1 - tau) * weights[:3]
    assert bias[3] == 0
    np.testing.assert_allclose(np.diff(bias[:3]), np.diff(np.log(true[:3] / learnt)))


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_held_out_measures_improve_and_a_bias_is_taken_only_where_it_pays(
    rng: np.random.Generator, bias: float
) -> None:
    logits = rng.normal(size=(20_000, 3)) * 2
    label = drawn(rng, softmax(logits + np.array([bias, 0, -bias]), axis=1))
    found = fit_held_out(3 * logits, label, rng.integers(0, 5, 20_000) * 7)
    assert found.calibration.temperature == pytest.approx(3, rel=0.05)
    assert found.calibration.shifts == (bias > 0) == (found.after is found.with_bias)
    assert found.pays
    assert found.after.ece < found.before.ece / 2
    assert found.after.miou >= found.before.miou


def test_a_calibration_of_one_half_that_the_other_denies_does_not_pay(rng: np.random.Generator) -> None:
    """The first places are too sure, the last too unsure: each fit makes the other half worse."""
    logits, place = rng.normal(size=(20_000, 3)) * 2, np.arange(20_000) // 5000
    label = drawn(rng, softmax(np.where(place < 2, 0.3, 3)[:, None] * logits, axis=1))
    found = fit_held_out(logits, label, place)
    assert found.after.nll > found.before.nll
    assert not found.pays


def test_a_bias_that_costs_iou_is_left_out(rng: np.random.Generator) -> None:
    """A rare class that is hard to tell: likelihood asks for it to be named almost nowhere."""
    shares = [0.6, 0.35, 0.05]
    label = rng.choice(3, COUNT, p=shares)
    logits = rng.normal(size=(COUNT, 3)) + np.eye(3)[label] + np.log(shares) / 2
    found = fit_held_out(logits, label, np.arange(COUNT) % 4)
    assert found.with_bias.nll < found.temperature.nll
    assert found.with_bias.miou < found.temperature.miou
    assert not found.calibration.shifts
