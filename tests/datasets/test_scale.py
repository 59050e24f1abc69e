"""Scale of scenes: the recipe's word first, else the georeference, in metres on the ground."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets import load_dataset
from datasets.check import check_dataset
from datasets.synthetic.make import make_potsdam
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.grid.gsd import OCTAVES, scene_strata
from segmenter.grid.labels import ClassMap
from segmenter.tiles.gsd import scene_gsds
from tests.helpers.refusals import refused
from tests.helpers.scaled_scenes import scaled_dataset


def folder(root: Path, scale: Any) -> Recipe:
    dataset = {
        "kind": "folder",
        "root": str(root),
        "images": "**/i_{name}.tif",
        "labels": "**/l_{name}.tif",
        "classes": [{"name": "a", "code": 0}],
        "metres_per_pixel": scale,
    }
    return recipe_from({"name": "t", "dataset": dataset}, "r.yaml")


@pytest.fixture
def files(tmp_path: Path, make_geotiff: Callable[..., Path]) -> Path:
    """Three scenes: 50 cm by its georeference, none, none; each with a number in its path."""
    for number, (place, crs) in enumerate([("50cm", "EPSG:25833"), ("8cm", None), ("120cm", None)]):
        make_geotiff(f"{place}/i_{number}.tif", np.zeros((23, 31, 3), np.uint8), crs=crs)
        make_geotiff(f"{place}/l_{number}.tif", np.zeros((23, 31), np.uint8), crs=crs)
    return tmp_path


@pytest.mark.parametrize(
    ("scale", "metres"),
    [
        ("georeference", (0.5, None, None)),
        ("0.3 m", (0.3, 0.3, 0.3)),
        ({"pattern": r"(\d+)cm/", "unit": "cm"}, (0.5, 0.08, 1.2)),
    ],
)
def test_the_recipe_says_the_scale_or_the_file_does(
    files: Path, scale: Any, metres: tuple[float | None, ...]
) -> None:
    dataset = load_dataset(folder(files, scale))
    by_name = sorted(dataset.scenes, key=lambda scene: scene.name)
    found = scene_gsds(dataset, by_name, progress=False)
    assert found == pytest.approx(metres) if None not in metres else found == metres


@pytest.mark.parametrize(
    ("scale", "fields"),
    [
        ("50 cm", {"where": "metres_per_pixel", "got": "'50 cm'"}),
        (0, {"where": "metres_per_pixel", "got": 0}),
        ({"pattern": "x"}, {"where": "metres_per_pixel.pattern", "got": "'x'"}),
        ({"pattern": "(x)", "unit": "km"}, {"where": "metres_per_pixel.unit", "got": "'km'"}),
        ({"patern": "(x)"}, {"fault": "mean pattern"}),
    ],
)
def test_a_scale_that_cannot_be_meant_is_refused(
    tmp_path: Path, scale: Any, fields: dict[str, object]
) -> None:
    with refused(ConfigError, **fields):
        folder(tmp_path, scale)


def test_an_image_without_a_number_in_its_path_is_named(files: Path) -> None:
    with refused(DatasetError, where="dataset.metres_per_pixel.pattern: (\\d)m", got="nothing in"):
        load_dataset(folder(files, {"pattern": r"(\d)m"}))
    with pytest.raises(DatasetError, match=r"got i in .*/i_\d.tif"):
        load_dataset(folder(files, {"pattern": r"(\w)_\d.tif"}))


def test_potsdam_is_as_published_unless_its_files_say_otherwise(
    tmp_path: Path, make_geotiff: Callable[..., Path]
) -> None:
    make_potsdam(tmp_path, scenes=1, seed=1, size=96)
    config = {"kind": "potsdam", "root": str(tmp_path), "split": {"validation": []}}
    dataset = load_dataset(recipe_from({"name": "t", "dataset": config}, "r.yaml"))
    assert scene_gsds(dataset, dataset.scenes, progress=False) == pytest.approx((0.05,))
    plain = make_geotiff("plain.tif", np.zeros((33, 31, 3), np.uint8), crs=None)
    coarse = make_geotiff("coarse.tif", np.zeros((33, 31, 3), np.uint8))
    scenes = [replace(dataset.scenes[0], image=path) for path in (plain, coarse)]
    assert scene_gsds(dataset, scenes, progress=False) == pytest.approx((0.05, 0.5))


def test_rotated_and_geographic_scenes_have_their_scale_on_the_ground(
    tmp_path: Path, make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap]
) -> None:
    metres = (0.1, 0.25, 0.6, 2.0, 0.37)
    dataset = scaled_dataset(tmp_path, make_geotiff, make_classes(3), metres)
    assert scene_gsds(dataset, dataset.scenes, progress=False) == pytest.approx(metres, rel=1e-3)
    report = check_dataset(dataset, progress=False)
    assert report.scale == (
        "0.1–2 m a pixel: scenes 1 of 0.088–0.18 m, 1 of 0.18–0.35 m, 2 of 0.35–0.71 m, 1 of 1.4–2.8 m"
    )
    assert f"scale: {report.scale}" in report.text()


def test_check_warns_where_recipe_and_georeference_contradict(files: Path) -> None:
    report = check_dataset(load_dataset(folder(files, 0.1)), progress=False)
    assert report.scale == "0.1 m a pixel"
    said = "dataset.metres_per_pixel says 0.1 m a pixel, its georeference 0.5 m"
    assert [line.partition(": ")[2] for line in report.remarks if "says" in line] == [said]
    known = check_dataset(load_dataset(folder(files, "georeference")), progress=False)
    assert known.scale == "0.5 m a pixel: scenes 1 of 0.35–0.71 m, 2 unknown"


def test_usual_scales_lie_in_the_middle_of_their_octave() -> None:
    """A georeference that is off by 10 % moves none of them into another stratum."""
    for metres in (0.05, 0.06, 0.1, 0.125, 0.2, 0.25, 0.3, 0.5, 0.6, 1, 2, 4, 10, 30):
        assert len(scene_strata([metres * 0.95, metres * 1.05]).titles) == 1, metres
    assert all(1.9 < b / a < 2.1 for a, b in itertools.pairwise(OCTAVES))
    turned = 0.29999999999999993  # of a raster of 0.3 m, rotated by 10°
    assert scene_strata([turned, 0.2999], (0.3,)).number_S.tolist() == [1, 0]
    strata = scene_strata([4.0, None, 0.05, 0.3, 1.0], (0.3, 1.0))
    assert strata.titles == ("0.05–0.3 m", "0.3–1 m", "1–4 m", "unknown scale")
    assert strata.number_S.tolist() == [2, 3, 0, 1, 2]


@given(
    st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=6, unique=True).map(sorted),
    st.lists(st.one_of(st.none(), st.floats(1e-3, 1e5)), min_size=1, max_size=9),
    st.booleans(),
)
def test_no_two_strata_have_one_title(
    boundaries: list[float], metres: list[float | None], close: bool
) -> None:
    """Of any bounds, as close together as scales are told apart (four digits), with a scene on each."""
    if close:
        step = 10 ** (math.floor(math.log10(boundaries[0])) - 3)
        boundaries = [round(boundaries[0] + i * step, 9) for i in range(6)]
    found = scene_strata([*metres, *boundaries], boundaries)
    assert len(set(found.titles)) == len(found.titles) == len(set(found.number_S.tolist()))
