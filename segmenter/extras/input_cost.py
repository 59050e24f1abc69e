"""Cost of a training's input, without training: processor time of a tile by stage, and tiles a second."""

from __future__ import annotations

import os
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from segmenter.base.machine import usable_cores
from segmenter.base.terminal import align_table
from segmenter.config.recipe import Recipe
from segmenter.sampling import Plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.orders import BatchShape
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.feeding.sizes import processes, threads_for
from segmenter.tiles.index import TileIndex
from segmenter.tiles.statistics import BandStatistics
from segmenter.tiles.store import SceneStore, Tile
from segmenter.training.prepare import TrainingTiles, epoch_plan

READING, WAITING = "reading", "waiting for files"
AUGMENTING, KEEPING, COPYING = "augmenting", "keeping promises, stacking", "copying"
STAGES = (READING, WAITING, AUGMENTING, KEEPING, COPYING)
_SCHEDULER = Path("/proc/thread-self/schedstat")

Times = tuple[float, float, float]


class ThreadTimes:
    """Clocks of the thread that creates it.

    Attributes:
        knows_queue: True if the kernel reports the time in the scheduler's queue; otherwise it counts as 0.
    """

    def __init__(self) -> None:
        self.knows_queue = _SCHEDULER.exists()
        self._file = os.open(_SCHEDULER if self.knows_queue else os.devnull, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def now(self) -> Times:
        """Return three times in seconds: wall clock, processor, scheduler's queue."""
        queued = int(os.pread(self._file, 100, 0).split()[1]) / 1e9 if self.knows_queue else 0.0
        return time.perf_counter(), time.thread_time(), queued


def since(before: Times, now: Times) -> Times:
    """Return the seconds between two readings."""
    return now[0] - before[0], now[1] - before[1], now[2] - before[2]


@dataclass(frozen=True)
class Cost:
    """Cost of a tile, in seconds of one thread.

    Attributes:
        stages: seconds a tile by stage: processor time, except `WAITING`.
    """

    stages: dict[str, float]

    @property
    def total(self) -> float:
        """Seconds of all stages."""
        return sum(self.stages.values())

    @property
    def limit(self) -> str:
        """The stage that takes longest."""
        return max(self.stages, key=lambda stage: self.stages[stage])


class _Clock:
    """Stopwatch by stage; the time of a nested stage is subtracted from the outer one."""

    def __init__(self) -> None:
        self.processor: dict[str, float] = defaultdict(float)
        self.waiting: dict[str, float] = defaultdict(float)
        self._within: list[str] = []
        self._times = ThreadTimes()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        self._within.append(name)
        before = self._times.now()
        try:
            yield
        finally:
            wall, processor, queued = since(before, self._times.now())
            self._within.pop()
            for spent, seconds in ((self.processor, processor), (self.waiting, wall - processor - queued)):
                spent[name] += seconds
                if self._within:
                    spent[self._within[-1]] -= seconds


class _Timed:
    """Wrapper of an object that times some of its methods."""

    def __init__(self, inner: Any, clock: _Clock, stage: str) -> None:
        self._inner, self._clock, self._stage = inner, clock, stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, *arguments: Any, **options: Any) -> Tile:
        with self._clock.stage(self._stage):
            return cast(Tile, self._inner(*arguments, **options))

    def read(self, *arguments: Any) -> Tile:
        with self._clock.stage(self._stage):
            return cast(Tile, self._inner.read(*arguments))

    def read_label(self, *arguments: Any) -> Any:
        with self._clock.stage(self._stage):
            return self._inner.read_label(*arguments)


class _MeasuredLoader(BatchLoader):
    def __init__(
        self,
        clock: _Clock,
        recipe: Recipe,
        index: TileIndex,
        store: SceneStore,
        statistics: BandStatistics,
    ) -> None:
        timed = cast(SceneStore, _Timed(store, clock, READING))
        super().__init__(recipe, index, timed, statistics)
        self._augmenter = cast(Any, _Timed(self._augmenter, clock, AUGMENTING))
        self._paster = cast(Any, _Timed(self._paster, clock, AUGMENTING))


def cost_of_a_tile(
    recipe: Recipe,
    index: TileIndex,
    store: SceneStore,
    statistics: BandStatistics,
    plan: Plan,
    seconds: float,
) -> Cost:
    """Measure the cost of a tile by making batches one by one in this thread.

    Args:
        seconds: limit of processor time; at least one batch is made.
    """
    clock = _Clock()
    loader = _MeasuredLoader(clock, recipe, index, store, statistics)
    BatchLoader(recipe, index, store, statistics).load(plan, 0, 0)  # opens files, imports libraries
    batches = _repeat(lambda step: _timed_load(loader, clock, plan, step), plan.steps, seconds)
    tiles = batches * plan.rows_SB.shape[1]
    stages = {stage: clock.processor[stage] / tiles for stage in (READING, AUGMENTING, KEEPING)}
    # A batch is copied into the slot by the worker, and out of it by this process.
    stages[COPYING] = 2 * _copy_seconds(BatchShape(plan.rows_SB.shape[1], loader.tile_shape, loader.dtype))
    stages[WAITING] = max(0.0, clock.waiting[READING]) / tiles
    return Cost({stage: stages[stage] for stage in STAGES})


def _timed_load(loader: BatchLoader, clock: _Clock, plan: Plan, step: int) -> None:
    with clock.stage(KEEPING):  # all that is not another stage's
        loader.load(plan, 0, step)


