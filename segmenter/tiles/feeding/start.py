"""Start of the worker processes of a training, before TensorFlow is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from segmenter.base.terminal import say
from segmenter.config.recipe import Recipe
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.tiles.feeding.sizes import ahead_of, describe, workers_for
from segmenter.tiles.feeding.slots import BatchShape


@contextmanager
def worker_processes(
    recipe: Recipe, bands: int, dtype: str, gpus: int, workers_of_training: int = 1
) -> Iterator[WorkerPool | None]:
    """The recipe's worker processes, for as long as the context lasts; None where it has none.

    Args:
        bands, dtype: of the scenes as they are read.
        gpus: that will be trained on.
        workers_of_training: that share each batch.

    Raises:
        TrainingError: they, or the memory for their batches, cannot be had.
    """
    workers = workers_for(recipe.training.input_workers, gpus)
    if not workers:
        yield None
        return
    size = recipe.tiles.size
    own = recipe.training.global_batch // workers_of_training
    shape = BatchShape(own, (size, size, bands), dtype)
    slots = ahead_of(workers, shape.bytes)
    say(describe(workers, slots, shape.bytes))
    with WorkerPool(workers, shape, slots) as pool:
        yield pool
