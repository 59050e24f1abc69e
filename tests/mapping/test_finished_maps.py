"""What is finished is kept, and made anew where something differs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.helpers.child_predict import files, scene
from tests.helpers.maps import Call, Make


def test_finished_maps_are_kept_and_what_has_changed_is_said(
    tmp_path: Path, make_geotiff: Make, call: Call, capsys: Any
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
    changed = {"checksum": lambda: "trained on"}
    assert "maps/a.tif and 1 more: made anew: the run has changed" in again("--nodata", 99, **changed)
    data = bytearray((tmp_path / "maps" / "b.tif").read_bytes())
    data[len(data) // 2] ^= 4
    (tmp_path / "maps" / "b.tif").write_bytes(data)
    assert "maps/b.tif: made anew: b.tif has changed" in again("--nodata", 99, **changed)
    (tmp_path / "maps" / "b.tif").unlink()
    assert "maps/b.tif: made anew: b.tif is gone" in again("--nodata", 99, **changed)
    assert "made anew: asked for by --redo" in again("--nodata", 99, "--redo", **changed)
    assert again("--nodata", 99, **changed) == "2 of 2 maps are finished and unchanged\n"


def test_a_file_more_is_made_and_one_fewer_is_no_reason(
    tmp_path: Path, make_geotiff: Make, call: Call, capsys: Any
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
    tmp_path: Path, make_geotiff: Make, call: Call, capsys: Any
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
    styles = {"a.qml", "a.tif.aux.xml"}
    outputs = {"a.notes.tif", "a.quicklook.png", "a.tif"}
    assert files(maps).keys() == {*outputs, "a.probabilities.tif", "a.probabilities.qml", *styles}
    assert call(source, "--quicklook", "--nodata", 99) == 0
    assert files(maps).keys() == {*outputs, *styles}
    assert call(source, "--quicklook", "--nodata", 99, "--format", "png") == 0
    assert "a.tif" in files(maps), "the GeoTIFF is right as it is"


def test_what_another_input_wrote_is_not_taken_for_an_older_map(
    tmp_path: Path, make_geotiff: Make, call: Call
) -> None:
    source = scene(make_geotiff, "in/a.tif", 40, 50)
    assert call(source, "--confidence") == 0
    other = scene(make_geotiff, "in/a.confidence.tif", 30, 20)
    assert call(other) == 0  # as it was asked for, in the place of the older one
    theirs = (tmp_path / "maps" / "a.confidence.tif").read_bytes()
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    assert call(source) == 0
    assert (tmp_path / "maps" / "a.confidence.tif").read_bytes() == theirs


def test_a_damaged_journal_costs_its_maps_only_time(
    tmp_path: Path, make_geotiff: Make, call: Call, capsys: Any
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
