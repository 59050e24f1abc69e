"""The simulation of large clusters against what can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.cluster_simulation import Cluster, case, simulate

FREE = Cluster(workers=4, pixels=10**6, storage_rate=1e15, link_rate=1e15, write_seconds=0, deal_seconds=0)


def test_without_other_costs_workers_share_the_work() -> None:
    found = simulate(400, FREE)
    assert found.seconds == pytest.approx(100 * FREE.pixels / FREE.gpu_rate, rel=1e-6)
    assert (found.gpus, found.full) == (pytest.approx(1), "gpus")


@pytest.mark.parametrize(
    ("part", "cluster", "seconds"),
    [
        ("caller", replace(FREE, write_seconds=1e-6), 1.0),
        ("link", replace(FREE, link_rate=1e5), 0.6),
        ("storage", replace(FREE, storage_rate=3.6e6), 1.0),
        ("dealing", replace(FREE, deal_seconds=2.0), 2.0),
    ],
)
def test_what_is_one_for_all_sets_the_pace_when_it_is_slower(
    part: str, cluster: Cluster, seconds: float
) -> None:
    found = simulate(300, cluster)
    assert found.full == part
    assert found.seconds == pytest.approx(300 * seconds, rel=0.02)


def test_results_that_wait_are_bounded_by_what_is_dealt() -> None:
    found = simulate(2000, replace(FREE, write_seconds=1e-5))
    assert 0 < found.waiting_pieces <= FREE.ahead * FREE.workers


def test_several_callers_write_side_by_side() -> None:
    slow = replace(Cluster(), write_seconds=1e-6)
    one, four = (case("scenes", replace(slow, callers=callers)) for callers in (1, 4))
    assert one["full_first"] == four["full_first"] == "caller"
    assert float(str(one["hours"])) == pytest.approx(4 * float(str(four["hours"])), rel=0.05)
