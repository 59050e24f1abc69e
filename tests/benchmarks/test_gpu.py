"""The command for GPU servers: its sections run, limits and verdicts hold; no figure means anything."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.commands.gpu import (
    command,
    equivalence,
    facts,
    feed,
    figures,
    memory,
    resume,
    sections,
    step,
)
from datasets.commands.gpu.bench import TINY, Bench, Sizes, strategy_of
from datasets.commands.gpu.figures import Figure, Section
from datasets.commands.recipes import ready_made
from segmenter.base.errors import DeviceError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import LossConfig, TrainingConfig
from segmenter.devices.strategy import Devices

ROOT = Path(__file__).parents[2]
GOOD = Figure("weights, 2 replicas", 1e-14, "", "≤ 1e-10", True, law=True)
BROKEN = Figure("weights, 4 replicas", 1e-3, "", "≤ 1e-10", False, law=True)
SLOW = Figure("speed-up", 2.1, "×", "≥ 3.4", False)


@pytest.mark.parametrize("name", ["facts", "collectives", "input", "prediction"])
def test_a_section_finds_something(tensorflow: ModuleType, tmp_path: Path, name: str) -> None:
    known: dict[str, Any] = {step.RATE.format(step.Case("mixed_float16", 2).name): 100.0}
    found = list(sections.figures_of(name, Bench("logical", 4, TINY, tmp_path, known)))
    assert found
    assert [figure.name for figure in found if figure.value is None] == []


@pytest.mark.slow
def test_the_command_runs_every_section(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("TF_", "OMP_"))}
    call = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--output", str(tmp_path / "out")]
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads((tmp_path / "out" / figures.JSON).read_text())["sections"]
    assert [line["section"] for line in lines] == list(sections.SECTIONS)
    assert {line["section"] for line in lines if line["verdict"] == "yes"} >= {"equivalence", "resume"}
    assert [line["fault"] for line in lines if "fault" in line] == []
    text = (tmp_path / "out" / figures.PAGE).read_text()
    assert "4 logical CPU devices against one, float64" in text
    rates = [f for line in lines for f in line["figures"] if f["name"].startswith("images/s")]
    assert [figure["note"] for figure in rates if figure["value"] is None] == []


def test_a_replica_that_computes_something_else_is_seen(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bench = Bench("logical", 4, TINY, tmp_path)

    class Laboratory:
        """One that finds such differences."""

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def roundings(self, *_: Any) -> dict[str, float]:
            return dict.fromkeys(equivalence.KINDS, 1e-6)

        def differences(self, *_: Any, **__: Any) -> dict[str, float]:
            return dict.fromkeys(equivalence.KINDS, 1e-14) | {"weights": float("nan")}

        def unequal_copies(self) -> int:
            return 1

    monkeypatch.setattr(equivalence, "Laboratory", Laboratory)
    found = list(equivalence.figures(bench))
    assert found
    assert {figure.holds for figure in found} == {False}
    assert Section("equivalence", 1, figures=found).fails


@pytest.mark.parametrize(
    ("section", "verdict", "fails"),
    [
        (Section("a", 1, figures=[GOOD]), "yes", False),
        (Section("a", 1, figures=[GOOD, SLOW]), "no", False),
        (Section("a", 1, figures=[GOOD, BROKEN]), "no", True),
        (Section("a", 1, figures=[Figure("rate", 3.0)]), "measured", False),
        (Section("a", 1, figures=[GOOD], fault="late", cut_off=True), "cut off", False),
        (Section("a", 1, figures=[GOOD], fault="late", cut_off=True, is_law=True), "cut off", False),
        (Section("a", 1, figures=[BROKEN], fault="late", cut_off=True), "no", True),
        (Section("a", 1, figures=[GOOD], fault="died"), "failed", True),
    ],
)
def test_only_a_law_or_a_failure_fails_the_command(section: Section, verdict: str, fails: bool) -> None:
    assert (section.verdict, section.fails) == (verdict, fails)


def test_the_exit_code_is_that_of_the_laws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = []

    def run(task: sections.Task, known: Mapping[str, Any]) -> Any:
        written.append(len(json.loads((tmp_path / "gpu.json").read_text())["sections"]) if known else 0)
        late = task.name == "resume"
        figures = [BROKEN if task.name == "equivalence" else SLOW]
        return Section(task.name, 1, figures=figures, cut_off=late, fault="late" * late, is_law=late)

    monkeypatch.setattr(sections, "run_here", run)
    call = ["--tiny", "--output", str(tmp_path), "--only"]
    assert command.main([*call, "facts", "step"]) == 0
    assert command.main([*call, "facts", "equivalence"]) == 1
    assert written == [0, 1] * 2, "written after each section"
    assert "run: equivalence" in capsys.readouterr().err
    assert "| weights, 4 replicas | 0.001 | ≤ 1e-10 | no (law) |  |" in (tmp_path / figures.PAGE).read_text()
    assert command.main([*call, "resume"]) == 3


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch, tensorflow: ModuleType) -> None:
    monkeypatch.setattr(tensorflow.config, "list_physical_devices", lambda *_: [])
    monkeypatch.setattr(command, "overlooked_gpus", lambda: "")
    for listed, why in ((0, "this machine has none"), (2, "CUDA_VISIBLE_DEVICES hides them all")):
        monkeypatch.setattr(command, "cards_listed", lambda listed=listed: listed)
        with pytest.raises(DeviceError, match=why):
            command.main([])


SAYS = """
import subprocess, sys, time
from datasets.commands.gpu.figures import Figure, line_of
def say(figure): print(line_of(figure), flush=True)
name = sys.argv[1]
print("a line of a library's")
say(Figure(f"first of {name}", 1.0))
if name == "memory":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    say(Figure("child", float(child.pid)))
    time.sleep(600)
