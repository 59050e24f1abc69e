"""Calibration of class probabilities by temperature and a bias per class, and measures of confidence.

Calibrated probabilities are softmax(log p / T + b), with T and b that minimise the negative log-likelihood of
labelled pixels (Guo et al. 2017, arXiv:1706.04599, sections 4.2 and 5). Logits serve as log p: they differ
by a constant of each pixel. Any b also answers other class shares than those learnt (Saerens et al. 2002,
doi 10.1162/089976602753284446), so quotas and class weights need no other correction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

BINS = 15
"""Bins of equal width of the confidence, as in Guo et al."""
COVERAGES = tuple(i / 20 for i in range(1, 21))
"""Shares of the pixels, most confident first, at which the risk is recorded."""
Share = Annotated[float, Field(ge=0, le=1 + 1e-6)]
"""Limits are those of files (`runs.records`)."""
_HOTTEST = 50.0
_LOWER = 0.999
"""Part of the likelihood's loss that a bias must come below: less is noise of the sample."""
_PRIOR_PIXELS = 30.0
"""Weight of the prior bias against the pixels: of a class with as many uncertain pixels it is half."""


def _log_softmax(values_NK: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import log_softmax

    return np.asarray(log_softmax(values_NK, axis=1))


@dataclass(frozen=True)
class Calibration:
    """Temperature T and bias b (K,) of calibrated probabilities softmax(log p / T + b)."""

    temperature: float
    bias: tuple[float, ...]

    @property
    def shifts(self) -> bool:
        """True if it has a bias: then the most probable class may be another."""
        return any(self.bias)

    def apply(self, log_NK: NDArray[Any]) -> NDArray[np.float64]:
        """Return calibrated log-probabilities (N, K) of logits or log-probabilities."""
        scaled_NK = np.asarray(log_NK, np.float64) / self.temperature + np.array(self.bias)
        return _log_softmax(scaled_NK)

    def undone(self, probability_NK: NDArray[np.floating]) -> NDArray[np.float32]:
        """Return the model's own probabilities (N, K) of calibrated ones."""
        with np.errstate(divide="ignore"):
            log_NK = self.temperature * (np.log(probability_NK) - np.array(self.bias, np.float32))
        log_NK -= log_NK.max(axis=1, keepdims=True)
        own_NK = np.exp(log_NK)
        return (own_NK / own_NK.sum(axis=1, keepdims=True)).astype(np.float32)


@dataclass(frozen=True)
class Measures:
    """Measures of probabilities on labelled pixels.

    Attributes:
        ece: expected calibration error of the largest probability.
        nll: mean negative log-likelihood.
        miou: mean IoU over the classes that occur.
        bins: count, mean confidence and accuracy of each of `BINS` bins; zeros of an empty one.
        risks: error rate of the most confident share of the pixels, for each of `COVERAGES`.
        area: area under the risk-coverage curve.
    """

    ece: Share
    nll: float
    miou: Share
    bins: Annotated[
        tuple[tuple[Annotated[int, Field(ge=0)], Share, Share], ...], Field(min_length=BINS, max_length=BINS)
    ]
    risks: Annotated[tuple[Share, ...], Field(min_length=len(COVERAGES), max_length=len(COVERAGES))]
    area: Share


@dataclass(frozen=True)
class Fitted:
    """Calibration for use, with measures on pixels of scenes that it was not fitted on.

    Attributes:
        before: measures of the model's own probabilities.
        temperature, with_bias: measures with temperature alone, and with temperature and bias.
    """

    calibration: Calibration
    before: Measures
    temperature: Measures
    with_bias: Measures

    @property
    def after(self) -> Measures:
        """Measures of the calibration for use."""
        return self.with_bias if self.calibration.shifts else self.temperature

    @property
    def pays(self) -> bool:
        """True if it lowers the likelihood's loss on pixels left out of the fit.

        That loss is a proper score, lowest for the true probabilities (Gneiting and Raftery 2007,
        doi 10.1198/016214506000001437); the calibration error is not, and depends on bins.
        """
        return self.after.nll < self.before.nll


# ------------------------------------------------------------------------------------------- fitting


def prior_correction(true_K: NDArray[np.float64], learnt_K: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the bias log(true / learnt) that corrects class shares, with sum 0; 0 where a share is 0."""
    known_K = (true_K > 0) & (learnt_K > 0)
    bias_K = np.zeros(len(true_K))
    if known_K.any():
        log_K = np.log(true_K[known_K] / learnt_K[known_K])
        bias_K[known_K] = log_K - log_K.mean()
    return bias_K


def fit(
    log_NK: NDArray[Any],
    label_N: NDArray[np.integer],
    prior_K: NDArray[np.float64] | None = None,
    *,
    with_bias: bool = True,
) -> Calibration:
    """Return the calibration of the largest likelihood, a convex problem in 1 / T and b.

    Args:
        log_NK: log-probabilities or logits.
        label_N: class ids.
        prior_K: bias with sum 0 to which little-seen classes are drawn, and which unseen ones keep; None: 0.
        with_bias: False: temperature alone.
    """
    from scipy.optimize import minimize  # here: it takes as long as all else that reading a run imports

    log_NK, count, K = np.asarray(log_NK, np.float64), *np.shape(log_NK)
    base_K = np.zeros(K) if prior_K is None or not with_bias else prior_K
    seen = np.flatnonzero(np.bincount(label_N, minlength=K)) if with_bias else np.zeros(0, np.int64)
    places = np.arange(count), label_N

    def bias_of(shift_S: NDArray[np.float64]) -> NDArray[np.float64]:
        bias_K = base_K.copy()
        bias_K[seen] += shift_S - shift_S.mean() if len(seen) else 0.0
        return bias_K

    def loss(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        bias_K = bias_of(values[1:])
        found_NK = _log_softmax(values[0] * log_NK + bias_K)
        drawn_S = (bias_K - base_K)[seen]
        total = -found_NK[places].mean() + _PRIOR_PIXELS / (2 * count) * (drawn_S**2).sum()
        slope_NK = np.exp(found_NK)
        slope_NK[places] -= 1
        slope_S = slope_NK.sum(axis=0)[seen] / count
        slope_S -= slope_S.mean() if len(seen) else 0.0
        return total, np.array(
            [(slope_NK * log_NK).sum() / count, *slope_S + _PRIOR_PIXELS / count * drawn_S]
        )

    limits = [(1 / _HOTTEST, _HOTTEST), *[(None, None)] * len(seen)]
    start = np.array([1.0, *np.zeros(len(seen))])
    found = minimize(
        *(loss, start), jac=True, method="L-BFGS-B", bounds=limits, options={"ftol": 1e-12, "gtol": 1e-7}
    )
    return Calibration(float(1 / found.x[0]), tuple(bias_of(found.x[1:]).tolist()))


def fit_held_out(
    log_NK: NDArray[Any],
    label_N: NDArray[np.integer],
    place_N: NDArray[np.integer],
    prior_K: NDArray[np.float64] | None = None,
) -> Fitted:
    """Fit on all pixels; measure each half of the places with what is fitted on the other half.

    The halves are the first and the last places: neighbours by name are often neighbours on the ground. The
    bias is used if it lowers the likelihood's loss in both halves without lowering the mIoU of either.

    Args:
        place_N: number of each pixel's scene, or of its strip of a scene; two different ones at least.
    """
    numbers, rank_N = np.unique(place_N, return_inverse=True)
    half_N = (2 * rank_N >= len(numbers)).astype(np.int64)
    both, losses, ious = [], [], []
    for with_bias in (False, True):
        held_NK = np.empty(np.shape(log_NK))
        for half in (0, 1):
            fitted = fit(log_NK[half_N != half], label_N[half_N != half], prior_K, with_bias=with_bias)
            held_NK[half_N == half] = fitted.apply(log_NK[half_N == half])
        both.append(measures(held_NK, label_N))
        nll_N = -held_NK[np.arange(len(label_N)), label_N]
        losses.append([float(nll_N[half_N == half].mean()) for half in (0, 1)])
        found_N = held_NK.argmax(axis=1)
        classes = int(np.shape(log_NK)[-1])
        ious.append([_mean_iou(found_N[half_N == h], label_N[half_N == h], classes) for h in (0, 1)])
    lower = all(bias < _LOWER * alone for alone, bias in zip(*losses, strict=True))
    pays = lower and all(bias >= alone for alone, bias in zip(*ious, strict=True))
    before = measures(_log_softmax(np.asarray(log_NK, np.float64)), label_N)
    return Fitted(fit(log_NK, label_N, prior_K, with_bias=pays), before, *both)


# ------------------------------------------------------------------------------------------ measures


def measures(log_NK: NDArray[np.float64], label_N: NDArray[np.integer]) -> Measures:
    """Return the measures of log-probabilities on labelled pixels, at least one."""
    found_N = log_NK.argmax(axis=1)
    confidence_N, right_N = np.exp(log_NK.max(axis=1)), found_N == label_N
    bins = reliability(confidence_N, right_N)
    risks, area = risk_coverage(confidence_N, right_N)
    nll = -float(log_NK[np.arange(len(label_N)), label_N].mean())
    miou = _mean_iou(found_N, label_N, log_NK.shape[1])
    return Measures(expected_calibration_error(bins), nll, miou, bins, risks, area)


def reliability(
    confidence_N: NDArray[np.float64], right_N: NDArray[np.bool_]
) -> tuple[tuple[int, float, float], ...]:
    """Return count, mean confidence and accuracy of each bin of confidences in 0 … 1."""
    bin_N = np.clip(np.ceil(confidence_N * BINS).astype(int) - 1, 0, BINS - 1)
    count_B = np.bincount(bin_N, minlength=BINS)
    sums = (np.bincount(bin_N, weights, BINS) / np.maximum(count_B, 1) for weights in (confidence_N, right_N))
    return tuple(zip(count_B.tolist(), *(each.tolist() for each in sums), strict=True))


def expected_calibration_error(bins: tuple[tuple[int, float, float], ...]) -> float:
    """Return the mean over pixels of |accuracy - confidence| of their bins (Guo et al. 2017, equation 3)."""
    count_B, confidence_B, accuracy_B = np.array(bins).T
    return float((count_B * np.abs(accuracy_B - confidence_B)).sum() / max(1.0, count_B.sum()))


def risk_coverage(
    confidence_N: NDArray[np.float64], right_N: NDArray[np.bool_]
) -> tuple[tuple[float, ...], float]:
    """Return the error rates at `COVERAGES`, and the mean error rate over all coverages.

    As in Geifman and El-Yaniv 2017, arXiv:1705.08500; pixels of one confidence share their errors evenly.
    """
    _, group_N, size_G = np.unique(-confidence_N, return_inverse=True, return_counts=True)
    error_G = np.bincount(group_N, ~right_N) / size_G
    risk_N = np.cumsum(np.repeat(error_G, size_G)) / np.arange(1, len(right_N) + 1)
    places = [max(1, round(share * len(right_N))) - 1 for share in COVERAGES]
    return tuple(float(risk_N[place]) for place in places), float(risk_N.mean())


def _mean_iou(found_N: NDArray[np.integer], label_N: NDArray[np.integer], classes: int) -> float:
    both_K = np.bincount(label_N[found_N == label_N], minlength=classes)
    union_K = np.bincount(label_N, minlength=classes) + np.bincount(found_N, minlength=classes) - both_K
    return float((both_K[union_K > 0] / union_K[union_K > 0]).mean())
