"""Mapping of one file to another in a process of its own: its arguments and its measurements.

A part of `studies.sliding_window`, whose two sides are such processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

CLASSES, BANDS = 8, 3
MEAN, STD = (60.0,) * BANDS, (40.0,) * BANDS
"""Of the normalisation on both sides."""


@dataclass(frozen=True)
class Task:
    """A raster to be mapped.

    Attributes:
        model: free: a 1×1 convolution; unet: the U-Net of 1.9 M parameters.
        mode: exact: windows share twice a halo; smooth: they are blended with Gaussian weights.
        window: side in pixels; 0: to be chosen for `memory`.
        batch: windows computed at once; 0: as `window`.
        overlap: pixels that neighbouring windows share.
        memory: bytes that the whole process may take; 0: not limited.
        threads: of torch; 0: as many as it likes.
        classes: how torch takes the class of the largest score.
    """

    model: Literal["free", "unet"]
    mode: Literal["exact", "smooth"]
    source: str
    target: str
    window: int = 0
    batch: int = 0
    overlap: int = 0
    memory: int = 0
    threads: int = 0
    classes: Literal["argmax", "max"] = "argmax"


@dataclass(frozen=True)
class Measured:
    """What a process took.

    Attributes:
        seconds: from file to file, after imports and one window.
        processor_seconds: that all of its threads computed meanwhile.
        base: its peak memory until then, in bytes.
        peak: the same at the end.
        window: side in pixels.
        batch: windows computed at once.
    """

    seconds: float
    processor_seconds: float
    base: int
    peak: int
    window: int
    batch: int

    @property
    def beyond(self) -> int:
        """Bytes that the file took."""
        return self.peak - self.base


def run_task(module: str, task: Task) -> Measured:
    """Have a module do it in a fresh process, on the CPU whatever the machine has.

    Raises:
        SystemExit: it failed, and said why.
    """
    command = [sys.executable, "-m", module, json.dumps(asdict(task))]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    return Measured(**json.loads(done.stdout.splitlines()[-1]))


def asked() -> Task:
    """In the process: what it is to do."""
    return Task(**json.loads(sys.argv[1]))


def measure(task: Task, one_window: Callable[[], Any], whole: Callable[[], Any]) -> None:
    """In the process: do it, and print what it took."""
    one_window()
    base = _peak()
    start, before = time.perf_counter(), time.process_time()
    whole()
    seconds, processor = time.perf_counter() - start, time.process_time() - before
    print(json.dumps(asdict(Measured(seconds, processor, base, _peak(), task.window, task.batch))))


def free_weights() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(bands, classes) kernel and (classes) bias of the model that costs nothing."""
    rng = np.random.default_rng(0)
    kernel, bias = rng.normal(size=(BANDS, CLASSES)), rng.normal(size=CLASSES)
    return kernel.astype(np.float32), bias.astype(np.float32)


def _peak() -> int:
    """Bytes of this program alone: what `getrusage` gives begins with the peak of the one that started it."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024
