"""Stopped and resumed at will: the same call goes on, and what comes out is what would have come out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from child_predict import COMMAND, ENVIRONMENT

from segmenter.raster import write_raster

Make = Callable[..., Path]
LARGE = "1000"
"""Pixels from which rasters are spooled in these tests."""


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


@pytest.mark.parametrize("mode", ["exact", "smooth"])
def test_a_large_raster_goes_on_from_its_last_band(tmp_path: Path, make_geotiff: Make, mode: str) -> None:
    source = scene(make_geotiff, "in/a.tif", 700, 50)
    options = ("--tile", "64", "--batch", "1", "--mode", mode, "--probabilities", "uint8")
    out = finished(tmp_path / "undisturbed", source, *options)
    batches = out.count("batch")
    assert killed(tmp_path / "maps", source, *options, lines=batches - 4) < batches
    assert files(tmp_path / "maps") == {}
    assert ".a.tif.spool" in {path.name for path in (tmp_path / "maps").iterdir()}
    assert finished(tmp_path / "maps", source, *options).count("batch") <= 12
    assert files(tmp_path / "maps") == files(tmp_path / "undisturbed")


def test_what_cannot_be_looked_at_is_not_gone_on_with(tmp_path: Path, make_geotiff: Make) -> None:
    """The files behind a VRT may have changed meanwhile: half of its map would be of the old ones."""
    scene(make_geotiff, "in/a.tif", 700, 50)
    bands = "".join(
        f'<VRTRasterBand dataType="Byte" band="{b}"><SimpleSource><SourceFilename relativeToVRT="1">in/a.tif'
        f"</SourceFilename><SourceBand>{b}</SourceBand></SimpleSource></VRTRasterBand>"
        for b in (1, 2, 3)
    )
    source = tmp_path / "v.xml"
    source.write_text(
        f'<VRTDataset rasterXSize="50" rasterYSize="700">{bands}</VRTDataset>', encoding="ascii"
    )
    options = ("--tile", "64", "--batch", "1", "--drivers", "VRT")
    batches = finished(tmp_path / "before", source, *options).count("batch")
    assert killed(tmp_path / "maps", source, *options, lines=batches - 4) < batches
    assert ".v.tif.spool" in {path.name for path in (tmp_path / "maps").iterdir()}
    scene(make_geotiff, "in/a.tif", 700, 50, seed=1)
    finished(tmp_path / "maps", source, *options)
    finished(tmp_path / "after", source, *options)
    assert files(tmp_path / "maps") == files(tmp_path / "after") != files(tmp_path / "before")


def test_a_spool_of_other_options_is_not_taken_up(tmp_path: Path, make_geotiff: Make) -> None:
    source = scene(make_geotiff, "in/a.tif", 300, 50)
    killed(tmp_path / "maps", source, "--tile", "64", "--batch", "1", lines=6)
    finished(tmp_path / "maps", source, "--tile", "64", "--batch", "1", "--nodata", "99")
    with rasterio.open(tmp_path / "maps" / "a.tif") as result, rasterio.open(source) as image:
        assert ((result.read(1) == 99) == (image.read(1) == 0)).all()
        assert result.nodata == 99


KILLED_BETWEEN_NAMES = """
import os, signal, sys
import child_predict
from segmenter.raster import RasterWriter
publish = RasterWriter.publish
def last(self):
    publish(self)
    os.kill(os.getpid(), signal.SIGKILL)
