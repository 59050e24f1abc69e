"""Raster files that tests write."""

import warnings
from pathlib import Path
from typing import Any

import rasterio
from numpy.typing import NDArray
from rasterio.errors import NotGeoreferencedWarning

PLACE = {"crs": "EPSG:25833", "transform": rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000)}
"""Pixels of 0.5 m."""


def written(path: Path, array: NDArray[Any], driver: str | None = None, **options: Any) -> Path:
    """Write an array, (H, W) or (H, W, C), as the raster that the path's ending or `driver` says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bands = array[..., None] if array.ndim == 2 else array
    height, width, count = bands.shape
    extra = {key: options.pop(key, None) for key in ("masks", "colours", "descriptions", "alpha")}
    if extra["alpha"]:
        options["alpha"] = "YES"
    shape = {"height": height, "width": width, "count": count, "dtype": bands.dtype}
    with warnings.catch_warnings(), rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True, GDAL_PAM_ENABLED=False):
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with rasterio.open(path, "w", driver=driver, **shape, **options) as file:
            file.write(bands.transpose(2, 0, 1))
            if extra["colours"] is not None:
                file.write_colormap(1, extra["colours"])
            if extra["masks"] is not None:
                file.write_mask(extra["masks"])
            for band, text in enumerate(extra["descriptions"] or (), 1):
                file.set_band_description(band, text)
    return path
