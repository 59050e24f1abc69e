"""Law 4 on other processors: what is kept of exact windows where a library rounds by a pixel's place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = """
import numpy as np
from segmenter.config.recipe import UNetConfig
from segmenter.grid.geometry import Size, Window
from segmenter.inference.function import predict_function
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import MappedWindow, Tiling, classify_all
from segmenter.model.building import build_model
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import network_geometry
from tests.helpers.array_raster import ArrayJob, ArrayRaster
import keras

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)
model = build_model(UNetConfig(depth=2, width=6), 2, 4)
for weight in model.variables:
    if "kernel" not in weight.path and "variance" not in weight.path:
        weight.assign(rng.normal(size=weight.shape) / 2)
scale = Normalisation.of((127, 127), (70, 70))
predict = predict_function(model, scale, ExtraOutputs(True, "float32"), "none")
largest, others, seen = 0.0, 0, 0
for size in (Size(223, 61), Size(127, 211)):
    raster = ArrayRaster(rng.integers(0, 255, (size.height, size.width, 2), np.uint8))
    image, valid = raster.read(Window.of(size.round_up(4)))
    whole = predict(image[None], valid[None])[0].masked(valid)
    tiling = Tiling(Size(64, 64), network_geometry(model).radius, 4, 3)
    for event in classify_all([ArrayJob(raster, Window.of(size))], tiling, predict):
        if isinstance(event, MappedWindow):
            found, expected = event.prediction, whole[event.window.slices()]
            ranks = np.sort(expected.probabilities, axis=-1)
            clear = ranks[..., -1] - ranks[..., -2] > 1e-5
            largest = max(largest, float(np.abs(found.probabilities - expected.probabilities).max()))
            others += int((found.ids != expected.ids)[clear].sum())
            seen += found.ids.size
print(largest, others, seen)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("instructions", "primitives", "most"),
    [
        ("AVX2", "1", 2e-6),  # as a user has it, on most processors without AVX-512
        ("AVX", "0", 0),  # as docs/internals.md says for those who want the same bits there
    ],
)
def test_windows_are_the_whole_raster_up_to_what_the_instructions_round(
    instructions: str, primitives: str, most: float
) -> None:
    environment = {
        **os.environ,
        "ONEDNN_MAX_CPU_ISA": instructions,
        "TF_ENABLE_ONEDNN_OPTS": primitives,
    }
    done = subprocess.run(
        [sys.executable, "-c", WINDOWS], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    largest, others, seen = done.stdout.split()
    assert float(largest) <= most
    assert int(others) == 0
    assert int(seen) == 223 * 61 + 127 * 211
