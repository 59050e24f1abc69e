"""Everything that one call of `predict.py` asks for, as one frozen value that Python users can make too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Window
from segmenter.inference.tta import parse_tta
from segmenter.mapping.outputs.codes import check_codes

if TYPE_CHECKING:
    from segmenter.extras.dask.options import ClusterOptions
    from segmenter.mapping.jobs import Bounds

Mode = Literal["exact", "smooth"]
BlendWeights = Literal["hann", "gaussian", "linear"]
Probabilities = Literal["uint8", "float16"]
Format = Literal["auto", "geotiff", "png"]
LabelKind = Literal["full", "eroded"]
Precision = Literal["run", "float32", "mixed_float16", "mixed_bfloat16"]

_CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": (None, *get_args(Mode)),
    "blend_weights": get_args(BlendWeights),
    "probabilities": (None, *get_args(Probabilities)),
    "format": get_args(Format),
    "label_kind": (None, *get_args(LabelKind)),
    "precision": (None, *get_args(Precision)),
}
_COUNTS = ("max_pixels", "memory", "window_size", "batch")


@dataclass(frozen=True)
class MapRequest:
    """What is mapped, with which model, how it is computed, and which files come out.

    Each attribute has the name of its option in `python predict.py --help`, and its default.

    Attributes:
        run: run directory, or several whose probabilities are averaged.
        output: folder of all files that are written.
        upload: address in a bucket that they go to from there; None: they stay.
        inputs: files, folders and globs; empty with `split`.
        split: train, validation or test: the scenes of a recipe, scored with their labels.
        recipe: whose scenes `split` takes; None: the run's.
        part: of each raster, in pixels or as a box in the coordinates of its CRS; None: all of it.
        bands: 1-based bands of the inputs; None: the run's.
        redo: make finished maps anew.
        fail_fast: stop at the first input that fails.
        confidence, probabilities, quicklook, pictures: further files.
        cog: cloud-optimised GeoTIFFs.
        nodata: GeoTIFF value of pixels without data; None: 255, or one that is no code.
        codes: what maps hold for the classes in place of ids: `10,20,30`, `building=10,road=20`, `recipe`.
        styles: whether maps get what shows them in a GIS by name and colour.
        vectors: file of the maps' polygons, .gpkg or .parquet; None: none is written.
        min_area, simplify, only: see `vectors.vectorise.Wanted`.
        insist: also inputs unlike the training images; see `inference.fit.check_fit`.
        max_pixels, drivers: limits of what is opened; see `raster.open_raster`.
        remote: whether inputs may be addresses.
        mode: None: exact where that is possible and worth it.
        overlap: of windows, percent of their side, in smooth mode.
        blend_weights: of a window's pixels, in smooth mode.
        tta: test-time augmentation: the mirror images and scales that are averaged, see `tta.parse_tta`.
        precision: in which the model computes; run: as in training; None: so on a GPU, float32 on a CPU.
        memory: bytes that the program may take; None: half of the machine's.
        window_size: side of the model's window in pixels; None: chosen to fit the memory; so `batch`.
        gsd: metres a pixel at which the model sees the inputs; auto: as in training; None: their own.
        raster_gsd: metres a pixel of inputs that do not say it.
        mosaic: whether inputs that adjoin are one raster.
        labels: pattern of the label files that maps are scored with.
        label_kind, protocol: how they are scored.
        split_name: what `labels` are of, for the record; None: unstated.
        cluster: whose workers compute; None: this process.

    Raises:
        DatasetError: a value that none can be, or arguments that exclude each other.
    """

    run: Path | tuple[Path, ...]
    output: Path
    inputs: tuple[str, ...] = ()
    split: str | None = None
    recipe: Path | None = None
    part: Bounds | Window | None = None
    bands: tuple[int, ...] | None = None
    redo: bool = False
    fail_fast: bool = False
    confidence: bool = False
    probabilities: Probabilities | None = None
    cog: bool = False
    quicklook: bool = False
    format: Format = "auto"
    pictures: bool = False
    nodata: int | None = None
    codes: str | None = None
    styles: bool = True
    vectors: Path | None = None
    min_area: float = 0.0
    simplify: float = 0.0
    only: tuple[str, ...] = ()
    max_pixels: int | None = None
    drivers: tuple[str, ...] = ()
    insist: bool = False
    remote: bool = False
    upload: str | None = None
    mode: Mode | None = None
    overlap: float = 50
    blend_weights: BlendWeights = "hann"
    tta: str = "none"
    precision: Precision | None = None
    memory: int | None = None
    window_size: int | None = None
    batch: int | None = None
    gsd: float | Literal["auto"] | None = None
    raster_gsd: float | None = None
    mosaic: bool = False
    labels: str | None = None
    label_kind: LabelKind | None = None
    protocol: str | None = None
    split_name: str | None = None
    cluster: ClusterOptions | None = None

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                named = ", ".join(choice for choice in choices if choice is not None)
                raise DatasetError(f"{_option(name)}: expected {named}, got {value}")
        for name in _COUNTS:
            if (value := getattr(self, name)) is not None and value < 1:
                raise DatasetError(f"{_option(name)}: expected 1 or more, got {value}")
        parse_tta(self.tta)
        self._check_runs()
        self._check_source()
        self._check_part()
        self._check_scale()
        if self.codes is not None:
            check_codes(self.codes)
        if self.cog and self.format == "png":
            raise DatasetError("--cog: is a kind of GeoTIFF, and --format png asks for none")
        self._check_vectors()
        if (self.protocol or self.label_kind) and self.labels is None and self.split is None:
            raise DatasetError("--protocol and --label-kind say how to score: they need --labels or --split")

    @property
    def runs(self) -> tuple[Path, ...]:
        """The run directories, one or more."""
        return self.run if isinstance(self.run, tuple) else (self.run,)

    def _check_runs(self) -> None:
        if not self.runs:
            raise DatasetError("RUN: expected a run directory or several, got none")
        twice = [path for i, path in enumerate(self.runs) if path in self.runs[:i]]
        if twice:
            raise DatasetError(f"RUN: expected each run once, got {twice[0]} twice")

    def _check_source(self) -> None:
        """Images come from `inputs` or from a split, labels from a pattern or with the split."""
        if self.split is None:
            if not self.inputs:
                raise DatasetError(
                    "expected INPUT (images, folders or globs), or --split for a recipe's scenes"
                )
            if self.recipe is not None:
                raise DatasetError(f"--recipe {self.recipe}: says whose scenes; it needs --split")
            return
        check_split(self.split)
        theirs = {"INPUT": self.inputs, "--labels": self.labels, "--split-name": self.split_name}
        for name, given in theirs.items():
            if given:
                shown = given if isinstance(given, str) else given[0]
                raise DatasetError(
                    f"--split {self.split}: images, labels and the split's name are the recipe's; leave out "
                    f"{name} {shown}"
                )

    def _check_vectors(self) -> None:
        given = {"min_area": self.min_area, "simplify": self.simplify, "only": self.only}
        if self.vectors is None:
            if alone := [name for name, value in given.items() if value]:
                raise DatasetError(f"{_option(alone[0])}: says what polygons are written; it needs --vectors")
            return
        if self.format == "png":
            raise DatasetError("--vectors: polygons are made of GeoTIFF maps, and --format png asks for none")

    def _check_scale(self) -> None:
        for name in ("gsd", "raster_gsd"):
            value = getattr(self, name)
            if isinstance(value, str) or value is None:
                continue
            if not (math.isfinite(value) and value > 0):
                raise DatasetError(f"{_option(name)}: expected metres a pixel, above 0, got {value:g}")
        if self.raster_gsd is not None and self.gsd is None:
            raise DatasetError(f"--raster-gsd {self.raster_gsd:g}: says from which scale; it needs --gsd")

    def _check_part(self) -> None:
        if self.part is None:
            return
        if isinstance(self.part, Window):
            row, col, height, width = self.part.row, self.part.col, self.part.height, self.part.width
            if min(row, col) < 0 or min(height, width) < 1:
                got = f"{row} {col} {height} {width}"
                raise DatasetError(f"--part: expected ROW COL ≥ 0 and HEIGHT WIDTH ≥ 1, got {got}")
            return
        left, bottom, right, top = self.part.corners
        if not (left < right and bottom < top and all(map(math.isfinite, self.part.corners))):
            raise DatasetError(f"--bbox: expected numbers, LEFT < RIGHT and BOTTOM < TOP, got {self.part}")


def check_split(split: str) -> None:
    """Refuse a name that no split has.

    Raises:
        DatasetError: it is none of them.
    """
    from segmenter.grid.scenes import SPLITS  # brings NumPy, which --help does without

    if split not in SPLITS:
        raise DatasetError(f"--split: expected {', '.join(SPLITS)}, got {split}")


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
