"""Interval of mIoU over scenes, or over blocks of the ground; over groups: `tests/laws/test_figures.py`."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

from segmenter.evaluation.bootstrap import _miou_of_draws, _units, forget_blocks, miou_interval
from segmenter.evaluation.intervals import LEAST, Interval
from segmenter.evaluation.scores import ConfusionMatrix, Protocol, Scores
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap

Make = Callable[..., ClassMap]
Matrix = NDArray[np.int64]
PROTOCOL = Protocol(("a", "b", "c"), "full", "test")


@pytest.fixture
def scene(make_classes: Make) -> Callable[[Matrix], ConfusionMatrix]:
    """`scene(matrix)`: a scene with a (3, 3) confusion matrix, whose blocks are not counted."""
    return lambda matrix: ConfusionMatrix(make_classes(3), np.column_stack([matrix, np.zeros(3, np.int64)]))


def scenes(rng: np.random.Generator, count: int) -> list[Matrix]:
    """Confusion matrices of scenes that differ in difficulty; few have the third class."""
    found = []
    for right in rng.beta(8, 3, count):
        shares = rng.dirichlet((4, 3, 0.5))
        rest = (1 - right) / 2
        found.append(rng.poisson(1e4 * shares[:, None] * (np.eye(3) * (right - rest) + rest)))
    return found


def bounds(interval: Interval | None) -> tuple[float, float]:
    assert interval.bounds is not None
    return interval.bounds


def total(each: list[ConfusionMatrix]) -> Scores:
    return ConfusionMatrix(each[0].classes, np.sum([one.counts for one in each], axis=0)).scores(PROTOCOL)


def test_it_holds_the_miou_and_narrows_with_the_scenes(scene: Callable[..., ConfusionMatrix]) -> None:
    rng = np.random.default_rng(1)
    widths = []
    for count in (LEAST, 160):
        each = [scene(one) for one in scenes(rng, count)]
        interval = miou_interval(each, PROTOCOL)
        low, high = bounds(interval)
        assert low < total(each).miou < high
        assert interval == Interval((low, high), count)
        widths.append(high - low)
    assert 0.1 < widths[1] / widths[0] < 0.35  # about 1 / √16, and Student's t


@pytest.mark.slow
def test_most_intervals_hold_the_miou_of_very_many_scenes(scene: Callable[..., ConfusionMatrix]) -> None:
    rng = np.random.default_rng(2)
    truth = total([scene(sum(scenes(rng, 10_000)))]).miou
    held = []
    for _ in range(100):
        low, high = bounds(miou_interval([scene(one) for one in scenes(rng, 40)], PROTOCOL))
        held.append(low <= truth <= high)
    assert np.mean(held) > 0.9


def test_few_scenes_without_blocks_have_none_and_the_same_scores_give_the_same(
    scene: Callable[..., ConfusionMatrix],
) -> None:
    each = [scene(one) for one in scenes(np.random.default_rng(3), LEAST)]
    empty = scene(np.zeros((3, 3), np.int64))
    assert miou_interval([*each[:2], empty], PROTOCOL) is None
    assert miou_interval([empty], PROTOCOL) is None
    nine = miou_interval([*each[:-1], empty], PROTOCOL)
    assert (nine.count, nine.side, nine.drawn) == (9, None, False)
    assert nine.from_dict(nine.to_dict(), 9) == nine
    assert miou_interval([*each, empty], PROTOCOL) == miou_interval(each, PROTOCOL)
    same = bounds(miou_interval([each[0]] * LEAST, PROTOCOL))
    assert same == pytest.approx((total(each[:1]).miou,) * 2)


def cut(part: Window, height: int, width: int) -> Iterator[Window]:
    """Windows that cover a part of a raster."""
    for row in range(part.row, part.row_stop, height):
        for col in range(part.col, part.col_stop, width):
            yield Window(row, col, min(height, part.row_stop - row), min(width, part.col_stop - col))


def counted(
    classes: ClassMap, part: Window, ids: NDArray[np.uint8], height: int, width: int
) -> ConfusionMatrix:
    """Matrix of `ids`, truth and prediction of a part, counted by windows."""
    confusion = ConfusionMatrix(classes, part=part)
    for window in cut(part, height, width):
        rows, cols = window.shifted(-part.row, -part.col).slices()
        confusion.add(*ids[:, rows, cols], window)
    return confusion


@pytest.mark.parametrize(("height", "width"), [(259, 11009), (97, 203)])
def test_blocks_hold_the_pixels_of_their_square_whatever_the_windows(
    make_classes: Make, height: int, width: int
) -> None:
    rng, part = np.random.default_rng(4), Window(37, 1001, 259, 11009)
    ids = rng.integers(0, 5, (2, part.height, part.width), np.uint8)
    ids[ids == 4] = IGNORE
    found = counted(make_classes(4), part, ids, height, width)
    assert found.blocks.side == 256  # of 128 px, 3 × 87 would be more than 256
    np.testing.assert_array_equal(found.counts, found.blocks.counts.sum(axis=(0, 1)))
    for side in (found.blocks.side, 4 * found.blocks.side):
        expected = []
        for window in cut(Window.of(part.size), side, side):
            alone = ConfusionMatrix(make_classes(4))
            alone.add(*ids[:, window.slices()[0], window.slices()[1]])
            expected.append(alone.counts)
        np.testing.assert_array_equal(found.blocks.merged(side), expected)


@pytest.mark.parametrize(
    ("height", "width", "classes", "side", "count"),
    [(31, 27, 3, 128, 1), (2048, 2048, 7, 128, 256), (2049, 2048, 7, 256, 72)],
)
def test_the_side_grows_with_the_scene(
    make_classes: Make, height: int, width: int, classes: int, side: int, count: int
) -> None:
    blocks = ConfusionMatrix(make_classes(classes), part=Window(0, 0, height, width)).blocks
    assert (blocks.side, blocks.counts[..., 0, 0].size) == (side, count)


def test_draws_are_the_mious_of_the_blocks_drawn_under_the_protocol(make_classes: Make) -> None:
    rng, classes = np.random.default_rng(5), make_classes(4)
    counts = rng.integers(0, 50, (13, 4, 5))
    counts[:6, :3] = 0  # blocks with pixels of the class alone that does not count
    counts[7, :, 1], counts[:, 1] = 0, 0
    units = _units(counts, [0, 1, 2])
    assert len(units) == 7
    draws = np.random.default_rng(0).multinomial(7, np.full(7, 1 / 7), 100)
    for draw, miou in zip(draws[:20], _miou_of_draws(units)[:20], strict=True):
        chosen = np.repeat(counts[6:], draw, axis=0).sum(axis=0)
        assert miou == pytest.approx(ConfusionMatrix(classes, chosen).scores(PROTOCOL).miou, rel=1e-12)


def made(classes: ClassMap, rng: np.random.Generator, side: int, reach: int) -> ConfusionMatrix:
    """A scene whose errors are alike over some `reach` pixels, of which one in 16 × 16 is drawn."""
    noise = ndimage.gaussian_filter(rng.normal(size=(3, side // 16, side // 16)), (0, reach / 32, reach / 32))
    noise /= noise.std()
    truth = (noise[0] > 0).astype(np.uint8) + (noise[1] > 1.3)
    ids = np.stack([truth, np.where(noise[2] > 0.8, 0, truth)]).astype(np.uint8)
    return counted(classes, Window(0, 0, side, side), ids.repeat(16, axis=1).repeat(16, axis=2), side, side)


def test_of_few_scenes_blocks_are_drawn_of_the_largest_side_that_leaves_ten(make_classes: Make) -> None:
    rng, classes = np.random.default_rng(6), make_classes(3)
    each = [made(classes, rng, side, 64) for side in (1024, 640)]
    interval = miou_interval(each, PROTOCOL)
    low, high = bounds(interval)
    assert interval == Interval((low, high), 16 + 9, 256)
    assert low < total(each).miou < high
    assert interval.from_dict(interval.to_dict(), 2) == interval
    small = miou_interval([made(classes, rng, 352, 64)], PROTOCOL)
    assert small == Interval(None, 9, 128)
    assert small.from_dict(small.to_dict(), 1) == small
    assert small.from_dict({"miou_interval": [low, high]}, 12) == Interval((low, high), 12)


def test_enough_scenes_forget_their_blocks(make_classes: Make) -> None:
    rng, classes = np.random.default_rng(7), make_classes(3)
    each = [made(classes, rng, 320, 64) for _ in range(LEAST)]
    forget_blocks(each[1:])
    assert all(one.blocks is not None for one in each)
    few = miou_interval(each[:2], PROTOCOL)
    assert (few.count, few.side) == (2 * 9, 128)
    forget_blocks(each)
    assert all(one.blocks is None for one in each)
    assert miou_interval(each, PROTOCOL) == Interval(bounds(miou_interval(each, PROTOCOL)), LEAST)


@pytest.mark.slow
def test_intervals_of_blocks_hold_the_truth_where_errors_are_alike_over_many_pixels(
    make_classes: Make,
) -> None:
    """Errors alike over a tenth of the side: drawing the smallest blocks would hold it in some 70 %."""
    rng, classes = np.random.default_rng(8), make_classes(3)
    each = [made(classes, rng, 2048, 200) for _ in range(200)]
    truth = total(each).miou
    intervals = [miou_interval([one], PROTOCOL) for one in each]
    found = [interval.bounds for interval in intervals if interval is not None and interval.bounds]
    assert len(found) > 150, "in few a class lies in too few blocks"
    assert 0.88 < np.mean([low <= truth <= high for low, high in found]) < 0.99
