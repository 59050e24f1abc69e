"""Coverage of a dataset as a Python object, as printed by `segmenter coverage`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segmenter.api.tiles import Classes, Paths, Scenes, Tiles, index_tiles, recipe_with
from segmenter.api.values import whole_number
from segmenter.base.errors import DatasetError
from segmenter.base.files import write_whole
from segmenter.base.terminal import listening
from segmenter.config.recipe import Recipe
from segmenter.diagnosis import USUAL_BATCHES, Diagnosis, table
from segmenter.diagnosis import diagnose as diagnosis_of


@dataclass(frozen=True, repr=False)
class Coverage(Diagnosis):
    """All facts on the class coverage of one split; prints as the tables of `segmenter coverage --all`.

    Its attributes are the keys of the JSON of `docs/coverage.md`; `to_dict` returns them as plain data.
    """

    def __repr__(self) -> str:
        return table(self)

    def write_report(self, path: Paths) -> None:
        """Write the report: one HTML page with charts, which needs no network.

        Raises:
            OutputError: the file cannot be written.
        """
        from segmenter.diagnosis.report import html_report

        write_whole(Path(path), html_report(self).encode())


def diagnose(
    scenes: Tiles | Scenes,
    classes: Classes | None = None,
    *,
    batches: Sequence[int] = (),
    recipe: Paths | Recipe | None = None,
    run: Paths | None = None,
    progress: bool = False,
    **settings: Any,
) -> Coverage:
    """Diagnose the classes in random and planned batches, the limiting class, and remedies.

    >>> coverage = diagnose(tiles, global_batch=4)
    >>> print(coverage.limit.why.split(". ")[0])
    water is held by the fewest tiles: 2 of 15 (13.33%)
    >>> coverage.forecast.needed  # batch size that holds all classes with this probability (%)
    {'90': 10, '99': 13, '99.9': 14}

    Args:
        scenes: as in `index_tiles`, or its result.
        classes: as in `index_tiles`.
        batches: batch sizes to compare plan and shuffle; default: 16, 32, 64, 128, `global_batch`.
        recipe: a recipe, or its file, that provides the defaults of the other settings.
        run: a run directory, whose coverage is compared with the promises.
        progress: show bars on stderr.
        settings: `global_batch`, tiles of a step; `min_pixels`, `max_repeats` and `seed`, as in `plan_epoch`
            (None: the recipe's);
            `size`, `overlap`, `min_labelled`, `split`, `bands` and `cache`, as in `index_tiles`.

    Raises:
        SegmenterError: see `index_tiles`; the run has no log of coverage, or other classes.
    """
    tiling, changes = dict(settings), {}
    for name in ("global_batch", "min_pixels", "max_repeats", "seed"):
        changes[name] = tiling.pop(name, None)
    if isinstance(scenes, Tiles):
        if wrong := [name for name, value in {"classes": classes, **tiling}.items() if value is not None]:
            raise DatasetError(wrong[0], "the tiles are made already", remedy="say it to index_tiles")
        made_with, dataset, index = scenes._source
        asked = recipe_with(made_with if recipe is None else recipe, **changes)
    else:
        asked = recipe_with(recipe, **changes)
        made = index_tiles(scenes, classes, recipe=asked, progress=progress, **tiling)
        asked, dataset, index = made._source
    own = asked.training.global_batch
    sizes = sorted({*(whole_number("batches", batch) for batch in batches or USUAL_BATCHES), own})
    where = None if run is None else Path(os.fspath(run))
    with listening(bars=progress):
        facts = diagnosis_of(asked, dataset, index, sizes, where, progress=progress)
    return Coverage(**vars(facts))
