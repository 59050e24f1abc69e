"""Feed: the batches of a plan, in order, made ahead within bounds, by threads of this process."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from segmenter.base.errors import RasterError
from segmenter.sampling import Plan
from segmenter.sampling.strata import Part
from segmenter.tiles.batches import Batch
from segmenter.tiles.feeding.feed import Feed
from segmenter.tiles.feeding.makers import FeedClosedError, Threads
from segmenter.tiles.feeding.orders import Order
from segmenter.tiles.feeding.processes import WorkerPool
from segmenter.training.pipeline import epoch_dataset
from tests.helpers.made_feed import BATCH, SHAPE, FailingLoader, empty_plan
from tests.helpers.time_limits import wait_until


class Held(FailingLoader):
    """Waits in each batch until it is let go on; counts how many wait."""

    def __init__(self) -> None:
        super().__init__({})
        self.go = threading.Event()

    def load(self, plan: Plan, epoch: int, step: int) -> Batch:
        batch = super().load(plan, epoch, step)
        self.go.wait()
        return batch


def steps_of(feed: Feed, rows: Plan, epoch: int, steps: range) -> list[int]:
    """Which step's batch came for each that was asked for."""
    found, into = [], feed.shape.empty()
    for step in steps:
        feed.take(rows, epoch, step, into)
        found.append(int(into[0].max()))
        assert (into[0] == into[0].max()).all()
    return found


def test_a_stack_lies_where_tensorflow_takes_it_over_without_a_copy(tensorflow: ModuleType) -> None:
    """By its address: what TensorFlow gives out is the memory that was filled."""
    filled = []

    def load() -> Batch:
        filled.append(SHAPE.empty((4,)))
        return filled[-1]

    types = [tensorflow.as_dtype(dtype) for _, dtype in SHAPE.arrays]
    dataset = tensorflow.data.Dataset.range(1).map(lambda _: tensorflow.numpy_function(load, [], types))
    for part, values in zip(next(iter(dataset)), filled[0], strict=True):
        assert np.asarray(memoryview(part)).ctypes.data == values.ctypes.data


def test_batches_under_way_are_bounded_and_the_next_ones() -> None:
    loader, rows = Held(), empty_plan(40)
    with Feed(loader, BATCH) as feed:
        feed._maker.close()
        feed._maker = Threads(loader, 3, 5)
        feed.begin(rows, 0)
        assert wait_until(lambda: len(loader.loaded) == 3)
        assert sorted(loader.loaded) == [0, 1, 2]
        loader.go.set()
        assert wait_until(lambda: len(loader.loaded) == 5)
        assert not wait_until(lambda: len(loader.loaded) > 5, 0.05)  # nobody takes any
        assert steps_of(feed, rows, 0, range(9)) == list(range(9))
        assert wait_until(lambda: len(loader.loaded) == 14)


def test_an_epoch_that_was_begun_is_not_begun_again() -> None:
    loader, rows = FailingLoader({}), empty_plan(7)
    with Feed(loader, BATCH) as feed:
        feed.begin(rows, 0)
        assert wait_until(lambda: len(loader.loaded) > 1)
        feed.begin(rows, 0)
        assert steps_of(feed, rows, 0, range(7)) == list(range(7))
        assert sorted(loader.loaded) == list(range(7))


def test_any_step_may_be_asked_for_and_what_was_begun_is_given_up() -> None:
    loader, rows, next_rows = FailingLoader({}), empty_plan(30), empty_plan(5)
    with Feed(loader, BATCH) as feed:
        for _ in range(6):  # more than there is room for: what is given up makes room again
            assert steps_of(feed, rows, 0, range(12, 15)) == [12, 13, 14]
            assert steps_of(feed, rows, 1, range(3)) == [0, 1, 2]
        assert steps_of(feed, next_rows, 1, range(5)) == list(range(5))


def test_an_error_is_raised_at_its_step_and_kept_for_those_who_get_its_text_only() -> None:
    rows = empty_plan(9)
    with Feed(FailingLoader({4: "user"}), BATCH) as feed:
        assert steps_of(feed, rows, 0, range(4)) == [0, 1, 2, 3]
        assert feed.fault is None
        with pytest.raises(RasterError, match="bad 4"):
            steps_of(feed, rows, 0, range(4, 5))
        assert isinstance(feed.fault, RasterError)


@pytest.mark.parametrize("processes", [0, 1])
def test_closing_ends_a_wait_in_another_thread(processes: int) -> None:
    loader, rows, ended = Held(), empty_plan(3), []
    if processes:  # which then waits for a batch that never comes
        feed = Feed(FailingLoader({0: "sleep"}), BATCH, WorkerPool(1, SHAPE, 1))
    else:
        feed = Feed(loader, BATCH)

    def take() -> None:
        try:
            feed.take(rows, 0, 0, feed.shape.empty())
        except FeedClosedError:
            ended.append(True)

    waiting = threading.Thread(target=take)
    waiting.start()
    assert wait_until(lambda: feed._lock.locked() if processes else loader.loaded)
    feed.close()
    waiting.join()
    assert ended
    loader.go.set()


def test_a_dataset_may_be_iterated_again_and_pads_its_last_stack(tensorflow: ModuleType) -> None:
    """Keras' fit looks at a first batch before it starts from the first."""
    batches = epoch_dataset(FailingLoader({}), empty_plan(8), 0, 1, stacked=3)
    assert batches.element_spec[0].shape == (3, BATCH, 32, 32, 3)
    next(iter(batches))
    shown = [stack[0].max(axis=(1, 2, 3, 4)).tolist() for stack in batches.as_numpy_iterator()]
    assert shown == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    valid = [stack[1].any(axis=(1, 2, 3)) for stack in batches.as_numpy_iterator()]
    np.testing.assert_array_equal(valid[-1], [True, False, False])


def test_an_order_carries_all_that_a_loader_looks_at_of_a_step_and_nothing_of_the_others() -> None:
    rows_SB = np.arange(4000 * BATCH).reshape(4000, BATCH)
    parts = (Part(0, 1), Part(2, 0), Part(2, 1))
    whole = Plan(rows_SB, 3, 2, True, 1, (0, 2), (1,), 2, parts, (), rows_SB % 3)
    order = Order.of(whole, 5, 3999)
    assert len(pickle.dumps(order)) < 1500
    seen = pickle.loads(pickle.dumps(order)).plan()
    assert seen.wanted_SB is not None
    np.testing.assert_array_equal(seen.rows_SB[3999], rows_SB[3999])
    np.testing.assert_array_equal(seen.wanted_SB[3999], rows_SB[3999] % 3)
    assert (seen.blocks, seen.promised, seen.promises) == (2, (0, 2), parts)
    assert Order.of(replace(whole, wanted_SB=None, parts=()), 5, 7).plan().wanted_SB is None
