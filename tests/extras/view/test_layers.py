"""Layers and levels: the raster's own pixels, means and modes of them, whatever the georeference."""

import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.base.errors import ChangedInputError, SegmenterError
from segmenter.extras.view import pyramid as of_pyramid
from segmenter.extras.view.opening import Wanted, opened_maps
from segmenter.extras.view.overviews import Overviews
from segmenter.extras.view.places import FoundPlaces
from segmenter.extras.view.pyramid import Pyramid, level_size, levels, reduce_squares
from segmenter.extras.view.shown_map import ShownMap
from segmenter.extras.view.values import pixel_facts, sight
from segmenter.extras.view.windows import WindowList
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.raster import RasterSpec, write_raster
from tests.helpers.made_rasters import written
from tests.helpers.refusals import refused
from tests.helpers.viewed_maps import CODES, COLOURS, NAMES, PLACES, UTM, MadeMap, made_map

NAIP = Path(__file__).parents[3] / "../shared/data/robust/naip__nir_tagged_as_alpha.tif"


def shown_of(folder: Path, **more: Any) -> ShownMap:
    labels = more.pop("labels", f"{folder}/labels/{{stem}}.tif")
    maps, _ = opened_maps(Wanted((folder / "maps",), folder / "images", labels, **more))
    return maps[0]


