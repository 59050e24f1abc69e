"""Report on this machine's GPUs: those TensorFlow sees, why others are missing, those a run would use.

Exit code 0 if all GPUs can be used or there are none; 2 if a GPU exists but cannot be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import ConfigError, DeviceError
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option, parse_options
from segmenter.base.terminal import say
from segmenter.config.recipe_options import SettingOptions

from .frame import tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options(SettingOptions):
    recipe: Path | None = option(
        None,
        "YAML recipe whose devices and precision are reported (default: no recipe, all GPUs)",
        positional=True,
    )
    logical_devices: int | None = option(
        None,
        "number of logical devices to split the CPU into, 1 … 64 (default: not split)",
        "N",
        among=range(1, 65),
    )

    def __post_init__(self) -> None:
        if self.set and self.recipe is None:
            raise ConfigError("--set changes a recipe's setting: it needs RECIPE")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report; return the exit code."""
    given = parse_options(_parser(), _Options, arguments)
    from segmenter.config.reading import load_recipe

    recipe = None if given.recipe is None else load_recipe(given.recipe, given.set)

    from segmenter.config.devices import DistributionConfig
    from segmenter.devices import report
    from segmenter.devices.driver import machine_gpus
    from segmenter.devices.strategy import describe
    from segmenter.extras.strategies import devices_of

    machine, seen = machine_gpus(), report.look(given.logical_devices)
    distribution = DistributionConfig() if recipe is None else recipe.distribution
    precision = "float32" if recipe is None else recipe.training.precision
    devices, refused = None, None
    try:
        devices = devices_of(distribution, given.logical_devices)
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


_CALLS = {
    "": "GPUs of this machine, and why others are missing",
    "configs/mine.yaml": "devices and batch of each that a training would use",
    "configs/mine.yaml --logical-devices 4": "as if the CPU were four devices",
}


def _parser() -> ToolParser:
    return tool_parser("devices", __doc__, _Options, calls=_CALLS)
