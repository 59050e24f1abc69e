"""Batch plan: an epoch as rows of tiles, each row holding every class. Pure NumPy."""

from segmenter.sampling.plan import (
    Plan,
    Rules,
    batch_without_repeats,
    held_by_rows,
    on_devices,
    order_for_replicas,
    plan,
    planned_rows,
)
from segmenter.sampling.quotas import Part, TileStrata, part_table, part_title
from segmenter.sampling.rows import mean_uses

__all__ = [
    "Part",
    "Plan",
    "Rules",
    "TileStrata",
    "batch_without_repeats",
    "held_by_rows",
    "mean_uses",
    "on_devices",
    "order_for_replicas",
    "part_table",
    "part_title",
    "plan",
    "planned_rows",
]
