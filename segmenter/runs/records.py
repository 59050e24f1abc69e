"""Records of a run beside its weights, as sealed JSON: calibration, windows, origin, accuracy of its maps.

Size and content are limited and checked when a file is read: a run directory may come from a stranger.
`origin.json` serves descriptions of the run and contains no path; `validation.json` serves later checks of a
model, and its paths are valid only on this machine.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.invocation import invocation, quote_path
from segmenter.base.sealed import json_object, other_format, seal, unsealed_text
from segmenter.evaluation.calibration import Calibration, Fitted, Measures
from segmenter.evaluation.scores import percent
from segmenter.grid.labels import MAX_CLASSES
from segmenter.grid.scenes import Scene
from segmenter.runs.checkpoints import BEST, Arrays, load_some, save_arrays

Record = TypeVar("Record", bound=BaseModel)


class RunWithWeights(Protocol):
    """Part of a run (`run.Run`) that records need; the run reads some of them itself."""

    @property
    def path(self) -> Path: ...

    def fingerprint(self) -> str: ...

    def weights_file(self) -> Path: ...


class StrictRecord(BaseModel):
    """A record whose values are checked when it is written, too: a NaN is refused, not saved."""

    model_config = ConfigDict(
        strict=True, frozen=True, extra="forbid", allow_inf_nan=False, revalidate_instances="always"
    )


def loaded_record(path: Path, kind: type[Record], most: int = 1 << 24, remedy: Any = ...) -> Record | None:
    """Load a sealed record of a run; None without that file.

    Raises:
        CheckpointError: the file is damaged or of another format.
        SegmenterError: the file has more than `most` bytes, or cannot be read.
    """
    if not path.exists():
        return None
    whole = unsealed_text(read_regular(path, most))
    if whole is None:
        raise CheckpointError(path, "damaged or edited: its checksum is another, or missing", remedy=remedy)
    if (data := json_object(whole)) is not None and data.get("format") != 1:
        raise CheckpointError(path, other_format(1, data.get("format")), remedy=remedy)
    try:
        return kind.model_validate_json(whole)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(path, f"damaged or edited: {where}: {first['msg']}", remedy=remedy) from None


ACCURACY = "accuracy.json"


class AccuracyFile(BaseModel):
    """Shown part of accuracy.json, which has all figures.

    Attributes:
        weights: fingerprint of the weights that predicted (`checkpoints.fingerprint`).
    """

    model_config = ConfigDict(strict=True, frozen=True)

    format: Literal[1] = 1
    weights: str
    source: str
    head: str
    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    remarks: tuple[str, ...]


def save_accuracy(run: RunWithWeights, content: Mapping[str, Any]) -> None:
    """Write the estimates of a run's maps: fields of `AccuracyFile` but `weights`, and others for JSON.

    Raises:
        CheckpointError: the run has no weights.
        OutputError: the file cannot be written.
    """
    whole = {"format": 1, "weights": run.fingerprint(), **content}
    write_whole(run.path / ACCURACY, seal(json.dumps(whole, ensure_ascii=False, indent=1)).encode())


def load_accuracy(run: RunWithWeights) -> AccuracyFile | None:
    """Load the estimates of the maps of these weights; None without that file.

    Raises:
        CheckpointError: the file is damaged, of another format or of other weights.
    """
    path, anew = run.path / ACCURACY, "remove it, or estimate anew"
    found = loaded_record(path, AccuracyFile, remedy=anew)
    if found is not None and found.weights != run.fingerprint():
        raise CheckpointError(path, "is of other weights than those that predict", remedy=anew)
    return found


FILE = "origin.json"
MOST_OUTLINES = 200
"""Most outlines of scenes that are stored one by one; for more scenes, only a common outline."""

Natural = Annotated[int, Field(ge=0)]
LonLat = tuple[Annotated[float, Field(ge=-180, le=180)], Annotated[float, Field(ge=-90, le=90)]]
Ring = Annotated[tuple[LonLat, ...], Field(min_length=4, max_length=1 << 12)]
VALIDATION_FILE = "validation.json"
_IMAGES_FORMAT, _MOST_IMAGES = 1, 64
"""Images that are recorded at most: enough to check on, of a dataset of any size."""


class GroundPlace(StrictRecord):
    """Location of the training scenes on the ground.

    Attributes:
        rings: closed outlines, counter-clockwise, in degrees of longitude and latitude (WGS 84).
        scenes: number of outlined scenes; others have no georeference, or were not read.
        exact: True: one ring per scene; False: one ring around all.
    """

    rings: Annotated[tuple[Ring, ...], Field(min_length=1, max_length=MOST_OUTLINES)]
    scenes: Annotated[int, Field(ge=1)]
    exact: bool


class ChosenBy(StrictRecord):
    """Validation of earlier runs by which the steps of a training on all scenes were chosen.

    Attributes:
        runs: run directories: one, or those of folds.
        steps: step of the best validation, of folds the median.
        miou: mIoU of each run's best validation.
    """

    runs: tuple[Annotated[str, Field(max_length=10_000)], ...]
    steps: Natural
    miou: tuple[float, ...]

    def __str__(self) -> str:
        """Return a sentence on the choice, with its scores."""
        scores = ", ".join(percent(miou) for miou in self.miou)
        return (
            f"validation scenes trained, too, for about {self.steps:,} steps, as validation chose in "
            f"{', '.join(self.runs)}; there mIoU was {scores} %"
        )


class Origin(StrictRecord):
    """Origin of a run.

    Attributes:
        begun: start of the training in UTC, as `2026-11-22T19:05:00Z`; None: unknown.
        tiles: number of training tiles, and of tiles left out for lack of labels.
        tile_px: side of a tile in pixels.
        pixels: labelled pixels of the training tiles by class name.
        tiles_with: number of tiles with enough pixels of a class, by class name.
        metres_per_pixel: the finest and the coarsest of the training scenes that were read; None: unknown.
        place: location of the training scenes; None: unknown, or left out.
        started_from: name of the run whose weights it started from; empty: no run; None: unknown.
        computed_on: hardware and CUDA libraries at its start (`devices.setup.computed_on`).
        chosen_by: how its steps were chosen, if validation scenes trained, too.
    """

    format: Literal[1] = 1
    begun: Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")] | None = None
    scenes: dict[Literal["train", "validation", "test"], Natural]
    tiles: Natural
    tiles_left_out: Natural
    tile_px: Natural
    pixels: dict[str, Natural]
    tiles_with: dict[str, Natural]
    metres_per_pixel: tuple[float, float] | None = None
    place: GroundPlace | None = None
    started_from: str | None = None
    computed_on: dict[str, str] = {}
    chosen_by: ChosenBy | None = None


def save_origin(run: Path, origin: Origin) -> None:
    """Write the origin into a run directory, completely or not at all.

    Raises:
        SegmenterError: the file cannot be written.
    """
    write_whole(run / FILE, seal(origin.model_dump_json(indent=2)).encode())


def load_origin(run: Path) -> Origin | None:
    """Load the origin from a run directory; None if missing, damaged or of another format."""
    with suppress(SegmenterError):
        return loaded_record(run / FILE, Origin)
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


WINDOWS = "windows.json"
SIDE = 320
"""Pixels of a picture's longer side, at most."""
MOST = 12
"""Windows in a file."""

