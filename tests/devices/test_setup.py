"""Devices: what TensorFlow is told, in which order; shares of a step; mistakes are answered in one line.

There are no GPUs where these tests run: TensorFlow's calls are replaced and recorded. Real devices, made of
the CPU, are in `test_strategy.py`.
"""

import ctypes
import itertools
import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError, DeviceError
from segmenter.config.devices import DistributionConfig
from segmenter.devices import driver, setup
from segmenter.devices.setup import Device, cuda_libraries, hardware_facts, loaded_version, memory_limits
from segmenter.devices.strategy import Devices, deal_tiles, describe, has_kernels, make_devices
from segmenter.extras.strategies.unequal_cards import quickest, with_given
from tests.helpers.refusals import refused

MODEL, BYTES = "NVIDIA GeForce RTX 2080 Ti", 11 * 2**30


class Machine:
    """A stand-in for `tf.config` on a machine with GPUs; `calls` is what it was told, in order.

    It holds TensorFlow's own rules: nothing changes once devices are listed, growth and fixed memory exclude
    each other, and a list of visible devices does not reorder them.
    """

    def __init__(self, gpus: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._gpus = [SimpleNamespace(name=f"/physical_device:GPU:{i}") for i in range(gpus)]
        self._visible = list(self._gpus)
        self._parts: dict[str, list[Any]] = {}
        self._cpus = 1
        self.started = False

    def physical(self, kind: str) -> list[Any]:
        return self._gpus if kind == "GPU" else [SimpleNamespace(name="/physical_device:CPU:0")]

    def visible(self, kind: str) -> list[Any]:
        return self._visible

    def see(self, devices: list[Any], kind: str) -> None:
        self._tell("see", [device.name[-1] for device in devices])
        self._visible = [gpu for gpu in self._gpus if gpu in devices]

    def grow(self, device: Any, enable: bool) -> None:
        self._tell("grow", device.name[-1], enable)

    def split(self, device: Any, parts: list[Any]) -> None:
        self._tell("split", device.name[-5:], [part.memory_limit for part in parts])
        if device.name[-5:-2] == "CPU":
            self._cpus = len(parts)
        else:
            self._parts[device.name] = parts

    def logical(self, kind: str) -> list[Any]:
        if not self.started:
            self.calls.append(("start",))
        self.started = True
        count = self._cpus
        if kind == "GPU":
            count = sum(len(self._parts.get(gpu.name, "x")) for gpu in self._visible)
        return [SimpleNamespace(name=f"/device:{kind}:{i}") for i in range(count)]

    def _tell(self, *call: Any) -> None:
        if self.started:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        self.calls.append(call)


@pytest.fixture
def machine(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`machine(4)`: TensorFlow finds four GPUs, and so does the driver's tool."""

    def make(gpus: int, listed: int | None = None) -> Machine:
        made, config = Machine(gpus), tensorflow.config
        for owner, name, call in (
            (config, "list_physical_devices", made.physical),
            (config, "get_visible_devices", made.visible),
            (config, "set_visible_devices", made.see),
            (config, "set_logical_device_configuration", made.split),
            (config, "list_logical_devices", made.logical),
            (config.experimental, "set_memory_growth", made.grow),
            (config.experimental, "get_device_details", lambda _: {"device_name": MODEL}),
            (config, "set_soft_device_placement", lambda on: made.calls.append(("soft", on))),
            (config.experimental, "enable_op_determinism", lambda: made.calls.append(os.environ[CUBLAS])),
            (tensorflow.debugging, "set_log_device_placement", lambda on: made.calls.append(("log", on))),
            (tensorflow.distribute, "MirroredStrategy", lambda names, **kw: ("mirrored", names, kw)),
            (tensorflow.distribute, "OneDeviceStrategy", lambda name: ("one", name)),
        ):
            monkeypatch.setattr(owner, name, call)
        rows = [(MODEL, BYTES)] * (gpus if listed is None else listed)
        monkeypatch.setattr(setup, "_ask_driver", lambda: rows)
        for name in ("CUDA_VISIBLE_DEVICES", CUBLAS):
            monkeypatch.setenv(name, "")  # and as it was, after the test
            monkeypatch.delenv(name)
        return made

    return make


CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
GPUS = ["GPU:0", "GPU:1", "GPU:2", "GPU:3"]


def devices(logical: int | None = None, **settings: Any) -> Devices:
    return make_devices(DistributionConfig(**settings), logical)


def test_by_default_all_gpus_are_mirrored_and_their_memory_grows(machine: Any) -> None:
    made = machine(4)
    got = devices()
    assert made.calls == [("soft", True), *(("grow", str(i), True) for i in range(4)), ("start",)]
    assert got.strategy == ("mirrored", GPUS, {"cross_device_ops": None})
    assert (got.replicas, got.idle) == (4, ())


def test_everything_is_told_before_the_devices_start(machine: Any) -> None:
    made = machine(4)
    devices(
        visible_devices=[3, 1], memory_growth=False, memory_limit=4096,
        deterministic=True, log_placement=True, soft_placement=False,
    )  # fmt: skip
    assert made.calls == [
        ":4096:8", ("soft", False), ("log", True), ("see", ["1", "3"]),
        ("split", "GPU:1", [4096]), ("split", "GPU:3", [4096]), ("start",),
    ]  # fmt: skip

    made = machine(2)
    devices(memory_growth=False)
    assert made.calls[1:3] == [("grow", "0", False), ("grow", "1", False)]


def test_limits_of_memory_are_in_the_cards_order(machine: Any) -> None:
    made = machine(4)
    got = devices(visible_devices=[3, 1], memory_growth=False, memory_limit=[2048, "50 %"])
    assert made.calls[-3:-1] == [("split", "GPU:1", [2048]), ("split", "GPU:3", [5632])]
    assert [device.memory for device in got.used] == ["2048 MiB, fixed", "5632 MiB, fixed"]


def test_one_card_becomes_several_devices(machine: Any) -> None:
    made = machine(4)
    got = devices(visible_devices=[2], memory_growth=False, logical_gpus={"number": 3, "memory": "2048 MiB"})
    assert made.calls[-2:] == [("split", "GPU:2", [2048] * 3), ("start",)]
    assert got.strategy[:2] == ("mirrored", GPUS[:3])
    assert {(d.card, d.memory) for d in got.used} == {("GPU:2", "2048 MiB, fixed")}
    assert got.idle == ()


@pytest.mark.parametrize(
    ("settings", "used", "idle"),
    [
        ({"strategy": "one_device"}, ("one", "GPU:0"), GPUS[1:]),
        ({"strategy": "mirrored", "devices": [2, 0]}, ["GPU:2", "GPU:0"], ["GPU:1", "GPU:3"]),
        # Seen are the second and fourth card, which TensorFlow then numbers 0 and 1.
        ({"visible_devices": [1, 3], "strategy": "one_device", "devices": [1]}, ("one", "GPU:1"), ["GPU:1"]),
        ({"visible_devices": []}, ("one", "CPU:0"), []),
    ],
)
def test_devices_by_number(machine: Any, settings: dict[str, Any], used: Any, idle: list[str]) -> None:
    machine(4)
    got = devices(**settings)
    assert (got.strategy if isinstance(used, tuple) else got.strategy[1]) == used
    assert list(got.idle) == idle


def test_logical_cpus_take_the_place_of_gpus_and_of_what_is_said_of_them(machine: Any) -> None:
    made = machine(0)
    got = devices(2, visible_devices=[0, 1], memory_growth=False, logical_gpus={"number": 2, "memory": 64})
    assert made.calls == [("soft", True), ("split", "CPU:0", [None, None]), ("start",)]
    assert got.names == ("CPU:0", "CPU:1")
    machine(4)
    assert devices(2).idle == tuple(GPUS)


PARTS = {"visible_devices": [3], "memory_growth": False}


@pytest.mark.parametrize(
    ("settings", "operation"),
    [
        ({"cross_device": "nccl"}, "NcclAllReduce"),
        ({"cross_device": "hierarchical_copy"}, "HierarchicalCopyAllReduce"),
        ({"cross_device": "reduction_to_one"}, "ReductionToOneDevice"),
        # TensorFlow's default is NCCL but where all GPUs of the machine are fewer than all parts.
        ({**PARTS, "logical_gpus": {"number": 4, "memory": 2048}}, "ReductionToOneDevice"),
        ({**PARTS, "logical_gpus": {"number": 8, "memory": 2048}}, "NoneType"),
    ],
)
def test_the_cross_device_operation_is_the_one_named_and_never_nccl_between_parts_of_one_card(
    machine: Any, settings: dict[str, Any], operation: str
) -> None:
    machine(4)
    assert type(devices(**settings).strategy[2]["cross_device_ops"]).__name__ == operation


SPLIT = {"number": 2, "memory": 64}


@pytest.mark.parametrize(
    ("settings", "gpus", "fields"),
    [
        ({"cross_device": "nccl"}, 0, {"expected": "GPUs, found CPU:0, CPU:1"}),
        ({"cross_device": "hierarchical_copy"}, 3, {"where": "cross_device: hierarchical_copy", "got": 3}),
        ({"strategy": "mirrored"}, 1, {"expected": "devices, found GPU:0"}),
        ({"strategy": "mirrored", "devices": [0, 4]}, 4, {"where": "distribution.devices", "got": 4}),
        ({"visible_devices": [4]}, 4, {"where": "visible_devices", "got": 4}),
        ({"memory_growth": False, "logical_gpus": SPLIT}, 0, {"fault": "split, found 0"}),
    ],
)
def test_what_the_machine_has_not_is_refused(
    machine: Any, settings: dict[str, Any], gpus: int, fields: dict[str, object]
) -> None:
    machine(gpus)
    logical = 2 if settings == {"cross_device": "nccl"} and not gpus else None
    with refused(DeviceError, **fields):
        devices(logical, **settings)


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({}, "memory_growth"),
        ({"memory_growth": False, "memory_limit": 1024}, "memory_limit"),
        ({"visible_devices": [0]}, "visible_devices"),
        ({"memory_growth": False, "logical_gpus": SPLIT}, "logical_gpus"),
    ],
)
def test_too_late_is_said_clearly(machine: Any, settings: dict[str, Any], where: str) -> None:
    machine(1).started = True
    with refused(DeviceError, where=f"distribution.{where}"):
        devices(**settings)


