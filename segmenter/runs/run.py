"""Run directory: everything for resuming and predicting, and no file that runs code when loaded.

    recipe.yaml             the resolved recipe: a record of the training, do not edit
    run.json                meaning of the model's input and output: bands, normalisation, classes
    scenes.json             role, path and digests of each scene (`scenes`)
    origin.json             scenes, class pixels, scale and location, for descriptions
    validation.json         paths of the validation images
    checkpoints/step-N.npz  weights, optimiser and position after N steps
    best.npz                the checkpoint with the best mIoU on the validation scenes
    log.jsonl, tensorboard/ logs
    scores.json, *.png      the best validation (last_*: the last), and the learning curves
    calibration.json        temperature and bias of the probabilities (`records`)

Arrays are stored as .npz with a SHA-256 (`checkpoints`); run.json has checksums of itself (`seal`) and of
recipe.yaml, so damage to either is detected. Each checkpoint contains a copy of both texts.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, model_validator
from pydantic.dataclasses import dataclass as checked_dataclass
from pydantic_core import PydanticCustomError

from segmenter.base.errors import CheckpointError, DamagedCheckpointError, LabelError, extended_error, failing
from segmenter.base.files import read_regular, write_whole
from segmenter.base.invocation import invocation, quote_path
from segmenter.base.sealed import json_object, other_format, seal, unsealed_text
from segmenter.base.terminal import say
from segmenter.config.reading import dump_recipe, load_recipe, with_deals
from segmenter.config.recipe import Recipe
from segmenter.evaluation.calibration import Calibration
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import SceneMeans
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.checkpoints import (
    BEST,
    Arrays,
    checkpoints,
    file_fingerprint,
    load_arrays,
    make_run_folder,
    newest_checkpoint,
    newest_whole,
)
from segmenter.runs.records import CALIBRATION, CalibrationFile, load_calibration, step_of
from segmenter.runs.scenes import deals_of

RECIPE_FILE = "recipe.yaml"
_LATER = ("scenes", "scene_means", "shares", "extensions", "band_names")
"""Entries of run.json that older files lack; left out if empty."""
RUN_FILE = "run.json"
"""File that makes a folder a run."""
_SHOWN_RUNS = 5
FORMAT = 2
_MOST_BANDS = 65535
_MOST_ERRORS = 3

Band = Annotated[int, Field(ge=1, le=_MOST_BANDS)]
DType = Annotated[str, Field(pattern="^(u?int(8|16|32|64)|float(16|32|64))$")]

_strict = ConfigDict(strict=True, extra="forbid")


@checked_dataclass(frozen=True, config=_strict)
class MeasuredShares:
    """Shares chosen by a measurement (`distribution.shares: auto`).

    Attributes:
        tiles: tiles of a step on each device.
    """

    tiles: tuple[Annotated[int, Field(ge=0, le=1 << 20)], ...] = Field(min_length=1, max_length=1 << 12)
    devices: tuple[Annotated[str, Field(max_length=1000)], ...] = Field(min_length=1, max_length=1 << 12)


@checked_dataclass(frozen=True, config=_strict)
class Extension:
    """Change of the number of epochs of a begun run.

    Attributes:
        before, epochs: old and new number of epochs.
    """

    step: int = Field(ge=0, le=1 << 53)
    before: int = Field(ge=1, le=1 << 31)
    epochs: int = Field(ge=1, le=1 << 31)


@dataclass(frozen=True, kw_only=True)
class RunContent:
    """Facts of a run that run.json holds, with their limits there.

    Attributes:
        classes: classes of the model's output.
        normalisation: normalisation of the bands.
        network: stride, receptive-field radius and memory.
        scenes: normalisation by the training scenes, if the model uses that of pretrained weights; None: the
            same.
        scene_means: means of the training scenes; None: fewer than 8, or a run of an earlier version.
        bands: 1-based bands of an image file that the model sees, in order; None: all but alpha.
        band_count: number of these bands.
        band_names: names of these bands in the training images; empty if unnamed.
        dtype: pixel type of the training images.
        shares: shares measured before the first step; None: not requested.
        metres_per_pixel: gsd of the training images; None if unknown.
        labels: kind of labels that it learned from.
        tiles: fingerprint of the training tiles, on which the plans depend; empty: unknown.
        planned_replicas: number of replicas that each get every promised class; 1: only the step does.
        extensions: extensions of the run; the recipe has the last number of epochs.
    """

    classes: ClassMap
    normalisation: Normalisation
    network: NetworkGeometry
    bands: tuple[Band, ...] | None
    band_count: Annotated[int, Field(ge=1, le=_MOST_BANDS)]
    dtype: DType
    metres_per_pixel: Annotated[float, Field(gt=0, le=1e9)] | None
    labels: Literal["full", "eroded"]
    tiles: Annotated[str, Field(max_length=1000)]
    planned_replicas: Annotated[int, Field(ge=1, le=1 << 16)] = 1
    scenes: Normalisation | None = None
    scene_means: SceneMeans | None = None
    shares: MeasuredShares | None = None
    extensions: Annotated[tuple[Extension, ...], Field(max_length=10_000)] = ()
    band_names: tuple[Annotated[str, Field(max_length=10_000)] | None, ...] = ()


@dataclass(frozen=True)
class Run(RunContent):
    """A run directory's record of its model.

    Attributes:
        path: the directory.
        recipe: resolved recipe.
        calibrated: False to predict without its calibration.
    """

    path: Path
    recipe: Recipe
    calibrated: bool = True

    @property
    def dataset(self) -> str:
        """Kind of the training dataset: potsdam, naic2020 or folder."""
        return self.recipe.dataset.kind

    @property
    def mean_C(self) -> tuple[float, ...]:
        """Mean of each band over the training scenes; replaces single bands without data."""
        return (self.scenes or self.normalisation).mean

    def save(self) -> None:
        """Write `recipe.yaml` and `run.json` into the directory, creating it if needed.

        If the process is killed at any moment, the two files still match: while a recipe is replaced,
        run.json lists both.

        Raises:
            CheckpointError: `load_run` would refuse a value.
        """
        make_run_folder(self.path)
        texts, recipe = self.texts(), self.path / RECIPE_FILE
        old = read_regular(recipe) if recipe.is_file() else texts[RECIPE_FILE]
        if old != texts[RECIPE_FILE] and (self.path / RUN_FILE).is_file():
            write_whole(self.path / RUN_FILE, self._run_text(texts[RECIPE_FILE], old))
        for name, text in texts.items():
            write_whole(self.path / name, text)

    def texts(self) -> dict[str, bytes]:
        """Return the content of the files that `save` writes, by name."""
        recipe = dump_recipe(self.recipe).encode()
        return {RECIPE_FILE: recipe, RUN_FILE: self._run_text(recipe)}

    def text_arrays(self) -> Arrays:
        """Return copies of both files by name, as arrays for a checkpoint."""
        return {name: np.frombuffer(text, np.uint8) for name, text in self.texts().items()}

    def _run_text(self, *recipes: bytes) -> bytes:
        content = {
            **{each.name: getattr(self, each.name) for each in fields(RunContent)},
            "classes": self.classes.to_dict(),
            "recipe": [hashlib.sha256(text).hexdigest() for text in recipes],
        }
        content["band_names"] = any(self.band_names) and self.band_names
        kept = {name: value for name, value in content.items() if value or name not in _LATER}
        text = json.dumps({"format": FORMAT, **kept}, indent=2, default=asdict)
        _validate(text.encode(), "the training data give what no model can be trained with")
        return seal(text).encode()

    def weights_file(self) -> Path:
        """Return the best model's file, else the newest checkpoint.

        Raises:
            CheckpointError: the run has no checkpoint yet.
        """
        best = self.path / BEST
        if best.is_file():
            return best
        return newest_checkpoint(self.path)

    def calibration(self) -> Calibration | None:
        """Return the calibration of the weights that predict; None if missing or switched off.

        A file of an earlier version names only the step of its weights: it is used where that is theirs, and
        left unused else.

        Raises:
            CheckpointError: the file is damaged, of other classes, or of other weights.
        """
        found = self.calibration_file()
        return None if found is None else found.fitted.calibration

    def calibration_file(self) -> CalibrationFile | None:
        """Return the record of `calibration`, under the same conditions."""
        if not self.calibrated or (found := load_calibration(self.path)) is None:
            return None
        anew = f"make it anew: {invocation('calibrate')} {quote_path(self.path)}"
        if len(found.bias) != len(self.classes):
            raise CheckpointError(
                self.path / CALIBRATION,
                expected=f"{len(self.classes)} classes",
                got=len(found.bias),
                remedy=anew,
            )
        if not found.weights:
            return found if found.step == step_of(self.weights_file()) else None
        if found.weights != self.fingerprint():
            raise CheckpointError(
                self.path / CALIBRATION,
                "is of other weights than those that predict",
                remedy=f"{anew}, or predict with --no-calibration",
            )
        return found

    def fingerprint(self) -> str:
        """Return the SHA-256 of the weights that predict, whatever file they are in.

        Raises:
            CheckpointError: the weights are missing, unreadable or damaged; the message names an alternative.
        """
        with self._naming_whole() as file:
            return file_fingerprint(file)

    def checksum(self) -> str:
        """Return the SHA-256 of all that predictions depend on: weights, calibration, bands, classes …

        Raises:
            CheckpointError: the weights are missing or unreadable.
        """
        total = hashlib.sha256(self.recipe.model.model_dump_json().encode())
        for path in (self.path / "run.json", self.weights_file()):
            with failing(CheckpointError, path, "cannot read it"), path.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        if (calibration := self.calibration()) is not None:
            total.update(repr(calibration).encode())
        return total.hexdigest()

    def weights(self) -> Arrays:
        """Load the arrays of the best model, else of the newest checkpoint.

        Raises:
            CheckpointError: the file is missing or damaged; the message names an alternative.
        """
        with self._naming_whole() as file:
            return load_arrays(file)

    @contextmanager
    def _naming_whole(self) -> Iterator[Path]:
        """Yield the file of the weights; if it is found to be damaged, name the newest whole one."""
        file = self.weights_file()
        try:
            yield file
        except DamagedCheckpointError as error:
            whole = newest_whole(self.path, but=file)
            other = f"to use the newest whole one, {whole}, rename it" if whole else "no other is whole"
            raise extended_error(error, remedy=other) from None


def load_run(path: Path) -> Run:
    """Load the run in a directory; does not import TensorFlow.

    A missing run.json or recipe.yaml is restored from its copy in a checkpoint; a line on stderr reports
    that.

    Raises:
        CheckpointError: the path is no run directory or has another format, or run.json or recipe.yaml was
            changed; the message has a remedy.
        ConfigError: the recipe is not valid.
    """
    if os.path.isfile(path):  # Path.is_file raises where one may not look
        raise CheckpointError(path, expected="a run directory", got="a file", remedy=_run_of(path))
    for name in (RUN_FILE, RECIPE_FILE):
        if not _is_there(path / name):
            put_back(path / name, _weights_files(path))
    file = path / RUN_FILE
    try:
        content = read_run_file(read_regular(file), str(file))
    except CheckpointError as error:
        raise extended_error(error, remedy=how_to_put_back(file, _weights_files(path))) from None
    recipe = read_regular(path / RECIPE_FILE)
    if content.recipe and hashlib.sha256(recipe).hexdigest() not in content.recipe:
        raise CheckpointError(
            path / RECIPE_FILE,
            "edited or damaged: it is not what this run was trained with",
            remedy=f"{how_to_put_back(path / RECIPE_FILE, _weights_files(path))}; to train with other "
            f"settings, start a new run with --init-from {quote_path(path)}",
        )
    facts = {each.name: getattr(content, each.name) for each in fields(RunContent)}
    return Run(path, with_deals(load_recipe(path / RECIPE_FILE), deals_of(path)), **facts)


def _run_of(file: Path) -> str:
    """Return a hint on the run directory if a user named a file in it."""
    if run := next((folder for folder in file.absolute().parents[:2] if (folder / RUN_FILE).is_file()), None):
        return f"give the run that it is of, {os.path.relpath(run)}"
    if file.suffix in (".yaml", ".yml"):
        return f"a recipe is trained first, into runs/{file.stem} where it is not told otherwise"
    return f"a packed run is unpacked with: {invocation('runs')} unpack {quote_path(file)}"


def _is_there(file: Path) -> bool:
    """Return True if a run's file exists.

    Raises:
        CheckpointError: access is denied, or the name is too long.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise CheckpointError(
            file.parent, expected=f"a run directory, cannot look into it: {error.strerror}"
        ) from None
    return True


