"""Scenes of today's folder as a run knows them: with the roles of its training, and without new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.addresses import is_address
from segmenter.base.errors import (
    CheckpointError,
    DatasetError,
    SegmenterError,
    counted,
    extended_error,
    plain,
)
from segmenter.base.terminal import say, warn
from segmenter.config.datasets import FolderConfig, FolderSplit, Naic2020Config
from segmenter.config.reading import with_deals
from segmenter.grid.deals import Deal, Deals, deal_file, parts_dealt, with_deal, write_deals
from segmenter.grid.scenes import SPLITS, Dataset, Scene, Split
from segmenter.runs.records import load_origin, validation_images
from segmenter.runs.scenes import FILE, KnownScene, RunScenes, load_scenes
from segmenter.tiles.scene_files import image_digests

from . import load_dataset
from .files import few, in_hash_order, parts_of, share_of, split_of

if TYPE_CHECKING:
    from segmenter.config.datasets import DatasetConfig
    from segmenter.config.recipe import Recipe
    from segmenter.runs.run import Run


def dataset_of_run(run: Run, root: str | None = None) -> Dataset:
    """Return the dataset of a run with the roles that its scenes had when its training started.

    Scenes that it does not know are left out; a note names them.

    Args:
        root: folder of the files now; None: where they were.

    Raises:
        CheckpointError: the run does not say which scenes it learnt from, and it cannot be found out.
        DatasetError: files are missing or ambiguous.
    """
    recipe = run.recipe
    if root is not None:
        moved = recipe.dataset.model_copy(update={"root": root})
        return known_dataset(recipe.model_copy(update={"dataset": moved}), run)
    try:
        return known_dataset(recipe, run)
    except DatasetError as error:
        raise extended_error(
            error, remedy="where the data lie elsewhere now, name their folder by --root"
        ) from None


def whole_scenes_of_run(run: Run, root: str | None = None) -> Dataset:
    """Return all scenes of a run's dataset as they are today, also those that its split divides into blocks.

    Args:
        root: folder of the files now; None: where they were.

    Raises:
        DatasetError: files are missing or ambiguous.
    """
    update = {} if root is None else {"root": root}
    section = run.recipe.dataset.model_copy(update=update)
    return load_dataset(run.recipe.model_copy(update={"dataset": section}), blocks=False)


def dataset_by(recipe: Recipe, run: Run) -> Dataset:
    """Return a recipe's dataset; scenes of a run's own data, also where they lie elsewhere, have its roles.

    Raises:
        CheckpointError, DatasetError: as `dataset_of_run`.
    """
    own, theirs = (each.dataset.model_dump(exclude=_PLACES) for each in (recipe, run.recipe))
    return known_dataset(recipe, run) if own == theirs else load_dataset(recipe)


_PLACES = {"root", "files", "cache", "cache_limit", "cache_compression"}
"""Settings of a dataset that say where its files are, not what they are."""


def known_dataset(recipe: Recipe, run: Run, *, roles: bool = True) -> Dataset:
    """Return the dataset of a recipe of a run's data with the scenes of the run; see `dataset_of_run`.

    Args:
        roles: False: only the choice and the deal of the scenes are the run's, as for another of its folds.
    """
    known = scenes_of_run(run, recipe)
    dataset = load_dataset(with_deals(recipe, known.deals) if known.deals else recipe)
    images = image_digests(dataset)
    found = [(scene, known.find(scene, images[scene.name])) for scene in dataset.scenes]
    scenes = tuple(
        _in_role(scene, own.role) if roles else scene
        for scene, own in found
        if own is not None and own.role in SPLITS
    )
    notes = dataset.notes
    if fresh := list(dict.fromkeys(scene.title for scene, own in found if own is None)):
        since = counted(len(fresh), "scene")
        notes += (f"new since the training, and left out here: {since}: {few(fresh)}",)
    here = {id(own) for _, own in found}
    gone = [
        f"{name} ({own.role})"
        for name, own in known.scenes.items()
        if own.role in SPLITS and id(own) not in here
    ]
    if gone:
        notes += (f"gone since the training: {counted(len(gone), 'scene')}: {few(gone)}",)
    deal = dataset.deal
    if deal is not None and (parts := parts_dealt(known.deals, deal.rule)):
        deal = Deal(deal.rule, {name: part for name, part in deal.parts.items() if name in parts})
    return replace(dataset, scenes=scenes, notes=notes, deal=deal)


def _in_role(scene: Scene, role: str) -> Scene:
    return replace(scene, split=next(split for split in SPLITS if split == role))


def seen_by(
    run: Run, scenes: Sequence[Scene], dataset: Dataset, recipe: Recipe, *, remote: bool = True
) -> list[Scene]:
    """Return those scenes of a dataset that a run learnt from, by their content.

    None, with a warning, if it cannot be known.

    Args:
        recipe: recipe of the dataset.
        remote: True: a server in the run's recipe may be contacted.
    """
    theirs = run.recipe.dataset
    try:
        known = scenes_of_run(run, run.recipe, remote=remote)
    except SegmenterError as error:
        warn(plain(f"whether these scenes trained the run is not known: {error}"))
        return []
    images = image_digests(replace(dataset, scenes=tuple(scenes)))
    by_name = theirs.root == recipe.dataset.root
    seen = []
    for scene in scenes:
        own = known.find(scene, images[scene.name], by_name=by_name)
        if own is not None and (own.blocks or scene.blocks):
            learnt, titles = _learnt_blocks(known, theirs)
            if (
                _blocks_of(scene, dataset, recipe.dataset) & learnt
                or not _alike(theirs, recipe.dataset)
                or (scene.title not in titles and known.trained_on(images[scene.name]))
            ):
                seen.append(scene)
        elif own is not None and own.role == "train":
            seen.append(scene)
    return seen


def _alike(one: DatasetConfig, other: DatasetConfig) -> bool:
    """Return whether two datasets cut their scenes into the same blocks."""
    blocks = [None if (split := split_settings(each)) is None else split.rule.blocks for each in (one, other)]
    return bool(blocks[0]) and blocks[0] == blocks[1]


def _learnt_blocks(known: RunScenes, section: DatasetConfig) -> tuple[set[str], set[str]]:
    """Return the names of the blocks that a run learnt from, and the titles of all scenes that it divided."""
    split = split_settings(section)
    parts = {} if split is None else parts_dealt(known.deals, split.rule)
    learnt = {"train"} if known.counts["validation"] else {"train", "validation"}  # `--all` learns both
    found = {name for name, part in parts.items() if split and split_of(part, split.fold) in learnt}
    return found, {name.rpartition("/")[0] for name in parts}


def _blocks_of(scene: Scene, dataset: Dataset, section: DatasetConfig) -> set[str]:
    """Return the names of a scene's blocks that are in its split."""
    split, parts = split_settings(section), {} if dataset.deal is None else dataset.deal.parts
    return {
        name
        for name, part in parts.items()
        if split and name.rpartition("/")[0] == scene.title and split_of(part, split.fold) == scene.split
    }


