"""A run directory whose model has random weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.config.reading import recipe_from
from segmenter.grid.labels import ClassMap
from segmenter.model.normalisation import Normalisation
from segmenter.runs.checkpoints import save_arrays, weight_arrays
from tests.helpers.trained_run import bare_run


def random_run(
    path: Path,
    classes: ClassMap,
    *,
    name: str = "random",
    depth: int = 3,
    seed: int = 5,
    mean: float = 500,
    precision: str = "float32",
    model_section: Mapping[str, Any] | None = None,
    dataset: Mapping[str, Any] | None = None,
) -> Path:
    """A run with random weights and BatchNorm statistics, balanced so that every class is predicted.

    Needs TensorFlow; its stride is 2 to the power of `depth`, where the model is a U-Net of that depth.
    """
    from segmenter.model.building import build_model
    from segmenter.model.receptive_field import network_geometry

    rng = np.random.default_rng(seed)
    folder: dict[str, Any] = {"kind": "folder", "root": ".", "images": "*", "labels": "*"}
    folder["classes"] = [{"name": each.name, "code": i} for i, each in enumerate(classes.classes)]
    folder |= dataset or {}
    described = dict(model_section or {"depth": depth, "width": 8})
    sections = {"model": described, "training": {"precision": precision}}
    recipe = recipe_from({"name": name, "dataset": folder, **sections}, "test")
    model = build_model(recipe.model, 3, len(classes))
    for variable in model.variables:
        if "moving_variance" in variable.path:
            variable.assign(rng.uniform(0.5, 2, variable.shape))
        elif "kernel" in variable.path:
            fan = np.prod(variable.shape[: 2 if "depthwise" in variable.path else -1])
            variable.assign(rng.normal(size=variable.shape) * (2 / fan) ** 0.5)
        else:
            variable.assign(rng.normal(size=variable.shape) / 2)
    head = model.get_layer("logits")
    head.bias.assign(np.zeros(len(classes)))
    logits = model(rng.normal(size=(1, 128, 128, 3))).numpy()
    spread = (
        logits.std(axis=(0, 1, 2)) if model_section else 1.0
    )  # a narrow encoder leaves little of the image
    head.kernel.assign(head.kernel / spread)
    head.bias.assign(-logits.mean(axis=(0, 1, 2)) / spread)
    path.mkdir(exist_ok=True)
    scale = Normalisation.of((mean,) * 3, (290,) * 3)
    seen: dict[str, Any] = {"dtype": "uint16", "band_names": ("red", "green", "blue"), "normalisation": scale}
    bare_run(path, recipe=recipe, classes=classes, network=network_geometry(model), **seen)
    save_arrays(path / "best.npz", weight_arrays(model, "model"))
    return path
