"""`--init-from`: the change of scenes, labels and classes since the earlier run is told, and nothing else."""

from __future__ import annotations

from pathlib import Path

from segmenter.runs.records import Origin, save_origin
from segmenter.tiles.scene_files import save_digests
from segmenter.training.beginning.fine_tuning import lines_of_change
from tests.helpers.trained_run import bare_run

BEFORE = {"a": ("1", "2"), "b": ("3", "4"), "c": ("5", "6"), "d": ("7", "8")}


def test_new_corrected_and_missing_scenes_are_named_with_the_classes_that_moved(tmp_path: Path) -> None:
    run = bare_run(tmp_path / "run")
    assert list(lines_of_change(run, BEFORE, {"water": 3})) == [], "a run without a record"
    save_digests(run.path, BEFORE)
    (line,) = lines_of_change(run, BEFORE, {"water": 3})
    assert not any(f"({name})" in line for name in BEFORE)
    tiles = {"scenes": {}, "tiles": 9, "tiles_left_out": 0, "tile_px": 64, "tiles_with": {}}
    save_origin(run.path, Origin.model_validate({**tiles, "pixels": {"water": 1000, "forest": 50}}))
    now = {"a": ("1", "2"), "b": ("3", "corrected"), "c": ("other", "6"), "e": ("9", "10")}
    scenes, classes = lines_of_change(run, now, {"water": 1500, "forest": 50, "road": 7})
    parts = scenes.split("; ")
    assert [part[part.rindex("(") :] for part in parts] == ["(e)", "(c)", "(b)", "(d)"]
    assert "water 1,000 → 1,500" in classes
    assert "road 0 → 7" in classes
    assert "forest" not in classes
