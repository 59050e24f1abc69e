"""Split of a folder's scenes: by its lists, or in space (groups, blocks, folds), with reasons in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, SegmenterError, counted
from segmenter.base.files import read_regular
from segmenter.config.datasets import BlocksConfig, FolderSplit
from segmenter.config.plain_yaml import parse
from segmenter.grid.scenes import SPLITS, Dataset, Scene
from segmenter.raster import RasterInfo

from ..blocks import BlockGrid, block_parts
from ..files import dealt, few
from .choice import Choice
from .deal import Wish, best_seed, deal
from .folder_facts import Place
from .groups import ENOUGH, Groups
from .names import SPLIT_WORDS
from .samples import MOST_SCENES, Sample

_TEXTS, _YAMLS = (".txt", ".lst", ".csv"), (".yaml", ".yml")
"""Endings of lists of scenes: train.txt, val.txt, test.txt, or one file with these keys."""
VALIDATION, TEST = 0.2, 0.1
"""Shares of the groups held out: a fifth, as five folds hold out, and a tenth."""
TEST_FROM = 8
"""Groups from which a test is held out besides: of fewer, it would cost more than an eighth."""
_MOST_NAMED = 60
"""Groups held out that a recipe names; more are chosen by a hash."""
_SEEDS = 64
_BLOCKS, _LEAST_BLOCKS = 40, 12
"""Blocks that scenes are cut into if labels allow, and at the least."""
_BUFFERS = 3
"""Buffers in a block's side: of a shorter one, most would lie within buffers."""


@dataclass(frozen=True)
class Space:
    """Facts that a split is planned from.

    Attributes:
        infos: headers of the dataset's scenes.
        counts_SK: labelled pixels of each class in each scene.
        samples: labels of all scenes, or of some.
        groups: of the scenes.
        apart: pixels over which labels are alike.
        known: True if scenes are long enough to tell that.
        radius: the model's receptive-field radius; None: it has none.
        tile: pixels along a training tile's side.
        tested: True if other scenes are held out for the test already.
    """

    dataset: Dataset
    infos: Sequence[RasterInfo]
    counts_SK: NDArray[np.int64]
    samples: Sequence[Sample]
    groups: Groups
    apart: float
    known: bool
    radius: int | None
    tile: int
    seed: int = 0
    tested: bool = False


def longest_buffer(infos: Sequence[RasterInfo]) -> float:
    """Return the largest radius of a model for which blocks can be cut inside the scenes."""
    return math.sqrt(sum(info.size.pixels for info in infos) / _LEAST_BLOCKS) / _BUFFERS


def split_of(space: Space, *, folder: bool = True) -> tuple[Choice, ...]:
    """Return the choices of `dataset.split` for scenes that no split divides yet.

    Args:
        folder: False for loaders whose split only names scenes.

    Raises:
        DatasetError: one scene is too small to be divided.
    """
    groups = space.groups
    cut = folder and not space.tested and groups.count < ENOUGH and groups.alone
    if cut and (blocks := _blocks(space)):
        return blocks
    if groups.count < 2 and len(space.infos) > 1:  # what touches is better divided than not at all
        groups = Groups(np.arange(len(space.infos)), "scenes touch each other; each counts as a place")
    if groups.count < 2:
        raise DatasetError(
            f"{space.dataset.root}: expected scenes, or blocks of one, to hold out; its one scene of "
            f"{space.infos[0].size} pixels is too small for {_LEAST_BLOCKS} blocks of {space.tile} pixels; "
            "add scenes, or write a recipe that does not validate"
        )
    return _whole(space, groups, folder=folder)


# ---------------------------------------------------------------------------------------- whole groups


def _whole(space: Space, groups: Groups, *, folder: bool) -> tuple[Choice, ...]:
    counts_GK = np.zeros((groups.count, space.counts_SK.shape[1]), np.int64)
    np.add.at(counts_GK, groups.of_S, space.counts_SK)
    wish = Wish.of(VALIDATION, TEST if groups.count >= TEST_FROM and not space.tested else 0.0)
    held = math.ceil(groups.count * (VALIDATION + TEST))
    choices = []
    if groups.regex:
        choices.append(Choice("dataset.split.group", groups.regex, groups.how, groups.other))
    if folder and held > _MOST_NAMED and (groups.regex is not None or groups.alone):
        return (*choices, *_by_hash(space, groups, counts_GK, wish))
    part_G = deal(counts_GK, wish, space.seed)
    for part in range(1, wish.parts):
        of_part = np.flatnonzero(part_G == part)
        names = [groups.names[g] for g in of_part] if groups.names else _scenes(space, groups, of_part)
        reason = _told(counts_GK, part_G, part, space, groups.how if part == 1 and not groups.names else "")
        other = groups.other if part == 1 and groups.regex is None else ""
        choices.append(Choice(f"dataset.split.{SPLITS[part]}", names, reason, other))
    return tuple(choices)


