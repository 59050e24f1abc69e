"""Stamps: whatever changes what a raster means changes its key, and only then it is opened in full again."""

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap, Encoding, LandCoverClass
from segmenter.raster import KnownRasters, LabelRaster, open_raster
from segmenter.raster import opening_cache as known
from segmenter.raster.stamps import stamp_of

Make = Callable[..., Path]

STATISTICS = (
    '<PAMDataset>\n  <PAMRasterBand band="1">\n    <Histograms><HistItem><HistMin>0</HistMin></HistItem>'
    '</Histograms>\n    <Metadata>\n      <MDI key="STATISTICS_MEAN">4.0</MDI>\n    </Metadata>\n'
    "  </PAMRasterBand>\n</PAMDataset>\n"
)
NODATA = '<PAMDataset><PAMRasterBand band="1"><NoDataValue>7</NoDataValue></PAMRasterBand></PAMDataset>'


@pytest.fixture
def image(make_geotiff: Make, rng: np.random.Generator) -> Path:
    return make_geotiff("a/x.tif", rng.integers(0, 9, (13, 17, 1), np.uint8))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.tif.msk", b"II*\0"),
        ("x.tif.aux.xml", NODATA.encode()),
        ("x.tfw", b"1\n0\n0\n-1\n5\n6\n"),
        ("x.wld", b"1\n0\n0\n-1\n5\n6\n"),
        ("x.tab", b"!table"),
        ("x_rpc.txt", b"LINE_OFF: 1"),
        ("metadata.dim", b"<Dimap/>"),
    ],
)
def test_what_lies_beside_a_raster_and_has_a_say_changes_its_key(
    image: Path, name: str, content: bytes
) -> None:
    before = stamp_of(image)
    beside = image.with_name(name)
    beside.write_bytes(content)
    with_it = stamp_of(image)
    assert with_it.key != before.key
    beside.write_bytes(content + b" ")
    assert stamp_of(image).key not in (before.key, with_it.key)
    beside.unlink()
    assert stamp_of(image) == before


@pytest.mark.parametrize("name", ["y.tif.msk", "x.tif.ovr", "notes.txt", "x.png", "x.tif~", "other.tfw"])
def test_what_has_no_say_changes_nothing(image: Path, name: str) -> None:
    before = stamp_of(image)
    image.with_name(name).write_bytes(b"II*\0")
    assert stamp_of(image) == before


def test_statistics_of_a_viewer_change_nothing(image: Path) -> None:
    """QGIS and gdalinfo write them beside an image that is only looked at."""
    before = stamp_of(image)
    beside = image.with_name("x.tif.aux.xml")
    beside.write_text(STATISTICS)
    assert stamp_of(image) == before
    beside.write_text(NODATA)
    told = stamp_of(image)
    beside.write_text(NODATA.replace("</PAMDataset>", STATISTICS[len("<PAMDataset>\n") :]))
    assert stamp_of(image) != before
    os.utime(beside, (5, 5))
    beside.write_text(NODATA)
    assert stamp_of(image) == told


def test_a_raster_itself_changes_its_key_but_not_its_folder(image: Path, tmp_path: Path) -> None:
    before = stamp_of(image)
    copy = tmp_path / "elsewhere" / "x.tif"
    copy.parent.mkdir()
    shutil.copy2(image, copy)
    assert stamp_of(copy).key == before.key
    os.utime(image, ns=(1, 1))
    assert stamp_of(image).key != before.key
    image.unlink()
    assert stamp_of(image).file[1:] == (-1, -1)


SIZE = (45, 61)
WHOLE = Window(-3, 2, 60, 61)


def settle(path: Path) -> None:
    """Give a file an old time: only then a change of it shows for sure."""
    os.utime(path, (1_000_000_000, 1_000_000_000))


def count_full(monkeypatch: Any) -> list[Path]:
    """The files that are opened in full from now on."""
    opened: list[Path] = []

    def image(path: Path, *rest: Any) -> Any:
        opened.append(path)
        return open_raster(path, *rest)

    class Label(LabelRaster):
        def __init__(self, path: Path, *rest: Any, **options: Any) -> None:
            opened.append(path)
            super().__init__(path, *rest, **options)

    monkeypatch.setattr(known, "open_raster", image)
    monkeypatch.setattr(known, "LabelRaster", Label)
    return opened


def check(files: KnownRasters, path: Path, bands: tuple[int, ...] | None = None) -> None:
    """It reads the same as a full opening."""
    with files.image(path, bands) as again, open_raster(path, bands) as anew:
        assert again.bands == anew.bands
        for found, expected in zip(again.read(WHOLE), anew.read(WHOLE), strict=True):
            np.testing.assert_array_equal(found, expected, strict=True)


FORMS: list[dict[str, Any]] = [
    {"nodata": 3},
    {"tiled": True, "blockxsize": 16, "blockysize": 32, "compress": "deflate"},
    {"masks": np.indices(SIZE).sum(0) % 2 == 0},
    {"crs": None},
]


