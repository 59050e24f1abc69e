"""Finished maps are kept, stopped ones go on: what comes out is what would have come out."""

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
from rasterio import Affine

import segmenter.mapping.call
from segmenter.base.errors import RasterError
from segmenter.raster import Raster
from tests.helpers.child_predict import CLASSES, COMMAND, ENVIRONMENT, files, scene, without_styles
from tests.helpers.exact_network import exact_network
from tests.helpers.maps import Call, Make, at_batch, counting, vrt_of

LARGE = 1000
"""Pixels from which rasters are kept in part in these tests."""
WINDOWS = ("--window-size", "64", "--batch", "1")


@pytest.fixture
def large(monkeypatch: Any) -> None:
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", LARGE)


def started(folder: Path, *arguments: Any, seconds: float = 0.01) -> subprocess.Popen[str]:
    command = [*COMMAND, str(seconds), str(LARGE), *map(str, arguments), "--output", str(folder)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )


def finished(folder: Path, *arguments: Any) -> list[str]:
    """Run it to the end; what it printed."""
    process = started(folder, *arguments, seconds=0)
    out, err = process.communicate()
    assert process.returncode == 0, err
    return out.splitlines()


def killed(folder: Path, *arguments: Any, lines: int, pause: float = 0) -> int:
    """Run it and kill it after so many lines and seconds; gives the batches that it computed."""
    process = started(folder, *arguments)
    seen = [line for _, line in zip(range(lines), process.stdout, strict=False)]
    time.sleep(pause)
    process.kill()
    seen += process.communicate()[0].splitlines(keepends=True)
    return seen.count("batch\n")


OPTIONS = ("--confidence", "--probabilities", "float16", "--quicklook", "--window-size", "64", "--batch", "2")


def kill_at_random(tmp_path: Path, make_geotiff: Make, kills: int, seed: int) -> None:
    """After any number of kills at any moments the files are those of an undisturbed run, byte for byte."""
    rng = np.random.default_rng(seed)
    sources = [scene(make_geotiff, "in/a.tif", 640, 210), scene(make_geotiff, "in/b.tif", 30, 30)]
    sources += [scene(make_geotiff, f"in/{i}.tif", 101, 67, i) for i in range(3)]
    undisturbed = finished(tmp_path / "undisturbed", *sources, *OPTIONS)
    batches = undisturbed.count("batch")
    expected = files(tmp_path / "undisturbed")
    assert len(without_styles(expected)) == 4 * len(sources)
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


