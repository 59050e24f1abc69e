"""Who trains together, workers or parameter servers: what the command line says, who is missing, who ends."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from segmenter.base.errors import ConfigError, DeviceError, SegmenterError, TrainingError, WorkerError
from segmenter.config.devices import DistributionConfig
from segmenter.devices.machines import workers
from segmenter.devices.machines.cluster import Cluster, find_cluster, listening, meet
from segmenter.devices.machines.workers import BATCHES, OTHERS, SHARE, STEP, ClusterWorkers, WorkerProgress
from segmenter.extras.parameter_servers.control import (
    Roles,
    Watch,
    check_port,
    cluster_of_environment,
    parse_cluster,
    roles_of,
    stay,
    versions_here,
    watching,
)
from segmenter.extras.parameter_servers.strategy import own_gpu
from tests.helpers.refusals import refused
from tests.helpers.several_workers import addresses
from tests.helpers.time_limits import wait_until


def tf_config(jobs: dict[str, list[str]], kind: str = "worker", index: int = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": jobs, "task": {"type": kind, "index": index}})}


def test_the_command_line_counts_before_the_environment() -> None:
    found = find_cluster("auto", "a:1,b.example:2,[::1]:3", 2, {})
    assert (found.index, found.workers, found.chief) == (2, 3, False)
    assert found.name() == "worker 2 ([::1]:3)"
    assert found.name(0) == "worker 0 (a:1)"
    assert json.loads(found.tf_config())["task"] == {"type": "worker", "index": 2}

    found = find_cluster("multi_worker_mirrored", "a:1,b:2", 0, tf_config({"worker": ["c:3", "d:4"]}))
    assert found.addresses == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("jobs", "kind", "index", "number"),
    [
        ({"worker": ["a:1", "b:2"]}, "worker", 1, 1),
        ({"chief": ["a:1"], "worker": ["b:2", "c:3"]}, "worker", 1, 2),
        ({"worker": ["b:2", "c:3"], "chief": ["a:1"]}, "worker", 0, 1),
    ],
)
def test_workers_of_tf_config(jobs: dict[str, list[str]], kind: str, index: int, number: int) -> None:
    found = find_cluster("auto", None, None, tf_config(jobs, kind, index))
    assert found.index == number
    assert sorted(found.addresses) == list(found.addresses)


def test_without_a_cluster_one_process_trains() -> None:
    for environment in ({}, {"TF_CONFIG": ""}, {"TF_CONFIG": "{}"}, {"TF_CONFIG": '{"cluster": {}}'}):
        assert find_cluster("auto", None, None, environment) is None
    assert find_cluster("mirrored", None, None, tf_config({"worker": ["a:1", "b:2"]})) is None


@pytest.mark.parametrize(
    ("strategy", "asked", "index", "environment", "fields"),
    [
        ("auto", None, 1, {}, {"where": "--index", "got": "none"}),
        ("mirrored", "a:1,b:2", 0, {}, {"where": "--cluster", "got": "mirrored"}),
        ("multi_worker_mirrored", None, None, {}, {"where": "multi_worker_mirrored", "got": "none"}),
        ("auto", "a:1,b", 0, {}, {"where": "--cluster", "got": "b"}),
        ("auto", "a:1,a:1", 0, {}, {"where": "--cluster", "got": "a:1 twice"}),
        ("auto", "a:1,b:2", None, {}, {"where": "--index", "got": "none"}),
        ("auto", None, None, {"TF_CONFIG": "[1]"}, {"where": "TF_CONFIG", "expected": "JSON"}),
        ("auto", None, None, tf_config({"ps": ["a:1"], "worker": ["b:2"]}), {"got": "ps"}),
        ("auto", None, None, tf_config({"worker": ["a:1"]}, index=3), {"where": "task.index", "got": 3}),
        ("auto", None, None, tf_config({"chief": ["a:1", "b:1"]}, "chief"), {"where": "TF_CONFIG", "got": 2}),
        ("auto", "slurm", None, {}, {"expected": "srun, SLURM_PROCID"}),
    ],
)  # fmt: skip
def test_what_is_no_cluster_is_refused(
    strategy: str,
    asked: str | None,
    index: int | None,
    environment: dict[str, str],
    fields: dict[str, object],
) -> None:
    with refused(ConfigError, **fields):
        find_cluster(strategy, asked, index, environment)


def test_tasks_of_slurm_have_slurms_order(tensorflow: ModuleType) -> None:
    """n10 comes after n2, though not as text; two tasks on a host have ports side by side."""
    said = {
        "PROCID": "2",
        "STEP_NUM_TASKS": "5",
        "STEP_NODELIST": "n[2,10],m1",
        "STEP_TASKS_PER_NODE": "2(x2),1",
    }
    environment = {f"SLURM_{name}": value for name, value in said.items()}
    found = find_cluster("auto", "slurm", None, environment)
    assert found.name() == "worker 2"
    known = found.resolved(environment)
    assert known.addresses == ("n2:8888", "n2:8889", "n10:8888", "n10:8889", "m1:8888")


def met(addresses: tuple[str, ...], indices: list[int], timeout: float = 60.0) -> dict[int, str]:
    """Number of a worker → what it ends with; each in a thread."""
    said: dict[int, str] = {}

    def one(index: int) -> None:
        try:
            meet(Cluster(index, len(addresses), "test", addresses), timeout)
            said[index] = "met"
        except SegmenterError as error:
            said[index] = str(error)

    threads = [threading.Thread(target=one, args=(index,)) for index in indices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


def test_workers_meet_in_any_order_and_who_does_not_come_is_named_to_all() -> None:
    assert met(addresses(3), [2, 0, 1]) == dict.fromkeys(range(3), "met")

    three = addresses(3)
    said = met(three, [0, 2], timeout=1.0)
    assert said[0] == said[2]
    assert said[0].startswith(f"worker 1 ({three[1]}) did not come within 1 s (distribution.start_timeout)")


def test_other_addresses_and_a_port_in_use_are_refused() -> None:
    first, second, third = addresses(3)
    said: list[WorkerError] = []

    def other() -> None:
        try:
            meet(Cluster(1, 2, "test", (first, third)), 60.0)
        except WorkerError as error:
            said.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    chief = met((first, second), [0], timeout=2.0)
    thread.join()
    assert said[0].expected is not None  # of the chief, which tells it
    assert said[0].expected.startswith("the same addresses on all workers")
    assert chief[0].startswith(f"worker 1 ({second}) did not come")

    (address,) = addresses(1)
    cluster = Cluster(0, 1, "test", (address,))
    with listening(cluster), refused(DeviceError, fault="cannot listen"):
        listening(cluster)


ADDRESSES = ("a:1", "b:2", "c:3")


class Service:
    """Number of a worker → seconds idle and place; nothing else is known."""

    def __init__(self, said: dict[int, tuple[float, WorkerProgress]]) -> None:
        self.said = said

    def get_config_key_value(self, key: str, _: int) -> str:
        idle, place = self.said[int(key.rpartition("/")[2])]
        return json.dumps([1, idle, *place])


def found(
    monkeypatch: pytest.MonkeyPatch, own: WorkerProgress, said: dict[int, tuple[float, WorkerProgress]]
) -> tuple[int, str] | None:
    monkeypatch.setattr(workers, "_service", lambda: Service(said))
    cluster = ClusterWorkers(Cluster(0, 3, "test", ADDRESSES), DistributionConfig(progress_timeout=9))
    cluster._place = own
    return cluster._least_far({}, 9)


@pytest.mark.parametrize(
    ("own", "others", "number", "doing"),
    [
        (
            WorkerProgress(7, 2, STEP),
            [WorkerProgress(7, 2, STEP), WorkerProgress(7, 2, BATCHES)],
            2,
            "waits for its batches",
        ),
        (
            WorkerProgress(7, 2, STEP),
            [WorkerProgress(6, 2, STEP), WorkerProgress(7, 2, STEP)],
            1,
            "computes a step",
        ),
        (
            WorkerProgress(7, 3, OTHERS),
            [WorkerProgress(7, 2, SHARE), WorkerProgress(7, 3, OTHERS)],
            1,
            "works on its share",
        ),
        (
            WorkerProgress(7, 2, SHARE),
            [WorkerProgress(7, 3, OTHERS), WorkerProgress(7, 3, OTHERS)],
            0,
            "works on its share",
        ),
    ],
)
def test_the_worker_that_is_least_far_is_named(
    monkeypatch: pytest.MonkeyPatch,
    own: WorkerProgress,
    others: list[WorkerProgress],
    number: int,
    doing: str,
) -> None:
    said = {i: (10.0, place) for i, place in enumerate(others, 1)}
    step = min(own, *others).steps
    assert found(monkeypatch, own, said) == (
        number,
        f"hangs: no progress for 9 s while it {doing} after step {step}",
    )


def test_while_one_goes_on_nobody_hangs_and_who_is_silent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {1: (10.0, WorkerProgress(7, 2, STEP)), 2: (0.5, WorkerProgress(7, 2, SHARE))}
    assert found(monkeypatch, WorkerProgress(7, 2, STEP), said) is None

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


@pytest.fixture
def roles() -> Roles:
    chief, *others = addresses(4)
    return Roles(chief, tuple(others[:2]), (others[2],))


class Member:
    """A member's end in a thread."""

    def __init__(self, roles: Roles, role: str, index: int) -> None:
        self.lines: list[str] = []
        self.code: Any = None
        self._roles = replace(roles, role=role, index=index)
        self._thread = threading.Thread(target=self._stay, daemon=True)
        self._thread.start()

    def _stay(self) -> None:
        try:
            self.code = stay(self._roles, self.lines.append)
        except DeviceError as error:
            self.code = str(error)

    def ended(self) -> Any:
        self._thread.join()
        return self.code


