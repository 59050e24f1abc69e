"""`STEM.qml` and `STEM.tif.aux.xml`: as whole as the map, and no reason to make it anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers.child_predict import files, scene, without_styles
from tests.helpers.maps import Call, Make
from tests.helpers.s3_server import Store


def test_what_is_gone_is_written_again_without_the_model(make_geotiff: Make, call: Call, capsys: Any) -> None:
    """The same bytes, with the pixels of each class; also where a later version first writes them."""
    scene(make_geotiff, "in/a.tif", 131, 203)
    maps = Path("maps")
    assert call("in", "--confidence", "--codes", "1,2,3,4,5,6,700") == 0
    before = files(maps)
    assert set(before) - set(without_styles(before)) == {"a.qml", "a.confidence.qml", "a.tif.aux.xml"}
    for gone in (["a.qml"], ["a.tif.aux.xml"], ["a.qml", "a.confidence.qml", "a.tif.aux.xml"]):
        for name in gone:
            (maps / name).unlink()
        capsys.readouterr()
        assert call("in", "--confidence", "--codes", "1,2,3,4,5,6,700", predictor=None) == 0
        assert capsys.readouterr().out == "1 of 1 maps are finished and unchanged\n"
        assert files(maps) == before
    assert call("in", "--confidence", "--codes", "1,2,3,4,5,6,700", "--no-styles", predictor=None) == 0
    assert files(maps) == before


def test_none_where_they_are_not_wanted(make_geotiff: Make, call: Call) -> None:
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in", "--no-styles", "--confidence") == 0
    assert sorted(files("maps")) == ["a.confidence.tif", "a.tif"]
    assert call("in", predictor=None) == 0
    assert {"a.qml", "a.tif.aux.xml"} <= files("maps").keys()


def test_a_changed_style_is_no_reason_for_a_new_map(make_geotiff: Make, call: Call, capsys: Any) -> None:
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in") == 0
    style, table = Path("maps/a.qml"), Path("maps/a.tif.aux.xml")
    style.write_text("<qgis>of someone</qgis>")
    table.write_text("<PAMDataset><Metadata><MDI key='a'>b</MDI></Metadata></PAMDataset>")
    assert call("in", predictor=None) == 0
    assert style.read_text() == "<qgis>of someone</qgis>"
    assert "'a'" in table.read_text()
    capsys.readouterr()
    assert call("in", "--redo") == 0
    assert capsys.readouterr().err.startswith("warning: maps/a.qml: ")
    assert style.read_text() == "<qgis>of someone</qgis>"
    assert "GDALRasterAttributeTable" in table.read_text()  # what was there was of the older file


def test_no_style_lies_beside_the_image_itself(tmp_path: Path, make_png: Make, call: Call) -> None:
    """QGIS would show the image by it."""
    image = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
    source = make_png("a.png", image)
    assert call(source, "--format", "geotiff", output=".") == 0
    assert sorted(files(tmp_path)) == ["a.png", "a.tif", "a.tif.aux.xml"]


def test_an_unwritable_style_is_no_half(
    make_geotiff: Make, call: Call, monkeypatch: Any, capsys: Any
) -> None:
    """The older map and its style stay."""
    scene(make_geotiff, "in/a.tif", 40, 50)
    assert call("in") == 0
    before = files("maps")
    scene(make_geotiff, "in/a.tif", 40, 50, seed=7)
    write = Path.write_bytes

    def full(path: Path, content: bytes) -> int:
        if "a.tif.aux.xml" in path.name:
            write(path, content[:100])
            raise OSError(28, "No space left on device")
        return write(path, content)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert call("in") == 1
    assert "files cannot" in capsys.readouterr().err.splitlines()[-1]
    assert files("maps") == before
    assert [path.name for path in Path("maps").glob(".*")] == [".journal.jsonl"]


def test_what_a_killed_call_left_is_removed(make_geotiff: Make, call: Call) -> None:
    scene(make_geotiff, "in/a.tif", 40, 50)
    Path("maps").mkdir()
    for name in ("a.qml", "a.tif.aux.xml", "a.tif"):
        Path(f"maps/.{name}.tmp-1").write_bytes(b"half")
    assert call("in") == 0
    assert [path.name for path in Path("maps").glob(".*")] == [".journal.jsonl"]


def test_styles_of_a_bucket_come_back(make_geotiff: Make, call: Call, store: Store, monkeypatch: Any) -> None:
    """The map itself is not sent again, nor looked at: the table has no pixels then."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    scene(make_geotiff, "in/a.tif", 40, 50)
    output = f"s3://{store.bucket}/maps"
    assert call("in", output=output) == 0
    kinds = ["qml", "tif", "tif.aux.xml"]
    assert store.keys() == [f"maps/a.{kind}" for kind in kinds]
    before = {kind: store.get(f"maps/a.{kind}") for kind in kinds}
    for kind in ("qml", "tif.aux.xml"):
        store.client.delete_object(Bucket=store.bucket, Key=f"maps/a.{kind}")
    store.asked.clear()
    assert call("in", output=output, predictor=None) == 0
    sent = [path for method, path in store.asked if method == "PUT"]
    assert sorted(path.split("?")[0].rpartition("/")[2] for path in sent) == ["a.qml", "a.tif.aux.xml"]
    assert store.get("maps/a.qml") == before["qml"]
    assert b"GDALRasterAttributeTable" in store.get("maps/a.tif.aux.xml")
    assert not list(Path("cache").rglob("*.*ml"))
