"""Batches dealt to devices: two under way on each, none kept waiting by a slow one, in order, bounded."""

import threading
from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.grid.geometry import Size, Window
from segmenter.inference.blending import Blend
from segmenter.inference.events import Batch
from segmenter.inference.function import on_all_gpus, predict_function
from segmenter.inference.predictor import MappedWindow, Prediction, Tiling, classify_all, compute_all
from segmenter.model.normalisation import Normalisation
from tests.helpers.array_raster import ArrayJob, ArrayRaster, scene
from tests.helpers.exact_network import exact_network
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.time_limits import wait_until

DEVICES = 4
TILING = Tiling(Size(32, 32), 0, 8, 1)


class Cards(FunctionPredictor):
    """Devices that take two batches each; `before(device)` is called where one begins to compute."""

    def __init__(self, before: Callable[[int], None], at_once: tuple[int, ...] = (2,) * DEVICES) -> None:
        plain = exact_network(3, 8)
        super().__init__(plain.function, classes=plain.classes, weigh=plain.weigh)
        self.begun: Counter[int] = Counter()
        self._before, self._lock = before, threading.Lock()
        self._cards = tuple(self._card(number, most) for number, most in enumerate(at_once))

    @property
    def workers(self) -> tuple[FunctionPredictor, ...]:
        return self._cards

    def _card(self, number: int, at_once: int) -> FunctionPredictor:
        def begin() -> None:
            with self._lock:
                self.begun[number] += 1
            self._before(number)

        def predict(image: NDArray[Any], valid: NDArray[np.bool_]) -> Prediction:
            begin()
            return self.function(image, valid)

        def weigh(*arrays: Any) -> Any:
            begin()
            assert self.weigh is not None
            return self.weigh(*arrays)

        return FunctionPredictor(predict, classes=self.classes, weigh=weigh, at_once=at_once)


def mapped(raster: Any, tiling: Tiling, predict: Any) -> NDArray[np.uint8]:
    """Its class map; windows come in the order in which they are read."""
    found, order = np.zeros(raster.image.shape[:2], np.uint8), []
    for event in classify_all([ArrayJob(raster)], tiling, predict):
        if isinstance(event, MappedWindow):
            found[event.window.slices()] = event.ids
            order.append((event.window.row, event.window.col))
    assert order == sorted(order)
    return found


def counting(until: Callable[[Counter[int]], bool], timeout: float | None = None) -> Any:
    """`before` of `Cards` that stays inside until that holds, and the most that were inside at once."""
    inside, most, lock = Counter[int](), Counter[int](), threading.Lock()

    def before(card: int) -> None:
        with lock:
            inside[card] += 1
            most[card] = max(most[card], inside[card])
        held = wait_until(lambda: until(most), *([] if timeout is None else [timeout]))
        assert held or timeout is not None, f"under way at most: {most}"
        with lock:
            inside[card] -= 1

    return before, most


@pytest.mark.parametrize("blend", [None, Blend()], ids=["exact", "smooth"])
def test_each_device_has_two_batches_under_way_and_the_map_is_one_devices(
    rng: np.random.Generator, blend: Blend | None
) -> None:
    before, most = counting(lambda most: sum(most.values()) == 2 * DEVICES)
    raster, cards = scene(rng, 331, 97), Cards(before)
    tiling = Tiling(Size(48, 48), 0 if blend else 10, 8, 1, blend)
    np.testing.assert_array_equal(mapped(raster, tiling, cards), mapped(raster, tiling, exact_network(3, 8)))
    assert all(most[card] == 2 for card in range(DEVICES)), most


def test_a_slow_device_keeps_no_other_waiting(rng: np.random.Generator) -> None:
    """Device 0 holds its two batches until the others have done as many as may wait for an earlier one."""
    total = 40
    others = 2 * 2 * DEVICES  # of results that wait for the first

    def before(card: int) -> None:
        if card == 0:
            done = wait_until(lambda: sum(n for c, n in cards.begun.items() if c) >= others)
            assert done, f"the others wait: {cards.begun}"

    raster, cards = scene(rng, 32 * total, 32), Cards(before)
    np.testing.assert_array_equal(mapped(raster, TILING, cards), mapped(raster, TILING, exact_network(3, 8)))
    assert cards.begun.total() == total


