"""A training that starts from pretrained weights: what it has at its first step, keeps and finds again."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from datasets import load_dataset
from segmenter.base.errors import WeightsError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import EncoderDecoderConfig, TrainingConfig
from segmenter.devices import strategy
from segmenter.model.normalisation import Normalisation
from segmenter.model.pretrained.torch_files import write_safetensors
from segmenter.model.pretrained.value_range import input_normalisation
from segmenter.model.stages import pace_of
from segmenter.runs.run import load_run
from segmenter.training.beginning.fine_tuning import frozen_at_random
from segmenter.training.prepare import changed_data, prepare_tiles
from tests.helpers.made_training import made
from tests.helpers.made_weights import encoder_tensors
from tests.helpers.refusals import refused

SCENES = Normalisation.of([50.0, 60.0, 70.0, 80.0], [5.0, 6.0, 7.0, 8.0])


def lite(**more: Any) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        kind="encoder_decoder", encoder="efficientnet_lite0", **{"weights": "imagenet", **more}
    )


def first(bands: int) -> Normalisation:
    return Normalisation.of(SCENES.mean[:bands], SCENES.std[:bands])


@pytest.mark.parametrize(
    ("config", "bands", "dtype", "mean", "line"),
    [
        (lite(), 3, "uint8", [127, 127, 127], "normalisation: as the weights were trained"),
        (lite(), 4, "uint8", [127, 127, 127, 80], "bands 1, 2, 3 as the weights were trained, bands 4 by"),
        (lite(weight_bands=[None, "red", 2]), 3, "uint8", [50, 127, 127], "bands 2, 3 as the weights were"),
        (lite(), 1, "uint8", [50], "normalisation: by the training scenes"),
        (lite(), 3, "uint16", [50, 60, 70], "by the training scenes (the data are uint16)"),
        (lite(weights="w.safetensors"), 3, "uint8", [50, 60, 70], "normalisation: by the training scenes"),
        (lite(weights="w.safetensors", input_normalisation="weights"), 3, "uint8", [127] * 3, "as the"),
        (lite(input_normalisation="scenes"), 3, "uint8", [50, 60, 70], "by the training scenes"),
        (lite(weight_bands=[9, 8, 7]), 3, "uint8", [50, 60, 70], "by the training scenes"),
    ],
)
def test_a_band_is_normalised_as_the_weights_of_its_colour_were(
    config: EncoderDecoderConfig, bands: int, dtype: str, mean: list[float], line: str
) -> None:
    found, said = input_normalisation(config, first(bands), dtype)
    assert list(found.mean) == mean
    assert list(found.std) == [128.0 if m == 127 else SCENES.std[i] for i, m in enumerate(mean)]
    assert line in said


def test_a_normalisation_that_data_cannot_have_is_refused() -> None:
    with refused(WeightsError, expected="uint16", remedy="use scenes"):
        input_normalisation(lite(input_normalisation="weights"), first(3), "uint16")


STAGES = {
    "stem_conv/kernel": "encoder stage 1",
    "stem_norm/gamma": "encoder stage 1",
    "stem_norm/moving_mean": "encoder stage 1",
    "block/kernel": "encoder stage 2",
    "decoder_a/kernel": "decoder stage 1",
    "logits/kernel": "head",
}
ENCODER = [path for path, stage in STAGES.items() if stage.startswith("encoder")]
FIRST_ANEW = [path for path in ENCODER if path != "stem_conv/kernel"]


@pytest.mark.parametrize(
    ("settings", "known", "said"),
    [
        ({"freeze_encoder": 2, "epochs": 5}, [], "encoder stages 1 and 2 in 2 of 5 epochs (training.freeze"),
        ({"freeze_encoder": 2, "epochs": 5}, FIRST_ANEW, ": encoder stage 1 in 2 of 5 epochs (training.fr"),
        ({"freeze_encoder": 2, "epochs": 5}, ENCODER, ""),
        ({"rates": {"encoder": 0}}, [], "frozen: encoder stages 1 and 2 for good (training.rates)"),
        ({"rates": {"encoder": 0}}, ENCODER, ""),
        ({"rates": {"encoder": 0.1}}, [], ""),
        ({"rates": {"encoder stage 1": 0, "encoder stage 2": 0}}, [], "encoder stages 1 and 2 for good"),
        ({"rates": {"encoder": 0, "encoder stage 2": 1}}, [], "frozen: encoder stage 1 for good (training.r"),
        ({"freeze_norms": "all"}, [], "frozen: encoder stage 1 in BatchNorm (training.freeze_norms); start"),
        ({"freeze_norms": "encoder"}, ENCODER, ""),
        ({"rates": {"head": 0}}, ENCODER, "frozen: head for good (training.rates); start from"),
        (
            {"freeze_encoder": 1, "epochs": 5, "rates": {"encoder stage 1": 0}},
            [],
            "stage 1 for good (training.rates); encoder stage 2 in 1 of 5 epochs (training.freeze_encoder)",
        ),
    ],
)
def test_what_is_frozen_at_random_is_warned_of_by_its_stage(
    settings: dict[str, Any], known: list[str], said: str
) -> None:
    """By what the pace leaves alone and what was loaded, however the recipe says it."""
    training = TrainingConfig(**settings)
    line = frozen_at_random(pace_of(STAGES, training), known, training.epochs)
    assert said in line
    assert bool(said) == bool(line)


def test_a_run_begins_with_the_weights_and_knows_its_scenes_again(
    tensorflow: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file, normalised as ImageNet: the average too, and the statistics of the scenes beside it."""
    from segmenter.training.beginning.fine_tuning import check_encoder_weights
    from segmenter.training.start import check_training, open_training

    tensors, file = encoder_tensors("resnet18"), tmp_path / "w.safetensors"
    write_safetensors(file, tensors)
    path = made(tmp_path / "data")
    raw = yaml.safe_load(path.read_text())
    raw["model"] = {"kind": "encoder_decoder", "encoder": "resnet18", "weights": str(file)}
    raw["model"]["input_normalisation"] = "weights"
    raw["training"]["ema"] = 0.9
    path.write_text(yaml.safe_dump(raw))
    recipe = load_recipe(path, [])
    dataset = load_dataset(recipe)
    check_encoder_weights(recipe.model, dataset)
    tiles = prepare_tiles(recipe, dataset)
    devices = strategy.make_devices(recipe.distribution, None)
    with open_training(check_training(recipe, dataset, tiles, devices, tmp_path / "run")) as trainer:
        for model in (trainer.learner.model, trainer.learner.averaged.model):  # type: ignore[union-attr]
            kernel = model.get_layer("stage2_block1_conv1").kernel.numpy()
            np.testing.assert_array_equal(kernel, tensors["layer2.0.conv1.weight"].transpose(2, 3, 1, 0))
    out = capsys.readouterr().out
    assert "normalisation: as the weights were trained\n" in out
    assert f"encoder resnet18: 11,186,112 parameters from {file}" in out

    run = load_run(tmp_path / "run")
    assert run.normalisation.mean[0] == pytest.approx(0.485 * 255)
    assert run.scenes == Normalisation.of(tiles.statistics.mean_C, tiles.statistics.std_C)
    assert changed_data(run, tiles) == ""
    brighter = replace(tiles.statistics, mean_C=tiles.statistics.mean_C + np.array([0, 3, 0]))
    assert "band 2 of the training images has changed" in changed_data(
        run, replace(tiles, statistics=brighter)
    )
    by_ground = run.recipe.augmentation.model_copy(update={"scale_to": (0.2, 1.0)})
    shown = replace(run, recipe=run.recipe.model_copy(update={"augmentation": by_ground}))
    assert changed_data(shown, tiles) == ""
    coarser = replace(tiles, metres_per_pixel=2 * (tiles.metres_per_pixel or 0.5))
    assert "the training images have another scale (" in changed_data(shown, coarser)

    file.unlink()
    with refused(WeightsError, where="w.safetensors", expected="weights"):
        check_encoder_weights(recipe.model, dataset)