if name == "step":
    sys.exit("out of everything")
"""


def alive(process: int) -> bool:
    """Whether it runs; one that is dead and not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("name", "verdict", "fault"),
    [
        ("facts", "measured", ""),
        ("memory", "cut off", "not done within 8 s"),
        ("step", "failed", "its process ended with exit code 1: out of everything"),
    ],
)
def test_a_section_is_ended_at_its_limit_with_its_children(
    monkeypatch: pytest.MonkeyPatch, name: str, verdict: str, fault: str
) -> None:
    """Figures found until then stay, also of a section that ends its process."""
    monkeypatch.setattr(sections, "command", lambda task, *_: [sys.executable, "-c", SAYS, task.name])
    section = sections.run(sections.Task(name, "logical", 4, 8.0 if name == "memory" else 120.0), {})
    assert (section.verdict, section.fault) == (verdict, fault)
    figures = {figure.name: figure.value for figure in section.figures}
    assert figures[f"first of {name}"] == 1
    child = int(figures.get("child", 0))
    for _ in range(600):  # the kernel takes it away when it comes to it
        if not child or not alive(child):
            break
        time.sleep(0.1)
    assert not child or not alive(child)


@pytest.mark.parametrize(("cards", "expected"), [(1, ["parts"]), (2, ["cards", "parts"]), (4, ["cards"])])
def test_laws_are_shown_on_cards_or_on_parts_of_one(cards: int, expected: list[str]) -> None:
    assert command.places("equivalence", cards) == expected
    assert command.places("step", cards) == ["cards"]
    limits = {task.name: task.limit for task in command.tasks(list(sections.SECTIONS), cards, 10)}
    assert limits["equivalence"] == limits["resume"] == 600, "laws take what they need"
    assert sum(limit for name, limit in limits.items() if not sections.SECTIONS[name].is_law) < 600


