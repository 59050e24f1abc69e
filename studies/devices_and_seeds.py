"""Scores of `potsdam_small` on 1 and on 4 logical devices, seed by seed: devices against seeds.

Makes its imagery, then trains and maps the held-out scene as a user would, with train.py and
predict.py, for each seed and number of devices. Prints a table of mIoU on stderr and one JSON line: the
largest difference between seeds on the same number of devices; the largest between numbers of devices with
the same seed; and that between the means over the seeds. Both of the latter are compared with the first.
Strictly, no two single runs of one seed may differ by more than seeds do: `runs_differ_no_more_than_seeds`.
But such a pair differs by chance as well, since in float32 the order of sums is another on other devices, and
training makes that grow as it does a seed's difference. A systematic effect of the devices is one on the
means, where chance is averaged: `means_differ_no_more_than_seeds`, the weaker of the two. Half an hour on two
idle cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

RECIPE = "configs/potsdam_small.yaml"
TEST = "top_potsdam_2_13_RGB.tif"
LABELS = "5_Labels_all_noBoundary/{scene}_label_noBoundary.tif"
Scores = Mapping[tuple[int, int], float]
"""(seed, devices) → mIoU in percent."""


def main() -> None:
    """Run all pairs and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--scenes", type=int, default=6, help="made ones, of which one is held out")
    parser.add_argument(
        "--output", type=Path, help="keep data and runs here; scores that are there are reused"
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as for train.py")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.output or Path(folder)
        scores = {}
        for seed in arguments.seeds:
            for devices in arguments.devices:
                scores[seed, devices] = _score(place, seed, devices, arguments.scenes, arguments.set)
                print(f"seed {seed}, {devices} devices: mIoU {scores[seed, devices]:.2f}", file=sys.stderr)
    print(table(scores), file=sys.stderr)
    print(json.dumps({"benchmark": "devices_and_seeds", **spreads(scores)}))


def spreads(scores: Scores) -> dict[str, float | bool]:
    """The spreads in points of mIoU, each the largest there is; whether devices matter no more than seeds.

    The first comparison is the strict one, of single runs; the second that of the means over the seeds.
    """
    seeds = sorted({seed for seed, _ in scores})
    devices = sorted({number for _, number in scores})
    between_seeds = max(_range([scores[seed, number] for seed in seeds]) for number in devices)
    between_devices = max(_range([scores[seed, number] for number in devices]) for seed in seeds)
    means = [sum(scores[seed, number] for seed in seeds) / len(seeds) for number in devices]
    return {
        "lowest": round(min(scores.values()), 2),
        "highest": round(max(scores.values()), 2),
        "between_seeds": round(between_seeds, 2),
        "between_devices": round(between_devices, 2),
        "between_means_of_devices": round(_range(means), 2),
        "runs_differ_no_more_than_seeds": between_devices <= between_seeds,
        "means_differ_no_more_than_seeds": _range(means) <= between_seeds,
    }


def table(scores: Scores) -> str:
    """mIoU in percent: a row for each seed, a column for each number of devices."""
    seeds = sorted({seed for seed, _ in scores})
    devices = sorted({number for _, number in scores})
    lines = ["seed" + "".join(f"{number:>4} devices" for number in devices)]
    lines += [f"{seed:<4}" + "".join(f"{scores[seed, n]:12.2f}" for n in devices) for seed in seeds]
    return "\n".join(lines)


def _range(values: Sequence[float]) -> float:
    return max(values) - min(values)


def _score(place: Path, seed: int, devices: int, scenes: int, settings: Sequence[str]) -> float:
    """mIoU in percent on the held-out scene, of a training from the start."""
    data, folder = place / f"data{scenes}", place / f"seed{seed}-devices{devices}-scenes{scenes}"
    if not data.is_dir():
        _call("-m", "datasets", "make", "potsdam", data, "--scenes", scenes, "--seed", 1, "--size", 1024)
    if not (folder / "scores.json").is_file():
        run = folder / "run"
        several = ["--logical-devices", devices] if devices > 1 else []
        chosen = [f"seed={seed}", f"dataset.root={data}", *settings]
        _call(
            "train.py", RECIPE, "--run", run, *several, *(part for key in chosen for part in ("--set", key))
        )
        scoring = ["--labels", data / LABELS, "--protocol", "potsdam-6", "--split-name", "test"]
        _call("predict.py", run, data / "2_Ortho_RGB" / TEST, "--output", folder, *scoring)
    return 100 * float(json.loads((folder / "scores.json").read_text(encoding="utf-8"))["miou"])


def _call(*arguments: object) -> None:
    """A script of ours, as a user runs it; what it says is shown where it fails."""
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, arguments))} ended with {done.returncode}:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
