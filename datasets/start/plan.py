"""Plan of a recipe: from the choices of its dataset to all others, by a split in space and twelve rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from segmenter.base.errors import DatasetError, counted

from .choice import Choice
from .draft import Draft
from .groups import groups_of
from .request import Request
from .rules import AFTER_SPLIT, BEFORE_SPLIT
from .split import Space, split_of

_SPLITS = ("dataset.split.", "dataset.validation_share")


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
        raise DatasetError(f"{draft.dataset.root}: expected scenes to plan a training of, there are none")
    for rule in BEFORE_SPLIT:
        draft.add(rule(draft))
    draft.add(_split(draft))
    for rule in AFTER_SPLIT:
        draft.add(rule(draft))
    _ = draft.recipe  # all of it together is valid
    return tuple(draft.choices[len(choices) :])


def _split(draft: Draft) -> tuple[Choice, ...]:
    """Return the split, unless there is one."""
    given = any(key.startswith(_SPLITS) and key != "dataset.split.leave_out" for key in draft.given)
    kind = draft.recipe.dataset.kind
    if given or kind == "naic2020" or draft.dataset.of("validation"):
        return ()
    if kind == "potsdam" and draft.dataset.of("test"):
        return _of_the_rest(draft)
    return split_of(_space(draft), folder=draft.folder)


def _space(draft: Draft) -> Space:
    apart, known = draft.apart
    recipe = draft.recipe
    return Space(
        *(draft.dataset, draft.infos, draft.counts_SK(), draft.samples, draft.groups, apart, known),
        radius=draft.size_of(recipe.model).network.radius,
        tile=recipe.tiles.size,
        seed=recipe.seed,
    )


def _of_the_rest(draft: Draft) -> tuple[Choice, ...]:
    """Return the published test as it is, and validation scenes among those that train."""
    space, dataset = _space(draft), draft.dataset
    keep = [i for i, scene in enumerate(dataset.scenes) if scene.split == "train"]
    scenes, infos = tuple(dataset.scenes[i] for i in keep), [space.infos[i] for i in keep]
    rest = replace(
        space,
        dataset=replace(dataset, scenes=scenes),
        infos=infos,
        counts_SK=space.counts_SK[keep],
        groups=groups_of(dataset.root, scenes, infos, space.apart),
    )
    tested = [scene.name for scene in dataset.of("test")]
    validation = [c for c in split_of(rest, folder=False) if c.key == "dataset.split.validation"]
    return (*validation, Choice("dataset.split.test", tested, f"published: {counted(len(tested), 'scene')}"))
