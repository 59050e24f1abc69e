"""Training on bands of unlike units under the default augmentation: as good as without changes of colour."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml

from tests.helpers.made_training import train


def stack(folder: Path) -> Path:
    """Reflectance × 10,000 and slope, of noise, and an index that alone tells classes; a recipe for them.

    Each tile of 32 pixels has one saturated in every band.
    """
    rng = np.random.default_rng(5)
    for number in range(8):
        label = np.kron(rng.integers(0, 3, (13, 11)), np.ones((8, 8), int)).astype(np.uint8)
        reflectance, slope = rng.normal(3000, 800, label.shape), rng.normal(12, 4, label.shape)
        index = np.array([-0.2, 0.2, 0.6])[label] + rng.normal(0, 0.06, label.shape)
        image = np.stack([reflectance, slope, index]).astype(np.float32)
        image[:, 5::32, 9::32] = np.array([65535, 90, 1], np.float32)[:, None, None]
        for part, array in (("images", image), ("labels", label[None])):
            (folder / part).mkdir(parents=True, exist_ok=True)
            profile: dict[str, Any] = {"driver": "GTiff", "count": len(array), "dtype": array.dtype}
            grid = {"transform": rasterio.Affine(1, 0, 0, 0, -1, 104), "crs": "EPSG:25833"}
            shape = {"height": label.shape[0], "width": label.shape[1]}
            with rasterio.open(folder / part / f"s{number}.tif", "w", **profile, **shape, **grid) as file:
                file.write(array)
    recipe = {
        "name": "stack",
        "dataset": {
            "kind": "folder",
            "root": str(folder),
            "images": "images/{name}.tif",
            "labels": "labels/{name}.tif",
            "classes": [{"name": n, "code": c} for c, n in enumerate(("water", "field", "wood"))],
            "split": {"validation": ["s5", "s6", "s7"]},
        },
        "tiles": {"size": 32},
        "model": {"depth": 2, "width": 8},
        "training": {"global_batch": 16, "epochs": 40, "learning_rate": 0.01, "warmup": 5},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.mark.slow
def test_the_default_augmentation_costs_at_most_two_points(tmp_path: Path) -> None:
    recipe, scores = stack(tmp_path / "data"), {}
    plain = ("--set", "augmentation.brightness=0", "--set", "augmentation.contrast=0")
    for name, settings in (("default", ()), ("plain", plain)):
        train(recipe, "--run", str(tmp_path / name), *settings)
        scores[name] = json.loads((tmp_path / name / "scores.json").read_text())["miou"]
    assert scores["plain"] > 0.95
    assert scores["default"] > scores["plain"] - 0.02
