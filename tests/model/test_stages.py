"""Stages of a model: which weights train, from which epoch, at which rate; which of them decay."""

from types import ModuleType
from typing import Any

import pytest

from segmenter.base.errors import ConfigError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import ModelConfig, TrainingConfig, UNetConfig
from segmenter.model.size import stage_of, weight_shapes
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
    from segmenter.model.encoders import ENCODERS

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
    from segmenter.model.building import build_model, stages_of

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


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"freeze_encoder": 3, "epochs": 3}, "training.freeze_encoder"),
        ({"rates": {"encoders": 0.1}}, "training.rates"),
        ({"rates": {"encoder": -1}}, "training.rates.encoder"),
    ],
)
def test_settings_that_no_model_could_have_are_refused_with_the_recipe(
    settings: dict[str, Any], where: str
) -> None:
    data = {"name": "t", "dataset": {"kind": "potsdam", "root": "x"}, "training": settings}
    with refused(ConfigError, where=where):
        recipe_from(data, "r.yaml")
