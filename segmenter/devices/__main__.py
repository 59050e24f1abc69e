"""Report on this machine's GPUs: those TensorFlow sees, why others are missing, those a run would use.

Exit code 0 if all GPUs can be used or there are none; 2 if a GPU exists but cannot be used.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import DeviceError, run_tool
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.terminal import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return the exit code."""
    parser = _parser()
    args = parser.parse_args(arguments)
    if args.set and args.recipe is None:
        parser.error("--set changes a recipe's setting: it needs RECIPE")
    from segmenter.config.reading import load_recipe

    recipe = None if args.recipe is None else load_recipe(args.recipe, args.set)

    from segmenter.config.devices import DistributionConfig
    from segmenter.devices import report
    from segmenter.devices.driver import machine_gpus
    from segmenter.devices.strategy import describe
    from segmenter.extras.strategies import make_devices

    machine, seen = machine_gpus(), report.look(args.logical_devices)
    distribution = DistributionConfig() if recipe is None else recipe.distribution
    precision = "float32" if recipe is None else recipe.training.precision
    devices, refused = None, None
    try:
        devices = make_devices(distribution, args.logical_devices)
    except DeviceError as error:  # told after what the machine has, which may be the reason
        refused = error
    lines = report.describe_machine(machine, seen, () if devices is None else devices.used)
    if devices is not None:
        lines += report.describe_run(devices, precision, seen)
    if devices is not None and recipe is not None:
        to_measure = distribution.shares == "auto"
        lines.append(describe(devices, recipe.training.global_batch, precision, to_measure=to_measure))
    say("\n".join(lines))
    return _end(*report.why_not(machine, seen), refused)


def _end(why: str, fault: bool, refused: DeviceError | None) -> int:
    """Return the exit code, or raise an error: unusable GPUs first, then a refused device request."""
    if fault:
        raise DeviceError(why)
    if why:
        say(f"note: {why}")
    if refused is not None:
        raise refused
    return 0


def _parser() -> ToolParser:
    parser = ToolParser(prog=invocation("devices"), description=__doc__)
    parser.add_argument("recipe", nargs="?", type=Path, help="whose devices and precision; default: all GPUs")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as in distribution.strategy=one_device",
    )
    parser.add_argument(
        "--logical-devices", type=int, choices=range(1, 65), metavar="N", help="split the CPU into N"
    )
    return parser


if __name__ == "__main__":
    sys.exit(run_tool(main))
