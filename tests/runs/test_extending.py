"""Extending a run: allowed exactly where the steps that are done would have had the same learning rates."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.runs.resume import (
    Position,
    check_extension,
    check_rates,
    checkpoint_to_resume,
    extends,
    with_extension,
)
from segmenter.runs.run import Extension, load_run
from tests.helpers.made_checkpoints import RECIPE, save
from tests.helpers.trained_run import bare_run

STEPS = 37
"""Of an epoch."""
SCHEDULES: dict[str, dict[str, Any]] = {
    "poly": {},
    "cosine": {},
    "constant": {},
    "exponential": {"decay_steps": 29},
    "piecewise": {"boundaries": [50, 90], "values": [1.0, 0.3, 0.1]},
}


def recipe_of(epochs: int, **training: Any) -> Recipe:
    data = RECIPE.model_dump(mode="json")
    return recipe_from({**data, "training": {**data["training"], "epochs": epochs, **training}}, "test")


def refused(known: Recipe, now: Recipe, position: Position) -> bool:
    try:
        check_extension(Path("runs/a"), known, now, position)
        check_rates(Path("runs/a"), known.training, now.training, position.done, STEPS)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 4, 13, 100], ids=lambda steps: f"warm-up {steps}")
def test_it_is_refused_exactly_where_a_rate_of_the_past_would_be_another(
    tensorflow: ModuleType, schedule: str, warmup: int
) -> None:
    from segmenter.training.optimiser.schedules import Schedule

    setting = {"schedule": schedule, "warmup": warmup, **SCHEDULES[schedule]}
    known, seen = recipe_of(2, **setting), set()

    def rates_of(recipe: Recipe) -> Any:
        schedule = Schedule(recipe.training, recipe.training.epochs * STEPS)
        return np.asarray(schedule(tensorflow.range(2 * STEPS))).tolist()

    past = rates_of(known)
    for epochs in (3, 31):
        now = recipe_of(epochs, **setting)
        rates = rates_of(now)
        for done in (1, 3, 4, 5, 6, 7, 8, 9, 13, STEPS, 2 * STEPS - 1, 2 * STEPS):
            expected = past[:done] != rates[:done]
            position = Position(done, done // STEPS, done % STEPS)
            assert refused(known, now, position) == expected, (epochs, done)
            seen.add(expected)
    if schedule in ("poly", "cosine"):  # until the warm-up is done nothing has fallen
        assert seen == ({True, False} if warmup <= 7 else {True})
    else:
        assert seen == {warmup > 7}


def test_a_warm_up_that_was_cut_is_kept_by_saying_its_length() -> None:
    known, position = recipe_of(2, schedule="constant", warmup=100), Position(2 * STEPS, 2, 0)
    now = recipe_of(9, schedule="constant", warmup=100)
    with pytest.raises(
        ConfigError,
        match=r"^runs/a: training.epochs: 2 → 9: the warm-up was 7 steps of 74, and would be 33 of 333: keep "
        r"it with --set training.warmup=7$",
    ):
        check_rates(Path("runs/a"), known.training, now.training, position.done, STEPS)
    falling = (recipe_of(n, schedule="poly", warmup=100).training for n in (2, 9))
    with pytest.raises(ConfigError, match="poly falls to 0"):  # which no warm-up mends
        check_rates(Path("runs/a"), *falling, 2 * STEPS, STEPS)
    assert not refused(known, recipe_of(9, schedule="constant", warmup=7), position)


@pytest.mark.parametrize(
    ("now", "position", "said"),
    [
        ({"epochs": 1}, Position(50, 1, 13), "expected at least 2, since 2 of its epochs are done or begun"),
        ({"epochs": 1}, Position(37, 1, 0), "expected at least 2, since 1 of its epochs are done or begun"),
        (
            {"epochs": 5, "stop_after": 2},
            Position(74, 2, 0, 0.5, 2),
            "the run ended early, after 2 validations without a gain: to go on, set training.stop_after to "
            "more than 2, or to 0, as well",
        ),
        (
            {"epochs": 5, "schedule": "cosine", "warmup": 4},
            Position(74, 2, 0),
            "training.schedule: cosine falls to 0 at the last step, so that with another number of "
            "epochs the 74 steps done would have had other rates; start a new run from its weights "
            "(--init-from runs/a --run OTHER); constant, exponential and piecewise can go on",
        ),
    ],
    ids=["fewer than begun", "as many as done, of more", "ended early", "falls to the end"],
)
def test_what_is_no_extension_is_refused_in_one_line_that_says_what_to_do(
    now: dict[str, Any], position: Position, said: str
) -> None:
    now = {"schedule": "constant", **now}
    known = recipe_of(2, **{key: value for key, value in now.items() if key not in ("epochs", "stop_after")})
    with pytest.raises(ConfigError) as error:
        check_extension(Path("runs/a"), known, recipe_of(**now), position)
    assert str(error.value).startswith(f"runs/a: training.epochs: 2 → {now['epochs']}: {said}")
    assert "\n" not in str(error.value)


def test_only_the_epochs_make_a_run_longer() -> None:
    assert extends(["training.epochs"])
    assert extends(["training.epochs", "training.warmup"])
    assert not extends([])
    assert not extends(["training.warmup"])
    assert not extends(["training.epochs", "seed"])


def test_a_run_records_what_made_it_longer_and_older_ones_have_no_such_record(tmp_path: Path) -> None:
    run = bare_run(tmp_path / "run", recipe=recipe_of(2, schedule="constant"))
    assert b"extensions" not in (run.path / "run.json").read_bytes()
    assert load_run(run.path).extensions == ()
    facts = {"recipe": run.recipe.model_dump(mode="json")}
    save(run.path, 8, **facts)
    longer = recipe_of(5, schedule="constant")
    went_on = with_extension(run, longer, checkpoint_to_resume(run.path))
    went_on.save()
    assert load_run(run.path).extensions == (Extension(8, 2, 5),)
    assert load_run(run.path).recipe.training.epochs == 5
    # Killed before its first checkpoint, and resumed: recorded once.
    assert with_extension(went_on, longer, checkpoint_to_resume(run.path)).extensions == (Extension(8, 2, 5),)
    # Or given up: not at all.
    assert with_extension(went_on, run.recipe, checkpoint_to_resume(run.path)).extensions == ()
    save(run.path, 12, recipe=longer.model_dump(mode="json"))
    again = with_extension(went_on, recipe_of(6, schedule="constant"), checkpoint_to_resume(run.path))
    assert again.extensions == (Extension(8, 2, 5), Extension(12, 5, 6))
