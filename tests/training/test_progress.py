"""Lines and bar of a training: short steps, what is skipped, what is left; its end on one screen."""

import base64
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from segmenter.base.errors import TrainingError
from segmenter.evaluation.figures import summary_figure
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.runs.records import SIDE
from segmenter.runs.score_files import BEST_FILES, SUMMARY
from segmenter.sampling import Plan
from segmenter.sampling.quotas import Quota
from segmenter.tiles.batches import DrawCounts
from segmenter.training.ending import describe_result
from segmenter.training.progress import Meter, TimeLeft
from segmenter.training.validation import SHOWN, Examples
from tests.helpers.refusals import refused


def plan_of(blocks: int = 1) -> Plan:
    rows = np.arange(32).reshape(4, 8)
    return Plan(rows, 0, 0, True, 0, promised=(0, 2), best_effort=(1,), blocks=blocks)


def meter_of(coverage: str, rows: Plan) -> tuple[Any, list[dict[str, Any]], dict[str, str]]:
    """A meter; the lines it logs; what its bar shows."""
    lines: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    bar = SimpleNamespace(
        set_description=lambda *_, **__: None,
        set_postfix=lambda values, **_: shown.update(values),
        update=lambda _: None,
    )
    meter = Meter(
        rows,
        ("road", "lake", "car"),
        epoch=1,
        replicas=4,
        strict=coverage == "strict",
        overflows=0,
        bar=bar,
        log=lambda step, values: lines.append({"step": step, **values}),
        rate_at=lambda step: 0.1 * step,
        drawn=lambda: DrawCounts(8, 1, 0),
    )
    return meter, lines, shown


def results(losses: Any, held: Any, scales: Any = None) -> tuple[Any, ...]:
    """As a `StepResult`; a step after which the scale is smaller than before was skipped."""
    scales = np.ones(len(losses)) if scales is None else np.array(scales)
    return np.array(losses), np.array(held), np.diff(scales, prepend=scales[0]) >= 0, scales


def take(meter: Meter, *steps: list[list[int]], calls: int = 2) -> None:
    """Results of steps, (tiles, replicas) that hold each class, so many steps a call."""
    for first in range(0, len(steps), calls):
        held = np.array(steps[first : first + calls])
        meter.push(first + 1, results(np.full(len(held), 0.5), held), 0.0)
    meter.close()


WHOLE = [[5, 0, 1], [4, 0, 1]]
SHORT = [[8, 2, 0], [4, 2, 0]]


def test_a_short_step_is_counted_shown_and_logged_and_in_strict_mode_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    meter, lines, shown = meter_of("relaxed", plan_of())
    take(meter, WHOLE, SHORT, WHOLE)
    assert "step 2 holds fewer tiles of car than" in capsys.readouterr().out
    assert (shown["short"], shown["classes"]) == ("1", "2/3")
    (line,) = lines
    assert (line["step"], line["learning_rate"]) == (3, pytest.approx(0.3))
    assert (line["steps"], line["short_steps"], line["held_steps"]) == (3, 1, [3, 1, 2])
    assert (line["promised"], line["best_effort"]) == ([0, 2], [1])
    assert (line["held_tiles"], line["promised_tiles"]) == ([18, 2, 2], [1, 1])

    meter, _, _ = meter_of("strict", plan_of())
    with refused(TrainingError, where="step 2"):
        take(meter, WHOLE, SHORT, WHOLE)


def test_a_step_short_of_a_quota_or_of_a_replica_s_class_is_short() -> None:
    meter, lines, _ = meter_of("relaxed", replace(plan_of(), quotas=(Quota(4, 2.5), Quota(1, 1))))
    take(meter, [[2, 0, 1], [2, 0, 1]], [[1, 0, 1], [1, 0, 1]], [[3, 0, 1], [3, 0, 1]])
    (line,) = lines
    assert (line["short_steps"], line["promised_tiles"]) == (1, [2.5, 1])

    meter, lines, _ = meter_of("relaxed", plan_of(blocks=4))
    take(meter, [[8, 0, 4], [4, 0, 4]], [[8, 0, 6], [4, 0, 3]])
    assert lines[0]["short_steps"] == 1
    assert lines[0]["classes_per_replica"] == pytest.approx((8 + 7) / 2 / 4)