@contextmanager
def raw(roles: Roles, role: str = "worker", index: int = 0, **facts: Any) -> Iterator[socket.socket]:
    """A connection that says hello with some facts of its own."""
    host, port = roles.chief.split(":")
    listed = [[roles.chief], list(roles.workers), list(roles.servers)]
    hello = {"role": role, "index": index, "versions": versions_here(), "cluster": listed, **facts}
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(json.dumps(hello).encode() + b"\n")
        yield connection


def test_members_end_with_the_chief_and_say_so(roles: Roles) -> None:
    members = [Member(roles, "worker", 0)]  # before there is a chief
    assert wait_until(lambda: members[0].lines == [f"worker 0: waiting for the chief at {roles.chief}"])
    with watching(roles, print) as watch:
        members += [Member(roles, "worker", 1), Member(roles, "ps", 0)]
        watch.wait_for_all()
        assert watch.missing == []
    assert [member.ended() for member in members] == [0, 0, 0]
    assert members[2].lines[-1] == "ps 0: the chief has ended, so this ends"
    check_port("the chief's", roles.chief)  # free again


def test_members_end_with_a_chief_that_fails_or_is_gone_without_a_word(roles: Roles) -> None:
    member = Member(roles, "worker", 0)
    with suppress(TrainingError), watching(roles, print) as watch:
        assert wait_until(lambda: ("worker", 0) not in watch.missing)
        raise TrainingError
    assert (member.ended(), member.lines[-1]) == (0, "worker 0: the chief has failed, so this ends")

    host, port = roles.chief.split(":")
    with socket.create_server((host, int(port))) as gone:
        member = Member(roles, "worker", 0)
        gone.accept()[0].close()
    assert (member.ended(), member.lines[-1]) == (
        1,
        f"worker 0: the chief at {roles.chief} is gone, so this ends",
    )


