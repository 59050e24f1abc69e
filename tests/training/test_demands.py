"""Demands of a recipe on its dataset and on the machine: a training refuses the first, `check` says all."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio

from datasets import load_dataset
from datasets.commands import call as main
from segmenter.base.errors import ConfigError, DatasetError, SegmenterError, run_script
from segmenter.config.reading import load_recipe, recipe_from
from segmenter.config.recipe import Recipe, SamplingConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices
from segmenter.sampling import TileStrata, part_table, plan
from segmenter.training import checks
from segmenter.training.checks import check_memory
from segmenter.training.prepare import describe_plan, epoch_plan, few_steps, prepare_tiles
from tests.helpers.made_rasters import written
from tests.helpers.made_training import made
from tests.helpers.refusals import refused

_VERDICT = "not clean: 4 findings"
"""On the made scenes alone, which lie at one place; it needs no demand, and comes before them."""
UNMET = {
    "loss.class_weights=[1, 2]": "loss.class_weights: expected 3 weights, one a class, got 2",
    "training.best_by=beauty": "training.best_by: expected a score of a validation (",
    "augmentation.copy_paste.classes=[scrace]": "got scrace; did you mean scarce?",
    "augmentation.transforms=[{name: CLAHE}]": "augmentation.transforms.0 (CLAHE): fails on tiles of 4 bands",
    "augmentation.transforms=[{name: RandomGama}]": "no transform RandomGama; did you mean RandomGamma",
    "augmentation.hue=10": "expected 8-bit images of 3 bands, got 4 of uint16",
    "dataset.split={test: [s4]}|training.best_by=mf1": "training.best_by: expected validation scenes with it",
    "dataset.split={test: [s4]}|training.stop_after=3": "training.stop_after: expected validation scenes",
    "training.rates={encoder stage 9: 0.1}": "training.rates: expected stages of this model (encoder, ",
    "training.freeze_encoder=1|training.rates={decoder: 0, head: 0}": "training.rates: expected a rate above",
    "sampling.method=foreground|sampling.foreground_share=0.01": "sampling.foreground_share: 0.01 of a train",
    "sampling.quotas={boat: 1}": "sampling.quotas: expected a class of left, right, scarce, got boat",
    "sampling.quotas={scarce: 9}": "sampling.quotas: expected no more tiles in all than training.",
    "augmentation.scale=0|augmentation.scale_to=[100, 200]": "scale_to: expected metres a pixel that a train",
}


@pytest.fixture(scope="module")
def four_bands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recipe of scenes of four bands of 16 bits."""
    return made(tmp_path_factory.mktemp("demands") / "data", "uint16", 4)


