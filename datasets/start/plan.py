"""Plan of a recipe: from the choices of its dataset to all others, by a split in space and twelve rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from segmenter.base.errors import DatasetError, counted
from segmenter.training.beginning.demands import check_demands

from .choice import Choice, Request
from .draft import Draft
from .groups import groups_of
from .rules import AFTER_SPLIT, BEFORE_SPLIT
from .split import Space, split_of


def plan(choices: Sequence[Choice], request: Request) -> tuple[Choice, ...]:
    """Return the choices of `dataset.split` and of all sections beside `dataset`.

    The same data and the same machine give the same choices, but for epochs by measured hours. A split that
    the choices hold is kept, and so are settings that they hold of other sections.

    Args:
        choices: the dataset section; with keys of other sections, these are taken as they are.

    Raises:
        ConfigError, DatasetError, LabelError, RasterError: the choices make no dataset that can train.
    """
    draft = Draft(choices, request)
    if not draft.dataset.scenes:
        raise DatasetError(draft.dataset.root, expected="scenes to plan a training of, there are none")
    for rule in BEFORE_SPLIT:
        draft.add(rule(draft))
    draft.add(_split(draft))
    for rule in AFTER_SPLIT:
        draft.add(rule(draft))
    check_demands(draft.recipe, draft.split_dataset)  # what a training refuses
    return tuple(draft.choices[len(choices) :])


def _split(draft: Draft) -> tuple[Choice, ...]:
    """Return the split, or what a given one lacks: validation among the scenes that train beside a test."""
    dataset = draft.dataset
    if draft.recipe.dataset.kind == "naic2020" or draft.held_out or dataset.of("validation"):
        return ()
    space = _space(draft, [i for i, scene in enumerate(dataset.scenes) if scene.split == "train"])
    choices = split_of(space, folder=draft.folder)
    if draft.folder or not space.tested:
        return choices
    tested = [scene.name for scene in dataset.of("test")]
    return (*choices, Choice("dataset.split.test", tested, f"published: {counted(len(tested), 'scene')}"))


def _space(draft: Draft, chosen: Sequence[int]) -> Space:
    """Return what a split of some scenes is planned from."""
    recipe, dataset, (apart, known) = draft.recipe, draft.dataset, draft.apart
    scenes, infos = tuple(dataset.scenes[i] for i in chosen), [draft.infos[i] for i in chosen]
    whole = len(scenes) == len(dataset.scenes)
    return Space(
        *(replace(dataset, scenes=scenes), infos, draft.counts_SK()[list(chosen)], draft.samples),
        groups=draft.groups if whole else groups_of(dataset.root, scenes, infos, apart),
        apart=apart,
        known=known,
        radius=draft.size_of(recipe.model).network.radius,
        tile=recipe.tiles.size,
        seed=recipe.seed,
        tested=not whole,
    )
