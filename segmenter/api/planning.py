"""Plans of epochs and forecasts of random batches, as Python objects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from segmenter.api.tiles import Tiles
from segmenter.api.values import whole_number
from segmenter.base.errors import DatasetError
from segmenter.base.terminal import align_table
from segmenter.config.sampling import SamplingConfig
from segmenter.sampling import Plan, Rules, held_by_rows, part_table, planned_rows
from segmenter.sampling.forecast import Forecast, holds
from segmenter.sampling.forecast import forecast as forecast_of

_SIZES = (4, 8, 16, 32, 64, 128)
"""Batches that a forecast shows."""


@dataclass(frozen=True, eq=False, repr=False)
class EpochPlan:
    """An epoch of batches, each with every promised class. Iterating yields the batches.

    >>> plan = plan_epoch(counts, 8, seed=1)
    >>> sorted({int(tile) for batch in plan for tile in batch}) == list(range(40))
    True

    Attributes:
        batches: (steps, global batch) indices of tiles.
        held: (steps, classes) True if a tile of the batch holds the class.
        classes: class names.
        promised: classes that every batch holds; `best_effort`: classes too rare for that.
        repeats: repeated uses of tiles that coverage requires; `least_repeats`: a lower bound for any plan
            with as many steps.
        fillers: further repeated uses that complete the last batch.
        tiles: promised mean of tiles of each promised class in a batch, by name.
    """

    batches: NDArray[np.int64]
    held: NDArray[np.bool_]
    classes: tuple[str, ...]
    promised: tuple[str, ...]
    best_effort: tuple[str, ...]
    repeats: int
    least_repeats: int
    fillers: int
    tiles: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return iter(self.batches)

    def __getitem__(self, step: int) -> NDArray[np.int64]:
        return self.batches[step]

    def __repr__(self) -> str:
        steps, batch = self.batches.shape
        lines = [f"{steps} steps of {batch} tiles, each with {_class_list(self.promised)}"]
        lines.append(f"{self.repeats} repeats (at least {self.least_repeats}), {self.fillers} fillers")
        if any(amount > 1 for amount in self.tiles.values()):
            amounts = ", ".join(f"{name} {amount:.1f}" for name, amount in self.tiles.items())
            lines.append(f"tiles a step: {amounts}")
        if self.best_effort:
            shares = dict(zip(self.classes, self.held.mean(axis=0), strict=True))
            rare = ", ".join(f"{name} (in {shares[name]:.0%} of the steps)" for name in self.best_effort)
            lines.append(f"best effort: {rare}")
        return "\n".join(lines)


class PlanRules(TypedDict, total=False):
    """Rules of `plan_epoch` as keyword arguments; those left out are a recipe's defaults."""

    min_pixels: int
    max_repeats: int | None
    quota: Literal["presence", "rarity"]
    lift: float | None
    quotas: Mapping[str, int]
    seed: int
    epoch: int


def plan_epoch(
    tiles: Tiles | ArrayLike, global_batch: int, *, classes: Sequence[str] = (), **rules: Unpack[PlanRules]
) -> EpochPlan:
    """Plan an epoch of global batches that each hold every class, in as few steps as a search finds.

    >>> counts = np.zeros((40, 3), int)  # pixels of each class in each tile
    >>> counts[:, 0] = 4096
    >>> counts[:25, 1] = 500
    >>> counts[:7, 2] = 60
    >>> plan = plan_epoch(counts, 4, classes=["field", "road", "pond"])
    >>> plan
    11 steps of 4 tiles, each with field, road, pond
    4 repeats (at least 4), 0 fillers
    >>> bool(plan.held.all()), len(plan), plan[0].shape
    (True, 11, (4,))
    >>> plan_epoch(counts, 8, quota="rarity")
    8 steps of 8 tiles, each with class 0, class 1, class 2
    23 repeats (at least 23), 1 fillers
    tiles a step: class 0 1.0, class 1 2.4, class 2 3.8

    A training with the recipe's defaults makes the same plan for the same tiles. It uses each tile, and
    repeats a tile only if a class needs it.

    Args:
        tiles: result of `index_tiles`, or (tiles, classes) whole numbers: pixels of each class in each tile.
        global_batch: tiles of a step, over all devices.
        classes: class names, if `tiles` are numbers.
        min_pixels: least pixels of a class for a tile to hold it (default: 32).
        max_repeats: a class that needs more repeats of a tile than this is best effort (default: 4); None: no
            limit.
        quota, lift, quotas: as `sampling.quota`, `sampling.lift` (None: its default) and `sampling.quotas` of
            a recipe: more than one tile of a class (default: one tile of each).
        seed, epoch: equal values give the same plan; other epochs give other batches (default: 0).

    Raises:
        DatasetError: no batch of that size can hold all classes; an argument is out of range.
    """
    counts, names = _table(tiles, classes)
    given: dict[str, Any] = dict(rules)
    numbers: dict[str, Any] = {
        name: None if (name, given[name]) == ("max_repeats", None) else whole_number(name, given[name])
        for name in Rules.__dataclass_fields__
        if name in given
    }
    rows = Rules(**numbers)
    amounts = _amounts({name: given[name] for name in given if name not in numbers}, rows.min_pixels)
    table = part_table(counts, names=names)
    plan = planned_rows(table, whole_number("global_batch", global_batch), rows, amounts)
    return _epoch_plan(plan, counts, names, rows.min_pixels)


