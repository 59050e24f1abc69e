"""Request of one call of `predict.py`, as one frozen value that Python users can make too.

Its options are declared only here: the command line, `--help` and `run.map(…)` use these fields. Options of
finishers and of other computing places are declared with them.
"""

from __future__ import annotations

import argparse
import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from segmenter.base.errors import ConfigError, DatasetError
from segmenter.base.options import check_values, local_path, local_text, option
from segmenter.evaluation.protocol import LabelKind
from segmenter.evaluation.tallies import FurtherScores
from segmenter.inference.tta import parse_tta
from segmenter.mapping.outputs.codes import parse_codes

Mode = Literal["exact", "smooth"]
BlendWeights = Literal["hann", "gaussian", "linear"]
Probabilities = Literal["uint8", "float16"]
Format = Literal["auto", "geotiff", "png"]
Precision = Literal["run", "float32", "mixed_float16", "mixed_bfloat16"]

OUTPUTS, GIS, OPENED = "outputs", "maps in a GIS", "what is opened"
COMPUTING, SCORES = "computing", "scores"
GROUPS = (OUTPUTS, GIS, OPENED, COMPUTING, "cluster", SCORES)
"""Titles of the groups of options, in the order of `--help`."""
_computing, _output_file, _in_gis, _opening, _scoring = (
    functools.partial(option, group=title) for title in (COMPUTING, OUTPUTS, GIS, OPENED, SCORES)
)


def parse_runs(text: str) -> Path | tuple[Path, ...]:
    """Read one run directory, or several separated by commas; a directory's name may contain commas."""
    if "," not in text or os.path.isdir(text):  # longer than a file name may be, Path.is_dir raises
        return local_path(text)
    return tuple(local_path(each) for each in text.split(",") if each)


def _gsd(text: str) -> float | str:
    if text == "auto":
        return text
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected metres a pixel, as 0.5, or auto, got {text!r}") from None


def _tta(text: str) -> str:
    try:
        return str(parse_tta(text))
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--tta: ")) from None