def _weights_files(run: Path) -> list[Path]:
    """Return paths of the best model and then of the checkpoints, newest first; not all need exist."""
    return [run / BEST, *reversed(checkpoints(run).values())]


# -------------------------------------------------------------------------------------- copies in checkpoints


def put_back(path: Path, files: Sequence[Path]) -> None:
    """Restore a missing file from its copy in the first undamaged one of `files`; report it on stderr.

    Raises:
        CheckpointError: no file has a copy.
        SegmenterError: the file cannot be written.
    """
    copy = _copy_of(path, files)
    if copy is None:
        raise CheckpointError(
            path.parent,
            expected="a run directory as train.py leaves it, there is no "
            f"{path.name}{_hint(path.parent) if path.name == RUN_FILE else ''}",
        )
    write_whole(path, copy[1])
    say(f"{path}: was not there; put back from {copy[0].name}", aside=True)


def runs_in(folder: Path) -> list[Path]:
    """Return the run directories in a folder, sorted by name."""
    with suppress(OSError):
        return sorted(file.parent for file in folder.glob(f"*/{RUN_FILE}"))
    return []


def _hint(missing: Path) -> str:
    """Return a hint: the runs in a folder, or a similarly spelt one beside it, or the first of all."""
    if inside := runs_in(missing):
        return f"; runs in it are {_list_runs(inside)}"
    beside = {run.name: run for run in runs_in(missing.parent)}
    if near := get_close_matches(missing.name, beside, 1):
        return f"; did you mean {beside[near[0]]}?"
    return f"; runs beside it are {_list_runs(list(beside.values()))}" if beside else ""