def test_a_loss_that_is_not_finite_is_named_with_its_step_once_the_loss_scale_has_settled() -> None:
    meter, _, _ = meter_of("relaxed", plan_of())
    meter.push(1, results([0.5, np.nan, 0.5], [WHOLE] * 3), 0.0)
    with refused(TrainingError, fault="step 2"):
        meter.drain()

    meter, _, _ = meter_of("relaxed", plan_of())
    meter.overflows = 2
    meter.push(1, results([np.inf, np.inf, 0.5, np.nan, np.nan], [WHOLE] * 5), 0.0)
    meter.push(6, results([np.nan], [WHOLE]), 0.0)
    with refused(TrainingError, fault="step 6"):
        meter.drain()


def test_skipped_steps_are_counted_shown_and_logged_with_the_scale() -> None:
    """With a finite loss nothing else tells of them."""
    meter, lines, shown = meter_of("relaxed", plan_of())
    meter.scaled = True
    meter.push(1, results([0.5] * 4, [WHOLE] * 4, [64.0, 32.0, 16.0, 16.0]), 0.0)
    meter.close()
    assert (shown["skipped"], shown["scale"]) == ("2", "16")
    said = "2 steps skipped for a gradient that is not finite, loss scale 16"
    assert meter.throughput() == said
    meter.push(5, results([0.5] * 2, [WHOLE] * 2, [16.0, 32.0]), 0.0)
    meter.close()
    assert [(line["skipped_steps"], line["loss_scale"]) for line in lines] == [(2, 16.0), (0, 32.0)]
    assert meter.throughput().endswith(f"of the time; {said.replace('scale 16', 'scale 32')}")
    meter, lines, shown = meter_of("relaxed", plan_of())  # in float32, which has no loss scale
    take(meter, WHOLE, WHOLE)
    assert "skipped_steps" not in lines[0]
    assert "scale" not in shown


def test_a_run_that_only_skips_ends_by_its_scale_whatever_the_stops_and_epochs_in_between() -> None:
    scales = [2.0 ** (15 - done) for done in range(30)]
    meter, _, _ = meter_of("relaxed", plan_of())
    meter.push(1, results([0.5] * 26, [WHOLE] * 26, scales[:26]), 0.0)
    meter.drain()  # down to 2⁻¹⁰: as far as it may fall
    again, _, _ = meter_of("relaxed", plan_of())  # the next epoch, or a resumed run
    again.push(27, results([0.5] * 2, [WHOLE] * 2, scales[25:27]), 0.0)
    with refused(TrainingError, fault="step 28: ") as caught:
        again.drain()
    assert "0.00049 (skipped in this epoch: 1)" in str(caught.value)


@pytest.mark.parametrize(
    ("compiled", "said"),
    [
        # Calls at 10 and 14 s, begun at 0: the first of a process is compiled, and no part of the rate.
        (False, "throughput: 4.0 images/s, waiting for data 25.0% of the time"),
        (True, "throughput: 2.3 images/s, waiting for data 21.4% of the time"),
    ],
)
def test_the_rate_is_of_all_calls_but_the_one_that_is_compiled(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, said: str
) -> None:
    now = [0.0]
    monkeypatch.setattr("segmenter.training.progress.time.perf_counter", lambda: now[0])
    meter, _, _ = meter_of("relaxed", plan_of())
    meter.compiled = compiled
    meter.__post_init__()
    for moment, waited in ((10.0, 2.0), (14.0, 3.0)):
        now[0] = moment
        meter.push(1, results([0.5, 0.5], [WHOLE] * 2), waited)
    meter.close()
    assert meter.throughput() == said


