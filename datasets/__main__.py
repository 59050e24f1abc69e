"""Tools for datasets: check, pack, make, class coverage, stitching of scenes: `python -m datasets`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from segmenter.base.errors import end_at_once_on_ctrl_c

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time

from segmenter.base.errors import (
    EXIT_SOME_FAILED,
    ConfigError,
    DatasetError,
    SegmenterError,
    plain,
    run_tool,
)
from segmenter.base.files import check_writable
from segmenter.base.invocation import ToolParser, invocation
from segmenter.base.options import Command, OverwriteOptions, add_commands, option, parsed_command
from segmenter.base.terminal import say, words_aside
from segmenter.config.recipe_options import RecipeOptions
from segmenter.extras.dask.options import ClusterOptions
from segmenter.grid.scenes import SPLITS

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.diagnosis import Diagnosis

_ABOUT = "Check, pack or make a dataset, tell its class coverage, or stitch a scene."
_LARGEST_BATCH = 65_536
_STDOUT = Path("-")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand; return the exit code."""
    run = parsed_command(_parser(), _COMMANDS, arguments)
    from segmenter.raster import quiet_gdal  # not before: --help answers at once

    quiet_gdal()
    return run()


@dataclass(frozen=True, kw_only=True)
class _ClusterRecipeOptions(RecipeOptions):
    cluster: ClusterOptions | None = None

    def read(self, *more: str) -> Recipe:
        """Return the recipe; with a cluster, paths become absolute for its workers."""
        recipe = super().read(*more)
        if self.cluster is None:
            return recipe
        paths = {"root": recipe.dataset.root, "cache": recipe.dataset.cache}
        absolute = [f"dataset.{name}={json.dumps(os.path.abspath(p))}" for name, p in paths.items() if p]
        return super().read(*more, *absolute)


@dataclass(frozen=True, kw_only=True)
class _CheckOptions(_ClusterRecipeOptions):
    all: bool = option(False, "print every finding and file (default: the first of each kind)")
    json: bool = option(False, "print the findings as one JSON object on stdout, all other text on stderr")


def _check(given: _CheckOptions) -> int:
    with words_aside(given.json) as answer:
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


def _audit(given: _CheckOptions) -> tuple[str, dict[str, Any], list[SegmenterError]]:
    """Return the findings as text and as data, and which demands of the recipe are not met."""
    from segmenter.extras.dask.spread import spread_over
    from segmenter.training.beginning.demands import unmet_demands

    from . import load_dataset
    from .check import check_dataset
    from .made import MadeFilesError

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


@dataclass(frozen=True, kw_only=True)
class _CoverageOptions(_ClusterRecipeOptions):
    all: bool = option(False, "print also the classes, scales, other ways of sampling, and what would help")
    split: Literal["train", "validation", "test"] = option(
        "train", "scenes to diagnose, by their part in the split (default: train)"
    )
    batch: str | None = option(
        None,
        "sizes of the global batch to diagnose, in tiles (default: 16,32,64,128 and the recipe's own)",
        "N,N,…",
    )
    run: Path | None = option(
        None, "run directory of a training whose steps are compared with the plan", "DIR"
    )
    report: Path | None = option(
        None, "HTML page to write with the whole diagnosis (default: none)", "FILE.html"
    )
    json: Path | None = option(
        None,
        "JSON file to write with the whole diagnosis; without FILE.json it is printed on stdout",
        "FILE.json",
        alone=_STDOUT,
    )


def _coverage(given: _CoverageOptions) -> int:
    from segmenter.base.files import write_whole

    files = [path for path in (given.json, given.report) if path not in (None, _STDOUT)]
    for path in files:  # before any work is done
        check_writable(path)
    if given.json and given.report and given.json.resolve() == given.report.resolve():
        raise SegmenterError(
            given.json, expected="two files for --json and --report", got="one name for both"
        )
    with words_aside(given.json == _STDOUT) as answer:
        diagnosis = _diagnosed(given)
        if given.json:
            facts = json.dumps(diagnosis.to_dict(), allow_nan=False)
            if given.json == _STDOUT:
                print(facts, file=answer, flush=True)
            else:
                write_whole(given.json, f"{facts}\n".encode())
        if given.report:
            from segmenter.diagnosis.report import html_report

            write_whole(given.report, html_report(diagnosis).encode())
        for path in files:
            say(plain(f"written: {path}"))
    return 0


