"""Finished maps are kept, and made anew where something differs; an input that changes gives none."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.child_predict import files, scene, without_styles
from tests.helpers.maps import Call, Make, at_batch


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
    assert "1 files belonged to older maps and are removed: maps/a.confidence.tif" in capsys.readouterr().out
    styles = {"a.qml", "a.tif.aux.xml"}
    outputs = {"a.notes.tif", "a.quicklook.png", "a.tif"}
    assert files(maps).keys() == {*outputs, "a.probabilities.tif", "a.probabilities.qml", *styles}
    assert call(source, "--quicklook", "--nodata", 99) == 0
    assert files(maps).keys() == {*outputs, *styles}
    assert call(source, "--quicklook", "--nodata", 99, "--format", "png") == 0
    assert "a.tif" in files(maps), "the GeoTIFF is right as it is"


def test_what_another_input_wrote_is_not_taken_for_an_older_map(make_geotiff: Make, call: Call) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source, "--confidence") == 0
    other = scene(make_geotiff, "in/a.confidence.tif", 30, 20)
    assert call(other) == 0  # as it was asked for, in the place of the older one
    theirs = Path("maps/a.confidence.tif").read_bytes()
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    assert call(source) == 0
    assert Path("maps/a.confidence.tif").read_bytes() == theirs


OPTIONS = ("--window-size", 64, "--batch", 1)


@pytest.fixture
def changing(call: Call, monkeypatch: Any) -> Callable[..., Call]:
    """`changing(3, change)(input...)`: predict.py, with something that happens when a batch is computed."""
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)

    def make(at: int, change: Callable[[], Any]) -> Call:
        predictor = at_batch(at, change)

        def changed_call(*arguments: Any, **named: Any) -> int:
            return call(*arguments, *OPTIONS, predictor=predictor, **named)

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
    assert changing(6, rewrite)("in/a.tif", "--quicklook") == 1
    check_refused(capsys, Path("maps"), "a.tif", {"a.tif"})
    assert Path("maps/a.tif").read_bytes() == b"older"


def test_a_changing_neighbour_gives_no_mosaic(make_geotiff: Make, changing: Any, capsys: Any) -> None:
    from rasterio import Affine

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
