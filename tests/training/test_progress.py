"""Loop of a training: its lines and bar, what the host waits for, how copies and workers agree, its end."""

import base64
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
from matplotlib.image import imread
from tqdm import tqdm

from segmenter.base.bars import clock
from segmenter.base.errors import TrainingError, WorkerError
from segmenter.config.reading import recipe_from
from segmenter.devices.machines.cluster import Cluster
from segmenter.devices.machines.workers import Workers
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices
from segmenter.evaluation.figures import summary_figure
from segmenter.evaluation.layers import WRONG, confident
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.inference.prediction import Prediction
from segmenter.runs.checkpoints import checkpoints
from segmenter.runs.records import SIDE
from segmenter.runs.score_files import BEST_FILES, SUMMARY
from segmenter.sampling import Plan
from segmenter.sampling.quotas import Quota
from segmenter.tiles.batches import DrawCounts
from segmenter.training.ending import describe_result
from segmenter.training.learner import ReplicaComparison
from segmenter.training.progress import Meter, TimeLeft
from segmenter.training.step import StepResult
from segmenter.training.validation import SHOWN, Examples
from segmenter.training.workers_agree import Stop, check_same, facts_of
from tests.helpers.laboratory import LIMIT, strategy_of
from tests.helpers.made_trainer import BATCH, made_trainer
from tests.helpers.made_training import apart, made, train
from tests.helpers.refusals import refused
from tests.helpers.small_training import central_of


def plan_of(blocks: int = 1) -> Plan:
    rows = np.arange(32).reshape(4, 8)
    return Plan(rows, 0, 0, True, 0, promised=(0, 2), best_effort=(1,), blocks=blocks)