def _list_runs(runs: Sequence[Path]) -> str:
    more = f" and {len(runs) - _SHOWN_RUNS} more" if len(runs) > _SHOWN_RUNS else ""
    return ", ".join(map(str, runs[:_SHOWN_RUNS])) + more


def how_to_put_back(path: Path, files: Sequence[Path]) -> str:
    """Return advice on a damaged or edited file, which is never overwritten."""
    copy = _copy_of(path, files)
    if copy is None:
        return "put back a copy of it, if you have one: no checkpoint here holds one"
    return f"move it away, and the copy in {copy[0].name} takes its place"


def _copy_of(path: Path, files: Sequence[Path]) -> tuple[Path, bytes] | None:
    for file in files:
        with suppress(CheckpointError):
            if (copy := load_arrays(file).get(path.name)) is not None:
                return file, copy.tobytes()
    return None


# --------------------------------------------------------------------------------------------------- run.json


@checked_dataclass(frozen=True, config=ConfigDict(**_strict, allow_inf_nan=False))
class RunFile(RunContent):
    """Content of run.json: the facts of a run, and what belongs to the file.

    Attributes:
        recipe: SHA-256 of recipe.yaml; also of the old one while it is replaced.
    """

    format: Literal[2]
    recipe: Annotated[tuple[Annotated[str, Field(pattern="^[0-9a-f]{64}$")], ...], Field(max_length=2)]

    @model_validator(mode="after")
    def _counts_agree(self) -> RunFile:
        counts: dict[str, tuple[Any, ...]] = {
            "normalisation.mean": self.normalisation.mean,
            "normalisation.std": self.normalisation.std,
        }
        if self.scenes is not None:
            counts |= {"scenes.mean": self.scenes.mean, "scenes.std": self.scenes.std}
        if self.scene_means is not None:
            names = ("mean", "deviation", "low", "high")
            counts |= {f"scene_means.{name}": getattr(self.scene_means, name) for name in names}
        if self.bands is not None:
            counts |= {"bands": self.bands}
        if self.shares is not None and len(self.shares.tiles) != len(self.shares.devices):
            raise PydanticCustomError("count", "shares: expected as many tiles as devices")
        if self.band_names:
            counts |= {"band_names": self.band_names}
        for name, values in counts.items():
            if len(values) != self.band_count:
                raise PydanticCustomError(
                    "count",
                    "{name}: expected as many as band_count, {count}, got {got}",
                    {"name": name, "count": self.band_count, "got": len(values)},
                )
        if not self.recipe:
            raise PydanticCustomError("recipe", "recipe: expected the SHA-256 of recipe.yaml, got none")
        return self