def _memory(text: str) -> int:
    from segmenter.inference.memory import parse_memory  # brings NumPy, which --help does without

    try:
        return parse_memory(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _bands(text: str) -> tuple[int, ...]:
    try:
        bands = tuple(map(int, text.split(",")))
    except ValueError:
        bands = ()
    if not bands or min(bands) < 1:
        raise argparse.ArgumentTypeError(
            f"expected numbers of bands, counted from 1, as in 1,2,3 (of an RGB image), got {text!r}"
        )
    return bands


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _between_commas(value: Any) -> Any:
    """Return codes (by name or in order) or bands as text, as on the command line."""
    if isinstance(value, Mapping):
        return ",".join(f"{name}={code}" for name, code in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(map(str, value))
    return value


@dataclass(frozen=True, kw_only=True)
class Computing:
    """Options of computing predictions, for files and arrays alike."""

    mode: Mode | None = _computing(
        None,
        "way to compute the map; exact: as if the model had seen the whole raster at once (default where "
        "the model allows it and at least half of the computed pixels are kept); smooth: overlapping "
        "windows, blended",
    )
    overlap: float = _computing(
        50,
        "overlap of neighbouring windows in percent of their side, in smooth mode (default: 50)",
        "PERCENT",
    )
    blend_weights: BlendWeights = _computing(
        "hann", "weights by which overlapping windows are blended, in smooth mode (default: hann)"
    )
    tta: str = _computing(
        "none",
        "test-time augmentation: average over mirror images (mirror: 2, left and right; flips: 4; all: 8, "
        "with quarter turns; auto: those by which the run was trained) and scales (scales: 0.75, 1 and 1.25, "
        "or numbers), as flips,scales or 0.5,1; takes as much time as that many predictions (default: none)",
        "WHAT",
        read=_tta,
    )
    precision: Precision | None = _computing(
        None,
        "number format of the model's computation; run: that of training and validation (default on a GPU; "
        "on a CPU float32, which is faster there)",
    )
    gsd: float | Literal["auto"] | None = _computing(
        None,
        "ground sampling distance, in metres a pixel, at which the model sees the inputs, as 0.5, or auto: "
        "that of its training; inputs are resampled while they are read, and maps keep the pixels of the "
        "inputs (default: no resampling)",
        "METRES",
        read=_gsd,
        least=1e-9,
    )
    calibration: bool = _computing(
        True,
        "write probabilities as the model gives them, without the run's calibration.json (default: "
        "calibrated, if the run has one)",
    )
    raster_gsd: float | None = _computing(
        None,
        "ground sampling distance, in metres a pixel, of inputs without georeference; with --gsd",
        "METRES",
        least=1e-9,
    )
    memory: int | None = _computing(
        None,
        "most memory that the program may use, as 8GB; decides how large windows are (default: half of the "
        "machine's)",
        "SIZE",
        read=_memory,
        least=1,
    )
    window_size: int | None = _computing(
        None,
        "side of the model's window in pixels (default: of those that --memory allows the smallest that "
        "computes at most 1.03 times as much as the best; blended: the recipe's, or 512)",
        "PX",
        least=1,
    )
    batch: int | None = _computing(
        None,
        "number of windows computed at once (default: as many as --memory allows, up to 64)",
        "N",
        least=1,
    )


@dataclass(frozen=True)
class MapRequest(FurtherScores, Computing):
    """Request of a mapping call: inputs, model, computing options and output files.

    Attributes:
        run: run directory, or several whose probabilities are averaged.
        output: folder of all written files.
        inputs: files, folders and globs; empty with `split`.

    Raises:
        DatasetError: a value is invalid, or arguments exclude each other.
    """

    run: Path | tuple[Path, ...]
    output: Path
    inputs: tuple[str, ...] = ()
    split: str | None = option(
        None,
        "map and score the scenes of one part of the recipe's split, in place of INPUT: test, validation "
        "or train",
        "NAME",
    )
    recipe: Path | None = option(
        None, "recipe whose scenes --split takes (default: the run's own recipe)", "FILE"
    )
    bbox: tuple[float, float, float, float] | None = option(
        None,
        "map only this box, in coordinates of the input's CRS; inputs outside it are left out (default: "
        "the whole input)",
        ("LEFT", "BOTTOM", "RIGHT", "TOP"),
    )
    part: tuple[int, int, int, int] | None = option(
        None,
        "map only this rectangle of pixels, counted from 0 (default: the whole input)",
        ("ROW", "COL", "HEIGHT", "WIDTH"),
    )
    bands: tuple[int, ...] | None = option(
        None,
        "numbers of the input's bands to use, in the model's order, counted from 1 (default: those of the "
        "training)",
        "1,2,3",
        read=_bands,
        spelt=_between_commas,
    )
    redo: bool = option(False, "make all maps anew, also finished ones (default: finished maps are kept)")
    fail_fast: bool = option(False, "stop at the first input that fails (default: go on with the others)")
    confidence: bool = _output_file(
        False, "write STEM.confidence.tif too, the largest probability × 255 at each pixel"
    )
    probabilities: Probabilities | None = _output_file(
        None,
        "write STEM.probabilities.tif too, with the probability of each class in a band; uint8: × 255; "
        "float16: as it is",
    )
    sets: Literal["0.8", "0.9", "0.95"] | None = _output_file(
        None,
        "write STEM.sets.tif too, with the classes that each pixel may have, a bit for each class: of each "
        "class's pixels the set holds the class for this share at least, as promised for ground like that of "
        "the validation (docs/prediction.md)",
        spelt=lambda value: None if value is None else str(value),
    )
    cog: bool = _output_file(False, "write maps as cloud-optimised GeoTIFFs, with overviews")
    format: Format = _output_file(
        "auto",
        "file format of the maps; auto: PNG with class codes for images without georeference in a NAIC2020 "
        "run, else GeoTIFF (default: auto)",
    )
    codes: str | None = _in_gis(
        None,
        "codes written into the maps for the classes, in place of ids from 0 on: 10,20,30 in the order of "
        "the classes, building=10,road=20 by name, or recipe for the recipe's own codes; maps have 16 bits "
        "where a code is above 255",
        "CODES",
        spelt=_between_commas,
    )
    nodata: int | None = _in_gis(
        None,
        "value of map pixels without data, in GeoTIFFs (default: 255, with 16-bit codes 65535; if that is "
        "a class's code, 0 or the largest free value)",
        "N",
    )
    max_pixels: int | None = _opening(
        None,
        "largest number of pixels of an input; larger ones are refused (default: 2**30, or 10,000 for each "
        "byte of the file if that is more)",
        "N",
        least=1,
    )
    drivers: tuple[str, ...] = _opening(
        (),
        "further GDAL drivers that may open inputs, as JP2OpenJPEG,VRT; a VRT can read any other file "
        "(default: GeoTIFF, PNG, JPEG)",
        "NAME,…",
        read=_names,
    )
    insist: bool = _opening(
        False,
        "map also inputs whose data type, order of bands or range of values differs from the training's, "
        "with a warning (default: they are refused)",
    )
    remote: bool = _opening(
        False,
        "allow inputs that are URLs of GeoTIFFs (https://, s3://, gs://, az://) or GDAL's own paths "
        "(/vsizip/…); their maps are made anew in each call where the server does not tell when a file was "
        "changed",
    )
    mosaic: bool = _computing(
        False,
        "treat adjoining inputs as one raster, so that windows see across their borders (default: each "
        "input by itself)",
    )
    labels: str | None = _scoring(
        None,
        "pattern of the label files to score the maps with, as truth/{stem}.png (default: no scores)",
        "PATTERN",
        path=True,
        read=local_text,
    )
    label_kind: LabelKind | None = _scoring(
        None,
        "kind of the labels given by --labels: full, or eroded where borders are ignored (default: the "
        "kind that the run trained on)",
    )
    protocol: str | None = _scoring(
        None,
        "published protocol to score by: potsdam-6 or potsdam-5 (default: the run's own classes)",
        "NAME",
    )
    split_name: str | None = _scoring(
        None,
        "name of the split that --labels belong to, recorded with the scores, such as test (default: not "
        "stated)",
        "NAME",
    )

    def __post_init__(self) -> None:
        check_values(self)
        parse_tta(self.tta)
        self._check_runs()
        self._check_source()
        self._check_part()
        self._check_gsd()
        if self.codes is not None:
            parse_codes(self.codes)
        if self.cog and self.format == "png":
            raise DatasetError("--cog", "is a kind of GeoTIFF, and --format png asks for none")
        how = self.protocol or self.label_kind or self.split_name or self.tallies(())
        if how and self.labels is None and self.split is None:
            raise DatasetError(
                "--protocol, --label-kind, --split-name and --shapes are of scores: they need --labels or "
                "--split"
            )

    @property
    def runs(self) -> tuple[Path, ...]:
        """The run directories, one or more; of a folder with folds, each of them."""
        from segmenter.runs.score_files import folds_in  # brings NumPy, which --help does without

        given = self.run if isinstance(self.run, tuple) else (self.run,)
        return tuple(run for path in given for run in (folds_in(path) or [path]))

    def _check_runs(self) -> None:
        if not self.runs:
            raise DatasetError("RUN", expected="a run directory or several", got="none")
        twice = [path for i, path in enumerate(self.runs) if path in self.runs[:i]]
        if twice:
            raise DatasetError("RUN", expected="each run once", got=f"{twice[0]} twice")

    def _check_source(self) -> None:
        """Refuse `images` or `labels` together with a split, and a request with neither inputs nor split."""
        if self.split is None:
            if not self.inputs:
                raise DatasetError(
                    expected="INPUT (images, folders or globs), or --split for a recipe's scenes"
                )
            if self.recipe is not None:
                raise DatasetError(f"--recipe {self.recipe}", "says whose scenes", remedy="it needs --split")
            return
        check_split(self.split)
        theirs = {"INPUT": self.inputs, "--labels": self.labels, "--split-name": self.split_name}
        for name, given in theirs.items():
            if given:
                shown = given if isinstance(given, str) else given[0]
                raise DatasetError(
                    f"--split {self.split}",
                    f"images, labels and the split's name are the recipe's; leave out {name} {shown}",
                )

    def _check_gsd(self) -> None:
        if self.raster_gsd is not None and self.gsd is None:
            raise DatasetError(f"--raster-gsd {self.raster_gsd:g}", "says from which scale; it needs --gsd")

    def _check_part(self) -> None:
        if self.bbox is not None and self.part is not None:
            raise DatasetError("--bbox, --part", expected="one of the two", got="both")
        if self.part is not None and (min(self.part[:2]) < 0 or min(self.part[2:]) < 1):
            got = " ".join(map(str, self.part))
            raise DatasetError("--part", expected="ROW COL ≥ 0 and HEIGHT WIDTH ≥ 1", got=got)
        if self.bbox is not None:
            left, bottom, right, top = self.bbox
            if not (left < right and bottom < top and all(map(math.isfinite, self.bbox))):
                got = " ".join(map(str, self.bbox))
                raise DatasetError("--bbox", expected="numbers, LEFT < RIGHT and BOTTOM < TOP", got=got)


def check_split(split: str) -> None:
    """Refuse an unknown name of a split.

    Raises:
        DatasetError: the name is unknown.
    """
    from segmenter.grid.scenes import SPLITS  # brings NumPy, which --help does without

    if split not in SPLITS:
        raise DatasetError("--split", expected=", ".join(SPLITS), got=split)