def whole(shown: ShownMap, layer: str, level: int = 0, bands: tuple[int, ...] = ()) -> Any:
    return shown.pyramid(layer, bands).read(level, Window.of(level_size(shown.info.size, level)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MadeMap]:
    folder = tmp_path_factory.mktemp("maps")
    return folder, made_map(folder, **UTM)


def test_layers_are_the_values_of_their_files(made: tuple[Path, MadeMap]) -> None:
    folder, own = made
    shown = shown_of(folder, beside=folder / "maps")
    assert list(shown.layers) == [
        *("image", "map", "label", "beside", "confidence", "probabilities", "errors", "differences")
    ]
    assert shown.notes == []
    has_data = own.ids_HW != 255
    for layer, expected, known in (
        ("map", own.ids_HW, has_data),
        ("label", own.label_HW, np.ones_like(has_data)),
        ("confidence", own.confidence_HW, has_data),
        ("errors", 255 * (own.ids_HW != own.label_HW), has_data),
        ("differences", np.zeros_like(own.ids_HW), has_data),
    ):
        values, valid = whole(shown, layer)
        assert (valid == known).all(), layer
        assert (values[..., 0][valid] == expected[valid]).all(), layer
    values, _ = whole(shown, "image", bands=(3, 1, 2))
    assert (values == own.image_HWC[..., [2, 0, 1]]).all()


@pytest.mark.parametrize("place", PLACES)
def test_a_map_knows_its_image_in_any_georeference(tmp_path: Path, place: str) -> None:
    own = made_map(tmp_path, **PLACES[place])
    shown = shown_of(tmp_path)
    assert shown.notes == []
    assert (whole(shown, "image")[0] == own.image_HWC).all()
    facts = pixel_facts(shown, 7, 11)
    move = PLACES[place].get("transform")
    assert (facts["x"], facts["y"]) == ((None, None) if move is None else move @ (11.5, 7.5))
    assert (facts["latitude"] is None) == (move is None)


def test_an_image_whose_infrared_is_tagged_as_alpha_is_shown_in_colours(tmp_path: Path) -> None:
    if not NAIP.exists():
        pytest.skip("no real imagery in ../shared/data here")
    from segmenter.raster import open_raster

    with open_raster(NAIP, (1, 2, 3, 4)) as raster:
        pixels, _ = raster.read(Window.of(raster.info.size))
        place = raster.info.georeference(Window.of(raster.info.size))
    made_map(tmp_path, "naip", Size(*pixels.shape[:2]), crs=place["crs"], transform=place["transform"])
    shutil.copy(NAIP, tmp_path / "images" / "naip.tif")
    shown = shown_of(tmp_path)
    assert (whole(shown, "image")[0] == pixels[..., :3]).all()
    assert (whole(shown, "image", bands=(4, 1, 2))[0] == pixels[..., [3, 0, 1]]).all()
    assert len(shown.layers["image"].bands) == 4


def test_a_map_of_a_part_lies_where_it_is_in_its_image(tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    part = Window(40, 70, 101, 203)
    tags = {f"CLASS_{i}": each for i, each in enumerate(NAMES)} | {"SOURCE": "a.tif"}
    moved = UTM["transform"] @ UTM["transform"].translation(part.col, part.row)
    spec = RasterSpec(crs=UTM["crs"], transform=moved, nodata=255, tags=tags)
    shutil.rmtree(tmp_path / "maps")
    write_raster(tmp_path / "maps" / "cut.tif", own.ids_HW[part.slices()], spec)
    shown = shown_of(tmp_path, labels=f"{tmp_path}/labels/a.tif")
    assert (whole(shown, "image")[0] == own.image_HWC[part.slices()]).all()
    assert (whole(shown, "map")[0][..., 0] == own.ids_HW[part.slices()]).all()


def test_what_does_not_lie_on_the_map_is_a_note_and_no_layer(tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    written(tmp_path / "images" / "a.tif", own.image_HWC[:-1])
    written(tmp_path / "labels" / "a.tif", own.label_HW[:, :-1])
    shown = shown_of(tmp_path)
    assert {"image", "label", "errors"} & {*shown.layers} == set()
    assert len(shown.notes) == 2
    missing = shown_of(tmp_path, labels=f"{tmp_path}/elsewhere/{{stem}}.png")
    assert any("elsewhere/a.png" in note for note in missing.notes)


def test_labels_of_another_grid_are_placed_on_the_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = made_map(tmp_path, **UTM)
    finer = np.array(CODES, np.uint8)[own.label_HW].repeat(3, axis=0).repeat(3, axis=1)
    move = UTM["transform"] @ UTM["transform"].scale(1 / 3)
    write_raster(tmp_path / "labels" / "a.tif", finer, RasterSpec(crs=UTM["crs"], transform=move))
    values, valid = whole(shown_of(tmp_path), "label")
    assert valid.all()
    assert (values[..., 0] == own.label_HW).all()


def test_labels_in_colours_are_known_by_the_colours_of_the_map(tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    colours = np.array(COLOURS, np.uint8)[own.label_HW]
    colours[:4] = 1  # the colour of no class
    write_raster(tmp_path / "labels" / "a.tif", colours, RasterSpec(bands=3, **UTM))
    values, valid = whole(shown_of(tmp_path), "label")
    assert not valid[:4].any()
    assert (values[4:, :, 0] == own.label_HW[4:]).all()


@pytest.mark.parametrize("how", ["codes", "colours", "palette", "also"])
def test_labels_are_read_as_the_recipe_reads_them(
    how: str, call: Any, make_classes: Callable[..., ClassMap], make_geotiff: Any, tmp_path: Path, rng: Any
) -> None:
    """Whatever codes the map has: by its own, classes would be swapped and pixels lost without a word."""
    classes = make_classes(7, "codes" if how in ("codes", "also") else "colours")
    if how == "also":
        own = tuple(replace(each, also=(100 + i,)) for i, each in enumerate(classes.classes))
        classes = replace(classes, classes=own)
    truth = rng.integers(0, 7, (61, 83)).astype(np.uint8)
    make_geotiff("in/a.tif", rng.integers(0, 255, (*truth.shape, 3)).astype(np.uint8))
    colours = [each.colour for each in classes.classes]
    if how == "colours":
        make_geotiff("truth/a.tif", np.array(colours, np.uint8)[truth])
    elif how == "palette":
        table = {(i + 3) % 7: (*colour, 255) for i, colour in enumerate(colours)}
        make_geotiff("truth/a.tif", (truth + 3) % 7, colours=table)
    else:
        also = np.uint8(100) * rng.integers(0, 2, truth.shape).astype(np.uint8) * (how == "also")
        make_geotiff("truth/a.tif", truth + also)
    labels = "truth/{stem}.tif"
    assert call("in", "--labels", labels, "--codes", "6,5,4,3,2,1,0", classes=classes) == 0
    maps, _ = opened_maps(Wanted((Path("maps"),), labels=f"{tmp_path}/{labels}"))
    values, valid = whole(maps[0], "label")
    assert valid.all()
    assert (values[..., 0] == truth).all()
    scores = json.loads(Path("maps/scores.json").read_text())
    wrong, known = whole(maps[0], "errors")
    assert 1 - (wrong[known.astype(bool)] > 0).mean() == pytest.approx(scores["oa"], abs=1e-9)


def test_classes_of_one_name_are_one_and_no_two_have_a_colour(tmp_path: Path) -> None:
    ids = np.arange(6, dtype=np.uint8).reshape(2, 3) % 3
    for name, classes in (("a", ("road", "water", "rock")), ("b", ("water", "sand", "road"))):
        table = np.full((256, 3), 9, np.uint8)
        tags = {f"CLASS_{i}": each for i, each in enumerate(classes)}
        write_raster(tmp_path / f"{name}.tif", ids, RasterSpec(nodata=255, tags=tags, colour_table=table))
    maps, legend = opened_maps(Wanted((tmp_path,)))
    assert legend.names == ["road", "water", "rock", "sand"]
    assert len(set(legend.colours)) == 4
    assert whole(maps[1], "map")[0][0, :, 0].tolist() == [1, 3, 0]


# ---------------------------------------------------------------------------------------------- levels


def dense(values: NDArray[Any], valid: NDArray[np.bool_], factor: int, by_mean: bool) -> Any:
    """Reduce square by square."""
    height, width = (-(-side // factor) for side in valid.shape)
    out, known = np.zeros((height, width, values.shape[2]), values.dtype), np.zeros((height, width), np.bool_)
    for row, col in np.ndindex(height, width):
        cut = np.s_[row * factor : (row + 1) * factor, col * factor : (col + 1) * factor]
        own = values[cut][valid[cut]]
        known[row, col] = 2 * len(own) >= valid[cut].size and len(own) > 0
        if len(own):
            mean = own.astype(np.float64).mean(axis=0)
            mode = np.bincount(own[:, 0].astype(int)).argmax() if not by_mean else 0
            out[row, col] = (np.rint(mean) if values.dtype.kind in "iu" else mean) if by_mean else mode
    return out, known


@pytest.mark.parametrize("factor", [2, 4, 16])
@pytest.mark.parametrize(
    ("dtype", "by_mean"), [("uint8", False), ("uint8", True), ("uint16", True), ("float32", True)]
)
def test_a_level_is_the_mean_or_the_mode_of_its_pixels(factor: int, dtype: str, by_mean: bool) -> None:
    rng = np.random.default_rng(factor)
    values = rng.integers(0, 5 if not by_mean else 250, (53, 78, 1 if not by_mean else 3)).astype(dtype)
    valid = rng.random((53, 78)) < 0.7
    found, known = reduce_squares((values, valid), factor, by_mean=by_mean)
    expected, has_data = dense(values, valid, factor, by_mean)
    assert (known == has_data).all()
    difference = np.abs(found.astype(np.float64) - expected)[known]
    assert difference.max() <= (
        1e-3 if dtype == "float32" else by_mean
    )  # a mean of x.5 is rounded either way


@pytest.mark.parametrize(
    "size", [Size(1, 1), Size(256, 256), Size(257, 3), Size(5000, 11), Size(70000, 200000)]
)
def test_the_coarsest_level_is_one_tile(size: Size) -> None:
    top = levels(size)
    side = max(level_size(size, top).height, level_size(size, top).width)
    assert side <= 256
    assert top == 0 or side > 128


@pytest.mark.slow
def test_before_an_overview_pixels_are_those_of_few_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_pyramid, "MOST_EXACT", 1 << 18)
    own = made_map(tmp_path, size=Size(1700, 2300), **UTM)
    shown = shown_of(tmp_path)
    layer, read = shown.layers["map"], []

    def counted(window: Window, bands: Any, inner: Any = layer.read) -> Any:
        read.append(window)
        return inner(window, bands)

    monkeypatch.setattr(layer, "read", counted)
    rows, cols = np.minimum(np.arange(8, 1708, 16), 1699), np.minimum(np.arange(8, 2308, 16), 2299)
    values, valid = Pyramid(layer, ())._thin(Window.of(shown.info.size), 16, 9)
    assert valid.shape == (len(rows), len(cols))
    assert 1 <= len(read) <= 9
    assert sum(each.size.pixels for each in read) < own.ids_HW.size / 2
    rows, cols = of_pyramid.near(rows, cols, layer.block, 9)
    sampled = own.ids_HW[np.ix_(rows, cols)]
    assert (valid == (sampled != 255)).all()
    assert (values[..., 0][valid] == sampled[valid]).all()
    pyramid = Pyramid(layer, ())
    for level in (3, 4):  # all levels show the same first sight
        window = Window(5, 7, 40, 60)
        assert pyramid.read(level, window)[0].shape == (40, 60, 1)


def test_an_overview_has_the_levels_and_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_pyramid, "MOST_EXACT", 1 << 16)
    own = made_map(tmp_path, size=Size(1101, 1303), **UTM)
    done, found = threading.Event(), []
    for _ in range(2):
        shown, overviews = shown_of(tmp_path), Overviews(tmp_path / "cache")
        pyramid = shown.pyramid("map")
        overviews.ask(pyramid, done.set)
        done.wait()
        done.clear()
        assert sorted(pyramid.overviews) == [2, 3]
        values, valid = whole(shown, "map", 2)
        expected, known = reduce_squares((own.ids_HW[..., None], own.ids_HW != 255), 4, by_mean=False)
        assert (valid == known).all()
        assert (values[valid] == expected[known]).all()
        overviews.close()
        found.append({path.name: path.stat().st_ino for path in (tmp_path / "cache").glob("*.tif")})
    assert len(found[0]) == 2
    assert found[0] == found[1]
    stamp = shown.pyramid("map").layer.key(())
    os.utime(own.map, ns=(0, own.map.stat().st_mtime_ns + 1))
    assert shown_of(tmp_path).pyramid("map").layer.key(()) != stamp


@pytest.mark.slow
def test_overviews_keep_to_their_bound_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_pyramid, "MOST_EXACT", 1 << 16)
    made_map(tmp_path, size=Size(1101, 1303), **UTM)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "old-1-2.tif").write_bytes(bytes(1 << 20))
    overviews = Overviews(tmp_path / "cache", most_bytes=1 << 20)
    shown = shown_of(tmp_path)
    done = threading.Event()
    overviews.ask(shown.pyramid("map"), done.set)
    done.wait()
    assert not (tmp_path / "cache" / "old-1-2.tif").exists()
    overviews.close()
    none = Overviews(tmp_path / "none", most_bytes=-1)
    pyramid = shown_of(tmp_path).pyramid("map")
    with refused(SegmenterError, where=str(tmp_path / "none")):
        none.make(pyramid)
    assert pyramid.overviews == {}
    done.clear()
    none.ask(pyramid, done.set)
    done.wait()
    assert len(none.remarks) == 1
    assert pyramid.done == 1
    none.close()
    assert [*(tmp_path / "none").glob("*.tif")] == []


def test_a_file_that_is_removed_or_changed_is_told(tmp_path: Path) -> None:
    own = made_map(tmp_path, **UTM)
    shown = shown_of(tmp_path)
    whole(shown, "map")
    own.map.unlink()
    with refused(ChangedInputError, where=str(own.map)):
        whole(shown, "map")


# ------------------------------------------------------------------------------------- values and places


def test_a_pixel_tells_all_that_the_files_say(made: tuple[Path, MadeMap]) -> None:
    folder, own = made
    facts = pixel_facts(shown_of(folder), 100, 200)
    layers = {each["id"]: each for each in facts["layers"]}
    assert layers["map"]["class"] == own.ids_HW[100, 200]
    assert layers["label"]["class"] == own.label_HW[100, 200]
    assert layers["image"]["values"] == own.image_HWC[100, 200].tolist()
    assert layers["confidence"]["shares"] == [round(own.confidence_HW[100, 200] / 255, 3)]
    assert len(layers["probabilities"]["shares"]) == len(NAMES)
    assert facts["latitude"] == pytest.approx(52.405, abs=0.01)
    assert {each.get("text") for each in pixel_facts(shown_of(folder), 0, 0)["layers"]} >= {"no data"}
    with refused(SegmenterError):
        pixel_facts(shown_of(folder), 301, 0)


def test_shares_and_hectares_in_sight_are_those_of_the_pixels(made: tuple[Path, MadeMap]) -> None:
    folder, own = made
    window = Window(10, 20, 99, 133)
    found = sight(shown_of(folder), window, len(NAMES))
    count = np.bincount(own.ids_HW[window.slices()].ravel(), minlength=256)[: len(NAMES)]
    assert [each["share"] for each in found["classes"]] == pytest.approx((count / count.sum()).tolist())
    assert [each["hectares"] for each in found["classes"]] == pytest.approx((count * 0.25 / 1e4).tolist())
    assert found["exact"]


def test_pixels_in_degrees_have_their_own_areas(tmp_path: Path) -> None:
    own = made_map(tmp_path, **PLACES["degrees"])
    found = sight(shown_of(tmp_path), Window.of(Size(301, 417)), len(NAMES))
    hectares = sum(each["hectares"] for each in found["classes"])
    side = 9e-5 * 111_320
    known = (own.ids_HW != 255).sum()
    assert hectares == pytest.approx(known * side**2 * np.cos(np.radians(9.6)) / 1e4, rel=0.01)


def test_the_worst_windows_come_first(made: tuple[Path, MadeMap]) -> None:
    folder, own = made
    shown = shown_of(folder)
    listed = WindowList("errors", "most errors", [shown], NAMES)
    listed._take(shown, shown.pyramid("errors"))
    entries = listed.entries()
    wrong = (own.ids_HW != own.label_HW) & (own.ids_HW != 255)

    def errors(entry: dict[str, Any]) -> int:
        own_window = Window(entry["row"], entry["column"], entry["height"], entry["width"])
        return int(wrong[own_window.slices()].sum())

    counts = [errors(entry) for entry in entries]
    assert counts == sorted(counts, reverse=True)
    side = entries[0]["height"]
    cells = [
        wrong[r : r + side, c : c + side].sum() for r in range(0, 301, side) for c in range(0, 417, side)
    ]
    assert counts[0] == max(cells)
    assert entries[0]["title"].endswith("% wrong")
    assert any(name in entries[0]["detail"] for name in NAMES)


def test_without_labels_the_least_sure_windows_are_listed(made: tuple[Path, MadeMap]) -> None:
    folder, own = made
    shown = shown_of(folder, labels=None)
    assert "errors" not in shown.layers
    listed = WindowList("confidence", "least sure", [shown], NAMES)
    listed._take(shown, shown.pyramid("confidence"))
    first, last = (listed.entries()[i] for i in (0, -1))
    low, high = (
        own.confidence_HW[e["row"] : e["row"] + e["height"], e["column"] : e["column"] + e["width"]].mean()
        for e in (first, last)
    )
    assert low < high


def test_findings_and_points_are_lists_of_places(tmp_path: Path) -> None:
    made_map(tmp_path, "a", **UTM)
    made_map(tmp_path, "b", seed=1, **UTM)
    maps, _ = opened_maps(Wanted((tmp_path / "maps",)))
    table = tmp_path / "review.csv"
    table.write_text(
        '"rank","scene","row","col","height","width","label","likely"\n'
        '1,"b",8,16,24,32,"road","water"\n2,"nowhere",0,0,8,8,"road","water"\n'
    )
    found = FoundPlaces(table, maps)
    (entry,) = found.entries()
    place = {"row": 8, "column": 16, "height": 24, "width": 32}
    assert entry == {"map": "1", **place, "title": "1 water", "detail": "labelled road"}
    assert found.left_out == 1
    points = tmp_path / "points.gpkg"
    with sqlite3.connect(points) as file:
        file.execute("create table points (id, map, row, col, mapped)")
        file.execute("insert into points values (7, 'a.tif', 100, 200, 'water')")
    file.close()
    (entry,) = FoundPlaces(points, maps).entries()
    assert (entry["map"], entry["row"] + entry["height"] // 2, entry["column"] + 16) == ("0", 100, 200)
    assert "water" not in entry["title"] + entry["detail"]
    table.write_text("name,x\na,3\n")
    assert FoundPlaces(table, maps).left_out == 1
    table.write_text("map,x\na,3\n")
    with refused(SegmenterError, where=str(table)):
        FoundPlaces(table, maps)
    points.write_bytes(b"no database")
    with refused(SegmenterError, where=str(points)):
        FoundPlaces(points, maps)