def read_run_file(content: bytes, where: str) -> RunFile:
    """Read and check the content of run.json.

    Raises:
        CheckpointError: the content is damaged, edited, of another format, or has a wrong type or value.
    """
    whole = unsealed_text(content)
    if whole is None:
        raise CheckpointError(where, "damaged or edited: its checksum is another, or missing")
    if (data := json_object(whole)) is not None and data.get("format") != FORMAT:
        raise CheckpointError(where, other_format(FORMAT, data.get("format")))
    return _validate(whole, f"{where}: damaged or edited")


def _validate(text: bytes, where: str) -> RunFile:
    try:
        return TypeAdapter(RunFile).validate_json(text)
    except LabelError as error:
        raise CheckpointError(where, error) from None
    except ValidationError as error:
        errors = error.errors()
        more = f" and {len(errors) - _MOST_ERRORS} more" if len(errors) > _MOST_ERRORS else ""
        what = "; ".join(_explain(each) for each in errors[:_MOST_ERRORS])
        raise CheckpointError(where, f"{what}{more}") from None


def _explain(error: Any) -> str:
    at = ".".join(str(part) for part in error["loc"])
    message = error["msg"].replace("Input should be", "expected")
    given = "" if "got" in message or error["type"] == "missing" else f", got {reprlib.repr(error['input'])}"
    return f"{at}: {message}{given}" if at else f"{message}{given}"
