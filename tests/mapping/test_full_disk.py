"""A disk that is really full: what is kept against a kill gives way to the map, and nothing else is left."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import RasterError
from segmenter.raster import RasterWriter
from tests.helpers.child_predict import COMMAND, ENVIRONMENT, files, without_styles
from tests.helpers.maps import Call, Make, at_batch

OPTIONS = ("--probabilities", "uint8", "--window-size", "128", "--batch", "1")
RAW, MAPS = 8 * 1500 * 300, 1_100_000
"""Bytes of what is kept of the raster, a class and 7 probabilities a pixel, and of its maps, about."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`disk(bytes)`: a small file system of its own; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def make(size: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
        return folder

    yield make
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


@pytest.fixture
def source(make_geotiff: Make) -> Path:
    image = np.random.default_rng(0).integers(0, 255, (1500, 300, 3), np.uint8)
    return make_geotiff("in/a.tif", image)


@pytest.fixture
def stopped_at(call: Call, monkeypatch: Any) -> Callable[..., None]:
    """`stopped_at(9, source, output)`: predict.py, stopped when so many batches are computed."""
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)

    def stop(at: int, source: Path, output: Path) -> None:
        stopped = at_batch(at, KeyboardInterrupt())
        assert call(source, *OPTIONS, predictor=stopped, output=str(output)) == 130
        assert (output / ".a.tif.partial").stat().st_size > 100_000

    return stop


def fill(folder: Path, free: int) -> None:
    rest = shutil.disk_usage(folder).free - free
    assert rest > 0
    (folder / "hog").write_bytes(b"\1" * rest)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("size", [MAPS + (1 << 19), RAW - (1 << 18), RAW + MAPS // 2, RAW + MAPS + (1 << 16)])
def test_maps_that_fit_are_made_whatever_is_kept_beside_them(
    disk: Callable[[int], Path], source: Path, call: Call, capsys: Any, monkeypatch: Any, size: int
) -> None:
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    maps = disk(size) / "maps"
    assert call(source, *OPTIONS, output=str(maps)) == 0
    assert "maps/a.tif: cannot" in capsys.readouterr().err
    assert without_styles(files(maps)) == ["a.probabilities.tif", "a.tif"]
    assert hidden(maps) == [".journal.jsonl"]


def test_a_stopped_map_that_finds_a_full_disk_takes_what_was_kept_of_it(
    disk: Callable[[int], Path], source: Path, stopped_at: Callable[..., None], call: Call, capsys: Any
) -> None:
    folder = disk(20_000_000)
    stopped_at(30, source, folder / "maps")
    fill(folder, 100_000)
    assert call(source, *OPTIONS, output=str(folder / "maps")) == 0
    told = capsys.readouterr().err  # by which of the two, depends on when GDAL writes its blocks
    ways = ("found no space beside what was kept of it, and was begun anew", "cannot be resumed from within")
    assert any(f"a.tif: {way}" in told for way in ways)
    assert call(source, *OPTIONS, output=str(Path("whole"))) == 0
    assert files(folder / "maps") == files("whole")
    assert hidden(folder / "maps") == [".journal.jsonl"]


def test_a_map_that_does_not_fit_leaves_nothing_half_written(
    disk: Callable[[int], Path], source: Path, stopped_at: Callable[..., None], call: Call, capsys: Any
) -> None:
    folder = disk(20_000_000)
    stopped_at(9, source, folder / "maps")
    fill(folder, 20_000)
    capsys.readouterr()
    assert call(source, *OPTIONS, output=str(folder / "maps")) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert "written" in errors[0]
    assert hidden(folder / "maps") == [".journal.jsonl"]
    (folder / "hog").unlink()
    assert call(source, *OPTIONS, output=str(folder / "maps")) == 0


def test_what_was_kept_and_cannot_be_written_leaves_no_temporary_files(
    source: Path, stopped_at: Callable[..., None], call: Call, monkeypatch: Any
) -> None:
    stopped_at(9, source, Path("maps"))

    def denied(*_: Any) -> None:
        try:
            raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise RasterError(f"a.tif: could not be written: {error.strerror}") from None

    with monkeypatch.context() as patch:
        patch.setattr(RasterWriter, "write", denied)
        assert call(source, *OPTIONS) == 1
    assert sorted(hidden(Path("maps"))) == [".a.tif.partial", ".journal.jsonl"]
    assert call(source, *OPTIONS) == 0


def test_what_nobody_reads_stops_no_maps(tmp_path: Path, make_geotiff: Make) -> None:
    """As with `| head`: failed inputs are listed, scores and pictures are made."""
    make_geotiff("in/a.tif", np.random.default_rng(0).integers(0, 255, (70, 60, 3), np.uint8))
    make_geotiff("truth/a.tif", np.ones((70, 60), np.uint8))
    (tmp_path / "in" / "b.tif").write_text("no image")
    (tmp_path / "truth" / "b.tif").write_text("no image")
    options = ["--labels", str(tmp_path / "truth" / "{stem}.tif"), "--pictures"]
    command = [*COMMAND, "0", "1000", str(tmp_path / "in"), "--output", str(tmp_path / "maps"), *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
        )
    assert done.returncode == 1
    assert "b.tif: expected a GeoTIFF" in done.stderr
    assert done.stderr.count("\n") == 1
    made = without_styles(files(tmp_path / "maps"))
    assert made == ["a.tif", "a.view.png", "confusion.png", "scores.json"]
