"""The input of a fine-tuning: normalised as ImageNet's where its first layer was, else by the scenes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from segmenter.base.errors import WeightsError
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import EncoderDecoderConfig, Recipe, TrainingConfig
from segmenter.devices import strategy
from segmenter.model.normalisation import Normalisation
from segmenter.model.size import weight_shapes
from segmenter.model.stages import pace_of
from segmenter.runs.run import load_run
from segmenter.tiles.statistics import BandStatistics
from segmenter.training.beginning.fine_tuning import Source
from segmenter.training.beginning.new_run import normalisation_of
from segmenter.training.prepare import prepare_tiles
from tests.helpers.made_checkpoints import RECIPE
from tests.helpers.made_training import made
from tests.helpers.refusals import refused
from tests.helpers.trained_run import unsaved_run

IMAGENET = Normalisation.of([123.7, 116.3, 103.5], [58.4, 57.1, 57.4])
BEFORE = Normalisation.of([90.0, 91.0, 92.0], [30.0, 30.0, 30.0])
NOW = Normalisation.of([75.0, 76.0, 77.0], [24.0, 27.0, 30.0])
STAGES = {"stem_conv/kernel": "encoder stage 1", "logits/kernel": "head"}
NAMES = ["a", "b"]


def statistics(normalisation: Normalisation = NOW, dtype: str = "uint8") -> BandStatistics:
    mean, std = np.array(normalisation.mean), np.array(normalisation.std)
    return BandStatistics(mean, std, 1000, dtype, mean - std, mean + std, std)


def recipe(**model: Any) -> Recipe:
    config = EncoderDecoderConfig(kind="encoder_decoder", encoder="efficientnet_lite0", **model)
    return RECIPE.model_copy(update={"model": config})


def source(normalisation: Normalisation, scenes: Normalisation | None, bands: int = 3) -> Source:
    """A run of so many bands, with the weights of a first layer and a head."""
    facts = {"normalisation": normalisation, "scenes": scenes, "band_count": bands}
    arrays = {
        "model/stem_conv/kernel": np.zeros((3, 3, bands, 8), np.float32),
        "model/logits/kernel": np.zeros((1, 1, 8, 2), np.float32),
    }
    return Source(unsaved_run(Path("runs/a"), NAMES, **facts), arrays)


def found(
    source: Source | None,
    *,
    model: dict[str, Any] | None = None,
    data: BandStatistics | None = None,
    training: dict[str, Any] | None = None,
    chief: bool = True,
) -> tuple[Normalisation, Normalisation | None]:
    data = statistics() if data is None else data
    shapes = {"stem_conv/kernel": (3, 3, len(data.mean_C), 8), "logits/kernel": (1, 1, 8, 2)}
    pace = pace_of(STAGES, TrainingConfig(**(training or {})))
    return normalisation_of(
        recipe(**(model or {})), data, source, shapes=shapes, classes=NAMES, pace=pace, chief=chief
    )


Said = Callable[[], list[str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return lambda: capsys.readouterr().out.splitlines()


def test_imagenet_s_normalisation_goes_with_a_first_layer_that_is_kept(said: Said) -> None:
    """Whether the recipe names weights, which --init-from takes no account of, or none."""
    for model in ({}, {"weights": "imagenet"}):
        assert found(source(IMAGENET, BEFORE), model=model) == (IMAGENET, NOW)
        assert said()[0].startswith("normalisation: as runs/a has it (")


@pytest.mark.parametrize("model", [{}, {"weights": "imagenet"}, {"weights": "w.safetensors"}])
def test_statistics_of_other_scenes_give_way_to_those_of_the_new_ones(
    said: Said, model: dict[str, Any]
) -> None:
    """The recipe's own weights are not loaded: their normalisation is not said."""
    for before in (BEFORE, NOW):
        assert found(source(before, None), model=model) == (NOW, None)
        assert said()[0].startswith("normalisation: by the training scenes (")


def test_each_band_keeps_what_its_channel_was_trained_with(said: Said) -> None:
    mixed = Normalisation.of((*IMAGENET.mean, 50.0), (*IMAGENET.std, 9.0))
    own = Normalisation.of((*BEFORE.mean, 50.0), (*BEFORE.std, 9.0))
    here = Normalisation.of((*NOW.mean, 60.0), (*NOW.std, 8.0))
    chosen, scenes = found(source(mixed, own, bands=4), data=statistics(here))
    assert chosen == Normalisation.of((*IMAGENET.mean, 60.0), (*IMAGENET.std, 8.0))
    assert scenes == here
    assert "bands 1, 2, 3 as runs/a has them, bands 4 by the training scenes (" in said()[0]


