"""Batch plan: an epoch as rows of tiles, each row holding every class. Pure NumPy."""

from segmenter.sampling.plan import Plan, batch_without_repeats, held_by_rows, plan, plan_epoch
from segmenter.sampling.replicas import classes_seen, order_for_replicas
from segmenter.sampling.strata import Part, TileStrata, part_title

__all__ = [
    "Part",
    "Plan",
    "TileStrata",
    "batch_without_repeats",
    "classes_seen",
    "held_by_rows",
    "order_for_replicas",
    "part_title",
    "plan",
    "plan_epoch",
]
