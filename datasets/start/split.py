"""Split of a folder's scenes: by its lists, or in space (groups, blocks, folds), with reasons in numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError, counted
from segmenter.config.datasets import BlocksConfig, FolderSplit
from segmenter.grid.labels import class_pixels
from segmenter.grid.scenes import SPLITS
from segmenter.sampling.forecast import scene_pixels
from segmenter.tiles.index import build_index

from ..blocks import BlockGrid, block_parts
from ..files import few, found_in_paths, splits_of
from .choice import Choice, nest_choices
from .draft import Draft
from .groups import ENOUGH, Groups, boxes

VALIDATION, TEST = 0.2, 0.1
"""Shares of the groups held out: a fifth, as five folds hold out, and a tenth."""
TEST_FROM = 8
"""Groups from which a test is held out besides: of fewer, it would cost more than an eighth."""
_MOST_NAMED = 60
"""Groups held out that a recipe names; more are chosen by a hash."""
_SEEDS, _LEAST_SEEDS, _MOST_HASHES = 64, 4, 1 << 17
"""Seeds of a hash that are tried; fewer where names are many, whose parts differ little."""
_BLOCKS, _LEAST_BLOCKS = 40, 12
"""Blocks that scenes are cut into if labels allow, and at the least."""
_BUFFERS = 3
"""Buffers in a block's side: of a shorter one, most would lie within buffers."""
_EXACT = 9
"""Groups up to which all deals are compared: 3⁹ are 20,000."""
_PAIRS = 200
"""Groups up to which pairs are exchanged."""
_ROUNDS = 400

Ints = NDArray[np.int64]


def split_of(draft: Draft) -> Iterator[Choice]:
    """Yield `dataset.split` for scenes that no split divides yet; beside a test, validation alone.

    Raises:
        DatasetError: one scene is too small to be divided.
    """
    if draft.dataset.of("validation"):
        return
    groups, tested = draft.groups, draft.dataset.of("test")
    if longest_buffer(draft) < math.inf and (blocks := list(_blocks(draft))):
        yield from blocks
        return
    held = [scene.image.relative_to(draft.dataset.root).as_posix() for scene in tested]
    if groups.regex and {*found_in_paths(groups.regex, held)} & {None, *groups.names}:
        groups = replace(groups, regex=None, names=())  # which the given split cuts
    if groups.count < 2 and len(draft.free) > 1:  # what touches is better divided than not at all
        groups = Groups(np.arange(len(draft.free)), "scenes touch each other; each counts as a place")
    if groups.count < 2:
        raise DatasetError(
            draft.dataset.root,
            expected="scenes, or blocks of one, to hold out",
            remedy=f"its one scene of {draft.infos[draft.free[0]].size} pixels is too small for "
            f"{_LEAST_BLOCKS} blocks of {draft.recipe.tiles.size} pixels; add scenes, or write a "
            "recipe that does not validate",
        )
    yield from _held_out_groups(draft, groups)
    if tested and not draft.folder:
        names = [scene.name for scene in tested]
        yield Choice("dataset.split.test", names, f"published: {counted(len(names), 'scene')}")


def _best_seed(cost: Callable[[int], float], seeds: int = _SEEDS) -> int:
    """Return the first seed with the lowest cost."""
    return int(np.argmin(np.round([cost(seed) for seed in range(seeds)], 9)))


# ---------------------------------------------------------------------------------------- whole groups