def test_the_chief_names_who_is_not_there(roles: Roles) -> None:
    lines: list[str] = []
    with watching(roles, lines.append) as watch, raw(roles):
        assert wait_until(lambda: ("worker", 0) not in watch.missing)
        with refused(DeviceError, where=f"worker 1 ({roles.workers[1]}), ps 0"):
            watch.wait_for_all(0.0)
    assert lines == [f"waiting for worker 1 ({roles.workers[1]}), ps 0 ({roles.servers[0]})"]


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        ({"versions": {"tensorflow": "2.0"}}, {"fault": "tensorflow 2.0, here"}),
        ({"cluster": []}, {"fault": "worker 0"}),
    ],
)
def test_a_member_that_differs_is_refused_by_name_before_the_first_step(
    roles: Roles, facts: dict[str, Any], fields: dict[str, object]
) -> None:
    with watching(roles, print) as watch, raw(roles, **facts) as connection:
        with refused(DeviceError, **fields):
            watch.wait_for_all()
        assert b"refused" in connection.recv(4096)


def test_a_second_process_of_a_role_one_of_no_role_and_a_taken_port_are_refused(roles: Roles) -> None:
    with watching(roles, print) as watch, raw(roles):
        assert wait_until(lambda: ("worker", 0) not in watch.missing)
        assert f"{roles.title('worker', 0)} is there already" in Member(roles, "worker", 0).ended()
        with raw(roles, "worker", 7) as connection:
            assert b"worker 7 is no part of the chief's cluster" in connection.recv(4096)

    watch = Watch(roles)
    try:
        with refused(DeviceError, where=f"chief ({roles.chief})", fault="Address already"):
            Watch(roles)
        with refused(DeviceError, where="worker 0", fault="Address already"):
            check_port("worker 0", roles.chief)
    finally:
        watch.close("has ended")


