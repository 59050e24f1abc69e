"""Arrays passed to a model: checks with messages that state the expected form."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from segmenter.base.errors import RasterError
from segmenter.base.terminal import warn
from segmenter.inference.fit import check_fit
from segmenter.raster.in_memory import ArrayRaster
from segmenter.runs.ensemble import AnyRun

Nodata = float | Sequence[float | None] | NDArray[Any] | None
"""A value that stands for no data in all bands, or one for each."""


def rasters_of(
    run: AnyRun, image: ArrayLike, valid: ArrayLike | None, nodata: Nodata, *, insist: bool
) -> tuple[list[ArrayRaster], tuple[int, ...]]:
    """Return images as rasters for a run's model, and the shape of the prediction.

    Args:
        image: (H, W, C), (H, W) if the model takes one band, or (B, H, W, C).
        insist: accept values of another type or unit than in training.

    Raises:
        RasterError: the image has another form; the message states the expected one.
    """
    if isinstance(image, (str, os.PathLike)):
        raise RasterError(
            "image", expected="an array", got=f"{image!r}", remedy="files are mapped by run.map([…], output)"
        )
    try:
        array = np.asanyarray(image)
    except ValueError:  # NumPy's of a list whose parts differ in shape
        raise RasterError("image", expected="an array", got="a list of different shapes") from None
    if array.ndim == 2 and run.band_count == 1:
        array = array[..., np.newaxis]
    _check_shape(run, array.shape)
    if array.dtype.kind not in "iuf" or array.dtype.itemsize > 8:
        raise RasterError("image", expected="real numbers of at most 64 bits", got=array.dtype)
    shape = array.shape[:-1]
    seen = None if valid is None else _valid(valid, shape)
    values = _nodata(nodata, run.band_count)
    if array.ndim == 3:
        rasters = [ArrayRaster(array, seen, values, run.mean_C)]
    else:
        masks: Iterable[Any] = [None] * len(array) if seen is None else seen
        pairs = zip(array, masks, strict=True)
        rasters = [ArrayRaster(each, mask, values, run.mean_C) for each, mask in pairs]
    for raster in rasters:
        for line in check_fit(run, raster, raster.extent, insist=insist):
            warn(f"image: {line}")
    return rasters, shape


def _check_shape(run: AnyRun, shape: tuple[int, ...]) -> None:
    count = run.band_count
    expected = f"(height, width, {count}), the bands last" + (", or (height, width)" if count == 1 else "")
    if len(shape) not in (3, 4):
        raise RasterError("image", expected=f"an array of {expected}", got=_shape_text(shape))
    if 0 in shape:
        raise RasterError("image", expected="at least one pixel", got=f"an array of {_shape_text(shape)}")
    if shape[-1] == count:
        return
    hint = ""
    if shape[-3] == count:
        hint = "; bands come first there, as rasterio reads them: np.moveaxis(image, -3, -1)"
    elif shape[-1] > count and run.bands is not None and max(run.bands) <= shape[-1]:
        places = ", ".join(str(band - 1) for band in run.bands)
        hint = f"; the model saw bands {', '.join(map(str, run.bands))} of its files: image[..., [{places}]]"
    elif shape[-1] == count + 1:
        hint = f"; if the last is alpha: image[..., :{count}] with valid=image[..., {count}] > 0"
    raise RasterError("image", expected=f"an array of {expected}", got=f"{_shape_text(shape)}{hint}")


def _valid(valid: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    mask = np.ma.filled(np.asanyarray(valid), False)  # what is masked itself is not known to be data
    if mask.dtype != np.bool_ or mask.shape != shape:
        raise RasterError(
            "valid",
            expected=f"booleans of {_shape_text(shape)}, True where there is data (as mask > 0)",
            got=f"{mask.dtype} of {_shape_text(mask.shape)}",
        )
    return mask


def _nodata(nodata: Nodata, count: int) -> list[float | None]:
    if nodata is None:
        return []
    values: Any = nodata.tolist() if isinstance(nodata, np.ndarray) else nodata
    values = values if isinstance(values, Sequence) and not isinstance(values, str) else [values] * count
    if len(values) == count and all(value is None or isinstance(value, Real) for value in values):
        return [None if value is None else float(value) for value in values]
    raise RasterError("nodata", expected=f"one value, or one for each of {count} bands", got=f"{nodata!r}")


def _shape_text(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"