@pytest.mark.parametrize(("draws_off", "holds"), [(0, True), (1, True), (2, False)])
def test_one_draw_in_which_a_rounding_turns_a_unit_on_breaks_no_law(draws_off: int, holds: bool) -> None:
    def differences(name: str, replicas: int, *, rounded: int) -> dict[str, float]:
        return dict.fromkeys(equivalence.KINDS, 5e-3 if rounded <= draws_off else 2e-7)

    found = equivalence._median(SimpleNamespace(differences=differences), "row", 4, equivalence.DRAWS)  # type: ignore[arg-type]
    allowed = equivalence._allowed(dict.fromkeys(equivalence.KINDS, 2e-7))
    assert all(found[kind] <= allowed[kind] for kind in equivalence.KINDS) is holds


@pytest.mark.parametrize(("place", "cards"), [("cards", 1), ("cards", 4), ("parts", 1), ("logical", 4)])
def test_the_recipe_takes_the_settings_of_resume(
    place: Any, cards: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.commands.gpu.bench.smallest_card", lambda: 11 * 2**30)
    words = resume._settings(Bench(place, cards, Sizes(), tmp_path))
    overrides = [value for option, value in itertools.pairwise(words) if option == "--set"]
    recipe = load_recipe(ready_made()["potsdam_small"], overrides)
    assert recipe.distribution.deterministic is (place != "logical")
    replicas = len(recipe.distribution.devices or (0,))
    assert replicas == (1 if (place, cards) == ("cards", 1) else 4)
    assert recipe.training.global_batch % replicas == 0


@pytest.mark.parametrize(
    ("capability", "holds"),
    [((7, 5), True), ((6, 1), False), ((9, 0), True)],
)
def test_code_for_a_card(capability: tuple[int, int], holds: bool) -> None:
    assert facts.has_code(capability, ["sm_70", "sm_80", "compute_90"]) is holds


def test_the_formula_against_two_peaks() -> None:
    """312 MiB an image by the formula, 400 and 200 measured."""
    mib = 2**20
    figures = list(memory.compared("float32", (8, 16), [5000 * mib, 8200 * mib], 312 * mib))
    assert [figure.value for figure in figures] == [400, 0.78, 8200 / 1024]
    assert figures[1].holds
    assert not any(figure.law for figure in figures)
    (_, ratio, _) = memory.compared("float32", (8, 16), [5000 * mib, 6600 * mib], 312 * mib)
    assert ratio.holds is False


@pytest.mark.parametrize("rates", [(50.0, 400.0), (400.0, 50.0), (50.0, 60.0)])
def test_the_input_is_judged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rates: tuple[float, float]
) -> None:
    """By the best of files and copies; what files alone are short of is no verdict."""
    left = iter(rates)
    monkeypatch.setattr(feed, "loader", lambda *_: (None, SimpleNamespace(rows_SB=np.zeros((1, 2)))))
    monkeypatch.setattr(feed, "tiles_per_second", lambda *_: (next(left), 0.001))
    monkeypatch.setattr(feed, "by_workers", lambda *_: 1.0)
    known: dict[str, Any] = {step.RATE.format(step.Case("mixed_float16", 2).name): 100.0}
    found = list(feed.figures(Bench("logical", 4, TINY, tmp_path, known)))
    (verdict,) = (figure for figure in found if figure.holds is not None)
    assert verdict.holds is (max(rates) >= 150)


@pytest.mark.slow
def test_the_rate_counts_the_images_of_all_devices(
    tensorflow: ModuleType, four_replicas: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = iter([0.0, 5.0])
    monkeypatch.setattr(step.time, "perf_counter", lambda: next(ticks))
    devices = Devices(strategy_of(2), tuple(SimpleNamespace(name=f"CPU:{i}") for i in range(2)))  # type: ignore[arg-type]
    training = TrainingConfig(global_batch=6, steps_per_call=3, precision="mixed_float16")
    assert step.rate_of(devices, TINY.model, LossConfig(), training, 16, 5) == pytest.approx(3 * 6)
