"""Our side of `studies.sliding_window`: a process that maps one file to another."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from studies.mapping_task import BANDS, CLASSES, MEAN, STD, Task, asked, free_weights, measure
from benchmarks.prediction import pixelwise_model, unet_model
from datasets.commands.gpu.prediction import predict_file
from segmenter.devices.setup import load_tensorflow
from segmenter.base.errors import run_script
from segmenter.grid.geometry import Size
from segmenter.inference.blending import Blend
from segmenter.inference.memory import ComputingChoice, Needs, plan_tiling
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import Tiling
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import network_geometry
from segmenter.raster import open_raster


def main() -> int:
    """Do what the only argument asks for, and print what it took."""
    task = asked()
    load_tensorflow()
    from segmenter.inference.function import predict_function

    model = _model(task)
    predict, tiling = predict_function(model, Normalisation.of(MEAN, STD)), _tiling(task, model)
    size = tiling.window
    used = replace(task, window=size.height, batch=tiling.batch)

    def one_window() -> None:
        image = np.zeros((1, size.height, size.width, BANDS), np.uint8)
        valid, weights = np.ones(image.shape[:3], np.bool_), np.ones((1, size.height), np.float32)
        if tiling.blend is None:
            predict(image, valid)
        else:
            predict.weighted(image, valid, weights, weights)

    measure(used, one_window, lambda: predict_file(Path(task.source), Path(task.target), tiling, predict))
    return 0


def _model(task: Task) -> Any:
    if task.model == "unet":
        return unet_model()
    model, (kernel, bias) = pixelwise_model(CLASSES), free_weights()
    model.layers[-1].set_weights([kernel[None, None], bias])
    return model


def _tiling(task: Task, model: Any) -> Tiling:
    if task.window:
        size = Size(task.window, task.window)
        if task.mode == "exact":
            return Tiling(size, task.overlap // 2, 1, task.batch)
        return Tiling(size, 0, 1, task.batch, Blend(100 * task.overlap / task.window, "gaussian"))
    with open_raster(Path(task.source)) as raster:
        sizes = [raster.info.size]
    needs = Needs(network_geometry(model), CLASSES, BANDS, ExtraOutputs(), usual=256)
    return plan_tiling(sizes, needs, ComputingChoice(task.mode, memory=task.memory))[0]


if __name__ == "__main__":
    sys.exit(run_script(main))