RasterWriter.publish = last
child_predict.main(0, 1000, sys.argv[1:])
"""


def test_outputs_of_one_input_are_complete_or_made_anew(
    tmp_path: Path, make_geotiff: Make, capsys: Any
) -> None:
    """Killed when the first of two files has its new name: both are of the new call in the end."""
    source = scene(make_geotiff, "in/a.tif", 60, 50)
    finished(tmp_path / "maps", source, "--confidence")
    finished(tmp_path / "other", source, "--confidence", "--nodata", "77", "--cog")
    before, wanted = files(tmp_path / "maps"), files(tmp_path / "other")
    arguments = [str(source), "--confidence", "--nodata", "77", "--cog", "--output", str(tmp_path / "maps")]
    command = [*COMMAND[:1], "-c", KILLED_BETWEEN_NAMES, *arguments]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    mixed = files(tmp_path / "maps")
    assert mixed["a.tif"] == wanted["a.tif"] != before["a.tif"]
    assert mixed["a.confidence.tif"] == before["a.confidence.tif"] != wanted["a.confidence.tif"]
    finished(tmp_path / "maps", *arguments[:-2])
    assert files(tmp_path / "maps") == wanted
    assert [p.name for p in (tmp_path / "maps").iterdir() if p.name.startswith(".")] == [".journal.jsonl"]


# ------------------------------------------------------------------------- what is finished is kept


def test_finished_maps_are_kept_and_what_has_changed_is_said(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], capsys: Any
) -> None:
    for name in ("a", "b"):
        scene(make_geotiff, f"in/{name}.tif", 40, 50)
    assert call("in") == 0
    first = {path.name: path.stat().st_ino for path in (tmp_path / "maps").glob("*.tif")}
    lines = (tmp_path / "maps" / ".journal.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert sorted(record["name"] for record in records if "name" in record) == ["a", "b"]

    def again(*arguments: Any, **changes: Any) -> str:
        capsys.readouterr()
        assert call("in", *arguments, **changes) == 0
        return capsys.readouterr().out

    def unloaded(*_: Any, **__: Any) -> Any:
        raise AssertionError("the model is not needed")

    assert again(predictor=unloaded) == "2 of 2 maps are finished and unchanged\n"
    assert {path.name: path.stat().st_ino for path in (tmp_path / "maps").glob("*.tif")} == first
    os.utime(tmp_path / "in" / "a.tif")
    out = again()
    assert "maps/a.tif: made anew: the input has changed\n1 of 2 maps are finished and unchanged\n" in out
    assert "1 map in maps" in out
    assert "maps/a.tif and 1 more: made anew: other options: nodata was 255, is 99" in again("--nodata", 99)
    assert "maps/a.tif and 1 more: made anew: the run has changed" in again(
        "--nodata", 99, checksum=lambda: "trained on"
    )
    data = bytearray((tmp_path / "maps" / "b.tif").read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / "maps" / "b.tif").write_bytes(data)
    changed = {"checksum": lambda: "trained on"}
    assert "maps/b.tif: made anew: b.tif has changed" in again("--nodata", 99, **changed)
    (tmp_path / "maps" / "b.tif").unlink()
    assert "maps/b.tif: made anew: b.tif is gone" in again("--nodata", 99, **changed)
    assert "maps/a.tif and 1 more: made anew: asked for by --redo" in again(
        "--nodata", 99, "--redo", **changed
    )
    assert again("--nodata", 99, **changed) == "2 of 2 maps are finished and unchanged\n"


def test_a_file_more_is_made_and_one_fewer_is_no_reason(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], capsys: Any
) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source) == 0
    assert call(source, "--confidence") == 0
    assert "made anew: other options: confidence was none, is true" in capsys.readouterr().out
    assert call(source) == 0
    assert "1 of 1 maps are finished" in capsys.readouterr().out
    (tmp_path / "maps" / "a.confidence.tif").unlink()
    assert call(source, "--confidence") == 0
    assert (tmp_path / "maps" / "a.confidence.tif").exists()


def test_what_belonged_to_an_older_map_does_not_stay_beside_the_new_one(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], capsys: Any
) -> None:
    """Only what the journal says that we wrote goes, and only where it would be another now."""
    maps = tmp_path / "maps"
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source, "--confidence", "--probabilities", "uint8", "--quicklook") == 0
    (maps / "a.quicklook.png").write_bytes(b"drawn over by someone")
    (maps / "a.notes.tif").write_bytes(b"of someone")
    before = files(maps)
    assert call(source, "--redo") == 0  # the same input: they still belong to it
    assert files(maps) == before
    assert call(source, "--confidence") == 0
    assert "1 of 1 maps are finished" in capsys.readouterr().out
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    assert call(source, "--probabilities", "uint8") == 0
    assert "1 files belonged to older maps and are removed: maps/a.confidence.tif" in capsys.readouterr().out
    assert sorted(files(maps)) == ["a.notes.tif", "a.probabilities.tif", "a.quicklook.png", "a.tif"]
    assert call(source, "--quicklook", "--nodata", 99) == 0
    assert sorted(files(maps)) == ["a.notes.tif", "a.quicklook.png", "a.tif"]
    assert (
        call(source, "--quicklook", "--nodata", 99, "--format", "png") == 0
    )  # the GeoTIFF is right as it is
    assert "a.tif" in files(maps)


def test_what_another_input_wrote_is_not_taken_for_an_older_map(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int]
) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source, "--confidence") == 0
    other = scene(make_geotiff, "in/a.confidence.tif", 30, 20)
    assert call(other) == 0  # as it was asked for, in the place of the older one
    theirs = (tmp_path / "maps" / "a.confidence.tif").read_bytes()
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    assert call(source) == 0
    assert (tmp_path / "maps" / "a.confidence.tif").read_bytes() == theirs


def test_kept_maps_are_scored_like_new_ones(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int]
) -> None:
    for name in ("a", "b"):
        scene(make_geotiff, f"in/{name}.tif", 700, 50)
        truth = np.random.default_rng(3).integers(0, 7, (700, 50), np.uint8)
        write_raster(tmp_path / "truth" / f"{name}.tif", truth)
    options = ("--labels", "truth/{stem}.tif", "--window", 5, 3, 600, 40, "--nodata", 88)
    assert call("in", *options) == 0
    scores = (tmp_path / "maps" / "scores.json").read_bytes()
    (tmp_path / "maps" / "scores.json").unlink()
    (tmp_path / "maps" / "b.tif").unlink()
    assert call("in", *options) == 0
    assert json.loads((tmp_path / "maps" / "scores.json").read_bytes())["pixels"] > 0
    new, old = json.loads((tmp_path / "maps" / "scores.json").read_bytes()), json.loads(scores)
    assert {**new, "protocol": None} == {**old, "protocol": None}
    assert sorted(new["protocol"]["scenes"]) == old["protocol"]["scenes"]


def test_a_damaged_journal_costs_its_maps_only_time(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], capsys: Any
) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source) == 0
    before = files(tmp_path / "maps")
    journal = tmp_path / "maps" / ".journal.jsonl"
    journal.write_bytes(b"{\n" + journal.read_bytes()[:-20])
    capsys.readouterr()
    assert call(source) == 0
    assert "maps/.journal.jsonl: 1 damaged lines are left out of account" in capsys.readouterr().out
    assert files(tmp_path / "maps") == before
    assert call(source) == 0
    assert "1 of 1 maps are finished" in capsys.readouterr().out


# --------------------------------------------------------------------------------- two processes


def test_of_two_processes_one_writes_and_the_other_says_so(tmp_path: Path, make_geotiff: Make) -> None:
    source = scene(make_geotiff, "in/a.tif", 300, 50)
    first = started(tmp_path / "maps", source, "--tile", "64", "--batch", "1", seconds=1000)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "batch\n"
        second = started(tmp_path / "maps", source, "--tile", "64", "--batch", "1")
        out, err = second.communicate(timeout=60)
        assert (second.returncode, out) == (1, "")
        assert err == f"error: {tmp_path}/maps/a.tif: is being written by another process; left to that one\n"
    finally:
        first.kill()
        first.communicate()
    finished(tmp_path / "maps", source, "--tile", "64", "--batch", "1")


def test_what_another_process_finished_meanwhile_is_not_made_twice(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    sources = [scene(make_geotiff, f"in/{name}.tif", 60, 50) for name in "ab"]

    def meanwhile(*_: Any, **__: Any) -> Any:
        """Loading the model takes so long that the other one is done."""
        finished(tmp_path / "maps", *sources)
        return None

    assert call(*sources, predictor=meanwhile) == 0
    assert "map" not in capsys.readouterr().out


# ------------------------------------------------------------------------------------ the windows


def test_windows_are_chosen_once(
    tmp_path: Path,
    make_geotiff: Make,
    call: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    """On a machine with less memory the same call takes the same windows, which in smooth mode are seen."""
    import segmenter.maps.compute_options

    chosen: list[str] = []
    plan = segmenter.maps.compute_options.tiling_for

    def tiling_for(args: Any, *rest: Any) -> Any:
        chosen.append(args.mode)
        return plan(args, *rest)

    monkeypatch.setattr("segmenter.maps.compute_options.tiling_for", tiling_for)
    source, other = (scene(make_geotiff, f"in/{name}.tif", 60, 50) for name in ("a", "b"))
    assert call(source, "--mode", "smooth") == 0
    assert call(source, "--mode", "smooth") == 0
    assert chosen == ["smooth"]
    assert call(source, "--mode", "smooth", "--memory", "3GB") == 0
    assert call(source, other, "--mode", "smooth") == 0
    assert chosen == ["smooth"] * 3
    out = capsys.readouterr().out
    assert "made anew" not in out, "the windows are the recipe's, whatever the memory"
    assert call(source, "--mode", "smooth", "--tile", 32) == 0
    assert "made anew: other options: window was [64,64], is [32,32]" in capsys.readouterr().out
    assert call(source) == 0
    assert "made anew: other options: mode was smooth, is exact" in capsys.readouterr().out
    assert call(source, "--tile", 48, "--batch", 1) == 0
    assert "made anew" not in capsys.readouterr().out, "exact maps do not depend on their windows"
    lines = (tmp_path / "maps" / ".journal.jsonl").read_text().splitlines()
    settings = [json.loads(line)["settings"] for line in lines if "settings" in line]
    assert settings[0]["window"] == {"height": 64, "width": 64}
    assert all(facts["batch"] >= 1 for facts in settings)
