"""Stopped and resumed at will: the same call goes on, and what comes out is what would have come out."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from child_predict import COMMAND, ENVIRONMENT
from exact_network import fake_run, run_predict

from segmenter.labels import ClassMap

Make = Callable[..., Path]
LARGE = "1000"
"""Pixels from which rasters are spooled in these tests."""


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> Callable[..., int]:
    """`call(input..., "--option", checksum=lambda: "other")` in the test's folder; maps go to `maps`."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any, **changes: Any) -> int:
        run = fake_run(make_classes(7), **changes)
        return run_predict(monkeypatch, run, *arguments, "--output", "maps")

    return call


def scene(make_geotiff: Make, name: str, height: int, width: int, seed: int = 0) -> Path:
    """A scene with a hole, in blocks that no window fits."""
    pixels = np.random.default_rng(seed).integers(1, 255, (height, width, 3), np.uint8)
    pixels[height // 3 : height // 2, width // 4 :] = 0
    return make_geotiff(name, pixels, nodata=0, tiled=True, blockxsize=80, blockysize=48)


def files(folder: Path) -> dict[str, bytes]:
    """What a user sees of a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def started(folder: Path, *arguments: Any, seconds: float = 0.01) -> subprocess.Popen[str]:
    command = [*COMMAND, str(seconds), LARGE, *map(str, arguments), "--output", str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def finished(folder: Path, *arguments: Any) -> list[str]:
    """Run it to the end; what it printed."""
    process = started(folder, *arguments, seconds=0)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines()


def killed(folder: Path, *arguments: Any, lines: int, pause: float = 0) -> int:
    """Run it and kill it after so many lines and seconds; gives the batches that it computed."""
    process = started(folder, *arguments)
    assert process.stdout is not None
    seen = [line for _, line in zip(range(lines), process.stdout, strict=False)]
    time.sleep(pause)
    process.kill()
    seen += process.communicate(timeout=20)[0].splitlines(keepends=True)
    return seen.count("batch\n")


# -------------------------------------------------------------------------------------- kill -9

OPTIONS = ("--confidence", "--probabilities", "float16", "--quicklook", "--tile", "64", "--batch", "2")


def kill_at_random(tmp_path: Path, make_geotiff: Make, kills: int, seed: int) -> None:
    """After any number of kills at any moments the files are those of an undisturbed run, byte for byte."""
    rng = np.random.default_rng(seed)
    sources = [scene(make_geotiff, "in/a.tif", 640, 210), scene(make_geotiff, "in/b.tif", 30, 30)]
    sources += [scene(make_geotiff, f"in/{i}.tif", 101, 67, i) for i in range(3)]
    undisturbed = finished(tmp_path / "undisturbed", *sources, *OPTIONS)
    batches = undisturbed.count("batch")
    expected = files(tmp_path / "undisturbed")
    assert len(expected) == 4 * len(sources)
    computed = 0
    for _ in range(kills):
        lines = int(rng.integers(1, max(2, len(undisturbed) - computed)))
        computed += killed(tmp_path / "maps", *sources, *OPTIONS, lines=lines, pause=rng.uniform(0, 0.02))
        seen = files(tmp_path / "maps")
        assert {name: seen[name] for name in seen} == {name: expected[name] for name in seen}, "half-written"
    last = finished(tmp_path / "maps", *sources, *OPTIONS).count("batch")
    assert files(tmp_path / "maps") == expected
    hidden = [path.name for path in (tmp_path / "maps").iterdir() if path.name.startswith(".")]
    assert hidden == [".journal.jsonl"]
    # Of each kill only the band under way is lost, and what was ahead of it in the queue.
    assert last < batches
    assert computed + last <= batches + kills * 20
    assert finished(tmp_path / "maps", *sources, *OPTIONS) == ["5 of 5 maps are finished and unchanged"]


def test_kill_9_at_random_moments(tmp_path: Path, make_geotiff: Make) -> None:
    kill_at_random(tmp_path, make_geotiff, kills=3, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kill_9_at_many_random_moments(tmp_path: Path, make_geotiff: Make, seed: int) -> None:
    kill_at_random(tmp_path, make_geotiff, kills=5, seed=10 + seed)
