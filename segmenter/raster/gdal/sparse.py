"""Sparse GeoTIFFs: the blocks that a file does not have, whose pixels GDAL fills with one value."""

from __future__ import annotations

from typing import Any

from rasterio.enums import MaskFlags

from segmenter.grid.geometry import Window


class Blocks:
    """The blocks of an open dataset.

    Attributes:
        known: whether it can be told of each whether the file has it. Not of other formats, nor where a mask
            of its own says which pixels have data, nor of rows of a file that is not compressed: GDAL may
            give them as blocks though the file has larger ones.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._height, self._width = dataset.block_shapes[0]
        rows = (
            dataset.compression is None
            and self._width == dataset.width
            and 1 == self._height < dataset.height
        )
        masked = any(
            MaskFlags.per_dataset in flags and MaskFlags.alpha not in flags
            for flags in dataset.mask_flag_enums
        )
        self.known = dataset.driver == "GTiff" and not rows and not masked
        separate = dataset.interleaving is not None and dataset.interleaving.name == "band"
        self._bands = range(1, dataset.count + 1) if separate else range(1, 2)

    def missing(self, window: Window) -> bool:
        """Whether the file has no block under a window, which lies inside the raster."""
        if not self.known:
            return False
        for row in range(window.row // self._height, -(-window.row_stop // self._height)):
            for col in range(window.col // self._width, -(-window.col_stop // self._width)):
                name = f"BLOCK_OFFSET_{col}_{row}"
                if any(self._dataset.get_tag_item(name, "TIFF", bidx=band) for band in self._bands):
                    return False
        return True
