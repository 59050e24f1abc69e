"""Origin of a run: scenes, classes and place in `origin.json`, paths of images in `validation.json`.

Neither resuming nor predicting needs them. The first is for those who describe the run, and holds no path;
the second for those who check a model later, and elsewhere its paths lead nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segmenter.base.errors import SegmenterError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.sealed import sealed, unsealed_text
from segmenter.grid.scenes import Scene

FILE = "origin.json"
MOST_OUTLINES = 200
"""Outlines of scenes that are kept one by one; of more, only what surrounds them all."""

Count = Annotated[int, Field(ge=0)]
LonLat = tuple[Annotated[float, Field(ge=-180, le=180)], Annotated[float, Field(ge=-90, le=90)]]
Ring = Annotated[tuple[LonLat, ...], Field(min_length=4, max_length=1 << 12)]
VALIDATION_FILE = "validation.json"
_IMAGES_FORMAT, _MOST_IMAGES = 1, 64
"""Images that are recorded at most: enough to check on, of a dataset of any size."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Place(_Strict):
    """Place of the training scenes on the ground.

    Attributes:
        rings: closed outlines, counter-clockwise, in degrees of longitude and latitude (WGS 84).
        scenes: how many are outlined; the others have no georeference that tells it, or were not looked at.
        exact: a ring for each of these; else one around all of them.
    """

    rings: Annotated[tuple[Ring, ...], Field(min_length=1, max_length=MOST_OUTLINES)]
    scenes: Annotated[int, Field(ge=1)]
    exact: bool


class Origin(_Strict):
    """Origin of a run.

    Attributes:
        format: of the file.
        begun: when its training was started, in UTC, as `2026-11-22T19:05:00Z`; None: not known.
        scenes: of each split.
        tiles: of the training, and how many were left out for want of labels.
        tile_px: side of a tile.
        pixels: labelled ones of the training tiles, by the class's name.
        tiles_with: tiles that hold enough of a class to be counted on in a step, by its name.
        metres_per_pixel: the finest and the coarsest of the training scenes that were looked at; None: not
            known.
        place: of the training scenes; None: not known, or left out.
        started_from: name of the run whose weights it started from; empty: of none; None: not known.
        computed_on: hardware and CUDA's libraries of its start (`devices.setup.computed_on`).
    """

    format: Literal[1] = 1
    begun: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = None
    scenes: dict[Literal["train", "validation", "test"], Count]
    tiles: Count
    tiles_left_out: Count
    tile_px: Count
    pixels: dict[str, Count]
    tiles_with: dict[str, Count]
    metres_per_pixel: tuple[float, float] | None = None
    place: Place | None = None
    started_from: str | None = None
    computed_on: dict[str, str] = {}


def save_origin(run: Path, origin: Origin) -> None:
    """Write it into a run directory, whole or not at all.

    Raises:
        SegmenterError: it cannot be written.
    """
    write_whole(run / FILE, sealed(origin.model_dump_json(indent=2)).encode())


def load_origin(run: Path) -> Origin | None:
    """Load the record in a run directory; None if there is no whole one of this format."""
    with suppress(SegmenterError, ValidationError):
        text = unsealed_text(read_regular(run / FILE))
        return None if text is None else Origin.model_validate_json(text)
    return None


# ------------------------------------------------------------------------------------------ validation images


def save_validation_images(run: Path, scenes: Sequence[Scene]) -> None:
    """Write the paths of a run's validation images, evenly chosen ones where there are many.

    Addresses are left out: they may hold secrets.
    """
    local = [scene.image for scene in scenes if type(scene.image) is type(Path())]
    count = min(len(local), _MOST_IMAGES)
    images = [str(local[i * len(local) // count].absolute()) for i in range(count)]
    content = {"format": _IMAGES_FORMAT, "images": images}
    write_whole(run / VALIDATION_FILE, json.dumps(content, indent=0).encode())


def validation_images(run: Path) -> list[Path]:
    """Return the recorded paths, existing or not; none if there is no valid record."""
    try:
        data = json.loads(read_regular(run / VALIDATION_FILE))
        if data["format"] != _IMAGES_FORMAT:
            return []
        return [Path(str(path)) for path in data["images"]]
    except (SegmenterError, ValueError, KeyError, TypeError, RecursionError):
        return []
