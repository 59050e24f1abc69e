"""Data, recipes and processes for tests of train.py."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
import yaml

from datasets import load_dataset
from segmenter.config.reading import load_recipe
from segmenter.devices.strategy import make_devices
from segmenter.training.prepare import check_run_directory, prepare_tiles
from tests.helpers.made_rasters import written

ROOT = Path(__file__).resolve().parents[2]


def users_environment(**more: str) -> dict[str, str]:
    """Environment of a process that a user starts: without what the suite sets for its own TensorFlow."""
    ours = ("TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL")
    return {key: value for key, value in os.environ.items() if key not in ours} | more


def train(recipe: Path, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return script("train.py", str(recipe), *arguments, check=check)


def script(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a script as users do; what it said."""
    command = [sys.executable, *words]
    result = subprocess.run(command, cwd=ROOT, env=users_environment(), capture_output=True, text=True)
    if check:
        assert result.returncode == 0, result.stderr
    return result


def train_here(recipe: Path, run: Path, *settings: str, resume: bool = False, step: int | None = None) -> int:
    """Train in this process, from the start, the newest checkpoint or that of a step; the exit code."""
    from segmenter.training.start import Training

    asked = load_recipe(recipe, settings)
    dataset = load_dataset(asked)
    resume = resume or step is not None
    checkpoint = check_run_directory(run, asked, resume=resume, resume_from=step)
    devices = make_devices(asked.distribution)
    training = Training(asked, dataset, prepare_tiles(asked, dataset), devices, run, checkpoint)
    return trained(training).exit_code


def trained(training: Any) -> Any:
    """Train to the end as train.py does; the outcome."""
    from segmenter.training.ending import report, train_to_end
    from segmenter.training.start import open_training, plan_training

    with training.shared_end(), open_training(plan_training(training)) as trainer:
        return report(trainer, train_to_end(trainer), resumed=training.checkpoint is not None)


def made(folder: Path, dtype: str = "uint8", bands: int = 3, scenes: int = 5) -> Path:
    """Scenes with three classes that their brightness tells apart, one of them scarce; a recipe for them."""
    rng, metre = np.random.default_rng(11), rasterio.Affine(1, 0, 0, 0, -1, 97)
    for number in range(scenes):
        label = np.zeros((97, 83), np.uint8)
        label[:, 40:] = 1
        label[10:20, 10:20] = 2
        image = np.repeat((label * 60 + 40)[..., None], bands, axis=2) + rng.normal(0, 8, (97, 83, bands))
        image = image if dtype == "float32" else np.clip(image * (20 if dtype == "uint16" else 1), 0, 60000)
        for part, array in (("images", image.astype(dtype)), ("labels", label)):
            written(folder / part / f"s{number}.tif", array, crs="EPSG:25833", transform=metre)
    recipe: dict[str, Any] = {
        "name": "made",
        "dataset": {
            "kind": "folder",
            "root": str(folder),
            "images": "images/{name}.tif",
            "labels": "labels/{name}.tif",
            "classes": [{"name": n, "code": c} for c, n in enumerate(("left", "right", "scarce"))],
            "split": {"validation": ["s4"]},
        },
        "tiles": {"size": 32},
        "augmentation": {"scale": 0.1, "rotation": 10},
        "model": {"depth": 1, "width": 4, "dropout": 0.2},
        "training": {"global_batch": 8, "epochs": 3, "learning_rate": 0.01, "warmup": 2, "clip_norm": 1.0},
        "loss": {"dice": 1.0},
        "prediction": {"window": 64},
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


def weights(run: Path) -> dict[str, np.ndarray]:
    newest = sorted((run / "checkpoints").glob("step-*.npz"))[-1]
    with np.load(newest) as file:
        return {name: file[name] for name in file.files}


def apart(a: Path, b: Path) -> float:
    """Return the largest difference of a weight between the newest checkpoints, relative to the largest."""
    one, other = weights(a), weights(b)
    names = [name for name in one if name.startswith("model/") and not name.endswith("/masks")]
    largest = max(np.abs(other[name]).max() for name in names)
    return float(max(np.abs(one[name] - other[name]).max() for name in names) / largest)


def records(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
