"""Command `datasets augmented`: tiles beside their labels, before and after."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from datasets.__main__ import main
from segmenter.base.errors import ConfigError, SegmenterError
from segmenter.evaluation import figures
from tests.helpers.made_training import made
from tests.helpers.refusals import refused

COLOURS = ("#ff0000", "#00ff00", "#0000ff")


@pytest.fixture
def recipe(tmp_path: Path) -> tuple[str, ...]:
    """Three classes, one of them scarce; what is overridden gives them colours."""
    names = ("left", "right", "scarce")
    classes = ", ".join(
        f"{{name: {name}, code: {code}, colour: '{colour}'}}"
        for code, (name, colour) in enumerate(zip(names, COLOURS, strict=True))
    )
    return str(made(tmp_path / "data")), "--set", f"dataset.classes=[{classes}]"


def call(recipe: tuple[str, ...], *arguments: str) -> int:
    return main(["augmented", *recipe, *arguments])


def test_every_class_is_shown_with_the_label_that_belongs_to_it(
    recipe: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The made scenes are as bright as their class: each image panel must show what its label panel says."""
    seen: list[dict[str, np.ndarray]] = []
    draw = figures.panels_figure
    keep = lambda panels, *a: seen.append(panels) or draw(panels, *a)  # noqa: E731
    monkeypatch.setattr("segmenter.diagnosis.augmented.panels_figure", keep)
    mix = ("--set", "augmentation.mosaic=0.5", "--set", "augmentation.copy_paste.p=1")
    plain = ("--set", "augmentation.brightness=0", "--set", "augmentation.contrast=0")
    output = tmp_path / "a.png"
    assert call(recipe, *mix, *plain, "--tiles", "3", "--draws", "2", "--output", str(output)) == 0
    picture = cv2.imread(str(output))[..., ::-1]
    panels = list(seen[0].values())
    assert list(seen[0])[:4] == ["as it lies", "its label", "draw 1", "label of draw 1"]
    assert len(panels) == 2 * (1 + 2)
    for image, label in zip(panels[::2], panels[1::2], strict=True):
        assert image.shape == label.shape == ((3 * 32 + 2 * 4) * 8, 32 * 8, 3)
        shown = [image[(label == list(bytes.fromhex(c[1:]))).all(axis=2)] for c in COLOURS]
        levels = [np.median(pixels) for pixels in shown if pixels.size]
        assert len(levels) == 3 or image is not panels[0]
        assert np.all(np.diff(levels) > 0)
    colours = {tuple(int(v) for v in one) for one in picture.reshape(-1, 3)}
    assert {tuple(bytes.fromhex(colour[1:])) for colour in COLOURS} <= colours


def test_mistakes_are_one_line_and_leave_no_picture(recipe: tuple[str, ...], tmp_path: Path) -> None:
    output = tmp_path / "a.png"
    for listed, said in (
        ("{name: RandomGama}", "did you mean RandomGamma"),
        ("{name: HueSaturationValue}, {name: CLAHE}, {name: RandomScale}", r"transforms.2 \(RandomScale\)"),
    ):
        with pytest.raises(ConfigError, match=said):
            call(recipe, "--set", f"augmentation.transforms=[{listed}]", "--output", str(output))
    with refused(SegmenterError, where="none/a.png", fault="folder"):
        call(recipe, "--output", str(tmp_path / "none" / "a.png"))
    assert not output.exists()
