"""Fixtures of the tests of maps."""

import functools
from collections.abc import Callable
from typing import Any

import pytest

from tests.helpers import raster_verdict


@pytest.fixture
def verdict(call: Callable[..., int], capfd: Any) -> Callable[..., str | None]:
    """`verdict(path, 3)`: the refusal by a run of three bands, or None for a map that is right."""
    return functools.partial(raster_verdict.verdict, call, capfd)