def _scenes(space: Space, groups: Groups, chosen: NDArray[np.int64]) -> list[str]:
    names = [scene.name for scene in space.dataset.scenes]
    return [names[s] for s in np.flatnonzero(np.isin(groups.of_S, chosen))]


def _told(
    counts_GK: NDArray[np.int64], part_G: NDArray[np.int64], part: int, space: Space, how: str = ""
) -> str:
    """Return a sentence on a part: groups, share of the pixels, and the classes that it lacks."""
    own_K = counts_GK[part_G == part].sum(axis=0)
    share = own_K.sum() / max(1, counts_GK.sum())
    names = space.dataset.classes.names
    lacking = [names[k] for k in np.flatnonzero((own_K == 0) & (counts_GK.sum(axis=0) > 0))]
    classes = f"all but {', '.join(lacking)}" if lacking else "every class"
    text = f"{(part_G == part).sum()} of {len(part_G)} groups, {share:.0%} of the pixels, with {classes}"
    return f"{text}; {how}" if how else text


def _by_hash(space: Space, groups: Groups, counts_GK: NDArray[np.int64], wish: Wish) -> tuple[Choice, ...]:
    """Return shares, with the seed whose hash keeps the classes best."""
    names = groups.names or tuple(scene.name for scene in space.dataset.scenes)
    shares = {f"{part}_share": wish.shares_P[i] for i, part in enumerate(SPLITS[: wish.parts]) if i}
    groups_K = (counts_GK > 0).sum(axis=0)

    def parts(seed: int) -> NDArray[np.int64]:
        of = dealt(names, FolderSplit.model_validate({**shares, "seed": seed}))
        return np.array([SPLITS.index(of[name]) for name in names])

    def cost(seed: int) -> float:
        part_G = parts(seed)
        sums = np.stack([counts_GK[part_G == p].sum(axis=0) for p in range(wish.parts)])
        return float(wish.cost(sums[None].astype(np.float64), groups_K)[0])

    seed = best_seed([cost(seed) for seed in range(_SEEDS if len(names) < 10_000 else _SEEDS // 8)])
    part_G = parts(seed)
    unsaid = groups.regex is None  # else the line of the group tells how
    choices = [
        Choice(
            f"dataset.split.{key}",
            share,
            _told(counts_GK, part_G, 1 + i, space, groups.how if not i and unsaid else ""),
            groups.other if not i and unsaid else "",
        )
        for i, (key, share) in enumerate(shares.items())
    ]
    return (*choices, Choice("dataset.split.seed", seed, f"the best of {_SEEDS} for the classes"))


# ---------------------------------------------------------------------------------------------- blocks


def _blocks(space: Space) -> tuple[Choice, ...]:
    """Return blocks inside the scenes; empty if they are too small, or too many to look at each.

    A block is longer than labels are alike over (Roberts et al., Ecography 2017), and than three buffers.
    """
    if space.radius is None or len(space.infos) > MOST_SCENES:
        return ()
    pixels = sum(info.size.pixels for info in space.infos)
    least = max(space.tile, _BUFFERS * space.radius)
    most = math.sqrt(pixels / _LEAST_BLOCKS)
    if least > most:
        return ()
    wanted = min(max(least, space.apart, math.sqrt(pixels / _BLOCKS)), most)
    side, test = math.floor(wanted), TEST if pixels / wanted**2 >= 2 * _LEAST_BLOCKS else 0.0
    blocks = BlocksConfig(size=side, buffer=space.radius)
    tried = [_tried(space, blocks, test, seed) for seed in range(_SEEDS)]
    seed = best_seed([cost for cost, _ in tried])
    _, kept_P = tried[seed]
    far = f"labels are alike over {'' if space.known else 'at least '}{space.apart:.0f} pixels"
    scale = space.infos[0].metres_per_pixel
    ground = f", {side * scale:.0f} m" if scale else ""
    shares = [(VALIDATION, "validation")] + ([(TEST, "test")] if test else [])
    return (
        Choice("dataset.split.blocks.size", side, f"pixels{ground}; {far}"),
        Choice(
            "dataset.split.blocks.buffer",
            space.radius,
            f"the model sees {space.radius} pixels far; what lies so near to held-out blocks counts nowhere: "
            f"{kept_P[0]:.0%} of the labels train",
        ),
        *(
            Choice(f"dataset.split.{part}_share", share, f"{kept_P[SPLITS.index(part)]:.0%} of the labels")
            for share, part in shares
        ),
        Choice("dataset.split.seed", seed, f"of {_SEEDS}, keeps the classes in each part best"),
    )


def _tried(space: Space, blocks: BlocksConfig, test: float, seed: int) -> tuple[float, NDArray[np.float64]]:
    """Return the cost of a seed, and the share of the labelled pixels in each part, by the samples."""
    wish = Wish.of(VALIDATION, test)
    shares = {"validation_share": VALIDATION, "test_share": test, "seed": seed, "blocks": blocks}
    split = FolderSplit.model_validate(shares)
    scenes = space.dataset.scenes
    grids = {
        scene.name: BlockGrid.of(info.size, blocks.size, blocks.buffer)
        for scene, info in zip(scenes, space.infos, strict=True)
    }
    parts = block_parts(grids, split)
    classes = space.counts_SK.shape[1]
    sums_PK, total = np.zeros((wish.parts, classes)), 0.0
    blocks_K = np.zeros(classes, np.int64)
    for scene, sample in zip(scenes, space.samples, strict=True):
        ids, weight = sample.coarse, sample.step**2
        rows_H, cols_W = ((np.arange(n) * sample.step).astype(np.int64) for n in ids.shape)
        total += weight * float((ids < classes).sum())
        for p in range(wish.parts):
            inside = grids[scene.name].mask(parts[scene.name], SPLITS[p], rows_H, cols_W)
            sums_PK[p] += weight * np.bincount(ids[inside], minlength=256)[:classes]
        blocks_K += np.bincount(np.unique(ids), minlength=256)[:classes] * len(parts[scene.name])
    cost = float(wish.cost(sums_PK[None], blocks_K)[0]) if sums_PK.any() else np.inf
    kept_P = sums_PK.sum(axis=1) / max(1.0, total)
    return cost - 2 * float(kept_P[0]), kept_P


def listed_splits(place: Place, scenes: Sequence[Scene]) -> Iterator[Choice]:
    """Yield validation and test of lists that name scenes or their images; what also trains is said."""
    names = {key: scene.name for scene in scenes for key in (scene.name, scene.image.stem, scene.image.name)}
    names |= {str(int(name)): name for name in list(names) if name.isdecimal()}
    named: dict[str, set[str]] = {}
    files: dict[str, str] = {}
    for path in place.paths:
        with suppress(SegmenterError, UnicodeError, KeyError):
            for split, keys in _lists(place, path):
                named[split], files[split] = {names[key] for key in keys}, path
    for split in ("validation", "test"):
        if "train" in named and (members := named.get(split)):
            both = sorted(members & named["train"])
            leak = f"; {few(both)} of them in train, too: held out" if both else ""
            why = f"{counted(len(members), 'scene')} named in {files[split]}{leak}"
            yield Choice(f"dataset.split.{split}", sorted(members), why)


def _lists(place: Place, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each split of a file, with the names of files that it lists."""
    stem, ending = PurePosixPath(path).stem.lower(), PurePosixPath(path).suffix.lower()
    lists: dict[str, list[str]] = {}
    if (ending in _TEXTS and stem in SPLIT_WORDS) or (ending in _YAMLS and "split" in stem):
        text = read_regular(place.root / path).decode("utf-8-sig")
        if ending in _TEXTS:
            lists[stem] = [line.split()[0] for line in text.splitlines() if line.strip()]
        elif isinstance(data := parse(text, path), dict):
            lists = {
                str(key): list(map(str, value)) for key, value in data.items() if isinstance(value, list)
            }
    for key, values in lists.items():
        if key.lower() in SPLIT_WORDS and values:
            yield SPLIT_WORDS[key.lower()], [PurePosixPath(value).name for value in values]
