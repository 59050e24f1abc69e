"""Pages and the READMEs against the files of results: tables, and the figures that their text quotes."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from segmenter.base.errors import SegmenterError
from studies import dubai_arms, dubai_arms_page, what_lifts, what_lifts_page
from studies.dubai_arms_page import mean_of, runs_of
from studies.what_lifts_page import Arm, Result, arms_of, gain, interval

ROOT = Path(__file__).resolve().parents[2]
ARMS, LIFTS = ROOT / dubai_arms.RESULTS, ROOT / "studies/results/what_lifts"
MINUS = "\N{MINUS SIGN}"
RESULTS_PAGE, LIFTS_PAGE = ROOT / dubai_arms.PAGE, ROOT / "studies/what_lifts.md"


def text_of(page: str | Path) -> str:
    """Its words, whatever the ends of its lines."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def assert_says(page: str | Path, sentences: Iterable[str]) -> None:
    text = text_of(page)
    assert [sentence for sentence in sentences if sentence not in text] == []


# ---------------------------------------------------------------------------------------- Dubai's arms


@pytest.fixture
def arms() -> dubai_arms_page.Runs:
    return runs_of(ARMS)


def of_both(arms: dubai_arms_page.Runs, arm: str) -> float:
    """mIoU, the mean of both tiles."""
    return sum(mean_of(arms[tile, arm]) for tile in dubai_arms.TILES) / len(dubai_arms.TILES)


def minutes(arms: dubai_arms_page.Runs, *names: str) -> list[float]:
    """Each seed's of both tiles, seed by seed."""
    of_tiles = [
        [run["processor_minutes"] for run in arms[tile, n]] for n in names for tile in dubai_arms.TILES
    ]
    return [each for seed in zip(*of_tiles, strict=True) for each in seed]


def test_the_arms_table_is_that_of_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "results.md"
    shutil.copy(RESULTS_PAGE, page)
    page.write_text(page.read_text(encoding="utf-8").replace("**58.9**", "**59.9**"), encoding="utf-8")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["dubai_arms", "--page", str(page)])
    assert dubai_arms.main() == 0
    assert page.read_text(encoding="utf-8") == RESULTS_PAGE.read_text(encoding="utf-8")


def test_every_arm_has_the_same_seeds_and_its_settings(arms: dubai_arms_page.Runs) -> None:
    assert set(arms) == {(tile, arm) for tile in dubai_arms.TILES for arm in dubai_arms.RECIPES}
    for (tile, arm), runs in arms.items():
        assert [run["seed"] for run in runs] == [0, 1]
        for run in runs:
            task = dubai_arms.Task(arm, tile, run["seed"])
            assert run["settings"] == dubai_arms._settings(task)
            assert run["mIoU"] == pytest.approx(sum(run["IoU"].values()) / len(run["IoU"]))


def test_the_pages_have_the_figures_of_the_arms(arms: dubai_arms_page.Runs) -> None:
    ours, scratch, smp = (f"{of_both(arms, arm):.1f}" for arm in ("pretrained", "scratch", "smp"))
    text = RESULTS_PAGE.read_text(encoding="utf-8").partition("<!-- end of table -->")[2]
    assert [figure for figure in (ours, scratch, smp) if figure not in text] == []
    per_tile = [f"{mean_of(arms[t, a]):.1f}" for a in ("scratch", "pretrained") for t in dubai_arms.TILES]
    rows = [line.split(" | ") for line in RESULTS_PAGE.read_text(encoding="utf-8").splitlines()]
    colour = [row[2] for row in rows if "colour only" in row]
    took = minutes(arms, "scratch", "pretrained")
    figures = [*per_tile, *colour, f"{min(took):.0f}", f"{max(took):.0f}"]
    for page in ("README.md", "README.zh-CN.md"):
        assert [figure for figure in figures if figure not in text_of(page)] == []
    recipe = text_of("configs/dubai_pretrained.yaml").replace("# ", "")
    expected = [f"{float(value) / 100:.2f}" for value in per_tile]
    assert f"mIoU {expected[2]} on tile 7 and {expected[3]} on tile 4" in recipe
    assert f"where configs/dubai.yaml has {expected[0]} and {expected[1]} (" in recipe


def test_no_results_of_arms_are_said(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["dubai_arms", "--page", "--results", str(tmp_path)])
    assert dubai_arms.main() == 2
    assert "expected results of runs, there are none" in capsys.readouterr().err
    with pytest.raises(SegmenterError, match="there are none"):
        runs_of(tmp_path)


# ------------------------------------------------------------------------------------------ what lifts


@pytest.fixture
def lifts() -> Arms:
    """Data → arm → seed → result."""
    found = what_lifts_page.results_of(LIFTS)
    return {name: arms_of(one for one in found if one["data"] == name) for name in ("naic", "dubai")}


def test_the_tables_of_what_lifts_are_those_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "what_lifts.md"
    shutil.copy(LIFTS_PAGE, page)
    page.write_text(
        page.read_text(encoding="utf-8").replace("+9.1 ± 5.9 |", "+9.9 ± 5.9 |"), encoding="utf-8"
    )
    what_lifts_page.write_page(LIFTS, page)
    assert page.read_text(encoding="utf-8") == LIFTS_PAGE.read_text(encoding="utf-8")


