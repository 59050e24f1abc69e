"""run.json and recipe.yaml: what is damaged, edited, or of a wrong type or range is refused in one line."""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.base.sealed import sealed
from segmenter.model.normalisation import Normalisation
from segmenter.runs import run as run_directory
from segmenter.runs.checkpoints import load_arrays, save_checkpoint
from segmenter.runs.run import Run, load_run
from tests.helpers.forbidden import forbidden
from tests.helpers.made_runs import flipped, rewritten
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return bare_run(tmp_path / "run")


def one_line(path: Path) -> str:
    with pytest.raises(SegmenterError) as caught:
        load_run(path)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 1500
    return line


def test_a_flipped_bit_of_run_json_is_refused_or_changes_nothing(run: Run, monkeypatch: Any) -> None:
    monkeypatch.setattr(run_directory, "load_recipe", lambda _: run.recipe)  # the same YAML each time
    file, refused, lines = run.path / "run.json", 0, set()
    whole = file.read_bytes()
    for content in flipped(whole, 11):
        file.write_bytes(content)
        try:
            assert load_run(run.path) == run
        except CheckpointError as error:
            lines.add(str(error).partition(" ")[0])
            refused += 1
    assert lines == {f"{file}:"}
    assert refused > 0.97 * 8 * len(whole) / 11


def test_a_flipped_bit_of_the_recipe_is_refused(run: Run) -> None:
    file = run.path / "recipe.yaml"
    for content in flipped(file.read_bytes(), 61):
        file.write_bytes(content)
        assert f"{file}: edited or damaged: it is not what this run was trained with" in one_line(run.path)


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"band_count": "3"}, "band_count: expected a valid integer, got '3'"),
    ({"band_count": True}, "band_count: expected a valid integer"),
    ({"band_count": 4}, "normalisation.mean: expected as many as band_count, 4, got 3"),
    ({"bands": [1, 2]}, "bands: expected as many as band_count, 3, got 2"),
    ({"bands": [0, 1, 2]}, "bands.0: "),
    ({"dtype": "zzz"}, "dtype: "),
    ({"normalisation__mean": [1.0, 2.0]}, "normalisation.mean: expected as many as band_count, 3, got 2"),
    ({"normalisation__mean": [1.0, 2.0, float("inf")]}, "normalisation.mean.2: "),
    ({"normalisation__mean": [1.0, 2.0, 1e300]}, "normalisation.mean.2: "),
    ({"normalisation__std": [1.0, 0, 1.0]}, "normalisation.std.1: "),
    ({"normalisation__std": [1.0, float("nan"), 1.0]}, "normalisation.std.1: "),
    ({"metres_per_pixel": 0}, "metres_per_pixel: "),
    ({"labels": "half"}, "labels: "),
    ({"network__stride": 10**9}, "network.stride: "),
    ({"network__radius": -1}, "network.radius: "),
    ({"network__bytes_per_pixel": -1}, "network.bytes_per_pixel: "),
    ({"tiles": 7}, "tiles: "),
    ({"planned_replicas": 0}, "planned_replicas: "),
    ({"classes__classes": [{"name": ["a"], "colour": [1, 2, 3], "code": 1}]}, "classes.classes.0.name: "),
    ({"classes__classes": [{"name": "a", "colour": [1, 2], "code": 1}]}, "classes.classes.0.colour.2: "),
    ({"classes__classes": [{"name": "a", "colour": [1, 2, 3], "code": 70000}]}, "class map: codes"),
    ({"classes__classes": [{"name": "a", "colour": [c] * 3, "code": c} for c in (1, 2)]}, "class map: each"),
    ({"classes__encoding": "words"}, "classes.encoding: "),
    ({"classes__ignored": [[1, 2, 3]]}, "class map: label files hold codes"),
    ({"recipe": []}, "recipe: expected the SHA-256 of recipe.yaml, got none"),
    ({"format": 3}, "expected format 2, got 3: written by another version of this program, use that one"),
    ({"format": None}, "expected format 2, got none: written by another version"),
    ({"other": 1}, "other: "),
]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"), HOSTILE, ids=[f"{i}-{next(iter(c))}" for i, (c, _) in enumerate(HOSTILE)]
)
def test_a_wrong_type_or_range_is_refused_by_name(run: Run, changes: dict[str, Any], message: str) -> None:
    rewritten(run.path / "run.json", **changes)
    assert message in one_line(run.path)


