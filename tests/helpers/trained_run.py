"""Run directories as trainings leave them, which were never trained: records, log, scores, pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.evaluation.drawing import encode_picture
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.model.size import weight_shapes
from segmenter.runs.checkpoints import META, save_checkpoint
from segmenter.runs.log import LOG, log_line
from segmenter.runs.records import ShownWindow, ShownWindows, as_base64, save_windows
from segmenter.runs.resume import Position, facts_array
from segmenter.runs.run import Run
from segmenter.runs.score_files import BEST_FILES, LAST_FILES
from tests.helpers.made_runs import MACHINE, RECIPE, plan_of

NAMES = ("water", "forest", "road")
STEPS = 50
"""Of an epoch."""


def recipe_with(**training: Any) -> Recipe:
    data = RECIPE.model_dump(mode="json")
    return recipe_from({**data, "training": {**data["training"], **training}}, "test")


def unsaved_run(path: Path, names: Sequence[str] = NAMES, recipe: Recipe = RECIPE, **changes: Any) -> Run:
    """A run of three bands of uint8, of which nothing is written."""
    rng = np.random.default_rng(3)
    colours = [tuple(colour) for colour in rng.integers(0, 256, (len(names), 3)).tolist()]
    classes = ClassMap(tuple(LandCoverClass(name, colours[i], i) for i, name in enumerate(names)), "codes")
    plain, network = Normalisation.of([0.0] * 3, [1.0] * 3), NetworkGeometry(2, 9)
    facts: dict[str, Any] = {"classes": classes, "normalisation": plain, "network": network}
    facts |= {"bands": None, "band_count": 3, "dtype": "uint8", "metres_per_pixel": 0.5, "labels": "full"}
    return Run(path, recipe, **{**facts, "tiles": "", **changes})


def bare_run(path: Path, *given: Any, **changes: Any) -> Run:
    """A run whose run.json and recipe.yaml are written; arguments as of `unsaved_run`."""
    run = unsaved_run(path, *given, **changes)
    run.save()
    return run


def run_with_weights(path: Path, recipe: Recipe, names: Sequence[str], bands: int = 3) -> Path:
    """A run directory with a checkpoint of random weights, which is all that a fine-tuning takes."""
    scale, rng = Normalisation.of([0.0] * bands, [1.0] * bands), np.random.default_rng(5)
    bare_run(path, names, recipe, normalisation=scale, band_count=bands, metres_per_pixel=1.0)
    shapes = weight_shapes(recipe.model, bands, len(names)).items()
    arrays = {f"model/{name}": rng.normal(len(shape) < 4, 0.2, shape).astype("f4") for name, shape in shapes}
    save_checkpoint(path, 7, {**arrays, "position": np.zeros(4)}, keep=2)
    return path


def trained_run(
    path: Path,
    names: Sequence[str] = NAMES,
    *,
    epochs: int = 6,
    of: int | None = None,
    validations: bool = True,
    absent: Sequence[int] = (),
    every: int = 20,
    quality: float = 0.9,
    scenes: Sequence[str] = ("a", "b"),
    labels: str = "full",
    without: Sequence[str] = (),
    checkpoint: bool = True,
    windows: int = 4,
    without_gain: int = 0,
    waiting: float = 0.03,
    extensions: Any = (),
    **training: Any,
) -> Run:
    """A run of so many epochs of `STEPS` steps.

    Args:
        of: epochs of the recipe; None: as many as are done.
        absent: classes that no validation shows: their scores are undefined.
        every: steps of a line of the log.
        quality: share of a class's pixels that are right in the end.
        without: keys that lines of the log do not have, as those of older versions.
        windows: in windows.json; 0: there is no such file.
        training: settings of the recipe.
    """
    recipe = recipe_with(epochs=of or epochs, global_batch=8, **training)
    run = bare_run(path, names, recipe, extensions=tuple(extensions))
    lines, rng = [], np.random.default_rng(1)
    for epoch in range(1, epochs + 1):
        for step in range(every, STEPS + every, every):
            done = min(step, STEPS)
            lines.append(_training(rng, epoch, done, done - step + every, len(names), waiting, without))
        if validations:
            confusion = _confusion(run.classes, absent, quality * epoch / epochs)
            protocol = Protocol(tuple(names), labels, "validation", scenes=tuple(scenes))  # type: ignore[arg-type]
            scores = confusion.scores(protocol)
            data = scores.to_dict()
            said = {"miou": data["miou"], "iou": data["iou"], "protocol": str(protocol)}
            lines.append({"step": epoch * STEPS, "epoch": epoch, **said})
            for file in (LAST_FILES[0], BEST_FILES[0]):
                scores.write(path / file, facts={"epoch": epoch, "step": epoch * STEPS})
    (path / LOG).write_text("".join(map(log_line, lines)), encoding="utf-8")
    if checkpoint:
        position = Position(epochs * STEPS, epochs, 0, 0.5, without_gain)
        facts = facts_array(recipe, plan_of().fingerprint, position, 2, MACHINE)
        arrays = {"position": np.array(position, np.float64), META: facts}
        save_checkpoint(path, epochs * STEPS, arrays, keep=9)
    if windows and validations:
        shown = tuple(_window(i, "worst" if i < windows / 2 else "best", scenes[0]) for i in range(windows))
        counts = {"step": epochs * STEPS, "epoch": epochs, "windows": 40, "scenes": 2}
        save_windows(path, ShownWindows(**counts, of_scenes=len(scenes), shown=shown))
    return run


def _training(
    rng: np.random.Generator,
    epoch: int,
    done: int,
    steps: int,
    K: int,
    waiting: float,
    without: Sequence[str],
) -> dict[str, Any]:
    step = (epoch - 1) * STEPS + done
    line = {
        "step": step,
        "epoch": epoch,
        "loss": 2 / (1 + step / 100) + float(rng.uniform(0, 0.1)),
        "learning_rate": 1e-3,
        "images_per_second": 100.0 + epoch,
        "waiting_for_data": waiting,
        "steps": steps,
        "short_steps": 0,
        "held_steps": [steps] * (K - 1) + [steps // 2],
        "promised": list(range(K - 1)),
        "best_effort": [K - 1],
        "tiles_drawn": 8 * steps,
        "tiles_redrawn": 1,
        "tiles_replaced": 0,
    }
    return {key: value for key, value in line.items() if key not in without}


def _confusion(classes: ClassMap, absent: Sequence[int], quality: float) -> ConfusionMatrix:
    """Of each class 1000 pixels, of which the wrong ones are taken for the next class."""
    K = len(classes)
    counts = np.zeros((K, K + 1), np.int64)
    there = [c for c in range(K) if c not in absent]
    for place, c in enumerate(there):
        right = int(1000 * quality) - place
        counts[c, c] = right
        counts[c, there[(place + 1) % len(there)]] += 1000 - right
    return ConfusionMatrix(classes, counts)


def _window(i: int, why: Any, scene: str) -> ShownWindow:
    pixels = np.random.default_rng(i).integers(0, 256, (60, 80, 3), np.uint8)
    picture = as_base64(encode_picture(pixels, "png"))
    image = as_base64(encode_picture(pixels, "jpeg"))
    return ShownWindow(
        why=why, scene=scene, row=i, col=2 * i, height=120, width=160, right=9600 - 100 * i, labelled=19200,
        picture_height=60, picture_width=80, image=image, label=picture, map=picture,
    )  # fmt: skip
