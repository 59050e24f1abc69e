"""Plans, forecasts and diagnoses from Python: those of the commands, as values."""

import sys
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import numpy as np
import pytest

import segmenter
from segmenter import Scene, Tiles, diagnose, forecast, index_tiles, plan_epoch
from segmenter.base.errors import ConfigError, DatasetError, LabelError
from segmenter.config.reading import default_recipe, recipe_from
from segmenter.config.recipe import SamplingConfig
from segmenter.diagnosis import diagnose as diagnosis_of
from segmenter.sampling import part_table, plan
from segmenter.tiles.index import build_index
from tests.helpers.refusals import refused

CLASSES = {"water": 0, "road": 1, "field": 2}


@pytest.fixture(scope="module")
def tiles(pair: tuple[Path, Path]) -> Tiles:
    return index_tiles([pair], CLASSES, size=32)


@pytest.fixture
def counts(rng: Any) -> Any:
    """97 tiles of four classes, of which the last is rare."""
    return (rng.random((97, 4)) < [1, 0.5, 0.2, 0.04]) * rng.integers(32, 400, (97, 4))


def test_a_plan_is_that_of_a_training(counts: Any) -> None:
    made = plan_epoch(counts, 12, seed=3, epoch=2)
    expected = plan(counts, 12, default_recipe().sampling, 3, 2)
    np.testing.assert_array_equal(made.batches, expected.rows_SB)
    assert made.held.all()
    assert set(made.batches.flat) == set(range(97))
    assert (made.repeats, made.least_repeats) == (expected.coverage_repeats, expected.repeats_bound)
    assert [batch.tolist() for batch in made] == expected.rows_SB.tolist()


def test_quotas_are_those_of_a_training(counts: Any) -> None:
    asked: dict[str, Any] = {"quota": "rarity", "lift": 2.0, "quotas": {"y": 3}}
    made = plan_epoch(counts, 12, seed=3, classes="wxyz", **asked)
    expected = plan(part_table(counts, names="wxyz"), 12, SamplingConfig(**asked), 3, 0)
    np.testing.assert_array_equal(made.batches, expected.rows_SB)
    assert made.tiles["y"] == 3
    assert f"{made.tiles['z']:.1f}" in repr(made)
    for wrong in (
        *({"quota": "much"}, {"lift": 0.5}, {"lift": 5}),  # the last without rarity
        *(
            {"quotas": wrong}
            for wrong in ({"w": 0}, {"w": 13}, {"v": 1}, {"w": 2.5}, {"w": "2"}, None, ["w"])
        ),
    ):
        with pytest.raises(DatasetError):
            plan_epoch(counts, 12, classes="wxyz", **wrong)


def test_what_is_too_rare_is_named(counts: Any) -> None:
    counts[:, 3] = 0
    counts[5, 3] = 99
    made = plan_epoch(counts, 4, classes="wxyz")
    assert made.best_effort == ("z",)
    assert made.promised == ("w", "x", "y")
    assert "best effort: z (in 4% of the steps)" in repr(made)
    assert plan_epoch(counts, 4, max_repeats=None).best_effort == ()


def test_tiles_are_those_of_the_index(tiles: Tiles, pair: tuple[Path, Path]) -> None:
    _, dataset, index = tiles._source
    np.testing.assert_array_equal(tiles.counts, index.counts_NK)
    assert tiles.counts[:, :2].sum(axis=0).tolist() == [60 * 104, 18 * 110]
    assert (pair[0].parent / ".tile-index").is_dir()
    named = index_tiles([Scene("x", *pair, "x", "validation")], dataset.classes, size=32, split="validation")
    np.testing.assert_array_equal(named.counts, tiles.counts)
    assert len(index_tiles(dataset, size=32)) == len(tiles)


def test_a_diagnosis_is_that_of_the_command(tiles: Tiles, pair: tuple[Path, Path], capfd: Any) -> None:
    made = diagnose([pair], CLASSES, size=32, global_batch=8, batches=[4])
    assert capfd.readouterr() == ("", "")
    recipe, dataset, _ = tiles._source
    data = recipe.model_dump(mode="json")
    data["training"]["global_batch"] = 8

    recipe = recipe_from(data, "test")
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    expected = diagnosis_of(recipe, dataset, index, [4, 8], progress=False)
    assert made.to_dict() == expected.to_dict()
    assert made == diagnose(tiles, global_batch=8, batches=[4])
    assert "what limits: " in repr(made)
    assert "road" in repr(made)


