"""`datasets check`, the tile index and packs on a cluster: what threads find, whoever finds it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from datasets.__main__ import main
from segmenter.base.errors import run_script
from tests.helpers.clusters import threads_cluster

Make = Callable[..., Path]
CLASSES = [{"name": name, "code": code} for code, name in enumerate(("water", "wood", "town"))]


@pytest.fixture(scope="module")
def two_workers() -> Iterator[str]:
    with threads_cluster(2, threads=2) as cluster:
        yield cluster.scheduler_address


@pytest.fixture
def recipe(tmp_path: Path, make_geotiff: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of seven scenes, by a root that is relative, as users write it."""
    rng = np.random.default_rng(1)
    for i in range(7):
        shape = 40 + 3 * i, 37
        make_geotiff(f"data/images/{i}.tif", rng.integers(1, 255, (*shape, 3), np.uint8), nodata=1)
        make_geotiff(f"data/labels/{i}.tif", rng.integers(0, 3, shape, np.uint8))
    dataset = {"kind": "folder", "root": "data", "images": "images/{name}.tif", "labels": "labels/{name}.tif"}
    dataset |= {"classes": CLASSES, "split": {"validation": ["6"]}}
    content = {"name": "made", "dataset": dataset, "tiles": {"size": 16}, "model": {"depth": 2}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return Path("mine.yaml")


def run(*arguments: Any) -> int:
    return run_script(lambda: main([str(argument) for argument in arguments]))


def test_check_on_a_cluster_says_the_same(
    recipe: Path, two_workers: str, make_geotiff: Make, capsys: Any
) -> None:
    make_geotiff("data/labels/2.tif", np.full((46, 37), 9, np.uint8))
    Path("data/images/4.tif").write_bytes(b"II*\0 and no more")
    told = []
    for more in ((), ("--scheduler", two_workers)):
        assert run("check", recipe, *more) == 1
        told.append(capsys.readouterr().out.replace(str(Path.cwd()) + "/", ""))
    assert "unreadable: 1" in told[0]
    assert "unknown value: 1" in told[0]
    assert told[1] == told[0]


def test_an_index_of_a_cluster_is_the_same_file(recipe: Path, two_workers: str, capsys: Any) -> None:
    told, found = [], []
    for more in ((), ("--scheduler", two_workers)):
        assert run("coverage", recipe, "--batch", "4", *more) == 0
        told.append(capsys.readouterr())
        (index,) = Path("data/.tile-index").glob("tiles-*.parquet")
        found.append(index.read_bytes())
        index.unlink()
    assert told[1].out.replace(str(Path.cwd()) + "/", "") == told[0].out
    assert "nodata value" in told[0].err
    assert told[1].err.count("nodata value") == told[0].err.count("nodata value")
    assert found[1] == found[0]


def test_packs_of_a_cluster_are_taken(recipe: Path, two_workers: str, capsys: Any) -> None:
    assert run("pack", recipe, "--scheduler", two_workers) == 0
    assert "packing images of 6 and labels of 6" in capsys.readouterr().out
    assert list(Path("data/.tile-index").rglob("*.pack"))
    assert run("pack", recipe) == 0
    assert "all 6 training scenes are packed already" in capsys.readouterr().out


def test_a_worker_without_the_data_is_named(
    recipe: Path, two_workers: str, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr("segmenter.extras.dask.spread.Path.absolute", lambda path: Path("/elsewhere"))
    assert run("check", recipe, "--scheduler", two_workers) == 2
    err = capsys.readouterr().err.splitlines()[-1]
    assert err.startswith("error: worker inproc://")
    assert "/elsewhere: is not there" in err
