"""Make imagery in the layout of a published dataset, to try things on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from segmenter.base.errors import ConfigError
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option
from segmenter.base.terminal import say

from .frame import parse_quietly, tool_parser


@dataclass(frozen=True, kw_only=True)
class _Options:
    kind: Literal["potsdam", "naic2020"] = option(
        ..., "published dataset whose layout of files is made", positional=True
    )
    folder: Path = option(..., "folder to write the imagery to", "DIR", positional=True)
    scenes: int = option(..., "number of scenes to make", "N", least=1)
    seed: int = option(0, "seed of the imagery; the same seed gives the same files (default: 0)", "S")
    size: int | None = option(
        None, "side of a scene in pixels (default: 6000 for potsdam, 256 for naic2020)", "PX", least=1
    )
    round: int | None = option(
        None, "round of the contest, naic2020 only: 1 has 8 classes, 2 has 15 (default: 1)", among=(1, 2)
    )
    padded_names: bool = option(
        False, "write numbers in names with two digits, potsdam only: 02_10 in place of 2_10"
    )

    def __post_init__(self) -> None:
        if self.kind == "potsdam" and self.round is not None:
            raise ConfigError("--round is for naic2020")
        if self.kind != "potsdam" and self.padded_names:
            raise ConfigError("--padded-names is for potsdam")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the scenes; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)
    from ..synthetic.make import make_naic2020, make_potsdam

    options: dict[str, Any] = {"scenes": given.scenes, "seed": given.seed}
    options |= {} if given.size is None else {"size": given.size}
    if given.kind == "potsdam":
        files = make_potsdam(given.folder, **options, padded_names=given.padded_names)
    else:
        files = make_naic2020(given.folder, **options, round=given.round or 1)
    say(f"{len(files)} scenes in {given.folder}")
    return 0


_CALLS = {
    "potsdam data/mine --scenes 6 --seed 1 --size 1024": "six small scenes in the layout of ISPRS Potsdam",
    "naic2020 data/naic --scenes 500": "500 tiles in the layout of NAIC2020",
}


def _parser() -> ToolParser:
    return tool_parser("make", __doc__, _Options, calls=_CALLS)
