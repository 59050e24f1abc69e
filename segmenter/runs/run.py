"""Run directory: everything that resuming and predicting need, and nothing that runs code when loaded.

    recipe.yaml             the resolved recipe: a record of the training, not to be edited
    run.json                what the model's input and output mean: bands, normalisation, classes
    scenes.json             digests of the files it is trained on
    origin.json             scenes, class pixels, scale and place, for those who describe it
    validation.json         where its validation images lie
    checkpoints/step-N.npz  weights, optimiser and position after N steps
    best.npz                the checkpoint with the best mIoU on the validation scenes
    log.jsonl, tensorboard/ what happened
    scores.json, *.png      the best validation (last_*: the last), and the learning curves

Arrays are kept as .npz with a SHA-256 (`arrays`), run.json with a checksum of itself and of recipe.yaml
(`run_file`): damage in either is detected. Each checkpoint holds a copy of both texts.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from segmenter.base.errors import CheckpointError, DamagedCheckpointError, LabelError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.invocation import invocation
from segmenter.config.reading import dump_recipe, load_recipe
from segmenter.config.recipe import Recipe
from segmenter.grid.labels import ClassMap
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.arrays import Arrays, load_arrays
from segmenter.runs.checkpoints import BEST, checkpoints, make_run_folder, newest_checkpoint, newest_whole
from segmenter.runs.copies import RUN_FILE as RUN_FILE
from segmenter.runs.copies import how_to_put_back, put_back
from segmenter.runs.run_file import read_run_file, run_file_text

RECIPE_FILE = "recipe.yaml"
_PLAIN = (
    "bands",
    "band_count",
    "dtype",
    "metres_per_pixel",
    "labels",
    "tiles",
    "planned_replicas",
    "band_names",
)
"""Fields of a run that run.json holds as they are."""


@dataclass(frozen=True)
class MeasuredShares:
    """Shares that were chosen by a measurement (`distribution.shares: auto`).

    Attributes:
        tiles: of each step on each device.
        devices: their models, in order.
    """

    tiles: tuple[int, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Extension:
    """A change of the number of epochs of a run that had begun.

    Attributes:
        step: after which.
        before, epochs: the numbers of epochs.
    """

    step: int
    before: int
    epochs: int


@dataclass(frozen=True)
class Run:
    """A run directory's record of its model.

    Attributes:
        path: the directory.
        recipe: resolved.
        classes: of the model's output.
        bands: 1-based bands of an image file that the model sees, in order; None: all but alpha.
        band_count: how many these are.
        band_names: of these bands, as the training images name them; empty where they do not.
        dtype: of the training images.
        normalisation: of the bands.
        shares: measured before its first step; None: they were not asked for.
        scenes: the training scenes' own, where the model's is that of pretrained weights; None: the same.
        metres_per_pixel: of the training images; None where they are not georeferenced.
        labels: whether it learned from full or eroded labels.
        network: stride, receptive-field radius and memory.
        tiles: fingerprint of the training tiles, on which the plans depend; empty: not known.
        planned_replicas: devices that each step's classes were planned for, one by one; 1: for the step.
        extensions: what made it longer than it was begun; the recipe has the last number of epochs.
    """

    path: Path
    recipe: Recipe
    classes: ClassMap
    bands: tuple[int, ...] | None
    band_count: int
    dtype: str
    normalisation: Normalisation
    metres_per_pixel: float | None
    labels: Literal["full", "eroded"]
    network: NetworkGeometry
    tiles: str = ""
    planned_replicas: int = 1
    scenes: Normalisation | None = None
    shares: MeasuredShares | None = None
    extensions: tuple[Extension, ...] = ()
    band_names: tuple[str | None, ...] = ()

    @property
    def dataset(self) -> str:
        """Kind of the dataset it was trained on: potsdam, naic2020 or folder."""
        return self.recipe.dataset.kind

    @property
    def mean_C(self) -> tuple[float, ...]:
        """Mean of each band over the training scenes: it stands for what a band alone has no data of."""
        return (self.scenes or self.normalisation).mean

    def save(self) -> None:
        """Write `recipe.yaml` and `run.json` into the directory, which is made.

        Killed at any moment, the two fit each other: where a recipe takes another's place, run.json names
        both meanwhile.

        Raises:
            CheckpointError: a value that `load_run` would refuse.
        """
        make_run_folder(self.path)
        texts, recipe = self.texts(), self.path / RECIPE_FILE
        old = read_regular(recipe) if recipe.is_file() else texts[RECIPE_FILE]
        if old != texts[RECIPE_FILE] and (self.path / RUN_FILE).is_file():
            write_whole(self.path / RUN_FILE, self._run_text(texts[RECIPE_FILE], old))
        for name, text in texts.items():
            write_whole(self.path / name, text)

    def texts(self) -> dict[str, bytes]:
        """Name → content of the files that `save` writes."""
        recipe = dump_recipe(self.recipe).encode()
        return {RECIPE_FILE: recipe, RUN_FILE: self._run_text(recipe)}

    def text_arrays(self) -> Arrays:
        """Copies of both files for a checkpoint, by the name of each."""
        return {name: np.frombuffer(text, np.uint8) for name, text in self.texts().items()}

    def _run_text(self, *recipes: bytes) -> bytes:
        scenes = {} if self.scenes is None else {"scenes": self.scenes.to_dict()}
        shares = {} if self.shares is None else {"shares": asdict(self.shares)}
        names = {"band_names": self.band_names} if any(self.band_names) else {}
        longer = {"extensions": [asdict(each) for each in self.extensions]} if self.extensions else {}
        return run_file_text(
            {
                "classes": self.classes.to_dict(),
                "bands": self.bands,
                "band_count": self.band_count,
                "dtype": self.dtype,
                "normalisation": self.normalisation.to_dict(),
                **scenes,
                **shares,
                **names,
                **longer,
                "metres_per_pixel": self.metres_per_pixel,
                "labels": self.labels,
                "network": asdict(self.network),
                "tiles": self.tiles,
                "planned_replicas": self.planned_replicas,
                "recipe": [hashlib.sha256(text).hexdigest() for text in recipes],
            }
        )

    def weights_file(self) -> Path:
        """The best checkpoint, else the newest.

        Raises:
            CheckpointError: the run has none yet.
        """
        best = self.path / BEST
        if best.is_file():
            return best
        return newest_checkpoint(self.path)

    def checksum(self) -> str:
        """SHA-256 of all that its predictions depend on: weights, model, bands, normalisation, classes.

        Raises:
            CheckpointError: there are no weights, or they cannot be read.
        """
        total = hashlib.sha256(self.recipe.model.model_dump_json().encode())
        for path in (self.path / "run.json", self.weights_file()):
            try:
                with path.open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise CheckpointError(f"{path}: cannot read it: {error.strerror}") from None
        return total.hexdigest()

    def weights(self) -> Arrays:
        """The arrays of the best checkpoint, else of the newest.

        Raises:
            CheckpointError: there is none, or it is damaged; says which one could be used instead.
        """
        file = self.weights_file()
        try:
            return load_arrays(file)
        except DamagedCheckpointError as error:
            whole = newest_whole(self.path, but=file)
            other = f"to use the newest whole one, {whole}, rename it" if whole else "no other is whole"
            raise DamagedCheckpointError(f"{error}; {other}") from None


def load_run(path: Path) -> Run:
    """The run in a directory; imports no TensorFlow.

    A run.json or recipe.yaml that is not there is put back from a checkpoint that holds a copy of it, and a
    line on stderr says so.

    Raises:
        CheckpointError: it is no run directory, one of another format, or run.json or recipe.yaml is not
            what the training wrote; says what to do.
        ConfigError: the recipe is not valid.
    """
    if os.path.isfile(path):  # Path.is_file raises where one may not look
        raise CheckpointError(f"{path}: expected a run directory, got a file; {_run_of(path)}")
    for name in (RUN_FILE, RECIPE_FILE):
        if not _is_there(path / name):
            put_back(path / name, _weights_files(path))
    file = path / RUN_FILE
    try:
        found = read_run_file(read_regular(file), str(file))
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {how_to_put_back(file, _weights_files(path))}") from None
    recipe = read_regular(path / RECIPE_FILE)
    if found.recipe and hashlib.sha256(recipe).hexdigest() not in found.recipe:
        raise CheckpointError(
            f"{path / RECIPE_FILE}: edited or damaged: it is not what this run was trained with; "
            f"{how_to_put_back(path / RECIPE_FILE, _weights_files(path))}; "
            f"to train with other settings, start a new run with --init-from {path}"
        )
    data = found.model_dump()
    try:
        classes = ClassMap.from_dict(data["classes"])
    except LabelError as error:
        raise CheckpointError(f"{file}: damaged or edited: {error}") from None
    return Run(
        path=path,
        recipe=load_recipe(path / RECIPE_FILE),
        classes=classes,
        normalisation=Normalisation.from_dict(data["normalisation"]),
        scenes=Normalisation.from_dict(data["scenes"]) if data["scenes"] else None,
        network=NetworkGeometry(**data["network"]),
        shares=MeasuredShares(**data["shares"]) if data["shares"] else None,
        extensions=tuple(Extension(**each) for each in data["extensions"]),
        **{name: data[name] for name in _PLAIN},
    )


def _run_of(file: Path) -> str:
    """A hint at the run directory that a file stands for."""
    if run := next((folder for folder in file.absolute().parents[:2] if (folder / RUN_FILE).is_file()), None):
        return f"give the run that it is of, {os.path.relpath(run)}"
    if file.suffix in (".yaml", ".yml"):
        return f"a recipe is trained first, into runs/{file.stem} where it is not told otherwise"
    return f"a packed run is unpacked with: {invocation('runs')} unpack {file}"


def _is_there(file: Path) -> bool:
    """Whether a run's file is there.

    Raises:
        CheckpointError: one may not look, or the name is longer than any.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError as error:
        raise CheckpointError(
            f"{file.parent}: expected a run directory, cannot look into it: {error.strerror}"
        ) from None
    return True


def _weights_files(run: Path) -> list[Path]:
    """The best and then the checkpoints, newest first; not all need be there."""
    return [run / BEST, *reversed(checkpoints(run).values())]
