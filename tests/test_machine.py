"""How much memory there is, and that TensorFlow is not imported where it would crash."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from segmenter.base import machine
from segmenter.base.machine import free_memory, machine_memory, shortages, usable_cores

MIB = 2**20
ROOT = Path(__file__).resolve().parents[1]
FREED = """
import sys
import numpy as np
from segmenter.base.machine import keep_freed_memory
if sys.argv[1:] == ["keep"]:
    assert keep_freed_memory()
pages = lambda: int(open("/proc/self/statm").read().split()[1])
np.ones(1, np.uint8).sum()
before = pages()
block = np.ones(50 * 2**20, np.uint8)
taken = pages() - before
del block
print((pages() - before) / taken)
"""
IMPORT = """
import resource, sys
from segmenter.base.errors import run_script
from segmenter.devices.setup import load_tensorflow
kind = getattr(resource, sys.argv[1])
resource.setrlimit(kind, (int(sys.argv[2]), int(sys.argv[2])))
sys.exit(run_script(lambda: load_tensorflow() or 0))
"""


@pytest.mark.parametrize(("words", "least", "most"), [([], -0.1, 0.1), (["keep"], 0.9, 1.1)])
def test_freed_memory_is_kept_where_that_is_asked_for(words: list[str], least: float, most: float) -> None:
    command = [sys.executable, "-c", FREED, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert least <= float(done.stdout) <= most


@pytest.mark.parametrize(
    ("kind", "mebibytes", "said"),
    [("RLIMIT_AS", 1200, "(ulimit -v)"), ("RLIMIT_DATA", 400, "(ulimit -d)")],
)
def test_too_little_room_for_tensorflow_is_one_line(kind: str, mebibytes: int, said: str) -> None:
    """Without a look before, the import ends in SIGSEGV or SIGABRT, or never."""
    command = [sys.executable, "-c", IMPORT, kind, str(mebibytes * MIB)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: TensorFlow cannot be")
    assert f"{said}, the limit is {mebibytes} MiB" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`kernel("proc/meminfo", "MemAvailable: 100 kB")`: a file of the kernel's, in a folder of the test's."""
    monkeypatch.setattr(machine, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(machine, "_GROUPS", tmp_path / "cgroup")

    def make(name: str, text: object) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")

    return make


def lacking(memory: int) -> list[str]:
    return list(shortages(0, 0, memory * MIB))


def test_a_machine_without_free_memory_is_told(kernel: Callable[..., None]) -> None:
    assert lacking(10**6) == []  # where nothing is known
    kernel("proc/meminfo", f"MemTotal: 999999999 kB\nMemAvailable: {300 * 1024} kB\nSwapFree: {50 * 1024} kB")
    assert lacking(350) == []
    assert lacking(351) == ["351 MiB of memory, 350 MiB are free"]


def test_the_smallest_control_group_around_a_process_counts(kernel: Callable[..., None]) -> None:
    for folder, limit in (("cgroup/a/b", "max"), ("cgroup/a", 1000 * MIB), ("cgroup", 2000 * MIB)):
        kernel(f"{folder}/memory.max", limit)
        kernel(f"{folder}/memory.current", 900 * MIB)
        kernel(f"{folder}/memory.stat", f"anon 1\nfile {300 * MIB}\nfile_dirty 7")
    kernel("proc/self/cgroup", "0::/a/b")
    assert machine_memory() == 1000 * MIB
    assert lacking(400) == []
    assert lacking(401) == ["401 MiB of memory, 400 MiB are left of its control group's"]


def test_control_groups_of_the_first_version_count_too(kernel: Callable[..., None]) -> None:
    kernel("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/job\n0::/")
    kernel("cgroup/memory/job/memory.limit_in_bytes", 500 * MIB)
    kernel("cgroup/memory/job/memory.usage_in_bytes", 200 * MIB)
    kernel("cgroup/memory/job/memory.stat", "cache 5\ntotal_cache 0")
    assert machine_memory() == 500 * MIB
    assert lacking(301) == ["301 MiB of memory, 300 MiB are left of its control group's"]


def test_cores_are_counted_by_affinity_and_by_the_quota_of_every_control_group(
    kernel: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(40)))
    assert usable_cores() == 40
    kernel("proc/self/cgroup", "0::/a/b")
    kernel("cgroup/a/b/cpu.max", "max 100000")
    assert usable_cores() == 40
    kernel("cgroup/a/cpu.max", "1250000 100000")
    assert usable_cores() == 13
    kernel("cgroup/cpu.max", "50000 100000")
    assert usable_cores() == 1
    kernel("proc/self/cgroup", "3:cpu,cpuacct:/job\n0::/")
    kernel("cgroup/cpu/job/cpu.cfs_quota_us", 600000)
    kernel("cgroup/cpu/job/cpu.cfs_period_us", 100000)
    kernel("cgroup/cpu.max", "max 100000")
    assert usable_cores() == 6
    kernel("cgroup/cpu/job/cpu.cfs_quota_us", -1)
    assert usable_cores() == 40


def test_free_memory_is_the_machines_or_what_a_control_group_has_left(kernel: Callable[..., None]) -> None:
    kernel("proc/meminfo", f"MemTotal: 999999999 kB\nMemAvailable: {300 * 1024} kB")
    assert free_memory() == 300 * MIB
    kernel("proc/self/cgroup", "0::/a")
    kernel("cgroup/a/memory.max", 500 * MIB)
    kernel("cgroup/a/memory.current", 400 * MIB)
    kernel("cgroup/a/memory.stat", f"file {50 * MIB}")
    assert free_memory() == 150 * MIB