@pytest.mark.slow
def test_kill_9_at_random_moments(tmp_path: Path, make_geotiff: Make) -> None:
    kill_at_random(tmp_path, make_geotiff, kills=2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kill_9_at_many_random_moments(tmp_path: Path, make_geotiff: Make, seed: int) -> None:
    kill_at_random(tmp_path, make_geotiff, kills=5, seed=10 + seed)


@pytest.mark.parametrize(("mode", "gsd"), [("exact", ()), ("smooth", ()), ("exact", ("--gsd", "0.35"))])
def test_a_large_raster_goes_on_from_its_last_band(
    make_geotiff: Make, call: Call, large: None, mode: str, gsd: tuple[str, ...]
) -> None:
    source = scene(make_geotiff, "in/a.tif", 700, 50)
    asked = (source, *WINDOWS, "--mode", mode, "--probabilities", "uint8", *gsd)
    whole, rest = counting(), counting()
    assert call(*asked, predictor=whole, output="undisturbed") == 0
    stopped = at_batch(len(whole.batches) - 3, KeyboardInterrupt())
    assert call(*asked, predictor=stopped) == 130
    assert files("maps") == {}
    assert Path("maps/.a.tif.partial").exists()
    assert call(*asked, predictor=rest) == 0
    assert len(rest.batches) <= 12
    assert files("maps") == files("undisturbed")


def test_what_cannot_be_looked_at_is_not_gone_on_with(make_geotiff: Make, call: Call, large: None) -> None:
    """The files behind a VRT may have changed meanwhile: half of its map would be of the old ones."""
    scene(make_geotiff, "in/a.tif", 700, 50)
    Path("v.xml").write_text(vrt_of("in/a.tif", 700, 50))
    asked = ("v.xml", *WINDOWS, "--drivers", "VRT")
    assert call(*asked, output="before") == 0
    assert call(*asked, predictor=at_batch(9, KeyboardInterrupt())) == 130
    assert Path("maps/.v.tif.partial").exists()
    scene(make_geotiff, "in/a.tif", 700, 50, seed=1)
    assert call(*asked) == call(*asked, output="after") == 0
    assert files("maps") == files("after") != files("before")


@pytest.mark.parametrize("much", [True, False])
def test_a_failing_disk_costs_little(
    make_geotiff: Make, call: Call, monkeypatch: Any, capsys: Any, much: bool
) -> None:
    source = scene(make_geotiff, "in/a.tif", 700, 50)
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    monkeypatch.setattr("segmenter.mapping.folder.state.MUCH_PIXELS", 300 * 50 if much else 1 << 26)
    read, reads = Raster.read, []

    def failing(self: Raster, window: Any) -> Any:
        reads.append(window)
        if window.row > 500 and len(reads) < 100:
            raise RasterError("Input/output error")
        return read(self, window)

    monkeypatch.setattr(Raster, "read", failing)
    arguments = (source, "--window-size", "64", "--batch", "1")
    assert call(*arguments) == 1
    assert ("computed" in capsys.readouterr().err) == much
    assert Path("maps/.a.tif.partial").exists() == much
    first = len(reads)
    reads += [None] * 100
    assert call(*arguments) == 0
    assert (len(reads) - first - 100 < first) == much
    assert call(*arguments, output="whole") == 0
    assert files("maps") == files("whole")


def test_a_partial_map_of_other_options_is_not_taken_up(make_geotiff: Make, call: Call, large: None) -> None:
    source = scene(make_geotiff, "in/a.tif", 300, 50)
    assert call(source, *WINDOWS, predictor=at_batch(5, KeyboardInterrupt())) == 130
    assert call(source, *WINDOWS, "--nodata", "99") == 0
    with rasterio.open("maps/a.tif") as result, rasterio.open(source) as image:
        assert ((result.read(1) == 99) == (image.read(1) == 0)).all()
        assert result.nodata == 99


KILLED_BETWEEN_NAMES = """
import os, signal, sys
from tests.helpers import child_predict
from segmenter.raster import RasterWriter
publish = RasterWriter.publish
def last(self):
    publish(self)
    os.kill(os.getpid(), signal.SIGKILL)
RasterWriter.publish = last
child_predict.main(0, 1000, sys.argv[1:])
"""


@pytest.mark.slow
def test_outputs_of_one_input_are_complete_or_made_anew(make_geotiff: Make, call: Call, large: None) -> None:
    """Killed when the first of two files has its new name: both are of the new call in the end."""
    source = scene(make_geotiff, "in/a.tif", 60, 50)
    changed = (str(source), "--confidence", "--nodata", "77", "--cog")
    assert call(source, "--confidence", classes=CLASSES) == 0
    assert call(*changed, classes=CLASSES, output="other") == 0
    before, wanted = files("maps"), files("other")
    command = [*COMMAND[:1], "-c", KILLED_BETWEEN_NAMES, *changed, "--output", str(Path("maps"))]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL
    mixed = files("maps")
    assert mixed["a.tif"] == wanted["a.tif"] != before["a.tif"]
    assert mixed["a.confidence.tif"] == before["a.confidence.tif"] != wanted["a.confidence.tif"]
    assert call(*changed, classes=CLASSES) == 0
    assert files("maps") == wanted
    assert [p.name for p in Path("maps").iterdir() if p.name.startswith(".")] == [".journal.jsonl"]


@pytest.mark.slow
def test_of_two_processes_one_writes_the_other_says_so(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = scene(make_geotiff, "in/a.tif", 300, 50)
    first = started(Path("maps"), source, *WINDOWS, seconds=1000)
    try:
        assert first.stdout.readline() == "batch\n"
        assert call(source, *WINDOWS) == 1
        error = "error: maps/a.tif: is being written by another process; left to that one\n"
        assert capsys.readouterr() == ("", error)
    finally:
        first.kill()
        first.communicate()
    assert call(source, *WINDOWS) == 0


def test_what_another_call_finished_is_not_made_twice(make_geotiff: Make, call: Call, capsys: Any) -> None:
    sources = [scene(make_geotiff, f"in/{name}.tif", 60, 50) for name in "ab"]

    def meanwhile(*_: Any, **__: Any) -> Any:
        """Loading the model takes so long that the other one is done."""
        assert call(*sources) == 0
        assert "2 maps in maps" in capsys.readouterr().out
        return exact_network(2, 8)

    assert call(*sources, predictor=meanwhile) == 0
    assert "map" not in capsys.readouterr().out


def test_windows_are_chosen_once(make_geotiff: Make, call: Call, monkeypatch: Any, capsys: Any) -> None:
    """On a machine with less memory the same call takes the same windows, which in smooth mode are seen."""
    chosen: list[str] = []
    plan = segmenter.mapping.call.tiling_for

    def tiling_for(call: Any, *rest: Any) -> Any:
        chosen.append(call.request.mode)
        return plan(call, *rest)

    monkeypatch.setattr("segmenter.mapping.call.tiling_for", tiling_for)
    source, other = (scene(make_geotiff, f"in/{name}.tif", 60, 50) for name in ("a", "b"))
    for _ in range(2):
        assert call(source, "--mode", "smooth") == 0
    assert chosen == ["smooth"]
    assert call(source, "--mode", "smooth", "--memory", "3GB") == 0
    assert call(source, other, "--mode", "smooth") == 0
    assert chosen == ["smooth"] * 3
    out = capsys.readouterr().out
    assert "made anew" not in out, "the windows are the recipe's, whatever the memory"
    assert call(source, "--mode", "smooth", "--window-size", 32) == 0
    assert "made anew: other options: window was [64,64], is [32,32]" in capsys.readouterr().out
    assert call(source) == 0
    assert "made anew: other options: mode was smooth, is exact" in capsys.readouterr().out
    assert call(source, "--window-size", 48, "--batch", 1) == 0
    assert "made anew" not in capsys.readouterr().out, "exact maps do not depend on their windows"
    lines = Path("maps/.journal.jsonl").read_text().splitlines()
    chosen_before = [json.loads(line).get("settings", {}) for line in lines]
    settings = [facts for facts in chosen_before if "window" in facts]
    assert settings[0]["window"] == {"height": 64, "width": 64}
    assert all(facts["batch"] >= 1 for facts in settings)


@pytest.mark.slow
def test_finished_maps_are_kept_and_changes_are_said(make_geotiff: Make, call: Call, capsys: Any) -> None:
    for name in ("a", "b"):
        scene(make_geotiff, f"in/{name}.tif", 40, 50)
    assert call("in") == 0
    first = {path.name: path.stat().st_ino for path in Path("maps").glob("*.tif")}
    lines = Path("maps/.journal.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert sorted(record["name"] for record in records if "name" in record) == ["a", "b"]

    def again(*arguments: Any, **changes: Any) -> str:
        capsys.readouterr()
        assert call("in", *arguments, **changes) == 0
        return capsys.readouterr().out

    def unloaded(*_: Any, **__: Any) -> Any:
        raise AssertionError("the model is not needed")

    assert again(predictor=unloaded) == "2 of 2 maps are finished and unchanged\n"
    assert {path.name: path.stat().st_ino for path in Path("maps").glob("*.tif")} == first
    os.utime(Path("in/a.tif"))
    out = again()
    assert "maps/a.tif: made anew: the input has changed\n1 of 2 maps are finished and unchanged\n" in out
    assert "1 map in maps" in out
    assert "maps/a.tif and 1 more: made anew: other options: nodata was 255, is 99" in again("--nodata", 99)
    changed = {"checksum": lambda: "trained on"}
    assert "maps/a.tif and 1 more: made anew: the run has changed" in again("--nodata", 99, **changed)
    data = bytearray(Path("maps/b.tif").read_bytes())
    data[len(data) // 2] ^= 4
    Path("maps/b.tif").write_bytes(data)
    assert "maps/b.tif: made anew: b.tif has changed" in again("--nodata", 99, **changed)
    Path("maps/b.tif").unlink()
    assert "maps/b.tif: made anew: b.tif is gone" in again("--nodata", 99, **changed)
    assert "made anew: asked for by --redo" in again("--nodata", 99, "--redo", **changed)
    assert again("--nodata", 99, **changed) == "2 of 2 maps are finished and unchanged\n"


def test_files_of_an_older_map_do_not_stay(make_geotiff: Make, call: Call, capsys: Any) -> None:
    """Only what the journal says that we wrote goes, and only where it would be another now."""
    maps = Path("maps")
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
    assert "1 file of older maps removed: maps/a.confidence.tif" in capsys.readouterr().out
    styles = {"a.qml", "a.tif.aux.xml"}
    outputs = {"a.notes.tif", "a.quicklook.png", "a.tif"}
    assert files(maps).keys() == {*outputs, "a.probabilities.tif", "a.probabilities.qml", *styles}
    assert call(source, "--quicklook", "--nodata", 99, "--redo") == 0
    assert files(maps).keys() == {*outputs, *styles}
    assert call(source, "--quicklook", "--nodata", 99, "--format", "png") == 0
    assert "a.tif" in files(maps), "the GeoTIFF is right as it is"


def test_a_damaged_journal_costs_its_maps_only_time(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source) == 0
    before = files("maps")
    journal = Path("maps/.journal.jsonl")
    journal.write_bytes(b"{\n" + journal.read_bytes()[:-20])
    capsys.readouterr()
    assert call(source) == 0
    assert "maps/.journal.jsonl: 1 damaged lines are left out of account" in capsys.readouterr().out
    assert files("maps") == before
    assert call(source) == 0
    assert "1 of 1 maps are finished" in capsys.readouterr().out


def test_what_another_input_wrote_is_not_taken_for_an_older_map(make_geotiff: Make, call: Call) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source, "--confidence") == 0
    other = scene(make_geotiff, "in/a.confidence.tif", 30, 20)
    assert call(other) == 0  # as it was asked for, in the place of the older one
    theirs = Path("maps/a.confidence.tif").read_bytes()
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    assert call(source) == 0
    assert Path("maps/a.confidence.tif").read_bytes() == theirs


STEPWISE = ("--window-size", 64, "--batch", 1)


@pytest.fixture
def changing(call: Call, monkeypatch: Any) -> Callable[..., Call]:
    """`changing(3, change)(input...)`: predict.py, with something that happens when a batch is computed."""
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)

    def make(at: int, change: Callable[[], Any]) -> Call:
        predictor = at_batch(at, change)

        def changed_call(*arguments: Any, **named: Any) -> int:
            return call(*arguments, *STEPWISE, predictor=predictor, **named)

        changed_call.batches = predictor.batches  # type: ignore[attr-defined]
        return changed_call

    return make


def check_refused(capsys: Any, folder: Path, name: str, made: set[str]) -> str:
    """One line, nothing half-written, and nothing kept of the map to go on from."""
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(f"error: in/{name}: has changed since this call began: expected ")
    assert set(without_styles(files(folder))) == made
    assert {p.name for p in folder.iterdir() if p.name.startswith(".")} <= {".journal.jsonl"}
    return str(said)


def test_a_replaced_input_is_not_mapped(make_geotiff: Make, changing: Any, call: Any, capsys: Any) -> None:
    """Its place and size were read before it became another raster."""
    for name in ("a", "b"):
        scene(make_geotiff, f"in/{name}.tif", 500, 60)
    assert call("in/a.tif", output="a") == 0

    def replace() -> None:
        other = make_geotiff("new.tif", np.ones((350, 70, 3), np.uint8), crs="EPSG:4326")
        other.replace(Path("in/b.tif"))

    capsys.readouterr()
    assert changing(1, replace)("in") == 1
    said = check_refused(capsys, Path("maps"), "b.tif", {"a.tif"})
    assert "expected 60×500 pixels of 3 uint8 bands in EPSG:25833" in said
    assert "got 70×350 pixels of 3 uint8 bands in EPSG:4326" in said
    assert files("maps") == files("a")
    assert call("in") == 0


@pytest.mark.parametrize("old_time", [False, True])
def test_a_rewritten_input_gives_no_map(
    make_geotiff: Make, changing: Any, capsys: Any, old_time: bool
) -> None:
    """Old rows and new ones; also where whoever wrote it puts the old time back, as `rsync -t`."""
    source = scene(make_geotiff, "in/a.tif", 700, 60)
    new = scene(make_geotiff, "new.tif", 700, 60, seed=1).read_bytes()
    status = source.stat()
    assert len(new) == status.st_size

    def rewrite() -> None:
        with source.open("r+b") as file:
            file.write(new)
        if old_time:
            os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))

    Path("maps").mkdir()
    Path("maps/a.tif").write_bytes(b"older")
    assert changing(6, rewrite)("in/a.tif", "--quicklook", "--redo") == 1
    check_refused(capsys, Path("maps"), "a.tif", {"a.tif"})
    assert Path("maps/a.tif").read_bytes() == b"older"


def test_a_changing_neighbour_gives_no_mosaic(make_geotiff: Make, changing: Any, capsys: Any) -> None:
    pixels = np.random.default_rng(0).integers(1, 255, (300, 64, 3), np.uint8)
    for number, name in enumerate("ab"):
        place = Affine(0.5, 0, 368000 + 32 * number, 0, -0.5, 5808000)
        make_geotiff(f"in/{name}.tif", pixels, transform=place)

    def touch() -> None:
        os.utime(Path("in/b.tif"))

    assert changing(3, touch)("in/a.tif", "in/b.tif", "--mosaic") == 1
    said = capsys.readouterr().err
    assert said.count("in/b.tif: has changed") == 2
    assert not Path("maps").exists()


def test_what_a_viewer_puts_beside_an_input_is_no_change(make_geotiff: Make, changing: Any) -> None:
    source = scene(make_geotiff, "in/a.tif", 700, 60)
    statistics = "<PAMDataset></PAMDataset>"
    assert changing(6, lambda: Path(f"{source}.aux.xml").write_text(statistics))("in/a.tif") == 0
    assert without_styles(files("maps")) == ["a.tif"]
