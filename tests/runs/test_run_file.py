"""run.json, recipe.yaml, log.jsonl: what is damaged or edited is refused; a stranger's run is data."""

import hashlib
import json
import math
import os
import pickle
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets.commands import predict
from segmenter.base.errors import CheckpointError, OutputError, SegmenterError, run_script
from segmenter.base.sealed import seal
from segmenter.config.reading import load_recipe
from segmenter.evaluation.learning_curves import learning_curves
from segmenter.model.normalisation import Normalisation
from segmenter.runs import run as run_directory
from segmenter.runs.checkpoints import load_arrays, save_checkpoint
from segmenter.runs.log import RunLog, log_line, log_records
from segmenter.runs.run import Run, load_run
from tests.helpers.forbidden import forbidden
from tests.helpers.made_runs import flipped, rewritten
from tests.helpers.made_training import ROOT, made, train
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return bare_run(tmp_path / "run")


def one_line(path: Path) -> str:
    with pytest.raises(SegmenterError) as caught:
        load_run(path)
    line = str(caught.value)
    assert len(line) < 1500
    return line


def test_a_flipped_bit_of_the_recipe_is_refused(run: Run) -> None:
    file = run.path / "recipe.yaml"
    for content in flipped(file.read_bytes(), 61):
        file.write_bytes(content)
        assert f"{file}: edited or damaged: it is not what this run was trained with" in one_line(run.path)