Text = Annotated[str, Field(max_length=10_000)]
Count = Annotated[int, Field(ge=0, le=1 << 53)]
Metres = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Base64 = Annotated[str, Field(max_length=1 << 19, pattern=r"^[A-Za-z0-9+/]+={0,2}$")]


class ShownWindow(StrictRecord):
    """A window of a scene, with pictures of its image, label and map.

    Attributes:
        why: reason for its choice: "worst" for most wrong pixels, "best" for most correct classes.
        scene: name of the scene.
        row, col, height, width: window in the scene, in pixels.
        right, labelled: number of correct and of labelled pixels.
        classes: number of classes that the label shows; 0: not known, as in runs of earlier versions.
        confused: names of the true class and of the map's class with the most wrong pixels.
        metres: of a pixel of the scene; None: unknown.
        picture_height, picture_width: pixels of each picture; larger windows are subsampled.
        image: a JPEG, in base64; `label`, `map`: PNGs in the classes' colours; `errors`, `confidence`: PNGs,
            empty if not known.
    """

    why: Literal["worst", "best"]
    scene: Text
    row: Count
    col: Count
    height: Annotated[int, Field(ge=1, le=1 << 31)]
    width: Annotated[int, Field(ge=1, le=1 << 31)]
    right: Count
    labelled: Annotated[int, Field(ge=1, le=1 << 53)]
    classes: Count = 0
    confused: tuple[Text, Text] | None = None
    metres: Metres | None = None
    picture_height: Annotated[int, Field(ge=1, le=SIDE)]
    picture_width: Annotated[int, Field(ge=1, le=SIDE)]
    image: Base64
    label: Base64
    map: Base64
    errors: Base64 | Literal[""] = ""
    confidence: Base64 | Literal[""] = ""


