"""Losses, hard pixels, borders and adjusted logits against formulas written out in NumPy."""

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.recipe import LossConfig
from segmenter.grid.labels import IGNORE
from segmenter.training.losses import log_priors, segmentation_loss
from segmenter.training.prepare import class_weights
from tests.helpers.made_runs import recipe_of
from tests.helpers.refusals import refused

pytestmark = pytest.mark.usefixtures("tensorflow")

SHARES = (0.7, 0.25, 0.05)
WEIGHTS = (0.5, 2.0, 1.0)


def made(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels (4, 9, 13) of three classes in blocks, with ignored pixels, the last all ignored; logits."""
    rng = np.random.default_rng(seed)
    label = rng.integers(0, 3, (4, 3, 5)).astype(np.uint8).repeat(4, 1).repeat(3, 2)[:, :9, :13]
    label[rng.random(label.shape) < 0.2] = IGNORE
    label[3] = IGNORE
    return label, rng.normal(size=(*label.shape, 3))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def loss_of(config: LossConfig, weights: Any = None, global_batch: int | None = None) -> Any:
    return segmentation_loss(config, weights, global_batch, SHARES)


def computed(label: np.ndarray, logits: np.ndarray, weights: Any = None, **terms: Any) -> float:
    """The loss of the recipe's section, cross-entropy off unless named."""
    import tensorflow as tf

    config = LossConfig(**{"cross_entropy": 0, **terms})
    return float(loss_of(config, weights)(tf.constant(label), tf.constant(logits)))


emphasised = partial(computed, cross_entropy=1)


def pixel_loss(label: np.ndarray, logits: np.ndarray, gamma: float, smoothing: float) -> np.ndarray:
    """Of each pixel, by the formula; 0 where ignored."""
    log_p = log_softmax(logits)
    target = np.eye(256)[label][..., :3] * (1 - smoothing) + smoothing / 3
    return -(target * (1 - np.exp(log_p)) ** gamma * log_p).sum(-1) * (label != IGNORE)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(
    ("term", "gamma"), [("cross_entropy", 0.0), ("focal", 2.0), ("focal", 0.5), ("focal", 0.0)]
)
def test_the_two_normalisations(term: str, gamma: float, smoothing: float) -> None:
    label, logits = made()
    valid = label != IGNORE
    weight = np.array([*WEIGHTS, *[0.0] * 253])[label]
    weighted = pixel_loss(label, logits, gamma, smoothing) * weight
    terms = {term: 1, "label_smoothing": smoothing}
    if term == "focal":
        terms["focal_gamma"] = gamma
    images = weighted.sum((1, 2)) / np.maximum(1, valid.sum((1, 2)))
    assert images[3] == 0  # an image of ignored pixels only: no NaN
    assert computed(label, logits, WEIGHTS, **terms) == pytest.approx(images.mean(), rel=1e-12)
    got = computed(label, logits, WEIGHTS, normalisation="per_pixel", **terms)
    assert got == pytest.approx(weighted.sum() / weight.sum(), rel=1e-12)


def test_region_losses_are_over_the_whole_batch_and_its_classes() -> None:
    label, logits = made(1)
    label[label == 2] = 1  # class 2 is absent: it must not count
    ok = label != IGNORE
    p, y = np.exp(log_softmax(logits))[ok], label[ok]

    def mean(index: Any) -> float:
        parts = [(p[y == c, c].sum(), p[y != c, c].sum(), (1 - p[y == c, c]).sum()) for c in (0, 1)]
        return 1 - float(np.mean([index(*part) for part in parts]))

    dice = mean(lambda tp, fp, fn: 2 * tp / (2 * tp + fp + fn))
    jaccard = mean(lambda tp, fp, fn: tp / (tp + fp + fn))
    tversky = mean(lambda tp, fp, fn: tp / (tp + 0.2 * fp + 0.9 * fn))
    options = {"tversky_alpha": 0.2, "tversky_beta": 0.9}
    assert computed(label, logits, dice=1) == pytest.approx(dice, rel=1e-12)
    assert computed(label, logits, jaccard=1) == pytest.approx(jaccard, rel=1e-12)
    assert computed(label, logits, tversky=1, **options) == pytest.approx(tversky, rel=1e-12)
    total = computed(label, logits, dice=1, jaccard=2, tversky=3, cross_entropy=0.5, **options)
    expected = dice + 2 * jaccard + 3 * tversky + 0.5 * computed(label, logits, cross_entropy=1)
    assert total == pytest.approx(expected, rel=1e-12)


def test_lovasz_is_the_extension_of_one_minus_iou() -> None:
    label, logits = made(4)
    expected = [_lovasz_of_image(y, p) for y, p in zip(label, np.exp(log_softmax(logits)), strict=True)]
    assert computed(label, logits, lovasz=1) == pytest.approx(np.mean(expected), rel=1e-12)
    assert expected[3] == 0
    # Of a hard prediction it is 1 − IoU itself: here class 0 has 3 of 5 pixels, class 1 has 1 of 3.
    label = np.array([[[0, 0, 0, 0, 1, 1, IGNORE, IGNORE]]], np.uint8)
    hard = np.array([0, 0, 0, 1, 1, 0, 2, 0])
    sharp = 50.0 * np.eye(3)[hard][None, None]
    assert computed(label, sharp, lovasz=1) == pytest.approx(1 - (3 / 5 + 1 / 3) / 2, rel=1e-9)


def _lovasz_of_image(label: np.ndarray, p: np.ndarray) -> float:
    """∫ of the Jaccard loss of {m ≥ t} over the threshold t: another form of the extension."""
    ok = label != IGNORE
    losses = []
    for c in np.unique(label[ok]):
        truth = label[ok] == c
        error = np.abs(truth - p[ok][:, c])
        edges = np.unique([0.0, *error])
        wrong = [error >= t for t in edges[1:]]  # on (edges[i], edges[i + 1]]
        jaccard = [w.sum() / (truth | w).sum() for w in wrong]
        losses.append(float(np.dot(jaccard, np.diff(edges))))
    return float(np.mean(losses)) if losses else 0.0


@pytest.mark.parametrize("shown", [[1, 16, 0, 47], [8, 24, 0, 32]])
def test_weights_by_inverse_root_have_the_mean_one_over_the_pixels(shown: list[int]) -> None:
    """√share / shown, by hand: of 1, 16 and 47 of 64 pixels, and of a class that no pixel has."""
    recipe = recipe_of(loss={"class_weights": "inverse_sqrt"})
    shares, shown_K = np.array([1, 16, 0, 47]) / 64, np.array(shown) / 64
    weights = np.array(class_weights(recipe.loss, shares, shown_K))
    total = 1 + 4 + 47**0.5
    by_hand = [64 / shown[0] / total, 4 * 64 / shown[1] / total, 1, 47**0.5 * 64 / shown[3] / total]
    np.testing.assert_allclose(weights, by_hand, rtol=1e-12)
    assert (weights * shown_K).sum() == pytest.approx(1, rel=1e-12)


def costs(label: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """−log p_y of each pixel; 0 where ignored."""
    return pixel_loss(label, logits, 0.0, 0.0)


def kept(label: np.ndarray, cost: np.ndarray, share: float, threshold: float = 0.0) -> np.ndarray:
    """Which pixels of an image count, by sorting those of each."""
    result = np.zeros(label.shape, bool)
    for i in range(len(label)):
        places = np.argwhere(label[i] != IGNORE)
        order = sorted(range(len(places)), key=lambda n: -cost[i][tuple(places[n])])
        for n in order[: int(np.ceil(share * len(places) - 1e-9))]:
            result[i][tuple(places[n])] = True
        if threshold:
            result[i] |= (np.exp(-cost[i]) < threshold) & (label[i] != IGNORE)
    return result


def test_hard_pixels_are_the_share_of_each_image() -> None:
    label, logits = made()
    cost = costs(label, logits)
    weight = np.array([*WEIGHTS, *[0.0] * 253])[label]
    for share, threshold in ((0.25, 0.0), (1e-6, 0.0), (0.1, 0.3), (0.999, 0.7)):
        mask = kept(label, cost, share, threshold)
        options = {"ohem": share, "ohem_threshold": threshold}
        images = (cost * weight * mask).sum((1, 2)) / np.maximum(1, mask.sum((1, 2)))
        assert emphasised(label, logits, WEIGHTS, **options) == pytest.approx(images.mean(), rel=1e-12)
        pixels = (cost * weight * mask).sum() / (weight * mask).sum()
        got = emphasised(label, logits, WEIGHTS, normalisation="per_pixel", **options)
        assert got == pytest.approx(pixels, rel=1e-12)


def test_what_is_as_hard_as_the_last_counts_in_part_and_no_share_is_rounded_up() -> None:
    """Six pixels alike and two harder: of a half, four, the two and a third of each of the six."""
    label = np.zeros((1, 2, 4), np.uint8)
    logits = np.zeros((1, 2, 4, 3))
    logits[0, 0, :2, 1] = 3.0
    cost = costs(label, logits)
    expected = (2 * cost[0, 0, 0] + 2 * cost[0, 1, 3]) / 4
    assert emphasised(label, logits, ohem=0.5) == pytest.approx(expected, rel=1e-12)
    turned = emphasised(label[:, ::-1, ::-1], logits[:, ::-1, ::-1], ohem=0.5)
    assert turned == pytest.approx(expected, rel=1e-12)

    # A tenth of 100 pixels is 10, not 11.
    label, logits = np.zeros((1, 10, 10), np.uint8), np.zeros((1, 10, 10, 3), np.float32)
    logits[0, 0, :, 1] = 5.0
    assert emphasised(label, logits, ohem=0.1) == pytest.approx(costs(label, logits)[0, 0, 0], rel=1e-6)


def with_gradient(loss: Any, label: np.ndarray, logits: np.ndarray) -> tuple[float, np.ndarray]:
    """A loss and its gradient for the logits."""
    import tensorflow as tf

    x = tf.Variable(logits)
    with tf.GradientTape() as tape:
        value = loss(tf.constant(label), x)
    return float(value), tape.gradient(value, x).numpy()


def test_easy_pixels_have_no_gradient() -> None:
    label, logits = made(1)
    _, gradient = with_gradient(loss_of(LossConfig(ohem=0.25)), label, logits)
    mask = kept(label, costs(label, logits), 0.25)
    assert np.abs(gradient[~mask]).max() == 0
    assert np.abs(gradient[mask]).min() > 0


def test_adjusted_logits_are_those_of_the_priors() -> None:
    label, logits = made(2)
    for tau in (1.0, 0.3):
        there = logits + tau * np.log(SHARES)
        assert emphasised(label, logits, logit_adjustment=tau) == pytest.approx(
            emphasised(label, there), rel=1e-12
        )
    both = emphasised(label, logits, logit_adjustment=1.0, ohem=0.25)  # hard is what is hard after it
    assert both == pytest.approx(emphasised(label, logits + np.log(SHARES), ohem=0.25), rel=1e-12)
    dice = emphasised(label, logits, cross_entropy=0, dice=1)  # regions see the logits as they are
    with_dice = emphasised(label, logits, dice=1, logit_adjustment=1.0)
    assert with_dice - emphasised(label, logits, logit_adjustment=1.0) == pytest.approx(dice, rel=1e-9)


def test_adjustment_needs_the_shares_and_leaves_a_class_without_pixels() -> None:
    assert log_priors((0.5, 0.5, 0.0), 2.0) == pytest.approx((2 * np.log(0.5), 2 * np.log(0.5), 0.0))
    with refused(ConfigError, where="loss.logit_adjustment", got="none"):
        segmentation_loss(LossConfig(logit_adjustment=1), None, 4)


def border_weights(label: np.ndarray, boundary: float, width: float) -> np.ndarray:
    """By the distance to each pixel that touches another class, looked for one by one."""
    images, height, this_width = label.shape
    weight = np.ones(label.shape)
    for i in range(images):
        touching = []
        for r in range(height):
            for c in range(this_width):
                around = label[i, max(0, r - 1) : r + 2, max(0, c - 1) : c + 2]
                if label[i, r, c] != IGNORE and set(np.unique(around)) - {IGNORE, label[i, r, c]}:
                    touching.append((r, c))
        for r in range(height):
            for c in range(this_width):
                d = min((max(abs(r - a), abs(c - b)) for a, b in touching), default=10**6)
                if d <= np.ceil(3 * width):
                    weight[i, r, c] += boundary * np.exp(-(d**2) / (2 * width**2))
    return weight


@pytest.mark.parametrize("width", [0.5, 1.3])
def test_borders_weigh_by_their_distance(width: float) -> None:
    label, logits = made(3)
    label[1] = 1  # no border: all pixels count 1
    label[1, 2:5, 2:9] = IGNORE  # whose outline is none
    weight = border_weights(label, 10.0, width)
    assert (weight[1] == 1).all()
    assert len(np.unique(weight)) > 3
    valid = label != IGNORE
    images = (costs(label, logits) * weight).sum((1, 2)) / np.maximum(1, valid.sum((1, 2)))
    options = {"boundary": 10, "boundary_width": width}
    assert emphasised(label, logits, **options) == pytest.approx(images.mean(), rel=1e-6)
    pixels = (costs(label, logits) * weight).sum() / (weight * valid).sum()
    assert emphasised(label, logits, normalisation="per_pixel", **options) == pytest.approx(pixels, rel=1e-6)


EMPHASES = {"ohem": 0.2, "ohem_threshold": 0.5, "logit_adjustment": 1, "boundary": 3, "boundary_width": 1}
ALL = {**EMPHASES, "focal": 1}
REGIONS = {"dice": 1, "jaccard": 1, "tversky": 1, "lovasz": 1, "focal": 1, "focal_gamma": 0.5}


@pytest.mark.parametrize("case", ["no image", "nothing valid", "certain and right", "certain and wrong"])
@pytest.mark.parametrize("normalisation", ["per_image", "per_pixel"])
@pytest.mark.parametrize("terms", [ALL, REGIONS], ids=["of pixels", "of regions"])
def test_edges_are_finite(terms: Any, normalisation: Any, case: str) -> None:
    label = np.full((0 if case == "no image" else 2, 4, 4), 0, np.uint8)
    if case == "nothing valid":
        label[:] = IGNORE
    sure = 1e4 if case == "certain and right" else -1e4
    logits = np.tile(np.array([sure, 0, 0], np.float32), (*label.shape, 1))
    loss = loss_of(LossConfig(**terms, normalisation=normalisation))
    value, gradient = with_gradient(loss, label, logits)
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    if case in ("no image", "nothing valid"):
        assert np.abs(gradient).sum() == 0
        assert value == 0 or terms is REGIONS


@pytest.mark.parametrize("normalisation", ["per_image", "per_pixel"])
def test_micro_batches_add_up(tensorflow: ModuleType, normalisation: Any) -> None:
    """Parts of a batch, with the weight of the whole known beforehand where that is needed."""
    tf = tensorflow
    label, logits = made(4)
    options = {key: value for key, value in ALL.items() if normalisation == "per_image" or "ohem" not in key}
    share = loss_of(LossConfig(**options, normalisation=normalisation), WEIGHTS, len(label))
    whole = float(share(tf.constant(label), tf.constant(logits)))
    known = (share.valid_weight(tf.constant(label), tf.float64),) if share.needs_valid_weight else ()
    parts = [
        float(share(tf.constant(label[i : i + 2]), tf.constant(logits[i : i + 2]), *known)) for i in (0, 2)
    ]
    assert sum(parts) == pytest.approx(whole, rel=1e-12)
