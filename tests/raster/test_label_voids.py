"""Labels: whatever way a file says that nothing is labelled, its pixels are ignored, or it is asked for."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from segmenter.base.errors import LabelError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.raster import LabelRaster
from segmenter.raster.label import _palette

Make = Callable[..., Path]
SIZE = (23, 31)


@pytest.fixture
def truth(rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Ids of three classes, and where nothing is labelled; class 0 stands below that."""
    void = np.zeros(SIZE, np.bool_)
    void[4:15, 7:20] = True
    ids = rng.integers(0, 3, SIZE).astype(np.uint8)
    ids[void] = 0
    return ids, void


def _colours(classes: ClassMap, ids: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return classes.palette()[ids]


def _transparent_png(path: Path, indices: NDArray[np.uint8], palette: bytes, opacity: bytes) -> Path:
    """An 8-bit palette PNG with a tRNS chunk, by hand: GDAL writes none with several entries."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    height, width = indices.shape
    rows = b"".join(b"\0" + row.tobytes() for row in indices)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"PLTE", palette), (b"tRNS", opacity), (b"IDAT", zlib.compress(rows))]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in [*chunks, (b"IEND", b"")]))
    return path


def _forms(
    make: Make, folder: Path, classes: ClassMap, ids: NDArray[np.uint8], void: NDArray[np.bool_]
) -> dict[str, Path]:
    """The label written in every way, of the encoding of `classes`."""
    shown = np.where(void, 0, 255).astype(np.uint8)
    codes = classes.encoding == "codes"
    stored = ids if codes else _colours(classes, ids)
    with_alpha = np.dstack([stored, shown])
    odd = ids.copy()
    odd[void] = 99
    forms = {
        "internal mask": make("mask.tif", stored, masks=shown),
        "alpha": make("alpha.tif", with_alpha, alpha=True),
        "alpha of a PNG": _png(folder / "alpha.png", with_alpha),
    }
    beside = make("beside.tif", stored)
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=False), rasterio.open(beside, "r+") as dataset:
        dataset.write_mask(shown)
    assert beside.with_name("beside.tif.msk").is_file()
    forms["mask beside"] = beside
    palette = [0, 0, 0] * 5 if codes else [*_colours(classes, np.arange(3, dtype=np.uint8)).ravel(), 1, 2, 3]
    indices = ids.copy()
    indices[void] = 3 if not codes else 4
    opacity = bytes([255, 255, 255, 0, 0])[: len(palette) // 3]
    forms["transparent palette entry"] = _transparent_png(
        folder / "clear.png", indices, bytes(int(v) for v in palette), opacity
    )
    if codes:
        forms["nodata"] = make("nodata.tif", odd, nodata=99)
        forms["negative nodata"] = make(
            "minus.tif", np.where(void, -9999, ids.astype(np.int16)), nodata=-9999
        )
        forms["NaN"] = make("nan.tif", np.where(void, np.nan, ids).astype(np.float32))
    return forms


def _png(path: Path, array: NDArray[np.uint8]) -> Path:
    height, width, count = array.shape
    shape = {"height": height, "width": width, "count": count, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="PNG", **shape) as dataset:
        dataset.write(array.transpose(2, 0, 1))
    return path


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("encoding", ["codes", "colours"])
def test_every_way_to_say_that_nothing_is_labelled_ignores_the_same_pixels(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any, encoding: str
) -> None:
    ids, void = truth
    expected = np.where(void, IGNORE, ids)
    classes = make_classes(3, encoding)
    part = Window(3, 5, 11, 17)
    for way, path in _forms(make_geotiff, tmp_path, classes, ids, void).items():
        with LabelRaster(path, classes) as label:
            np.testing.assert_array_equal(label.ids(), expected, err_msg=way)
            np.testing.assert_array_equal(label.ids(part), expected[part.slices()], err_msg=way)
            assert label.ids(shape=Size(7, 9)).shape == (7, 9), way


@pytest.mark.parametrize("form", ["codes", "palette", "colours"])
def test_nodata_that_is_a_class_is_asked_about(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any, form: str
) -> None:
    ids, _ = truth
    classes = make_classes(3, "codes" if form == "codes" else "colours")
    if form == "colours":
        path = make_geotiff("l.tif", _colours(classes, ids), nodata=255)  # white is class a
    else:
        table = {i: (*colour, 255) for i, colour in enumerate(classes.palette()[:3].tolist())}
        colours = table if form == "palette" else None
        path = make_geotiff("l.tif", ids, nodata=0, colours=colours)
    with pytest.raises(LabelError, match=r"l\.tif.* nodata.* class a .*label_nodata"):
        LabelRaster(path, classes)
    with LabelRaster(path, replace(classes, nodata="class")) as label:
        np.testing.assert_array_equal(label.ids(), ids)
    with LabelRaster(path, replace(classes, nodata="ignore")) as label:
        np.testing.assert_array_equal(label.ids(), np.where(ids == 0, IGNORE, ids))


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16", "int32", "float32", "float64"])
def test_codes_beyond_16_bits_can_be_ignored(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any, dtype: str
) -> None:
    ids, void = truth
    value = {"int8": -1, "uint16": 65535, "int32": 70_000}.get(dtype, -9999)
    path = make_geotiff("l.tif", np.where(void, value, ids.astype(dtype)).astype(dtype))
    with LabelRaster(path, make_classes(3)) as label, pytest.raises(LabelError, match=f"know: {value}"):
        label.ids()
    with LabelRaster(path, make_classes(3, ignored=(value,))) as label:
        np.testing.assert_array_equal(label.ids(), np.where(void, IGNORE, ids))


def test_two_bands_are_a_label_only_with_alpha(make_geotiff: Make) -> None:
    path = make_geotiff("l.tif", np.zeros((*SIZE, 2), np.uint8))
    with pytest.raises(RasterError, match="got two"):
        LabelRaster(path)


def test_of_a_palette_of_16_bits_the_first_256_entries_are_colours() -> None:
    """Others are of codes that no palette of 8 bits has; 256 is the first of them."""

    class File:
        def colormap(self, band: int) -> dict[int, tuple[int, int, int, int]]:
            return {0: (1, 2, 3, 0), 255: (4, 5, 6, 255), 256: (9, 9, 9, 9), 65535: (9, 9, 9, 9)}

    table = _palette(File())
    assert table is not None
    assert table.shape == (256, 4)
    assert (table[0].tolist(), table[255].tolist()) == ([1, 2, 3, 0], [4, 5, 6, 255])
