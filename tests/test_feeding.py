"""Batches come in order, an error of the thread is seen, and nothing keeps running after the end."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from segmenter.feeding import Feeder


def running() -> int:
    return sum(thread.name == "feeder" for thread in threading.enumerate())


def test_batches_come_in_order_each_put_on_the_devices_once() -> None:
    with closing(Feeder(range(20), lambda batch: batch * 10)) as feeder:
        assert list(feeder) == [10 * i for i in range(20)]
    assert running() == 0


def test_an_error_comes_after_what_was_made_before_it() -> None:
    def made() -> Iterator[int]:
        yield 1
        raise ValueError("a file is gone")

    feeder = Feeder(made(), lambda batch: batch)
    batches = iter(feeder)
    assert next(batches) == 1
    with closing(feeder), pytest.raises(ValueError, match="a file is gone"):
        next(batches)
    assert running() == 0


def test_one_that_is_left_early_stops_and_has_taken_few() -> None:
    taken = itertools.count()
    with closing(Feeder((next(taken) for _ in itertools.count()), lambda batch: batch)) as feeder:
        assert next(iter(feeder)) == 0
    assert running() == 0
    assert next(taken) <= 4


def test_waiting_is_counted_where_batches_are_late_and_not_where_they_are_there() -> None:
    late = threading.Event()

    def slow() -> Iterator[int]:
        late.wait(0.3)
        yield 1

    with closing(Feeder(slow(), lambda batch: batch)) as feeder:
        assert list(feeder) == [1]
        assert feeder.waited >= 0.2
