"""A call as a value: what options become, what is refused; maps and finishers without a command line."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets.commands.predict import parse
from segmenter.base.errors import SegmenterError
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.session import map_rasters
from tests.helpers.exact_network import fake_run
from tests.helpers.maps import Make
from tests.helpers.refusals import refused

CALL = ["run", "a.tif", "--output", "maps"]


def request(**changes: Any) -> MapRequest:
    return MapRequest(**{"run": Path("run"), "output": Path("maps"), "inputs": ("a.tif",), **changes})


def test_without_options_a_request_has_the_defaults_of_the_command_line() -> None:
    assert parse(CALL)[0].request == request()


def test_options_become_values() -> None:
    asked, _ = parse(
        [
            *CALL,
            *("--window-size", "96", "--blend-weights", "linear", "--tta", "flips", "--memory", "3GB"),
            *("--part", "1", "2", "3", "4", "--bands", "3,1", "--drivers", "VRT,JP2OpenJPEG"),
        ]
    )
    assert asked.request == request(
        window_size=96,
        blend_weights="linear",
        tta="flips",
        memory=3 * 10**9,
        part=(1, 2, 3, 4),
        bands=(3, 1),
        drivers=("VRT", "JP2OpenJPEG"),
    )
    with pytest.raises(FrozenInstanceError):
        asked.request.tta = "all"  # type: ignore[misc]


def test_a_list_of_runs_may_be_longer_than_a_file_name() -> None:
    names = [letter * 100 for letter in "abcdef"]
    assert parse([",".join(names), *CALL[1:]])[0].request.runs == tuple(map(Path, names))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tta": "some"}, "--tta"),
        ({"blend_weights": None}, "--blend-weights: expected hann"),
        ({"window_size": 0}, "--window-size: expected 1"),
        ({"part": (-1, 0, 9, 9)}, "ROW COL ≥ 0"),
        ({"part": (0, 0, -1, 9)}, "ROW COL ≥ 0"),
        ({"bbox": (5, 0, 1, 1)}, "numbers, LEFT <"),
        ({"bbox": (0, 0, float("inf"), 1)}, "--bbox: expected numbers"),
        ({"cog": True, "format": "png"}, "--format png asks"),
        ({"protocol": "potsdam-6"}, "need --labels or --split"),
        ({"split": "all", "inputs": ()}, "--split: expected train"),
        ({"split": "test"}, "out INPUT a.tif"),
        ({"split": "test", "inputs": (), "labels": "x.png"}, "leave out --labels x.png"),
        ({"split": "test", "inputs": (), "split_name": "test"}, "leave out --split-name"),
        ({"recipe": Path("r.yaml")}, "--recipe r.yaml: says whose"),
        ({"inputs": ()}, "expected INPUT"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(SegmenterError) as raised:
        request(**changes)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


def test_labels_and_splits_of_python_users_need_what_a_loader_says(
    tmp_path: Path, make_geotiff: Make, make_classes: Any
) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    run: Any = fake_run(make_classes(7))
    with refused(SegmenterError, expected="run's dataset"):
        map_rasters(request(output=tmp_path / "maps", inputs=(str(source),), labels="truth/{stem}.tif"), run)
    with refused(SegmenterError, where="--split test"):
        map_rasters(request(output=tmp_path / "maps", inputs=(), split="test"), run)
    assert not (tmp_path / "maps").exists()
