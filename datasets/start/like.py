"""Split of an earlier recipe or run of the same data, so that scenes keep the parts that models know."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.api.layouts import root_of
from segmenter.base.errors import ConfigError, SegmenterError, plain
from segmenter.base.files import real
from segmenter.base.terminal import warn
from segmenter.config.datasets import FolderConfig
from segmenter.config.reading import load_recipe, recipe_from, with_deals
from segmenter.grid.deals import Deals, deal_file, read_deals
from segmenter.grid.scenes import path_below
from segmenter.runs.run import RUN_FILE, load_run

from .. import load_dataset
from .choice import Choice, nest_choices

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe

_SPLIT = "dataset.split."


def as_before(seen: Sequence[Choice], like: Path | None, recipe: Path) -> tuple[tuple[Choice, ...], Deals]:
    """Return the choices of the dataset with an earlier recipe's split, and its deals.

    Args:
        seen: choices of the dataset section.
        like: earlier recipe, or run; None: the newest recipe of the same data in the folder of `recipe`.
        recipe: file to write.

    Raises:
        ConfigError, CheckpointError: `like` is neither, or its split is not one of a folder.
        DatasetError: its split does not fit the data.
    """
    if like is not None:
        before = load_run(like).recipe if (like / RUN_FILE).exists() else load_recipe(like)
        if not isinstance(before.dataset, FolderConfig):
            raise ConfigError(f"--like {like}", expected="a recipe of a folder", got=before.dataset.kind)
        taken = _with_earlier_split(seen, before, like)
        load_dataset(_recipe(taken, before))
        return taken, before.dataset.deals
    for path, before in _earlier_recipes(seen, recipe):
        try:
            taken = _with_earlier_split(seen, before, path)
            load_dataset(_recipe(taken, before))
        except SegmenterError as error:
            warn(plain(f"the split of {path.name} is not taken over: {error}"))
        else:
            return taken, before.dataset.deals
    return tuple(seen), read_deals(deal_file(recipe))


def _earlier_recipes(seen: Sequence[Choice], recipe: Path) -> Iterator[tuple[Path, Recipe]]:
    """Yield the recipes of the same data in the folder of a file that is not written yet, newest first."""
    files = [path for path in recipe.absolute().parent.glob("*.y*ml") if path.is_file()]
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        with suppress(SegmenterError):  # no recipe
            before = load_recipe(path)
            if _same_data(seen, before):
                yield path, before


def _same_data(seen: Sequence[Choice], before: Recipe) -> bool:
    section, settings = before.dataset, {choice.key: choice.value for choice in seen}
    if not isinstance(section, FolderConfig) or settings.get("dataset.kind") != "folder":
        return False
    return real(root_of(section.root)) == real(root_of(str(settings["dataset.root"])))


def _with_earlier_split(seen: Sequence[Choice], before: Recipe, path: Path) -> tuple[Choice, ...]:
    """Return the choices with the split of an earlier recipe in place of their own.

    Scenes that it names and that are gone are left out of its lists.
    """
    split = before.dataset.model_dump(mode="json", exclude_defaults=True).get("split", {})
    if listed := [key for key in ("validation", "test", "leave_out") if key in split]:
        group = {"split": {"group": split.get("group")}}
        unsplit = nest_choices(choice for choice in seen if not choice.key.startswith(_SPLIT))
        scenes = load_dataset(
            recipe_from({"name": "planned", "dataset": unsplit["dataset"] | group}, "")
        ).scenes
        root = root_of(before.dataset.root)
        called = {name for each in scenes for name in (each.name, each.group, path_below(root, each.image))}
        for key in listed:
            split[key] = [entry for entry in split[key] if fnmatch.filter(called, entry) or entry in called]
    why = f"as in {path.name}: its scenes keep their parts"
    left = [choice for choice in seen if choice.key == f"{_SPLIT}leave_out"]
    unfit = [name for choice in left for name in choice.value]
    for key in ("validation", "test"):
        if key in split:
            split[key] = [entry for entry in split[key] if entry not in unfit]
    if unfit:  # as files that cannot be read now, or do not fit
        split["leave_out"] = sorted({*split.get("leave_out", []), *unfit})
    settings = {f"{_SPLIT}{key}": value for key, value in split.items()}
    blocks = settings.pop(f"{_SPLIT}blocks", None) or {}
    settings |= {f"{_SPLIT}blocks.{key}": value for key, value in blocks.items()}
    own = [choice for choice in seen if not choice.key.startswith(_SPLIT)]
    whys = {choice.key: choice.reason for choice in left}
    return (*own, *(Choice(key, value, whys.get(key, why)) for key, value in settings.items()))


def _recipe(choices: Sequence[Choice], before: Recipe) -> Recipe:
    return with_deals(
        recipe_from({"name": "planned", **nest_choices(choices)}, "the plan"), before.dataset.deals
    )
