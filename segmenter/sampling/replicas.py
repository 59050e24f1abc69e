"""Order of a row over replicas, so that each sees as many classes as the batch allows. Pure NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def order_for_replicas(
    row: NDArray[np.int64], shares: Sequence[int], holds: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return a row's tiles reordered for replicas that take contiguous blocks of it.

    Only the order changes, so the step is unchanged. The same input gives the same order.

    Args:
        row: (B,) tile indices.
        shares: number of tiles of each replica, in order; the sum is B.
        holds: (B, K) mask of classes held by each tile.

    Returns:
        (B,) the same tiles.

    Raises:
        ValueError: the shares or `holds` do not fit the row.
    """
    if sum(shares) != len(row) or min(shares) < 0 or len(holds) != len(row):
        raise ValueError(f"expected shares of {len(row)} tiles in all, got {list(shares)}, {len(holds)} sets")
    if len(shares) == 1:
        return row
    block_B = _scarce_first(holds, shares)
    _improve(block_B, holds, len(shares))
    return row[np.argsort(block_B, kind="stable")]


def classes_seen(shares: Sequence[int], holds: NDArray[np.bool_]) -> int:
    """Return the number of (replica, class) pairs with the class in the replica's block of a row (B, K)."""
    blocks = np.split(holds, np.cumsum(shares)[:-1])
    return sum(int(block.any(axis=0).sum()) for block in blocks)


def _scarce_first(holds: NDArray[np.bool_], shares: Sequence[int]) -> NDArray[np.int64]:
    """Return (B,) the block of each tile; classes with fewest tiles are spread first."""
    block_B = np.full(len(holds), -1)
    seen_RK = np.zeros((len(shares), holds.shape[1]), bool)
    room_R = np.array(shares)
    for c in np.argsort(holds.sum(axis=0), kind="stable"):
        for _ in shares:
            open_R = np.flatnonzero(~seen_RK[:, c] & (room_R > 0))
            pool = np.flatnonzero((block_B < 0) & holds[:, c])
            if not len(open_R) or not len(pool):
                break
            gain = (~seen_RK[open_R]).astype(int) @ holds[pool].T.astype(int)
            r, i = divmod(int(np.argmax(gain)), len(pool))
            block_B[pool[i]] = open_R[r]
            seen_RK[open_R[r]] |= holds[pool[i]]
            room_R[open_R[r]] -= 1
    block_B[block_B < 0] = np.repeat(np.arange(len(shares)), room_R)
    return block_B


def _improve(block_B: NDArray[np.int64], holds: NDArray[np.bool_], blocks: int) -> None:
    """Swap tiles between blocks in place, while the number of (block, class) pairs grows."""
    most = int(np.minimum(holds.sum(axis=0), blocks).sum())
    count_RK = np.stack([holds[block_B == r].sum(axis=0) for r in range(blocks)])
    while int((count_RK > 0).sum()) < most:
        best, swap = 0, (0, 0)
        for p in range(blocks):
            for q in range(p + 1, blocks):
                i, j = np.flatnonzero(block_B == p), np.flatnonzero(block_B == q)
                if not len(i) or not len(j):
                    continue
                change = holds[j][None, :, :].astype(int) - holds[i][:, None, :]
                seen = ((count_RK[p] + change) > 0).sum(-1) + ((count_RK[q] - change) > 0).sum(-1)
                gain = seen - int((count_RK[p] > 0).sum() + (count_RK[q] > 0).sum())
                if gain.max() > best:
                    best = int(gain.max())
                    first, second = divmod(int(np.argmax(gain)), len(j))
                    swap = (int(i[first]), int(j[second]))
        if not best:
            return
        a, b = swap
        change = holds[b].astype(int) - holds[a]
        count_RK[block_B[a]] += change
        count_RK[block_B[b]] -= change
        block_B[a], block_B[b] = block_B[b], block_B[a]