class ShownWindows(StrictRecord):
    """Windows shown in a report.

    Attributes:
        windows: number of windows from which these were chosen.
        scenes: scenes of those windows; with several machines, the first machine's.
        shown: chosen windows, worst first.
    """

    format: Literal[1] = 1
    step: Count
    epoch: Count
    windows: Count
    scenes: Count
    of_scenes: Count
    shown: Annotated[tuple[ShownWindow, ...], Field(max_length=MOST)]


def as_base64(content: bytes) -> str:
    """Return a picture's bytes as base64 text, as in the file."""
    return base64.b64encode(content).decode()


def save_windows(run: Path, content: ShownWindows) -> None:
    """Write the windows file of a run, completely or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_whole(run / WINDOWS, seal(json.dumps(content.model_dump(mode="json"))).encode())


def load_windows(run: Path) -> ShownWindows | None:
    """Load the windows of a run; None without that file, as in runs without validation.

    Raises:
        CheckpointError: the file is damaged, of another format, or too large.
    """
    return loaded_record(run / WINDOWS, ShownWindows, 1 << 23)


PROGRESS = "progress.json"
_PLACE = ("scene", "row", "col", "height", "width")
_MOST_MAPS = 12
"""Maps of a window that are kept: of more validations, those of about equal distance."""


class ProgressMap(StrictRecord):
    """Map of the followed window after a validation.

    Attributes:
        miou: mIoU of that validation over all scenes, from 0 to 1; None: not a number.
        map: a PNG in the classes' colours, in base64.
    """

    step: Count
    epoch: Count
    miou: Annotated[float, Field(ge=0, le=1)] | None
    map: Base64


class Progress(StrictRecord):
    """The validation window with most classes, mapped after each validation of a training.

    Attributes:
        scene, row, col, height, width: the window, in pixels of its scene.
        metres: of a pixel of the scene; None: unknown.
        picture_height, picture_width: pixels of each picture; larger windows are subsampled.
        image: a JPEG, in base64; `label`: a PNG in the classes' colours.
        maps: the maps in the order of the steps.
    """

    format: Literal[1] = 1
    scene: Text
    row: Count
    col: Count
    height: Annotated[int, Field(ge=1, le=1 << 31)]
    width: Annotated[int, Field(ge=1, le=1 << 31)]
    metres: Metres | None = None
    picture_height: Annotated[int, Field(ge=1, le=SIDE)]
    picture_width: Annotated[int, Field(ge=1, le=SIDE)]
    image: Base64
    label: Base64
    maps: Annotated[tuple[ProgressMap, ...], Field(max_length=_MOST_MAPS)]


def add_progress(run: Path, now: Progress) -> None:
    """Add the map of a validation to those of before it; maps of later steps, or of another window, go.

    Args:
        now: the window, with the new map alone.

    Raises:
        OutputError: the file cannot be written.
    """
    before: Progress | None = None
    with suppress(SegmenterError):  # a damaged file is begun anew
        before = load_progress(run)
    (new,) = now.maps
    same = before is not None and all(getattr(before, each) == getattr(now, each) for each in _PLACE)
    kept = before.maps if before is not None and same else ()
    maps = [*(each for each in kept if each.step < new.step), new]
    while len(maps) > _MOST_MAPS:  # the map whose neighbours are nearest goes, never the first or the last
        gaps = [after.step - first.step for first, after in zip(maps, maps[2:], strict=False)]
        del maps[1 + gaps.index(min(gaps))]
    content = now.model_copy(update={"maps": tuple(maps)})
    write_whole(run / PROGRESS, seal(json.dumps(content.model_dump(mode="json"))).encode())


def load_progress(run: Path) -> Progress | None:
    """Load the maps of a training's validations; None without that file.

    Raises:
        CheckpointError: the file is damaged, of another format, or too large.
    """
    return loaded_record(run / PROGRESS, Progress, 1 << 23)


CALIBRATION = "calibration.json"
Bias = Annotated[float, Field(ge=-1000, le=1000)]


class FittedScene(StrictRecord):
    """A scene that a calibration was fitted on.

    Attributes:
        image, label: digests of its files (`raster.stamps.file_digest`).
        blocks: True if some blocks of the image alone were, those of the label.
    """

    name: Annotated[str, Field(max_length=10_000)]
    image: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    label: Annotated[str, Field(pattern="^([0-9a-f]{16})?$")]
    blocks: bool = False


class CalibrationFile(StrictRecord):
    """Content of calibration.json.

    Attributes:
        step: step of the weights that it was fitted for; -1 if their file does not say it.
        weights: fingerprint of these weights (`checkpoints.fingerprint`); empty in files of earlier versions.
        fitted_on: the validation scenes; empty in files of earlier versions.
        temperature, bias: of `Calibration`; the bias is 0 where temperature alone is used.
        pixels, scenes: numbers of the labelled pixels, and of their validation scenes.
        copied_from: run whose weights it was fitted for, if these were trained on its validation scenes, too.
        before, with_temperature, with_bias: measures of `Fitted`, on scenes left out of the fit.
    """

    format: Literal[1] = 1
    step: int = Field(ge=-1, le=1 << 53)
    weights: Annotated[str, Field(pattern="^([0-9a-f]{64})?$")] = ""
    temperature: float = Field(ge=1e-3, le=1e3)
    bias: tuple[Bias, ...] = Field(min_length=1, max_length=MAX_CLASSES)
    pixels: int = Field(ge=1)
    scenes: int = Field(ge=1)
    fitted_on: tuple[FittedScene, ...] = ()
    copied_from: Annotated[str, Field(max_length=10_000)] = ""
    before: Measures
    with_temperature: Measures
    with_bias: Measures

    @property
    def fitted(self) -> Fitted:
        """Calibration with its measures."""
        calibration = Calibration(self.temperature, self.bias)
        return Fitted(calibration, self.before, self.with_temperature, self.with_bias)


def save_calibration(
    run: RunWithWeights, fitted: Fitted, *, pixels: int, scenes: int, fitted_on: Sequence[FittedScene]
) -> None:
    """Write the calibration of a run's weights, completely or not at all; arguments as in `CalibrationFile`.

    Raises:
        CheckpointError: the run has no weights.
        OutputError: the file cannot be written.
    """
    content = CalibrationFile(
        step=step_of(run.weights_file()),
        weights=run.fingerprint(),
        temperature=fitted.calibration.temperature,
        bias=fitted.calibration.bias,
        pixels=pixels,
        scenes=scenes,
        fitted_on=tuple(fitted_on),
        before=fitted.before,
        with_temperature=fitted.temperature,
        with_bias=fitted.with_bias,
    )
    write_calibration(run.path, content)


def write_calibration(run: Path, content: CalibrationFile) -> None:
    """Write the calibration of a run, completely or not at all.

    Raises:
        OutputError: the file cannot be written.
    """
    write_whole(run / CALIBRATION, seal(json.dumps(content.model_dump(mode="json"), indent=1)).encode())


def copy_calibration(found: CalibrationFile, source: Path, run: RunWithWeights) -> None:
    """Write the calibration of the run `source`, which chose the steps of a run on all scenes, for that one.

    Raises:
        CheckpointError: the run has no weights.
        OutputError: the file cannot be written.
    """
    own = {"step": step_of(run.weights_file()), "weights": run.fingerprint(), "copied_from": str(source)}
    write_calibration(run.path, found.model_copy(update=own))


def load_calibration(run: Path) -> CalibrationFile | None:
    """Load the calibration of a run; None without that file.

    Raises:
        CheckpointError: the file is damaged or of another format.
    """
    anew = f"remove it, or make it anew: {invocation('calibrate')} {quote_path(run)}"
    return loaded_record(run / CALIBRATION, CalibrationFile, 1 << 26, remedy=anew)


SETS = "sets.json"
"""Thresholds of prediction sets: `runs.set_file`."""


def save_best(run: Path, arrays: Arrays) -> None:
    """Write the best model of a run; calibration and sets of the one before it go, and are made at the end.

    Raises:
        OutputError: the file cannot be written.
    """
    for name in (CALIBRATION, SETS):
        (run / name).unlink(missing_ok=True)
    save_arrays(run / BEST, arrays)


def step_of(weights: Path) -> int:
    """Return the step of a file of weights; -1 if it does not say it."""
    with suppress(CheckpointError, IndexError, ValueError, OverflowError):
        return int(load_some(weights, ["position"])["position"].ravel()[0])
    return -1


def calibrated_head(arrays: Arrays, calibration: Calibration) -> Arrays:
    """Return the weights of the layer `logits` with temperature and bias: its logits are calibrated.

    A later bilinear enlargement keeps this, since its weights sum to 1. Returns none of a model without
    such a layer, whose misfit is reported where its weights are checked.
    """
    names = ("model/logits/kernel", "model/logits/bias")
    if not all(name in arrays for name in names):
        return {}
    kernel, bias_K = (arrays[name].astype(np.float64) / calibration.temperature for name in names)
    return {
        names[0]: kernel.astype(arrays[names[0]].dtype),
        names[1]: (bias_K + np.array(calibration.bias)).astype(arrays[names[1]].dtype),
    }