def meter_of(coverage: str, rows: Plan) -> tuple[Any, list[dict[str, Any]], dict[str, str]]:
    """A meter; the lines it logs; what its bar shows."""
    lines: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    bar = SimpleNamespace(
        disable=False,
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
    assert meter.throughput() == f"epoch 1: {said}"
    meter.push(5, results([0.5] * 2, [WHOLE] * 2, [16.0, 32.0]), 0.0)
    meter.close()
    assert [(line["skipped_steps"], line["loss_scale"]) for line in lines] == [(2, 16.0), (0, 32.0)]
    assert meter.throughput().endswith(f"of the time, {said.replace('scale 16', 'scale 32')}")
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
        (False, "epoch 1: 4.0 images/s, waiting for data 25.0% of the time"),
        (True, "epoch 1: 2.3 images/s, waiting for data 21.4% of the time"),
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
            left.record((epoch - 1) * per_epoch + first + now)
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


def test_without_a_bar_a_line_says_epoch_loss_score_speed_and_time_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps of 5 s after a first call of 20 s; a line each minute, however long the epoch."""
    now, said = [0.0], list[str]()
    monkeypatch.setattr("segmenter.training.progress.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("segmenter.training.progress.tqdm.write", said.append)
    meter, _, _ = meter_of("relaxed", plan_of())
    meter.bar.disable, meter.time_left = True, TimeLeft(100, 50, 0, miou=0.412)
    for step in range(1, 41):
        now[0] += 20 if step == 1 else 5
        meter.push(step, results([1.21], [WHOLE]), 0.0)
    meter.close()
    lines = [line for line in said if line.startswith("epoch 1 of 50, step ")]
    assert len(lines) == 3  # of 215 s
    steps = [int(line.partition("step ")[2].partition(":")[0]) for line in lines]
    assert "left" not in lines[0]  # eight steps behind the first are timed
    for step, line in zip(steps[1:], lines[1:], strict=True):
        told = re.escape(f"{clock(5 * (100 - step))} left")
        assert re.search(rf": loss 1\.21, mIoU 41\.20, 1\.\d images/s, {told} \(\d\d:\d\d\)$", line)


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


def test_shown_are_the_windows_with_the_most_wrong_pixels_and_those_with_most_classes_right(
    make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    """Against a sort of all; windows have a tile's size, and pictures show each of their pixels."""
    side, count = 90, 9
    image = rng.integers(0, 256, (side, count * side, 3), np.uint8)
    scene: Any = SimpleNamespace(name="s", image=make_geotiff("s.tif", image))
    dataset: Any = SimpleNamespace(bands=None, classes=make_classes(3), scale_of=lambda _, metres: 0.5)
    label = np.zeros((side, count * side), np.uint8)
    found, sure = label.copy(), rng.integers(0, 256, label.shape, np.uint8)
    for number, wrong in enumerate((0.1, 0.5, 0.3, 0.3, 0.9, 0.0, 0.2, 0.05, 0.0)):
        part = label[:, number * side :][:, :side]
        part[:] = IGNORE if number == 8 else 0
        part[: side // 2] = part[0, 0] if number in (5, 8) else 1  # one shows one class, one no label
        part[0] = 2 if number == 3 else part[0]  # a trace
        found[:, number * side :][:, :side] = np.where(rng.random(part.shape) < wrong, 2, part)
    found[label == IGNORE] = 0
    examples = Examples(side)
    examples.consider(scene, Window(0, 0, *label.shape), label, Prediction(found, sure))
    assert (examples.windows, examples.scenes) == (8, {"s"})
    same = (label == found).reshape(side, count, side).sum(axis=(0, 2))
    worst = sorted(range(8), key=lambda number: same[number])[:SHOWN]
    best = sorted({*range(8)} - {5, *worst}, key=lambda number: -same[number])[:SHOWN]
    shown = examples.windows_to_show(dataset)
    assert [(one.why, one.col // side) for one in shown] == [
        *(("worst", number) for number in worst),
        *(("best", number) for number in best),
    ]
    palette = dataset.classes.palette()
    for one in shown:
        part = (slice(None), slice(one.col, one.col + one.width))
        assert (one.right, one.labelled, one.metres) == (same[one.col // side], side**2, 0.5)
        assert max(one.picture_height, one.picture_width) <= SIDE
        np.testing.assert_array_equal(decoded(one.label), palette[label[part]])
        np.testing.assert_array_equal(decoded(one.map), palette[found[part]])
        wrong = (decoded(one.errors) == WRONG).all(axis=2)
        np.testing.assert_array_equal(wrong, label[part] != found[part])
        np.testing.assert_array_equal(decoded(one.confidence), confident(sure[part], found[part]))
        pairs = Counter(zip(label[part][wrong].tolist(), found[part][wrong].tolist(), strict=True))
        names = dataset.classes.names
        assert one.confused is None or pairs[tuple(map(names.index, one.confused))] == max(pairs.values())
        assert decoded(one.image).shape == (one.picture_height, one.picture_width, 3)

    for example, number, why in zip(examples.read(dataset), (3, 4), ("classes", "mistakes"), strict=True):
        assert np.array_equal(example.image_HWC, image[:, number * side :][:, :side])
        assert np.array_equal(example.label_HW, label[:, number * side :][:, :side])
        assert f"column {number * side}: the window with the most {why}" in example.title


def test_a_scene_has_one_stretch_in_all_of_its_windows(
    make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap]
) -> None:
    """The same ground value has the same grey in a dark window and in a light one."""
    side = 150
    ramp = np.linspace(0, 4000, 6 * side)[None, :, None]
    image = (ramp + np.zeros((side, 6 * side, 1))).astype(np.uint16)
    scene: Any = SimpleNamespace(name="s", image=make_geotiff("s.tif", image))
    dataset: Any = SimpleNamespace(bands=None, classes=make_classes(2), scale_of=lambda _, metres: metres)
    examples, label = Examples(side), np.zeros((side, 6 * side), np.uint8)
    label[:, ::7] = 1
    examples.consider(scene, Window(0, 0, *label.shape), label, Prediction(1 - label))
    shown = sorted(examples.windows_to_show(dataset), key=lambda one: one.col)
    middles = [float(decoded(one.image).mean()) for one in shown]
    expected = [255 * (one.col + side / 2) / (6 * side) for one in shown]
    assert len(shown) == 2 * SHOWN
    assert middles == pytest.approx(expected, abs=12)


def test_a_window_that_shows_the_most_of_both_is_one_example_and_the_figure_has_a_row_for_each(
    make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap], tmp_path: Path
) -> None:
    image = np.arange(40 * 60 * 3, dtype=np.uint8).reshape(40, 60, 3)
    scene: Any = SimpleNamespace(name="s", image=make_geotiff("s.tif", image))
    examples, label = Examples(), np.repeat(np.arange(2, dtype=np.uint8), 20)[:, None].repeat(60, 1)
    examples.consider(scene, Window(0, 0, 40, 60), label, Prediction(1 - label))
    dataset: Any = SimpleNamespace(bands=None, scale_of=lambda _, metres: metres)
    (example,) = examples.read(dataset)
    assert example.title == "s, row 0, column 0: the window with the most classes and the most mistakes"
    classes, pictures = make_classes(3), []
    for count in (1, 2):
        summary_figure(confused(classes), [example] * count, classes, tmp_path / "s.png", "after epoch 3")
        pictures.append(imread(tmp_path / "s.png"))
    one, two = pictures
    assert two.shape[0] > one.shape[0]
    assert np.array_equal(two[: one.shape[0], : one.shape[1]], one)


def decoded(picture: str) -> np.ndarray:
    pixels = np.asarray(imread(io.BytesIO(base64.b64decode(picture)), "png" if picture[0] == "i" else "jpeg"))
    return pixels if pixels.dtype == np.uint8 else np.rint(pixels[..., :3] * 255).astype(np.uint8)


pytestmark = pytest.mark.usefixtures("tensorflow")

REPLICAS, STEPS, PER_CALL = 2, 22, 2
CALLS = STEPS // PER_CALL


class Result:
    """Results of a call that know which calls were made when they are read: on a GPU, a wait."""

    def __init__(self, values: Any, call: int, made: list[int], reads: list[tuple[int, int]]) -> None:
        self._values, self._call, self._made, self._reads = np.asarray(values), call, made, reads

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._reads.append((self._call, len(self._made)))
        return self._values


def test_an_epoch_waits_for_no_call_before_the_next_is_under_way(
    tmp_path: Path, make_classes: Callable[..., ClassMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    reads: list[tuple[int, int]] = []
    classes = 3

    def steps(stack: Any, count: Any) -> Any:
        made.append(len(made))
        held = np.full((PER_CALL, 2, classes), [[BATCH], [REPLICAS]])
        values = np.ones(PER_CALL, np.float32), held, np.ones(PER_CALL, bool), np.ones(PER_CALL, np.float32)
        return StepResult(*(Result(value, made[-1], made, reads) for value in values))

    monkeypatch.setattr("segmenter.training.learner.make_steps", lambda parts: steps)
    trainer = made_trainer(
        tmp_path, make_classes(classes), REPLICAS, STEPS, steps_per_call=PER_CALL, epochs=1
    )

    written: list[int] = []
    monkeypatch.setattr(trainer._log, "log_steps", lambda step, values: written.append(step))
    with tqdm(total=STEPS, disable=True) as bar:
        trainer._epoch(bar, Stop(trainer.devices, []))
    assert len(made) == CALLS
    # Four results of each call, all of them when the next one has been handed over; of the last at the end.
    assert reads == [(call, min(call + 2, CALLS)) for call in range(CALLS) for _ in range(4)]
    assert written == [20, 22]


def test_replicas_that_differ_end_the_run_before_a_checkpoint(
    tmp_path: Path, make_classes: Callable[..., ClassMap]
) -> None:
    trainer = made_trainer(tmp_path, make_classes(3), REPLICAS)
    first = trainer.save()
    assert first.is_file()
    variable = trainer.learner.model.trainable_variables[0]
    copy = trainer.devices.strategy.experimental_local_results(variable.value)[1]
    copy.assign(copy * 1.0000002)
    trainer.position = trainer.position.after(1)
    with refused(TrainingError, fault="CPU:0 for down0_conv0/kernel"):
        trainer.save()
    assert list(first.parent.iterdir()) == [first]


REPLICAS = 3


class Copies:
    """Some variables with a copy on each replica, and the check of them."""

    def __init__(self, models: tuple[str, ...] = ("a card",) * REPLICAS) -> None:
        strategy = strategy_of(REPLICAS)
        used: Any = [SimpleNamespace(name=f"CPU:{i}", model=model) for i, model in enumerate(models)]
        rng = np.random.default_rng(5)
        with strategy.scope():
            plain = [keras.Variable(rng.normal(size=(5, 7)), dtype=t, name=t) for t in ("float32", "float64")]
            counter = keras.Variable(3, dtype="int64", trainable=False, name="counter")
            local = {"synchronization": "on_read", "aggregation": "only_first_replica"}
            moving = keras.Variable(rng.normal(size=9), trainable=False, name="moving", **local)
        self.variables = [*plain, counter, moving]
        self.agreement = ReplicaComparison(Devices(strategy, tuple(used)), self.variables)
        self._strategy = strategy

    def copy(self, variable: Any, replica: int) -> Any:
        return self._strategy.experimental_local_results(variable.value)[replica]


def test_equal_copies_agree_and_one_bit_of_one_copy_does_not() -> None:
    copies = Copies()
    assert copies.agreement.check(1) == ""
    for variable in copies.variables:
        copy = copies.copy(variable, 2)
        before = copy.numpy()
        changed = before + 1 if before.dtype == np.int64 else before.copy()
        if before.dtype != np.int64:
            changed.flat[-1] = np.nextafter(changed.flat[-1], np.inf, dtype=before.dtype)
        copy.assign(changed)
        line = f"step 7: expected the same .* got others on CPU:2 than on CPU:0 for {variable.path}; a device"
        with pytest.raises(TrainingError, match=line):
            copies.agreement.check(7)
        copy.assign(before)
    assert copies.agreement.check(8) == ""


def test_several_models_of_card_may_differ_and_it_is_said_once() -> None:
    copies = Copies(("RTX 2080 Ti", "RTX 2080 Ti", "TITAN RTX"))
    copies.copy(copies.variables[0], 1).assign(np.zeros((5, 7)))
    assert copies.agreement.check(7).endswith("for float32; so do RTX 2080 Ti and TITAN RTX side by side")
    assert copies.agreement.check(8) == ""


def test_there_are_no_copies_to_compare() -> None:
    used: Any = tuple(Device(f"CPU:{i}", "its model", "", "CPU") for i in range(2))
    devices = Devices(central_of(2), used)
    assert devices.central
    assert devices.computed_on["variables"] == "one copy, on the host"
    assert ReplicaComparison(devices, []).check(1) == ""


@pytest.mark.slow
def test_a_run_goes_on_mirrored_and_a_mirrored_one_there(tmp_path: Path) -> None:
    recipe = made(tmp_path / "data")
    two = ("--logical-devices", "2", "--set", "training.precision=float64")
    central = ("--set", "distribution.strategy=central_storage", "--set", "distribution.shares=[5,3]")
    kinds_of = {"mirrored": (), "central": central}
    for first, then in (("mirrored", "central"), ("central", "mirrored")):
        run = tmp_path / first
        train(recipe, "--run", str(run), *two, *kinds_of[first])
        whole = shutil.copytree(run, tmp_path / f"{first} as it was")
        step = min(checkpoints(run))
        out = train(recipe, "--run", str(run), "--resume-from", str(step), *two, *kinds_of[then]).stdout
        assert "computed otherwise, the bits of what follows may differ: " in out
        assert "variables" in out
        assert apart(run, whole) <= LIMIT


DATA = {"name": "t", "dataset": {"kind": "potsdam", "root": "here"}}


class Others(Workers):
    """This process as worker 0 of two; the other says what it is told to."""

    count = 2

    def __init__(self, said: str) -> None:
        self.said, self.cluster = said, Cluster(0, 2, "test", ("a:1", "b:2"))

    def name(self, index: int | None = None) -> str:
        return self.cluster.name(index)

    def exchange(self, text: str) -> list[str]:
        return [text, self.said]


def facts(make_classes: Any, tiles: str = "abc", devices: int = 2, **changes: Any) -> dict[str, str]:
    named: Any = SimpleNamespace(names=tuple(f"GPU:{i}" for i in range(devices)))
    classes = make_classes(changes.pop("classes", 3))
    return facts_of(recipe_from({**DATA, **changes}, "test"), classes, tiles, named)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"seed": 5}, "worker 1 (b:2): recipe"),
        ({"training": {"learning_rate": 0.5}}, "recipe, training.learning_rate"),
        ({"tiles": "xyz"}, "data (fingerprint)"),
        ({"devices": 4}, "devices"),
        ({"classes": 4}, "worker 1 (b:2): classes"),
    ],
)
def test_a_worker_that_differs_is_named(make_classes: Any, change: dict[str, Any], where: str) -> None:
    other = Others(json.dumps(facts(make_classes, **change)))
    with refused(WorkerError, where=where):
        check_same(other, facts(make_classes))


def test_other_programs_are_refused_and_what_each_may_have_of_its_own_is_not(make_classes: Any) -> None:
    own = facts(make_classes)
    for name, there in (("program", "0.1.0 123"), ("version of tensorflow", "2.20.0")):
        with refused(WorkerError, where=f"worker 1 (b:2): {name}", got=there):
            check_same(Others(json.dumps({**own, name: there})), own)

    dataset = {"dataset": {"kind": "potsdam", "root": "there", "cache": "elsewhere"}}
    other = facts(make_classes, **dataset, training={"input_workers": 3})
    check_same(Others(json.dumps(other)), facts(make_classes))


@pytest.mark.parametrize(
    ("heard", "signal"), [([2, 0], 2), ([0, 15], 15), ([2, 15], 15), ([2, 2], 2), ([0, 0], 0)]
)
def test_all_stop_for_the_same_signal(heard: list[int], signal: int) -> None:
    devices: Any = SimpleNamespace(workers=Others(""))
    stop = Stop(devices, [])
    stop.take(heard)
    assert (bool(stop), stop.signal) == (signal > 0, signal)
