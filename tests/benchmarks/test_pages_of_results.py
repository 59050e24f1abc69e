"""Pages and the READMEs against the files of results: tables, and the figures that their text quotes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from studies import dubai_arms, dubai_arms_page
from studies.dubai_arms_page import mean_of, runs_of

ROOT = Path(__file__).resolve().parents[2]
ARMS = ROOT / dubai_arms.RESULTS
RESULTS_PAGE = ROOT / dubai_arms.PAGE


def text_of(page: str | Path) -> str:
    """Its words, whatever the ends of its lines."""
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


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
