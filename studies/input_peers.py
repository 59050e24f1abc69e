"""Cost of feeding a step: this project beside PyTorch's DataLoader, torchgeo, raster-vision and tf.data.

    python -m studies.input_peers --peer-python ENV/bin/python [--folder DIR] [--page studies/input_peers.md]

Tile files of 256² with deflate are made once. Every arm reads the same files and applies the same transforms
by the same library, with the same probabilities, in batches of 16: flips and quarter turns alone, and with
zoom of ±10 % and rotation of 15° (p 0.5), brightness and contrast (p 0.5), hue and saturation (p 0.3). An arm
is a process of its own; arms take turns, so that other work on the machine meets all of them. Processor time
counts that process and its workers, while batches flow: what it takes to start is left out. `--peer-python`
is a Python with the extra `peers`; without, and where a library is not there, the table says so.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from studies.input_peers_common import CASES
from studies.input_peers_files import make_files
from studies.input_peers_ours import recipe
from benchmarks.page import renew, table

_MARK = "<!-- made by studies.input_peers -->\n"
_BASELINE = "PyTorch DataLoader, cv2"
_HEAD = ("input", "ms of processor a tile", "spread", "ratio", "tiles/s by the clock", "spread")
_TITLES = {"all": "All transforms", "flips": "Flips and quarter turns alone"}


@dataclass(frozen=True)
class Arm:
    """One way to feed, in one process."""

    title: str
    module: str
    name: str
    peer: bool = False


ARMS = (
    Arm("this project, packed", "ours", "packed"),
    Arm("this project, packed, worker processes", "ours", "packed_workers"),
    Arm("this project, files in place", "ours", "in_place"),
    Arm("this project, files in place, worker processes", "ours", "in_place_workers"),
    Arm(_BASELINE, "torch", "cv2", peer=True),
    Arm("raster-vision, image data set", "torch", "rastervision", peer=True),
    Arm("torchgeo, raster data sets joined", "torch", "torchgeo", peer=True),
    Arm("tf.data, a function a tile, cv2", "tfdata", "cv2"),
    Arm("tf.data, a function a tile, rasterio", "tfdata", "rasterio"),
)


@dataclass
class Results:
    """Measurements of each case and arm, and why there are none."""

    measured: dict[tuple[str, str], list[dict[str, float]]] = field(default_factory=lambda: defaultdict(list))
    missing: dict[str, str] = field(default_factory=dict)

    def median(self, case: str, arm: Arm, what: str) -> float:
        """Of an arm's repeats."""
        return statistics.median(one[what] for one in self.measured[case, arm.title])

    def spread(self, case: str, arm: Arm, what: str) -> str:
        """Least and most of an arm's repeats."""
        values = [one[what] for one in self.measured[case, arm.title]]
        return f"{_short(min(values))} … {_short(max(values))}"


def main() -> None:
    """Make files, measure all arms in turn, print tables and one JSON line."""
    options = _arguments()
    with contextlib.ExitStack() as stack:
        kept = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory())) / "tiles"
        if not kept.is_dir():
            make_files(kept, options.tiles)
        results = Results()
        packing = _pack(kept, options, results)
        for _ in range(options.repeats):
            for case in options.cases:
                for arm in ARMS:
                    if arm.title not in results.missing:
                        _measure(arm, case, kept, options, results)
    lines = list(_page(results, options, packing))
    if options.page:
        renew(options.page, _MARK, lines)
    print("\n".join(lines), file=sys.stderr)
    measured = {f"{case}: {title}": runs for (case, title), runs in results.measured.items()}
    print(json.dumps({"benchmark": "input_peers", "runs": measured, "missing": results.missing}))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiles", type=int, default=2048, help="files to make")
    parser.add_argument(
        "--folder", type=Path, metavar="DIR", help="keep them there; used again if it is there"
    )
    parser.add_argument("--peer-python", metavar="FILE", help="the Python that has the extra `peers`")
    parser.add_argument("--batch", type=int, default=16, help="tiles")
    parser.add_argument("--batches", type=int, default=48, help="that are timed in each run")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of all arms")
    parser.add_argument("--workers", type=int, default=2, help="processes of an arm, or threads")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the tables of this page")
    return parser.parse_args()


def _pack(folder: Path, options: argparse.Namespace, results: Results) -> str:
    """Pack the files; gives a line on what that took."""
    data = recipe(folder, "all", options.batch, packed=True)
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(data, file)
        file.flush()
        clock, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "datasets", "pack", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    passed, after = time.perf_counter() - clock, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        why = _last_line(done.stderr)
        results.missing |= {arm.title: why for arm in ARMS if arm.name.startswith("packed")}
        return ""
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"Packing, once: {spent:.0f} s of processor, {passed:.0f} s by the clock (0 where packed before)."


def _measure(arm: Arm, case: str, folder: Path, options: argparse.Namespace, results: Results) -> None:
    """Run an arm once; where it cannot, it is not run again."""
    python = options.peer_python if arm.peer else sys.executable
    if python is None:
        results.missing[arm.title] = "no --peer-python"
        return
    given = {"--folder": folder, "--case": case, "--batch": options.batch}
    given |= {"--batches": options.batches, "--workers": options.workers}
    command = [python, "-m", f"benchmarks.input_peers_{arm.module}", arm.name]
    command += [str(part) for pair in given.items() for part in pair]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not found:
        results.missing[arm.title] = _last_line(done.stderr)
        return
    results.measured[case, arm.title].append(json.loads(found[-1]))
    print(f"{case}, {arm.title}: {found[-1]}", file=sys.stderr, flush=True)


def _page(results: Results, options: argparse.Namespace, packing: str) -> Iterator[str]:
    """Lines of a page: the tables, and what they were measured on."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[1]
    yield (
        f"{time.strftime('%Y-%m-%d')}, {_processor()}, {cores} cores, {options.workers} workers; median of "
        f"{options.repeats} turns of {options.batch * options.batches} tiles. Load average at the end: "
        f"{load:.1f}{', so that the clock says little' if load > cores else ''}. {packing}"
    )
    for case in options.cases:
        yield from ("", f"**{_TITLES[case]}**", "")
        baseline = next(arm for arm in ARMS if arm.title == _BASELINE)
        base = (
            results.median(case, baseline, "ms_processor") if (case, _BASELINE) in results.measured else None
        )
        yield from table(_HEAD, [_row(results, case, arm, base) for arm in ARMS])


def _row(results: Results, case: str, arm: Arm, base: float | None) -> Sequence[str]:
    if (case, arm.title) not in results.measured:
        return (arm.title, f"not measured: {results.missing[arm.title]}", "", "", "", "")
    spent = results.median(case, arm, "ms_processor")
    return (
        arm.title,
        _short(spent),
        results.spread(case, arm, "ms_processor"),
        "" if base is None else f"{spent / base:.2f}",
        _short(results.median(case, arm, "tiles_per_second")),
        results.spread(case, arm, "tiles_per_second"),
    )


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 50 else f"{value:.2f}"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:120].replace("|", "/") if lines else "it said nothing"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
