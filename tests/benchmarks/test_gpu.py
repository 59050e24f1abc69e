"""The command for GPU servers: its questions, bounds, verdicts and what it keeps; no speed means anything."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from datasets.commands.gpu import bench as bench_
from datasets.commands.gpu import command, figures, page, questions, repeat, step
from datasets.commands.gpu.bench import Bench
from datasets.commands.gpu.figures import Figure, QuestionAnswer
from datasets.commands.gpu.questions import QUESTIONS, Question
from segmenter.base.errors import DeviceError, OutputError
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.devices.strategy import Devices
from segmenter.runs.checkpoints import save_checkpoint
from segmenter.training.timing import made_stack, step_parts
from tests.helpers.laboratory import strategy_of
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[2]
GOOD = Figure("weights, 2 replicas", 1e-14, "", "≤ 1e-10", True, law=True)
BROKEN = Figure("weights, 4 replicas", 1e-3, "", "≤ 1e-10", False, law=True)
SLOW = Figure("fed over needed", 0.7, "×", "≥ 1.2", False)
GAP = Figure("memory of a step", None, note="it needs a GPU")
ANSWERS = "tests.helpers.gpu_answers"
ASKED = (
    Question("repeat", "Does it answer?", "Same bits", ANSWERS, 60, options={"how": "good"}),
    Question("step", "Does it hang?", "Speed", ANSWERS, 30, options={"how": "hangs"}),
    Question("train", "Does it fail?", "Training", ANSWERS, 60, options={"how": "fails"}),
    Question("map", "And the next?", "Maps", ANSWERS, 60, options={"how": "good"}),
    Question("cards", "On a card?", "Several cards", ANSWERS, 60, "all", {"how": "good"}, on_card=True),
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions of the test's in place of those of the command."""
    monkeypatch.setattr(questions, "QUESTIONS", ASKED)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def content(folder: Path) -> dict[str, Any]:
    """What is kept."""
    return json.loads((folder / figures.JSON).read_text())


def verdicts(folder: Path) -> dict[str, str]:
    return {each["question"]: each["verdict"] for each in content(folder)["answers"]}