def _diagnosed(given: _CoverageOptions) -> Diagnosis:
    from segmenter.diagnosis import diagnose, table
    from segmenter.extras.dask.spread import spread_over
    from segmenter.tiles.gsd import with_gsds
    from segmenter.tiles.index import build_index

    from . import load_dataset

    recipe = given.read()
    batches = _batches(given.batch, recipe.training.global_batch)
    dataset = load_dataset(recipe)
    if not dataset.of(given.split):
        raise DatasetError(dataset.root, expected=f"scenes of the split {given.split}, there are none")
    for file, reason in dataset.unused:
        say(plain(f"left out: {file}: {reason}"))
    for note in dataset.notes:
        say(plain(note))
    with spread_over(given.cluster, dataset.root) as spread:
        built = build_index(dataset, given.split, recipe.tiles, spread=spread)
    diagnosis = diagnose(recipe, dataset, with_gsds(built, dataset, recipe), batches, given.run)
    say(table(diagnosis, everything=given.all))
    if not given.all:
        say("--all shows classes, other ways of sampling and what would help; --report draws it all")
    return diagnosis


@dataclass(frozen=True, kw_only=True)
class _AugmentedOptions(RecipeOptions):
    output: Path = option(..., "PNG picture to write", "FILE.png")
    tiles: int = option(4, "number of tiles to draw, each in a row (default: 4)", "N", least=1)
    draws: int = option(3, "number of random augmentations drawn of each tile (default: 3)", "N", least=1)


def _augmented(given: _AugmentedOptions) -> int:
    from segmenter.diagnosis.augmented import draw_augmented

    from . import load_dataset

    recipe = given.read()
    check_writable(given.output)
    dataset = load_dataset(recipe)
    draw_augmented(recipe, dataset, given.output, tiles=given.tiles, draws=given.draws)
    say(plain(f"written: {given.output}"))
    return 0


def _pack(given: _ClusterRecipeOptions) -> int:
    from segmenter.extras.dask.spread import spread_over

    from . import load_dataset
    from .pack import pack_dataset

    dataset = load_dataset(given.read())
    with spread_over(given.cluster, dataset.root) as spread:
        for line in pack_dataset(dataset, spread=spread):
            say(plain(line))
    return 0


def _batches(text: str | None, own: int) -> list[int]:
    """Return batch sizes in order: a comma-separated list, else the usual sizes and the recipe's own."""
    if text is None:
        from segmenter.diagnosis import USUAL_BATCHES

        return sorted({*USUAL_BATCHES, own})
    try:
        sizes = {int(part) for part in text.split(",")}
    except ValueError:
        sizes = {0}
    if not all(1 <= size <= _LARGEST_BATCH for size in sizes):
        raise ConfigError(
            "--batch",
            expected=f"whole numbers of tiles in 1 … {_LARGEST_BATCH}, as in 16,32,64",
            got=f"{text!r}",
        )
    return sorted(sizes)


@dataclass(frozen=True, kw_only=True)
class _MakeOptions:
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


def _make(given: _MakeOptions) -> int:
    from .synthetic.make import make_naic2020, make_potsdam

    options: dict[str, Any] = {"scenes": given.scenes, "seed": given.seed}
    options |= {} if given.size is None else {"size": given.size}
    if given.kind == "potsdam":
        files = make_potsdam(given.folder, **options, padded_names=given.padded_names)
    else:
        files = make_naic2020(given.folder, **options, round=given.round or 1)
    say(f"{len(files)} scenes in {given.folder}")
    return 0


@dataclass(frozen=True, kw_only=True)
class _StitchOptions(OverwriteOptions):
    pattern: str = option(
        ...,
        "glob pattern of the parts, in quotes; sorted by name they fill the scene row by row",
        "PATTERN",
        positional=True,
        path=True,
    )
    columns: int = option(..., "number of parts in a row of the scene", "N", least=1)
    output: Path = option(..., "GeoTIFF to write", "FILE.tif")


def _stitch(given: _StitchOptions) -> int:
    from .stitch import find_parts, stitch

    parts = find_parts(given.pattern)
    with given.alone_at(given.output):
        size = stitch(parts, given.columns, given.output)
    say(f"{plain(str(given.output))}: {size} pixels from {len(parts)} parts")
    return 0


_COMMANDS = {
    "check": Command("audit the dataset of a recipe; exit code 0 only if it is clean", _CheckOptions, _check),
    "coverage": Command(
        "which classes batches hold, at random and as planned, and what limits it",
        _CoverageOptions,
        _coverage,
    ),
    "augmented": Command(
        "a picture of augmented training tiles and their labels", _AugmentedOptions, _augmented
    ),
    "pack": Command(
        "decode all training scenes once, for the fastest reading; training then uses the packs",
        _ClusterRecipeOptions,
        _pack,
    ),
    "make": Command(
        "make imagery in the layout of a published dataset, to try things on", _MakeOptions, _make
    ),
    "stitch": Command("join the parts of a cut scene into one GeoTIFF", _StitchOptions, _stitch),
}


def _parser() -> ToolParser:
    return add_commands(ToolParser(prog=invocation("datasets"), description=_ABOUT), _COMMANDS)


if __name__ == "__main__":
    raise SystemExit(run_tool(main))
