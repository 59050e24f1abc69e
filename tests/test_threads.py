"""Batches come in order, an error of the thread is seen, and nothing keeps running after the end."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest

from segmenter.threads import Prefetch


def fed(
    batches: Iterable[Any],
    to_devices: Callable[[Any], Any] = lambda batch: batch,
    given_up: Callable[[], bool] = lambda: False,
) -> Prefetch[Any]:
    """As the trainer feeds its devices."""
    return Prefetch((to_devices(b) for b in batches), 1, "feeder", given_up=given_up, patience=10)


def running() -> int:
    return sum(thread.name == "feeder" for thread in threading.enumerate())


def test_batches_come_in_order_each_put_on_the_devices_once() -> None:
    with closing(fed(range(20), lambda batch: batch * 10)) as feeder:
        assert list(feeder) == [10 * i for i in range(20)]
    assert running() == 0


def test_an_error_comes_after_what_was_made_before_it() -> None:
    def made() -> Iterator[int]:
        yield 1
        raise ValueError("a file is gone")

    feeder = fed(made())
    batches = iter(feeder)
    assert next(batches) == 1
    with closing(feeder), pytest.raises(ValueError, match="a file is gone"):
        next(batches)
    assert running() == 0


def test_one_that_is_left_early_stops_and_has_taken_few() -> None:
    taken = itertools.count()
    with closing(fed(next(taken) for _ in itertools.count())) as feeder:
        assert next(iter(feeder)) == 0
    assert running() == 0
    assert next(taken) <= 4


def test_waiting_is_counted_where_batches_are_late_and_not_where_they_are_there() -> None:
    late, there = threading.Event(), threading.Event()

    def slow() -> Iterator[int]:
        late.wait(0.3)
        yield 1
        yield 2
        there.set()

    feeder = fed(slow())
    with closing(feeder):
        batches = iter(feeder)
        assert next(batches) == 1
        waited = feeder.waited
        assert waited >= 0.2
        there.wait(5)
        time.sleep(0.3)  # as the devices would compute
        assert next(batches) == 2
        assert feeder.waited - waited < 0.1


def test_an_error_and_an_early_end_do_not_hang_on_a_full_queue() -> None:
    def made() -> Iterator[int]:
        yield from range(2)
        raise ValueError("late")

    feeder = fed(made())
    time.sleep(0.2)  # one batch lies in the queue, the next waits for a place
    feeder.close()
    assert running() == 0


def test_who_gives_up_need_not_wait_for_a_file_that_does_not_come() -> None:
    never, stop = threading.Event(), []

    def hung() -> Iterator[int]:
        yield 1
        never.wait(5)

    feeder = fed(hung(), given_up=lambda: bool(stop))
    taken = []
    for batch in feeder:
        taken.append(batch)
        stop.append(True)
    assert taken == [1]
    assert not never.is_set()
    never.set()
    feeder.close()
