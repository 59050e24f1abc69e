"""What all arms of `studies.input_peers` share: the files, the transforms and the measurement.

Imports nothing of ours, so that the arms of PyTorch run in a Python that has only their libraries.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
os.environ.setdefault("OPENCV_LOG_LEVEL", "ERROR")  # it warns of the tags of every GeoTIFF
CASES = ("flips", "all")
"""`flips`: flips and quarter turns alone; `all`: also zoom and rotation, and colour."""
SCALE, ROTATION, BRIGHTNESS, CONTRAST, HUE, SATURATION = 0.1, 15, 0.2, 0.2, 10, 0.2
P_AFFINE, P_BRIGHTNESS, P_HUE = 0.5, 0.5, 0.3
SIDE = 256
_SKIPPED = 8
"""Batches, at least, before the clock starts: what is made ahead is made ahead at its end too."""


def arguments(about: str | None) -> argparse.Namespace:
    """Options of an arm."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("arm", help="which of this module's arms")
    parser.add_argument("--folder", type=Path, required=True, help="with images/*.tif and labels/*.tif")
    parser.add_argument("--case", choices=CASES, default="all")
    parser.add_argument("--batch", type=int, default=16, help="tiles")
    parser.add_argument("--batches", type=int, default=64, help="that are timed")
    parser.add_argument(
        "--workers", type=int, default=2, help="processes, or threads where an arm has threads"
    )
    return parser.parse_args()


def files(folder: Path) -> list[tuple[str, str]]:
    """Images and their labels."""
    images = sorted((folder / "images").glob("*.tif"))
    return [(str(path), str(folder / "labels" / path.name)) for path in images]


def transforms(case: str) -> Any:
    """The transforms of a case by albumentations, which every arm applies."""
    import albumentations as library
    import cv2

    cv2.setNumThreads(0)
    flips = [library.D4(p=1.0)]
    if case == "flips":
        return library.Compose(flips)
    zoom, turn = (1 - SCALE, 1 + SCALE), (-ROTATION, ROTATION)
    return library.Compose(
        [
            *flips,
            library.Affine(scale=zoom, rotate=turn, fill_mask=255, p=P_AFFINE),
            library.RandomBrightnessContrast(BRIGHTNESS, CONTRAST, p=P_BRIGHTNESS),
            library.HueSaturationValue(HUE / 2, 255 * SATURATION, 0, p=P_HUE),
        ]
    )


def measure(batches: Iterable[Any], options: argparse.Namespace, first: int = 0) -> None:
    """Time batches of an endless source, after the `first` ones, and print one line of JSON.

    Processor time is that of this process and of all that descend from it.
    """
    source = iter(batches)
    for _ in range(max(_SKIPPED, first)):
        next(source)
    cpu, clock = _processor_seconds(), time.perf_counter()
    for _ in range(options.batches):
        next(source)
    tiles = options.batches * options.batch
    spent, passed = _processor_seconds() - cpu, time.perf_counter() - clock
    print(json.dumps({"ms_processor": 1000 * spent / tiles, "tiles_per_second": tiles / passed}), flush=True)
    for descendant in _family() - {os.getpid()}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(descendant, signal.SIGTERM)
    os._exit(0)  # an endless source has no end to wait for


def _family() -> set[int]:
    """This process and its descendants."""
    parents = {number: int(fields[1]) for number, fields in _table().items()}

    def is_ours(number: int | None) -> bool:
        while number is not None and number != os.getpid():
            number = parents.get(number)
        return number is not None

    return {number for number in parents if is_ours(number)}


def _table() -> dict[int, list[str]]:
    """Process → what Linux says of it, from its state on."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it may just have ended
                found[int(folder.name)] = (folder / "stat").read_text().rpartition(")")[2].split()
    return found


def _processor_seconds() -> float:
    """Of this process and its descendants, also of those that have ended."""
    table = _table()
    ticks = sum(int(ticks) for number in _family() & table.keys() for ticks in table[number][11:15])
    return ticks / os.sysconf("SC_CLK_TCK")
