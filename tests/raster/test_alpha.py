"""A band that is tagged as alpha and holds measurements is not dropped, nor taken for a mask, in silence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Window
from segmenter.raster import alpha, open_raster, raster_info

Make = Callable[..., Path]
H, W = 90, 110
ASKS = r"a\.\w+: band 4 is tagged as alpha, but holds measurements .* dataset\.bands .* 1,2,3,4 or 1,2,3$"


def rgb_and(band: NDArray[Any]) -> NDArray[Any]:
    return np.dstack([np.full((*band.shape, 3), 50, band.dtype), band])


def disc(dtype: str = "uint8", opaque: float = 255) -> NDArray[Any]:
    rows, cols = np.mgrid[:H, :W]
    return np.where((rows - 40) ** 2 + (cols - 50) ** 2 < 900, opaque, 0).astype(dtype)


def soft(levels: int) -> NDArray[np.uint8]:
    """A mask whose edges fade."""
    rows, cols = np.mgrid[:H, :W]
    away = np.hypot(rows - 40, cols - 50)
    return np.clip(255 * (35 - away) / levels, 0, 255).astype(np.uint8)


MASKS = {
    "opaque": np.full((H, W), 255, np.uint8),
    "transparent": np.zeros((H, W), np.uint8),
    "disc": disc(),
    "soft edges": soft(10),
    "ones": disc(opaque=1),
    "16 bits": disc("uint16", 65535),
    "8 of 16 bits": disc("uint16"),
    "signed": disc("int16", 32767),
    "floats to 1": disc("float32", 1),
    "floats to 255": disc("float32"),
}


@pytest.mark.parametrize("kind", MASKS)
def test_a_mask_stays_a_mask(make_geotiff: Make, kind: str) -> None:
    mask = MASKS[kind]
    with open_raster(make_geotiff("a.tif", rgb_and(mask), photometric="rgb", alpha=True)) as raster:
        assert raster.info.alpha == (4,)
        image, valid = raster.read(Window(0, 0, H, W))
    assert image.shape == (H, W, 3)
    np.testing.assert_array_equal(valid, mask > 0)


def test_a_lossy_mask_stays_a_mask(make_geotiff: Make) -> None:
    path = make_geotiff(
        "a.tif", rgb_and(disc()), photometric="rgb", alpha=True, compress="jpeg", jpeg_quality=40
    )
    with rasterio.open(path) as file:
        assert len(np.unique(file.read(4))) > 5
    with open_raster(path) as raster:
        raster.read(Window(0, 0, H, W))


def near_infrared(rng: Any, kind: str) -> NDArray[Any]:
    return {
        "meadows": lambda: rng.integers(60, 250, (H, W)).astype(np.uint8),
        "lakes": lambda: np.where(rng.random((H, W)) < 0.4, 0, rng.integers(30, 200, (H, W))).astype(
            np.uint8
        ),
        "the sea": lambda: rng.integers(0, 25, (H, W)).astype(np.uint8),
        "dim meadows": lambda: np.where(
            rng.random((H, W)) < 0.8, rng.integers(0, 6, (H, W)), rng.integers(20, 200, (H, W))
        ).astype(np.uint8),
        "16 bits": lambda: rng.integers(200, 4000, (H, W)).astype(np.uint16),
        "reflectance": lambda: rng.uniform(0.05, 0.6, (H, W)).astype(np.float32),
    }[kind]()


@pytest.mark.parametrize("kind", ["meadows", "lakes", "the sea", "dim meadows", "16 bits", "reflectance"])
def test_measurements_ask_for_bands(make_geotiff: Make, rng: Any, kind: str) -> None:
    band = near_infrared(rng, kind)
    path = make_geotiff("a.tif", rgb_and(band), photometric="rgb", alpha=True)
    with pytest.raises(RasterError, match=ASKS):
        open_raster(path)
    assert raster_info(path).count == 4
    with open_raster(path, (1, 2, 3, 4)) as raster:
        image, valid = raster.read(Window(0, 0, H, W))
    assert valid.all()
    np.testing.assert_array_equal(image[..., 3], band)


def test_measurements_are_no_mask_of_the_bands_that_are_named(make_geotiff: Make, rng: Any) -> None:
    path = make_geotiff("a.tif", rgb_and(near_infrared(rng, "lakes")), photometric="rgb", alpha=True)
    with open_raster(path, (1, 2, 3)) as raster:
        assert raster.read(Window(0, 0, H, W))[1].all()
        assert not raster.may_have_nodata


def test_alpha_is_the_mask_unless_it_is_named_as_data(make_geotiff: Make) -> None:
    pixels = rgb_and(disc())
    path = make_geotiff("a.tif", pixels, photometric="rgb", alpha=True)
    with open_raster(path, (4, 1)) as raster:
        image, valid = raster.read(Window(0, 0, H, W))
    assert valid.all()
    np.testing.assert_array_equal(image, pixels[..., [3, 0]])
    with open_raster(path, (1, 2)) as raster:
        np.testing.assert_array_equal(raster.read(Window(0, 0, H, W))[1], disc() > 0)


@pytest.mark.parametrize("tiled", [True, False])
@pytest.mark.parametrize("measured", [True, False])
def test_a_large_raster_is_sampled(
    make_geotiff: Make, rng: Any, monkeypatch: pytest.MonkeyPatch, tiled: bool, measured: bool
) -> None:
    """What is read does not grow with the raster."""
    read: list[int] = []
    sample = alpha._sample
    monkeypatch.setattr(alpha, "_sample", lambda *given: read.append((got := sample(*given)).size) or got)
    for rows in (1100, 2200):
        band = (
            rng.integers(60, 250, (rows, 1000), np.uint8)
            if measured
            else np.full((rows, 1000), 255, np.uint8)
        )
        blocks = {"tiled": True, "blockxsize": 128, "blockysize": 128} if tiled else {"blockysize": 8}
        path = make_geotiff(
            f"{rows}/a.tif",
            rgb_and(band),
            photometric="rgb",
            alpha=True,
            compress="deflate",
            zlevel=1,
            **blocks,
        )
        if measured:
            with pytest.raises(RasterError, match=ASKS):
                open_raster(path)
        else:
            open_raster(path).close()
        with open_raster(path, (1, 2, 3)):  # once for a state of a file
            pass
    assert len(read) == 2
    assert read[0] == read[1] < 300_000


def test_a_png_may_hold_measurements_too(make_png: Make, rng: Any) -> None:
    with pytest.raises(RasterError, match=ASKS):
        open_raster(make_png("a.png", rgb_and(near_infrared(rng, "meadows"))))
    open_raster(make_png("b.png", rgb_and(disc()))).close()


def test_real_files(shared_data: Callable[[str], Path]) -> None:
    robust = shared_data("robust")
    open_raster(robust / "rasterio__alpha.tif").close()
    open_raster(robust / "rio-tiler__pix4d_alpha_nodata.tif").close()
    measured = [robust / "naip__nir_tagged_as_alpha.tif", *shared_data("naip").glob("*/img/*.tif")]
    assert len(measured) == 7
    for path in measured:
        with pytest.raises(RasterError, match="is tagged as alpha, but holds measurements"):
            open_raster(path)
