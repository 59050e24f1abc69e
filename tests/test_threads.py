"""Laws of work in threads: order, errors and the same results, however quick the items are."""

import threading
from collections import deque
from collections.abc import Callable

import pytest

from segmenter.base.threads import in_threads


def _quick(number: int) -> int:
    return number * number


def _waiting(number: int) -> int:
    threading.Event().wait(0.001 * (number % 3))
    return number * number


@pytest.mark.parametrize("work", [_quick, _waiting])
@pytest.mark.parametrize("count", [0, 1, 255, 256, 300, 1000])
def test_results_come_once_each_in_the_order_of_their_items(work: Callable[[int], int], count: int) -> None:
    found = list(in_threads(work, range(count), description="numbers", unit="number", progress=False))
    assert found == [number * number for number in range(count)]


@pytest.mark.parametrize("wrong", [3, 70, 140, 250, 299])
def test_the_first_error_ends_it_wherever_it_is(wrong: int) -> None:
    ended, found = list[bool](), list[int]()

    def work(number: int) -> int:
        return 1 // (number - wrong) + number

    results = in_threads(
        work, range(300), description="", unit="", progress=False, at_end=lambda: ended.append(True)
    )
    with pytest.raises(ZeroDivisionError):
        deque(map(found.append, results))
    assert (len(found), ended) == (wrong, [True])
