"""`segmenter start`: recipe, page and reasons, the same each time; folds of one recipe are trained."""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.commands.start import main
from datasets.start.choice import Choice, nested, recipe_text
from segmenter.base.errors import ConfigError, SegmenterError
from segmenter.config.reading import load_recipe, parse
from segmenter.mapping.request.map_request import MapRequest
from segmenter.runs.score_files import fold_path, fold_table, folds_in
from tests.helpers import made_folders as made
from tests.helpers.made_training import made as made_recipe
from tests.helpers.made_training import records, script, train


@pytest.fixture
def data(
    tensorflow: ModuleType, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder `town` beside the current folder's recipe, relative to it."""
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        made.save(tmp_path / f"town/im/s{i}.tif", made.image(rng), **made.place(i * made.SIZE[1]))
        made.save(
            tmp_path / f"town/gt/s{i}.tif", made.label([0, 1, 4], shift=i), **made.place(i * made.SIZE[1])
        )
    return Path("town")


def test_recipe_and_page_are_written_and_the_recipe_is_an_ordinary_one(data: Path, capsys: Any) -> None:
    before = {path for path in data.rglob("*") if ".tile-index" not in path.parts}
    assert main([str(data), "--gpus", "2x11GB"]) == 0
    recipe = load_recipe(Path("town.yaml"))
    assert recipe.dataset.root == "town"
    assert len(load_dataset(recipe).scenes) == 4
    text = Path("town.yaml").read_text()
    assert "segmenter start town --gpus 11GB,11GB" in text.splitlines()[0]
    settings = [line for line in text.splitlines() if ": " in line and not line.startswith(("#", "    - "))]
    assert settings
    assert all("  # " in line for line in settings)
    page = Path("town.html").read_text()
    assert page.count("<img ") == 9
    assert "label over it" in page
    out = capsys.readouterr().out
    assert "town.yaml" in out
    assert "{name}.tif" in out
    assert {path for path in data.rglob("*") if ".tile-index" not in path.parts} == before


def test_the_same_files_give_the_same_bytes(data: Path) -> None:
    for name in ("one", "two"):
        assert main([str(data), "--output", f"{name}.yaml"]) == 0
    assert Path("one.yaml").read_bytes() == Path("two.yaml").read_bytes()


def test_nothing_is_written_over(data: Path) -> None:
    for existing in ("town.yaml", "town.html"):
        Path(existing).write_text("mine")
        with pytest.raises(ConfigError, match=existing):
            main([str(data)])
        assert Path(existing).read_text() == "mine"
        Path(existing).unlink()
    assert not list(Path().glob("town.*"))


def test_a_setting_is_explained_and_nothing_written(data: Path, capsys: Any) -> None:
    assert main([str(data), "--explain", "dataset.labels"]) == 0
    out = capsys.readouterr().out
    assert "gt/{name}.tif" in out
    assert "reason: 4 labels" in out
    with pytest.raises(ConfigError, match=r"mean dataset\.labels"):
        main([str(data), "--explain", "dataset.label"])
    assert not list(Path().glob("town.*"))


def test_json_is_alone_on_stdout(data: Path, capsys: Any) -> None:
    assert main([str(data), "--json", "--page", "look.html"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"key": "dataset.kind", "value": "folder"}.items() <= told[0].items()
    assert Path("look.html").is_file()
    assert not Path("town.html").exists()


@pytest.mark.parametrize("cards", ["4x11GB", "4×11", "11GB,11,2x11 GB"])
def test_cards_are_read(cards: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets.start import plan

    asked: list[Any] = []
    monkeypatch.setattr(plan, "plan", lambda choices, *told: asked.append(told) or ())
    assert main([str(data), "--gpus", cards, "--hours", "2.5"]) == 0
    assert asked == [("town", 2.5, (11, 11, 11, 11))]


@pytest.mark.parametrize(
    "arguments", [["--gpus", "many"], ["--gpus", "0x11"], ["--hours", "0"], ["--nothing"]]
)
def test_wrong_calls_end_with_code_2(arguments: list[str], data: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(data), *arguments])
    assert end.value.code == 2


def test_any_value_survives_the_recipe_file() -> None:
    odd = ["a: b", "#ff0000", "- x", "{a}", "é\u2028", "'", "2_10", "yes", "*.tif", "1e3", " x "]
    choices = [
        Choice("dataset.split.leave_out", odd, "line\nend # and: more"),
        Choice("dataset.classes", [{"name": each, "colour": "#010203"} for each in odd], "classes", "other"),
        Choice("training.learning_rate", 0.002, "number"),
        Choice("tiles.size", 256, "#00ff00: a colour"),
        Choice("dataset.bands", None, "none"),
    ]
    assert parse(recipe_text(choices, "segmenter start x\ny"), "text") == nested(choices)


@pytest.mark.parametrize("failing", ["town.yaml", "town.html"])
def test_a_full_disk_leaves_neither_file(data: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    from segmenter.base import files

    whole = files.write_whole

    def write(path: Path, content: bytes) -> None:
        if path.name == failing:
            raise SegmenterError(f"{path}: cannot write it: No space left on device")
        whole(path, content)

    monkeypatch.setattr(files, "write_whole", write)
    with pytest.raises(SegmenterError):
        main([str(data)])
    assert not Path("town.yaml").exists()
    assert not Path("town.html").exists()


FOLDS = ("--folds", "2")


def test_folds_are_found_in_order_and_a_run_is_none(tmp_path: Path) -> None:
    for fold in (1, 2, 10):
        fold_path(tmp_path, fold).mkdir()
        (fold_path(tmp_path, fold) / "run.json").write_text("{}")
    (tmp_path / "other").mkdir()
    assert [path.name for path in folds_in(tmp_path)] == ["fold_1", "fold_2", "fold_10"]
    request = MapRequest(run=tmp_path, inputs=(str(tmp_path),), output=tmp_path / "maps")
    assert request.runs == tuple(folds_in(tmp_path))
    with pytest.raises(SegmenterError, match=r"fold_1"):
        fold_table(folds_in(tmp_path))
    (tmp_path / "run.json").write_text("{}")
    assert folds_in(tmp_path) == []


def test_without_folds_in_the_recipe_there_is_nothing_to_train(tmp_path: Path) -> None:
    done = train(made_recipe(tmp_path / "data"), "--folds", "--run", str(tmp_path / "run"), check=False)
    assert done.returncode == 2
    assert "dataset.split.folds" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_folds_train_resume_and_predict_together(tmp_path: Path) -> None:
    recipe, run = made_recipe(tmp_path / "data"), tmp_path / "run"
    first = train(recipe, *FOLDS, "--run", str(run), "--set", "training.epochs=1")
    runs = folds_in(run)
    assert [path.name for path in runs] == ["fold_1", "fold_2"]
    table = fold_table(runs)
    assert table in first.stdout
    before = [records(path) for path in runs]
    again = train(recipe, *FOLDS, "--run", str(run), "--set", "training.epochs=1", "--json")
    assert table in again.stderr
    assert [each["run"] for each in json.loads(again.stdout)["folds"]] == list(map(str, runs))
    assert [[r for r in records(path) if "loss" in r] for path in runs] == [
        [r for r in each if "loss" in r] for each in before
    ], "what is finished is not trained again"
    maps = tmp_path / "maps"
    images = str(tmp_path / "data" / "images")
    script("predict.py", str(run), images, "--output", str(maps))
    assert len(list(maps.glob("*.tif"))) == 5
    refused = script("predict.py", str(run), "--split", "validation", "--output", str(maps), check=False)
    assert refused.returncode == 2
    assert "folds" in refused.stderr
