"""Work on a cluster: in order, bounded, once a worker at a time; what threads find, whoever finds it."""

import itertools
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from datasets.commands import call as main
from segmenter.base.errors import ClusterError, DatasetError, DeviceError, LostClusterError, run_script
from segmenter.extras.dask import pool as remote
from segmenter.extras.dask.connect import connect_workers
from segmenter.extras.dask.options import ClusterOptions
from segmenter.extras.dask.pool import Pool
from tests.helpers.clusters import threads_cluster
from tests.helpers.refusals import refused


@contextmanager
def pool_of(workers: int, threads: int = 1) -> Iterator[tuple[Pool, Any]]:
    with ExitStack() as stack:
        cluster = stack.enter_context(threads_cluster(workers, threads))
        options = ClusterOptions(scheduler=cluster.scheduler_address)
        yield stack.enter_context(connect_workers(options)), cluster


def test_results_come_in_order_and_few_items_are_asked_for_ahead() -> None:
    asked: list[int] = []

    def items() -> Iterator[int]:
        for i in range(60):
            asked.append(i)
            yield i

    with pool_of(2) as (pool, _):
        got = []
        for item, answer in pool.in_order(lambda i: i * i, items()):
            assert answer.value == item * item
            got.append(item)
            assert len(asked) - len(got) <= 1 + 3 * 2
    assert got == list(range(60))


@pytest.mark.parametrize(("alone", "most"), [(True, 1), (False, 4)])
def test_a_worker_computes_one_item_at_a_time_however_many_threads_it_has(alone: bool, most: int) -> None:
    lock, together, seen = threading.Lock(), [0], [0]
    full = threading.Barrier(most)

    def work(i: int) -> None:
        with lock:
            together[0] += 1
            seen[0] = max(seen[0], together[0])
        full.wait()  # all that may come at once have come
        with lock:
            together[0] -= 1

    _SHARED["work"] = work
    with pool_of(1, threads=4) as (pool, _):
        assert len(list(pool.in_order(_shared_work, range(8), alone=alone))) == 8
    assert seen == [most]


_SHARED: dict[str, Any] = {}


def _shared_work(item: int) -> Any:
    """By reference, where a closure would be copied: the workers are threads of this process."""
    return _SHARED["work"](item)


def test_an_error_of_an_item_is_its_answer_and_a_defect_is_raised() -> None:
    empty = DatasetError("a.tif", expected="pixels", got=0, remedy="remove it")

    def work(i: int) -> int:
        if i == 1:
            raise empty
        if i == 3:
            raise ZeroDivisionError("a defect")
        return i

    with pool_of(1) as (pool, _):
        found = [answer for _, answer in pool.in_order(work, range(3))]
        assert [answer.value for answer in found] == [0, None, 2]
        assert isinstance(found[1].error, DatasetError)
        assert vars(found[1].error) == vars(empty)
        with pytest.raises(ZeroDivisionError, match="a defect"):
            list(pool.in_order(work, range(3, 5)))


def test_a_worker_that_differs_or_cannot_take_the_work_is_named(monkeypatch: Any) -> None:
    line = r"worker .*: cannot take the work: ModuleNotFoundError"
    with pool_of(1) as (pool, _), pytest.raises(ClusterError, match=line):
        list(pool.in_order(_Elsewhere(), [1]))
    with pool_of(1) as (pool, _):
        ours = iter([{"this program": "1"}])  # then the worker is asked
        monkeypatch.setattr(remote, "versions", lambda: next(ours, {"this program": "other"}))
        with refused(ClusterError, where="worker", fault="other"):
            list(pool.in_order(abs, [1]))


class _Elsewhere:
    """Of a module that a worker does not have."""

    def __call__(self, item: int) -> int:
        return item

    def __reduce__(self) -> Any:
        return __import__, ("module_of_the_caller_alone",)


def test_without_a_cluster_one_line_says_why(monkeypatch: Any) -> None:
    monkeypatch.setattr("segmenter.extras.dask.connect._WORKER_SECONDS", 0.1)
    line = "has no workers; start them with dask worker inproc"
    with pytest.raises(ClusterError, match=line), pool_of(0):
        pass

    monkeypatch.setattr("segmenter.extras.dask.connect._CONNECT_SECONDS", 0.2)
    line = r"--scheduler tcp://127\.0\.0\.1:9: no Dask scheduler answers"
    with (
        pytest.raises(ClusterError, match=line),
        connect_workers(ClusterOptions(scheduler="tcp://127.0.0.1:9")),
    ):
        pass

    monkeypatch.setattr("segmenter.extras.dask.connect.cards_listed", lambda: 4)
    line = "expected at most 4, one for each GPU, got 5"
    with pytest.raises(ClusterError, match=line), connect_workers(ClusterOptions(workers=5)):
        pass

    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    line = r"needs Dask, which is not installed .* run make cluster"
    with pytest.raises(ClusterError, match=line), connect_workers(ClusterOptions(workers=1)):
        pass


def test_all_workers_lost_is_one_line(monkeypatch: Any) -> None:
    monkeypatch.setattr("segmenter.extras.dask.pool._PATIENCE_SECONDS", 0)
    with pool_of(1) as (pool, cluster):
        answers = pool.in_order(abs, itertools.count())
        next(answers)
        cluster.scale(0)
        with refused(LostClusterError, where="--scheduler inproc://", fault="all workers"):
            deque(answers, 0)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"workers": 2, "scheduler": "tcp://a:1"}, {"where": "--workers 2", "fault": "give"}),
        ({"tls_ca": Path("a.pem")}, {"fault": "--scheduler tls://HOST:PORT"}),
        ({"scheduler": "host:8786"}, {"where": "--scheduler", "got": "host:8786"}),
        ({"scheduler": "tcp://a:1", "tls_key": Path("a")}, {"fault": "--tls-key: is for --scheduler tls://"}),
        ({"scheduler": "tls://a:1"}, {"where": "--scheduler tls://a:1", "got": "no --tls-ca"}),
        (
            {"scheduler": "tls://a:1", "tls_ca": Path("/none.pem")},
            {"where": "/none.pem", "expected": "PEM file"},
        ),
    ],
)
def test_options_that_name_no_cluster_are_refused(given: dict[str, Any], fields: dict[str, object]) -> None:
    with refused(ClusterError, **fields):
        ClusterOptions(**given)


def test_each_worker_takes_a_gpu_that_no_other_has(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    cards = []
    with monkeypatch.context() as patched:
        patched.setattr(remote, "_held", [])
        cards = [remote._free_card(3) for _ in range(3)]
        assert cards == [0, 1, 2]
        with refused(DeviceError, expected="worker, all 3"):
            remote._free_card(3)
        remote._held[1].release()
        assert remote._free_card(3) == 1
        for lock in remote._held:
            lock.release()


@pytest.mark.slow
def test_no_port_answers_over_plain_http(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with connect_workers(ClusterOptions(workers=1)):
        me = psutil.Process()
        found = [c for p in (me, *me.children(recursive=True)) for c in p.net_connections("inet")]
        ports = {one.laddr.port for one in found if one.status == "LISTEN"}
        assert {one.laddr.ip for one in found if one.status == "LISTEN"} == {"127.0.0.1"}
        for port in ports:
            for page in ("", "status", "health", "metrics", "info/main/workers.html", "json/identity.json"):
                with pytest.raises((urllib.error.URLError, OSError)):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}")
    assert ports
    assert list(tmp_path.glob(".segmenter*")) == []


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
