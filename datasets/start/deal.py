"""Deal of groups over train, validation and test: classes in each part, shares near to those wished."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segmenter.sampling.forecast import scene_pixels

_EXACT = 9
"""Groups up to which all deals are compared: 3⁹ are 20,000."""
_PAIRS = 200
"""Groups up to which pairs are exchanged."""
_ROUNDS = 400

Ints = NDArray[np.int64]


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
        return _improved(_stratified(counts_GK, wish, np.random.default_rng(seed)), counts_GK, wish, groups_K)
    every = np.array(list(itertools.product(range(wish.parts), repeat=len(counts_GK))), np.int64)
    sums = [(every == p).astype(np.float64) @ counts_GK for p in range(wish.parts)]
    return every[int(np.argmin(wish.cost(np.stack(sums, axis=1), groups_K)))]


def _stratified(counts_GK: Ints, wish: Wish, rng: np.random.Generator) -> Ints:
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


def _improved(part_G: Ints, counts_GK: Ints, wish: Wish, groups_K: Ints) -> Ints:
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
