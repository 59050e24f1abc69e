"""Steps under way: bounded, taken as they end, with what failed raised where they are taken."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from segmenter.extras.parameter_servers.trainer import InFlight
from tests.helpers.time_limits import wait_until


class Result:
    """What a coordinator gives for a step; comes when it is told to."""

    def __init__(self, value: Any) -> None:
        self._value, self.come = value, threading.Event()

    def fetch(self) -> Any:
        self.come.wait()
        if isinstance(self._value, Exception):
            raise self._value
        return self._value


class Coordinator:
    def __init__(self) -> None:
        self.given: list[Result] = []

    def schedule(self, step: Any, args: tuple[Any, ...]) -> Result:
        self.given.append(Result(step(*args)))
        return self.given[-1]


def test_a_slow_step_does_not_keep_the_others_from_being_taken() -> None:
    coordinator = Coordinator()
    flight = InFlight(coordinator, lambda a, b: (a, b), most=2)
    flight.give(7, ("a", 1))
    flight.give(8, ("b", 2))
    assert flight.full
    assert flight.done(0.0) is None
    coordinator.given[1].come.set()
    assert wait_until(lambda: flight.done(0.0) == ("b", 2))
    assert (flight.full, flight.under_way) == (False, [7])
    flight.give(9, ("c", 3))
    coordinator.given[2].come.set()
    assert wait_until(lambda: flight.done(0.0) == ("c", 3))
    coordinator.given[0].come.set()
    assert wait_until(lambda: flight.done(0.0) == ("a", 1))
    assert flight.under_way == []


def test_what_a_step_failed_with_is_raised_where_it_is_taken() -> None:
    coordinator = Coordinator()
    flight = InFlight(coordinator, lambda: ValueError("of the step"), most=1)
    flight.give(0, ())
    coordinator.given[0].come.set()
    with pytest.raises(ValueError, match="step"):
        wait_until(lambda: flight.done(0.1))