def test_lost_and_returned_workers_are_named(roles: Roles) -> None:
    lines: list[str] = []
    with watching(roles, lines.append) as watch, raw(roles, "ps"):
        with raw(roles), raw(roles, index=1):
            watch.wait_for_all()
        assert wait_until(lambda: len(watch.missing) == 2)
        assert watch.lost_servers == ""
        del lines[:]
        with raw(roles, index=1):
            assert wait_until(lambda: lines)
            zero, one = (roles.title("worker", index) for index in (0, 1))
            assert lines == [f"{one} is back; it works again when {zero} is back too"]
            with raw(roles):
                assert wait_until(lambda: lines[1:] == [f"{zero} is back"])
        assert wait_until(lambda: len(lines) == 4)
        assert sorted(lines[2:]) == [
            f"{title} is lost; its step goes to another worker" for title in (zero, one)
        ]


WORDS = ["chief=a:1", "worker=b:2,c:3", "ps=[::1]:4"]
CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["[::1]:4"]}


def test_the_command_line_and_tf_config_say_the_same() -> None:
    by_line = roles_of(WORDS, "worker", 1, {})
    text = json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})
    assert by_line == roles_of(None, None, None, {"TF_CONFIG": text})
    assert (by_line.address, by_line.title("ps", 0)) == ("c:3", "ps 0 ([::1]:4)")
    assert by_line.members == {("worker", 0): "b:2", ("worker", 1): "c:3", ("ps", 0): "[::1]:4"}


def test_without_a_role_a_process_is_the_chief_and_beside_tf_config_none_is_taken() -> None:
    roles = roles_of(WORDS, environment={"TF_CONFIG": "the command line goes before it"})
    assert (roles.role, roles.index, roles.address) == ("chief", 0, "a:1")

    assert parse_cluster(["a:1,b:2"]) == {"worker": ("a:1", "b:2")}

    with pytest.raises(ConfigError, match="--role, --index: TF_CONFIG says them"):
        roles_of(None, "worker", 0, {"TF_CONFIG": "{}"})


@pytest.mark.parametrize(
    ("words", "role", "index", "fields"),
    [
        (None, None, None, {"where": "parameter_server", "got": "neither"}),
        (["chief=a:1", "worker=b:2"], None, None, {"where": "--cluster", "got": "no ps"}),
        ([*WORDS, "evaluator=d:1"], None, None, {"where": "--cluster", "got": "evaluator"}),
        ([*WORDS, "ps=d:1"], None, None, {"where": "--cluster", "got": "ps twice"}),
        (["chief=a:70000", *WORDS[1:]], None, None, {"where": "--cluster", "got": "a:70000"}),
        (["chief=b:2", *WORDS[1:]], None, None, {"where": "--cluster", "got": "b:2 twice"}),
        (WORDS, "worker", None, {"where": "--index", "got": "none"}),
        (WORDS, "ps", -1, {"where": "--index", "got": -1}),
    ],
)
def test_a_wrong_cluster_is_refused_in_one_line(
    words: list[str] | None, role: str | None, index: int | None, fields: dict[str, object]
) -> None:
    with refused(ConfigError, **fields):
        roles_of(words, role, index, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "TF_CONFIG: expected .* got {"),
        ('{"cluster": {"chief": ["a:1"]}, "task": {"type": "evaluator", "index": 0}}', "got evaluator"),
        ('{"cluster": {"chief": ["a"]}, "task": {"type": "chief", "index": 0}}', "got a$"),
    ],
)
def test_a_wrong_tf_config_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster_of_environment(text)


def _worker(index: int) -> Roles:
    return Roles("h:1", ("h:2", "h:3", "g:2", "h:4"), ("h:5",), "worker", index)


@pytest.mark.parametrize(
    ("settings", "gpus", "expected"),
    [({}, 4, [0, 1, 0, 2]), ({}, 1, [0, 0, 0, 0]), ({"visible_devices": (3, 1, 2)}, 4, [1, 2, 1, 3])],
)
def test_each_worker_of_a_machine_has_a_gpu_of_its_own(
    settings: dict[str, Any], gpus: int, expected: list[int]
) -> None:
    config = DistributionConfig(**settings)
    assert [own_gpu(config, _worker(index), gpus) for index in range(4)] == expected


def test_a_worker_without_a_gpu_of_its_own_is_refused() -> None:
    with refused(DeviceError, fault="worker 3 (h:4)"):
        own_gpu(DistributionConfig(), _worker(3), 2)
    with refused(DeviceError, where="visible_devices", got=2):
        own_gpu(DistributionConfig(visible_devices=(2,)), _worker(0), 2)
