"""Scores of calibrated maps: their protocol says how, and on which scenes the fit was."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segmenter.evaluation.calibration import Calibration
from segmenter.evaluation.scores import Protocol
from segmenter.mapping.calibrated import FittedScenes
from segmenter.raster import RasterSpec, write_raster
from segmenter.raster.stamps import file_digest
from segmenter.runs.records import FittedScene
from tests.helpers.maps import Call, Make, expected, pixels


def fitted(*images: Path, label: Path | None = None, blocks: bool = False) -> list[FittedScene]:
    its = "" if label is None else file_digest(label)
    return [
        FittedScene(name=image.stem, image=file_digest(image), label=its, blocks=blocks) for image in images
    ]


def calibrated(bias: Sequence[float], scenes: Sequence[FittedScene]) -> dict[str, Any]:
    """Return changes of a stand-in for a run: a calibration that was fitted on scenes."""
    found = Calibration(1.5, tuple(bias))
    return {"calibration": lambda: found, "calibration_file": lambda: SimpleNamespace(fitted_on=scenes)}


@pytest.mark.parametrize(
    ("known", "together"),
    [
        ("abc", "these scenes"),
        ("b", "some of these scenes"),
        ("x", "other scenes"),
        ("", "unknown scenes"),
    ],
)
@pytest.mark.parametrize("bias", [pytest.param(0.0, marks=pytest.mark.slow), 0.25])
def test_a_score_says_its_calibration_and_whether_it_was_fitted_on_the_scored_scenes(
    make_geotiff: Make, call: Call, rng: Any, capsys: Any, known: str, together: str, bias: float
) -> None:
    """Whatever the files are called now, and wherever they lie."""
    for name in "abcx":
        image = pixels(rng, 41, 37, 3)
        make_geotiff(f"fit/{name}.tif", image)
        truth = expected(image)
        truth[:9] = 0
        write_raster(Path(f"truth/{name}2.png"), truth, RasterSpec(driver="PNG"))
    scenes = fitted(*(Path(f"fit/{name}.tif") for name in known))
    Path("in").mkdir()
    for name in "abc":
        Path(f"fit/{name}.tif").rename(f"in/{name}2.tif")
    asked = ("in", "--labels", "truth/{stem}.png")
    assert call(*asked) == 0
    plain = json.loads(Path("maps/scores.json").read_text())
    assert "not calibrated" in capsys.readouterr().out
    assert call(*asked, output="on", **calibrated([bias, -bias, *[0.0] * 5], scenes)) == 0
    found = json.loads(Path("on/scores.json").read_text())
    said = capsys.readouterr().out
    kind = f"temperature{' and bias' * (bias > 0)}"
    assert (found["protocol"]["calibration"], found["protocol"]["fitted_on"]) == (kind, together)
    assert f"calibrated (by {kind}, fitted on {together})" in said
    assert ("may flatter" in said) == (together in ("these scenes", "some of these scenes"))
    rules = [Protocol.from_dict(each["protocol"]) for each in (plain, found)]
    assert any("calibration" in line for line in rules[0].differences(rules[1]))


def test_blocks_of_one_image_are_scenes_by_their_labels(make_geotiff: Make, tmp_path: Path) -> None:
    image = make_geotiff("a.tif", np.full((9, 9, 3), 7, np.uint8))
    labels = [make_geotiff(f"{part}.tif", np.full((9, 9), i, np.uint8)) for i, part in enumerate(("v", "t"))]
    run = SimpleNamespace(**calibrated([0.0], fitted(image, label=labels[0], blocks=True)))
    scenes = FittedScenes(run)  # type: ignore[arg-type]
    assert [scenes.holds(image, label, blocks=True) for label in labels] == [True, False]
    assert scenes.holds(image, labels[1], blocks=False) is True  # of the whole image
    assert scenes.holds(make_geotiff("b.tif", np.full((9, 9, 3), 8, np.uint8)), None, blocks=False) is False
    assert scenes.holds(tmp_path, None, blocks=False) is None
