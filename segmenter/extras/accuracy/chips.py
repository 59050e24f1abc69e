"""Image chips: a picture of the surroundings of each point, with its pixel in a frame."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from segmenter.base.errors import DatasetError
from segmenter.base.files import folder_aside
from segmenter.base.terminal import no_bar
from segmenter.evaluation.drawing import save_pixels
from segmenter.evaluation.figures import stretched
from segmenter.extras.accuracy.points import Sampled
from segmenter.grid.geometry import Size, Window
from segmenter.raster import Raster, RasterInfo, open_raster, raster_info
from segmenter.raster.ground import alignment_errors

_SIDE, _ZOOM = 129, 4
"""Pixels of a chip's side, odd so that the point is in the middle, and picture pixels of one."""
_FRAME = (255, 0, 255)
_ENDINGS = (".tif", ".tiff", ".png", ".jpg", ".jpeg")


def write_chips(sampled: Sampled, images: Path, output: Path, then: Callable[[], None]) -> None:
    """Write `OUTPUT.chips/FID.png` for each point.

    Args:
        images: folder of images of the maps' names.
        then: writes the points; the chips appear after it.

    Raises:
        DatasetError: an image is missing or lies elsewhere than its map.
        RasterError: an image cannot be read.
    """
    folder = output.with_suffix(".chips")
    used = sorted(set(sampled.pixels.raster.tolist()))
    files = {number: _image(images, sampled.infos[number]) for number in used}
    with folder_aside(folder) as aside, tqdm(total=len(sampled.pixels), unit="chip", disable=no_bar()) as bar:
        chips = aside / "chips"
        chips.mkdir()
        for number, file in files.items():
            with _opened(file) as raster:
                for place in np.flatnonzero(sampled.pixels.raster == number).tolist():
                    row, col = int(sampled.pixels.row[place]), int(sampled.pixels.col[place])
                    save_pixels(_chip(raster, row, col), chips / f"{place + 1}.png")
                    bar.update()
        then()
        shutil.rmtree(folder, ignore_errors=True)  # of an older sample
        chips.rename(folder)


def _image(images: Path, info: RasterInfo) -> Path:
    """Return the image of a map."""
    found = [
        path
        for path in sorted(images.glob(f"{info.path.stem}.*"))
        if path.suffix.lower() in _ENDINGS and path.stem == info.path.stem
    ]
    if len(found) != 1:
        raise DatasetError(
            f"{images}: expected one image {info.path.stem} ({', '.join(_ENDINGS)}), as {info.path} has that "
            f"name, got {len(found)}"
        )
    for _, text in alignment_errors(raster_info(found[0]), info):
        raise DatasetError(text)
    return found[0]


def _opened(file: Path) -> Raster:
    """Open an image's first three bands, or its first one."""
    return open_raster(file, (1, 2, 3) if raster_info(file).count >= 3 else (1,))


def _chip(raster: Raster, row: int, col: int) -> NDArray[np.uint8]:
    size = Size(_SIDE, _SIDE)
    image, valid = raster.read(Window(row - _SIDE // 2, col - _SIDE // 2, size.height, size.width))
    picture = stretched(image, valid).repeat(_ZOOM, axis=0).repeat(_ZOOM, axis=1)
    first, last = _SIDE // 2 * _ZOOM - 2, (_SIDE // 2 + 1) * _ZOOM + 1
    for line in (first, last):
        picture[line, first : last + 1] = _FRAME
        picture[first : last + 1, line] = _FRAME
    return picture
