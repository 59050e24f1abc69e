"""Time and memory of mapping, against MONAI's sliding window.

Both from file to file, each mapping in a process of its own, alternately. MONAI's time is that of the faster
run of the two before and after ours, with the batch and threads that suit it best.

- A model that costs nothing (one 1×1 convolution, 8 classes), 256 px windows: with a halo of 32 px, and
  blended with half of a window as overlap. Both must give the same classes. Memory is what the file takes
  beyond the process after its imports and one window; `peak` is the whole process.
- A U-Net of 1.9 M parameters, the same Keras model on both sides, with one halo and one limit to the memory
  of the process: ours with the window that the program chooses, MONAI with that which turns out best.

Needs the extra `monai` and an idle machine: torch's threads wait for each other, so that a busy one
makes MONAI look slower than it is. A time well above that of the processor shows it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import tempfile
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from studies.mapping_task import Measured, Task, run_task
from datasets.commands.gpu.prediction import make_raster
from segmenter.base.errors import ConfigError, run_script
from segmenter.inference.memory import parse_memory
from segmenter.grid.windows import least_window, round_up

Mode = Literal["exact", "smooth"]
OURS, MONAI = "studies.sliding_window_ours", "studies.sliding_window_monai"
WINDOW, HALO, OVERLAP = 256, 32, 128
"""Of the model that costs nothing, in pixels; the overlap is that of blended windows."""
BATCHES = (1, 4, 16)
"""That MONAI is tried with; ours are computed 16 at once."""
DIFFERENT = 1e-4
"""Share of the pixels that rounding may give another class, at most."""
MODES: tuple[Mode, ...] = ("exact", "smooth")
MIB = 2**20


def main() -> int:
    """Make the rasters, map them, print the ratios; without MONAI, one line that says so."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--side", type=int, default=8192, help="of the raster for the model that costs nothing"
    )
    parser.add_argument("--unet-side", type=int, default=6000, help="of the raster for the U-Net (Potsdam's)")
    parser.add_argument(
        "--memory", type=parse_memory, default="4GB", help="that a process with the U-Net may take"
    )
    parser.add_argument("--repeat", type=int, default=3, help="times; the median ratio counts")
    parser.add_argument("--only", choices=("exact", "smooth", "unet"), help="one of the three comparisons")
    parser.add_argument(
        "--classes",
        choices=("argmax", "max"),
        default="argmax",
        help="how MONAI's side takes the class of the largest score: argmax, as MONAI's own transform does, "
        "or max, which torch has a faster kernel for",
    )
    arguments = parser.parse_args()
    line: dict[str, Any] = {"benchmark": "sliding_window"}
    missing = [name for name in ("torch", "monai") if importlib.util.find_spec(name) is None]
    if missing:
        why = f"{' and '.join(missing)} not installed: pip install -e '.[monai]' in this environment"
        print(json.dumps({**line, "measured": False, "why": why}))
        return 0
    warnings.simplefilter("ignore", NotGeoreferencedWarning)
    with tempfile.TemporaryDirectory() as name:
        folder, only = Path(name), arguments.only
        if only != "unet":
            make_raster(folder / "free.tif", arguments.side, arguments.side)
        for mode in MODES:
            line |= _free(folder, mode, arguments) if only in (None, mode) else {}
        line |= _unet(folder, arguments) if only in (None, "unet") else {}
    print(json.dumps(line))
    return 0


@dataclass(frozen=True)
class Pair:
    """Our runs, and MONAI's before, between and after them."""

    ours: list[Measured]
    monai: list[Measured]

    @property
    def ratios(self) -> list[float]:
        """Our time over the faster of MONAI's beside it, of each repetition."""
        beside = zip(self.ours, self.monai, self.monai[1:], strict=False)
        return [ours.seconds / min(before.seconds, after.seconds) for ours, before, after in beside]

    def figures(self, pixels: int) -> dict[str, Any]:
        """Of a raster; two values are ours and MONAI's, memory is the largest of the runs."""
        sides = (self.ours, self.monai)
        return {
            "time_ratios": [round(ratio, 3) for ratio in self.ratios],
            "time_over_monai": round(float(np.median(self.ratios)), 3),
            "Mpixel_s": [round(pixels / 1e6 / min(run.seconds for run in runs), 2) for runs in sides],
            "processor_seconds": [round(min(run.processor_seconds for run in runs), 1) for runs in sides],
            "beyond_MiB": [round(max(run.beyond for run in runs) / MIB) for runs in sides],
            "peak_MiB": [round(max(run.peak for run in runs) / MIB) for runs in sides],
            "window_and_batch": [[runs[0].window, runs[0].batch] for runs in sides],
        }


