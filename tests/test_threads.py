"""Batches come in order, an error of the thread is seen, and nothing keeps running after the end."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest

from segmenter.base.terminal import listening
from segmenter.base.threads import Prefetch, told_while
from tests.helpers.time_limits import wait_until


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
    assert wait_until(lambda: running() == 0)


def test_an_error_comes_after_what_was_made_before_it() -> None:
    def made() -> Iterator[int]:
        yield 1
        raise ValueError("a file is gone")

    feeder = fed(made())
    batches = iter(feeder)
    assert next(batches) == 1
    with closing(feeder), pytest.raises(ValueError, match="file"):
        next(batches)
    assert wait_until(lambda: running() == 0)


def test_one_that_is_left_early_stops_and_has_taken_few() -> None:
    taken = itertools.count()
    with closing(fed(next(taken) for _ in itertools.count())) as feeder:
        assert next(iter(feeder)) == 0
    assert wait_until(lambda: running() == 0)
    assert next(taken) <= 4


def test_waiting_is_counted_where_batches_are_late_and_not_where_they_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, asked, there = [0.0], threading.Event(), threading.Event()

    def clock() -> float:
        seconds = now[0]
        asked.set()
        return seconds

    monkeypatch.setattr("segmenter.base.threads.time.perf_counter", clock)

    def slow() -> Iterator[int]:
        asked.wait()
        now[0] += 7
        yield 1
        yield 2
        there.set()

    feeder = fed(slow())
    with closing(feeder):
        batches = iter(feeder)
        assert next(batches) == 1
        assert feeder.waited == 7
        there.wait()
        now[0] += 100  # as the devices would compute
        assert next(batches) == 2
        assert feeder.waited == 7


def test_an_error_and_an_early_end_do_not_hang_on_a_full_queue() -> None:
    def made() -> Iterator[int]:
        yield from range(2)
        raise ValueError("late")

    copied: list[int] = []
    feeder = fed(made(), copied.append)
    assert wait_until(lambda: len(copied) == 2)  # one batch lies in the queue, the next waits for a place
    feeder.close()
    assert wait_until(lambda: running() == 0)


def test_who_gives_up_need_not_wait_for_a_file_that_does_not_come() -> None:
    never, stop = threading.Event(), []

    def hung() -> Iterator[int]:
        yield 1
        never.wait()

    feeder = fed(hung(), given_up=lambda: bool(stop))
    taken = []
    for batch in feeder:
        taken.append(batch)
        stop.append(True)
    assert taken == [1]
    assert not never.is_set()
    never.set()
    feeder.close()


def test_what_takes_long_is_told_until_it_ends() -> None:
    with listening() as said, told_while("compiling", every=0.001):
        wait_until(lambda: len(said.lines) > 2)
    assert all(line.startswith("compiling: ") for line in said.lines)
    assert not any(thread.name == "told while" for thread in threading.enumerate())


def test_what_is_short_is_not_told() -> None:
    with listening() as said, told_while("compiling"):
        pass
    assert said.lines == []
