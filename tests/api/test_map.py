"""Files mapped from Python: byte for byte those of `predict.py`, with nothing printed and no error lost."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import predict
from datasets.commands.predict import parse
from segmenter import MapsError, OpenRun, open_run
from segmenter.api.mapping_call import keyword_call
from segmenter.base.errors import DatasetError, RasterError
from tests.helpers.maps import Make
from tests.helpers.refusals import refused


@pytest.fixture
def scenes(make_geotiff: Make, rng: Any) -> Path:
    """A folder with two scenes."""
    for name in ("a", "b"):
        path = make_geotiff(f"in/{name}.tif", rng.integers(1, 1000, (61, 83, 3), np.uint16))
    return path.parent


def test_the_files_are_those_of_the_command(run: OpenRun, scenes: Path, tmp_path: Path, capfd: Any) -> None:
    said = ["--output", str(tmp_path / "command"), "--confidence", "--bbox"]
    box = (368003.0, 5807980.0, 368030.5, 5807999.0)
    assert predict.main([str(run.paths[0]), str(scenes), *said, *map(str, box)]) == 0
    capfd.readouterr()
    maps = run.map(scenes, tmp_path / "python", confidence=True, bbox=box, memory="4GB")
    assert capfd.readouterr() == ("", "")
    names = sorted(path.name for path in (tmp_path / "command").glob("*.tif"))
    assert names == ["a.confidence.tif", "a.tif", "b.confidence.tif", "b.tif"]
    for name in names:
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert [path.name for path in maps.paths] == ["a.tif", "b.tif"]
    assert maps.kept == ()
    assert "2 maps in" in maps.notes[-1]
    each = [scenes / "a.tif", scenes / "b.tif"]
    again = run.map(each, tmp_path / "python", confidence=True, bbox=box, memory="4GB")
    assert again.kept == again.paths == maps.paths
    assert repr(again).startswith("2 maps in")


def test_maps_are_scored(run: OpenRun, scenes: Path, tmp_path: Path, capfd: Any) -> None:
    run.map(scenes, tmp_path / "maps", format="png")
    for name in ("a", "b"):
        (tmp_path / "truth").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "maps" / f"{name}.png", tmp_path / "truth")
    maps = run.map(scenes, tmp_path / "maps", format="png", labels=str(tmp_path / "truth" / "{stem}.png"))
    assert maps.scores.miou == 1
    assert set(maps.scores.iou) == set(run.classes.names)
    assert "mIoU 100.00 %" in repr(maps)
    assert "IoU" in repr(maps.scores)
    assert capfd.readouterr() == ("", "")


def test_a_failing_input_is_an_error_others_are_mapped(run: OpenRun, scenes: Path, tmp_path: Path) -> None:
    (scenes / "c.tif").write_bytes((scenes / "a.tif").read_bytes()[:300])
    with refused(MapsError, fault="1 input failed, 2") as caught:
        run.map(scenes, tmp_path / "maps")
    assert [path.name for path in caught.value.maps.paths] == ["a.tif", "b.tif"]
    assert len(caught.value.failures) == 1
    with pytest.raises(RasterError, match=r"c\.tif"):
        run.map(scenes / "c.tif", tmp_path / "alone")
    assert not (tmp_path / "alone").exists()


def test_the_model_is_compiled_once_for_many_calls(run: OpenRun, scenes: Path, tmp_path: Path) -> None:
    opened = open_run(run.paths[0])
    opened.map(scenes / "a.tif", tmp_path / "maps")
    models = list(opened._models._found.values())
    opened.map(scenes / "b.tif", tmp_path / "maps")
    opened.predict(np.ones((3, 5, 3), np.uint16))
    assert [model for _, model in opened._models._found.values()] == [model for _, model in models]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"windowsize": 64}, "windowsize: .* window_size"),
        ({"nonsense": 64}, "known are .*blend_weights, .*window_size"),
        ({"cog": "yes"}, "cog: .* got 'yes'"),
        ({"bbox": (1, 2, 3)}, "bbox: .* got"),
        ({"split": "test"}, "split: "),
        ({"window_size": -1}, "got -1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_are_checked_first(run: OpenRun, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        run.map("nowhere.tif", tmp_path / "maps", **options)
    assert not (tmp_path / "maps").exists()


def test_keywords_are_the_options_of_the_command() -> None:
    """Each in its type, and each default that of the command line."""
    words = ["--bands", "4,2", "--memory", "8GB", "--part", "1,2,3,4", "--window-size", "64", "--mosaic"]
    spoken, _ = parse(["runs/a,", "x.tif", "--output", "maps", *words])
    size = np.int64(64)
    typed = {"bands": [4, 2], "memory": "8GB", "part": [1, 2, 3, 4], "window_size": size, "mosaic": True}
    assert _asked(**typed) == spoken
    assert type(_asked(**typed).request.window_size) is int
    assert _asked() == parse(["runs/a,", "x.tif", "--output", "maps"])[0]


def _asked(**options: Any) -> Any:
    return keyword_call((Path("runs/a"),), ["x.tif"], "maps", options)


@pytest.mark.parametrize(
    ("natural", "words"),
    [
        ({"codes": {"water": 1, "road": 300}}, {"codes": "water=1,road=300"}),
        ({"codes": np.array([10, 20])}, {"codes": "10,20"}),
        ({"vectors": Path("a/b.gpkg"), "only": "water"}, {"vectors": "a/b.gpkg", "only": ["water"]}),
        ({"memory": 8e9}, {"memory": "8GB"}),
        ({"labels": Path("truth/{stem}.png")}, {"labels": "truth/{stem}.png"}),
        ({"bbox": np.array([1.5, 2, 3, 4])}, {"bbox": (1.5, 2, 3, 4)}),
        ({"drivers": None, "only": None, "tta": None}, {}),
        ({"bands": (3, 1)}, {"bands": "3,1"}),
    ],
    ids=lambda value: "+".join(value),
)
def test_python_s_own_values_stand_for_texts(natural: dict[str, Any], words: dict[str, Any]) -> None:
    assert _asked(**natural) == _asked(**words)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"codes": 5}, {"expected": "a text", "got": 5}),
        ({"labels": ["a.png"]}, {"expected": "a text", "got": "a.png"}),
        ({"batch": 2.5}, {"expected": "whole number", "got": 2.5}),
        ({"gsd": [1]}, {"expected": "a number", "got": "[1]"}),
        ({"memory": float("inf")}, {"expected": "whole number"}),
        ({"part": ("a", 1, 2, 3)}, {"expected": "number"}),
        ({"only": [3], "vectors": "a.gpkg"}, {"expected": "texts", "got": "[3]"}),
        ({"bands": [1, "x"]}, {"fault": "numbers"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_values_that_can_be_none_are_refused_in_a_line(
    options: dict[str, Any], fields: dict[str, object]
) -> None:
    with refused(DatasetError, **fields):
        _asked(**options)
