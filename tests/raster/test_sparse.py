"""Blocks that a sparse GeoTIFF lacks are neither read nor computed, and the map is that of the dense file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.windows import Window as GdalWindow

from segmenter.grid.geometry import Window
from segmenter.raster import Raster, open_raster
from segmenter.raster.mosaic import Mosaic
from tests.helpers.exact_network import RADIUS, STRIDE, exact_network

BANDS = 3
THERE = (Window(96, 320, 40, 70), Window(470, 5, 30, 30))


def sparse(path: Path, size: tuple[int, int] = (531, 703), **options: Any) -> Path:
    """A GeoTIFF of which two corners are written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    profile: dict[str, Any] = {"tiled": True, "blockxsize": 64, "blockysize": 48, "nodata": 0}
    profile |= {"transform": rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000), "crs": "EPSG:25833"}
    profile |= {"count": BANDS, "dtype": "uint8", "SPARSE_OK": True, **options}
    pixels = np.random.default_rng(0).integers(1, 255, (profile["count"], 70, 70)).astype(profile["dtype"])
    with rasterio.open(path, "w", driver="GTiff", height=size[0], width=size[1], **profile) as file:
        for window in THERE:
            place = GdalWindow(window.col, window.row, window.width, window.height)
            file.write(pixels[:, : window.height, : window.width], window=place)
    return path


def dense(path: Path, source: Path) -> Path:
    """The same pixels with every block."""
    with rasterio.open(source) as file:
        profile, pixels = file.profile, file.read()
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(path, "w", **profile) as file:
        file.write(pixels)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Window]:
    """Windows that are read."""
    found: list[Window] = []
    read = Raster._read_inside

    def counting(self: Raster, window: Window) -> Any:
        found.append(window)
        return read(self, window)

    monkeypatch.setattr(Raster, "_read_inside", counting)
    return found


@pytest.mark.parametrize("mode", ["exact", "smooth"])
@pytest.mark.parametrize(
    "options",
    [{}, {"compress": "deflate", "interleave": "band"}, {"dtype": "float32", "nodata": -9999.0}],
    ids=str,
)
def test_missing_blocks_are_not_read_and_the_map_is_the_dense_files(
    tmp_path: Path, call: Callable[..., int], reads: list[Window], mode: str, options: Any
) -> None:
    batches: list[int] = []

    def model(wanted: Any = None, **_: Any) -> Any:
        return exact_network(RADIUS, STRIDE, batches, wanted)

    maps, computed, pixels = [], [], []
    source = sparse(tmp_path / "sparse" / "a.tif", **options)
    for path in (source, dense(tmp_path / "dense" / "a.tif", source)):
        del reads[:], batches[:]
        name = f"{path.parent.name}-maps"
        arguments = (path, "--mode", mode, "--confidence", "--window-size", 64, "--batch", 5)
        assert call(*arguments, predictor=model, dtype=options.get("dtype", "uint8"), output=name) == 0
        pixels.append(sum(window.size.pixels for window in reads))
        computed.append(sum(batches))
        maps.append({p.name: p.read_bytes() for p in (tmp_path / name).glob("*.tif")})
    assert maps[0] == maps[1]
    assert len(maps[0]) == 2
    assert computed[0] == computed[1] > 0
    assert pixels[0] < pixels[1] / 3


@pytest.mark.parametrize(
    "options",
    [{"nodata": None}, {"nodata": None, "compress": "lzw"}, {"dtype": "float32", "nodata": None}],
    ids=str,
)
def test_without_a_nodata_value_missing_blocks_are_zeros_and_computed(tmp_path: Path, options: Any) -> None:
    with open_raster(sparse(tmp_path / "a.tif", **options)) as raster:
        nowhere = Window(200, 100, 40, 40)
        assert not raster.empty(nowhere)
        image, valid = raster.read(nowhere)
        assert valid.all()
        assert not image.any()


def test_what_is_called_empty_reads_as_empty(tmp_path: Path, rng: np.random.Generator) -> None:
    found = set()
    kinds: list[dict[str, Any]] = [
        {},
        {"count": 4, "photometric": "RGB", "alpha": "YES", "nodata": None},
        {"tiled": False, "blockysize": 7},
        {"tiled": False, "blockysize": 1},
        {"tiled": False, "blockysize": 531},
        {"tiled": False, "blockysize": 16, "compress": "lzw", "interleave": "band"},
    ]
    for number, options in enumerate(kinds):
        with open_raster(sparse(tmp_path / f"{number}.tif", **options), (1, 2, 3)) as raster:
            for _ in range(60):
                row, col = int(rng.integers(-40, 531)), int(rng.integers(-40, 703))
                window = Window(row, col, *(int(side) for side in rng.integers(1, 150, 2)))
                empty = raster.empty(window)
                found.add((number, empty))
                if empty:
                    assert not raster.read(window)[1].any()
    assert {(0, True), (0, False), (1, True), (2, True), (5, True), (5, False)} <= found


def test_a_mask_decides_itself(tmp_path: Path) -> None:
    path = sparse(tmp_path / "a.tif")
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True), rasterio.open(path, "r+") as file:
        file.write_mask(np.ones(file.shape, np.bool_))
    with open_raster(path) as raster:
        assert not raster.empty(Window(200, 100, 40, 40))


def nothing(path: Path, height: int, width: int, **options: Any) -> Path:
    """A GeoTIFF without any block."""
    path.parent.mkdir(exist_ok=True)
    profile = {"driver": "GTiff", "count": 3, "dtype": "uint8", "SPARSE_OK": True, **options}
    with rasterio.open(path, "w", height=height, width=width, **profile):
        pass
    return path


def test_a_row_that_cannot_be_read_in_parts_is_refused(
    tmp_path: Path, capsys: Any, call: Callable[..., int]
) -> None:
    """GDAL takes a row of a file without tiles whole: 3 GiB here, from a file of 158 bytes."""
    path = nothing(tmp_path / "in" / "a.tif", 1, 1 << 30)
    assert path.stat().st_size < 200
    assert call(path) == 1
    said = capsys.readouterr().err
    assert (
        "is stored in blocks of 1073741824×1 pixels (3072 MiB), which cannot be read piece by piece" in said
    )
    assert said.count("\n") == 1


def test_a_side_that_no_png_has_is_refused_before(
    tmp_path: Path, capsys: Any, call: Callable[..., int]
) -> None:
    path = nothing(tmp_path / "in" / "a.tif", 20, 1_000_001, tiled=True, nodata=0)
    assert call(path, "--format", "png") == 1
    assert (
        "a map of 1000001×20 pixels is too large for a PNG; use --format geotiff" in capsys.readouterr().err
    )


def test_a_mosaic_knows_of_all_its_files(tmp_path: Path) -> None:
    left = sparse(tmp_path / "a.tif")
    right = sparse(tmp_path / "b.tif", transform=rasterio.Affine(0.5, 0, 368000 + 703 / 2, 0, -0.5, 5808000))
    with Mosaic([left, right], open_raster).view(left) as view:
        for window in (Window(200, 680, 40, 40), Window(-9, 680, 600, 40), Window(90, 1000, 40, 70)):
            empty = window.row != 90 and window.height < 600
            assert view.empty(window) == empty == (not view.read(window)[1].any())