def _held_out_groups(draft: Draft, groups: Groups) -> Iterator[Choice]:
    """Yield the groups that are held out: by name, or many of them by a hash that keeps the classes best."""
    every = draft.recipe.tiles.model_copy(update={"min_labelled": 0.0})
    index = build_index(draft.dataset, "train", every, files=draft.contents.files)
    counts_GK = scene_pixels(index.counts_NK, groups.of_S[index.scene_N], groups.count)
    groups_K = (counts_GK > 0).sum(axis=0)
    wish = Wish.of(VALIDATION, TEST if groups.count >= TEST_FROM and not draft.dataset.of("test") else 0.0)
    scenes = np.array([scene.name for scene in draft.free])
    hashed = groups.names or tuple(scenes.tolist())

    def parts(seed: int) -> Ints:
        of = splits_of(hashed, FolderSplit.model_validate({**wish.settings, "seed": seed}))
        return np.array([SPLITS.index(of[name]) for name in hashed])

    def cost(seed: int) -> float:
        parts_PK = scene_pixels(counts_GK, parts(seed), wish.parts).astype(np.float64)
        return float(wish.cost(parts_PK[None], groups_K)[0])

    many = math.ceil(groups.count * (VALIDATION + TEST)) > _MOST_NAMED
    by_hash = draft.folder and many and (groups.alone or bool(groups.names))
    seeds = min(_SEEDS, max(_LEAST_SEEDS, _MOST_HASHES // len(hashed)))
    seed = _best_seed(cost, seeds) if by_hash else 0
    part_G = parts(seed) if by_hash else deal(counts_GK, wish, draft.recipe.seed)
    how, other = f"; {groups.how}", groups.other
    question, instead = _question_of_dates(groups.asked, wish) if draft.folder else ("", {})
    if groups.regex:
        yield Choice("dataset.split.group", groups.regex, groups.how, groups.other, question, instead)
    if groups.names:
        how, other, question, instead = "", "", "", {}  # told already
    for part, (key, share) in enumerate(wish.settings.items(), 1):
        held = np.flatnonzero(part_G == part)
        free = scenes[np.isin(groups.of_S, held)].tolist()
        names = [groups.names[g] for g in held] if groups.names else free
        where, value = (key, share) if by_hash else (SPLITS[part], names)
        told = _part_sentence(counts_GK, part_G == part, draft.dataset.classes.names)
        yield Choice(f"dataset.split.{where}", value, told + how, other, question, instead)
        how, other, question, instead = "", "", "", {}
    if by_hash:
        yield Choice("dataset.split.seed", seed, f"the best of {seeds} for the classes")
    if groups.ground is not None and (torn := _overlapping_scenes(draft, groups.ground, part_G[groups.of_S])):
        left = nest_choices(draft.choices)["dataset"].get("split", {}).get("leave_out", [])
        why = f"{counted(len(torn), 'scene')} overlap what is held out"
        yield Choice("dataset.split.leave_out", sorted({*left, *torn}), why)


def _question_of_dates(asked: Groups | None, wish: Wish) -> tuple[str, dict[str, Any]]:
    """Return the question whether scenes whose names differ in dates show one place, and settings if so."""
    if asked is None:
        return "", {}
    named, held = few(asked.names, 3), SPLITS[1 : wish.parts]
    question = f"without dates, names tell {asked.count} places, as {named}: do equal ones show one place?"
    shares = Wish.of(VALIDATION, TEST if "test" in held and asked.count >= TEST_FROM else 0.0).settings
    settings: dict[str, Any] = {"group": asked.regex, **{split: [] for split in held}, **shares}
    return question, {f"dataset.split.{key}": value for key, value in settings.items()}


def _overlapping_scenes(draft: Draft, ground: NDArray[np.float64], part_S: Ints) -> list[str]:
    """Return the scenes that overlap one of a later part on the ground."""
    infos = [draft.infos[scene] for scene in draft.free]
    low, high, pixel = boxes(list(ground), infos)
    torn = np.zeros(len(infos), bool)
    for s in np.flatnonzero(part_S):
        meets = (low < high[s] - 0.9 * pixel) & (high > low[s] + 0.9 * pixel)
        torn |= meets.all(axis=1) & (part_S < part_S[s])
    return [scene.name for scene, is_torn in zip(draft.free, torn, strict=True) if is_torn]


def _part_sentence(counts_GK: Ints, own_G: NDArray[np.bool_], names: Sequence[str]) -> str:
    """Return a sentence on a part: groups, share of the pixels, and the classes that it lacks."""
    own_K = counts_GK[own_G].sum(axis=0)
    lacking = [
        name for name, n, all_n in zip(names, own_K, counts_GK.sum(axis=0), strict=True) if all_n > n == 0
    ]
    classes = f"all but {', '.join(lacking)}" if lacking else "every class"
    share = own_K.sum() / max(1, counts_GK.sum())
    return f"{own_G.sum()} of {len(own_G)} groups, {share:.0%} of the pixels, with {classes}"


# ---------------------------------------------------------------------------------------------- blocks


def longest_buffer(draft: Draft) -> float:
    """Return the largest radius of a model that lets blocks be cut inside scenes; infinite: none are cut."""
    if not draft.folder or len(draft.free) < len(draft.infos) or not draft.groups.alone or draft.groups.asked:
        return math.inf
    return math.inf if draft.groups.count >= ENOUGH else _longest_side(draft) / _BUFFERS


def _longest_side(draft: Draft) -> float:
    """Return the side of the largest blocks."""
    return math.sqrt(sum(info.size.pixels for info in draft.infos.values()) / _LEAST_BLOCKS)


def _blocks(draft: Draft) -> Iterator[Choice]:
    """Yield blocks inside the scenes; nothing if they are too small.

    A block is longer than labels are alike over (Roberts et al., Ecography 2017), and than three buffers.
    """
    radius, classes = draft.size_of(draft.recipe.model).network.radius, len(draft.dataset.classes)
    assert radius is not None, "the rule of the model has seen to that"
    (apart, known), most = draft.apart, _longest_side(draft)
    least = max(draft.recipe.tiles.size, _BUFFERS * radius)
    if least > most:
        return
    wanted = min(max(least, apart, most * math.sqrt(_LEAST_BLOCKS / _BLOCKS)), most)
    side, number = math.floor(wanted), _LEAST_BLOCKS * (most / wanted) ** 2
    wish = Wish.of(VALIDATION, TEST if number >= 2 * _LEAST_BLOCKS else 0.0)
    grids = {scene.name: BlockGrid.of(info.size, side, radius) for scene, info in draft.infos.items()}
    seen = [(name, sample) for name, sample in zip(grids, draft.samples, strict=True)]
    labelled = {name: class_pixels(sample.coarse, classes) for name, sample in seen}
    blocks_K = np.sum([(labelled[name] > 0) * len(grid.blocks) for name, grid in grids.items()], axis=0)

    def sums(seed: int) -> NDArray[np.float64]:
        """Return the labelled pixels (P, K) of each part, by the samples."""
        blocks = {"blocks": BlocksConfig(size=side, buffer=radius), "seed": seed}
        parts = block_parts(grids, FolderSplit.model_validate({**wish.settings, **blocks}))
        sums_PK = np.zeros((wish.parts, classes))
        for name, sample in seen:
            rows_H, cols_W = ((np.arange(n) * sample.step).astype(np.int64) for n in sample.coarse.shape)
            for part, sums_K in zip(SPLITS, sums_PK, strict=False):
                inside = grids[name].mask(parts[name], part, rows_H, cols_W)
                sums_K += sample.step**2 * class_pixels(sample.coarse[inside], classes)
        return sums_PK

    total = sum(sample.step**2 * float(labelled[name].sum()) for name, sample in seen)
    seed = _best_seed(
        lambda seed: float(wish.cost((s := sums(seed))[None], blocks_K)[0] - 2 * s[0].sum() / total)
    )
    kept_P = sums(seed).sum(axis=1) / total
    scale = next(iter(draft.infos.values())).metres_per_pixel
    ground = f", {side * scale:.0f} m" if scale else ""
    far = f"pixels{ground}; labels are alike over {'' if known else 'at least '}{apart:.0f} pixels"
    yield Choice("dataset.split.blocks.size", side, far)
    near = f"the model sees {radius} pixels far; what lies so near to held-out blocks counts nowhere"
    yield Choice("dataset.split.blocks.buffer", radius, f"{near}: {kept_P[0]:.0%} of the labels train")
    for (key, share), kept in zip(wish.settings.items(), kept_P[1:], strict=True):
        yield Choice(f"dataset.split.{key}", share, f"{kept:.0%} of the labels")
    yield Choice("dataset.split.seed", seed, f"of {_SEEDS}, keeps the classes in each part best")


# --------------------------------------------------------------------------------------------- folders


def folder_splits(splits: Mapping[str, Sequence[str]]) -> Iterator[Choice]:
    """Yield validation and test that folders hold; folders that tell no split by their names are asked about.

    Beside a folder of training alone they are the test, else they train.

    Args:
        splits: see `Patterns`.
    """
    held = {split: list(splits[split]) for split in ("validation", "test") if split in splits}
    question, instead, others = "", dict[str, Any](), list(splits.get("", ()))
    if others:
        told = f"the names of {few(others, 3)} tell no split"
        if not held:
            held = {"test": others}
            question, instead = f"{told}; they are held out beside training: do they train?", {"test": []}
        elif "train" in splits:
            question, instead = (
                f"{told}; they train: are they a test?",
                {"test": [*held.get("test", []), *others]},
            )
        else:
            named = few([glob for globs in held.values() for glob in globs], 3)
            question = f"{told}; they train, {named} is held out: is it a place like the others?"
            instead = {split: [] for split in held}
            if "validation" in held:
                instead["validation_share"] = VALIDATION
    for split, globs in held.items():
        why = "the folders hold this split"
        pasted = {f"dataset.split.{key}": value for key, value in instead.items()}
        yield Choice(f"dataset.split.{split}", globs, why, question=question, instead=pasted)
        question, instead = "", {}


# ------------------------------------------------------------------------------------------------ deal


@dataclass(frozen=True)
class Wish:
    """Shares of the parts train, validation and, if wanted, test."""

    shares_P: tuple[float, ...]

    @classmethod
    def of(cls, validation: float, test: float) -> Wish:
        """Return the wish for these shares of validation and test."""
        return cls((1 - validation - test, validation, test) if test else (1 - validation, validation))

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.shares_P)

    @property
    def settings(self) -> dict[str, float]:
        """Shares of what is held out, as keys of `dataset.split`."""
        return dict(zip(("validation_share", "test_share"), self.shares_P[1:], strict=False))

    def cost(self, parts_MPK: NDArray[np.float64], groups_K: Ints) -> NDArray[np.float64]:
        """Return the cost (M,) of deals with these pixels in each part.

        First counts a class that lacks in a part though it has enough groups: in train, where it would never
        be learned, then in validation, then in test; then how far the shares of all pixels, and of each
        class, lie from those wished.

        Args:
            parts_MPK: pixels of each class in each part, for each deal.
            groups_K: number of groups with each class.
        """
        total_K = parts_MPK[0].sum(axis=0)
        there_K = total_K > 0
        enough_PK = groups_K >= np.arange(1, self.parts + 1)[:, None]
        lacking_MP = ((parts_MPK == 0) & enough_PK & there_K).sum(axis=2)
        wished_P = np.array(self.shares_P)
        shares_MP = parts_MPK.sum(axis=2) / max(1.0, float(total_K.sum()))
        of_class_MPK = parts_MPK[:, :, there_K] / total_K[there_K]
        off_M = np.abs(shares_MP - wished_P).sum(axis=1)
        off_M += np.abs(of_class_MPK - wished_P[:, None]).sum(axis=1).mean(axis=1) / 2 if there_K.any() else 0
        empty_M = (shares_MP == 0).sum(axis=1)
        cost: NDArray[np.float64] = (
            1e4 * empty_M + lacking_MP @ np.array([1e3, 3e2, 1e2])[: self.parts] + off_M
        )
        return cost


def deal(counts_GK: Ints, wish: Wish, seed: int = 0) -> Ints:
    """Return the part of each group: 0 train, 1 validation, 2 test; the same for the same counts and seed.

    Few groups: the best of all deals. More: iterative stratification (Sechidis et al., ECML 2011), which
    deals the rarest class first to the part that lacks most of it, then exchanges that lower the cost.
    """
    groups_K = (counts_GK > 0).sum(axis=0)
    if len(counts_GK) > _EXACT:
        return _improve_deal(
            _deal_stratified(counts_GK, wish, np.random.default_rng(seed)), counts_GK, wish, groups_K
        )
    every = np.array(list(itertools.product(range(wish.parts), repeat=len(counts_GK))), np.int64)
    sums = [(every == p).astype(np.float64) @ counts_GK for p in range(wish.parts)]
    return every[int(np.argmin(wish.cost(np.stack(sums, axis=1), groups_K)))]


def _deal_stratified(counts_GK: Ints, wish: Wish, rng: np.random.Generator) -> Ints:
    part_G = np.full(len(counts_GK), -1, np.int64)
    order_G = rng.permutation(len(counts_GK))
    lacking_PK = np.array(wish.shares_P)[:, None] * counts_GK.sum(axis=0)
    while (open_G := part_G < 0).any():
        left_K = (counts_GK[open_G] > 0).sum(axis=0)
        k = int(np.argmin(np.where(left_K > 0, left_K, np.iinfo(np.int64).max)))
        chosen = [g for g in order_G if open_G[g] and (counts_GK[g, k] > 0 or not left_K.any())]
        for g in sorted(chosen, key=lambda g: -counts_GK[g, k]):
            part_G[g] = int(np.lexsort((-lacking_PK.sum(axis=1), -lacking_PK[:, k]))[0])
            lacking_PK[part_G[g]] -= counts_GK[g]
    return part_G


def _improve_deal(part_G: Ints, counts_GK: Ints, wish: Wish, groups_K: Ints) -> Ints:
    """Exchange two groups, or move one, as long as that lowers the cost.

    A group is moved by exchanging it with one of no pixels, of which each part has one that stays.
    """
    count, parts = len(part_G), wish.parts
    counts = np.concatenate([counts_GK, np.zeros((parts, counts_GK.shape[1]), np.int64)])
    part = np.concatenate([part_G, np.arange(parts)])
    parts_PK = scene_pixels(counts, part, parts).astype(np.float64)
    cost = float(wish.cost(parts_PK[None], groups_K)[0])
    others = np.arange(0 if count <= _PAIRS else count, count + parts)
    a_M, b_M = (each.reshape(-1) for each in np.meshgrid(np.arange(count), others, indexing="ij"))
    for _ in range(_ROUNDS):
        differ = (a_M < b_M) & (part[a_M] != part[b_M])
        a, b = a_M[differ], b_M[differ]
        made_MPK, at, change = (
            np.repeat(parts_PK[None], len(a), axis=0),
            np.arange(len(a)),
            counts[b] - counts[a],
        )
        made_MPK[at, part[a]] += change
        made_MPK[at, part[b]] -= change
        costs = wish.cost(made_MPK, groups_K)
        best = int(np.argmin(costs))
        if costs[best] >= cost - 1e-9:
            break
        cost, parts_PK = float(costs[best]), made_MPK[best]
        part[a[best]], part[b[best]] = part[b[best]], part[a[best]]
        part[count:] = np.arange(parts)
    return part[:count]
