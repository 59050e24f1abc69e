"""How many workers and batches: by cores, GPUs and memory."""

from __future__ import annotations

import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.reading import recipe_from
from segmenter.tiles.feeding import sizes

GIB = 2**30


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 cores, 64 GiB free."""
    monkeypatch.setattr(sizes, "usable_cores", lambda: 16)
    monkeypatch.setattr(sizes, "free_memory", lambda: 64 * GIB)


def test_auto_leaves_cores_for_the_cards_and_all_of_them_for_cpu_devices(machine: None) -> None:
    assert [sizes.workers_for("auto", gpus) for gpus in (0, 1, 4, 12)] == [0, 15, 12, 8]
    assert [sizes.workers_for(asked, 4) for asked in (0, 1, 40)] == [0, 1, 40]


@pytest.mark.parametrize(("cores", "gpus", "workers"), [(1, 1, 1), (2, 1, 1), (4, 4, 2), (128, 8, 16)])
def test_auto_is_at_least_one_worker_and_no_more_than_are_useful(
    cores: int, gpus: int, workers: int, machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "usable_cores", lambda: cores)
    assert sizes.workers_for("auto", gpus) == workers


def test_little_memory_takes_fewer_workers_and_batches_and_says_so(
    machine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [sizes.ahead_of(workers, 20 * 2**20) for workers in (1, 4, 16)] == [2, 8, 24]
    assert sizes.ahead_of(16, 4 * GIB) == 4
    assert sizes.ahead_of(16, 400 * GIB) == 1
    assert (
        sizes.describe(16, 24, 2**20) == "input: 16 worker processes on 16 cores, 24 batches of 1.0 MiB ahead"
    )
    assert sizes.describe(16, 4, 4 * GIB).endswith(": a quarter of the 64.0 GiB of free memory holds no more")
    assert sizes.describe(0, 4, GIB) == ""
    monkeypatch.setattr(sizes, "free_memory", lambda: 4 * GIB)
    assert sizes.workers_for("auto", 4) == 3


@pytest.mark.parametrize("given", [-1, 257, "some", 1.5])
def test_the_setting_is_refused_where_it_is_no_number_of_processes(given: object) -> None:
    data = {"name": "t", "dataset": {"kind": "potsdam", "root": "x"}, "training": {"input_workers": given}}
    with pytest.raises(
        ConfigError, match=r"training\.input_workers: expected auto, or a number from 0 to 256"
    ):
        recipe_from(data, "test")
