"""Memory and cores that this process may use: of the machine, its control groups and its limits."""

from __future__ import annotations

import ctypes
import math
import os
import resource
from collections.abc import Iterator
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_MIB = 2**20
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's `mallopt`, as in its malloc.h."""


def machine_memory() -> int:
    """Return the memory in bytes: of the machine, or the smallest limit of this process's control groups."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min((total, *(limit for limit, _ in _group_limits())))


def free_memory() -> int:
    """Return the bytes that can be allocated without swapping, on the machine and in the control groups."""
    known = _facts(_PROC / "meminfo").get("MemAvailable", machine_memory())
    return min((known, *(max(0, limit - taken) for limit, taken in _group_limits())))


def usable_cores() -> int:
    """Return the number of cores that this process may use, by CPU affinity and control-group quota.

    A container's limit (`docker run --cpus 4`) is such a quota; part of a core counts as one.
    """
    return max(1, min((len(os.sched_getaffinity(0)), *(math.ceil(quota) for quota in _group_quotas()))))


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next allocation instead of returning it at once.

    Training on a CPU frees and allocates the same tensors in each step; pages returned to the system come
    back one by one, filled with zeros. `studies.cpu_step --given-back` measures the cost.

    Returns:
        True if the C library supports it (glibc).
    """
    # Blocks above 64 MiB still go back: with all of them kept, 0.2 GiB more stayed in use for no less time.
    return _set_freed(64 * _MIB, 1024 * _MIB)


def return_freed_memory() -> bool:
    """Let the C library return freed arrays of 1 MiB and more to the system at once.

    By default it keeps what is freed up to 32 MiB for the next array. Between the reading, computing and
    writing of windows, that fits none: 170 MB stayed beyond what `--memory` counts.

    Returns:
        True if the C library supports it (glibc).
    """
    return _set_freed(_MIB, _MIB)


def _set_freed(block: int, top: int) -> bool:
    """Set from how many bytes on a freed block, or the free end of the heap, goes back to the system."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, block) and mallopt(_TRIM_THRESHOLD, top))


def shortages(addresses: int, data: int, memory: int) -> Iterator[str]:
    """Yield messages about limits that are too small for the bytes that a process still needs.

    Args:
        addresses: bytes of address space (`ulimit -v`).
        data: bytes of writable address space (`ulimit -d`).
        memory: bytes of memory in use, of the machine or of a control group.
    """
    used = _facts(_PROC / "self/status")
    for name, limit, taken, more in (
        ("address space (ulimit -v)", resource.RLIMIT_AS, used.get("VmSize", 0), addresses),
        ("data (ulimit -d)", resource.RLIMIT_DATA, used.get("VmData", 0), data),
    ):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY and soft - taken < more:
            yield f"{(taken + more) // _MIB} MiB of {name}, the limit is {soft // _MIB} MiB"
    machine = _facts(_PROC / "meminfo")
    if "MemAvailable" in machine and (free := machine["MemAvailable"] + machine.get("SwapFree", 0)) < memory:
        yield f"{memory // _MIB} MiB of memory, {free // _MIB} MiB are free"
    for limit, taken in _group_limits():
        if limit - taken < memory:
            free = max(0, limit - taken)
            yield f"{memory // _MIB} MiB of memory, {free // _MIB} MiB are left of its control group's"


def _facts(path: Path) -> dict[str, int]:
    """Return bytes by name from a kernel file with lines of the form `Name: 123 kB`."""
    try:
        rows = [line.split() for line in path.read_text(encoding="ascii", errors="replace").splitlines()]
    except OSError:
        return {}
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows if row[2:] == ["kB"] and row[1].isdigit()}


def _group_limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use, in bytes, of each memory-limited control group of this process.

    Cached files are not counted as use: the kernel can drop them.
    """
    for group, unified in _groups("memory"):
        if unified:
            yield from _limit(group, "memory.max", "memory.current", "file")
        else:
            yield from _limit(group, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_cache")


def _group_quotas() -> Iterator[float]:
    """Yield the processor quota, in cores, of each limited control group of this process."""
    for group, unified in _groups("cpu"):
        files = ("cpu.max",) if unified else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        try:
            words = " ".join((group / name).read_text(encoding="ascii") for name in files).split()
            quota, period = (int(word) for word in words)
        except (OSError, ValueError):  # no such file, or it says "max"
            continue
        if quota > 0 and period > 0:  # −1: none
            yield quota / period


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of this process's control groups; True for those of version 2."""
    try:
        rows = (_PROC / "self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for _, controllers, place in (row.split(":", 2) for row in rows if row.count(":") >= 2):
        if controllers and controller not in controllers.split(","):
            continue
        root = _GROUPS / controller if controllers else _GROUPS
        folder = root / place.lstrip("/")
        # A container sees its own group as the root, by whatever name.
        for group in dict.fromkeys((folder, *folder.parents, root)):
            if group == root or root in group.parents:
                yield group, not controllers


def _limit(group: Path, limit: str, use: str, cached: str) -> Iterator[tuple[int, int]]:
    try:
        most, taken = (int((group / name).read_text(encoding="ascii")) for name in (limit, use))
        rows = (line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
        files = dict(row for row in rows if len(row) == 2).get(cached, "0")
    except (OSError, ValueError):  # no such file, or it says "max"
        return
    yield most, max(0, taken - int(files))
