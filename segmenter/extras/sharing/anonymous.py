"""Copy of a run without information on its owner's machine and locations.

It omits the paths in the recipe and in all its copies, a TPU's address, the outlines of the training scenes,
and the pictures and page with imagery. Weights, scores and settings are unchanged: the copy predicts the same
bits, and training can resume with `--set dataset.root=…`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.base.errors import SegmenterError, failing
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.extras.sharing.known_facts import Known
from segmenter.runs.checkpoints import META, load_arrays, save_arrays
from segmenter.runs.origin import FILE as ORIGIN
from segmenter.runs.origin import load_origin, save_origin
from segmenter.runs.report.sections import REPORT
from segmenter.runs.resume import Facts
from segmenter.runs.run import RECIPE_FILE, RUN_FILE, Run
from segmenter.runs.score_files import SUMMARY
from segmenter.runs.windows_file import WINDOWS

LEFT_OUT = "left-out"
"""In the place of a folder's path."""
_SHOWING = (SUMMARY, REPORT, WINDOWS)
"""Files that show imagery or paths."""
_PATHS = (("dataset", "root"), ("dataset", "files"), ("dataset", "cache"), ("distribution", "tpu"))


def paths_of(recipe: Recipe) -> Iterator[str]:
    """Yield text such as `dataset.root /data/city` for each setting with a path or address."""
    data = recipe.model_dump(mode="json")
    for section, key in _PATHS:
        if data[section].get(key) is not None:
            yield f"{section}.{key} {data[section][key]}"
    if (weights := data["model"].get("weights")) not in (None, "imagenet"):
        yield f"model.weights {weights}"


def without_paths(recipe: Recipe) -> Recipe:
    """Return the recipe without paths; of weight files, only the name remains."""
    data: dict[str, Any] = recipe.model_dump(mode="json")
    for section, key in _PATHS:
        if key in data[section]:
            data[section][key] = LEFT_OUT if key == "root" else None
    if data["model"].get("weights") is not None:
        data["model"]["weights"] = Path(data["model"]["weights"]).name
    return recipe_from(data, "recipe without paths")


def copy_without_paths(known: Known, names: Iterable[str], folder: Path) -> list[str]:
    """Copy files of a run into an empty folder; return the names of the copies.

    Raises:
        SegmenterError: a file cannot be read or written.
    """
    run = replace(known.run, path=folder, recipe=without_paths(known.run.recipe))
    run.save()
    copied = [RUN_FILE, RECIPE_FILE]
    for name in names:
        if name in _SHOWING or name in copied:
            continue
        source, target = known.run.path / name, folder / name
        with failing(SegmenterError, source, "cannot copy it", "is the disk full?"):
            target.parent.mkdir(exist_ok=True)
            _copy(source, target, run)
            times = source.stat()
            os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
        copied.append(name)
    return copied


def _copy(source: Path, target: Path, run: Run) -> None:
    if target.suffix == ".npz":
        save_arrays(target, _rewritten(source, run))
    elif target.name == ORIGIN and (origin := load_origin(source.parent)) is not None:
        save_origin(target.parent, origin.model_copy(update={"place": None}))
    else:
        shutil.copyfile(source, target)


def _rewritten(path: Path, run: Run) -> dict[str, Any]:
    """Return the arrays of a checkpoint with its copies of the recipe replaced by the run's."""
    arrays = load_arrays(path)
    arrays |= {name: text for name, text in run.text_arrays().items() if name in arrays}
    if META in arrays:
        facts = Facts.model_validate_json(arrays[META].tobytes())
        facts = facts.model_copy(update={"recipe": run.recipe.model_dump(mode="json")})
        arrays[META] = np.frombuffer(facts.model_dump_json().encode(), np.uint8)
    return arrays
