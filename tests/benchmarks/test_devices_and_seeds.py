"""What the comparison of devices and seeds makes of its scores."""

from __future__ import annotations

from benchmarks.devices_and_seeds import spreads, table

SCORES = {(0, 1): 70.0, (0, 4): 72.5, (1, 1): 66.0, (1, 4): 65.0, (2, 1): 69.0, (2, 4): 68.0}


def test_spreads_between_seeds_and_between_devices() -> None:
    assert spreads(SCORES) == {
        "lowest": 65.0, "highest": 72.5, "between_seeds": 7.5, "between_devices": 2.5,
        "between_means_of_devices": 0.17,
        "runs_differ_no_more_than_seeds": True, "means_differ_no_more_than_seeds": True,
    }  # fmt: skip


def test_the_strict_comparison_is_of_single_runs_the_other_of_means() -> None:
    worse = {key: value - 10 * (key[1] == 4) for key, value in SCORES.items()}
    assert _comparisons(worse) == (False, False)
    # Seeds 3 and 3.5 points apart, seed 0 on one and on four devices 4: the means hardly differ.
    crossed = {(0, 1): 70.0, (0, 4): 66.0, (1, 1): 67.0, (1, 4): 69.5, (2, 1): 68.5, (2, 4): 69.0}
    assert _comparisons(crossed) == (False, True)


def _comparisons(scores: dict[tuple[int, int], float]) -> tuple[bool, bool]:
    found = spreads(scores)
    return bool(found["runs_differ_no_more_than_seeds"]), bool(found["means_differ_no_more_than_seeds"])


def test_table_has_a_row_for_each_seed() -> None:
    head, *rows = table(SCORES).splitlines()
    assert head.split() == ["seed", "1", "devices", "4", "devices"]
    assert [row.split() for row in rows][1] == ["1", "66.00", "65.00"]
