"""Request of an export, with its options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from segmenter.base.errors import ConfigError
from segmenter.base.options import option

Format = Literal["onnx", "savedmodel"]
Profile = Literal["plain", "deepness"]


@dataclass(frozen=True)
class ExportRequest:
    """Request of an export: run directory and options.

    Raises:
        ConfigError: values exclude each other or are invalid.
    """

    run: Path = option(..., "run directory whose model is exported", "RUN", positional=True)
    format: Format = option(..., "format of the exported model")
    output: Path = option(..., "folder to write the model to", "DIR")
    profile: Profile = option(
        "plain",
        "content of the model; plain: with normalisation, nodata and softmax inside; deepness: as the QGIS "
        "plug-in Deepness reads it, ONNX only (default: plain)",
    )
    fp16: bool = option(
        False, "store 16-bit floats: half the size, for GPUs and small devices (default: 32-bit floats)"
    )
    size: int | None = option(
        None,
        "fixed side of the model's window in pixels (default: any height and width)",
        "PIXELS",
        least=1,
        most=1 << 14,
    )
    images: tuple[Path, ...] = option(
        (),
        "images on whose windows the export is checked against predict.py (default: the run's validation "
        "images)",
        "FILE",
        several=True,
    )
    overwrite: bool = option(
        False, "replace a model that was exported before (default: an existing file is an error)"
    )

    def __post_init__(self) -> None:
        if self.profile == "deepness" and self.format != "onnx":
            raise ConfigError("--profile deepness", expected="--format onnx, which it reads", got=self.format)
        if "," in str(self.run) and not self.run.exists():
            raise ConfigError(
                self.run,
                expected="one run",
                got="several: an exported model is one network",
                remedy="export each, and average their probabilities",
            )