@pytest.mark.parametrize(
    ("every", "per_epoch", "epochs", "call"), [(0, 7, 30, 2), (1, 200, 5, 8), (3, 7, 30, 2), (3, 1, 90, 1)]
)
def test_the_time_that_is_left_is_said_once_before_and_once_after_a_validation(
    monkeypatch: pytest.MonkeyPatch, every: int, per_epoch: int, epochs: int, call: int
) -> None:
    """By a clock of its own: 60 s for what compiles, 7 s a step, 90 s a validation."""
    clock, said, truth = [0.0], [], []
    monkeypatch.setattr("segmenter.training.progress.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr("segmenter.training.progress.tqdm.write", said.append)
    steps = per_epoch * epochs
    whole = 7.0 * steps + 90.0 * (-(-epochs // every) if every else 0)
    left, spent = TimeLeft(steps, epochs, every), 0.0
    clock[0] += 60
    for epoch in range(1, epochs + 1):
        for first in range(0, per_epoch, call):
            now = min(call, per_epoch - first)
            clock[0] += 7.0 * now
            spent += 7.0 * now
            left.stepped((epoch - 1) * per_epoch + first + now)
            truth += [whole - spent] * (len(said) - len(truth))
        if every and (epoch == epochs or epoch % every == 0):
            with left.validating(epoch * per_epoch):
                clock[0] += 90
            spent += 90
            truth += [whole - spent] * (len(said) - len(truth))
    assert len(said) == 1 + bool(every)
    assert "steps at 7 s" in said[0]
    if every:
        assert " at 2 min" in said[1]
    for line, seconds in zip(said if not every else said[1:], truth if not every else truth[1:], strict=True):
        parts = line.partition("about ")[2].partition(" left")[0].split()
        units = {"h": 3600, "min": 60, "s": 1}
        shown = sum(float(n) * units[unit] for n, unit in zip(parts[::2], parts[1::2], strict=True))
        assert abs(shown - seconds) <= 30


def confused(classes: ClassMap) -> ConfusionMatrix:
    """In each 100 pixels, 40 of the second class are taken for the first, 5 of the third for the second."""
    confusion = ConfusionMatrix(classes)
    truth = np.repeat(np.arange(3, dtype=np.uint8), 100)
    found = truth.copy()
    found[100:140], found[200:205] = 0, 1
    confusion.add(truth, found)
    return confusion


def test_the_end_of_a_training_fits_one_screen(make_classes: Callable[..., ClassMap], tmp_path: Path) -> None:
    classes = make_classes(3)
    a, b, c = classes.names
    scores = confused(classes).scores(Protocol(tuple(classes.names), "full", "validation"))
    scores.write(tmp_path / BEST_FILES[0], facts={"epoch": 3, "step": 21})
    for name in (SUMMARY, "learning_curves.png"):
        (tmp_path / name).touch()
    lines = describe_result(tmp_path, f"iou:{b}")
    assert lines[0].startswith(f"best: epoch 3, step 21, mIoU 74.52 %, IoU of {b} 57.14 %; best.npz")
    assert [line.split() for line in lines[3:6]] == [
        [a, "71.43", "33.33", "#" * 18],
        [b, "57.14", "33.33", "#" * 14],
        [c, "95.00", "33.33", "#" * 24],
    ]
    assert lines[lines.index("most confused:") + 1 : -2] == [
        f"  {b} taken for {a}: 40.00 % of the pixels of {b}",
        f"  {c} taken for {b}: 5.00 % of the pixels of {c}",
    ]
    assert lines[-1] == f"pictures: {tmp_path / SUMMARY}, {tmp_path / 'learning_curves.png'}"
    assert len(lines) < 24


def test_without_a_validation_nothing_is_made_up(tmp_path: Path) -> None:
    assert describe_result(tmp_path, "miou") == []
    (tmp_path / BEST_FILES[0]).write_text("{")
    assert describe_result(tmp_path, "miou") == []


def test_examples_are_the_windows_with_most_classes_and_most_mistakes(
    make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap], tmp_path: Path
) -> None:
    image = np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3)
    scene: Any = SimpleNamespace(name="s", image=make_geotiff("s.tif", image))
    dataset: Any = SimpleNamespace(bands=None)
    examples = Examples()
    label = np.zeros((40, 20), np.uint8)
    several, ignored = label.copy(), label.copy()
    several[:5], several[5:9] = 1, 2
    ignored[:] = IGNORE
    windows = [Window(0, col, 40, 20) for col in (0, 20, 40)]
    for window, truth, found in zip(
        windows, (label, several, ignored), (label + 1, several, label), strict=True
    ):
        examples.consider(scene, window, truth, found)
    first, second = examples.read(dataset)
    assert np.array_equal(first.image_HWC, image[:, 20:40])
    assert np.array_equal(first.label_HW, several)
    assert np.array_equal(second.image_HWC, image[:, :20])
    assert "column 20: the window with the most classes" in first.title
    assert "column 0: the window with the most mistakes" in second.title
    alone = Examples()
    alone.consider(scene, windows[0], several, label)
    assert [e.title for e in alone.read(dataset)] == [
        "s, row 0, column 0: the window with the most classes and the most mistakes"
    ]

    classes = make_classes(3)
    path = tmp_path / "summary.png"
    summary_figure(confused(classes), [first, second], classes, path, "after epoch 3")
    with_both = imread(path)
    summary_figure(confused(classes), [first], classes, path, "after epoch 3")
    with_one = imread(path)
    assert with_both.shape[0] > with_one.shape[0]
    height = with_one.shape[0]
    assert np.array_equal(with_both[:height, : with_one.shape[1]], with_one)


def test_shown_are_the_windows_with_the_most_wrong_pixels_and_those_with_most_classes_right(
    make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    """Against a sort of all; pictures are thinned out to at most `SIDE`, and show the window's pixels."""
    side, count = 700, 9
    image = rng.integers(0, 256, (side, count * side, 3), np.uint8)
    scene: Any = SimpleNamespace(name="s", image=make_geotiff("s.tif", image))
    dataset: Any = SimpleNamespace(bands=None, classes=make_classes(3))
    examples, facts = Examples(), []
    for number, wrong in enumerate((0.1, 0.5, 0.3, 0.3, 0.9, 0.0, 0.2, 0.05, 0.0)):
        label = np.full((side, side), IGNORE if number == 8 else 0, np.uint8)
        label[: side // 2] = label[0, 0] if number in (5, 8) else 1  # one shows one class, one no label
        found = np.where(rng.random(label.shape) < wrong, 2, label).astype(np.uint8)
        found[label == IGNORE] = 0
        window = Window(0, number * side, side, side)
        examples.consider(scene, window, label, found)
        if number != 8:
            facts.append((int((label != found).sum()), int((label == found).sum()), number))
    assert (examples.windows, examples.scenes) == (8, {"s"})
    worst = [number for *_, number in sorted(facts, key=lambda fact: -fact[0])[:SHOWN]]
    two_classes = [fact for fact in facts if fact[2] != 5 and fact[2] not in worst]
    best = [number for *_, number in sorted(two_classes, key=lambda fact: -fact[1])[:SHOWN]]
    shown = examples.shown(dataset)
    assert [(one.why, one.col // side) for one in shown] == [
        *(("worst", number) for number in worst),
        *(("best", number) for number in best),
    ]
    right = {number: correct for _, correct, number in facts}
    assert [one.right for one in shown] == [right[one.col // side] for one in shown]
    step = -(-side // SIDE)
    for one in shown:
        assert max(one.picture_height, one.picture_width) <= SIDE
        label_HWC = decoded(one.label)
        assert label_HWC.shape == (one.picture_height, one.picture_width, 3)
        truth = np.zeros((side, side), np.uint8)
        truth[: side // 2] = 1
        assert np.array_equal(label_HWC, dataset.classes.palette()[truth[::step, ::step]])
        assert decoded(one.image).shape == label_HWC.shape


def decoded(picture: str) -> np.ndarray:
    pixels = np.asarray(imread(io.BytesIO(base64.b64decode(picture)), "png" if picture[0] == "i" else "jpeg"))
    return pixels if pixels.dtype == np.uint8 else np.rint(pixels[..., :3] * 255).astype(np.uint8)
