"""Polygons and `predict.py`: `--vectors` writes those of its maps, `--labels` scores with those of others."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely
from numpy.typing import NDArray
from rasterio.features import rasterize

from segmenter.base.files import FileLock
from segmenter.extras.vectors.mapped import PolygonFile
from tests.helpers.maps import Call, Make, at_batch
from tests.helpers.maps import ids as read
from tests.helpers.s3_server import Store

SIZE = (61, 83)
raw = pytest.importorskip("pyogrio.raw", reason="the extra `vectors` is not installed")


@pytest.fixture(autouse=True)
def scenes(make_geotiff: Make, rng: Any) -> list[Path]:
    """Two images, the second to the right of the first."""
    made = []
    for i, name in enumerate("ab"):
        where = rasterio.Affine(0.5, 0, 368000 + i * SIZE[1] / 2, 0, -0.5, 5808000)
        image = np.kron(rng.integers(0, 255, (8, 11, 3)), np.ones((8, 8, 1)))[: SIZE[0], : SIZE[1]]
        made.append(make_geotiff(f"in/{name}.tif", image.astype(np.uint8), transform=where))
    return made


def features(path: Path) -> dict[str, Any]:
    meta, _, geometry, columns = raw.read(path, layer=path.stem)
    return dict(zip(meta["fields"], columns, strict=True)) | {"geometry": shapely.from_wkb(geometry)}


def burned(found: dict[str, Any], name: str, like: Path) -> NDArray[np.uint8]:
    """The polygons of one map rasterised again."""
    each = zip(found["geometry"], found["class_id"], found["map"], strict=True)
    of_it = [(shape, int(kind)) for shape, kind, of in each if of == name]
    with rasterio.open(like) as file:
        return rasterize(of_it, file.shape, fill=255, dtype="uint8", transform=file.transform)


def test_polygons_of_a_call_are_its_maps_and_kept_while_these_are(
    call: Call, capfd: Any, make_geotiff: Make
) -> None:
    asked = ("in", "--vectors", "areas.gpkg", "--confidence")
    assert call(*asked) == 0
    found = features(Path("areas.gpkg"))
    for name in ("a.tif", "b.tif"):
        np.testing.assert_array_equal(burned(found, name, Path("in") / name), read(Path("maps") / name))
    assert ((found["confidence"] >= 0.5) & (found["confidence"] < 1)).all()
    assert f"areas.gpkg: {len(found['map']):,} polygons of 2 maps" in capfd.readouterr().out
    before = Path("areas.gpkg").stat()
    assert call(*asked) == 0
    assert "areas.gpkg: finished and unchanged" in capfd.readouterr().out
    assert Path("areas.gpkg").stat().st_mtime_ns == before.st_mtime_ns
    assert call(*asked, "--only", "a", "--min-area", "3") == 0
    fewer = features(Path("areas.gpkg"))
    assert set(fewer["class"]) == {"a"}
    assert (fewer["area_m2"] >= 3).all()
    make_geotiff("in/b.tif", np.zeros((*SIZE, 3), np.uint8))
    assert call(*asked) == 0
    again = features(Path("areas.gpkg"))
    np.testing.assert_array_equal(burned(again, "b.tif", Path("in/b.tif")), read("maps/b.tif"))
    Path("areas.gpkg").unlink()
    assert call(*asked) == 0
    assert features(Path("areas.gpkg"))["map"].tolist() == again["map"].tolist()


def test_a_call_names_polygons_that_its_new_maps_are_not_in(call: Call, capfd: Any) -> None:
    assert call("in/a.tif", "--vectors", "areas.gpkg") == 0
    for wanted, said in ((["in/a.tif"], False), (["in"], True), (["in/a.tif", "--redo"], True)):
        capfd.readouterr()
        assert call(*wanted) == 0
        assert ("areas.gpkg" in capfd.readouterr().err) is said
    assert call("in", "--redo", "--vectors", "others.gpkg") == 0
    said = capfd.readouterr().err
    assert "areas.gpkg" in said
    assert "others.gpkg: holds" not in said
    Path("areas.gpkg").unlink()
    assert call("in", "--redo", "--vectors", "others.gpkg") == 0
    assert "areas.gpkg" not in capfd.readouterr().err


def test_a_call_that_was_killed_goes_on_and_replaces_no_file_of_others(
    call: Call, monkeypatch: Any, capfd: Any
) -> None:
    note = PolygonFile._note

    def killed(self: PolygonFile, journal: Any, made_of: str, file: dict[str, Any] | None) -> None:
        if file is not None:
            raise KeyboardInterrupt
        note(self, journal, made_of, file)

    with monkeypatch.context() as patch:
        patch.setattr(PolygonFile, "_note", killed)
        assert call("in", "--vectors", "areas.parquet") == 130
    first = Path("areas.parquet").read_bytes()
    capfd.readouterr()
    assert call("in", "--vectors", "areas.parquet") == 0
    said = capfd.readouterr().out
    assert "2 of 2 maps are finished and unchanged" in said
    assert "polygons of 2 maps" in said
    assert Path("areas.parquet").read_bytes() == first
    Path("areas.parquet").write_bytes(b"mine")
    assert call("in", "--vectors", "areas.parquet") == 2
    assert "areas.parquet: exists already" in capfd.readouterr().err
    assert Path("areas.parquet").read_bytes() == b"mine"


def test_of_two_calls_with_one_file_the_second_leaves_it(call: Call) -> None:
    """The other may write it while maps are made, or at the same time."""
    areas = Path("areas.gpkg")
    asked = ("in", "--vectors", areas)
    assert call(*asked, predictor=at_batch(1, lambda: areas.write_bytes(b"theirs"))) == 1
    assert areas.read_bytes() == b"theirs"
    areas.unlink()
    other = FileLock(Path(".areas.gpkg.lock"))
    other.take()
    assert call(*asked) == 1
    assert not areas.exists()
    other.release()
    assert call(*asked) == 0


def test_what_cannot_be_is_refused_before_maps_are_made(
    call: Call, make_geotiff: Make, capfd: Any, monkeypatch: Any
) -> None:
    make_geotiff("else/c.tif", np.zeros((9, 9, 3), np.uint8), crs="EPSG:25832")
    Path("mine.gpkg").write_bytes(b"mine")
    for arguments, line in (
        (("in", "--vectors", "x.shp"), "expected a name that ends in .gpkg or .parquet"),
        (("in", "--vectors", "mine.gpkg"), "mine.gpkg: exists already"),
        (("in", "--vectors", "x.gpkg", "--format", "png"), "polygons are made of GeoTIFF maps"),
        (("in", "--vectors", "x.gpkg", "--only", "sea"), "--only: no class sea; there are a, b"),
        (("in", "--simplify", "2"), "--simplify: says what polygons are written; it needs --vectors"),
        (("in", "else", "--vectors", "x.gpkg"), "expected the CRS of"),
    ):
        assert call(*arguments) == 2, arguments
        assert line in capfd.readouterr().err
        assert not Path("maps").exists()
        assert not Path("x.gpkg").exists()
    options = {"segmenter.extras.vectors.mapped", "segmenter.extras.vectors.options"}  # hold no shapely
    for name in [name for name in sys.modules if name.startswith("segmenter.extras.vectors.")]:
        if name not in options:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "shapely", None)
    assert call("in", "--vectors", "x.gpkg") == 2
    assert "--vectors: polygons need" in capfd.readouterr().err
    assert call("in", "--labels", "x.gpkg") == 2
    assert "--labels x.gpkg: polygons need" in capfd.readouterr().err
    assert not Path("maps").exists()


@pytest.mark.slow
def test_with_maps_in_a_bucket_the_polygons_stay_here(
    call: Call, store: Store, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    output = f"s3://{store.bucket}/maps"
    assert call("in", output="local") == 0
    assert call("in", "--vectors", "areas.gpkg", "--no-styles", output=output) == 0
    assert store.keys() == ["maps/a.tif", "maps/b.tif"]
    found = features(Path("areas.gpkg"))
    for name in ("a.tif", "b.tif"):
        np.testing.assert_array_equal(burned(found, name, Path("in") / name), read(Path("local") / name))
    capfd.readouterr()
    assert call("in", "--vectors", "areas.gpkg", "--no-styles", output=output) == 0
    assert "areas.gpkg: finished and unchanged" in capfd.readouterr().out


@pytest.mark.slow
def test_labels_of_polygons_score_as_the_raster_does(call: Call, monkeypatch: Any) -> None:
    """The polygons of the maps themselves, with one class renamed by hand: one file for both images."""
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert call("in", "--vectors", "areas.gpkg") == 0
    assert call("in", "--labels", "areas.gpkg") == 0
    scores = json.loads(Path("maps/scores.json").read_text())
    assert scores["miou"] == 1
    assert scores["pixels"] == 2 * SIZE[0] * SIZE[1]
    found = features(Path("areas.gpkg"))
    chosen = found["class"] != "b"
    wkb = shapely.to_wkb(found["geometry"][chosen])
    for name in "ab":
        raw.write(f"truth_{name}.fgb", wkb, [found["class"][chosen]], ["class"], driver="FlatGeobuf",
                  geometry_type="Polygon", crs="EPSG:25833")  # fmt: skip
    assert call("in", "--labels", "truth_{stem}.fgb") == 0
    scores = json.loads(Path("maps/scores.json").read_text())
    without = sum(int((read(f"maps/{name}.tif") != 1).sum()) for name in "ab")
    assert scores["pixels"] == without  # b is in no polygon: ignored
