"""`shares: auto`: measured on each device before the first step, kept in run.json for a resume."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from segmenter.base.errors import CheckpointError, ConfigError, TrainingError
from segmenter.config.recipe import Recipe
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices
from segmenter.extras.strategies.unequal_cards import TimingProbe, measure_tiles, share_out
from segmenter.runs.run import MeasuredShares, load_run
from tests.helpers import made_runs
from tests.helpers.made_training import made, train, weights
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run

pytestmark = pytest.mark.usefixtures("tensorflow")
NAMES = ("GPU:0", "GPU:1", "GPU:2")
FORM = (3, "uint8")


def recipe_of(shares: Any = "auto", **training: Any) -> Recipe:
    return made_runs.recipe_of(
        tiles={"size": 16},
        model={"depth": 1, "width": 2},
        training={"global_batch": 24, **training},
        distribution={"shares": shares},
    )


def devices_of(*models: str) -> Devices:
    used = tuple(Device(f"GPU:{i}", model, "", f"GPU:{i}") for i, model in enumerate(models))
    return Devices(None, used)


class Cards:
    """Stands for a probe: cards with a speed and a memory."""

    def __init__(self, seconds: dict[str, float], most: dict[str, int] | None = None) -> None:
        self._seconds, self._most = seconds, most or {}
        self.tried: list[tuple[str, int]] = []

    def seconds(self, device: str, tiles: int, unit: int = 1) -> tuple[int, float]:
        self.tried.append((device, tiles))
        return min(tiles, self._most.get(device, tiles)), self._seconds[device]


def test_a_larger_part_than_was_timed_is_tried_and_too_few_tiles_are_refused() -> None:
    cards = Cards({"a": 1.0, "b": 3.0})
    assert measure_tiles(cards, ("a", "b"), 24, 1)[0] == (18, 6)  # type: ignore[arg-type]
    assert cards.tried == [("a", 12), ("b", 12), ("a", 18)]
    cards = Cards({"a": 1.0, "b": 3.0}, {"a": 14})
    assert measure_tiles(cards, ("a", "b"), 24, 1)[0] == (14, 10)  # type: ignore[arg-type]
    cards = Cards({"a": 1.0, "b": 3.0}, {"b": 4})
    assert measure_tiles(cards, ("a", "b"), 24, 2)[0] == (20, 4)  # type: ignore[arg-type]

    cards = Cards({})
    with refused(ConfigError, where="distribution.shares: auto", got="1 tiles"):
        measure_tiles(cards, ("a", "b"), 1, 1)  # type: ignore[arg-type]
    assert cards.tried == []


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Cards]:
    """In the place of a probe."""
    from segmenter.extras.strategies import unequal_cards as shares

    def put(*seconds: float) -> Cards:
        made = Cards(dict(zip(NAMES, seconds, strict=False)))
        monkeypatch.setattr(shares, "TimingProbe", lambda *_: made)
        return made

    return put


def test_what_was_measured_and_chosen_is_said(
    cards: Callable[..., Cards], capsys: pytest.CaptureFixture[str]
) -> None:
    cards(0.01, 0.02, 0.02)
    devices = share_out(devices_of("fast", "slow", "slow"), recipe_of(), FORM, 3)
    assert devices.replica_tiles(24) == devices.shares == (12, 6, 6)
    assert "1.33 times as fast as equal parts" in capsys.readouterr().out
    cards(0.01, 0.0101, 0.0103)
    devices = share_out(devices_of("a", "a", "a"), recipe_of(), FORM, 3)
    assert devices.shares == ()  # and so the bits of equal parts
    assert "alike, 8 tiles of each step for every device\n" in capsys.readouterr().out


def test_a_resumed_run_has_the_shares_it_had_and_on_other_devices_new_ones(
    cards: Callable[..., Cards], capsys: pytest.CaptureFixture[str]
) -> None:
    known = MeasuredShares((16, 4, 4), ("fast", "slow", "slow"))
    asked = cards(0.01, 0.01, 0.03)
    devices = share_out(devices_of(*known.devices), recipe_of(), FORM, 3, known)
    assert devices.shares == known.tiles
    assert asked.tried == []
    assert "as this run has measured before" in capsys.readouterr().out
    devices = share_out(devices_of("fast", "fast", "slow"), recipe_of(), FORM, 3, known)
    assert devices.shares == (11, 10, 3)
    assert share_out(devices_of("fast"), recipe_of(), FORM, 3, known).shares == ()  # nothing to share


def test_given_shares_are_whole_tiles_of_each_micro_batch() -> None:
    devices = replace(devices_of("a", "b", "c"), shares=(3, 2, 1))
    assert share_out(devices, recipe_of([3, 2, 1]), FORM, 3).shares == (12, 8, 4)
    devices = replace(devices_of("a", "b"), shares=(3, 2))
    assert share_out(devices, recipe_of([3, 2], accumulate=4), FORM, 3).shares == (16, 8)


@pytest.mark.slow
def test_times_are_the_shortest_of_a_compiled_steps_for_each_tile() -> None:
    """By a clock that goes on by 1, 2, 3 … seconds from look to look."""
    looks: Iterator[int] = count(1)
    now = [0]

    def clock() -> float:
        now[0] += next(looks)
        return now[0]

    probe = TimingProbe(recipe_of(), *FORM, 3, now=clock)
    assert probe.seconds("CPU:0", 4) == (4, 2 / 4)  # of 2, 4 and 6 s the first


@pytest.mark.slow
def test_memory_that_is_full_halves_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def steps(self: TimingProbe, device: str, tiles: int) -> float:
        if tiles > 5:
            raise tf.errors.ResourceExhaustedError(None, None, "OOM")
        return 10.0

    monkeypatch.setattr(TimingProbe, "_steps", steps)
    probe = TimingProbe(recipe_of(), *FORM, 3)
    assert probe.seconds("GPU:0", 16) == (4, 2.5)
    with pytest.raises(TrainingError, match="on GPU:0"):
        probe.seconds("GPU:0", 24, 6)


def test_measured_shares_are_kept_in_run_json(tmp_path: Path) -> None:
    run = bare_run(tmp_path, recipe=recipe_of())
    assert "shares" not in (tmp_path / "run.json").read_text()
    shares = MeasuredShares((16, 4, 4), ("fast", "slow", "slow"))
    replace(run, shares=shares).save()
    assert load_run(tmp_path).shares == shares
    with refused(CheckpointError, fault="many tiles"):
        replace(run, shares=MeasuredShares((16,), ("fast", "slow"))).save()


@pytest.mark.slow
def test_a_run_measures_once(tmp_path: Path) -> None:
    recipe, run = made(tmp_path / "data"), tmp_path / "run"
    shared = ("--run", str(run), "--logical-devices", "2", "--set", "distribution.shares=auto")
    out = train(recipe, *shared).stdout
    assert out.count("shares: a tile takes ") == 1
    tiles = load_run(run).shares
    table = [line.split()[-2] for line in out.splitlines() if line.startswith("CPU:")]
    assert table == [str(count) for count in tiles.tiles]
    first = min(int(path.stem.removeprefix("step-")) for path in (run / "checkpoints").glob("*.npz"))
    before = weights(run)
    again = train(recipe, *shared, "--resume-from", str(first)).stdout
    assert "of each step, as this run has measured before" in again
    assert "computed otherwise" not in again
    assert all(np.array_equal(weights(run)[name], array) for name, array in before.items() if "/" in name)
