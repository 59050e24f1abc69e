"""Where it cannot be told which bands are data, the check, training and prediction ask for them alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.check import check_dataset
from segmenter.base.errors import DatasetError, RasterError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Window
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.tiles.index import build_index
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore
from segmenter.training.prepare import prepare_tiles
from tests.helpers.made_training import made
from tests.helpers.maps import Call, Make
from tests.helpers.refusals import refused

Images = Callable[..., Dataset]
SHAPE = (40, 50)
ASKED = "band 4 is tagged as alpha, but holds measurements and no mask; say which bands to use, by "
ASKED += "dataset.bands in the recipe or --bands of predict.py: 1,2,3,4 or 1,2,3"


@pytest.fixture
def images(tmp_path: Path, make_geotiff: Make, make_classes: Any) -> Images:
    """`images(array, …)`: a dataset of them, of which `splits` may say what each is for."""

    def make(*arrays: Any, splits: tuple[Split, ...] = (), **options: Any) -> Dataset:
        scenes = []
        for i, array in enumerate(arrays):
            files = make_geotiff(f"{i}.tif", array, **options), make_geotiff(f"{i}_l.tif", array[..., 0] % 3)
            scenes.append(Scene(str(i), *files, str(i), splits[i] if splits else "train"))
        return Dataset("made", tmp_path, tuple(scenes), make_classes(3))

    return make


def near_infrared(rng: Any) -> Any:
    """RGB and a band that is often 0 and never near 255."""
    values = rng.integers(1, 200, (*SHAPE, 4), np.uint8)
    values[rng.random(SHAPE) < 0.3, 3] = 0
    return values


def test_alpha_that_is_measurements(images: Images, rng: Any, call: Call, capfd: Any) -> None:
    values = near_infrared(rng)
    dataset = images(values, alpha=True)
    (scene,) = dataset.scenes
    expected = f"{scene.image}: {ASKED}"
    report = check_dataset(dataset, progress=False)
    assert ("bands", expected) in [(finding.kind, finding.text) for finding in report.findings]
    with pytest.raises(RasterError) as training:
        build_index(dataset, "train", TilesConfig(size=32, overlap=0), progress=False)
    assert str(training.value) == expected
    for count in (3, 4):
        assert call(scene.image, band_count=count) == 1
        assert capfd.readouterr().err == f"error: {expected}\n"


def test_named_bands_are_all_read(images: Images, rng: Any, call: Call, capfd: Any) -> None:
    values = near_infrared(rng)
    dataset = replace(images(values, alpha=True), bands=(1, 2, 3, 4))
    assert check_dataset(dataset, progress=False).clean
    build_index(dataset, "train", TilesConfig(size=32, overlap=0), progress=False)
    store = SceneStore(dataset, dataset.scenes, 32, dataset.root / "cache", progress=False)
    image, valid, _ = store.read(0, Window(0, 0, *SHAPE))
    np.testing.assert_array_equal(image, values)
    assert valid.all()
    path = dataset.scenes[0].image
    assert call(path, "--bands", "1,2,3,4", band_count=4) == 0
    assert call(path, "--redo", bands=(1, 2, 3), band_count=3) == 0
    assert capfd.readouterr().err == ""


def test_an_image_with_more_bands_than_the_others(images: Images, rng: Any) -> None:
    three, four = rng.integers(1, 9, (*SHAPE, 3), np.uint8), rng.integers(1, 9, (*SHAPE, 4), np.uint8)
    asks = "; say which bands to use, by dataset.bands in the recipe or --bands of predict.py: 1,2,3"
    dataset = images(three, three, four, photometric="minisblack")
    odd = dataset.scenes[2].image
    (text,) = [finding.text for finding in check_dataset(dataset, progress=False).findings]
    assert text == f"{odd}: expected 3 bands of uint8 as most have, got 4 of uint8{asks}"
    with refused(DatasetError, expected="3 bands as 0.tif", got=4, remedy=asks[2:]):
        band_statistics(dataset, progress=False)
    named = replace(dataset, bands=(1, 2, 3))
    assert check_dataset(named, progress=False).clean
    assert len(band_statistics(named, progress=False).mean_C) == 3


def test_training_looks_before_it_starts(tmp_path: Path, make_geotiff: Make, rng: Any) -> None:
    """The scene that validates, too: before hours are spent."""
    recipe = load_recipe(made(tmp_path / "data"))
    make_geotiff("four.tif", rng.integers(1, 9, (97, 83, 4), np.uint8), photometric="minisblack", crs=None)
    (tmp_path / "four.tif").replace(tmp_path / "data" / "images" / "s4.tif")
    with refused(DatasetError, where="s4.tif", expected="3 bands"):
        prepare_tiles(recipe, load_dataset(recipe))


def test_nodata_values_that_are_data_are_told_in_training(images: Images, rng: Any, capfd: Any) -> None:
    values = rng.integers(0, 4, (*SHAPE, 3), np.uint8)
    dataset = images(values, np.ones((*SHAPE, 3), np.uint8), nodata=0)
    share = ((values == 0).any(axis=2) & (values != 0).any(axis=2)).mean()
    said = f"{dataset.scenes[0].image}: {100 * share:.2g} % of the pixels hold a nodata value in some band "
    said += "and are data, since other bands do not; the model sees that band's mean there"
    report = check_dataset(dataset, progress=False)
    assert report.remarks == (said,)
    assert f"warning: {said}" in report.text().splitlines()
    build_index(dataset, "train", TilesConfig(size=32, overlap=0), progress=False)
    assert capfd.readouterr().err == f"warning: {said}\n"


def test_an_image_without_data_is_told_by_the_check(images: Images) -> None:
    dataset = images(np.zeros((*SHAPE, 3), np.uint8), nodata=0)
    assert check_dataset(dataset, progress=False).remarks == (
        f"{dataset.scenes[0].image}: has no pixel with data",
    )