def test_a_missing_entry_is_refused(run: Run) -> None:
    file = run.path / "run.json"
    whole = {key: value for key, value in json.loads(file.read_text()).items() if key != "crc"}
    for key in ("classes", "bands", "band_count", "normalisation", "labels", "tiles", "recipe"):
        file.write_text(sealed(json.dumps({name: whole[name] for name in whole if name != key})))
        assert f"{key}: Field required" in one_line(run.path)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 10**5, b'{"format": 1e999}'])
def test_what_is_no_run_file_is_refused(run: Run, content: bytes) -> None:
    (run.path / "run.json").write_bytes(content)
    assert "run.json: damaged or edited: " in one_line(run.path)


def test_a_run_file_without_a_checksum_is_refused(run: Run) -> None:
    file = run.path / "run.json"
    data = json.loads(file.read_text())
    del data["crc"]
    file.write_text(json.dumps(data))
    assert "run.json: damaged or edited: its checksum is another, or missing" in one_line(run.path)


def test_what_cannot_be_read_back_is_not_written(run: Run) -> None:
    wrong = replace(run, path=run.path / "other", normalisation=Normalisation.of([1, 1, 1], [1, 0, 1]))
    with refused(CheckpointError, fault="normalisation.std.1: expected greater"):
        wrong.save()
    assert not (run.path / "other" / "run.json").exists()


def test_a_refusal_names_the_remedy_and_the_remedy_works(run: Run, capsys: Any) -> None:
    run_json, recipe = run.path / "run.json", run.path / "recipe.yaml"
    whole = run_json.read_bytes(), recipe.read_bytes()
    recipe.write_bytes(whole[1].replace(b"seed: 0", b"seed: 1"))
    assert "put back a copy of it, if you have one: no checkpoint here holds one" in one_line(run.path)
    save_checkpoint(run.path, 3, {"a": np.zeros(1), **run.text_arrays()}, keep=1)
    advice = "move it away, and the copy in step-00000003.npz takes its place; to train with other settings"
    assert advice in one_line(run.path)
    recipe.unlink()
    assert load_run(run.path) == run
    assert "back from step-00000003.npz" in capsys.readouterr().err
    run_json.write_bytes(whole[0].replace(b"0.5", b"0.6"))
    assert "missing; move it away, and the copy in step-00000003.npz takes its place" in one_line(run.path)
    run_json.rename(run.path / "elsewhere")
    assert load_run(run.path) == run
    assert (run_json.read_bytes(), recipe.read_bytes()) == whole


def test_a_recipe_that_takes_anothers_place_is_never_taken_for_an_edited_one(
    run: Run, monkeypatch: Any
) -> None:
    other = replace(run, recipe=run.recipe.model_copy(update={"seed": 7}))
    write, seen = run_directory.write_whole, []

    def watched(path: Path, content: bytes) -> None:
        write(path, content)
        seen.append(load_run(run.path).recipe.seed)

    monkeypatch.setattr(run_directory, "write_whole", watched)
    other.save()
    assert seen == [0, 7, 7]
    assert load_run(run.path) == other
    run.save()
    (run.path / "recipe.yaml").write_text("seed: 7")
    assert "edited or damaged" in one_line(run.path)


def test_a_run_that_one_may_not_look_into_is_refused(run: Run) -> None:
    said = "expected a run directory, cannot look into it: Permission denied"
    for folder in (run.path, run.path.parent):
        with forbidden(folder):
            assert one_line(run.path) == f"{run.path}: {said}"


@pytest.mark.parametrize("name", ["x" * 300, "a/" * 3000])
def test_a_name_longer_than_any_is_refused(name: str) -> None:
    with refused(CheckpointError, expected="directory, cannot"):
        load_run(Path(name))


@pytest.mark.parametrize("name", ["run.json", "recipe.yaml", "best.npz"])
def test_a_pipe_in_a_runs_place_is_not_waited_for(run: Run, name: str) -> None:
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    load: Any = load_arrays if name == "best.npz" else lambda file: load_run(file.parent)
    with refused(SegmenterError, where=name, got="a pipe"):
        load(run.path / name)


def test_every_field_of_a_class_comes_back(run: Run) -> None:
    """Soft masks have further codes; a field that run.json does not know would end a training."""
    first, *others = run.classes.classes
    soft = replace(first, code=1000, also=(1001, 65534))
    assert all(getattr(soft, field.name) != getattr(first, field.name) for field in fields(soft)[2:])
    kept = replace(run, classes=replace(run.classes, classes=(soft, *others)))
    kept.save()
    assert load_run(run.path) == kept