HOSTILE: list[tuple[dict[str, Any], str]] = [
    ({"band_count": "3"}, "band_count: expected a valid integer, got '3'"),
    ({"band_count": 4}, "normalisation.mean: expected as many as band_count, 4, got 3"),
    ({"bands": [1, 2]}, "bands: expected as many as band_count, 3, got 2"),
    ({"dtype": "zzz"}, "dtype: "),
    ({"normalisation__mean": [1.0, 2.0, 1e300]}, "normalisation.mean.2: "),
    ({"normalisation__std": [1.0, float("nan"), 1.0]}, "normalisation.std.1: "),
    ({"metres_per_pixel": 0}, "metres_per_pixel: "),
    ({"labels": "half"}, "labels: "),
    ({"network__stride": 10**9}, "network.stride: "),
    ({"tiles": 7}, "tiles: "),
    ({"planned_replicas": 0}, "planned_replicas: "),
    ({"classes__classes": [{"name": ["a"], "colour": [1, 2, 3], "code": 1}]}, "classes.classes.0.name: "),
    ({"classes__classes": [{"name": "a", "colour": [1, 2], "code": 1}]}, "classes.classes.0.colour.2: "),
    ({"classes__classes": [{"name": "a", "colour": [1, 2, 3], "code": 70000}]}, "class map: codes"),
    ({"classes__classes": [{"name": "a", "colour": [c] * 3, "code": c} for c in (1, 2)]}, "class map: each"),
    ({"classes__ignored": [[1, 2, 3]]}, "class map: label files hold codes"),
    ({"recipe": []}, "recipe: expected the SHA-256 of recipe.yaml, got none"),
    ({"format": 3}, "expected format 2, got 3: written by another version of this program, use that one"),
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
        file.write_text(seal(json.dumps({name: whole[name] for name in whole if name != key})))
        assert f"{key}: Field required" in one_line(run.path)


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
    first, *others = run.classes.classes
    soft = replace(first, code=1000, also=(1001, 65534))
    assert all(getattr(soft, field.name) != getattr(first, field.name) for field in fields(soft)[2:])
    kept = replace(run, classes=replace(run.classes, classes=(soft, *others)))
    kept.save()
    assert load_run(run.path) == kept


RECORDS: list[dict[str, Any]] = [
    {"step": 20, "loss": 1.5, "learning_rate": 1e-3, "held_steps": [20, 3]},
    {"step": 30, "epoch": 1, "miou": 0.5, "iou": {"a": 0.25, "wäld": None}, "protocol": "p"},
    {"step": 50, "loss": math.inf},
]


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("".join(map(log_line, RECORDS)))
    assert list(log_records(file)) == RECORDS
    for line, record in zip(file.read_text().splitlines(), RECORDS, strict=True):
        assert json.loads(line).items() >= record.items()


def test_each_flipped_bit_costs_at_most_its_line(tmp_path: Path) -> None:
    file, taken = tmp_path / "log.jsonl", 0
    first, middle, last = (log_line(record).encode() for record in RECORDS)
    for line in flipped(middle[:-1], 5):
        file.write_bytes(first + line + b"\n" + last)
        found = list(log_records(file))
        assert found in (RECORDS, RECORDS[::2])
        taken += len(found) == 3
    assert taken < 0.02 * 8 * len(middle) / 5


LINES = [
    *(b"[1]", b"3", b"{}", b'{"step": null}', b'{"step": "7"}', b'{"step": true}', b'{"step": -1}'),
    *(b'{"step": 1e400}', b'{"step": 1' + b"0" * 400 + b"}", b"\xff\x00{", b"[" * 10**5),
    *(b'{"step": 1, "loss": "high"}', b'{"step": 1, "iou": {"a": "b"}}', b'{"step": 1, "miou": [1]}'),
    *(b'{"step": 1, "loss": 1' + b"0" * 400 + b"}", b'{"step": 1, "loss"'),
    b'{"step": 4, "loss": 2.0}',  # a record but for its checksum
]


def test_what_is_no_record_is_none_with_and_without_a_checksum(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    first, second = (log_line(record).encode() for record in RECORDS[:2])
    for line in LINES:
        lines = [line]
        if line.startswith(b"{") and line.endswith(b"}") and len(line) > 2 and line is not LINES[-1]:
            lines.append(seal('{"format": 2, ' + line[1:].decode()).encode())
        for each in lines:
            file.write_bytes(first + each + b"\n" + second + each)
            assert list(log_records(file)) == RECORDS[:2], each[:80]
    learning_curves(log_records(file), tmp_path / "curves.png")


def test_a_log_with_such_lines_is_rewound(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(b"\n".join([*LINES, *(log_line(record).strip().encode() for record in RECORDS)]))
    log = RunLog(tmp_path)
    assert RunLog(tmp_path / "none").records() == []
    log.rewind(30, validated=False)
    assert file.read_text() == log_line(RECORDS[0])
    log.append({"step": 40, "loss": 1.0})
    assert [record["step"] for record in log.records()] == [20, 40]


def test_a_run_whose_folder_is_removed_says_so(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run")
    with refused(OutputError, where="run", fault="folder"):
        log.append({"step": 1})


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        return __import__("os").mkdir, (self.folder,)


def pickled_array(path: Path, trap: Trap) -> None:
    np.savez(path, position=np.zeros(4), **{"model/kernel": np.array([trap], dtype=object)})


def pickle_alone(path: Path, trap: Trap) -> None:
    path.write_bytes(pickle.dumps(trap))


CHECKPOINTS = [pickled_array, pickle_alone]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("stranger") / "data")


@pytest.fixture
def foreign(recipe: Path, tmp_path: Path) -> Run:
    return bare_run(tmp_path / "run", recipe=load_recipe(recipe))


@pytest.mark.parametrize("write", CHECKPOINTS)
def test_a_pickled_checkpoint_is_refused(
    tensorflow: ModuleType, recipe: Path, foreign: Run, tmp_path: Path, capsys: Any, write: Any
) -> None:
    sprung = tmp_path / "sprung"
    (foreign.path / "checkpoints").mkdir()
    for name in ("best.npz", "checkpoints/step-00000007.npz"):
        write(foreign.path / name, Trap(sprung))
    image = str(recipe.parent / "images" / "s0.tif")
    arguments = [str(foreign.path), image, "--insist", "--output", str(tmp_path / "maps")]
    assert run_script(lambda: predict.main(arguments)) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    if write is pickled_array:  # once is enough of a process
        result = train(recipe, "--run", str(foreign.path), "--resume", check=False)
        assert result.returncode == 2
        told += result.stderr.splitlines()
        assert told[1].endswith("with --run")
    assert all("npz: damaged checkpoint (" in line for line in told)
    assert not sprung.exists()


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir [SPRUNG]", "!!python/name:os.mkdir"])
def test_tags_in_a_recipe_are_refused(
    recipe: Path, foreign: Run, tmp_path: Path, capsys: Any, tag: str
) -> None:
    sprung = tmp_path / "sprung"
    file = foreign.path / "recipe.yaml"
    file.write_text(file.read_text().replace("name: made", "name: " + tag.replace("SPRUNG", str(sprung))))
    assert "!!python" in file.read_text()
    rewritten(foreign.path / "run.json", recipe=[hashlib.sha256(file.read_bytes()).hexdigest()])
    assert run_script(lambda: predict.main([str(foreign.path), str(recipe), "--output", str(tmp_path)])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {file}: not valid YAML: ")
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": np.zeros(3)}, "not enough"),
        ({"position": np.array([7, -1, 0, 0.5])}, "position (7, -1, 0)"),
        ({"meta": np.frombuffer(b"{}", np.uint8)}, "9 validation"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_make_is_refused(foreign: Run, changes: Any, message: str) -> None:
    from segmenter.runs.resume import Position, checkpoint_to_resume, facts_array

    position = Position(7, 1, 0, 0.5)
    meta = facts_array(foreign.recipe, "0", position, 1, {})
    save_checkpoint(foreign.path, 7, {"position": np.array(position), "meta": meta, **changes}, 1)
    with refused(CheckpointError, where="step-00000007.npz", fault=f"({message}"):
        checkpoint_to_resume(foreign.path)


def test_nothing_that_runs_code_is_used() -> None:
    forbidden = ("import pickle\n", "from pickle ", "allow_pickle=True", "load_model(", "joblib")
    forbidden += ("UnsafeLoader", "FullLoader")
    folders = ("segmenter", "datasets", "benchmarks", "fuzz")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    files += [ROOT / script for script in ("train.py", "predict.py")]
    assert len(files) > 50
    # Between a training and the workers that it has started itself, over sockets that nobody else has.
    ours = {ROOT / "segmenter/tiles/feeding" / name for name in ("sending.py", "processes.py", "worker.py")}
    ours.add(ROOT / "segmenter/model/pretrained/torch_files.py")  # refuses every name but those of tensors
    files = [path for path in files if path not in ours]
    found = [(path.name, word) for path in files for word in forbidden if word in path.read_text()]
    assert found == []