def test_where_the_first_layer_starts_anew_or_the_data_are_of_another_type_the_scenes_standardise(
    said: Said,
) -> None:
    assert found(source(IMAGENET, BEFORE, bands=4)) == (NOW, None)
    assert found(source(IMAGENET, BEFORE), data=statistics(dtype="uint16")) == (NOW, None)
    assert [line.partition(" (")[0] for line in said()] == ["normalisation: by the training scenes"] * 2


def test_a_setting_of_the_recipe_goes_before(said: Said) -> None:
    """`weights`: that of the weights which start, whatever it was; `scenes`: the scenes'."""
    for run in (source(BEFORE, None), source(IMAGENET, BEFORE)):
        model = {"weights": "imagenet", "input_normalisation": "weights"}
        assert found(run, model=model) == (run.run.normalisation, NOW)
        assert said()[0].startswith("normalisation: as runs/a has it (")
        assert found(run, model={**model, "input_normalisation": "scenes"}) == (NOW, None)
        assert said()[0].startswith("normalisation: by the training scenes (")


@pytest.mark.parametrize(
    ("bands", "dtype", "fields"),
    [
        (4, "uint8", {"where": "input_normalisation: weights"}),
        (3, "uint16", {"expected": "runs/a saw uint8"}),
    ],
)
def test_asked_for_where_no_weights_have_it_that_of_weights_is_refused(
    bands: int, dtype: str, fields: dict[str, object]
) -> None:
    model = {"weights": "imagenet", "input_normalisation": "weights"}
    with refused(WeightsError, **fields):
        found(source(IMAGENET, BEFORE, bands), model=model, data=statistics(dtype=dtype))
    own = found(None, model=model, data=statistics(dtype=dtype), chief=False)
    assert own == (NOW, None)  # a worker that knows no source leaves it to the chief


@pytest.mark.parametrize("training", [{"freeze_encoder": 1}, {"rates": {"encoder stage 1": 0}}])
def test_a_frozen_first_layer_with_another_normalisation_is_warned_of(
    said: Said, training: dict[str, Any]
) -> None:
    found(source(BEFORE, None), training=training)
    assert said()[1].startswith("warning: the encoder's first layer is frozen")
    near = Normalisation.of([m + 1 for m in NOW.mean], NOW.std)
    for quiet in (source(IMAGENET, BEFORE), source(near, None), source(BEFORE, None, bands=4)):
        found(quiet, training=training)
        assert len(said()) == 1
    found(source(BEFORE, None), training={"rates": {"encoder": 0.1}})
    assert len(said()) == 1


def test_a_fine_tuning_records_what_it_took_and_the_statistics_beside_it(
    tensorflow: ModuleType, tmp_path: Path, said: Said
) -> None:
    """With the lines that it says, also of a part that starts at random and is frozen."""
    from segmenter.training.start import check_training, open_training

    recipe = load_recipe(made(tmp_path / "data"), ["training.rates={decoder stage 1: 0}"])
    dataset = load_dataset(recipe)
    tiles = prepare_tiles(recipe, dataset)
    devices = strategy.make_devices(recipe.distribution, None)
    arrays = {f"model/{p}": np.zeros(s, np.float32) for p, s in weight_shapes(recipe.model, 3, 3).items()}
    arrays = {path: array for path, array in arrays.items() if not path.startswith("model/up")}
    own = replace(source(IMAGENET, BEFORE).run, classes=dataset.classes)
    begun = Source(own, arrays, partial=True)
    with open_training(check_training(recipe, dataset, tiles, devices, tmp_path / "run", source=begun)):
        pass
    lines = said()
    assert any(line.startswith("normalisation: as runs/a has it (") for line in lines)
    assert any(line.startswith("warning: random weights are frozen: decoder stage 1 for") for line in lines)
    run = load_run(tmp_path / "run")
    assert run.normalisation == IMAGENET
    assert run.scenes == Normalisation.of(tiles.statistics.mean_C, tiles.statistics.std_C)
