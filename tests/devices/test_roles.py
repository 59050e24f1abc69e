"""Roles of a cluster's processes: read off the command line or TF_CONFIG, or refused in one line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from segmenter.base.errors import ConfigError, DeviceError
from segmenter.config.devices import DistributionConfig
from segmenter.extras.parameter_servers.roles import Roles, cluster_of_environment, parse_cluster, roles_of
from segmenter.extras.parameter_servers.serving import own_gpu
from tests.helpers.refusals import refused

WORDS = ["chief=a:1", "worker=b:2,c:3", "ps=[::1]:4"]
CLUSTER = {"chief": ["a:1"], "worker": ["b:2", "c:3"], "ps": ["[::1]:4"]}


def test_the_command_line_and_tf_config_say_the_same() -> None:
    by_line = roles_of(WORDS, "worker", 1, {})
    text = json.dumps({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})
    assert by_line == roles_of(None, None, None, {"TF_CONFIG": text})
    assert (by_line.address, by_line.title("ps", 0)) == ("c:3", "ps 0 ([::1]:4)")
    assert by_line.members == {("worker", 0): "b:2", ("worker", 1): "c:3", ("ps", 0): "[::1]:4"}


def test_without_a_role_a_process_is_the_chief() -> None:
    roles = roles_of(WORDS, environment={"TF_CONFIG": "the command line goes before it"})
    assert (roles.role, roles.index, roles.address) == ("chief", 0, "a:1")


def test_a_list_without_a_role_is_of_workers() -> None:
    assert parse_cluster(["a:1,b:2"]) == {"worker": ("a:1", "b:2")}


@pytest.mark.parametrize(
    ("words", "role", "index", "fields"),
    [
        (None, None, None, {"where": "parameter_server", "got": "neither"}),
        (["chief=a:1", "worker=b:2"], None, None, {"where": "--cluster", "got": "no ps"}),
        ([*WORDS, "evaluator=d:1"], None, None, {"where": "--cluster", "got": "evaluator"}),
        ([*WORDS, "ps=d:1"], None, None, {"where": "--cluster", "got": "ps twice"}),
        (["chief=a:70000", *WORDS[1:]], None, None, {"where": "--cluster: chief", "got": "'a:70000'"}),
        (["chief=b:2", *WORDS[1:]], None, None, {"where": "--cluster: worker", "got": "b:2 twice"}),
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
        ('{"cluster": {"chief": ["a"]}, "task": {"type": "chief", "index": 0}}', "expected HOST:PORT"),
    ],
)
def test_a_wrong_tf_config_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cluster_of_environment(text)


def test_a_role_beside_tf_config_is_refused() -> None:
    with pytest.raises(ConfigError, match="--role, --index: TF_CONFIG says them"):
        roles_of(None, "worker", 0, {"TF_CONFIG": "{}"})


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
    with refused(DeviceError, where="worker 3 (h:4)"):
        own_gpu(DistributionConfig(), _worker(3), 2)
    with refused(DeviceError, where="visible_devices", got=2):
        own_gpu(DistributionConfig(visible_devices=(2,)), _worker(0), 2)