def test_real_tensorflow_says_too_late_too(tensorflow: ModuleType, four_replicas: list[str]) -> None:
    with refused(DeviceError, where="--logical-devices"):
        make_devices(DistributionConfig(), 3)


def test_unused_gpus_and_unknown_memory_are_said(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(4)
    text = describe(devices(strategy="one_device"), 64, "float32")
    assert text.endswith("warning: 3 visible GPUs stay unused: GPU:1, GPU:2, GPU:3")
    machine(0, listed=4)  # as with TensorFlow's CPU wheel on a server with GPUs
    assert "warning: this machine has 4 GPUs, " in describe(devices(), 64, "float32")
    machine(0, listed=4)
    assert "warning" not in describe(devices(visible_devices=[]), 64, "float32")  # then it was meant

    machine(1)
    monkeypatch.setattr(setup, "_ask_driver", lambda: [(MODEL, BYTES), (MODEL, 2 * BYTES)])
    monkeypatch.setattr(setup, "cards_listed", lambda: 1)
    assert f"{MODEL}  unknown" in describe(devices(), 16, "float32")


def test_the_drivers_answer_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    ask = setup._ask_driver.__wrapped__
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setattr(driver.shutil, "which", lambda _: str(tool))
    for script, expected in (
        (f"echo '{MODEL}, 11264'; echo 'A, B, 100'", [(MODEL, BYTES), ("A, B", 100 * 2**20)]),
        ("echo Failed to initialize NVML; exit 9", []),
        ("echo '[N/A], [N/A]'", []),
    ):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        assert ask() == expected
    monkeypatch.setattr(driver.shutil, "which", lambda _: None)
    assert ask() == []


def test_what_bits_depend_on_is_told_libraries_of_gpus_alone(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu, gpu = Device("CPU:0", "its model", "", "CPU"), Device("GPU:0", "a card", "", "GPU:0")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    told = Devices(None, (cpu, gpu)).computed_on
    assert told["processor"]
    assert told["devices"] == "CPU, a card"
    assert told["TF_ENABLE_ONEDNN_OPTS"] == "0"
    threads = tensorflow.config.threading.get_intra_op_parallelism_threads()
    assert told["threads of an operation"] == str(threads or len(os.sched_getaffinity(0)))
    if not threads:
        monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
        assert Devices(None, (cpu,)).computed_on["threads of an operation"] == "3"

    installed = {"nvidia-cudnn-cu12": "9.28.0.42", "nvidia-nccl-cu12": "2.32.3"}

    def version(name: str) -> str:
        if name not in installed:
            raise PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr("segmenter.devices.setup.version", version)
    cpu, gpu = Device("CPU:0", "its model", "", "CPU"), Device("GPU:0", "a card", "", "GPU:0")
    assert "libraries" not in hardware_facts([cpu])
    assert hardware_facts([gpu])["libraries"] == "cuDNN 9.28.0, NCCL 2.32.3"
    installed.clear()
    assert hardware_facts([gpu])["libraries"] == "of the system"


def test_a_loaded_librarys_version_is_what_it_says_itself_not_its_packages(tmp_path: Path) -> None:
    code = "unsigned long cudnnGetVersion(void) { return 91403; }"
    source, library = tmp_path / "made.c", tmp_path / "libcudnn.so.9.14"
    source.write_text(code)
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    form = ("libcudnn", "cudnnGetVersion", (10_000, 100))
    assert loaded_version(*form) == ""
    ctypes.CDLL(str(library))
    assert loaded_version(*form) == "9.14.3"
    assert "cuDNN 9.14.3" in cuda_libraries()


@pytest.mark.parametrize(
    ("capability", "there"),
    [((7, 5), True), ((8, 0), True), ((8, 6), True), ((6, 1), False), ((9, 0), False), ((12, 0), False)],
)
def test_cards_without_machine_code_of_their_own_are_known(capability: tuple[int, int], there: bool) -> None:
    assert has_kernels(capability, ["sm_70", "sm_80", "sm_89", "compute_90"]) is there


THREE = [Device(f"CPU:{i}", "its model", "", "CPU") for i in range(3)]


@pytest.mark.parametrize(("shares", "unit"), [((3, 2, 1, 2), 1), ((1, 1, 1), 3), ((7, 0, 2), 3)])
def test_each_device_gets_its_quota_or_one_more_or_less_and_all_tiles_are_dealt(
    shares: tuple[int, ...], unit: int
) -> None:
    for units in (8, 11, 64, 101):
        counts = deal_tiles(units * unit, shares, unit)
        assert sum(counts) == units * unit
        assert all(count % unit == 0 for count in counts)
        quotas = np.array(shares) * units / sum(shares)
        assert np.all(np.abs(np.array(counts) / unit - quotas) < 1)
        assert all(bool(count) == bool(share) for count, share in zip(counts, shares, strict=True))
    assert deal_tiles(sum(shares) * unit, shares, unit) == tuple(unit * share for share in shares)


def test_a_share_that_would_get_nothing_is_refused_and_zero_is_not() -> None:
    message = (
        r"distribution.shares: expected a tile of a step for every device that has a share, got none for "
        r"device 2 of 8 tiles by \[9, 9, 1\]; raise training.global_batch, or give it 0"
    )
    with pytest.raises(ConfigError, match=message):
        deal_tiles(8, (9, 9, 1))
    assert deal_tiles(8, (9, 9, 0)) == (4, 4, 0)
    with refused(ConfigError, where="distribution.shares", expected="each micro-batch"):
        deal_tiles(8, (3, 3, 2), 4)

    assert deal_tiles(66, (1, 1, 1, 1)) == (17, 17, 16, 16)


@pytest.mark.parametrize("seconds", [(1.0, 1.0, 2.1), (3.0, 1.0, 7.0)])
def test_the_quickest_shares_are_quicker_than_all_others(seconds: tuple[float, ...]) -> None:
    """Against every way to deal nine tiles so that each device has one."""
    counts = quickest(9, seconds)
    assert sum(counts) == 9

    def slowest(tiles: Any) -> float:
        return max(count * each for count, each in zip(tiles, seconds, strict=True))

    ways = itertools.product(range(1, 10), repeat=len(seconds))
    assert slowest(counts) == min(slowest(way) for way in ways if sum(way) == 9)


def test_devices_that_are_alike_get_equal_parts_as_far_as_their_memory_goes() -> None:
    assert quickest(64, (1.0, 1.05, 0.99, 1.02)) == (16, 16, 16, 16)
    assert quickest(64, (1.0, 1.0, 2.0, 2.0)) == (22, 22, 10, 10)
    assert quickest(10, (1.0, 1.01, 1.02)) == (4, 3, 3)

    assert quickest(24, (1.0, 2.0), most=(12, None)) == (12, 12)
    assert quickest(24, (1.0, 2.0), unit=2, most=(5, None)) == (10, 14)
    assert quickest(24, (1.0, 2.0), most=(4, 4)) == quickest(24, (1.0, 2.0))  # nothing fits: who knows

    with refused(ConfigError, where="shares: auto", got="4 tiles"):
        quickest(4, (1.0, 1.0, 2.0), unit=2)


def test_each_replica_gets_its_block_of_the_batch(tensorflow: Any) -> None:
    from tests.helpers.laboratory import strategy_of

    devices = Devices(strategy_of(3), tuple(THREE), shares=(3, 0, 1))
    assert devices.replica_tiles(8) == (6, 0, 2)
    assert devices.local_batch(8) == 6
    blocks = devices.distribute((np.arange(16).reshape(2, 8),), axis=1)[0]
    found = devices.strategy.experimental_local_results(blocks)
    assert [block.numpy().tolist() for block in found] == [
        [[0, 1, 2, 3, 4, 5], [8, 9, 10, 11, 12, 13]],
        [[], []],
        [[6, 7], [14, 15]],
    ]
    assert [block.device.rpartition("device:")[2] for block in found] == ["CPU:0", "CPU:1", "CPU:2"]


def test_shares_for_other_devices_are_refused() -> None:
    message = r"distribution.shares: expected 3, one for each device \(CPU:0, CPU:1, CPU:2\), got 2"
    with pytest.raises(DeviceError, match=message):
        with_given(Devices(None, tuple(THREE)), (2, 1))
    assert with_given(Devices(None, tuple(THREE[:2])), (2, 1)).shares == (2, 1)


CARDS, TOTALS = ["2080 Ti", "1080 Ti"], {"2080 Ti": 11264 * 2**20}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (None, [None, None]),
        (4096, [4096, 4096]),
        ("6000 MiB", [6000, 6000]),
        ([4096, 2048], [4096, 2048]),
        (["50 %", 2048], [5632, 2048]),
        (["100%", 64], [11264, 64]),
    ],
    ids=str,
)
def test_a_limit_is_for_all_cards_or_for_each_in_mebibytes_or_percent(
    asked: Any, expected: list[Any]
) -> None:
    config = DistributionConfig(memory_limit=asked, memory_growth=asked is None)
    assert DistributionConfig(**config.model_dump(mode="json")) == config  # as recipe.yaml keeps it
    assert memory_limits(config.memory_limit, CARDS, TOTALS) == expected


@pytest.mark.parametrize(
    ("asked", "fields"),
    [
        ((64,), {"where": "memory_limit", "got": 1}),
        ("50 %", {"where": "memory_limit: 50 %", "expected": "nvidia-smi"}),
        (12000, {"where": "memory_limit", "got": 12000}),
    ],
)
def test_a_limit_that_the_cards_cannot_have_is_refused(asked: Any, fields: dict[str, object]) -> None:
    with refused(DeviceError, **fields):
        memory_limits(asked, CARDS, TOTALS)
    assert memory_limits(asked, [], TOTALS) == []  # no card, nothing to limit
