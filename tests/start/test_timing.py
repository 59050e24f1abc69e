"""Time of a planned training: measured once a day for a machine and a net, and not for another machine."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from datasets.commands.start import NOT_MEASURED, main
from datasets.start.timing import STEPS_OF_HOURS, measure_step, seconds_a_step
from segmenter.base.bars import clock
from segmenter.config.recipe import Recipe
from tests.helpers.made_runs import recipe_of


def recipe(width: int = 2, **training: Any) -> Recipe:
    return recipe_of(tiles={"size": 16}, model={"depth": 1, "width": width}, training=training)


def test_a_measurement_holds_a_day_for_a_net_whatever_the_length(timed: list[float], cache: Path) -> None:
    for epochs in (3, 4):
        assert seconds_a_step(recipe(epochs=epochs, global_batch=4)) == 1.0
    assert len(timed) == 1
    seconds_a_step(recipe(4, global_batch=4))
    seconds_a_step(recipe(global_batch=8))
    assert len(timed) == 3
    for file in (cache / "steps").iterdir():
        os.utime(file, (time.time() - 25 * 3600,) * 2)
    seconds_a_step(recipe(global_batch=4))
    assert len(timed) == 4


@pytest.mark.parametrize("content", ["", "[]", "-1", "0"])
def test_a_damaged_measurement_is_made_again(content: str, timed: list[float], cache: Path) -> None:
    seconds_a_step(recipe())
    (file,) = (cache / "steps").iterdir()
    file.write_text(content)
    assert seconds_a_step(recipe()) == 1.0
    assert len(timed) == 2


def test_a_plan_ends_with_its_time_and_that_of_an_hour(data: Path, capsys: Any) -> None:
    assert main([str(data), "--output", "one.yaml"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert main([str(data), "--output", "hour.yaml", "--hours", "1"]) == 0
    by_hour = capsys.readouterr().out.splitlines()[-1]
    assert "1 s a step, measured" in last
    assert last in Path("one.html").read_text()
    # A plan for an hour takes what the first line promises an hour for.
    epochs, steps = (int(word) for word in last.partition("gives ")[2].split()[::3])
    assert by_hour.startswith(f"about {clock(epochs * steps / STEPS_OF_HOURS)} here")


@pytest.mark.slow
def test_another_machine_is_not_measured(data: Path, timed: list[float], capsys: Any) -> None:
    assert main([str(data), "--gpus", "2x11GB"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == NOT_MEASURED
    assert not timed


@pytest.mark.slow
def test_a_step_is_measured() -> None:
    assert 0 < measure_step(recipe(global_batch=4)) < 60
