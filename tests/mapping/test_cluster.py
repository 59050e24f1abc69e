"""Maps on a cluster: the bytes of one process, whatever happens to the workers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.child_predict import COMMAND, files, scene
from tests.helpers.cluster_worker import KILL, PRELOAD, running_with
from tests.helpers.clusters import threads_cluster

Make = Callable[..., Path]
OPTIONS = ("--window-size", "64", "--batch", "2", "--confidence", "--probabilities", "float16", "--quicklook")


@pytest.fixture
def small_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strips of one band of windows, of rasters that are as small."""
    monkeypatch.setattr("segmenter.mapping.strips.PIXELS", 4000)
    monkeypatch.setattr("segmenter.mapping.state.LEAST_PIXELS", 1000)
    monkeypatch.setattr("segmenter.mapping.strips._BLENDED_BANDS", 2)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize(
    "options", [(), ("--mode", "smooth"), ("--gsd", "0.35"), ("--part", "11", "7", "300", "90")], ids=str
)
def test_maps_of_a_cluster_are_those_of_one_process(
    tmp_path: Path,
    make_geotiff: Make,
    call: Callable[..., int],
    small_strips: None,
    workers: int,
    options: tuple[str, ...],
) -> None:
    sources = [scene(make_geotiff, "in/a.tif", 640, 210), scene(make_geotiff, "in/b.tif", 330, 101)]
    if "--part" not in options:
        sources += [scene(make_geotiff, f"in/{i}.tif", 41, 37, i) for i in range(5)]
    arguments = ("in", *OPTIONS, *options)
    assert call(*arguments, output="one") == 0
    with threads_cluster(workers) as cluster:
        assert call(*arguments, "--scheduler", cluster.scheduler_address) == 0
    assert len(files(tmp_path / "one")) == 4 * len(sources)
    assert files(tmp_path / "maps") == files(tmp_path / "one")
    names = {path.name for path in (tmp_path / "maps").iterdir() if path.name.startswith(".")}
    assert names == {".journal.jsonl"}


def test_killed_workers_cost_their_strips_only(tmp_path: Path, make_geotiff: Make) -> None:
    """Real processes: both are killed in the middle, the call goes on, and nothing of it stays."""
    source = scene(make_geotiff, "in/a.tif", 2100, 1050)
    arguments = (str(source), "--window-size", "256", "--batch", "2")
    (tmp_path / "victims").mkdir()
    for victim in "ab":
        (tmp_path / "victims" / victim).touch()
    environment = {**PRELOAD, KILL: str(tmp_path / "victims"), "TMPDIR": str(tmp_path)}

    def run(output: str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "0", "1000", *arguments, *more, "--output", str(tmp_path / output)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    done = run("maps", "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert not list((tmp_path / "victims").iterdir())
    gone = [line for line in done.stderr.splitlines() if "is gone; what it had is done by others" in line]
    assert len(gone) == 2, done.stderr
    assert run("one").returncode == 0
    assert files(tmp_path / "maps") == files(tmp_path / "one")
    assert [path.name for path in tmp_path.glob("segmenter-*")] == [], "scratch of workers"
    assert running_with(str(tmp_path)) == []
