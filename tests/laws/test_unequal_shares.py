"""Law 2, equivalence, over unequal shares: replicas with unlike parts compute what one device does."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.helpers.naive import SEEN
from tests.helpers.small_training import NO_NORM, PER_PIXEL, SGD, Training, central_of, difference
from tests.helpers.whole_step import CLIPPED, LOSS, MODEL, check, kinds, trained


@pytest.fixture(scope="module")
def one(tensorflow: ModuleType) -> Training:
    return trained(1)


def test_unequal_shares_compute_what_one_device_does(one: Training) -> None:
    many = trained(2, (5, 3))
    check(many, one)
    start = kinds(Training(MODEL, LOSS, training=CLIPPED))
    assert difference(kinds(many)["weights"], start["weights"]) > SEEN  # it trained
    assert {"weights", "statistics", "averages", "momentum", "velocity"} == set(kinds(many))


def test_so_do_devices_that_share_their_variables_on_the_host(one: Training) -> None:
    check(trained(2, (3, 5), strategy=central_of(2)), one)


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(3, 2, 1, 2), (5, 0, 1, 2), (0, 1, 7, 0)])
def test_shares_of_four_devices_some_without_tiles(one: Training, shares: tuple[int, ...]) -> None:
    check(trained(4, shares), one)


@pytest.mark.slow
def test_a_device_without_tiles_takes_part_on_the_host_too(one: Training) -> None:
    check(trained(3, (5, 0, 3), strategy=central_of(3)), one)


@pytest.mark.slow
@pytest.mark.parametrize("central", [False, True])
def test_micro_batches_of_unequal_shares_are_the_step(tensorflow: ModuleType, central: bool) -> None:
    """One device has none; what the loss divides by is the weight of all pixels of the step."""
    same: dict[str, Any] = {"model": NO_NORM, "loss": PER_PIXEL, "training": SGD, "average": 0.0}
    strategy = central_of(3) if central else None
    check(trained(3, (6, 2, 0), accumulate=2, strategy=strategy, **same), trained(1, **same))