def split_settings(section: DatasetConfig) -> FolderSplit | None:
    """Return the settings by which a dataset's split is dealt; None if it names its scenes."""
    if isinstance(section, FolderConfig):
        return section.split
    if isinstance(section, Naic2020Config):
        return FolderSplit(validation_share=section.validation_share)
    return None


def keep_deal(recipe: Path, deals: Deals, dataset: Dataset) -> None:
    """Write the deal of a dataset's groups beside its recipe; warn if that cannot be written.

    Args:
        deals: those that are written there.
    """
    if dataset.deal is None or (whole := with_deal(deals, dataset.deal)) == deals:
        return
    path = deal_file(recipe)
    try:
        write_deals(path, whole)
    except SegmenterError as error:
        warn(f"{error}; the parts of the groups are kept in the run alone")
        return
    parts = Counter(dataset.deal.parts.values())
    told = ", ".join(f"{part}: {parts[part]}" for part in sorted(parts))
    say(plain(f"{path}: the part of each group is written there, and stays when data are added ({told})"))


# ------------------------------------------------------------------------------------------- runs of before


def scenes_of_run(run: Run, recipe: Recipe, *, remote: bool = True) -> RunScenes:
    """Return the scenes of a run; those of a run of before are found out from what it noted.

    Args:
        recipe: recipe of its data, which may lie elsewhere now.
        remote: True: a server in that recipe may be contacted.

    Raises:
        CheckpointError: it has no record, or which scenes trained it cannot be found out.
        DatasetError: there is no record that says it, and its data are not here.
    """
    known = load_scenes(run.path)
    if known is not None and known.told:
        return known
    if remote or not is_address(recipe.dataset.root):
        today = load_dataset(recipe)
        found = _roles_by_name(today) if known is None else _infer_roles(run, known, recipe, today)
        if found is not None:
            return found
    raise CheckpointError(
        run.path,
        expected=f"in {FILE}, which scenes it learnt from",
        got="a record of before, and data or a split that it does not fit" if known else "no such file",
        remedy="give images and labels by name (predict RUN IMAGES --labels), or train anew",
    )