def _repeat(work: Callable[[int], object], steps: int, seconds: float) -> int:
    """Repeat the steps in a cycle for `seconds` of processor time; return how many were done."""
    started, done = time.thread_time(), 0
    while not done or time.thread_time() - started < seconds:
        work(done % steps)
        done += 1
    return done


def _copy_seconds(shape: BatchShape) -> float:
    source, target = shape.empty(), shape.empty()
    for part in (*source, *target):
        part.fill(1)
    started = time.thread_time()
    for one, other in zip(target, source, strict=True):
        np.copyto(one, other)
    return (time.thread_time() - started) / shape.batch


def rate_of(feed: Feed, plan: Plan, steps: int, seconds: float, warm: int) -> tuple[float, int]:
    """Measure a feed's tiles a second by wall clock; return the rate and the steps taken.

    Args:
        steps, seconds: limits, whichever comes first.
        warm: number of first steps to leave out, which were begun together.
    """
    into, started, done = feed.shape.empty(), 0.0, 0
    for number in range(warm + steps):
        if number == warm:
            started = time.perf_counter()
        epoch, step = divmod(number, plan.steps)
        feed.take(plan, epoch, step, into)
        done = number + 1 - warm
        if done > 0 and time.perf_counter() - started > seconds:
            break
    return done * feed.shape.batch / (time.perf_counter() - started), done


_COST_SECONDS = 3.0
"""Processor time for the cost of a tile: some thousand tiles."""
_REACHED, _REACHED_HALF = 13.4e12 * 0.6, 53.8e12 * 0.4
"""FLOP/s of an RTX 2080 Ti's convolutions in float32 and by tensor cores, assumed: studies/four_gpus.md."""
_MEND = {
    READING: "a packed store, or tiled GeoTIFFs in blocks of about a tile, are read faster",
    WAITING: "the disk, or the network to it, gives no more: a copy on a local disk would",
    AUGMENTING: "fewer or cheaper changes of augmentation, or more workers on more cores",
    KEEPING: "draws that lose a promised class are made again: less jitter, rotation or zoom",
    COPYING: "smaller batches or fewer bands; more memory bandwidth",
}


def measure_input(
    recipe: Recipe,
    tiles: TrainingTiles,
    names: Sequence[str],
    workers: WorkerPool | None,
    *,
    steps: int,
    minutes: float,
    need: float | None,
) -> str:
    """Return text on the input: cost of a tile by stage, tiles a second, number of cards that can be fed.

    Args:
        names: names of the classes.
        workers: worker processes that make the batches; None: threads of this process.
        steps, minutes: limits of the measurement, whichever comes first.
        need: tiles a second of one card; None: upper limit for an RTX 2080 Ti, from its convolutions.
    """
    form = tiles.image_form
    plan = epoch_plan(recipe, tiles.index, names, 0)
    cost = cost_of_a_tile(recipe, tiles.index, tiles.store, tiles.statistics, plan, _COST_SECONDS)
    loader = BatchLoader(recipe, tiles.index, tiles.store, tiles.statistics)
    with Feed(loader, recipe.training.global_batch, workers) as feed:
        warm = workers.slots if workers is not None else 2 * threads_for()
        rate, done = rate_of(feed, plan, steps, 60 * minutes, warm)
    why = ""
    if need is None:
        need, why = _need_of_a_card(recipe, form[0], len(names))
    lines = [_head(recipe, form, plan), "", *_stages(cost), "", _limit(cost)]
    who = f"{threads_for()} threads" if workers is None else processes(workers.workers)
    lines.append(f"fed: {rate:.0f} tiles/s by {who} on {usable_cores()} cores ({done} steps)")
    lines.append(f"needed: {need:,.0f} tiles/s a card{why}; this feeds {rate / need:.1f} cards")
    return "\n".join(lines)


def _head(recipe: Recipe, form: tuple[int, str], plan: Plan) -> str:
    side, (bands, dtype) = recipe.tiles.size, form
    return (
        f"input of {recipe.name}: {plan.steps} steps an epoch of {recipe.training.global_batch} tiles of "
        f"{side} × {side} × {bands} {dtype}"
    )


def _stages(cost: Cost) -> list[str]:
    rows = [
        (stage, f"{1000 * seconds:.2f}", f"{seconds / cost.total:.0%}")
        for stage, seconds in cost.stages.items()
    ]
    rows.append(("all", f"{1000 * cost.total:.2f}", "100%"))
    return align_table(("stage, in one thread", "ms a tile", "share"), rows, left=1)


def _limit(cost: Cost) -> str:
    return f"limit: {cost.limit} ({_MEND[cost.limit]})"


def _need_of_a_card(recipe: Recipe, bands: int, classes: int) -> tuple[float, str]:
    """Return an upper limit of a card's tiles a second, and the source of that number."""
    from segmenter.devices.setup import load_tensorflow

    load_tensorflow()  # before the model's modules, which import it with its greetings

    from segmenter.model.building import build_model
    from segmenter.model.size import convolution_flops

    side, precision = recipe.tiles.size, recipe.training.precision
    flops = 3 * convolution_flops(build_model(recipe.model, bands, classes), side, side)
    reached = _REACHED if precision == "float32" else _REACHED_HALF
    why = (
        f" at most (RTX 2080 Ti, {precision}: {flops / 1e9:.3g} GFLOP of convolutions a tile at "
        f"{reached / 1e12:.1f} TFLOP/s, studies/four_gpus.md)"
    )
    return reached / flops, why