@pytest.mark.slow
def test_one_that_hangs_and_one_that_fails_end_alone(
    asked: None, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--tiny", "--output", str(tmp_path), "--minutes", "2"]) == 3
    assert verdicts(tmp_path) == {
        "repeat": "shown", "step": "not shown", "train": "not shown", "map": "shown", "cards": "not shown",
    }  # fmt: skip
    kept = {each["question"]: each for each in content(tmp_path)["answers"]}
    assert [each["name"] for each in kept["step"]["figures"]] == ["before", "child"], "what it said stays"
    assert "out of everything" in kept["train"]["fault"]
    ended(int(kept["step"]["figures"][1]["value"]))
    said = capfd.readouterr()
    assert all(name in said.err for name in ("step (", "train (", "cards ("))
    assert "does not hold" not in said.err
    html = (tmp_path / page.PAGE).read_text()
    assert html.count("<caption>") == 4, "one that was not asked has no table"
    assert len(html) < 100_000, "without charts it needs no code that draws them"


def ended(process: int) -> None:
    """Assert that a process ends; one that is dead and not waited for has."""
    for _ in range(600):  # the kernel takes it away when it comes to it
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return
        except FileNotFoundError:
            return
        time.sleep(0.1)
    raise AssertionError("it lives")


@pytest.mark.slow
def test_a_killed_command_goes_on_with_the_next_question(asked: None, tmp_path: Path) -> None:
    """What was being asked is asked again, after all that never was; what is answered is not."""
    call = [
        sys.executable, "-c",
        "import sys; from tests.benchmarks import test_gpu as t; t.questions.QUESTIONS = t.ASKED[:4];"
        "sys.exit(t.command.main(sys.argv[1:]))",
        "--tiny", "--output", str(tmp_path), "--minutes", "60",
    ]  # fmt: skip
    process = subprocess.Popen(call, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    while not any(each["name"] == "child" for each in _figures_of(tmp_path, "step")):
        assert process.poll() is None
        time.sleep(0.1)
    process.kill()
    process.wait()
    child = int(_figures_of(tmp_path, "step")[1]["value"])
    ended(child)
    assert verdicts(tmp_path) == {"repeat": "shown", "step": "not shown"}
    asked_now: list[str] = []
    real = questions.answer

    def answer(question: Question, *more: Any) -> QuestionAnswer:
        asked_now.append(question.name)
        return real(question, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(questions, "answer", answer)
        assert command.main(["--tiny", "--output", str(tmp_path), "--minutes", "2"]) == 3
    assert asked_now == ["train", "map", "cards", "step"]


def _figures_of(folder: Path, name: str) -> list[dict[str, Any]]:
    if not (folder / figures.JSON).exists():
        return []
    return [f for each in content(folder)["answers"] if each["question"] == name for f in each["figures"]]


def test_out_of_time_the_rest_is_named(
    asked: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--tiny", "--output", str(tmp_path), "--minutes", "0.05"]) == 3
    assert set(verdicts(tmp_path).values()) == {"not shown"}
    error = capsys.readouterr().err
    assert all(f"{question.name} (no time was left)" in error for question in ASKED[:-1])
    assert "cards (it needs a GPU)" in error
    (tmp_path / figures.JSON).write_text("{")
    with refused(OutputError, where=tmp_path / figures.JSON):
        command.main(["--tiny", "--output", str(tmp_path)])


def test_answers_of_another_machine_are_not_mixed_with_these(asked: None, tmp_path: Path) -> None:
    call = ["--tiny", "--output", str(tmp_path), "--minutes", "0.05"]
    command.main(call)
    with refused(OutputError, where=tmp_path / figures.JSON, got="2 logical CPU devices"):
        command.main([*call, "--logical-devices", "1"])


def test_the_exit_code_is_that_of_the_laws(
    asked: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """1 before 3; only what was asked for counts; JSON stands alone on stdout."""
    said = {"repeat": [GOOD, SLOW], "step": [BROKEN], "train": [GOOD, GAP]}

    def answer(question: Question, *_: Any) -> QuestionAnswer:
        return QuestionAnswer(question.name, 1, figures=said[question.name])

    monkeypatch.setattr(questions, "answer", answer)
    call = ["--tiny", "--output", str(tmp_path), "--json", "--only"]
    for names, code in ((["repeat"], 0), (["repeat", "train"], 3), (["train", "step"], 1), (["repeat"], 0)):
        assert command.main([*call, *names]) == code
        printed = json.loads(capfd.readouterr().out)
        assert printed["exit"] == code
    assert len(printed["broken"]) == len(printed["not_shown"]) == 1
    assert list(printed["verdict"]) == list(questions.PARTS)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        ([GOOD, SLOW], "shown"),
        ([GOOD, BROKEN], "does not hold"),
        ([GAP, BROKEN], "does not hold"),
        ([GOOD, GAP], "not shown"),
        ([replace(BROKEN, law=False)], "shown"),
    ],
)
def test_only_a_law_breaks_a_law(found: list[Figure], verdict: str) -> None:
    assert QuestionAnswer("a", figures=found).verdict == verdict
    assert QuestionAnswer("a", fault="late", figures=found).verdict in (verdict, "not shown")


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tensorflow: ModuleType) -> None:
    monkeypatch.setattr(tensorflow.config, "list_physical_devices", lambda *_: [])
    monkeypatch.setattr(command, "overlooked_gpus", lambda: "")
    for listed, why in ((0, "this machine has none"), (2, "CUDA_VISIBLE_DEVICES hides them all")):
        monkeypatch.setattr(command, "cards_listed", lambda listed=listed: listed)
        with pytest.raises(DeviceError, match=why):
            command.main([])


@pytest.mark.parametrize("cards", [1, 2, 4])
def test_bounds_keep_to_the_minutes(cards: int) -> None:
    """However the questions end, all together take no more; each has time unless those before took it."""
    asked = questions.questions_for((), cards)
    assert ("cards" in [each.name for each in asked]) is (cards > 1)
    assert ("repeat-parts" in [each.name for each in asked]) is (cards == 1)
    for taken in (0.1, 0.8, 1.0):
        left = 600.0
        for number, question in enumerate(asked):
            limit = questions.limit_of(question, asked[number + 1 :], 10, left)
            assert limit <= left
            left -= taken * limit
        assert left >= 0
    assert questions.limit_of(asked[1], asked[2:], 10, 600) >= asked[1].seconds


def runs(folder: Path, *of: Mapping[int, NDArray[Any]]) -> list[Path]:
    """Runs with checkpoints of one array after some steps."""
    made = []
    for number, checkpoints in enumerate(of):
        made.append(folder / str(number))
        for step_, array in checkpoints.items():
            save_checkpoint(made[-1], step_, {"model/w": array, "step": np.array(step_)}, 99)
    return made


def test_the_first_step_that_differs_and_how_far(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    arrays = {each: rng.normal(size=7).astype(np.float32) for each in (1, 2, 3)}
    other = dict(arrays)
    other[2] = arrays[2].copy()
    other[2][4] += np.float32(0.01) * np.abs(arrays[2]).max()
    one, same, apart, short = runs(tmp_path, arrays, arrays, other, {1: arrays[1]})
    assert repeat.compare_runs(one, same).step is None
    found = repeat.compare_runs(one, apart)
    assert (found.step, found.arrays, found.where) == (2, 1, "model/w")
    assert found.largest == pytest.approx(0.01, rel=0.05)
    assert repeat.compare_runs(one, short).step == 2


def test_a_zero_with_another_sign_and_nan_differ(tmp_path: Path) -> None:
    zeros = np.zeros(3, np.float32)
    one, negative, nan = runs(tmp_path, {1: zeros}, {1: -zeros}, {1: zeros * np.nan})
    assert repeat.compare_runs(one, negative).step == 1
    assert repeat.compare_runs(one, nan).step == 1
    assert repeat.compare_runs(nan, nan).step is None


def test_enlarged_scenes_are_the_same_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And as their dataset publishes them: the near infrared is no alpha, and none covers another."""
    monkeypatch.setitem(bench_.SIZES, "tiny", replace(bench_.SIZES["tiny"], scenes=2))
    bench, spans = Bench("logical", 1, "tiny", tmp_path), set[tuple[float, float]]()
    small, large = bench.scenes(), bench.scenes(3)
    for path in sorted(small.rglob("*.tif")):
        with rasterio.open(path) as one, rasterio.open(large / path.relative_to(small)) as many:
            assert np.array_equal(np.tile(one.read(), (1, 3, 3)), many.read())
            for fact in ("colorinterp", "descriptions", "crs", "res"):
                assert getattr(many, fact) == getattr(one, fact)
            spans.add((many.bounds.left, many.bounds.right))
    (_, end), (start, _) = sorted(spans)
    assert end <= start


@pytest.mark.slow
@pytest.mark.parametrize("name", ["machine", "sums", "map", "window", "law-2"])
def test_a_question_finds_all_its_figures(
    tensorflow: ModuleType, four_replicas: list[str], tmp_path: Path, name: str
) -> None:
    (question,) = (each for each in QUESTIONS if each.name == name)
    planned(tmp_path)
    bench = Bench("logical", 4, "tiny", tmp_path, several=question.devices != "one")
    module = questions.import_module(question.where, questions.__package__)
    found = list(module.figures(bench, **question.options))
    assert found
    assert [figure.name for figure in found if figure.value is None or figure.holds is False] == []


def planned(folder: Path) -> None:
    """A recipe in place of what `segmenter start` writes, and nothing of its scenes."""
    (folder / "scenes1").mkdir()
    recipe = {
        "dataset": {"kind": "potsdam", "root": str(folder / "scenes1")},
        "training": {"global_batch": 4},
        "loss": {"dice": 1.0},
    }
    (folder / "start.yaml").write_text(json.dumps(recipe))


@pytest.mark.slow
def test_the_command_on_a_processor(tmp_path: Path) -> None:
    """All is shown but what needs a GPU."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "OMP_"))}
    call = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--logical-devices", "2"]
    call += ["--minutes", "30", "--output", str(tmp_path)]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stdout + done.stderr
    known = content(tmp_path)
    assert known["broken"] == []
    assert known["not_shown"]
    assert [gap for gap in known["not_shown"] if "needs a GPU" not in gap] == []
    shown = {name for name, verdict in verdicts(tmp_path).items() if verdict == "shown"}
    assert shown >= {"repeat", "chance", "start", "train", "map", "window", "cards", "law-2", "repeat-cards"}


@pytest.mark.slow
def test_the_rate_counts_the_images_of_all_devices(
    tensorflow: ModuleType, four_replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter(range(100))
    monkeypatch.setattr(step.time, "perf_counter", lambda: next(ticks))
    devices = Devices(strategy_of(2), tuple(SimpleNamespace(name=f"CPU:{i}") for i in range(2)))  # type: ignore[arg-type]
    training = TrainingConfig(global_batch=6, steps_per_call=3)
    parts = step_parts(devices, UNetConfig(depth=1, width=2), LossConfig(), training)
    assert step.time_step(parts, made_stack(devices, 3, 6, 16), 5)[0] == pytest.approx(3 * 6)
