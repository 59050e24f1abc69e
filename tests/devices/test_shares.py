"""Shares of a step: whole tiles in proportion, or as early done as can be; each other wish is refused."""

import itertools
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError, DeviceError
from segmenter.config.devices import DistributionConfig
from segmenter.config.reading import recipe_from
from segmenter.devices.setup import Device, memory_limits
from segmenter.devices.strategy import Devices, dealt
from segmenter.extras.unequal_cards.measured import quickest, with_given
from tests.helpers.refusals import refused

THREE = [Device(f"CPU:{i}", "its model", "", "CPU") for i in range(3)]


@pytest.mark.parametrize(("shares", "unit"), [((3, 2, 1, 2), 1), ((1, 1, 1), 3), ((7, 0, 2), 3)])
def test_each_device_gets_its_quota_or_one_more_or_less_and_all_tiles_are_dealt(
    shares: tuple[int, ...], unit: int
) -> None:
    for units in (8, 11, 64, 101):
        counts = dealt(units * unit, shares, unit)
        assert sum(counts) == units * unit
        assert all(count % unit == 0 for count in counts)
        quotas = np.array(shares) * units / sum(shares)
        assert np.all(np.abs(np.array(counts) / unit - quotas) < 1)
        assert all(bool(count) == bool(share) for count, share in zip(counts, shares, strict=True))
    assert dealt(sum(shares) * unit, shares, unit) == tuple(unit * share for share in shares)


def test_a_share_that_would_get_nothing_is_refused_and_zero_is_not() -> None:
    message = (
        r"distribution.shares: expected a tile of a step for every device that has a share, got none for "
        r"device 2 of 8 tiles by \[9, 9, 1\]; raise training.global_batch, or give it 0"
    )
    with pytest.raises(ConfigError, match=message):
        dealt(8, (9, 9, 1))
    assert dealt(8, (9, 9, 0)) == (4, 4, 0)
    with refused(ConfigError, where="distribution.shares", expected="each micro-batch"):
        dealt(8, (3, 3, 2), 4)

    assert dealt(66, (1, 1, 1, 1)) == (17, 17, 16, 16)


@pytest.mark.parametrize("seconds", [(1.0, 1.0, 2.1), (3.0, 1.0, 7.0)])
def test_the_quickest_shares_are_quicker_than_all_others(seconds: tuple[float, ...]) -> None:
    """Against every way to deal nine tiles so that each device has one."""
    counts = quickest(9, seconds)
    assert sum(counts) == 9

    def slowest(tiles: Any) -> float:
        return max(count * each for count, each in zip(tiles, seconds, strict=True))

    ways = itertools.product(range(1, 10), repeat=len(seconds))
    assert slowest(counts) == min(slowest(way) for way in ways if sum(way) == 9)


def test_devices_that_are_alike_get_equal_parts_as_far_as_their_memory_goes() -> None:
    assert quickest(64, (1.0, 1.05, 0.99, 1.02)) == (16, 16, 16, 16)
    assert quickest(64, (1.0, 1.0, 2.0, 2.0)) == (22, 22, 10, 10)
    assert quickest(10, (1.0, 1.01, 1.02)) == (4, 3, 3)

    assert quickest(24, (1.0, 2.0), most=(12, None)) == (12, 12)
    assert quickest(24, (1.0, 2.0), unit=2, most=(5, None)) == (10, 14)
    assert quickest(24, (1.0, 2.0), most=(4, 4)) == quickest(24, (1.0, 2.0))  # nothing fits: who knows

    with refused(ConfigError, where="shares: auto", got="4 tiles"):
        quickest(4, (1.0, 1.0, 2.0), unit=2)


def test_each_replica_gets_its_block_of_the_batch(tensorflow: Any) -> None:
    from datasets.commands.gpu.bench import strategy_of

    devices = Devices(strategy_of(3), tuple(THREE), shares=(3, 0, 1))
    assert devices.dealt(8) == (6, 0, 2)
    assert devices.local_batch(8) == 6
    blocks = devices.distributed((np.arange(16).reshape(2, 8),), axis=1)[0]
    found = devices.strategy.experimental_local_results(blocks)
    assert [block.numpy().tolist() for block in found] == [
        [[0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 12, 13]],
        [[], []],
        [[6, 7], [14, 15]],
    ]
    assert [block.device.rpartition("device:")[2] for block in found] == ["CPU:0", "CPU:1", "CPU:2"]


def test_shares_for_other_devices_or_with_a_guarantee_for_each_are_refused() -> None:
    message = r"distribution.shares: expected 3, one for each device \(CPU:0, CPU:1, CPU:2\), got 2"
    with pytest.raises(DeviceError, match=message):
        with_given(Devices(None, tuple(THREE)), (2, 1))
    assert with_given(Devices(None, tuple(THREE[:2])), (2, 1)).shares == (2, 1)

    recipe = {"name": "r", "dataset": {"kind": "potsdam", "root": "r"}, "distribution": {"shares": "auto"}}
    with refused(ConfigError, where="shares", expected="sampling.per_replica: best_effort or off"):
        recipe_from(recipe | {"sampling": {"per_replica": "guarantee"}}, "r.yaml")


CARDS, TOTALS = ["2080 Ti", "1080 Ti"], {"2080 Ti": 11264 * 2**20}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, [None, None]),
        (4096, [4096, 4096]),
        ("6000 MiB", [6000, 6000]),
        ([4096, 2048], [4096, 2048]),
        (["50 %", 2048], [5632, 2048]),
        (["100%", 64], [11264, 64]),
    ],
    ids=str,
)
def test_a_limit_is_for_all_cards_or_for_each_in_mebibytes_or_percent(
    asked: Any, expected: list[Any]
) -> None:
    config = DistributionConfig(memory_limit=asked, memory_growth=asked is None)
    assert DistributionConfig(**config.model_dump(mode="json")) == config  # as recipe.yaml keeps it
    assert memory_limits(config.memory_limit, CARDS, TOTALS) == expected


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ((64,), {"where": "memory_limit", "got": 1}),
        ("50 %", {"where": "memory_limit: 50 %", "expected": "nvidia-smi"}),
        (12000, {"where": "memory_limit", "got": 12000}),
    ],
)
def test_a_limit_that_the_cards_cannot_have_is_refused(asked: Any, fields: dict[str, object]) -> None:
    with refused(DeviceError, **fields):
        memory_limits(asked, CARDS, TOTALS)
    assert memory_limits(asked, [], TOTALS) == []  # no card, nothing to limit
