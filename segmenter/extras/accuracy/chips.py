"""Image chips: a picture of the surroundings of each point, with its pixel in a frame."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from segmenter.base.files import folder_aside
from segmenter.base.terminal import no_bar
from segmenter.evaluation.drawing import save_pixels
from segmenter.evaluation.figures import stretched
from segmenter.extras.accuracy.covers import beside, check_same_grid
from segmenter.extras.accuracy.points import Sampled
from segmenter.grid.geometry import Window
from segmenter.raster import Raster, open_raster, raster_info

_SIDE, _ZOOM = 129, 4
"""Pixels of a chip's side, odd so that the point is in the middle, and picture pixels of one."""
_FRAME = (255, 0, 255)
_ENDINGS = (".tif", ".tiff", ".png", ".jpg", ".jpeg")


def write_chips(sampled: Sampled, images: Path, folder: Path) -> None:
    """Write `FOLDER/FID.png` for each point; an older folder is replaced.

    Args:
        images: folder of images of the maps' names.

    Raises:
        DatasetError: an image is missing or lies elsewhere than its map.
        RasterError: an image cannot be read.
    """
    raster_N = sampled.pixels.raster
    infos = {number: sampled.infos[number] for number in np.unique(raster_N).tolist()}
    files = {number: beside(images, info.path, _ENDINGS) for number, info in infos.items()}
    with folder_aside(folder) as aside, tqdm(total=len(raster_N), unit="chip", disable=no_bar()) as bar:
        chips = aside / "chips"
        chips.mkdir()
        for number, file in files.items():
            header = raster_info(file)
            check_same_grid(infos[number], header)
            with open_raster(file, (1, 2, 3) if header.count >= 3 else (1,)) as raster:
                for place in np.flatnonzero(raster_N == number).tolist():
                    row, col = int(sampled.pixels.row[place]), int(sampled.pixels.col[place])
                    save_pixels(_chip(raster, row, col), chips / f"{place + 1}.png")
                    bar.update()
        shutil.rmtree(folder, ignore_errors=True)
        chips.rename(folder)


def _chip(raster: Raster, row: int, col: int) -> NDArray[np.uint8]:
    half = _SIDE // 2
    picture = stretched(*raster.read(Window(row - half, col - half, _SIDE, _SIDE)))
    picture = picture.repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
    first, last = half * _ZOOM - 2, (half + 1) * _ZOOM + 1
    picture[[first, last], first : last + 1] = _FRAME
    picture[first : last + 1, [first, last]] = _FRAME
    return picture
