"""Fit of a raster to a run: other units, orders and types are refused, another landscape is not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Window
from segmenter.grid.scenes import SceneMeans
from segmenter.inference.fit import BandMoments, check_fit, other_light
from segmenter.model.normalisation import Normalisation
from segmenter.raster import open_raster
from segmenter.raster.header import order_of
from segmenter.raster.in_memory import ArrayRaster
from segmenter.runs.ensemble import Ensemble
from tests.helpers.refusals import refused
from tests.helpers.trained_run import unsaved_run

SIZE = (150, 190)
MEAN, STD = np.array([912.0, 1045.0, 1180.0, 2400.0]), np.array([510.0, 480.0, 600.0, 900.0])


def landscape(seed: int = 0, moved: float = 0.0) -> NDArray[np.float64]:
    """(H, W, 4) reflectance × 10,000; `moved`: by so many deviations, another in each band."""
    rng = np.random.default_rng(seed)
    blocks = rng.normal(0, 1, (15, 19, 4)).repeat(10, axis=0).repeat(10, axis=1)
    shift = moved * np.array([1, -0.6, 0.3, 0.9])
    values = MEAN + STD * (0.9 * blocks + 0.4 * rng.normal(0, 1, (*SIZE, 4)) + shift)
    return np.clip(values, 1, None)


def run_of(
    image: NDArray[Any] | None = None, dtype: str = "uint16", names: tuple[str | None, ...] = ()
) -> Any:
    trained = landscape() if image is None else image
    mean, std = trained.mean(axis=(0, 1)), trained.std(axis=(0, 1))
    scale = Normalisation.of(mean, std)
    return SimpleNamespace(dtype=dtype, scenes=None, normalisation=scale, band_names=names, scene_means=None)


def fit(run: Any, image: NDArray[Any], *, insist: bool = False) -> tuple[str, ...]:
    return check_fit(run, ArrayRaster(image), Window(0, 0, *image.shape[:2]), insist=insist)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("moved", [0.0, 0.7, -0.7])
def test_another_landscape_fits(seed: int, moved: float) -> None:
    assert fit(run_of(), landscape(seed, moved).astype(np.uint16)) == ()


def run_of_scenes(brightness: float = 0.0, scenes: int = 12) -> Any:
    """A run of scenes as large as `landscape`, whose means differ by a tenth of the pixels' deviation."""
    run = run_of()
    mean, std = (np.array(each) for each in (run.normalisation.mean, run.normalisation.std))
    means = mean + std * 0.1 * np.random.default_rng(1).normal(size=(scenes, 4))
    each = (means.mean(axis=0), means.std(axis=0, ddof=1), means.min(axis=0), means.max(axis=0))
    run.scene_means = SceneMeans(scenes, SIZE[0] * SIZE[1], *(tuple(values.tolist()) for values in each))
    augmentation = {"brightness": brightness, "contrast": brightness, "transforms": ()}
    run.recipe = SimpleNamespace(augmentation=SimpleNamespace(**augmentation))
    return run


def light(run: Any, *images: NDArray[Any]) -> str:
    seen: list[BandMoments] = []
    for image in images:
        whole = Window(0, 0, *image.shape[:2])
        check_fit(run, ArrayRaster(image), whole, insist=True, seen=seen)
    return other_light(run, seen, sum(image.shape[0] * image.shape[1] for image in images))


@pytest.mark.parametrize("moved", [0.0, 0.1, -0.1, 0.8, -0.8])
def test_light_unlike_that_of_all_scenes_is_said_once_for_all_images(moved: float) -> None:
    images = [landscape(seed, moved).astype(np.uint16) for seed in range(3)]
    assert bool(light(run_of_scenes(), *images)) == (abs(moved) > 0.5)


def test_pieces_of_a_scene_are_not_taken_for_another_light() -> None:
    """One piece may hold water alone; together they are the scene."""
    scene = landscape(4).astype(np.uint16)
    pieces = [scene[r : r + 30, c : c + 38] for r in range(0, 150, 30) for c in range(0, 190, 38)]
    assert len({light(run_of_scenes(), piece) for piece in pieces}) == 1
    assert light(run_of_scenes(), *pieces) == ""
    assert light(run_of_scenes(), scene[:30, :38] * 2) == ""


def test_means_that_a_scene_of_training_had_are_not_other_light() -> None:
    run = run_of_scenes()
    dark, bright = (tuple(np.array(run.scene_means.mean) * times) for times in (0, 3))
    run.scene_means = replace(run.scene_means, low=dark, high=bright)
    assert light(run, landscape(0, 0.8).astype(np.uint16)) == ""


