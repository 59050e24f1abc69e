"""Images of other light than all scenes of training, from the training to the map."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import rasterio

from datasets.commands.predict import main as predict
from datasets.commands.train import main as train
from segmenter.runs.run import load_run
from tests.helpers.made_training import made

_SAID = "of other light"


def test_a_run_knows_the_light_of_its_scenes(
    tensorflow: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe = made(tmp_path, scenes=10)
    means = []
    for number in [0, 1, 2, 3, 5, 6, 7, 8, 9]:  # s4 validates
        with rasterio.open(tmp_path / f"images/s{number}.tif", "r+") as file:
            pixels = np.clip(file.read().astype(int) + 2 * number, 0, 255).astype(np.uint8)
            file.write(pixels)
            means.append(pixels.mean(axis=(1, 2)))
    run = tmp_path / "run"
    short = ["--set", "distribution.strategy=one_device", "--set", "training.epochs=1"]
    assert train([str(recipe), "--run", str(run), *short]) == 0
    known = load_run(run).scene_means
    assert known is not None
    np.testing.assert_allclose(known.deviation, np.std(means, axis=0, ddof=1), rtol=1e-4)
    assert (known.scenes, known.pixels) == (9, 97 * 83)
    for folder, more, told in (("alike", 5, 0), ("brighter", 70, 1)):
        (tmp_path / folder).mkdir()
        for name in ("s0.tif", "s1.tif"):
            with rasterio.open(tmp_path / "images" / name) as file:
                pixels, profile = file.read() + np.uint8(more), file.profile
            with rasterio.open(tmp_path / folder / name, "w", **profile) as file:
                file.write(pixels)
        capfd.readouterr()
        assert predict([str(run), str(tmp_path / folder), "--output", str(tmp_path / f"{folder}_maps")]) == 0
        assert capfd.readouterr().err.count(_SAID) == told, "once for all images"
