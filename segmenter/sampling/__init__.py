"""Batch plan: an epoch as rows of tiles, each row holding every class. Pure NumPy."""

from segmenter.sampling.plan import (
    Plan,
    batch_without_repeats,
    classes_seen,
    held_by_rows,
    order_for_replicas,
    plan,
    plan_epoch,
)
from segmenter.sampling.quotas import Part, TileStrata, part_title
from segmenter.sampling.rows import mean_uses

__all__ = [
    "Part",
    "Plan",
    "TileStrata",
    "batch_without_repeats",
    "classes_seen",
    "held_by_rows",
    "mean_uses",
    "order_for_replicas",
    "part_title",
    "plan",
    "plan_epoch",
]