def test_scenes_standardised_one_by_one_differ_by_nothing() -> None:
    run = run_of_scenes()
    alike = tuple(1e-9 * np.array(run.scene_means.mean))
    run.scene_means = replace(
        run.scene_means, deviation=alike, low=run.scene_means.mean, high=run.scene_means.mean
    )
    assert light(run, landscape(0).astype(np.uint16)) == ""


def test_few_scenes_and_many_bands_raise_no_alarm_by_chance() -> None:
    rng = np.random.default_rng(9)
    alarms = 0
    for _ in range(200):
        means = rng.normal(size=(8, 60))
        each = (means.mean(axis=0), means.std(axis=0, ddof=1), means.min(axis=0), means.max(axis=0))
        run = run_of_scenes()
        run.normalisation = Normalisation.of(np.zeros(60), np.ones(60))
        run.scene_means = SceneMeans(8, 1, *(tuple(values.tolist()) for values in each))
        found = rng.normal(size=(1, 60))
        alarms += bool(other_light(run, [BandMoments(found[0], found[0], 999, found)], 1))
    assert alarms <= 8, "a hundredth, and what chance adds"


def test_several_runs_must_agree_on_the_light() -> None:
    knows, old = run_of_scenes(), run_of()
    seen = [BandMoments.of(ArrayRaster(landscape(0, 0.8).astype(np.uint16)), Window(0, 0, *SIZE))]
    for second, told in ((knows, True), (old, False)):
        both = object.__new__(Ensemble)
        object.__setattr__(both, "members", (knows, second))
        assert bool(other_light(both, seen, SIZE[0] * SIZE[1])) == told


@pytest.mark.parametrize("change", [{"brightness": 0.25, "contrast": 0.25}, {"transforms": ("RandomGamma",)}])
def test_colours_are_advised_where_training_left_them_alone(change: dict[str, Any]) -> None:
    image, run = landscape(0, 0.8).astype(np.uint16), run_of_scenes()
    before = light(run, image)
    vars(run.recipe.augmentation).update(change)
    after = light(run, image)
    assert after
    assert before.startswith(after)
    assert before != after


def test_another_unit_is_not_said_as_light() -> None:
    assert light(run_of_scenes(), (landscape() * 10).astype(np.uint16)) == ""


def test_water_alone_and_too_little_to_tell_fit() -> None:
    rng = np.random.default_rng(5)
    water = rng.normal([420, 330, 210, 90], [25, 22, 20, 15], (*SIZE, 4))
    fit(run_of(), water.astype(np.uint16))

    fit(run_of(), np.full((9, 9, 4), 60000, np.uint16))
    fit(run_of(), np.zeros((*SIZE, 4), np.uint16))


