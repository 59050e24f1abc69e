"""Maps named on a command line: files, or folders of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.mapping.outputs.finished import BESIDE


def maps_in(given: Iterable[Path]) -> list[Path]:
    """Return the named maps and all maps in the named folders.

    Raises:
        SegmenterError: a folder has no map.
    """
    return [path for each in given for path in _maps(each)]


def _maps(given: Path) -> list[Path]:
    if not given.is_dir():
        return [given]
    paths = [path for path in sorted(given.glob("*.tif")) if not path.name.endswith(BESIDE)]
    if not paths:
        raise SegmenterError(given, expected="GeoTIFF maps in this folder, there are none")
    return paths
