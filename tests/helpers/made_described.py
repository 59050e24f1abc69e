"""A run directory with all that a training leaves, made without one and without TensorFlow."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.config.reading import recipe_from
from segmenter.evaluation.calibration import Calibration, Fitted, Measures
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.checkpoints import META, save_arrays
from segmenter.runs.log import log_line
from segmenter.runs.records import (
    CalibrationFile,
    GroundPlace,
    Origin,
    ShownWindows,
    load_calibration,
    save_calibration,
    save_origin,
    save_windows,
)
from segmenter.runs.resume import Position, facts_array
from segmenter.runs.run import Run, load_run
from tests.helpers.made_runs import plan_of
from tests.helpers.trained_run import bare_run

ROOT = "/srv/owner-kim/city scenes"
"""Of the data, which nobody else is to read."""
CLASSES = ("roof", "low | green", "水体", "<never>")
PLACE = GroundPlace(
    rings=(((13.0, 52.0), (13.1, 52.0), (13.1, 52.1), (13.0, 52.1), (13.0, 52.0)),), scenes=1, exact=True
)


def contents(folder: Path) -> dict[str, bytes]:
    """Relative name → content of each file below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def described_run(
    path: Path,
    *,
    place: GroundPlace | None = PLACE,
    best: bool = True,
    origin: bool = True,
    model: dict[str, Any] | None = None,
    name: str = "mine",
) -> Path:
    """Checkpoints of steps 4 and 8; the best and its scores are of step 4. Class 3 occurs nowhere."""
    classes = ClassMap(tuple(LandCoverClass(n, (i, 40 * i, 255), 10 * i) for i, n in enumerate(CLASSES)))
    folder = {
        "kind": "folder", "root": ROOT, "images": "{name}.tif", "labels": "{name}_l.tif",
        "cache": f"{ROOT}/.cache",
        "classes": [{"name": each.name, "code": each.code} for each in classes.classes],
        "split": {"validation": ["s1"]},
    }  # fmt: skip
    recipe = recipe_from(
        {"name": name, "dataset": folder, "model": model or {"depth": 1, "width": 2}}, "test"
    )
    scale, network = Normalisation.of((500.25, 40.0), (290.0, 7.5)), NetworkGeometry(2, 9, 100.0)
    data: dict[str, Any] = {"bands": (4, 1), "band_count": 2, "dtype": "uint16", "metres_per_pixel": 0.3}
    data |= {"classes": classes, "normalisation": scale, "network": network, "tiles": "ab" * 16}
    run = bare_run(path, recipe=recipe, **data)
    for step in (4, 8):
        _save_weights(run, path / "checkpoints" / f"step-{step:08d}.npz", step)
    if best:
        _save_weights(run, path / "best.npz", 4)
        _save_scores(run, 4)
    if origin:
        save_origin(path, _origin(place))
    (path / "scenes.json").write_text('{"format": 1, "scenes": {"s0": ["0", "1"]}}')
    (path / "log.jsonl").write_text(log_line({"step": 8, "loss": 0.5, "learning_rate": 0.1}))
    for picture in ("confusion.png", "summary.png", "learning_curves.png"):
        (path / picture).write_bytes(b"\x89PNG " + picture.encode())
    (path / "report.html").write_text(f"<td>{ROOT}</td>")
    (path / "validation.json").write_text(json.dumps({"format": 1, "images": [f"{ROOT}/s1.tif"]}))
    save_windows(path, ShownWindows(step=4, epoch=1, windows=6, scenes=1, of_scenes=1, shown=()))
    (path / "tensorboard").mkdir()
    (path / "tensorboard" / "events.out.tfevents.1.kims-machine.2.0.v2").write_bytes(b"kims-machine")
    return path


def _save_weights(run: Run, path: Path, step: int) -> None:
    rng, position = np.random.default_rng(step), Position(step, 1, 0, 0.5)
    on = {"processor": "Some CPU", "devices": "NVIDIA GeForce RTX 2080 Ti"}
    path.parent.mkdir(exist_ok=True)
    save_arrays(
        path,
        {
            "model/logits/kernel": rng.normal(size=(1, 1, 3, 4)).astype(np.float32),
            "model/logits/bias": rng.normal(size=4).astype(np.float32),
            "model/dropout/masks": np.arange(2),
            "optimiser/0": rng.normal(size=16),
            "position": np.array(position, np.float64),
            META: facts_array(run.recipe, plan_of().fingerprint, position, 4, on),
            **run.text_arrays(),
        },
    )


def _save_scores(run: Run, step: int) -> None:
    truth = np.repeat(np.arange(3, dtype=np.uint8), (700, 200, 100)).reshape(10, 100)
    guess = truth.copy()
    guess[0, :50] = 1
    confusion = ConfusionMatrix(run.classes)
    confusion.add(truth, guess)
    protocol = Protocol(tuple(run.classes.names), "full", "validation", scenes=("s1",))
    confusion.scores(protocol).write(run.path / "scores.json", facts={"epoch": 1, "step": step})


def _origin(place: GroundPlace | None) -> Origin:
    return Origin(
        begun="2026-05-04T03:02:01Z",
        scenes={"train": 5, "validation": 1, "test": 2},
        tiles=1234,
        tiles_left_out=3,
        tile_px=256,
        pixels=dict(zip(CLASSES, (600, 300, 100, 0), strict=True)),
        tiles_with=dict(zip(CLASSES, (9, 9, 0, 0), strict=True)),
        metres_per_pixel=(0.25, 0.4),
        place=place,
        started_from="",
    )


def left_behind(folder: Path) -> list[str]:
    """Names of what lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def calibrated(run: Path) -> CalibrationFile:
    """Write a calibration into a described run; return it."""
    measures = Measures(0.1, 0.5, 0.6, ((4, 0.5, 0.4),) * 15, (0.1,) * 20, 0.1)
    fitted = Fitted(Calibration(2.0, (0.5, -0.5, 0.0, 0.0)), measures, measures, measures)
    save_calibration(load_run(run), fitted, pixels=60, scenes=2, fitted_on=[])
    found = load_calibration(run)
    assert found is not None
    return found
