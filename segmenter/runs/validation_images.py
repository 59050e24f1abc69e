"""File `validation.json`: where a run's validation images lie, for what checks a model on them later.

A record for convenience: the run is whole without it, and elsewhere its paths lead nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.base.files import read_regular, write_whole
from segmenter.grid.scenes import Scene

FILE = "validation.json"
_FORMAT, _MOST = 1, 64
"""Images that are recorded at most: enough to check on, of a dataset of any size."""


def save_validation_images(run: Path, scenes: Sequence[Scene]) -> None:
    """Write the paths of a run's validation images, evenly chosen ones where there are many.

    Addresses are left out: they may hold secrets.
    """
    local = [scene.image for scene in scenes if type(scene.image) is type(Path())]
    chosen = [local[i * len(local) // min(len(local), _MOST)] for i in range(min(len(local), _MOST))]
    images = [str(path.absolute()) for path in chosen]
    write_whole(run / FILE, json.dumps({"format": _FORMAT, "images": images}, indent=0).encode())


def validation_images(run: Path) -> list[Path]:
    """The recorded paths, whether they are there or not; none where there is no record of ours."""
    try:
        data = json.loads(read_regular(run / FILE))
        if data["format"] != _FORMAT:
            return []
        return [Path(str(path)) for path in data["images"]]
    except (SegmenterError, ValueError, KeyError, TypeError, RecursionError):
        return []
