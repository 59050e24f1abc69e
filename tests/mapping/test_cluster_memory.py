"""The windows of workers that share a machine's memory: those of one process, as far as they fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from segmenter.base.errors import ConfigError
from segmenter.extras.dask.windows import tiling_of_worker
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap
from segmenter.mapping.call import Call
from segmenter.mapping.computing import tiling_for
from segmenter.mapping.request.map_request import MapRequest
from segmenter.model.receptive_field import NetworkGeometry
from tests.helpers.exact_network import fake_run

GB = 10**9


@pytest.fixture
def run(make_classes: Callable[..., ClassMap], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("segmenter.inference.memory.smallest_card", lambda: None)
    return fake_run(make_classes(6), network=NetworkGeometry(16, 94, 650.0))


def jobs(side: int) -> Any:
    return [SimpleNamespace(info=SimpleNamespace(dtype="uint8"), seen=Size(side, side), grid=None)]


def call_of(run: Any, **options: Any) -> Call:
    return Call.of(MapRequest(Path("run"), Path("maps"), ("in",), **options), run)


def test_workers_take_the_same_windows_in_smaller_batches(run: Any, capsys: Any) -> None:
    call = call_of(run, memory=16 * GB)
    one = tiling_for(call, jobs(256))
    shared = tiling_of_worker(call, jobs(256), one, 2 * GB, "--workers 8")
    assert (shared.window, shared.halo, shared.blend) == (one.window, one.halo, one.blend)
    assert 1 <= shared.batch < one.batch
    assert capsys.readouterr().out == ""


def test_windows_that_do_not_fit_are_smaller_and_that_is_said(run: Any, capsys: Any) -> None:
    call = call_of(run, memory=32 * GB)
    one = tiling_for(call, jobs(6000))
    shared = tiling_of_worker(call, jobs(6000), one, 4 * GB, "--workers 8")
    assert shared.window < one.window
    line = f"--workers 8: windows of {shared.window} pixels, one process takes {one.window}; --memory"
    assert capsys.readouterr().out.startswith(line)


def test_blended_windows_that_do_not_fit_are_refused(run: Any) -> None:
    """Their size decides what comes out: smaller ones would give another map."""
    call = call_of(run, memory=16 * GB, mode="smooth")
    one = tiling_for(call, jobs(6000))
    with pytest.raises(ConfigError, match=r"--workers 32: expected 1\.\dGB for each.*take fewer workers"):
        tiling_of_worker(call, jobs(6000), one, GB // 2, "--workers 32")
