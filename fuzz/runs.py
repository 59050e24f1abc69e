"""Targets among recipes and run directories: the recipe, run.json, weights, checkpoints, logs."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.target import Facts, digest
from segmenter.config.reading import dump_recipe, load_recipe, recipe_from
from segmenter.config.recipe import Recipe, SamplingConfig
from segmenter.evaluation.calibration import fit_held_out
from segmenter.evaluation.learning_curves import learning_curves
from segmenter.evaluation.prediction_sets import PROMISES, BlockLosses
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.checkpoints import META, Arrays, save_arrays, save_checkpoint
from segmenter.runs.log import RunLog, log_line, run_coverage
from segmenter.runs.records import (
    FittedScene,
    ShownWindow,
    ShownWindows,
    as_base64,
    load_accuracy,
    load_calibration,
    load_windows,
    save_accuracy,
    save_calibration,
    save_windows,
)
from segmenter.runs.report.run_record import read_story
from segmenter.runs.report.sections import report_sections
from segmenter.runs.resume import Position, checkpoint_to_resume, facts_array
from segmenter.runs.run import Run, load_run
from segmenter.runs.score_files import BEST_FILES
from segmenter.runs.set_file import load_sets, save_sets
from segmenter.sampling.plan import plan

CONFIGS = Path(__file__).parents[1] / "configs"
NAMES = ("water", "forest", "a road, 'wide'")
_BOMB = b"a: &a [x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (c + 1, c + 1, b", ".join([b"*%c" % c] * 9)) for c in b"abcdefgh"
)
YAML = (
    *(
        b"&a ",
        b"*a",
        b"<<: *a",
        b"2023-02-30",
        b"2023-02-28",
        b"!!int x",
        b'!!float ""',
        b"!!binary x",
        b"!!set {a}",
    ),
    *(
        b"!!python/object/apply:os.system [x]",
        b"? ",
        b"- ",
        b": ",
        b"|\n",
        b"1_000",
        b"0o17",
        b"0x_",
        b".inf",
        b".nan",
    ),
    *(
        b"yes",
        b"~",
        b"'",
        b'"',
        b"{a: ",
        b"#",
        b"%YAML 9.9\n",
        b"---\n",
        b"{name}",
        b"{stem}" * 20,
        b"*" * 60 + b"{name}",
    ),
    *(b"1:2:3", b"@", b"`", b"[" * 500, _BOMB, b"name: &a [*a]\n", b"'\xc2\x85'", b"\t", b"9" * 5000),
)
"""What YAML has beside plain settings: anchors, merges, tags, dates, and a bomb of aliases."""


def recipe() -> Recipe:
    """A small one."""
    classes = [{"name": name, "code": code} for code, name in enumerate(NAMES)]
    dataset = {
        "kind": "folder",
        "root": ".",
        "images": "i/{name}.tif",
        "labels": "l/{name}.tif",
        "classes": classes,
    }
    return recipe_from({"name": "fuzzed", "dataset": dataset, "model": {"depth": 1, "width": 2}}, "fuzz")


def make_recipes(folder: Path) -> None:
    """Those of the project."""
    for path in sorted(CONFIGS.glob("*.yaml")):
        (folder / path.name).write_bytes(path.read_bytes())


def read_recipe(path: Path) -> Facts:
    """A recipe that is accepted must say the same when it is written and read again."""
    found = load_recipe(path)
    again = path.with_name("again.yaml")
    again.write_text(dump_recipe(found), encoding="utf-8")
    if load_recipe(again) != found:
        raise AssertionError("a recipe that was written and read again is another")
    return [digest(found.model_dump_json())]


def make_run(folder: Path) -> None:
    """A run directory with a best and two checkpoints, a log and scores."""
    arrays: Arrays = {
        "model/a": np.linspace(0, 1, 24, dtype=np.float32).reshape(2, 3, 4),
        "model/b": np.zeros(3),
    }
    classes = ClassMap(tuple(LandCoverClass(name, (9, i, i), i) for i, name in enumerate(NAMES)), "codes")
    Run(
        path=folder,
        recipe=recipe(),
        classes=classes,
        bands=(1, 2, 3),
        band_count=3,
        dtype="uint8",
        normalisation=Normalisation.of((100.5, 90.25, 80.0), (30.0, 20.0, 10.0)),
        metres_per_pixel=0.5,
        labels="full",
        network=NetworkGeometry(8, 20, 100.0),
        tiles="0123456789abcdef",
    ).save()
    tiles = plan(np.full((12, 3), 99), 4, SamplingConfig(), 0, 0)
    for step in (4, 8):
        position = Position(step, 1, 2, 0.25)
        meta = facts_array(recipe(), tiles.fingerprint, position, 1, {"processor": "one"})
        save_checkpoint(folder, step, {**arrays, "position": np.array(position), META: meta}, 2)
    save_arrays(folder / "best.npz", arrays)
    RunLog(folder).path.write_text("".join(map(log_line, _log())))
    confusion = ConfusionMatrix(classes, np.arange(12).reshape(3, 4))
    scores = confusion.scores(Protocol(NAMES, "full", "validation", scenes=("a",)))
    scores.write(folder / BEST_FILES[0], facts={"epoch": 2, "step": 8})
    picture = as_base64(b"any bytes that are a picture")
    window = ShownWindow(
        why="worst", scene="a", row=0, col=9, height=40, width=30, right=7, labelled=9,
        picture_height=40, picture_width=30, image=picture, label=picture, map=picture,
    )  # fmt: skip
    shown = ShownWindows(step=8, epoch=2, windows=3, scenes=1, of_scenes=1, shown=(window,))
    save_windows(folder, shown)
    rng = np.random.default_rng(2)
    fitted = fit_held_out(rng.normal(size=(90, 3)), rng.integers(0, 3, 90), np.arange(90) % 3)
    scene = FittedScene(name="a", image="0" * 16, label="1" * 16)
    save_calibration(load_run(folder), fitted, pixels=90, scenes=3, fitted_on=[scene])
    losses = BlockLosses(4, 3)
    pixel_N = np.arange(90)
    losses.add(0, pixel_N // 9, pixel_N % 9, pixel_N % 3, rng.dirichlet(np.ones(3), 90))
    losses.finish(0)
    save_sets(load_run(folder), losses)
    table: dict[str, Any] = {"titles": ["Class"], "rows": [["a"]], "remarks": []}
    save_accuracy(load_run(folder), {"source": "points.gpkg", "head": "overall accuracy 90 ± 2 %", **table})


def _log() -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for step in range(1, 9):
        held = {"held_steps": [4, 3, 4], "promised": [0, 2], "best_effort": [1], "short_steps": 0}
        tiles = {"tiles_drawn": 32, "tiles_redrawn": 1, "tiles_replaced": 2}
        lines.append(
            {"step": 4 * step, "epoch": step // 3, "steps": 4, "loss": 1 / step, "lr": 1e-3, **held, **tiles}
        )
        if step % 3 == 0:
            iou = dict.fromkeys(NAMES, 0.5)
            lines.append({"step": 4 * step, "epoch": step // 3, "miou": 0.5, "iou": iou, "protocol": "all"})
    return lines


def read_run(file: Path) -> Facts:
    """What predict.py takes from a run directory."""
    run = load_run(file.parent)
    run.checksum()
    weights = run.weights()
    said = (run.bands, run.band_count, run.dtype, run.metres_per_pixel, run.labels, run.network, run.tiles)
    return [
        digest(run.recipe.model_dump_json(), run.classes.to_dict(), asdict(run.normalisation), *said),
        digest(run.planned_replicas, *(v for name in sorted(weights) for v in (name, weights[name]))),
    ]


def read_checkpoint(file: Path) -> Facts:
    """What `--resume` takes."""
    found = checkpoint_to_resume(file.parents[1])
    arrays = (value for name in sorted(found.arrays) for value in (name, found.arrays[name]))
    return [digest(found.path.name, found.position, found.facts, *arrays)]


def read_log(file: Path) -> Facts:
    """Records of a log that `segmenter coverage --run` reads."""
    found = run_coverage(file.parent, NAMES)
    return [digest(repr(replace(found, path="")))]


def rewind_log(file: Path) -> Facts:
    """What `--resume` does with a log, and the curves that are drawn of what is left."""
    log = RunLog(file.parent)
    log.rewind(20, validated=True)
    learning_curves(log.records(), file.with_name("learning_curves.png"))
    return [digest(json.dumps(record)) for record in log.records()]


def read_report(file: Path) -> Facts:
    """What the report of a training shows of all its files."""
    return [digest(repr(report_sections(read_story(file.parent))))]


def read_windows(file: Path) -> Facts:
    """Pictures that the report shows."""
    return [digest(repr(load_windows(file.parent)))]


def read_calibration(file: Path) -> Facts:
    """Temperature and bias that predict.py takes, and the measures that the report shows."""
    return [digest(repr(load_calibration(file.parent)))]


def read_sets(file: Path) -> Facts:
    """Thresholds that predict.py takes."""
    return [digest(repr([load_sets(load_run(file.parent), promise) for promise in PROMISES]))]


def read_accuracy(file: Path) -> Facts:
    """Estimates that the model card and the report show."""
    return [digest(repr(load_accuracy(load_run(file.parent))))]
