"""A folder of good and bad files, a full disk, names that clash and paths that lead elsewhere."""

from __future__ import annotations

import io
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from segmenter.base.errors import DeviceError
from segmenter.raster import raster_info, write_raster
from tests.helpers.forbidden import small_files
from tests.helpers.maps import Call, Make, at_batch, names, vrt_of


def test_fail_fast_stops_at_the_first_bad_input(make_geotiff: Make, call: Call, capsys: Any) -> None:
    image = np.random.default_rng(0).integers(0, 255, (700, 30, 3), np.uint8)
    for name in ("a", "b", "c"):
        make_geotiff(f"in/{name}.tif", image)
    bad = Path("in/b.tif")
    bad.write_bytes(bad.read_bytes()[:40_000])
    assert call("in", "--fail-fast", "--batch", 1) == 1
    said = capsys.readouterr().err
    assert "b.tif: cannot read" in said
    assert said.count("\n") == 1
    assert names("maps", hidden=True) == [".journal.jsonl", "a.tif"]
    Path("in/a0.tif").write_text("no image")
    assert call("in", "--fail-fast", output="other") == 1
    assert "a0.tif: expected a GeoTIFF" in capsys.readouterr().err
    assert not Path("other").exists()
    bad.write_bytes(Path("in/a.tif").read_bytes())
    Path("in/a0.tif").unlink()
    assert call("in", "--fail-fast", "--batch", 1) == 0
    assert "1 of 3 maps are finished" in capsys.readouterr().out


def test_outputs_of_different_inputs_never_get_one_name(make_geotiff: Make, call: Call, capsys: Any) -> None:
    for name in ("a", "A.confidence"):
        make_geotiff(f"in/{name}.tif", np.ones((9, 9, 3), np.uint8))
    assert call("in") == 0
    assert call("in", "--confidence", output="other") == 2
    said = capsys.readouterr().err
    assert "confidence.tif: would" in said
    assert said.count("\n") == 1
    assert not Path("other").exists()


def test_a_link_in_the_output_folder_is_replaced_and_not_followed(make_geotiff: Make, call: Call) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    Path("elsewhere").mkdir()
    Path("maps").mkdir()
    for name in ("a.tif", ".a.tif.lock", ".a.tif.partial", "a.quicklook.png"):
        (Path("elsewhere") / name).write_text("mine")
    for name in ("a.tif", "a.quicklook.png"):
        (Path("maps") / name).symlink_to(Path("elsewhere") / name)
    assert call(source, "--quicklook") == 0
    assert all(path.read_text() == "mine" for path in Path("elsewhere").iterdir())
    assert not Path("maps/a.tif").is_symlink()
    assert raster_info(Path("maps/a.tif")).size.height == 9


def test_a_link_to_an_input_is_refused(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    Path("maps").mkdir()
    Path("maps/a.confidence.tif").symlink_to(source)
    before = source.read_bytes()
    assert call(source, "--confidence") == 2
    assert "would replace" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_only_drivers_that_are_named_open_a_file(make_geotiff: Make, call: Call, capsys: Any) -> None:
    make_geotiff("in/a.tif", np.ones((20, 30, 3), np.uint8))
    Path("b.vrt").write_text(vrt_of("in/a.tif", 20, 30))
    assert call("b.vrt") == 1
    assert "begins with b'<VRT'" in capsys.readouterr().err
    assert call("b.vrt", "--drivers", "JP2OpenJPEG") == 1
    assert "b.vrt: cannot open" in capsys.readouterr().err
    assert call("b.vrt", "--drivers", "JP2OpenJPEG,VRT") == 0
    assert raster_info(Path("maps/b.tif")).size.width == 30
    Path("b.vrt").rename(Path("b.xml"))  # whatever its name: its files are not looked at
    for _ in range(2):
        assert call("b.xml", "--drivers", "VRT") == 0
    assert "b.tif: made anew: the files that a VRT reads are not looked at" in capsys.readouterr().out
    assert call("b.xml", "--drivers", "Virtual") == 2
    assert "--drivers: GDAL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "options", "name"),
    [
        (4000, (), "a.tif"),  # of 15,000: fails when it is closed
        (17_000, ("--cog",), "a.tif"),  # holds the map, and not the map with its overviews
        (30_000, ("--probabilities", "float16"), "a.probabilities.tif"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    make_geotiff: Make, call: Call, capsys: Any, limit: int, options: Any, name: str
) -> None:
    make_geotiff("in/a.tif", np.random.default_rng(0).integers(0, 255, (601, 61, 3), np.uint8))
    make_geotiff("in/b.tif", np.zeros((9, 9, 3), np.uint8), nodata=0)
    Path("maps").mkdir()
    Path("maps/a.tif").write_bytes(b"older")
    with small_files(limit):
        assert call("in", *options) == 1
    lines = capsys.readouterr().err.splitlines()
    (error,) = [line for line in lines if not line.startswith("warning: ")]
    assert error.startswith(f"error: maps/{name}: ")
    assert Path("maps/a.tif").read_bytes() == b"older"
    assert not [n for n in names("maps", hidden=True) if "tmp" in n or "lock" in n]
    assert Path("maps/b.tif").is_file()


def test_the_bar_counts_the_pixels_of_all_inputs(make_geotiff: Make, call: Call, monkeypatch: Any) -> None:
    """Those that were there count for what is left, and not for the rate."""
    bars: list[Any] = []

    class Bar(tqdm):  # type: ignore[type-arg]
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **{**options, "disable": False, "file": io.StringIO()})
            if not given:
                bars.append(self)

    monkeypatch.setattr("segmenter.mapping.session.tqdm", Bar)
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    for name, height in (("a", 20), ("b", 300)):
        make_geotiff(f"in/{name}.tif", np.ones((height, 30, 3), np.uint8))
    assert call("in/a.tif") == 0
    assert (bars[0].initial, bars[0].total, bars[0].n) == (0, 600, 600)
    asked = ("in", "--window-size", 64, "--batch", 1)
    assert call(*asked, predictor=at_batch(6, KeyboardInterrupt())) == 130
    assert call(*asked) == 0
    last = bars[-1]
    assert last.total == last.n == 30 * 320
    assert 0 < last.initial < 30 * 320


def test_more_inputs_than_may_be_open_at_once(call: Call) -> None:
    """Locks, partial maps and maps under way are let go of."""
    for index in range(100):
        write_raster(Path(f"in/{index}.tif"), np.full((12, 9, 3), index, np.uint8))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 100), hard))
    try:
        assert call("in", "--batch", 2) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(Path("maps").glob("*.tif"))) == 100


def test_a_failing_device_costs_only_what_is_not_done(make_geotiff: Make, call: Call, capsys: Any) -> None:
    for name in ("a", "b", "c"):
        make_geotiff(f"in/{name}.tif", np.ones((300, 30, 3), np.uint8))
    lost = at_batch(15, DeviceError("no memory"))
    assert call("in", "--window-size", 64, "--batch", 1, predictor=lost) == 1
    assert capsys.readouterr().err == "error: no memory\n"
    assert names("maps", hidden=True) == [".journal.jsonl", "a.tif"]
    assert call("in", "--window-size", 64, "--batch", 1) == 0
    assert "1 of 3 maps are finished" in capsys.readouterr().out
