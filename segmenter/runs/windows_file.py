"""File `windows.json` of a run: the worst and best windows of its best validation, as small pictures.

The report shows them even if the images are no longer available. Size and content are limited and checked
when the file is read: a run directory may come from a stranger.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segmenter.base.errors import CheckpointError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.sealed import json_object, other_format, sealed, unsealed_text

WINDOWS = "windows.json"
FORMAT: Literal[1] = 1
SIDE = 320
"""Pixels of a picture's longer side, at most."""
MOST = 12
"""Windows in a file."""
_MOST_BYTES = 1 << 23

Text = Annotated[str, Field(max_length=10_000)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Base64 = Annotated[str, Field(max_length=1 << 19, pattern=r"^[A-Za-z0-9+/]+={0,2}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class ShownWindow(_Strict):
    """A window of a scene, with pictures of its image, label and map.

    Attributes:
        why: reason for its choice: "worst" for most wrong pixels, "best" for most correct classes.
        scene: name of the scene.
        row, col, height, width: window in the scene, in pixels.
        right, labelled: number of correct and of labelled pixels.
        picture_height, picture_width: pixels of each picture; larger windows are subsampled.
        image: a JPEG, in base64; `label`, `map`: PNGs in the classes' colours.
    """

    why: Literal["worst", "best"]
    scene: Text
    row: Count
    col: Count
    height: Annotated[int, Field(ge=1, le=1 << 31)]
    width: Annotated[int, Field(ge=1, le=1 << 31)]
    right: Count
    labelled: Annotated[int, Field(ge=1, le=1 << 53)]
    picture_height: Annotated[int, Field(ge=1, le=SIDE)]
    picture_width: Annotated[int, Field(ge=1, le=SIDE)]
    image: Base64
    label: Base64
    map: Base64


class ShownWindows(_Strict):
    """Windows shown in a report.

    Attributes:
        step, epoch: step and epoch of the validation.
        windows: number of windows from which these were chosen.
        scenes: scenes of those windows; with several machines, the first machine's.
        of_scenes: number of scenes validated by all machines.
        shown: chosen windows, worst first.
    """

    format: Literal[1]
    step: Count
    epoch: Count
    windows: Count
    scenes: Count
    of_scenes: Count
    shown: Annotated[tuple[ShownWindow, ...], Field(max_length=MOST)]


def as_base64(content: bytes) -> str:
    """Return a picture's bytes as base64 text, as in the file."""
    return base64.b64encode(content).decode()


def save_windows(
    run: Path,
    shown: Sequence[ShownWindow],
    *,
    step: int,
    epoch: int,
    windows: int,
    scenes: int,
    of_scenes: int,
) -> None:
    """Write the windows file of a run, completely or not at all; arguments as in `ShownWindows`.

    Raises:
        OutputError: the file cannot be written.
    """
    content = ShownWindows(
        format=FORMAT,
        step=step,
        epoch=epoch,
        windows=windows,
        scenes=scenes,
        of_scenes=of_scenes,
        shown=tuple(shown),
    )
    write_whole(run / WINDOWS, sealed(json.dumps(content.model_dump(mode="json"))).encode())


def load_windows(run: Path) -> ShownWindows | None:
    """Load the windows of a run; None without that file, as in runs without validation.

    Raises:
        CheckpointError: the file is damaged, of another format, or too large.
    """
    path = run / WINDOWS
    if not path.exists():
        return None
    whole = unsealed_text(read_regular(path, _MOST_BYTES))
    if whole is None:
        raise CheckpointError(path, "damaged or edited: its checksum is another, or missing")
    if (data := json_object(whole)) is not None and data.get("format") != FORMAT:
        raise CheckpointError(path, other_format(FORMAT, data.get("format")))
    try:
        return ShownWindows.model_validate_json(whole)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(path, f"damaged or edited: {where}: {first['msg']}") from None