@pytest.mark.parametrize(
    ("what", "image"),
    [
        ("tenth", lambda values: values / 10),
        ("hundred times", lambda values: values * 10),
        ("offset of newer products", lambda values: values + 1000),
        ("offset taken off", lambda values: np.clip(values - 1000, 0, None)),
        ("clouds' values everywhere", lambda values: values * 0 + 20000 + values % 7),
    ],
)
def test_whole_numbers_of_another_unit_are_refused(
    what: str, image: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    """What becomes negative without the offset is 0 in such products: a band may lose its shape by that."""
    trained = landscape() + 1000 if what == "offset taken off" else landscape()
    values = image(trained).astype(np.uint16)
    with refused(RasterError, where="image", fault="band means", remedy="--insist"):
        fit(run_of(trained), values)
    assert len(fit(run_of(trained), values, insist=True)) == 1


@pytest.mark.parametrize("factor", [1e-4, 1e-3, 1 / 255, 1e4])
def test_floats_of_another_unit_are_refused(factor: float) -> None:
    with pytest.raises(RasterError, match="band means"):
        fit(run_of(dtype="float32"), (landscape() * factor).astype(np.float32))


def test_a_common_factor_is_said_before_it_is_refused() -> None:
    def answer(factor: float) -> str:
        try:
            return "said" if fit(run_of(dtype="float32"), (landscape() * factor).astype(np.float32)) else ""
        except RasterError:
            return "refused"

    darker = [answer(1 / factor) for factor in (2.0, 2.6, 4.0, 5.2, 7.5)]
    assert darker == ["", "", "said", "said", "refused"]
    assert [answer(factor) for factor in (1.5, 4.0, 5.2, 7.5)] == ["", "said", "said", "refused"]


@pytest.mark.parametrize("trained_in", ["linear", "decibels"])
@pytest.mark.parametrize("bands", [1, 2])
def test_decibels_are_no_linear_values(trained_in: str, bands: int) -> None:
    rng = np.random.default_rng(1)
    decibels = rng.normal([-9.0, -16.0], [3.0, 3.5], (*SIZE, 2))[..., :bands].astype(np.float32)
    linear = (10 ** (decibels / 10)).astype(np.float32)
    trained, other = (linear, decibels) if trained_in == "linear" else (decibels, linear)
    assert fit(run_of(trained, "float32"), trained[::-1].copy()) == ()
    with pytest.raises(RasterError, match="band means"):
        fit(run_of(trained, "float32"), other)


def test_bands_in_reverse_order_are_said() -> None:
    apart = np.array([200.0, 900.0, 3000.0])
    trained = np.random.default_rng(0).normal(apart, 150, (*SIZE, 3)).astype(np.uint16)
    assert any("reverse" in line for line in fit(run_of(trained), trained[..., ::-1].copy()))


def test_another_type_is_refused_by_one_rule() -> None:
    values = landscape()
    for dtype, trained in (("uint8", "uint16"), ("int16", "uint16"), ("float32", "uint16")):
        image = (values / 12 if dtype == "uint8" else values).astype(dtype)
        with refused(RasterError, where="image", fault="values of uint16"):
            fit(run_of(dtype=trained), image)
        assert fit(run_of(dtype=trained), image, insist=True)
    assert fit(run_of(dtype="float32"), values) == ()  # float64 holds the same measurement


def test_an_image_must_have_the_type_of_each_run() -> None:
    runs = [unsaved_run(Path(dtype), dtype=dtype) for dtype in ("uint8", "uint16")]
    for dtype, other in (("uint8", "uint16"), ("uint16", "uint8")):
        with refused(RasterError, fault=f"values of {other}"):
            fit(Ensemble((runs[0], runs[1])), np.ones((9, 9, 3), dtype))


def test_a_sample_is_of_the_whole_part_and_without_what_has_no_data() -> None:
    image = np.full((400, 500, 1), 7, np.uint8)
    image[200:] = 9
    valid = np.ones((400, 500), bool)
    valid[:, :250] = False
    sample = BandMoments.of(ArrayRaster(image, valid), Window(0, 0, 400, 500))
    assert (sample.mean_C, sample.std_C) == (8.0, 1.0)
    assert 0 < sample.pixels < 16 * 64**2


@pytest.mark.parametrize(
    ("wanted", "names", "bands", "order"),
    [
        (("red", "green", "blue"), ("red", "green", "blue"), (1, 2, 3), None),
        (("red", "green", "blue"), ("blue", "green", "red"), (1, 2, 3), (3, 2, 1)),
        (("red", "green", "blue"), ("blue", "green", "red", "nir"), (3, 2, 1), None),
        (("red", "green", "blue"), ("nir", "red", "green"), (1, 2, 3), ()),
        (("red", None), (None, "red"), (1, 2), ()),
        (("b04", "b03"), ("red", "green"), (1, 2), None),
        ((), ("blue", "green"), (1, 2), None),
        (("red", "green"), (None, None), (1, 2), None),
    ],
)
def test_names_tell_another_order(
    wanted: Any, names: Any, bands: tuple[int, ...], order: tuple[int, ...] | None
) -> None:
    assert order_of(wanted, names, bands) == order


@pytest.mark.parametrize(
    ("wanted", "names", "lines"),
    [
        (("b2", "b3", "b8"), ("B2", "B3", "B8A"), 1),
        (("b2", "b3", "b8"), ("B2", "B3", "B8"), 0),
        (("b2", "b3", "b8"), ("blue", "green", "nir"), 0),
        (("b2", None, "b8"), ("B2", "B3", "B8"), 0),
        ((), ("B2", "B3", "B8A"), 0),
    ],
)
def test_another_band_among_those_of_training_is_said(
    make_geotiff: Callable[..., Path], wanted: Any, names: Any, lines: int
) -> None:
    image = landscape()[..., :3].astype(np.uint16)
    with open_raster(make_geotiff("a.tif", image, descriptions=names)) as raster:
        assert len(check_fit(run_of(image, names=wanted), raster, raster.extent)) == lines