def _free(folder: Path, mode: Mode, arguments: argparse.Namespace) -> dict[str, Any]:
    """The model that costs nothing.

    Raises:
        ConfigError: the two maps differ: the comparison would not be one.
    """
    overlap = 2 * HALO if mode == "exact" else OVERLAP
    ours = Task("free", mode, str(folder / "free.tif"), str(folder / "ours.tif"), WINDOW, 16, overlap)
    theirs = replace(ours, target=str(folder / "monai.tif"), classes=arguments.classes)
    best = _faster([_run(replace(theirs, batch=batch)) for batch in BATCHES])
    first, theirs = _faster([best, _run(replace(best[1], threads=1))])
    pair = _alternately(ours, theirs, first, arguments.repeat)
    share, pixels = _differing(folder / "ours.tif", folder / "monai.tif")
    if share > DIFFERENT:
        raise ConfigError(
            f"sliding_window: expected the same classes on both sides in {mode} mode, got others on "
            f"{share:.2%} of the pixels; the two do not compute the same"
        )
    figures = pair.figures(pixels)
    beyond = figures["beyond_MiB"]
    figures |= {"memory_over_monai": round(beyond[0] / beyond[1], 3), "other_classes": share}
    figures["monai_threads"] = theirs.threads or "default"
    return {f"{mode}_{name}": value for name, value in figures.items()}


def _unet(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    side, memory = arguments.unet_side, arguments.memory
    source = make_raster(folder / "unet.tif", side, side)
    ours = Task("unet", "exact", str(source), str(folder / "ours.tif"), memory=memory)
    stride, radius = _geometry()
    halo = round_up(radius, stride)
    theirs = replace(ours, target=str(folder / "monai.tif"), overlap=2 * halo, classes=arguments.classes)
    first, theirs = _best(theirs, fitting_windows(side, halo, stride))
    pair = _alternately(ours, theirs, first, arguments.repeat)
    figures = pair.figures(side * side)
    figures["speed_over_monai"] = round(1 / figures["time_over_monai"], 3)
    figures["other_classes"] = _differing(folder / "ours.tif", folder / "monai.tif")[0]
    figures |= {"halo": halo, "limit_MiB": round(memory / MIB)}
    return {f"unet_{name}": value for name, value in figures.items()}


def _geometry() -> tuple[int, int]:
    """(stride, receptive-field radius) of the U-Net."""
    from benchmarks.prediction import unet_model
    from segmenter.devices.setup import load_tensorflow
    from segmenter.model.receptive_field import network_geometry

    load_tensorflow()
    found = network_geometry(unet_model())
    assert found.radius is not None
    return found.stride, found.radius


def _alternately(ours: Task, theirs: Task, first: Measured, repeat: int) -> Pair:
    """`first` is a run of theirs."""
    pair = Pair([], [first])
    for _ in range(repeat):
        pair.ours.append(run_task(OURS, ours))
        pair.monai.append(run_task(MONAI, theirs))
    return pair


def fitting_windows(side: int, halo: int, stride: int) -> list[int]:
    """Windows with which a raster takes no pixel more than as many of them need, ascending.

    From twice what is lost to the halo on, up to the raster itself.
    """
    largest = round_up(side, stride)
    sides = range(min(4 * halo, largest), largest + 1, stride)
    return sorted({least_window(largest, window, halo, stride) for window in sides})


def _best(task: Task, windows: list[int]) -> tuple[Measured, Task]:
    """MONAI's fastest run whose process keeps to the task's memory, and its task.

    The largest window that fits is searched by halves, which tries smaller ones too: the fastest of them all,
    once more with two windows at a time.

    Raises:
        ConfigError: even the smallest window takes more.
    """
    tried: list[tuple[Measured, Task]] = []
    low, high = 0, len(windows)  # of windows[:low] all fit, of windows[high:] none
    while low < high:
        middle = (low + high) // 2
        found = _run(replace(task, window=windows[middle], batch=1))
        low, high = (middle + 1, high) if found[0].peak <= task.memory else (low, middle)
        tried.append(found)
    fitting = [found for found in tried if found[0].peak <= task.memory]
    if not fitting:
        least = min(found.peak for found, _ in tried)
        raise ConfigError(
            f"--memory: expected at least {least / 1e9:.1f}GB, which MONAI takes with windows of "
            f"{windows[0]} pixels, got {task.memory / 1e9:.1f}GB; give more, or a smaller --unet-side"
        )
    best = _faster(fitting)
    twice = _run(replace(best[1], batch=2))
    return _faster([best, twice]) if twice[0].peak <= task.memory else best


def _run(task: Task) -> tuple[Measured, Task]:
    found = run_task(MONAI, task)
    print(f"MONAI: {found}", file=sys.stderr)
    return found, task


def _faster(found: list[tuple[Measured, Task]]) -> tuple[Measured, Task]:
    return min(found, key=lambda pair: pair[0].seconds)


def _differing(one: Path, other: Path) -> tuple[float, int]:
    """(share of the pixels of two maps whose class differs, pixels)."""
    different = pixels = 0
    with rasterio.open(one) as a, rasterio.open(other) as b:
        for _, window in a.block_windows(1):
            ids = a.read(1, window=window)
            different += int((ids != b.read(1, window=window)).sum())
            pixels += ids.size
    return different / pixels, pixels


if __name__ == "__main__":
    sys.exit(run_script(main))
