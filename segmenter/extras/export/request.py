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

    run: Path = option(..., "run directory that train.py wrote", "RUN", positional=True)
    format: Format = option(..., "the file's format")
    output: Path = option(..., "folder of the file", "DIR")
    profile: Profile = option(
        "plain",
        "plain: normalisation, nodata and softmax inside the model; deepness: what that plug-in of QGIS "
        "reads (default: plain)",
    )
    fp16: bool = option(False, "16-bit floats: half the size, for GPUs and small devices")
    size: int | None = option(
        None, "fixed side of the window; without it, any height and width", "PIXELS", least=1, most=1 << 14
    )
    images: tuple[Path, ...] = option(
        (),
        "check on windows of these; without it, of the run's validation images",
        "FILE",
        several=True,
    )
    overwrite: bool = option(False, "replace what was exported before")

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
