"""Run every benchmark, each in a process of its own; one JSON line each."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> int:
    """The exit code is 1 if any of them failed."""
    argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Run every benchmark: some hours, one JSON line each.",
        epilog="One alone: python -m benchmarks.NAME",
    ).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "potsdam"
        make = ["datasets", "make", "potsdam", str(data), "--scenes", "6", "--seed", "1", "--size", "1024"]
        subprocess.run([sys.executable, "-m", *make], check=True, stdout=subprocess.DEVNULL)
        calls = [
            ["benchmarks.colour_baseline", "configs/demo.yaml", "--set", f"dataset.root={data}"],
            ["benchmarks.collectives"],
            ["benchmarks.equivalence"],
            ["benchmarks.determinism"],
            ["benchmarks.memory"],
            ["benchmarks.overhead"],
            ["benchmarks.counting"],
            ["benchmarks.augmentation"],
            ["benchmarks.pipeline"],
            ["benchmarks.reading_tiles"],
            # Beside the loaders of others: python -m benchmarks.input_peers --peer-python FILE
            ["benchmarks.input_peers", "--tiles", "512", "--repeats", "3"],
            ["benchmarks.four_gpus"],
            ["benchmarks.fusion"],
            ["benchmarks.scaling"],
            ["benchmarks.planning"],
            ["benchmarks.prediction"],
            # 20,000 pixels wide and 100,000 high in full: python -m benchmarks.prediction_memory
            ["benchmarks.prediction_memory", "--width", "4000", "--heights", "4000", "20000"],
            # 8192² and 6000² pixels in full: python -m benchmarks.sliding_window; without MONAI it says so
            ["benchmarks.sliding_window", "--side", "4096", "--unet-side", "2000", "--memory", "2.5GB"],
            ["benchmarks.seams"],
            # Half an hour in full: python -m benchmarks.coverage_help; python -m benchmarks.devices_and_seeds
            ["benchmarks.coverage_help", "--quick"],
            # Hours: python -m benchmarks.what_lifts
        ]
        codes = [subprocess.run([sys.executable, "-m", *call], check=False).returncode for call in calls]
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
