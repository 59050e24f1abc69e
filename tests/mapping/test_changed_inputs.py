"""An input that changes while it is mapped gives no map, neither of the old place nor of mixed pixels."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.child_predict import files, scene, without_styles
from tests.helpers.maps import Call, Make, at_batch

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


def test_an_input_replaced_while_it_waits_is_not_mapped(
    tmp_path: Path, make_geotiff: Make, changing: Any, call: Any, capsys: Any
) -> None:
    """Its place and size were read before it became another raster."""
    for name in ("a", "b"):
        scene(make_geotiff, f"in/{name}.tif", 500, 60)
    assert call("in/a.tif", output="a") == 0

    def replace() -> None:
        other = make_geotiff("new.tif", np.ones((350, 70, 3), np.uint8), crs="EPSG:4326")
        other.replace(tmp_path / "in" / "b.tif")

    capsys.readouterr()
    assert changing(1, replace)("in") == 1
    said = check_refused(capsys, tmp_path / "maps", "b.tif", {"a.tif"})
    assert "expected 60×500 pixels of 3 uint8 bands in EPSG:25833" in said
    assert "got 70×350 pixels of 3 uint8 bands in EPSG:4326" in said
    assert files(tmp_path / "maps") == files(tmp_path / "a")
    assert call("in") == 0


def test_an_input_replaced_by_its_like_is_not_mapped(
    tmp_path: Path, make_geotiff: Make, changing: Any, capsys: Any
) -> None:
    """The same size, place and type: only its bytes' time of change tells."""
    for name in ("a", "b"):
        scene(make_geotiff, f"in/{name}.tif", 500, 60)
    alone = changing(-1, lambda: None)
    assert alone("in/a.tif", output="alone") == 0
    batches = len(alone.batches)

    def replace() -> None:
        scene(make_geotiff, "new.tif", 500, 60, seed=1).replace(tmp_path / "in" / "b.tif")

    changed_call = changing(1, replace)
    assert changed_call("in") == 1
    check_refused(capsys, tmp_path / "maps", "b.tif", {"a.tif"})
    assert len(changed_call.batches) == batches, "of the other not even a window is computed"


@pytest.mark.parametrize("old_time", [False, True])
def test_an_input_rewritten_while_it_is_read_gives_no_map(
    tmp_path: Path, make_geotiff: Make, changing: Any, capsys: Any, old_time: bool
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

    (tmp_path / "maps").mkdir()
    (tmp_path / "maps" / "a.tif").write_bytes(b"older")
    assert changing(6, rewrite)("in/a.tif", "--quicklook") == 1
    check_refused(capsys, tmp_path / "maps", "a.tif", {"a.tif"})
    assert (tmp_path / "maps" / "a.tif").read_bytes() == b"older"


def test_a_neighbour_that_changes_gives_no_map_of_a_mosaic(
    tmp_path: Path, make_geotiff: Make, changing: Any, capsys: Any
) -> None:
    from rasterio import Affine

    pixels = np.random.default_rng(0).integers(1, 255, (300, 64, 3), np.uint8)
    for number, name in enumerate("ab"):
        place = Affine(0.5, 0, 368000 + 32 * number, 0, -0.5, 5808000)
        make_geotiff(f"in/{name}.tif", pixels, transform=place)

    def touch() -> None:
        os.utime(tmp_path / "in" / "b.tif")

    assert changing(3, touch)("in/a.tif", "in/b.tif", "--mosaic") == 1
    said = capsys.readouterr().err
    assert said.count("in/b.tif: has changed since this call began") == 2
    assert not (tmp_path / "maps").exists()


def test_what_a_viewer_puts_beside_an_input_is_no_change(
    tmp_path: Path, make_geotiff: Make, changing: Any
) -> None:
    source = scene(make_geotiff, "in/a.tif", 700, 60)
    statistics = "<PAMDataset></PAMDataset>"
    assert changing(6, lambda: Path(f"{source}.aux.xml").write_text(statistics))("in/a.tif") == 0
    assert without_styles(files(tmp_path / "maps")) == ["a.tif"]