@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
def test_an_image_is_opened_in_full_once(
    make_geotiff: Callable[..., Path], rng: Any, monkeypatch: Any, form: dict[str, Any]
) -> None:
    path = make_geotiff("a.tif", rng.integers(0, 9, (*SIZE, 3), np.uint8), **form)
    settle(path)
    opened, files = count_full(monkeypatch), KnownRasters()
    for _ in range(3):
        check(files, path)
        check(files, path, (2, 1))
    check(pickle.loads(pickle.dumps(files)), path)  # as a worker process gets it
    assert len(opened) == 2


@pytest.mark.parametrize("encoding", ["codes", "colours"])
def test_a_label_is_opened_in_full_once_and_keeps_its_palette(
    make_png: Callable[..., Path], rng: Any, monkeypatch: Any, encoding: Encoding
) -> None:
    colours = {i: (10 * i, 7, i) for i in range(5)}
    path = make_png("l.png", rng.integers(0, 5, SIZE, np.uint8), colours=colours)
    settle(path)
    classes = tuple(LandCoverClass(str(i), colour, i) for i, colour in colours.items())
    known = ClassMap(classes, encoding)
    with LabelRaster(path, known) as label:
        expected = label.ids()
    opened, files = count_full(monkeypatch), KnownRasters()
    for _ in range(3):
        with files.label(path, known) as again:
            np.testing.assert_array_equal(again.ids(), expected, strict=True)
    assert opened == [path]


PARTS = [(None, None), (Window(3, 5, 17, 11), None), (None, Size(7, 19)), (Window(2, 1, 9, 20), Size(4, 13))]
KEPT: dict[str, dict[str, Any]] = {
    "codes": {},
    "a nodata value": {"nodata": 3},
    "a palette": {"colours": {i: (10 * i, 7, i) for i in range(9)}},
}


@pytest.mark.parametrize("form", KEPT)
@pytest.mark.parametrize("expand", [False, True])
def test_a_label_whose_pixels_are_kept_reads_as_its_file(
    make_geotiff: Callable[..., Path], rng: Any, monkeypatch: Any, form: str, expand: bool
) -> None:
    path = make_geotiff("l.tif", rng.integers(0, 9, (*SIZE, 1), np.uint8), **KEPT[form])
    settle(path)
    opened, files = count_full(monkeypatch), KnownRasters(labels=True)
    for window, shape in PARTS * 2:
        with (
            files.label(path, expand_palette=expand) as kept,
            LabelRaster(path, expand_palette=expand) as label,
        ):
            assert kept.info == label.info
            for own, expected in zip(
                kept.stored_values(window, shape=shape), label.stored_values(window, shape=shape), strict=True
            ):
                np.testing.assert_array_equal(own, expected, strict=True)
    assert opened == [path]
    path.write_bytes(make_geotiff("m.tif", np.full((*SIZE, 1), 7, np.uint8)).read_bytes())
    with files.label(path) as anew:
        assert (anew.stored_values()[0] == 7).all()


def test_a_label_with_a_mask_is_not_kept(
    make_geotiff: Callable[..., Path], rng: Any, monkeypatch: Any
) -> None:
    values = rng.integers(0, 9, (*SIZE, 1), np.uint8)
    path = make_geotiff("l.tif", values, masks=np.indices(SIZE).sum(0) % 2 == 0)
    settle(path)
    files = KnownRasters(labels=True)
    for _ in range(2):
        with files.label(path) as again, LabelRaster(path) as anew:
            for own, expected in zip(again.stored_values(), anew.stored_values(), strict=True):
                np.testing.assert_array_equal(own, expected, strict=True)


def test_what_has_changed_is_opened_in_full(
    make_geotiff: Callable[..., Path], rng: Any, monkeypatch: Any
) -> None:
    values = rng.integers(0, 9, (*SIZE, 1), np.uint8)
    path = make_geotiff("a.tif", values)
    settle(path)
    files = KnownRasters()
    check(files, path)
    for changed in (values[::-1], values[:30]):
        make_geotiff("a.tif", np.ascontiguousarray(changed))
        settle(path)
        check(files, path)
    make_geotiff("a.tif", values)
    settle(path)
    check(files, path)
    beside = path.with_name("a.tif.aux.xml")
    beside.write_text(
        '<PAMDataset><PAMRasterBand band="1"><NoDataValue>4</NoDataValue></PAMRasterBand></PAMDataset>'
    )
    for folder_time in (1_000_000_001, 1_000_000_002):
        os.utime(path.parent, (folder_time, folder_time))
        with files.image(path, None) as again:
            assert not again.read(Window(0, 0, *SIZE))[1][values[..., 0] == 4].any()
    beside.unlink()
    settle(path)
    check(files, path)


def test_where_a_change_might_not_show_files_are_opened_in_full(
    make_geotiff: Callable[..., Path], rng: Any, monkeypatch: Any
) -> None:
    path = make_geotiff("a.tif", rng.integers(0, 9, (*SIZE, 1), np.uint8))
    opened, files = count_full(monkeypatch), KnownRasters()
    for _ in range(3):  # the folder was changed just now
        check(files, path)
    path.with_name("a.tfw").write_text("1\n0\n0\n-1\n5\n6\n")
    settle(path)
    for _ in range(3):  # something lies beside it
        check(files, path)
    assert len(opened) == 6
