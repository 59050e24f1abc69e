r"""U-Net of segmentation_models_pytorch beside a training of this project, for as much processor time.

    python -m studies.smp_beside configs/dubai_pretrained.yaml --steps 558 --split validation \
        --smp-python ENV/bin/python --set dataset.root=DIR --set dataset.split.test=[] \
        --set 'dataset.split.validation=["tile_1"]' --output studies/results/smp/dubai-1-0.json

Steps of `train.py` are timed first, on the same core: what `--steps` of them take is what `studies.smp_unet`
trains.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from segmenter.base.files import write_whole

_TIMED = (40, 100)
"""Steps between which a training is timed: the first are compiled."""


def main() -> int:
    """Return the exit code of the training."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe")
    parser.add_argument("--steps", type=int, required=True, help="of the training that this stands beside")
    parser.add_argument("--split", default="test", choices=["validation", "test"], help="scenes to score")
    parser.add_argument(
        "--smp-python", required=True, metavar="FILE", help="the Python that has the extra `smp`"
    )
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    sets = [word for setting in given.overrides for word in ("--set", setting)]
    log = given.output.with_suffix(".log")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cached = [*sets, "--set", f"dataset.cache={folder / 'cache'}"]
        train = [sys.executable, "train.py", given.recipe, "--run", str(folder / "timed"), *cached]
        minutes = given.steps * step_seconds(train, folder / "timed", log, given.core) / 60
        call = [given.smp_python, "-m", "studies.smp_unet", given.recipe, "--split", given.split, *cached]
        call += ["--minutes", f"{minutes:.2f}", "--output", str(folder)]
        code, _ = on_core(call, log, given.core)
        if code:
            return code
        found = json.loads((folder / "smp.json").read_text())
    scores = found.pop("scores")
    kept = {"steps_beside": given.steps, "mIoU": scores["miou"], "IoU": scores["iou"], **found}
    kept["settings"] = [setting for setting in given.overrides if not setting.startswith("dataset.root=")]
    write_whole(given.output, json.dumps(kept, indent=1).encode())
    print(
        f"{given.output.stem}: mIoU {scores['miou']:.3f}, {found['steps']} steps in {minutes:.1f} minutes",
        flush=True,
    )
    return 0


def on_core(command: list[str], log: Path, core: int) -> tuple[int, float]:
    """Return the exit code of a command on one core, and the processor seconds that it took."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, preexec_fn=lambda: os.sched_setaffinity(0, {core})
        )
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, used.ru_utime + used.ru_stime


def step_seconds(train: list[str], run: Path, log: Path, core: int) -> float:
    """Begin a training on one core, end it soon, and return the processor seconds of a step."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            train, stdout=output, stderr=output, preexec_fn=lambda: os.sched_setaffinity(0, {core})
        )
        try:
            first, last = (_reached(process, run / "log.jsonl", step) for step in _TIMED)
        finally:
            process.terminate()
            process.wait()
    return (last - first) / (_TIMED[1] - _TIMED[0])


def _reached(process: subprocess.Popen[bytes], log: Path, step: int) -> float:
    """Return the processor seconds that a training has used when its log has this step."""
    while not (log.is_file() and f'"step": {step},' in log.read_text()):
        if process.poll() is not None:
            raise SystemExit(
                f"{log}: expected a training of {step} steps or more, see the log beside the output"
            )
        time.sleep(0.2)
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user, system


if __name__ == "__main__":
    sys.exit(main())