def test_the_plot_of_what_lifts_is_that_of_its_files(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    what_lifts_page.draw(what_lifts_page.results_of(LIFTS), plot)
    with Image.open(plot) as drawn, Image.open(LIFTS_PAGE.with_suffix(".png")) as there:
        if drawn.info["Software"] != there.info["Software"]:
            pytest.skip(f"another version drew the page's plot: {there.info['Software']}")
        assert np.array_equal(drawn, there)


def test_every_run_of_what_lifts_is_there_with_its_settings(lifts: Arms) -> None:
    tasks = what_lifts.tasks_of(["naic", "dubai"], [0, 1, 2], None, "tile_7")
    assert all(what_lifts.finished(LIFTS, task) for task in tasks)
    assert sum(len(seeds) for arms in lifts.values() for seeds in arms.values()) == len(tasks)


PLAIN, ADJUSTED = "cross_entropy", ("plan", "logit_adjusted")
Arms = Mapping[str, Mapping[Arm, Mapping[int, Result]]]


def gained(lifts: Arms, data: str, sampling: str, loss: str, score: str = "mIoU") -> tuple[float, float]:
    """Over the baseline, in percent, and half its interval."""
    mean, half = gain(lifts[data][sampling, loss], lifts[data][what_lifts_page.BASELINE], score)
    return 100 * mean, 100 * half


def said(lifts: Arms, *which: str, sign: str = "", digits: int = 1) -> str:
    mean, half = gained(lifts, *which)
    return f"{mean:{sign}.{digits}f} ± {half:.{digits}f}".replace("-", MINUS)


def steps(lifts: Arms, data: str, kind: str) -> str:
    runs = lifts[data][what_lifts_page.BASELINE].values()
    return f"{100 * sum(run[kind] for run in runs) / len(runs):.0f} of 100 steps"


def mean_mious(lifts: Arms, data: str) -> dict[Arm, float]:
    return {
        arm: interval([100 * one["mIoU"] for one in runs.values()])[0] for arm, runs in lifts[data].items()
    }


def test_what_is_called_best_lowest_or_unclear_is_so_in_the_files(lifts: Arms) -> None:
    naic, dubai = mean_mious(lifts, "naic"), mean_mious(lifts, "dubai")
    best = f"{max(naic.values()):.1f}"
    assert best == f"{naic['plan', 'weighted']:.1f}" == f"{naic['foreground', PLAIN]:.1f}"
    assert max(dubai, key=dubai.__getitem__) == ("rare_class", PLAIN)
    samplings = {name: gained(lifts, "naic", name, PLAIN, "rare_IoU")[0] for name in what_lifts.SAMPLINGS}
    assert min(samplings, key=samplings.__getitem__) == "rare_class"
    for unclear in (
        *(("naic", "plan", "weighted"), ("naic", "foreground", PLAIN), ("dubai", "foreground", PLAIN)),
        *(("naic", "rare_class", PLAIN, "rare_IoU"), ("naic", "repeat_factor", PLAIN)),
        ("dubai", "repeat_factor", PLAIN),
    ):
        mean, half = gained(lifts, *unclear)
        assert abs(mean) < half
    assert not any(gained(lifts, data, "plan", "ohem")[0] > 0 for data in lifts)
    assert len(naic) - 1 == len(dubai) - 1 == 10
    assert_says(LIFTS_PAGE, ["There are ten such comparisons for each score", f"{best}, as the best there"])


def test_the_recommendation_quotes_the_files(lifts: Arms) -> None:
    loses = said(lifts, "naic", "shuffle", "ohem").removeprefix(MINUS)
    most = [gained(lifts, *each)[0] for each in (("dubai", *ADJUSTED), ("naic", *ADJUSTED))]
    assert_says(
        LIFTS_PAGE,
        [
            f"On Dubai it gains {said(lifts, 'dubai', 'plan', 'weighted')} points of mIoU and "
            f"{said(lifts, 'dubai', 'plan', 'weighted', 'rare_IoU', digits=0)} of vegetation over",
            f"no difference is shown ({said(lifts, 'naic', 'plan', 'weighted', sign='+')};",
            f"with the shuffle they gain as much ({said(lifts, 'dubai', 'shuffle', 'weighted')})",
            f"every class is in {steps(lifts, 'dubai', 'complete_steps')} of a shuffle",
            f"where water is in {steps(lifts, 'naic', 'steps_with_rare')}, "
            f"the plan alone gains {said(lifts, 'naic', 'plan', PLAIN, 'rare_IoU')} points of water",
            f"gains the most on Dubai ({said(lifts, 'dubai', 'rare_class', PLAIN)}) and has the lowest",
            f"(water {said(lifts, 'naic', 'rare_class', PLAIN, 'rare_IoU')})",
            f"best of the look-alikes and {said(lifts, 'dubai', 'foreground', PLAIN, sign='+')} on Dubai",
            f"gains {most[0]:.0f} points on Dubai and loses {-most[1]:.0f} on the look-alikes, "
            f"and there {-gained(lifts, 'naic', *ADJUSTED, 'rare_IoU')[0]:.0f} of its rarest class",
            f"repeat factors ({said(lifts, 'naic', 'repeat_factor', PLAIN)}, "
            f"{said(lifts, 'dubai', 'repeat_factor', PLAIN, sign='+')})",
            f"(OHEM), which loses {loses} on the look-alikes",
        ],
    )