def _amounts(asked: Mapping[str, Any], min_pixels: int) -> SamplingConfig:
    try:
        rules = SamplingConfig.model_validate(
            {name: value for name, value in asked.items() if (name, value) != ("lift", None)}
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or first["type"].removeprefix("sampling.")
        raise DatasetError(where, first["msg"]) from None
    return rules.model_copy(update={"min_pixels": min_pixels})


def _epoch_plan(
    plan: Plan, counts: NDArray[np.integer], names: tuple[str, ...], min_pixels: int
) -> EpochPlan:
    return EpochPlan(
        batches=plan.rows_SB,
        held=held_by_rows(plan.rows_SB, counts, min_pixels),
        classes=names,
        promised=tuple(names[c] for c in plan.promised),
        best_effort=tuple(names[c] for c in plan.best_effort),
        repeats=plan.coverage_repeats,
        least_repeats=plan.repeats_bound,
        fillers=plan.fillers,
        tiles={names[c]: amount for c, amount in plan.mean_tiles.items()},
    )


@dataclass(frozen=True, eq=False, repr=False)
class RandomBatches:
    """Random batches of tiles: the probability that they hold all classes.

    >>> random = forecast(counts)
    >>> round(random.probability(16), 3), random.needed(0.9)
    (0.981, 11)

    Attributes:
        tiles: number of tiles to draw from.
        classes: names of the classes that occur.
        exact: True if probabilities are exact; else they come from 4096 random orders.
    """

    tiles: int
    classes: tuple[str, ...]
    exact: bool
    _forecast: Forecast = field(repr=False)

    def probability(self, batch: int) -> float:
        """Return the probability, 0 to 1, that a random batch of `batch` tiles holds every class."""
        return self._forecast.outlook([_at_least_one(batch)])[0].probability

    def expected_classes(self, batch: int) -> float:
        """Return the mean number of classes in a random batch of `batch` tiles."""
        return self._forecast.outlook([_at_least_one(batch)])[0].expected_classes

    def needed(self, share: float) -> int:
        """Return the batch size at which a random batch holds all classes with probability `share`."""
        if not 0 < share <= 1:
            raise DatasetError("share", expected="a probability above 0 and up to 1", got=share)
        return self._forecast.batch_for(share)

    def __repr__(self) -> str:
        sizes = [size for size in _SIZES if size <= self.tiles] or [self.tiles]
        rows = [
            (str(one.batch), f"{one.probability:.2%}", f"{one.expected_classes:.2f}")
            for one in self._forecast.outlook(sizes)
        ]
        how = "exactly" if self.exact else "simulated"
        title = f"a random batch of {self.tiles} tiles, {how}, of the {len(self.classes)} classes"
        table = align_table(("batch", "holds all", "holds on average"), rows, left=0)
        return "\n".join([f"{title}:", *(f"  {line}" for line in table)])


def forecast(
    tiles: Tiles | ArrayLike, *, min_pixels: int = 32, classes: Sequence[str] = (), seed: int = 0
) -> RandomBatches:
    """Forecast the probability that random batches hold all occurring classes; exact up to 20 classes.

    >>> forecast(counts)
    a random batch of 40 tiles, exactly, of the 3 classes:
      batch  holds all  holds on average
          4     55.22%              2.54
          8     81.95%              2.82
         16     98.14%              2.98
         32    100.00%              3.00
    >>> forecast(counts).needed(0.99)
    18

    Args:
        tiles, min_pixels, classes: as in `plan_epoch`.
        seed: seed of the simulation for more classes.

    Raises:
        DatasetError: there are no tiles.
    """
    counts, names = _table(tiles, classes)
    outlook = forecast_of(holds(counts, min_pixels), seed=seed)
    present = tuple(names[c] for c in outlook.classes)
    return RandomBatches(outlook.tiles, present, outlook.method == "exact", outlook)


def _table(tiles: Tiles | ArrayLike, classes: Sequence[str]) -> tuple[NDArray[np.integer], tuple[str, ...]]:
    """Return (tiles, classes) counts and class names."""
    if isinstance(tiles, Tiles):
        if classes:
            raise DatasetError("classes", "the tiles have names of their own", remedy="leave them out")
        return tiles.counts, tiles.classes
    counts = np.asarray(tiles)
    if counts.ndim != 2 or counts.dtype.kind not in "iu":
        raise DatasetError(
            "tiles",
            expected="those of index_tiles, or whole numbers (tiles, classes)",
            got=f"{counts.dtype} of {counts.shape}",
        )
    names = tuple(classes) or tuple(f"class {i}" for i in range(counts.shape[1]))
    if len(names) != counts.shape[1]:
        raise DatasetError(
            "classes", expected=f"{counts.shape[1]} names, one for each column", got=len(names)
        )
    return counts, names


def _at_least_one(batch: int) -> int:
    if (batch := whole_number("batch", batch)) < 1:
        raise DatasetError("batch", expected="at least 1 tile", got=batch)
    return batch


def _class_list(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "no class promised"
