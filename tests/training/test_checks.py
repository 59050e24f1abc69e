"""Before the first step: a step that the memory cannot hold, and a batch too large for so few tiles."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices
from segmenter.training import checks
from segmenter.training.checks import check_memory
from segmenter.training.prepare import epoch_plan, few_steps
from tests.helpers.refusals import refused

TILE, GIB = 300 * 2**20, 2**30


def recipe_of(**training: Any) -> Recipe:
    data = {"name": "r", "dataset": {"kind": "potsdam", "root": "r"}, "training": training}
    return recipe_from(data, "r.yaml")


def devices_of(kind: str, count: int, gib: float | None) -> Devices:
    known = None if gib is None else int(gib * GIB)
    cards = ["CPU"] * count if kind == "CPU" else [f"GPU:{i}" for i in range(count)]
    return Devices(None, tuple(Device(f"{kind}:{i}", "", "", c, known) for i, c in enumerate(cards)))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that are free of the machine's memory, to be set."""
    bytes_ = [10**15]
    monkeypatch.setattr(checks, "free_memory", lambda: bytes_[0])
    return bytes_


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_is_proposed_fits(kind: str, count: int, free: list[int]) -> None:
    """The batch, or the number of parts, that a warning names brings none."""
    devices, recipe = (
        devices_of(kind, count, 11 / (count if kind == "GPU" else 1)),
        recipe_of(global_batch=48),
    )
    said = check_memory(recipe, devices, TILE, 10**7)
    assert "48" in said or kind == "GPU"
    lower = int(re.search(r"global_batch to (\d+)", said)[1]) // count * count  # type: ignore[index]
    parts = int(re.search(r"accumulate to (\d+)", said)[1])  # type: ignore[index]
    assert check_memory(recipe_of(global_batch=lower), devices, TILE, 10**7) == ""
    assert check_memory(recipe_of(global_batch=lower + 2 * count), devices, TILE, 10**7) != ""
    assert check_memory(recipe_of(global_batch=48, accumulate=parts), devices, TILE, 10**7) == ""


def test_what_a_machine_cannot_hold_is_refused_and_a_full_one_is_warned_of(free: list[int]) -> None:
    devices, recipe = devices_of("CPU", 1, 16), recipe_of(global_batch=32)
    assert check_memory(recipe, devices, TILE, 0) == ""
    free[0] = 5 * GIB
    assert re.search(
        r"32 tiles .* take about 9.4 GiB .* 5.0 GiB of 16.0 GiB are free",
        said := check_memory(recipe, devices, TILE, 0),
    ), said
    with refused(ConfigError, fault="training.global_batch"):
        check_memory(recipe_of(global_batch=5000), devices, TILE, 0)
    with refused(ConfigError, fault="lower model.width or tiles.size"):
        check_memory(recipe, devices, 10**12, 0)


def test_a_card_is_warned_of_and_one_of_unknown_memory_is_not(free: list[int]) -> None:
    recipe = recipe_of(global_batch=5000)
    assert "GPU:0" in check_memory(recipe, devices_of("GPU", 4, 11), TILE, 0)
    assert check_memory(recipe, devices_of("GPU", 4, None), TILE, 0) == ""


@pytest.mark.parametrize(
    ("tiles", "batch", "warned"), [(44, 64, True), (44, 40, True), (44, 11, False), (9, 9, True)]
)
def test_a_batch_for_few_tiles_says_what_would_do(tiles: int, batch: int, warned: bool) -> None:
    counts_NK = np.full((tiles, 2), 5000, np.uint32)
    recipe = recipe_of(global_batch=batch, epochs=5)
    index: Any = type("Index", (), {"counts_NK": counts_NK, "strata": None})
    first = epoch_plan(recipe, index, ["a", "b"], 0)
    lines = list(few_steps(recipe.training, first, tiles))
    assert len(lines) == warned
    for line in lines:
        assert f"{batch} for {tiles} tiles: {first.steps} step{'s' * (first.steps > 1)} an epoch" in line
        assert f"{first.fillers / first.rows_SB.size:.0%} of each epoch are fillers" in line
        better = int(re.search(r"lower it \((\d+) makes", line)[1])  # type: ignore[index]
        smaller = recipe_of(global_batch=better, epochs=5)
        assert list(few_steps(smaller.training, epoch_plan(smaller, index, ["a", "b"], 0), tiles)) == []
