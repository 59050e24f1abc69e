"""Audit the dataset of a recipe; exit code 0 only if it is clean."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from segmenter.base.errors import EXIT_SOME_FAILED, SegmenterError
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option
from segmenter.base.terminal import say, stdout_for_json
from segmenter.grid.scenes import SPLITS

from .frame import parse_quietly, tool_parser
from .options import ClusterRecipeOptions


@dataclass(frozen=True, kw_only=True)
class _Options(ClusterRecipeOptions):
    all: bool = option(False, "print every finding and file (default: the first of each kind)")
    json: bool = option(False, "print the findings as one JSON object on stdout, all other text on stderr")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what is found; return the exit code."""
    given = parse_quietly(_parser(), _Options, arguments)
    with stdout_for_json(given.json) as answer:
        text, facts, unmet = _audit(given)
        say(text)
        if given.json:
            told = {**facts, "unmet": [str(error) for error in unmet]}
            print(json.dumps(told), file=answer, flush=True)
        for each in unmet[:-1]:
            say(f"error: {each}", aside=True)
    if unmet:
        raise unmet[-1]
    return 0 if facts["clean"] else EXIT_SOME_FAILED


def _audit(given: _Options) -> tuple[str, dict[str, Any], list[SegmenterError]]:
    """Return the findings as text and as data, and which demands of the recipe are not met."""
    from segmenter.demands.dataset import unmet_demands
    from segmenter.extras.dask.spread import spread_over

    from .. import load_dataset
    from ..check import check_dataset
    from ..made import MadeFilesError

    recipe = given.read()
    try:
        dataset = load_dataset(recipe)
    except MadeFilesError as error:
        return error.text(everything=given.all), error.to_dict(), []
    with spread_over(given.cluster, dataset.root) as spread:
        report = check_dataset(dataset, spread=spread)
    readable = not any(finding.kind in ("unreadable", "bands") for finding in report.findings)
    validation_K = report.pixels_PK[SPLITS.index("validation")]
    unmet = list(unmet_demands(recipe, dataset, validation_K, images=readable))
    return report.text(everything=given.all, fits=not unmet), report.to_dict(), unmet


_CALLS = {
    "configs/mine.yaml": "check every file, label value and leak between splits",
    "configs/mine.yaml --all": "print every finding",
}


def _parser() -> ToolParser:
    return tool_parser("check", __doc__, _Options, calls=_CALLS)
