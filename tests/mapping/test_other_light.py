"""Images of other light than all scenes of training, from the training to the map."""

from pathlib import Path
from types import ModuleType

import numpy as np
import rasterio

from datasets.commands.train import main as train
from segmenter.inference.fit import check_fit
from segmenter.raster import open_raster
from segmenter.runs.run import load_run
from tests.helpers.made_training import made


def test_a_run_knows_how_much_its_scenes_differ(tensorflow: ModuleType, tmp_path: Path) -> None:
    recipe = made(tmp_path, scenes=10)
    means = []
    for number in [0, 1, 2, 3, 5, 6, 7, 8, 9]:  # s4 validates
        with rasterio.open(tmp_path / f"images/s{number}.tif", "r+") as file:
            pixels = np.clip(file.read().astype(int) + 2 * number, 0, 255).astype(np.uint8)
            file.write(pixels)
            means.append(pixels.mean(axis=(1, 2)))
    run = tmp_path / "run"
    assert train([str(recipe), "--run", str(run), "--set", "distribution.strategy=one_device"]) == 0
    known = load_run(run)
    np.testing.assert_allclose(known.between, np.std(means, axis=0, ddof=1), rtol=1e-4)
    for name, more, told in (("alike.tif", 5, 0), ("brighter.tif", 60, 1)):
        with rasterio.open(tmp_path / "images/s0.tif") as file:
            pixels, profile = file.read() + np.uint8(more), file.profile
        with rasterio.open(tmp_path / name, "w", **profile) as file:
            file.write(pixels)
        with open_raster(tmp_path / name, None) as raster:
            assert len(check_fit(known, raster, raster.extent)) == told
