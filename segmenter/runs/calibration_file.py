"""Calibration of a run, in `calibration.json`: temperature and bias of the model that predicts."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segmenter.base.errors import CheckpointError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.invocation import invocation
from segmenter.base.sealed import json_object, other_format, sealed, unsealed_text
from segmenter.evaluation.calibration import Calibration, Fitted, Measures
from segmenter.grid.labels import MAX_CLASSES
from segmenter.runs.checkpoints import Arrays, load_some

CALIBRATION = "calibration.json"
FORMAT = 1
_MOST_BYTES = 1 << 20
Bias = Annotated[float, Field(ge=-1000, le=1000)]


class CalibrationFile(BaseModel):
    """Content of calibration.json.

    Attributes:
        step: step of the weights that it was fitted for; -1 if their file does not say it.
        temperature, bias: of `Calibration`; the bias is 0 where temperature alone is used.
        pixels, scenes: numbers of the labelled pixels, and of their validation scenes.
        before, with_temperature, with_bias: measures of `Fitted`, on scenes left out of the fit.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = 1
    step: int = Field(ge=-1, le=1 << 53)
    temperature: float = Field(ge=1e-3, le=1e3)
    bias: tuple[Bias, ...] = Field(min_length=1, max_length=MAX_CLASSES)
    pixels: int = Field(ge=1)
    scenes: int = Field(ge=1)
    before: Measures
    with_temperature: Measures
    with_bias: Measures

    @property
    def fitted(self) -> Fitted:
        """Calibration with its measures."""
        used = Calibration(self.temperature, self.bias)
        return Fitted(used, self.before, self.with_temperature, self.with_bias)


def save_calibration(run: Path, fitted: Fitted, *, step: int, pixels: int, scenes: int) -> None:
    """Write the calibration of a run, completely or not at all; arguments as in `CalibrationFile`.

    Raises:
        OutputError: the file cannot be written.
    """
    content = CalibrationFile(
        step=step,
        temperature=fitted.calibration.temperature,
        bias=fitted.calibration.bias,
        pixels=pixels,
        scenes=scenes,
        before=fitted.before,
        with_temperature=fitted.temperature,
        with_bias=fitted.with_bias,
    )
    text = json.dumps(content.model_dump(mode="json"), indent=1)
    write_whole(run / CALIBRATION, sealed(text).encode())


def load_calibration(run: Path) -> CalibrationFile | None:
    """Load the calibration of a run; None without that file.

    Raises:
        CheckpointError: the file is damaged or of another format.
    """
    path = run / CALIBRATION
    if not path.exists():
        return None
    anew = f"remove it, or make it anew: {invocation('calibrate')} {run}"
    whole = unsealed_text(read_regular(path, _MOST_BYTES))
    if whole is None:
        raise CheckpointError(path, "damaged or edited: its checksum is another, or missing", remedy=anew)
    if (data := json_object(whole)) is not None and data.get("format") != FORMAT:
        raise CheckpointError(path, other_format(FORMAT, data.get("format")), remedy=anew)
    try:
        return CalibrationFile.model_validate_json(whole)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CheckpointError(path, f"damaged or edited: {where}: {first['msg']}", remedy=anew) from None


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
