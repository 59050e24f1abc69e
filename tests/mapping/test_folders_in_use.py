"""What lies in the output folder already, and pictures of maps: `predict.py` on folders in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.raster import RasterSpec, write_raster
from tests.helpers.maps import Call, Make, names

IMAGE = np.arange(11 * 13 * 3, dtype=np.uint8).reshape(11, 13, 3)


def label(path: Path, value: int = 0) -> bytes:
    """A label of one value for IMAGE; gives the file's bytes."""
    write_raster(path, np.full(IMAGE.shape[:2], value, np.uint8), RasterSpec(driver="PNG"))
    return path.read_bytes()


@pytest.mark.parametrize("pattern", ["scenes/**/*.tif", "scenes/*"])
def test_a_pattern_does_not_mean_the_maps(make_geotiff: Make, call: Call, capsys: Any, pattern: str) -> None:
    make_geotiff("scenes/a.tif", IMAGE)
    make_geotiff("scenes/b.tif", IMAGE)
    assert call(pattern, output="scenes/maps") == 0
    assert "2 maps in scenes/maps" in capsys.readouterr().out
    for _ in range(2):
        assert call(pattern, output="scenes/maps") == 0
        said = capsys.readouterr().out
        assert "2 of 2 maps are finished" in said
        assert "maps in --output, not images: 2 files: scenes/maps/a.tif, …" in said
        assert names("scenes/maps", hidden=True) == [".journal.jsonl", "a.tif", "b.tif"]
    assert call("scenes/maps/*.tif", output="scenes/maps") == 2
    assert "files in --output scenes/maps" in capsys.readouterr().err
    assert call("scenes/maps/a.tif", output="scenes/maps", band_count=1) != 0
    assert "scenes/maps/a.tif" in capsys.readouterr().err


def test_a_picture_older_than_its_map_or_label_is_drawn_again(make_geotiff: Make, call: Call) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    label(Path("truth.png"), 1)
    view = Path("maps/a.view.png")
    how = (source, "--labels", "truth.png")
    assert call(*how, "--pictures") == 0
    first = view.stat().st_mtime_ns
    assert call(*how, "--pictures") == 0
    assert view.stat().st_mtime_ns == first
    before = view.read_bytes()
    label(Path("truth.png"), 2)
    assert call(*how, "--pictures") == 0
    assert view.read_bytes() != before
    make_geotiff("in/a.tif", IMAGE[::-1])
    assert call(*how) == 0
    before = view.read_bytes()
    assert call(*how, "--pictures") == 0
    assert view.read_bytes() != before


def test_a_name_that_is_not_utf8_is_one_line(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    path = Path(os.fsdecode(bytes(Path("in")) + b"/\xff.tif"))
    path.write_bytes(source.read_bytes())
    assert call("in") == 1
    assert capsys.readouterr().err.startswith("error: 'in/\\udcff.tif': ")
    assert names("maps") == ["a.tif"]


def test_the_system_s_refusal_is_one_line(
    make_geotiff: Make, call: Call, capsys: Any, monkeypatch: Any
) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    long = "x" * 300 + ".png"
    assert call(long) == 2
    assert "File name" in capsys.readouterr().err
    assert call(source, "--labels", long) == 1
    assert "cannot look" in capsys.readouterr().err

    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert call("in") == 2
    assert "Permission denied" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made_is_told_before_the_model_is_loaded(
    make_geotiff: Make, call: Call, capsys: Any, monkeypatch: Any
) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    Path("file").touch()

    def never(_: Path) -> Any:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("datasets.commands.predict._predict", never)
    for output, why in (("file", "it is a file"), ("file/maps", "Not a directory")):
        assert call(source, output=output) == 2
        assert capsys.readouterr().err.endswith(f"{why}\n")


def test_an_empty_output_folder_is_removed_again(tmp_path: Path, make_geotiff: Make, call: Call) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    Path("there").mkdir()
    for output in ("maps", "there"):
        assert call(source, output=output, band_count=4) == 1
        assert call("nothing.tif", output=output) == 2
    assert names(tmp_path) == ["in", "there"]
