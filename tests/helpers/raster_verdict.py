"""A raster is mapped rightly or refused in one line; what is right is computed with rasterio alone."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.enums import ColorInterp, MaskFlags

from segmenter.grid.geometry import Window
from segmenter.model.receptive_field import NetworkGeometry
from tests.helpers.exact_network import exact_map, exact_network

PIXELWISE = {
    "network": NetworkGeometry(1, 0, 100.0),
    "predictor": lambda wanted=None, **_: exact_network(0, 1, wanted=wanted),
    "metres_per_pixel": None,
}
"""A run whose class of a pixel depends on that pixel alone: the same map in both modes."""

H, W = 61, 83


def pixels(rng: np.random.Generator, bands: int = 3, dtype: str = "uint8", most: int = 120) -> NDArray[Any]:
    """(H, W, bands) whole numbers from 1."""
    return rng.integers(1, most, (H, W, bands)).astype(dtype)


def shape(rng: np.random.Generator) -> NDArray[np.uint8]:
    """(H, W): 0 where there is no data."""
    mask = (rng.random((H, W)) > 0.1).astype(np.uint8) * 255
    mask[5:20, 7:40] = 0
    return mask


def verdict(
    call: Callable[..., int], capfd: Any, path: Path, count: int, *options: Any, part: Window | None = None
) -> str | None:
    """Predict a file with a run of `count` bands; the line of its refusal, or None for a map that is right.

    Anything else is an assertion: other lines, a file left behind, another pixel, another place.
    """
    capfd.readouterr()
    given = [] if part is None else ["--part", part.row, part.col, part.height, part.width]
    code = call(path, "--window-size", 512, "--batch", 2, *given, *options, band_count=count, **PIXELWISE)
    said = capfd.readouterr().err.splitlines()
    errors = [line for line in said if not line.startswith("warning: ")]
    if code:
        assert code == 1, said
        assert len(errors) == 1, said
        start = f"error: {path}: "
        assert errors[0].startswith(start), said
        assert not Path("maps").exists()
        return errors[0].removeprefix(start)
    assert errors == []
    (found,) = (each for each in Path("maps").glob("[!.]*") if each.suffix in (".tif", ".png"))
    with rasterio.open(path.absolute()) as source, rasterio.open(found) as result:
        check_place(source, result, part or Window(0, 0, source.height, source.width))
        check_ids(source, result, count, part or Window(0, 0, source.height, source.width))
    return None


def check_place(source: Any, result: Any, part: Window) -> None:
    """The georeference of a raster's part: as GDAL tells it of both."""
    assert (result.height, result.width) == (part.height, part.width)
    moved = source.transform @ rasterio.Affine.translation(part.col, part.row)
    if source.transform.is_identity:
        assert result.transform.is_identity
        assert points(result) == [(r - part.row, c - part.col, *xyz) for r, c, *xyz in points(source)]
        assert result.gcps[1] == source.gcps[1]
    else:
        np.testing.assert_allclose(result.transform, moved, rtol=1e-12)
    assert result.crs == source.crs
    theirs, mine = ((rpcs and rpcs.to_dict()) for rpcs in (source.rpcs, result.rpcs))
    if theirs is not None:
        theirs |= {"line_off": theirs["line_off"] - part.row, "samp_off": theirs["samp_off"] - part.col}
        theirs = {name: value for name, value in theirs.items() if value is not None}  # errors left open
        mine = {name: (mine or {}).get(name) for name in theirs}
    assert mine == theirs


def points(dataset: Any) -> list[tuple[float, ...]]:
    """Its control points."""
    return [(p.row, p.col, p.x, p.y, p.z) for p in dataset.gcps[0]]


def check_ids(source: Any, result: Any, count: int, part: Window) -> None:
    """Nodata where the file says so in whatever way, the model's class elsewhere."""
    pixels, valid = expected_pixels(source, count, part)
    ids = result.read(1)
    np.testing.assert_array_equal(ids == 255, ~valid)
    np.testing.assert_array_equal(ids, exact_map(pixels, valid, 0, 1))


def expected_pixels(source: Any, count: int, part: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """(H, W, C) values and (H, W) valid: by masks and alpha, or where all bands hold nodata; never NaN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows, cols = part.slices()
        window = ((rows.start, rows.stop), (cols.start, cols.stop))
        alpha = [i for i, kind in enumerate(source.colorinterp, 1) if kind == ColorInterp.alpha]
        bands = [band for band in range(1, source.count + 1) if band not in alpha]
        assert len(bands) == count
        stored = source.read(bands, window=window)
        own = [source.read(band, window=window) > 0 for band in alpha]
        for band in bands:
            flags = set(source.mask_flag_enums[band - 1])
            if MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags:
                own.append(source.read_masks(band, window=window) > 0)
        if own:
            valid = np.logical_and.reduce(own)
        else:
            nodata = [np.nan if (value := source.nodatavals[band - 1]) is None else value for band in bands]
            valid = (stored != np.array(nodata)[:, None, None]).any(axis=0)
        scaling = np.array([(source.scales[band - 1], source.offsets[band - 1]) for band in bands])
        if (scaling != (1, 0)).any():
            stored = (stored * scaling[:, :1, None] + scaling[:, 1:, None]).astype(np.float32)
        if stored.dtype.kind == "f":
            valid = valid & (np.abs(stored) < 1e30).all(axis=0)
    return np.moveaxis(stored, 0, 2), valid
