"""Models by their shapes: sizes and memory without a built model; stages, their rates and decay."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import CheckpointError, ConfigError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import ModelConfig, TrainingConfig, UNetConfig
from segmenter.model.building import build_model, stages_of
from segmenter.model.encoders import ENCODERS
from segmenter.model.size import check_weights, stage_of, training_bytes_per_image, weight_shapes
from segmenter.model.stages import Pace, pace_of, part_of, stages_told
from tests.helpers.encoder_pairs import DECODERS, pair
from tests.helpers.refusals import refused
from tests.helpers.small_encoders import SMALL, narrow, small_encoder, smallest_of_keras

MODEL = UNetConfig(depth=2, width=2, upsampling="transpose")


def pace(**settings: Any) -> Pace:
    stages = {path: stage_of(path, MODEL) for path in weight_shapes(MODEL, 3, 4)}
    return pace_of(stages, TrainingConfig(**settings))


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("down0_conv0/kernel", "encoder"),
        ("up1_conv0/kernel", "decoder"),
        ("enlarge0/bias", "decoder"),
        ("logits/kernel", "head"),
        ("decoder_fuse2_conv/kernel", "decoder"),
        ("stage1_block0_conv1/kernel", "encoder"),
    ],
)
def test_layers_that_are_not_the_decoders_nor_the_head_are_the_encoders(path: str, part: str) -> None:
    assert part_of(path) == part


def test_a_stage_goes_before_its_part_and_trains_after_the_frozen_epochs() -> None:
    found = pace(rates={"encoder": 0.1, "encoder stage 1": 0.05, "decoder": 0, "head": 1})
    assert found.rates["down0_conv0/kernel"] == 0.05
    assert found.rates["down1_norm0/beta"] == found.rates["bottom_conv1/kernel"] == 0.1
    assert "logits/kernel" not in found.rates
    assert not found.trains("up0_conv0/kernel")
    assert found.trains("logits/kernel", 0)

    found = pace(freeze_encoder=2)
    assert [found.trains("down0_conv0/kernel", epoch) for epoch in range(4)] == [False, False, True, True]
    assert all(found.trains(path, 0) for path in ("up0_conv0/kernel", "enlarge1/bias", "logits/bias"))


@pytest.mark.parametrize(
    ("encoder", "decoder"), [*((SMALL, decoder) for decoder in DECODERS), ("convnext_tiny", "unet")]
)
def test_the_stages_told_are_those_of_the_model_that_is_built(
    tensorflow: ModuleType, encoder: str, decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = small_encoder() if encoder == SMALL else smallest_of_keras(encoder)
    monkeypatch.setitem(ENCODERS, encoder, small)
    assert told(pair(encoder, decoder)) == built(pair(encoder, decoder))


@pytest.mark.parametrize("encoder", ["efficientnet_lite0", "resnet18"])
def test_the_stages_told_are_those_of_our_own_families(
    tensorflow: ModuleType, encoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow(encoder.rstrip("0123456789"), monkeypatch)
    assert told(pair(encoder, "unet")) == built(pair(encoder, "unet"))
    assert told(MODEL) == built(MODEL)


def told(config: ModelConfig) -> set[tuple[str, str]]:
    return {(part_of(path), stage) for path, stage in stages_told(config).items()}


def built(config: ModelConfig) -> set[tuple[str, str]]:
    stages = stages_of(build_model(config, 3, 4), config)
    return {(part_of(path), stage) for path, stage in stages.items()}


def test_what_no_model_has_or_nothing_trains_with_is_refused() -> None:
    with refused(ConfigError, where="training.rates", got="encoder stage 3"):
        pace(rates={"encoder stage 3": 0.1})
    with refused(ConfigError, where="training.rates", got="none"):
        pace(rates={"decoder": 0, "head": 0}, freeze_encoder=1)
    with refused(ConfigError, where="training.freeze_encoder", got=1):
        pace(rates={"encoder": 0}, freeze_encoder=1)
    with refused(ConfigError, where="training.freeze_norms", got="all"):
        pace_of(
            {"stem_conv/kernel": "encoder stage 1", "logits/kernel": "head"},
            TrainingConfig(freeze_norms="all"),
        )


CONFIGS: list[dict[str, Any]] = [
    {"depth": 1, "width": 2},
    {"depth": 3, "width": 3, "max_width": 5, "upsampling": "transpose", "dropout": 0.5},
    {"depth": 2, "width": 4, "normalisation": "none", "upsampling": "bilinear"},
]


@pytest.mark.parametrize(("settings", "synchronised"), [*zip(CONFIGS, (True, False, True), strict=True)])
def test_the_shapes_are_those_of_the_built_model(
    tensorflow: ModuleType, settings: dict[str, Any], synchronised: bool
) -> None:
    config = UNetConfig(**settings)
    model = build_model(config, 5, 7, synchronised=synchronised)
    built = {v.path: tuple(v.shape) for v in model.variables if not v.path.endswith("/masks")}
    shapes = dict(weight_shapes(config, 5, 7))
    assert {name: shapes[name] for name in built} == built
    assert shapes.keys() == built.keys()


def arrays(config: UNetConfig) -> dict[str, Any]:
    return {
        f"model/{name}": np.ones(shape, np.float32) for name, shape in weight_shapes(config, 3, 4).items()
    }


def test_weights_that_do_not_fit_are_refused_without_a_model() -> None:
    """A width of 256 at depth 6 would be 4.4 GB; nothing is made here but the weights that are there."""
    small, huge = UNetConfig(depth=1, width=2), UNetConfig(depth=6, width=256, max_width=2048)
    file, there = Path("run/best.npz"), arrays(small)
    check_weights(there, weight_shapes(small, 3, 4), file)
    with pytest.raises(CheckpointError, match=r"best.npz: .*down0_conv0/kernel of shape \(3, 3, 3, 256\)"):
        check_weights(there, weight_shapes(huge, 3, 4), file)
    with refused(CheckpointError, where="run/best.npz", got="(1, 1, 2, 4)"):
        check_weights(there, weight_shapes(small, 3, 5), file)
    there["model/logits/bias"] = np.zeros(4, "U3")
    with refused(CheckpointError, where="run/best.npz", got="(4,) of <U3"):
        check_weights(there, weight_shapes(small, 3, 4), file)
    there["model/logits/bias"] = np.array([0, np.nan, 0, 0], np.float32)
    with refused(CheckpointError, where="run/best.npz", expected="finite weights, logits/bias"):
        check_weights(there, weight_shapes(small, 3, 4), file)


CARDS, GIB = 4, 1 << 30
SAID = re.compile(r"^# Memory: +about (?P<gib>[\d.]+) GiB a GPU at (?P<cards>\d) × (?P<tiles>\d+) tiles")
FOUND = {
    path.stem: match
    for path in sorted((Path(__file__).parents[2] / "configs").glob("*.yaml"))
    for line in path.read_text().splitlines()
    if (match := SAID.match(line))
}
CLASSES = {
    "potsdam": 6,
    "potsdam_pretrained": 6,
    "naic2020": 8,
    "naic2020_pretrained": 8,
    "naic2020_round2": 14,
}
"""Bands and classes of the dataset; others would change the head alone, some megabytes."""


@pytest.mark.parametrize(  # those of a whole ResNet50 take half a minute to build
    "name", [pytest.param(each, marks=[pytest.mark.slow] if "pretrained" in each else []) for each in CLASSES]
)
def test_the_memory_that_a_recipe_names_is_the_formulas(tensorflow: ModuleType, name: str) -> None:
    recipe = load_recipe(Path(__file__).parents[2] / "configs" / f"{name}.yaml")
    precision, side = recipe.training.precision, recipe.tiles.size
    assert int(FOUND[name]["cards"]) == CARDS
    tiles = recipe.training.global_batch // CARDS
    assert int(FOUND[name]["tiles"]) == tiles
    model = build_model(recipe.model, 3, CLASSES[name], dtype=precision, synchronised=True)
    each = training_bytes_per_image(model, side, side, mixed=precision == "mixed_float16")
    parameters = sum(int(variable.shape.num_elements()) for variable in model.trainable_variables)
    assert f"{(tiles * each + 16 * parameters) / GIB + 1:.1f}" == FOUND[name]["gib"]


def test_every_recipe_for_four_cards_says_it() -> None:
    assert set(FOUND) == set(CLASSES)
