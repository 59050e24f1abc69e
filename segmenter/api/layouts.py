"""Layout of a recipe's dataset where its root is: one for labels named in Python and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.addresses import is_address

if TYPE_CHECKING:
    from segmenter.config.datasets import DatasetConfig
    from segmenter.grid.scenes import Layout


def root_of(text: str) -> Path:
    """Return the root of a dataset, a folder or an address, without checking that it exists."""
    if not is_address(text):
        return Path(text).expanduser()
    from segmenter.raster.remote.settings import RemotePath  # brings rasterio, which --help does without

    return RemotePath.of(text)


def layout_of(section: DatasetConfig) -> Layout:
    """Return the file-name patterns of a recipe's dataset, without looking at files."""
    from segmenter.config import layouts

    return layouts.layout_of(section, root_of(section.root))
