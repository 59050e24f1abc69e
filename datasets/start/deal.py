"""Deal of groups over train, validation and test: classes in each part, shares near to those wished."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_EXACT = 9
"""Groups up to which all deals are compared: 3⁹ are 20,000."""
_PAIRS = 200
"""Groups up to which pairs are exchanged."""
_ROUNDS = 400

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Wish:
    """Shares of the parts train, validation and test; 0 for a part that is not wanted."""

    shares_P: tuple[float, ...]

    @classmethod
    def of(cls, validation: float, test: float) -> Wish:
        """Return the wish for these shares of validation and test."""
        return cls((1 - validation - test, validation, test) if test else (1 - validation, validation))

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.shares_P)

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


def deal(counts_GK: NDArray[np.int64], wish: Wish, seed: int = 0) -> Ints:
    """Return the part of each group: 0 train, 1 validation, 2 test; the same for the same counts and seed.

    Few groups: the best of all deals. More: iterative stratification (Sechidis et al., ECML 2011), which
    deals the rarest class first to the part that lacks most of it, then exchanges that lower the cost.
    """
    counts = counts_GK.astype(np.float64)
    groups_K = (counts_GK > 0).sum(axis=0)
    if len(counts) <= _EXACT:
        every = np.array(list(itertools.product(range(wish.parts), repeat=len(counts))), np.int64)
        return every[int(np.argmin(wish.cost(_sums(every, counts, wish.parts), groups_K)))]
    best, best_cost = np.zeros(len(counts), np.int64), np.inf
    for start in range(3):
        rng = np.random.default_rng((seed, start))
        part_G, cost = _improved(_stratified(counts, wish, rng), counts, wish, groups_K)
        if cost < best_cost - 1e-12:
            best, best_cost = part_G, cost
    return best


def _sums(part_MG: Ints, counts_GK: NDArray[np.float64], parts: int) -> NDArray[np.float64]:
    return np.stack([(part_MG == p).astype(np.float64) @ counts_GK for p in range(parts)], axis=1)


def _stratified(counts_GK: NDArray[np.float64], wish: Wish, rng: np.random.Generator) -> Ints:
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


def _improved(part_G: Ints, counts_GK: NDArray[np.float64], wish: Wish, groups_K: Ints) -> tuple[Ints, float]:
    """Move one group, or exchange two, as long as that lowers the cost; return the deal and its cost."""
    parts_PK = _sums(part_G[None], counts_GK, wish.parts)[0]
    cost = float(wish.cost(parts_PK[None], groups_K)[0])
    pairs = np.stack(np.triu_indices(min(len(part_G), _PAIRS), 1), axis=1)
    for _ in range(_ROUNDS):
        moves = [(g, p) for g in range(len(part_G)) for p in range(wish.parts) if p != part_G[g]]
        tried = np.repeat(parts_PK[None], len(moves), axis=0)
        g_M, to_M = np.array(moves).T
        at = np.arange(len(moves))
        tried[at, part_G[g_M]] -= counts_GK[g_M]
        tried[at, to_M] += counts_GK[g_M]
        costs, best = wish.cost(tried, groups_K), None
        if costs.min() < cost - 1e-9:
            best = [moves[int(np.argmin(costs))]]
            cost, parts_PK = float(costs.min()), tried[int(np.argmin(costs))]
        elif len(part_G) <= _PAIRS:
            a_M, b_M = pairs[part_G[pairs[:, 0]] != part_G[pairs[:, 1]]].T
            tried = np.repeat(parts_PK[None], len(a_M), axis=0)
            at, change = np.arange(len(a_M)), counts_GK[b_M] - counts_GK[a_M]
            tried[at, part_G[a_M]] += change
            tried[at, part_G[b_M]] -= change
            costs = wish.cost(tried, groups_K)
            if len(costs) and costs.min() < cost - 1e-9:
                a, b = (int(each[int(np.argmin(costs))]) for each in (a_M, b_M))
                best = [(a, int(part_G[b])), (b, int(part_G[a]))]
                cost, parts_PK = float(costs.min()), tried[int(np.argmin(costs))]
        if best is None:
            break
        for g, p in best:
            part_G[g] = p
    return part_G, cost


def best_seed(costs: Sequence[float]) -> int:
    """Return the first seed with the lowest cost."""
    return int(np.argmin(np.round(costs, 9)))