def test_numbers_of_numpy_are_numbers_and_others_are_refused(pair: tuple[Path, Path], tiles: Tiles) -> None:
    made: dict[Any, Any] = dict(zip(CLASSES, np.array([*CLASSES.values()]), strict=True))
    again = index_tiles([pair], made, size=np.int64(32), bands=np.array([1, 2]))  # type: ignore[arg-type]
    np.testing.assert_array_equal(again.counts, tiles.counts)
    for calls in (
        lambda: index_tiles([pair], {0: 0}),  # type: ignore[dict-item]
        lambda: index_tiles([pair], CLASSES, bands=["1"]),  # type: ignore[list-item]
        lambda: plan_epoch(tiles, 8.0),  # type: ignore[arg-type]
        lambda: plan_epoch(tiles, 8, epoch=1.5),  # type: ignore[arg-type]
        lambda: plan_epoch(tiles, 8, max_repeats=1.5),  # type: ignore[arg-type]
        lambda: forecast(tiles).probability("8"),  # type: ignore[arg-type]
    ):
        with pytest.raises(DatasetError):
            calls()


def test_a_report_is_one_page(tiles: Tiles, tmp_path: Path) -> None:
    diagnose(tiles, global_batch=8, batches=[4]).write_report(tmp_path / "coverage.html")
    assert "road" in (tmp_path / "coverage.html").read_text(encoding="utf-8")


def test_what_cannot_be_meant_is_refused(pair: tuple[Path, Path], tiles: Tiles) -> None:
    with refused(DatasetError, where="classes", got="none"):
        index_tiles([pair])
    with refused(DatasetError, where="scenes", got="a.tif'"):
        index_tiles([str(pair[0])], CLASSES)  # type: ignore[list-item]
    with refused(LabelError, fault="know: 2"):
        index_tiles([pair], {"water": 0, "road": 1}, size=32)
    with refused(ConfigError, where="arguments: tiles.size", got=3):
        index_tiles([pair], CLASSES, size=3)
    with refused(DatasetError, where="scenes", expected="split test"):
        index_tiles([Scene("x", *pair, "x", "train")], CLASSES, split="test")
    with refused(DatasetError, where="size", fault="made already"):
        diagnose(tiles, size=64)
    for wrong in (2.5, "8"):
        with refused(DatasetError, where="batches", got=f"{wrong!r}"):
            diagnose(tiles, batches=[8, wrong])  # type: ignore[list-item]
    with refused(DatasetError, where="lift"):
        plan_epoch([[50, 0], [0, 50]], 2, lift=3)
    with refused(DatasetError, where="tiles", got="float64 of (1, 1)"):
        plan_epoch([[0.5]], 1)
    with refused(DatasetError, where="classes", got=2):
        forecast([[1]], classes="ab")
    with refused(DatasetError, fault="all 2 classes"):
        plan_epoch([[50, 0], [0, 50]], 1, max_repeats=None)


@pytest.mark.slow
def test_the_door_is_light_and_complete() -> None:
    """Importing imports the version and rules of strategies alone; a name, no TensorFlow; and no loader."""
    code = (
        "import sys, segmenter\n"
        "ours = {name for name in sys.modules if name.startswith('segmenter')}\n"
        "rooms = {'segmenter', 'segmenter.base', 'segmenter.config', 'segmenter.extras'}\n"
        "light = {'base.version', 'config.strategies', 'extras.strategies'}\n"
        "assert ours == rooms | {f'segmenter.{name}' for name in light}, ours\n"
        "assert not {'numpy', 'rasterio'} & set(sys.modules)\n"
        "for name in segmenter.__all__: getattr(segmenter, name)\n"
        "heavy = {'tensorflow', 'keras', 'matplotlib', 'albumentations', 'plotly', 'dask', 'datasets'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = run_process([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(segmenter.__all__) == sorted(segmenter._HOMES) == segmenter.__all__
    assert set(segmenter.__all__) <= set(dir(segmenter))
    with pytest.raises(AttributeError, match="attribute 'nonsense'"):
        segmenter.nonsense  # noqa: B018
