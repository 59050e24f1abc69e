"""Origin of a run: scenes, classes and location in `origin.json`, image paths in `validation.json`.

Neither resuming nor predicting needs them. The first serves descriptions of the run and contains no path; the
second serves later checks of a model, and its paths are valid only on this machine.
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
"""Most outlines of scenes that are stored one by one; for more scenes, only a common outline."""

Count = Annotated[int, Field(ge=0)]
LonLat = tuple[Annotated[float, Field(ge=-180, le=180)], Annotated[float, Field(ge=-90, le=90)]]
Ring = Annotated[tuple[LonLat, ...], Field(min_length=4, max_length=1 << 12)]
VALIDATION_FILE = "validation.json"
_IMAGES_FORMAT, _MOST_IMAGES = 1, 64
"""Images that are recorded at most: enough to check on, of a dataset of any size."""


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class Place(_Strict):
    """Location of the training scenes on the ground.

    Attributes:
        rings: closed outlines, counter-clockwise, in degrees of longitude and latitude (WGS 84).
        scenes: number of outlined scenes; others have no georeference, or were not read.
        exact: True: one ring per scene; False: one ring around all.
    """

    rings: Annotated[tuple[Ring, ...], Field(min_length=1, max_length=MOST_OUTLINES)]
    scenes: Annotated[int, Field(ge=1)]
    exact: bool


class Origin(_Strict):
    """Origin of a run.

    Attributes:
        format: format number of the file.
        begun: start of the training in UTC, as `2026-11-22T19:05:00Z`; None: unknown.
        scenes: number of scenes in each split.
        tiles: number of training tiles, and of tiles left out for lack of labels.
        tile_px: side of a tile in pixels.
        pixels: labelled pixels of the training tiles by class name.
        tiles_with: number of tiles with enough pixels of a class, by class name.
        metres_per_pixel: the finest and the coarsest of the training scenes that were read; None: unknown.
        place: location of the training scenes; None: unknown, or left out.
        started_from: name of the run whose weights it started from; empty: no run; None: unknown.
        computed_on: hardware and CUDA libraries at its start (`devices.setup.computed_on`).
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
    """Write the origin into a run directory, completely or not at all.

    Raises:
        SegmenterError: the file cannot be written.
    """
    write_whole(run / FILE, sealed(origin.model_dump_json(indent=2)).encode())


def load_origin(run: Path) -> Origin | None:
    """Load the origin from a run directory; None if missing, damaged or of another format."""
    with suppress(SegmenterError, ValidationError):
        text = unsealed_text(read_regular(run / FILE))
        return None if text is None else Origin.model_validate_json(text)
    return None


# ------------------------------------------------------------------------------------------ validation images


def save_validation_images(run: Path, scenes: Sequence[Scene]) -> None:
    """Write the paths of a run's validation images, evenly chosen if there are many.

    Addresses are left out: they may contain secrets.
    """
    local = [scene.image for scene in scenes if type(scene.image) is type(Path())]
    count = min(len(local), _MOST_IMAGES)
    images = [str(local[i * len(local) // count].absolute()) for i in range(count)]
    content = {"format": _IMAGES_FORMAT, "images": images}
    write_whole(run / VALIDATION_FILE, json.dumps(content, indent=0).encode())


def validation_images(run: Path) -> list[Path]:
    """Return the recorded image paths, existing or not; empty if there is no valid record."""
    try:
        data = json.loads(read_regular(run / VALIDATION_FILE))
        if data["format"] != _IMAGES_FORMAT:
            return []
        return [Path(str(path)) for path in data["images"]]
    except (SegmenterError, ValueError, KeyError, TypeError, RecursionError):
        return []
