"""Which worker all wait for: by a made service that holds what each last said."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from segmenter.config.devices import DistributionConfig
from segmenter.devices.machines import workers
from segmenter.devices.machines.cluster import Cluster
from segmenter.devices.machines.workers import BATCHES, OTHERS, SHARE, STEP, ClusterWorkers, Place

ADDRESSES = ("a:1", "b:2", "c:3")


class Service:
    """Number of a worker → seconds idle and place; nothing else is known."""

    def __init__(self, said: dict[int, tuple[float, Place]]) -> None:
        self.said = said

    def get_config_key_value(self, key: str, _: int) -> str:
        idle, place = self.said[int(key.rpartition("/")[2])]
        return json.dumps([1, idle, *place])


def found(
    monkeypatch: pytest.MonkeyPatch, own: Place, said: dict[int, tuple[float, Place]]
) -> tuple[int, str] | None:
    monkeypatch.setattr(workers, "_service", lambda: Service(said))
    cluster = ClusterWorkers(Cluster(0, 3, "test", ADDRESSES), DistributionConfig(progress_timeout=9))
    cluster._place = own
    return cluster._least_far({}, 9)


@pytest.mark.parametrize(
    ("own", "others", "number", "doing"),
    [
        (Place(7, 2, STEP), [Place(7, 2, STEP), Place(7, 2, BATCHES)], 2, "waits for its batches"),
        (Place(7, 2, STEP), [Place(6, 2, STEP), Place(7, 2, STEP)], 1, "computes a step"),
        (Place(7, 3, OTHERS), [Place(7, 2, SHARE), Place(7, 3, OTHERS)], 1, "works on its share"),
        (Place(7, 2, SHARE), [Place(7, 3, OTHERS), Place(7, 3, OTHERS)], 0, "works on its share"),
    ],
)  # fmt: skip
def test_the_worker_that_is_least_far_is_named(
    monkeypatch: pytest.MonkeyPatch, own: Place, others: list[Place], number: int, doing: str
) -> None:
    said = {i: (10.0, place) for i, place in enumerate(others, 1)}
    step = min(own, *others).steps
    assert found(monkeypatch, own, said) == (
        number,
        f"hangs: no progress for 9 s while it {doing} after step {step}",
    )


def test_while_one_goes_on_nobody_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {1: (10.0, Place(7, 2, STEP)), 2: (0.5, Place(7, 2, SHARE))}
    assert found(monkeypatch, Place(7, 2, STEP), said) is None


def test_who_says_nothing_any_more_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_service", lambda: Service({}))
    cluster = ClusterWorkers(Cluster(0, 3, "test", ADDRESSES), DistributionConfig(progress_timeout=9))
    monkeypatch.setattr(workers, "time", SimpleNamespace(monotonic=lambda: 100.0))
    long_ago = {1: ("x", 80.0)}
    assert cluster._least_far(long_ago, 9) == (1, "hangs: it says nothing for 9 s")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "Error reported from /job:worker/task:2: Tasks are unhealthy (stopped sending heartbeats):\n"
            "/job:worker/replica:0/task:1\nThe tasks have crashed.",
            "worker 1 (b:2) was lost: no sign of life for 60 s; all workers end, go on with the same command",
        ),
        (
            "recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target "
            "/job:worker/replica:0/task:2 while calling /tensorflow.WorkerService/CompleteInstance:",
            "worker 2 (c:3) was lost: its connection broke, or it was silent for 60 s; all workers end",
        ),
    ],
)  # fmt: skip
def test_tensorflows_words_on_a_lost_worker_become_one_line(text: str, line: str) -> None:
    cluster = ClusterWorkers(Cluster(0, 3, "test", ADDRESSES), DistributionConfig())
    said = cluster._said_by_tensorflow(text)
    assert said is not None
    assert str(said).startswith(line)
    assert cluster._said_by_tensorflow("Matrix size-incompatible: In[0]: [2,3]") is None
