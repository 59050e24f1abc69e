"""Maps named on a command line: files, or folders of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from segmenter.base.errors import SegmenterError, failing
from segmenter.base.files import real
from segmenter.mapping.style import BESIDE


def maps_in(given: Iterable[Path]) -> list[Path]:
    """Return the named maps and all maps in the named folders, each once.

    Raises:
        SegmenterError: a file is not there, or a folder has no map.
    """
    return list({real(path): path for each in given for path in _maps(each)}.values())


def _maps(given: Path) -> list[Path]:
    if not given.is_dir():
        with failing(SegmenterError, given, "cannot read it"):
            given.stat()
        return [given]
    paths = [path for path in sorted(given.glob("*.tif")) if not path.name.endswith(BESIDE)]
    if not paths:
        raise SegmenterError(given, expected="GeoTIFF maps in this folder, there are none")
    return paths
