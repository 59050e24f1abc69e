"""An opened run directory: a trained model that predicts arrays and maps files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from segmenter.api.images import Nodata, rasters_of
from segmenter.api.mapping_call import images_of, keyword_call
from segmenter.api.predicting import Probabilities, predict_arrays, result_array
from segmenter.api.results import Maps, MapScores, MapsError
from segmenter.base.errors import CheckpointError, DatasetError
from segmenter.base.files import read_regular
from segmenter.base.terminal import Said, listening
from segmenter.config.recipe import Recipe
from segmenter.grid.labels import ClassMap
from segmenter.inference.loading import KeptModels
from segmenter.mapping.request.map_request import Computing
from segmenter.mapping.session import MappingResult, output_folder
from segmenter.runs.ensemble import AnyRun, join_runs, members
from segmenter.runs.run import RUN_FILE, load_run
from segmenter.runs.score_files import BEST_FILES

Paths = str | os.PathLike[str]

_ONE_AT_A_TIME = threading.RLock()
"""Calls of several threads come one after the other: each uses all devices, and XLA's programs on a CPU must
not run twice at once (`inference.tensors`)."""


class OpenRun:
    """A trained model, as returned by `segmenter.open_run`.

    Attributes:
        paths: the run directories, one or more.
        name: name of the recipe.
        classes: names, colours and codes; a predicted id is an index into them.
        bands: 1-based bands of an image file that the model sees, in order; None: all but alpha.
        band_count: number of these bands, C of an image.
        dtype: pixel type of the training images.
        metres_per_pixel: gsd of the training images; None if unknown, or if several runs differ.
        recipe: recipe of the training.
    """

    def __init__(self, run: AnyRun) -> None:
        self._run, self._models = run, KeptModels()
        self._texts = {member.path: _run_text(member.path) for member in members(run)}

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(member.path for member in members(self._run))

    @property
    def name(self) -> str:
        return self._run.recipe.name

    @property
    def classes(self) -> ClassMap:
        return self._run.classes

    @property
    def bands(self) -> tuple[int, ...] | None:
        return self._run.bands

    @property
    def band_count(self) -> int:
        return self._run.band_count

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(members(self._run)[0].dtype)

    @property
    def metres_per_pixel(self) -> float | None:
        with suppress(CheckpointError):
            return self._run.metres_per_pixel
        return None

    @property
    def recipe(self) -> Recipe:
        return self._run.recipe

    @property
    def scores(self) -> MapScores | None:
        """Return the scores of the best validation, whose model predicts; None if none, or several runs.

        Raises:
            ScoreError: the scores cannot be read.
        """
        file = self.paths[0] / BEST_FILES[0]
        return MapScores.read(file) if len(self.paths) == 1 and file.is_file() else None

    def __repr__(self) -> str:
        names = self.classes.names
        listed = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
        metres = "" if not (gsd := members(self._run)[0].metres_per_pixel) else f", {gsd:.3g} m a pixel"
        bands = f"{self.band_count} band{'s' * (self.band_count > 1)} of {self.dtype}"
        where = ", ".join(repr(str(path)) for path in self.paths)
        return f"open_run({where}): {len(names)} classes ({listed}), {bands}{metres}"

    def predict(
        self,
        image: ArrayLike,
        valid: ArrayLike | None = None,
        *,
        nodata: Nodata = None,
        probabilities: Probabilities = False,
        out: NDArray[Any] | None = None,
        progress: bool = False,
        **options: Any,
    ) -> NDArray[Any]:
        """Return the class ids of an image, byte for byte as `predict.py` maps a file of the same pixels.

        The image may have any size: it is computed in windows that fit the memory, without seams. A
        memory-mapped array is read window by window.

        >>> image = np.zeros((45, 67, 3), run.dtype)
        >>> run.predict(image).shape
        (45, 67)
        >>> run.predict(image, probabilities=True).shape
        (45, 67, 4)

        Pixels without data are 255: masked pixels, pixels where `valid` is False or all bands equal `nodata`,
        and NaN.

        >>> valid = np.ones((45, 67), bool)
        >>> valid[:10] = False
        >>> np.unique(run.predict(image, valid)[:10])
        array([255], dtype=uint8)

        Args:
            image: (H, W, C) with the values of image files, not scaled; (B, H, W, C) for several of one size;
                (H, W) if the model takes one band. A pixel has no data if all its bands are masked.
            valid: (H, W) booleans, True where there is data.
            nodata: value of pixels without data, or one for each band.
            probabilities: return (H, W, K) probabilities instead, as float32 with the precision of float16,
                NaN without data; "float16" takes half the memory, "uint8" a quarter: × 255, at most 254, and
                255 without data.
            out: array for the result, such as a `numpy.memmap` for results larger than memory.
            progress: show a bar on stderr.
            options: `insist=True` accepts values of another type or unit than in training; computing options
                of `predict.py`: `mode`, `overlap`, `blend_weights`, `tta`, `precision`, `memory`,
                `window_size`, `batch`, `gsd`, `raster_gsd`, `calibration`.

        Returns:
            (H, W) uint8 class ids.

        Raises:
            RasterError: an array has another shape, type or unit than the model takes.
            SegmenterError: an option is invalid, the run is incomplete, or a device lacks memory.
        """
        insist = bool(options.pop("insist", False))
        asked = keyword_call(self.paths, ["image"], "maps", _check_options(options, probabilities))
        rasters, shape = rasters_of(self._run, image, valid, nodata, insist=insist)
        result = result_array(shape, len(self.classes), probabilities, out)
        batches = result if len(shape) == 3 else result[np.newaxis]
        with self._ready():
            predict_arrays(self._run, rasters, asked.request, batches, progress=progress)
        return result

    def map(
        self, inputs: Paths | Iterable[Paths], output: Paths, *, progress: bool = False, **options: Any
    ) -> Maps:
        """Map image files as `predict.py` does, to the same files; finished ones are kept.

        >>> maps = run.map("a.tif", "maps/")
        >>> maps
        1 map in maps: a.tif
        >>> run.map("a.tif", "maps/", confidence=True, memory="4GB").paths
        (PosixPath('maps/a.tif'),)

        Args:
            inputs: files, folders and globs.
            output: folder of the maps, or an address in a bucket (`s3://…`).
            progress: show bars on stderr.
            options: options of `predict.py` with underscores in names: `window_size=512`,
                `bbox=(left, bottom, right, top)`, `labels="truth/{stem}.png"`. `split` and `recipe` exist
                only in `predict.py`: they need a dataset's loader.

        Raises:
            MapsError: some inputs failed; the error's `maps` has the others.
            SegmenterError: nothing could be done; for a single input, its error.
        """
        given = [inputs] if isinstance(inputs, (str, os.PathLike)) else list(inputs)
        if wrong := [each for each in given if not isinstance(each, (str, os.PathLike))]:
            kind = type(wrong[0]).__name__
            remedy = "arrays are for run.predict(image)" if kind == "ndarray" else None
            raise DatasetError(
                "inputs", expected="paths of images", got=f"a value of type {kind}", remedy=remedy
            )
        for name in ("split", "recipe"):
            if options.get(name) is not None:
                raise DatasetError(
                    name,
                    "a recipe's scenes are found by a dataset's loader",
                    remedy=f"give the images and labels= instead, or call predict.py with --{name}",
                )
        asked = keyword_call(self.paths, [os.fspath(path) for path in given], os.fspath(output), options)
        request = asked.request
        with self._ready(bars=progress) as said, output_folder(request.output):
            mapped = asked.map(self._run, images_of(request, self._run))
        return _maps(mapped, request.output, said)

    @contextmanager
    def _ready(self, *, bars: bool = False) -> Iterator[Said]:
        """Check that the run is unchanged, and use cached models, one call at a time; yield its messages."""
        with _ONE_AT_A_TIME:
            for path, text in self._texts.items():
                if _run_text(path) != text:
                    raise CheckpointError(
                        path, "is another run than the one that was opened", remedy="open it again"
                    )
            with listening(bars=bars) as said, self._models.used():
                yield said


def open_run(run: Paths, *more: Paths) -> OpenRun:
    """Open a run directory of `train.py`; several predict together, by the mean of their probabilities.

    TensorFlow is loaded at the first prediction, which takes seconds, and the model is compiled then; later
    calls reuse it. Weights are those of the best validation so far, even during the training.

    >>> run = open_run("runs/mine")
    >>> run.classes.names
    ['water', 'road', 'field', 'house']
    >>> run
    open_run('runs/mine'): 4 classes (water, road, field, house), 3 bands of uint16, 0.5 m a pixel

    Args:
        run: run directory.
        more: further run directories, with the same classes and bands.

    Raises:
        CheckpointError: a directory is no run, has no weights or is damaged, or runs do not fit.
    """
    opened = join_runs([load_run(Path(path).expanduser()) for path in (run, *more)])
    for member in members(opened):
        member.weights_file()
    return OpenRun(opened)


def _run_text(path: Path) -> bytes:
    return read_regular(path / RUN_FILE)


def _check_options(options: Mapping[str, Any], probabilities: Probabilities) -> Mapping[str, Any]:
    """Return prediction options converted to those of `predict.py`.

    Raises:
        DatasetError: an option is unknown.
    """
    known = [field.name for field in fields(Computing)]
    if unknown := [name for name in options if name not in known]:
        raise DatasetError(unknown[0], expected=f"an option of prediction: {', '.join(known)}")
    kind = "float16" if probabilities is True else probabilities or None
    return {**options, "probabilities": kind}


def _maps(mapped: MappingResult, folder: Path, said: Said) -> Maps:
    """Return the maps of a call; raise its error, if any."""
    outcome = mapped.outcome
    jobs = [*outcome.written, *outcome.kept]
    scored = bool(outcome.each) and (folder / BEST_FILES[0]).is_file()
    maps = Maps(
        paths=tuple(sorted(job.output for job in jobs)),
        kept=tuple(sorted(job.output for job in outcome.kept)),
        folder=folder,
        scores=MapScores.read(folder / BEST_FILES[0]) if scored else None,
        notes=tuple(said.lines),
        warnings=tuple(said.warnings),
    )
    if len(mapped.failures) == 1 and not jobs:
        raise mapped.failures[0]
    if mapped.failures:
        raise MapsError(maps, mapped.failures)
    return maps