def _roles_by_name(today: Dataset) -> RunScenes | None:
    """Return the roles that a recipe names itself, whatever is added; None if a hash deals them."""
    if today.deal is not None:
        return None
    return RunScenes({each.name: KnownScene("", "", role=each.split) for each in today.scenes})


def _infer_roles(run: Run, known: RunScenes, recipe: Recipe, today: Dataset) -> RunScenes | None:
    """Return the record of a run of before with roles; None if they do not fit what it noted.

    Its deal is that of the names which it knew; today's new names had no part in it.
    """
    split, roles, deals = split_settings(recipe.dataset), dict[str, Split](), Deals()
    then = today
    if today.deal is not None and split is not None:
        names = _names_of_before(known, today, split)
        if names is None:
            return None
        parts = parts_of(names, split)
        deals = Deals((Deal(split.rule, parts),))
        then = load_dataset(with_deals(recipe, deals))
        roles = {name: split_of(parts[name], split.fold) for name in known.scenes if name in parts}
    titles = {name.rpartition("_")[0] for name in known.scenes}
    for scene in then.scenes:
        tested = scene.split == "test" and (not deals or scene.group in deals[0].parts)
        if scene.name in known.scenes or (scene.title in titles if scene.blocks else tested):
            roles[scene.name] = scene.split
    if not _fits(run, known, roles, then):
        return None
    blocks = [scene.name for scene in then.scenes if scene.blocks]
    return replace(known.with_roles(roles, blocks), deals=deals)


def _names_of_before(known: RunScenes, today: Dataset, split: FolderSplit) -> set[str] | None:
    """Return the groups, or blocks, that were dealt for a run of before; None if that cannot be known."""
    assert today.deal is not None, "the caller has looked"
    parts = today.deal.parts
    if split.blocks is not None:
        titles = {name.rpartition("_")[0] for name in known.scenes}
        if titles - {scene.title for scene in today.scenes}:
            return None  # the size of an image that is gone is unknown
        return {name for name in parts if name.rpartition("/")[0] in titles}
    group_of = {scene.name: scene.group for scene in today.scenes}
    gone = known.scenes.keys() - group_of.keys()
    if gone and split.group is not None:
        return None  # the path that told its group is unknown
    old = {group_of.get(name, name) for name in known.scenes} & {*parts, *gone}
    if not split.test_share:
        return old
    ranked = in_hash_order({*parts, *old}, split.seed)
    test = ranked[1 + max(place for place, name in enumerate(ranked) if name in old) :]
    return {*old, *test} if share_of(len(old) + len(test), split.test_share) == len(test) else None


def _fits(run: Run, known: RunScenes, roles: Mapping[str, Split], then: Dataset) -> bool:
    """Return whether roles agree with the numbers of scenes, and the validation images, that a run noted."""
    origin, counts = load_origin(run.path), Counter(roles.values())
    if origin is None:
        return False
    gone = len(known.scenes.keys() - roles.keys())
    lacking = [origin.scenes.get(split, 0) - counts[split] for split in SPLITS[:2]]
    by_share = (
        then.deal is not None and then.deal.rule.test_share and counts["test"] != origin.scenes.get("test")
    )
    if min(lacking) < 0 or sum(lacking) != gone or by_share:
        return False
    noted = {path.as_posix() for path in validation_images(run.path)}
    trained = {
        scene.image.relative_to(then.root).as_posix()
        for scene in then.scenes
        if roles.get(scene.name) == "train" and not scene.blocks and scene.image.is_relative_to(then.root)
    }
    return not any(path.endswith(f"/{image}") for path in noted for image in trained)
