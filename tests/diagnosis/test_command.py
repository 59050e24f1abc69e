"""Commands `segmenter coverage` and `segmenter augmented`: what they write, and mistakes in one line."""

import json
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from datasets.commands import call as main
from datasets.synthetic.make import make_naic2020
from segmenter.base.errors import ConfigError, SegmenterError, run_script
from segmenter.evaluation import figures
from segmenter.runs.log import log_line
from tests.helpers.made_training import made
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe beside 41 made scenes, the validation ones among them; global batch 6."""
    folder = tmp_path_factory.mktemp("naic")
    make_naic2020(folder / "data", scenes=41, seed=3, size=64)
    data = {
        "name": "made",
        "dataset": {"kind": "naic2020", "root": str(folder / "data")},
        "tiles": {"size": 32},
        "model": {"depth": 2},
        "training": {"global_batch": 6},
    }
    file = folder / "recipe.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def coverage(*arguments: str | Path) -> int:
    """Exit code of the command in this process."""
    try:
        return run_script(lambda: main(["coverage", *map(str, arguments)]))
    except SystemExit as end:
        return int(end.code or 0)


def test_facts_come_as_text_json_and_report(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts, page = tmp_path / "out.json", tmp_path / "out.html"
    assert coverage(config, "--json", facts, "--report", page) == 0
    said = capsys.readouterr().out
    found = json.loads(facts.read_text())
    assert [p["batch"] for p in found["plans"]] == [6, 16, 32, 64, 128]
    assert [p["batch"] for p in found["forecast"]["batches"]] == [6, 16, 32, 64, 128]
    assert found["tiles"] == 4 * found["scenes"] > 100
    assert f"what limits: {found['limit']['why'][:20]}" in said
    assert said.count("written: ") == 2
    text = page.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert all(c["name"] in text for c in found["classes"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.html", "out.json"]


def test_batches_and_split_are_as_asked_for(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = tmp_path / "out.json"
    call = [config, "--batch", "40, 8,8", "--split", "validation", "--json", facts]
    assert coverage(*call, "--set", "dataset.validation_share=0.4") == 0
    found = json.loads(facts.read_text())
    assert [p["batch"] for p in found["plans"]] == [8, 40]
    assert found["split"] == "validation"
    assert ", validation: " in capsys.readouterr().out
    assert coverage(config, "--batch", "40", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["plans"][0]["batch"] == 40
    assert "an epoch of the plan" in err


def test_a_run_stands_beside_the_plan(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"step": 4, "epoch": 0, "steps": 4, "held_steps": [4] * 7 + [3], "short_steps": 1}
    line |= {"promised": [*range(8)], "best_effort": [], "tiles_drawn": 24}
    (tmp_path / "log.jsonl").write_text(log_line(line))
    assert coverage(config, "--batch", "8", "--run", tmp_path) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "4 steps, 1 short of a promised class" in out
    assert "75.00%" in out


def test_no_tensorflow_is_imported(config: Path) -> None:
    code = (
        "import sys\nfrom datasets.commands import call as main\n"
        "assert main(['coverage', sys.argv[1], '--batch', '8']) == 0\n"
        "print('loaded:', sorted({'tensorflow', 'keras', 'matplotlib', 'plotly'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(config)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "16,x"], "--batch: expected whole numbers"),
        (["--batch", "0,16"], "got '0,16'"),
        (["--json", "{tmp}/none/out.json"], "there is no folder"),
        (["--report", "{tmp}"], "expected the name of a file to write, it is a folder"),
        (["--run", "{tmp}"], "log.jsonl: expected the log of a run"),
        (["--split", "test"], "expected scenes of the split test, there are none"),
        (["--set", "sampling.min_pixels=0"], "sampling.min_pixels"),
        (["--set", "dataset.root={tmp}/none"], "none"),
    ],
)
def test_a_users_mistake_is_one_clear_line(
    config: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert coverage(config, *(argument.format(tmp=tmp_path) for argument in arguments)) == 2
    lines = capsys.readouterr().err.splitlines()
    (error,) = (line for line in lines if line.startswith("error: "))
    assert message in error
    assert list(tmp_path.iterdir()) == []


COLOURS = ("#ff0000", "#00ff00", "#0000ff")


@pytest.fixture
def recipe(tmp_path: Path) -> tuple[str, ...]:
    """Three classes, one of them scarce; what is overridden gives them colours."""
    names = ("left", "right", "scarce")
    classes = ", ".join(
        f"{{name: {name}, code: {code}, colour: '{colour}'}}"
        for code, (name, colour) in enumerate(zip(names, COLOURS, strict=True))
    )
    return str(made(tmp_path / "data")), "--set", f"dataset.classes=[{classes}]"


def call(recipe: tuple[str, ...], *arguments: str) -> int:
    return main(["augmented", *recipe, *arguments])


@pytest.mark.slow
def test_every_class_is_shown_with_the_label_that_belongs_to_it(
    recipe: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The made scenes are as bright as their class: each image panel must show what its label panel says."""
    seen: list[dict[str, np.ndarray]] = []
    draw = figures.panels_figure
    keep = lambda panels, *a: seen.append(panels) or draw(panels, *a)  # noqa: E731
    monkeypatch.setattr("segmenter.diagnosis.augmented.panels_figure", keep)
    mix = ("--set", "augmentation.mosaic=0.5", "--set", "augmentation.copy_paste.p=1")
    plain = ("--set", "augmentation.brightness=0", "--set", "augmentation.contrast=0")
    output = tmp_path / "a.png"
    assert call(recipe, *mix, *plain, "--tiles", "3", "--draws", "2", "--output", str(output)) == 0
    picture = cv2.imread(str(output))[..., ::-1]
    panels = list(seen[0].values())
    assert list(seen[0])[:4] == ["as it lies", "its label", "draw 1", "label of draw 1"]
    assert len(panels) == 2 * (1 + 2)
    for image, label in zip(panels[::2], panels[1::2], strict=True):
        assert image.shape == label.shape == ((3 * 32 + 2 * 4) * 8, 32 * 8, 3)
        shown = [image[(label == list(bytes.fromhex(c[1:]))).all(axis=2)] for c in COLOURS]
        levels = [np.median(pixels) for pixels in shown if pixels.size]
        assert len(levels) == 3 or image is not panels[0]
        assert np.all(np.diff(levels) > 0)
    colours = {tuple(int(v) for v in one) for one in picture.reshape(-1, 3)}
    assert {tuple(bytes.fromhex(colour[1:])) for colour in COLOURS} <= colours


def test_mistakes_are_one_line_and_leave_no_picture(recipe: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "a.png"
    for listed, said in (
        ("{name: RandomGama}", "did you mean RandomGamma"),
        ("{name: HueSaturationValue}, {name: CLAHE}, {name: RandomScale}", r"transforms.2 \(RandomScale\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            call(recipe, "--set", f"augmentation.transforms=[{listed}]", "--output", str(output))
    with refused(SegmenterError, where="none/a.png", fault="folder"):
        call(recipe, "--output", str(tmp_path / "none" / "a.png"))
    assert not output.exists()
