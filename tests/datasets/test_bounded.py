"""`datasets check` reads in bounded pieces, each once; what cannot be read so is refused by its header."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st

from datasets import pixels
from datasets.check import check_dataset
from datasets.pixels import pieces
from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import read_label

Make = Callable[..., Path]


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 16_000))
def test_pieces_cover_a_raster_once_and_are_bounded(height: int, width: int, bytes_per_pixel: int) -> None:
    found = list(pieces(Size(height, width), bytes_per_pixel * 1000))
    assert sum(piece.size.pixels for piece in found) == height * width
    assert max(piece.size.pixels for piece in found) * bytes_per_pixel * 1000 <= 1 << 24
    assert max(piece.row_stop for piece in found) == height
    assert max(piece.col_stop for piece in found) == width
    corners = {(piece.row, piece.col) for piece in found}
    assert len(corners) == len(found)


def test_a_raster_of_one_endless_row_is_cut_too() -> None:
    sizes = [piece.size.pixels for piece in pieces(Size(1, 1 << 30))]
    assert (sum(sizes), max(sizes)) == (1 << 30, 1 << 22)


def test_a_label_is_opened_once_however_many_pieces_it_has(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_geotiff("a.tif", np.arange(97 * 53 * 3).reshape(97, 53, 3).astype(np.uint8))
    label = make_geotiff("l.tif", (np.arange(97 * 53) % 3).reshape(97, 53).astype(np.uint8))
    opened: list[str] = []
    original = rasterio.open
    monkeypatch.setattr(
        rasterio, "open", lambda path, *a, **k: opened.append(str(path)) or original(path, *a, **k)
    )
    dataset = Dataset("made", image.parent, (Scene("a", image, label, "a", "train"),), make_classes(3))
    counts = []
    for piece in (1 << 22, 64):
        monkeypatch.setattr(pixels, "_PIECE_PIXELS", piece)
        opened.clear()
        report = check_dataset(dataset, progress=False)
        assert report.clean
        assert int(report.pixels_K.sum()) == 97 * 53
        counts.append(opened.count(str(label)))
    assert counts[0] == counts[1] > 0


def sparse(path: Path, height: int, width: int) -> Path:
    """A small GeoTIFF that declares so many pixels."""
    shape: dict[str, Any] = {"height": height, "width": width, "count": 1, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", SPARSE_OK="TRUE", **shape):
        pass
    assert path.stat().st_size < 1 << 21
    return path


def test_a_label_that_is_far_larger_than_its_image_is_not_read(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap]
) -> None:
    image = make_geotiff("a.tif", np.ones((23, 31, 3), np.uint8), crs=None)
    for height, width in ((1, (1 << 31) - 1), ((1 << 31) - 1, 1), (1, 1 << 30)):
        label = sparse(tmp_path / "label.tif", height, width)
        dataset = Dataset("made", tmp_path, (Scene("a", image, label, "a", "train"),), make_classes(1))
        report = check_dataset(dataset, progress=False)
        assert [f.kind for f in report.findings] == ["size", "class"]
        assert f"expected 31×23 pixels as its image {image} has, got {width}×{height}" in report.text()
    with pytest.raises(RasterError, match="declares 2147483647×1 pixels in a file of"):
        read_label(sparse(label, 1, (1 << 31) - 1))