@pytest.mark.parametrize(("settings", "said"), UNMET.items())
def test_what_a_training_refuses_at_its_start_the_check_says_in_the_same_words(
    settings: str, said: str, four_bands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = settings.split("|")
    recipe = load_recipe(four_bands, words)
    with pytest.raises(SegmenterError) as raised:
        prepare_tiles(recipe, load_dataset(recipe))
    assert said in str(raised.value)
    assert not list(four_bands.parent.glob(".tile-index/*"))
    assert check(four_bands, *words) == 2
    assert f"error: {raised.value}\n" in capsys.readouterr().err


def test_the_check_says_all_that_is_unmet_each_in_a_line(
    four_bands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("loss.class_weights=[1, 2]", "training.best_by=beauty", "augmentation.hue=10")
    assert check(four_bands, *settings) == 2
    seen = capsys.readouterr()
    lines = [line for line in seen.err.splitlines() if line.startswith("error: ")]
    assert [line.split(":")[1].split(",")[0].strip() for line in lines] == [
        "training.best_by",
        "loss.class_weights",
        "augmentation.hue",
    ]
    assert seen.out.splitlines()[-1] == _VERDICT


def check(file: Path, *settings: str) -> int:
    return run_script(lambda: main(["check", str(file), *(f"--set={setting}" for setting in settings)]))


def test_a_best_by_a_class_that_no_validation_pixel_has_is_said_by_the_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = made(tmp_path)
    with rasterio.open(tmp_path / "labels" / "s4.tif", "r+") as label:
        label.write(np.where(label.read() == 2, 0, label.read()))
    for name, code in (("scarce", 2), ("left", 1)):
        assert check(file, f"training.best_by=iou:{name}") == code
    assert capsys.readouterr().err.count("got scarce") == 1


def test_the_start_says_what_is_given_of_each_amount_by_hand() -> None:
    """A class with tiles for it, with their uses; one with too few tiles; one in no tile."""
    counts, names = np.full((40, 4), [4000, 0, 0, 0]), ["land", "road", "car", "boat"]
    counts[:10, 1], counts[0, 2] = 100, 100
    rules = SamplingConfig(quotas={"road": 3, "car": 2, "boat": 2}, max_repeats_per_tile=2)
    first = plan(part_table(counts, names=names), 8, rules, 0, 0)
    index: Any = SimpleNamespace(counts_NK=counts, strata=None)
    said = describe_plan(first, rules, index, names)[-1]
    assert "road 3.0 (tiles used 1.8 times)" in said  # ten tiles; six steps of three, as repeats need room
    assert ("car 0.0 (wished 2.0" in said, "boat 0.0 (wished 2.0)" in said) == (True, True)


def test_the_start_says_the_uses_of_the_tiles_of_each_scale() -> None:
    """Two coarse tiles with roads, and ten fine ones: the coarse are used several times as often."""
    counts, names = np.full((60, 2), [4000, 0]), ["land", "road"]
    counts[:12, 1] = 100
    strata = TileStrata(np.r_[np.ones(2, np.int32), np.zeros(58, np.int32)], ("fine", "coarse"))
    rules = SamplingConfig(quotas={"road": 4}, max_repeats_per_tile=19)
    first = plan(part_table(counts, strata, names), 8, rules, 0, 0)
    index: Any = SimpleNamespace(counts_NK=counts, strata=strata)
    said = describe_plan(first, rules, index, names)[-1]
    uses_N = np.bincount(first.rows_SB.reshape(-1))
    for tiles in (slice(0, 2), slice(2, 12)):
        assert f"(tiles used {uses_N[tiles].mean():.1f} times)" in said
    assert uses_N[:2].mean() > 2 * uses_N[2:12].mean()


def test_validation_without_a_labelled_pixel_is_named_by_training_and_check(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = made(tmp_path)
    for folder, half, code in (("images", slice(50), 0), ("labels", slice(50, None), 255)):
        with rasterio.open(tmp_path / folder / "s4.tif", "r+") as raster:
            raster.nodata = 0 if folder == "images" else None
            pixels = raster.read()
            pixels[..., half] = code
            raster.write(pixels)
    settings = ["dataset.ignore=[255]"]
    recipe = load_recipe(file, settings)
    with refused(DatasetError, expected="labelled pixels") as raised:
        prepare_tiles(recipe, load_dataset(recipe))
    assert check(file, *settings) == 2
    assert f"error: {raised.value}\n" in capsys.readouterr().err


def test_sparse_validation_is_taken_where_it_has_labels(tmp_path: Path) -> None:
    """Few pixels of each tile: too few to train on, and enough to score."""
    file = made(tmp_path)
    with rasterio.open(tmp_path / "labels" / "s4.tif", "r+") as label:
        ids = label.read()
        label.write(np.where(np.arange(ids[0].size).reshape(ids.shape) % 101, 255, ids))
    recipe = load_recipe(file, ["dataset.ignore=[255]", "training.best_by=iou:left"])
    prepare_tiles(recipe, load_dataset(recipe))


def test_scenes_of_unknown_scale_are_said_by_the_check_where_the_recipe_needs_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, setting = made(tmp_path), "sampling.scale_strata=[0.5]"
    for image in (*tmp_path.glob("images/*.tif"), *tmp_path.glob("labels/*.tif")):
        _without_place(image)
    recipe = load_recipe(file, [setting])
    with pytest.raises(SegmenterError) as raised:
        prepare_tiles(recipe, load_dataset(recipe))
    assert check(file, setting) == 2
    assert f"error: {raised.value}\n" in capsys.readouterr().err
    assert "metres a pixel" in str(raised.value)
    check(file)
    assert "error: " not in capsys.readouterr().err


def _without_place(file: Path) -> None:
    with rasterio.open(file) as raster:
        values = raster.read()
    file.unlink()
    written(file, np.moveaxis(values, 0, 2))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["model.weights=gone.safetensors"], "gone.safetensors"),
        (["model.encoder=mobilenet_v2", "model.weights=imagenet", "model.weight_bands=[1, 2]"], "got 2"),
    ],
)
def test_weights_that_do_not_go_with_the_images_are_said_by_the_check(
    settings: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = made(tmp_path, "uint16", 4)
    file.write_text(file.read_text().replace("depth: 1", "kind: encoder_decoder").replace("width: 4", ""))
    assert check(file, *settings) == 2
    assert said in capsys.readouterr().err


def test_what_the_tiles_cannot_give_is_refused_once_the_index_is_known(tmp_path: Path) -> None:
    file = made(tmp_path)
    recipe = load_recipe(file, ["augmentation.copy_paste={classes: [scarce]}", "sampling.min_pixels=900"])
    with refused(ConfigError, where="augmentation.copy_paste.classes", got="scarce"):
        prepare_tiles(recipe, load_dataset(recipe))
    recipe = load_recipe(file, ["sampling.coverage=strict", "training.global_batch=4"])
    with refused(DatasetError, fault="4 tiles"):
        prepare_tiles(recipe, load_dataset(recipe))


TILE, GIB = 300 * 2**20, 2**30


def recipe_of(**training: Any) -> Recipe:
    data = {"name": "r", "dataset": {"kind": "potsdam", "root": "r"}, "training": training}
    return recipe_from(data, "r.yaml")


def devices_of(kind: str, count: int, gib: float | None) -> Devices:
    known = None if gib is None else int(gib * GIB)
    cards = ["CPU"] * count if kind == "CPU" else [f"GPU:{i}" for i in range(count)]
    return Devices(None, tuple(Device(f"{kind}:{i}", "", "", c, known) for i, c in enumerate(cards)))


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes that are free of the machine's memory, to be set."""
    bytes_ = [10**15]
    monkeypatch.setattr(checks, "free_memory", lambda: bytes_[0])
    return bytes_


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_what_is_proposed_fits(kind: str, count: int, free: list[int]) -> None:
    """The batch, or the number of parts, that a warning names brings none."""
    devices, recipe = (
        devices_of(kind, count, 12 / (count if kind == "GPU" else 1)),
        recipe_of(global_batch=48),
    )
    said = check_memory(recipe, devices, TILE, 10**7)
    assert "48" in said or kind == "GPU"
    lower = int(re.search(r"global_batch to (\d+)", said)[1]) // count * count  # type: ignore[index]
    parts = int(re.search(r"accumulate to (\d+)", said)[1])  # type: ignore[index]
    assert check_memory(recipe_of(global_batch=lower), devices, TILE, 10**7) == ""
    assert check_memory(recipe_of(global_batch=lower + 2 * count), devices, TILE, 10**7) != ""
    assert check_memory(recipe_of(global_batch=48, accumulate=parts), devices, TILE, 10**7) == ""


def test_what_a_machine_cannot_hold_is_refused_and_a_full_one_is_warned_of(free: list[int]) -> None:
    devices, recipe = devices_of("CPU", 1, 16), recipe_of(global_batch=32)
    assert check_memory(recipe, devices, TILE, 0) == ""
    free[0] = 5 * GIB
    assert re.search(
        r"32 tiles .* take about 11.0 GiB .* 5.0 GiB of 16.0 GiB are free",
        said := check_memory(recipe, devices, TILE, 0),
    ), said
    with refused(ConfigError, fault="training.global_batch"):
        check_memory(recipe_of(global_batch=5000), devices, TILE, 0)
    assert check_memory(recipe_of(global_batch=5000), devices_of("GPU", 4, None), TILE, 0) == ""
    with refused(ConfigError, fault="lower model.width or tiles.size"):
        check_memory(recipe, devices, 10**12, 0)


@pytest.mark.parametrize(
    ("tiles", "batch", "warned"), [(44, 64, True), (44, 40, True), (44, 11, False), (9, 9, True)]
)
def test_a_batch_for_few_tiles_says_what_would_do(tiles: int, batch: int, warned: bool) -> None:
    counts_NK = np.full((tiles, 2), 5000, np.uint32)
    recipe = recipe_of(global_batch=batch, epochs=5)
    index: Any = type("Index", (), {"counts_NK": counts_NK, "strata": None})
    first = epoch_plan(recipe, index, ["a", "b"], 0)
    lines = list(few_steps(recipe.training, first, tiles))
    assert len(lines) == warned
    for line in lines:
        assert f"{batch} for {tiles} tiles: {first.steps} step{'s' * (first.steps > 1)} an epoch" in line
        assert f"{first.fillers / first.rows_SB.size:.0%} of each epoch are fillers" in line
        better = int(re.search(r"lower it \((\d+) makes", line)[1])  # type: ignore[index]
        smaller = recipe_of(global_batch=better, epochs=5)
        assert list(few_steps(smaller.training, epoch_plan(smaller, index, ["a", "b"], 0), tiles)) == []
