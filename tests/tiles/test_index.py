"""The tile index against brute force; damaged in any way, it and the statistics are made anew."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import rasterio
from numpy.typing import NDArray

import segmenter.tiles.index as index_module
from segmenter.base.errors import DatasetError, LabelError, RasterError
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.grid.windows import grid, row_strips
from segmenter.tiles import index_cache as cache
from segmenter.tiles import statistics
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.index_cache import Entries, SceneTiles, load_entries, save_entries
from segmenter.tiles.statistics import BandStatistics
from tests.helpers.made_runs import flipped, rewritten
from tests.helpers.refusals import refused

Make = Callable[..., Path]
AREA = Size(53, 101)


def scene(name: str, image: Path, label: Path | None, split: Split = "train") -> Scene:
    return Scene(name, image, label, name, split)


def dataset_of(root: Path, classes: ClassMap, *scenes: Scene, **options: Any) -> Dataset:
    return Dataset("made", root, scenes, classes, **options)


@pytest.fixture
def made(tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: Any) -> Dataset:
    """Four scenes: two train (one with nodata, one smaller than a tile), one validates, one tests."""
    scenes = []
    sizes = (AREA, Size(19, 13), Size(40, 41), Size(33, 64))
    for i, (size, split) in enumerate(zip(sizes, ("train", "train", "validation", "test"), strict=True)):
        image = rng.integers(1, 255, (size.height, size.width, 3)).astype(np.uint8)
        image[:5, :7] = 0
        label = rng.integers(0, 3, (size.height, size.width)).astype(np.uint8)
        label[-4:] = 9
        files = make_geotiff(f"{i}.tif", image, nodata=0), make_geotiff(f"{i}_label.tif", label)
        scenes.append(scene(str(i), *files, split))  # type: ignore[arg-type]
    return dataset_of(tmp_path, make_classes(4, ignored=(9,)), *scenes)


def ids_of(path: Path, image: Path) -> NDArray[np.uint8]:
    """Class ids by the book: read whole, nodata and ignored pixels left out."""
    with rasterio.open(path) as label, rasterio.open(image) as file:
        ids, data = label.read(1), file.read()
    return np.where((ids == 9) | (data == 0).all(axis=0), IGNORE, ids)


def brute_force(dataset: Dataset, split: Split, tiles: TilesConfig) -> list[tuple[int, ...]]:
    rows = []
    for number, one in enumerate(dataset.of(split)):
        assert one.label is not None
        ids = ids_of(one.label, one.image)
        for placement in grid(Size(*ids.shape), Size(tiles.size, tiles.size), tiles.overlap):
            window = placement.read
            part = ids[window.slices()]
            counts = [int((part == k).sum()) for k in range(len(dataset.classes))]
            if sum(counts) >= tiles.min_labelled * tiles.size**2:
                rows.append((number, window.row, window.col, sum(counts), *counts))
    return rows


def rows_of(index: TileIndex) -> list[tuple[int, ...]]:
    columns = (index.scene_N, index.row_N, index.col_N, index.labelled_N, *index.counts_NK.T)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize(
    ("overlap", "min_labelled", "split"), [(0, 0.9, "train"), (5, 0.05, "train"), (15, 0.0, "validation")]
)
@pytest.mark.parametrize("strip", [1, 7 * 101, 2000, 10**6])
def test_counts_are_those_of_the_labels_as_training_reads_them(
    made: Dataset, overlap: int, min_labelled: float, split: Split, strip: int, monkeypatch: Any
) -> None:
    """However many pixels are read at once: strips cut through tiles."""
    monkeypatch.setattr("segmenter.tiles.index.STRIP_PIXELS", strip)
    tiles = TilesConfig(size=16, overlap=overlap, min_labelled=min_labelled)
    index = build_index(made, split, tiles, progress=False)
    assert rows_of(index) == brute_force(made, split, tiles)
    everything = brute_force(made, split, TilesConfig(size=16, overlap=overlap, min_labelled=0))
    assert index.left_out == len(everything) - len(index)
    assert index.counts_NK.dtype == index.labelled_N.dtype == np.int64
    assert index.scene_N.dtype == index.row_N.dtype == index.col_N.dtype == np.int32
    assert index.window(0) == Window(*rows_of(index)[0][1:3], 16, 16)
    np.testing.assert_allclose(index.shares(), index.counts_NK.sum(axis=0) / index.labelled_N.sum())


def test_the_fingerprint_is_that_of_places_and_counts(made: Dataset) -> None:
    """Resuming asks it whether the plan is still that of these tiles."""
    index = build_index(made, "train", TilesConfig(size=16), progress=False)
    arrays = ("scene_N", "row_N", "col_N", "counts_NK")
    changed = [replace(index, **{name: getattr(index, name) + 1}) for name in arrays]
    assert len({one.fingerprint() for one in (index, *changed)}) == 5
    assert replace(index, counts_NK=index.counts_NK.copy()).fingerprint() == index.fingerprint()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    real = index_module.tile_counts

    def counting(dataset: Dataset, one: Scene, *args: Any) -> Any:
        names.append(one.name)
        return real(dataset, one, *args)

    monkeypatch.setattr(index_module, "tile_counts", counting)
    return names


def test_only_changed_files_are_read_again(made: Dataset, decoded: list[str]) -> None:
    tiles = TilesConfig(size=16)
    first = build_index(made, "train", tiles, progress=False)
    assert sorted(decoded) == ["0", "1"]
    again = build_index(made, "train", tiles, progress=False)
    assert sorted(decoded) == ["0", "1"]
    assert rows_of(again) == rows_of(first)
    build_index(made, "validation", tiles, progress=False)
    assert decoded[2:] == ["2"]
    for changed in (made.scenes[1].image, made.scenes[1].label):
        assert changed is not None
        os.utime(changed, ns=(1, changed.stat().st_mtime_ns + 1))
        del decoded[:]
        build_index(made, "train", tiles, progress=False)
        assert decoded == ["1"]


def test_other_settings_have_another_index(made: Dataset, decoded: list[str]) -> None:
    build_index(made, "train", TilesConfig(size=16), progress=False)
    build_index(made, "train", TilesConfig(size=16, overlap=3), progress=False)
    build_index(made, "train", TilesConfig(size=16, min_labelled=0.5), progress=False)
    assert len(decoded) == 4


def test_removed_scenes_leave(made: Dataset) -> None:
    build_index(made, "train", TilesConfig(size=16), progress=False)
    smaller = dataset_of(made.root, made.classes, *made.scenes[1:])
    made.scenes[0].image.unlink()
    index = build_index(smaller, "train", TilesConfig(size=16), progress=False)
    assert [one.name for one in index.scenes] == ["1"]
    path = next(cache_folder(made).glob("*.parquet"))
    assert list(index_module.load_entries(path, 4)) == [("1.tif", "1_label.tif")]


@pytest.mark.parametrize("damage", [b"no parquet", None])
def test_a_damaged_index_is_built_anew_and_says_so(
    made: Dataset, decoded: list[str], capsys: pytest.CaptureFixture[str], damage: bytes | None
) -> None:
    first = build_index(made, "train", TilesConfig(size=16), progress=False)
    path = next(cache_folder(made).glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF  # in a page of data
    path.write_bytes(bytes(content) if damage is None else damage)
    assert rows_of(build_index(made, "train", TilesConfig(size=16), progress=False)) == rows_of(first)
    assert "built anew" in capsys.readouterr().err
    assert len(decoded) == 4


def test_what_was_read_before_an_error_is_kept(made: Dataset, decoded: list[str], make_geotiff: Make) -> None:
    bad = made.scenes[1].label
    assert bad is not None
    make_geotiff(bad.name, np.full((19, 13), 77, np.uint8))
    with pytest.raises(LabelError, match=r"1_label.tif: .*know: 77 \(247 px\)"):
        build_index(made, "train", TilesConfig(size=16), workers=1, progress=False)
    make_geotiff(bad.name, np.zeros((19, 13), np.uint8))
    del decoded[:]
    build_index(made, "train", TilesConfig(size=16), progress=False)
    assert decoded == ["1"]


def test_a_root_that_cannot_be_written(
    made: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".tile-index").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    index = build_index(made, "train", TilesConfig(size=16), progress=False)
    assert len(index) > 0
    assert "tile index" in capsys.readouterr().err
    assert list((tmp_path / "cache" / "coverage-segmenter").glob("*/tiles-*.parquet"))


def test_errors_name_the_file(made: Dataset, make_geotiff: Make, make_png: Make) -> None:
    image = made.scenes[0].image
    moved = rasterio.Affine(0.5, 0, 368000.4, 0, -0.5, 5808000)
    labels = np.zeros((53, 101), np.uint8)
    cases: list[tuple[Path | None, type[Exception], str]] = [
        (None, DatasetError, "expected a label for scene s, there is none"),
        (make_png("wide.png", np.zeros((53, 104), np.uint8)), DatasetError, "expected 101×53 .*got 104×53"),
        (make_geotiff("moved.tif", labels, transform=moved), DatasetError, "up to 0.8 pixels from its image"),
        (make_geotiff("utm32.tif", labels, crs="EPSG:25832"), DatasetError, "image's CRS EPSG:25833, got"),
        (make_png("rgb.png", np.full((53, 101, 3), (0, 1, 0), np.uint8)), LabelError, "expected one band"),
        (made.root / "none.png", RasterError, "none.png"),
    ]
    for label, kind, message in cases:
        bad = dataset_of(made.root, made.classes, scene("s", image, label))
        with pytest.raises(kind, match=message):
            build_index(bad, "train", TilesConfig(size=16), progress=False)


def test_a_label_that_is_moved_by_less_than_half_a_pixel_fits(made: Dataset, make_geotiff: Make) -> None:
    slight = rasterio.Affine(0.5, 0, 368000.2, 0, -0.5, 5808000)
    label = make_geotiff("slight.tif", np.zeros((53, 101), np.uint8), transform=slight)
    good = dataset_of(made.root, made.classes, scene("s", made.scenes[0].image, label))
    assert len(build_index(good, "train", TilesConfig(size=16), progress=False)) > 0


def test_no_tile_with_enough_labels(made: Dataset, make_geotiff: Make) -> None:
    label = make_geotiff("ignored.tif", np.full((53, 101), 9, np.uint8))
    empty = dataset_of(made.root, made.classes, scene("s", made.scenes[0].image, label))
    with refused(DatasetError, expected="least 5.0%"):
        build_index(empty, "train", TilesConfig(size=16), progress=False)


@pytest.mark.parametrize(("width", "heights"), [(1, [3, 3, 3, 1]), (2, [1] * 10), (9, [1] * 10)])
def test_strips_have_as_many_rows_as_pixels_allow(width: int, heights: list[int]) -> None:
    assert [window.height for window in row_strips(Size(10, width), 3)] == heights


@pytest.fixture
def entries(rng: np.random.Generator) -> Entries:
    def tiles(count: int) -> SceneTiles:
        row, col = (rng.integers(-9, 99, count).astype(np.int32) for _ in range(2))
        return SceneTiles(row, col, rng.integers(0, 9**5, (count, 3)))

    return {
        ("a.tif", "b.tif"): (("1f", "2a"), tiles(5)),
        ("wäld/c.tif", "d.tif"): (("5", "6"), tiles(0)),
        ("e.tif", "e.tif"): (("9", "9"), tiles(3)),
    }


def plain(entries: Entries) -> Any:
    def values(tiles: SceneTiles) -> list[Any]:
        return [tiles.row_N.tolist(), tiles.col_N.tolist(), tiles.counts_NK.tolist()]

    return [(files, keys, values(tiles)) for files, (keys, tiles) in entries.items()]


def test_no_flipped_bit_of_an_index_gives_other_tiles(
    tmp_path: Path, entries: Entries, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "tiles.parquet"
    save_entries(path, entries, 3)
    assert plain(load_entries(path, 3)) == plain(entries)
    whole, rebuilt = path.read_bytes(), 0
    for content in flipped(whole, 97):
        path.write_bytes(content)
        found = load_entries(path, 3)
        assert found == {} or plain(found) == plain(entries)
        rebuilt += found == {}
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == rebuilt > 8 * len(whole) / 97 / 2
    assert all(line.startswith(f"{path}: damaged, it is built anew (") and len(line) < 500 for line in lines)


SAID: list[Callable[[dict[bytes, bytes]], Any]] = [
    lambda said: said.clear(),
    lambda said: said.update({b"format": b"1"}),
    lambda said: said.update({b"scenes": b"[1]"}),
    lambda said: said.update({b"scenes": b"[" * 10**5}),
    lambda said: said.update({b"scenes": said[b"scenes"].replace(b"e.tif", b"f.tif")}),
]


@pytest.mark.parametrize("change", SAID, ids=range(len(SAID)))
@pytest.mark.parametrize("checked", [False, True])
def test_an_index_that_says_nothing_or_else_of_itself_is_none(
    tmp_path: Path, entries: Entries, monkeypatch: Any, change: Callable[[Any], Any], checked: bool
) -> None:
    path = tmp_path / "tiles.parquet"
    save_entries(path, entries, 3)
    table = pq.read_table(path)
    said = dict(table.schema.metadata)
    change(said)
    pq.write_table(table.replace_schema_metadata(said or None), path)
    if not checked and b"sha256" in said:  # what if the checksum fitted?
        monkeypatch.setattr(cache, "_checksum", lambda *_: said[b"sha256"])
    found = load_entries(path, 3)
    assert found == {} or (not checked and ("f.tif", "f.tif") in found)


FOUND = BandStatistics(
    *(np.array([1.5, 2.0]), np.array([0.25, 3]), 7, "uint16", np.array([0.0, 1]), np.array([9.0, 8])),
    np.array([0.2, 2.5]),
)


def values(found: BandStatistics) -> list[Any]:
    return [value.tolist() if isinstance(value, np.ndarray) else value for value in astuple(found)]


def test_no_flipped_bit_of_the_statistics_gives_other_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bands.json"
    statistics._save(path, FOUND)
    whole, rebuilt = path.read_bytes(), 0
    for content in flipped(whole, 5):
        path.write_bytes(content)
        found = statistics._load(path)
        assert found is None or values(found) == values(FOUND)
        rebuilt += found is None
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == rebuilt > 0.97 * 8 * len(whole) / 5
    assert all(line.startswith(f"{path}: damaged, it is taken anew (") for line in lines)


def test_what_are_no_statistics_or_of_another_format_is_none(tmp_path: Path) -> None:
    path = tmp_path / "bands.json"
    for version in (2, 4, None):
        statistics._save(path, FOUND)
        rewritten(path, format=version)
        assert statistics._load(path) is None
    for content in (b"", b"[]", b"\xff", b"[" * 10**5, b'{"mean": [0], "std": [1]}'):
        path.write_bytes(content)
        assert statistics._load(path) is None
