"""A stand-in for a network whose result on a whole image is known exactly, and `predict.py` with it."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from datasets.commands import predict
from segmenter.base.errors import run_script
from segmenter.grid.labels import ClassMap
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from tests.helpers.function_predictor import FunctionPredictor

RADIUS, STRIDE = 2, 8


CLASSES = 7


def exact_network(
    radius: int, stride: int, batches: list[int] | None = None, wanted: ExtraOutputs | None = None
) -> FunctionPredictor:
    """A stand-in for a network that can be computed exactly: integers, zero padding, a total stride.

    Sums over (2 radius + 1)² pixels, then the largest of each stride × stride cell of the grid: like a
    U-Net, a pixel depends on its surroundings and on where the grid lies. Its receptive-field radius is
    `radius + stride - 1`. Its class has a probability of 8/16 to 15/16, the other six share the rest.
    """
    wanted = wanted or ExtraOutputs()

    def predict(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
        assert image.shape[1] % stride == image.shape[2] % stride == 0
        assert not image[~valid].any()
        if batches is not None:
            batches.append(len(image))
        sums = image.astype(np.int64).sum(axis=3) + 3 * valid
        for axis in (1, 2):
            pad = [(0, 0)] * 3
            pad[axis] = (radius + 1, radius)
            total = np.cumsum(np.pad(sums, pad), axis=axis)
            upper = np.take(total, np.arange(2 * radius + 1, total.shape[axis]), axis)
            sums = upper - np.take(total, np.arange(total.shape[axis] - 2 * radius - 1), axis)
        b, h, w = sums.shape
        cells = sums.reshape(b, h // stride, stride, w // stride, stride).max(axis=(2, 4))
        values = sums + cells.repeat(stride, 1).repeat(stride, 2)
        return _prediction((values % CLASSES).astype(np.uint8), 0.5 + values // CLASSES % 8 / 16, wanted)

    def weigh(image: Any, valid: Any, rows: Any, cols: Any) -> NDArray[np.float32]:
        half = exact_network(radius, stride, batches, ExtraOutputs(probabilities="float16"))
        weights = rows[:, :, None, None] * cols[:, None, :, None]
        return np.asarray(np.asarray(half(image, valid).probabilities, np.float32) * weights, np.float32)

    return FunctionPredictor(predict, wanted, CLASSES, weigh)


def _prediction(ids: NDArray[np.uint8], largest: NDArray[np.float64], wanted: ExtraOutputs) -> Prediction:
    confidence = np.rint(largest * 255).astype(np.uint8) if wanted.confidence else None
    if wanted.probabilities is None:
        return Prediction(ids, confidence)
    others = ((1 - largest) / (CLASSES - 1))[..., None]
    probabilities = np.where(np.arange(CLASSES) == ids[..., None], largest[..., None], others)
    if wanted.probabilities == "uint8":
        probabilities = np.rint(probabilities * 255)
    return Prediction(ids, confidence, probabilities.astype(wanted.probabilities))


def exact_map(
    image: NDArray[Any], valid: NDArray[np.bool_], radius: int, stride: int, nodata: int = 255
) -> NDArray[np.uint8]:
    """Its map of a whole (H, W, C) image in one go: padded below and right to the stride."""
    height, width = valid.shape
    below, right = -height % stride, -width % stride
    valid_BHW = np.pad(valid, ((0, below), (0, right)))[None]
    image_BHWC = np.pad(np.where(valid[..., None], image, 0), ((0, below), (0, right), (0, 0)))[None]
    ids = exact_network(radius, stride)(image_BHWC, valid_BHW).ids[0, :height, :width]
    return np.where(valid, ids, nodata).astype(np.uint8)


def fake_run(classes: ClassMap, *, scale_to: Any = None, **changes: Any) -> SimpleNamespace:
    """A run whose model can be computed exactly."""
    parts = {
        "classes": classes,
        "bands": None,
        "band_count": 3,
        "dtype": "uint8",
        "band_names": (),
        "scenes": None,
        "scene_means": None,
        "normalisation": Normalisation((), ()),  # whatever the values, they fit
        "mean_C": (),
        "metres_per_pixel": 0.5,
        "labels": "full",
        "network": NetworkGeometry(STRIDE, RADIUS + STRIDE - 1, 100.0),
        "checksum": lambda: "exact",
        "fingerprint": lambda: "exact weights",
        "calibrated": False,
        "calibration": lambda: None,
        "recipe": SimpleNamespace(
            name="exact",
            dataset=SimpleNamespace(
                kind="folder",
                maps_hold_codes=False,
                root=".",
                images=("{name}.tif",),
                labels="{name}_label.tif",
                grid=None,
                labels_by="pixels",
                encoding="codes",
                masks={},
            ),
            tiles=SimpleNamespace(size=64),
            prediction=SimpleNamespace(window=64, batch=4),
            augmentation=SimpleNamespace(scale_to=scale_to),
            sampling=SimpleNamespace(scale_strata=()),
            training=SimpleNamespace(precision="float32", epochs=10, stop_after=0),
        ),
        "path": Path("run"),
        "predictor": lambda wanted=None, **_: exact_network(RADIUS, STRIDE, wanted=wanted),
    }
    return SimpleNamespace(**{**parts, **changes})


def fake_load_predictor(
    run: SimpleNamespace, wanted: ExtraOutputs | None = None, tta: str = "none", precision: Any = None
) -> Any:
    """In place of `inference.loading.load_predictor`, for runs of `fake_run`."""
    return run.predictor(wanted, tta=tta)


def run_predict(
    monkeypatch: pytest.MonkeyPatch, run: SimpleNamespace, *arguments: Any, insist: bool = True
) -> int:
    """`predict.py` with a stand-in for the run directory, in small windows; gives the exit code.

    Args:
        insist: take inputs of any type: the network computes with whatever it gets.
    """
    if "--window-size" not in arguments and "--memory" not in arguments:
        arguments = (*arguments, "--window-size", 64, "--batch", 4)
    monkeypatch.setattr("segmenter.runs.run.load_run", lambda _: run)
    monkeypatch.setattr("segmenter.inference.loading.load_predictor", fake_load_predictor)
    if insist:
        arguments = (*arguments, "--insist")
        monkeypatch.setattr("segmenter.mapping.session.sample_inputs", lambda files: frozenset())
    return run_script(lambda: predict.main(["run", *map(str, arguments)]))
