"""The end of a training says what was reached, which classes are confused, and shows it."""

import base64
import io
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from matplotlib.image import imread

from segmenter.evaluation.figures import summary_figure
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.runs.records import SIDE
from segmenter.runs.score_files import BEST_FILES, SUMMARY
from segmenter.training.ending import describe_result
from segmenter.training.validation import SHOWN, Examples


def confused(classes: ClassMap) -> ConfusionMatrix:
    """Of each 100 pixels, 40 of the second class are taken for the first, 5 of the third for the second."""
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