def test_what_waits_for_an_earlier_result_is_bounded_and_holds_no_pixels(rng: np.random.Generator) -> None:
    """With the first batch never done, reading stops, whatever the raster's height."""
    read, release = [], threading.Event()

    class Told(ArrayRaster):
        def read(self, window: Window) -> tuple[NDArray[Any], NDArray[np.bool_]]:
            read.append(window)
            return super().read(window)

    first = threading.Lock()
    cards = Cards(lambda _: release.wait() if first.acquire(blocking=False) else None)  # type: ignore[arg-type,return-value]
    events = classify_all([ArrayJob(Told(scene(rng, 32 * 200, 32).image))], TILING, cards)
    taker = threading.Thread(target=next, args=(events,))
    taker.start()
    most = 3 * 2 * DEVICES + 8
    assert wait_until(lambda: cards.begun.total() >= 2 * 2 * DEVICES)
    assert len(read) <= most
    release.set()
    taker.join()
    assert len(list(events)) == 200
    batches = iter([Batch([], np.zeros((1, 8, 8, 2)), np.ones((1, 8, 8), np.bool_))] * 3)
    assert [batch.image for batch, _ in compute_all(batches, cards, blended=False)] == [None] * 3


def test_an_error_of_one_device_or_stopping_early_ends_all_threads(rng: np.random.Generator) -> None:
    running = set(threading.enumerate())

    def before(card: int) -> None:
        if card == 2:
            raise ZeroDivisionError("a defect")

    with pytest.raises(ZeroDivisionError, match="a defect"):
        mapped(scene(rng, 32 * 50, 32), TILING, Cards(before))
    assert wait_until(lambda: set(threading.enumerate()) <= running)

    events = classify_all([ArrayJob(scene(rng, 3200, 16))], TILING, Cards(lambda _: None))
    next(events)
    events.close()
    assert set(threading.enumerate()) <= running  # others' threads may end meanwhile


@pytest.fixture(scope="module")
def network(tensorflow: ModuleType) -> Any:
    keras.utils.set_random_seed(3)
    x = image = keras.Input((None, None, 2))
    x = keras.layers.Conv2D(5, 3, padding="same", activation="relu")(x)
    return keras.Model(image, keras.layers.Conv2D(4, 1)(x))


@pytest.mark.slow
def test_two_batches_on_each_tensorflow_device_give_one_devices_bits(
    network: Any, four_replicas: list[str], rng: np.random.Generator
) -> None:
    """The compiled function is called from two threads, as on a GPU; on a CPU XLA runs one by one."""
    made: list[Any] = []

    def build() -> Any:
        made.append(keras.models.clone_model(network))
        made[-1].set_weights(network.get_weights())
        return predict_function(made[-1], Normalisation.of((127, 127), (70, 70)))

    one, several = build(), on_all_gpus(build, four_replicas)
    assert [m.variables[0].value.device.rpartition(":")[2] for m in made] == ["0", "0", "1", "2", "3"]
    assert [worker.at_once for worker in several.workers] == [1] * DEVICES  # there is nothing to copy
    for worker in several.workers:
        worker.at_once = 2  # type: ignore[misc]
    jobs, tiling = [ArrayJob(scene(rng, 331, 83))], Tiling(Size(32, 32), 8, 8, 1)
    plain, found = (
        [e.prediction for e in classify_all(jobs, tiling, p) if isinstance(e, MappedWindow)]
        for p in (one, several)
    )
    assert len(plain) == len(found) > 2 * DEVICES
    for expected, got in zip(plain, found, strict=True):
        np.testing.assert_array_equal(got.ids, expected.ids)
