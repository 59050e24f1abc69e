"""Deepness, a QGIS plug-in that runs ONNX models on layers: its tiles, and its metadata keys.

It divides values by 255, normalises by mean and deviation, cuts square tiles from the upper left corner,
discards half of the overlap on each side, and takes the class of the largest value. Values below a threshold
count as 0, and a median smooths the map: with both set to 0 its map is the model's.
(github.com/PUTvision/qgis-plugin-deepness: model_base.py, tile_params.py, processing_overlap.py,
map_processor_segmentation.py.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from segmenter.base.errors import ConfigError
from segmenter.extras.export.formats import Runtime
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.run import Run

_LEAST, _MOST = 512, 1536
"""Sides of tiles that are considered; larger ones take more than a small GPU's memory."""
_DEFAULT_PERCENT = 50
_MOST_PERCENT = 90


@dataclass(frozen=True)
class Tile:
    """A tile of the plug-in.

    Attributes:
        size: side in pixels.
        percent: percent of the side that neighbours share.
    """

    size: int
    percent: int

    @property
    def overlap(self) -> int:
        """Pixels that neighbours share, rounded as in the plug-in."""
        return int(self.size * self.percent / 100 * 2) // 2

    @property
    def step(self) -> int:
        """Pixels from one tile to the next."""
        return self.size - self.overlap

    def exact(self, network: NetworkGeometry) -> bool:
        """Return True if the kept part of each tile equals the map of the whole raster.

        This requires enough distance to the tile's border, and alignment to the model's stride.
        """
        if network.radius is None:
            return False
        return self.overlap // 2 >= network.radius and not self.step % network.stride


def choose_tile(network: NetworkGeometry, size: int | None = None) -> Tile:
    """Return the exact tile with the largest kept share; tiles overlap by half if none can be exact.

    The overlap is a whole number of percent, so not every size allows a multiple of the stride.

    Args:
        size: size chosen by the user; None: chosen here.

    Raises:
        ConfigError: the size is no multiple of the stride, or too small for the model's radius.
    """
    stride = network.stride
    if size is not None and size % stride:
        raise ConfigError("--size", expected=f"a multiple of {stride}, the model's stride", got=size)
    sizes = range(-(-_LEAST // stride) * stride, _MOST + 1, stride) if size is None else [size]
    tiles = [Tile(side, percent) for side in sizes for percent in range(1, _MOST_PERCENT + 1)]
    fitting = [tile for tile in tiles if tile.exact(network)]
    if fitting:
        # A larger tile keeps more, and takes more memory: by a tenth more it has to be worth it.
        best = max(tile.step / tile.size for tile in fitting)
        return min((t for t in fitting if t.step / t.size >= best * 0.9), key=lambda t: (t.size, t.percent))
    if size is not None and network.radius is not None:
        raise ConfigError(
            f"--size {size}",
            f"no whole percent of it is an overlap of twice the model's radius ({network.radius} pixels) "
            f"that keeps tiles on its stride ({stride} pixels); leave --size out, and one is chosen",
        )
    return Tile(-(-_LEAST // stride) * stride if size is None else size, _DEFAULT_PERCENT)


def behind_plugin(runtime: Runtime, run: Run) -> Runtime:
    """Return a runtime that gets values as from the plug-in: divided in float64, then float32."""
    metadata = keys(run, Tile(1, 0))
    mean, std = (np.array(metadata[f"standardization_{name}"], np.float32) for name in ("mean", "std"))
    return lambda image_BHWC: runtime(((image_BHWC / np.float64(255)).astype(np.float32) - mean) / std)


def keys(run: Run, tile: Tile) -> dict[str, Any]:
    """Return metadata under the plug-in's keys.

    Its documentation names `tiles_size`, but its code reads `tile_size`.
    """
    scale = {} if run.metres_per_pixel is None else {"resolution": run.metres_per_pixel * 100}
    return {
        "model_type": "Segmentor",
        "class_names": {str(number): name for number, name in enumerate(run.classes.names)},
        **scale,
        "tile_size": tile.size,
        "tiles_size": tile.size,
        "tiles_overlap": tile.percent,
        "standardization_mean": [mean / 255 for mean in run.normalisation.mean],
        "standardization_std": [std / 255 for std in run.normalisation.std],
        "seg_thresh": 0.0,
        "seg_small_segment": 0,
    }
