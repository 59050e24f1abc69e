"""Trainings that start from other weights: what is kept, frozen, refused; how their input is normalised."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from datasets import load_dataset
from datasets.commands import train
from segmenter.base.errors import CheckpointError, WeightsError, run_script
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import EncoderDecoderConfig, Recipe, TrainingConfig
from segmenter.demands.encoder import check_encoder_weights
from segmenter.devices import strategy
from segmenter.model.building import build_model
from segmenter.model.normalisation import Normalisation
from segmenter.model.pretrained.torch_files import write_safetensors
from segmenter.model.pretrained.value_range import input_normalisation
from segmenter.model.size import stage_of, weight_shapes
from segmenter.model.stages import pace_of
from segmenter.runs.checkpoints import save_checkpoint, transfer_weights
from segmenter.runs.records import Origin, save_origin
from segmenter.runs.run import load_run
from segmenter.runs.scenes import KnownScene, RunScenes, save_scenes
from segmenter.tiles.scene_files import scene_digests
from segmenter.tiles.statistics import BandStatistics
from segmenter.training import prepare
from segmenter.training.beginning.fine_tuning import (
    StartingRun,
    check_fit,
    describe_kept,
    find_source,
    fitting,
    frozen_at_random,
    lines_of_change,
)
from segmenter.training.beginning.new_run import normalisation_of
from segmenter.training.beginning.origin import record_scenes
from segmenter.training.prepare import changed_data, prepare_tiles
from segmenter.training.start import Training, open_training, plan_training
from tests.helpers.made_runs import RECIPE
from tests.helpers.made_training import made
from tests.helpers.made_weights import encoder_tensors
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run, run_with_weights, unsaved_run

pytestmark = pytest.mark.usefixtures("tensorflow")

NAMES = ("left", "right", "scarce")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("fine") / "data", scenes=5)


def trained(folder: Path, recipe: Path, *settings: str, names: Sequence[str] = NAMES, bands: int = 3) -> Path:
    return run_with_weights(folder, load_recipe(recipe, settings), names, bands)


def stages(shapes: Iterable[str], model: Any) -> dict[str, str]:
    return {path: stage_of(path, model) for path in shapes}


def start(monkeypatch: pytest.MonkeyPatch, recipe: Path, *arguments: str) -> int:
    """train.py up to where the data would be read: code 99."""

    def read(*_: Any) -> None:
        raise SystemExit(99)

    monkeypatch.setattr(prepare, "prepare_tiles", read)
    monkeypatch.setattr(sys, "argv", ["train.py", str(recipe), *arguments])
    try:
        return run_script(train.main)
    except SystemExit as ended:
        return int(str(ended.code))


def test_a_run_of_which_little_fits_is_refused_before_the_data_are_read(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = trained(tmp_path / "source", recipe, "model.width=3", "model.normalisation=none")
    call = ("--run", str(tmp_path / "run"), "--init-from", str(source))
    assert start(monkeypatch, recipe, *call) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "(model.width: 3 there, 4 here, model.normalisation" in line
    assert "--init-from-partial" in line
    assert not (tmp_path / "run").exists()
    assert start(monkeypatch, recipe, *call, "--init-from-partial") == 99
    assert start(monkeypatch, recipe, "--init-from-partial") == 2
    assert "--init-from-partial says how" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("split", "seen"),
    [("validation=[s0]", True), ("validation=[s4]", False), ("fold=2", True), ("fold=1", False)],
)
def test_validation_scenes_that_trained_the_source_are_named(
    recipe: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    split: str,
    seen: bool,
) -> None:
    folds = ("dataset.split.validation=[]", "dataset.split.folds=2") if "fold" in split else ()
    source = trained(tmp_path / "source", recipe, *folds)
    dataset = load_dataset(load_recipe(recipe, folds))
    if folds:  # what a recipe names itself needs no record
        record_scenes(source, dataset, scene_digests(dataset.scenes, tmp_path), resumed=False)
        capsys.readouterr()
    words = [word for setting in (*folds, f"dataset.split.{split}") for word in ("--set", setting)]
    call = ("--run", str(tmp_path / "run"), "--init-from", str(source), *words)
    assert start(monkeypatch, recipe, *call) == 99
    assert (str(source) in capsys.readouterr().err) == seen


def with_encoder(recipe: Path, folder: Path, encoder: str) -> Path:
    """The recipe with an encoder of the literature."""
    content = yaml.safe_load(recipe.read_text())
    content["model"] = {"kind": "encoder_decoder", "encoder": encoder}
    path = folder / f"{encoder}.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_run_of_another_encoder_is_refused_before_the_data_are_read(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unet = trained(tmp_path / "unet", recipe)
    mobile = with_encoder(recipe, tmp_path, "mobilenet_v2")
    resnet = replace(load_run(unet), path=tmp_path / "resnet", recipe=load_recipe(
        with_encoder(recipe, tmp_path, "keras_resnet50")))  # fmt: skip
    resnet.save()
    save_checkpoint(resnet.path, 7, {"model/conv1_conv/kernel": np.zeros(3), "position": np.zeros(4)}, keep=2)
    for source, difference in (
        (unet, "model.kind: unet there, encoder_decoder here"),
        (resnet.path, "model.encoder: keras_resnet50 there, mobilenet_v2 here"),
    ):
        call = ("--run", str(tmp_path / "run"), "--init-from", str(source))
        assert start(monkeypatch, mobile, *call) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"encoder ({difference}); take" in line
        assert start(monkeypatch, mobile, *call, "--init-from-partial") == 99


def test_a_run_of_the_same_encoder_is_measured_by_the_built_model(recipe: Path, tmp_path: Path) -> None:
    path = with_encoder(recipe, tmp_path, "mobilenet_v2")
    run = replace(
        load_run(trained(tmp_path / "unet", recipe)), path=tmp_path / "run", recipe=load_recipe(path)
    )
    run.save()
    save_checkpoint(run.path, 7, {"model/a/kernel": np.zeros(4), "position": np.zeros(4)}, keep=2)
    loaded = load_recipe(path, ["model.decoder=fpn"])
    source = find_source(run.path, loaded, load_dataset(loaded))
    check_fit(source, {"a/kernel": (4,), "b/kernel": (4,)}, loaded, list(NAMES))
    with refused(CheckpointError, where="run", got="9 parameters (model.decoder: unet"):
        check_fit(source, {"a/kernel": (4,), "b/kernel": (5,)}, loaded, list(NAMES))
    check_fit(replace(source, partial=True), {"b/kernel": (5,)}, loaded, list(NAMES))


@pytest.mark.parametrize(
    ("bands", "names", "said"),
    [
        (3, NAMES, "1,835 of 1,835 parameters (100.0%) kept; kept: encoder stage 1, bottleneck, decoder"),
        (5, NAMES, "(94.1%) kept; kept: bottleneck, decoder stage 1, head; kept in part: encoder stage 1"),
        (3, ("a", "b"), "kept: encoder stage 1, bottleneck, decoder stage 1; anew: head"),
    ],
)
def test_other_bands_or_classes_start_anew_where_they_must_and_are_named_by_stage(
    recipe: Path, tmp_path: Path, bands: int, names: tuple[str, ...], said: str
) -> None:
    loaded = load_recipe(recipe)
    source = find_source(trained(tmp_path, recipe, bands=bands, names=names), loaded, load_dataset(loaded))
    shapes = weight_shapes(loaded.model, 3, 3)
    assert said in describe_kept(shapes, fitting(source, shapes, list(NAMES)), stages(shapes, loaded.model))


def test_what_is_foretold_is_what_is_kept(recipe: Path, tmp_path: Path) -> None:
    loaded = load_recipe(recipe)
    source = find_source(trained(tmp_path, recipe, bands=5), loaded, load_dataset(loaded))
    model = build_model(loaded.model, 3, 3)
    kept, _ = transfer_weights(model, source.weights)
    assert set(kept) == set(fitting(source, weight_shapes(loaded.model, 3, 3), list(NAMES)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "run.json").unlink(), "directory as train.py"),
        (lambda run: next((run / "checkpoints").iterdir()).unlink(), "checkpoint"),
        (lambda run: next((run / "checkpoints").iterdir()).write_bytes(b"PK"), "damaged checkpoint"),
    ],
    ids=["no run", "no checkpoint", "damaged"],
)
def test_a_source_that_cannot_be_used_is_refused_before_the_data_are_read(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    spoil: Callable[[Path], Any], message: str,
) -> None:  # fmt: skip
    source = trained(tmp_path / "source", recipe)
    spoil(source)
    assert start(monkeypatch, recipe, "--run", str(tmp_path / "run"), "--init-from", str(source)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


BEFORE = {"a": ("1", "2"), "b": ("3", "4"), "c": ("5", "6"), "d": ("7", "8")}


def test_new_corrected_and_missing_scenes_are_named_with_the_classes_that_moved(tmp_path: Path) -> None:
    run = bare_run(tmp_path / "run")
    assert list(lines_of_change(run, BEFORE, {"water": 3})) == [], "a run without a record"
    before = {name: KnownScene(*pair, role="train") for name, pair in BEFORE.items()}
    save_scenes(run.path, RunScenes(before))
    (line,) = lines_of_change(run, BEFORE, {"water": 3})
    assert not any(f"({name})" in line for name in BEFORE)
    tiles = {"scenes": {}, "tiles": 9, "tiles_left_out": 0, "tile_px": 64, "tiles_with": {}}
    save_origin(run.path, Origin.model_validate({**tiles, "pixels": {"water": 1000, "forest": 50}}))
    now = {"a": ("1", "2"), "b": ("3", "corrected"), "c": ("other", "6"), "e": ("9", "10")}
    scenes, classes = lines_of_change(run, now, {"water": 1500, "forest": 50, "road": 7})
    parts = scenes.split("; ")
    assert [part[part.rindex("(") :] for part in parts] == ["(e)", "(c)", "(b)", "(d)"]
    assert "water 1,000 → 1,500" in classes
    assert "road 0 → 7" in classes
    assert "forest" not in classes


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
    training = TrainingConfig(**settings)
    line = frozen_at_random(pace_of(STAGES, training), known, training.epochs)
    assert said in line
    assert bool(said) == bool(line)


def test_a_run_begins_with_the_weights_and_knows_its_scenes_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
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
    training = Training(recipe, dataset, tiles, devices, tmp_path / "run")
    with open_training(plan_training(training)) as trainer:
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


IMAGENET = Normalisation.of([123.7, 116.3, 103.5], [58.4, 57.1, 57.4])
OLD = Normalisation.of([90.0, 91.0, 92.0], [30.0, 30.0, 30.0])
NOW = Normalisation.of([75.0, 76.0, 77.0], [24.0, 27.0, 30.0])
TWO_STAGES = {"stem_conv/kernel": "encoder stage 1", "logits/kernel": "head"}
TWO = ["a", "b"]


def statistics(normalisation: Normalisation = NOW, dtype: str = "uint8") -> BandStatistics:
    mean, std = np.array(normalisation.mean), np.array(normalisation.std)
    return BandStatistics(mean, std, 1000, dtype, mean - std, mean + std, std, 0 * std)


def lite_recipe(**model: Any) -> Recipe:
    config = EncoderDecoderConfig(kind="encoder_decoder", encoder="efficientnet_lite0", **model)
    return RECIPE.model_copy(update={"model": config})


def source(normalisation: Normalisation, scenes: Normalisation | None, bands: int = 3) -> StartingRun:
    """A run of so many bands, with the weights of a first layer and a head."""
    facts = {"normalisation": normalisation, "scenes": scenes, "band_count": bands}
    arrays = {
        "model/stem_conv/kernel": np.zeros((3, 3, bands, 8), np.float32),
        "model/logits/kernel": np.zeros((1, 1, 8, 2), np.float32),
    }
    return StartingRun(unsaved_run(Path("runs/a"), TWO, **facts), arrays)


def found(
    source: StartingRun | None,
    *,
    model: dict[str, Any] | None = None,
    data: BandStatistics | None = None,
    training: dict[str, Any] | None = None,
    chief: bool = True,
) -> tuple[Normalisation, Normalisation | None]:
    data = statistics() if data is None else data
    shapes = {"stem_conv/kernel": (3, 3, len(data.mean_C), 8), "logits/kernel": (1, 1, 8, 2)}
    pace = pace_of(TWO_STAGES, TrainingConfig(**(training or {})))
    return normalisation_of(
        lite_recipe(**(model or {})), data, source, shapes=shapes, classes=TWO, pace=pace, chief=chief
    )


Said = Callable[[], list[str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    return lambda: capsys.readouterr().out.splitlines()


IMAGENETS, FILE = {"weights": "imagenet"}, {"weights": "w.safetensors"}
AS_WEIGHTS, AS_SCENES = ({**IMAGENETS, "input_normalisation": by} for by in ("weights", "scenes"))


@pytest.mark.parametrize(
    ("source", "model", "dtype", "kept"),
    [
        *((source(IMAGENET, OLD), model, "uint8", True) for model in ({}, IMAGENETS, AS_WEIGHTS)),
        (source(OLD, None), AS_WEIGHTS, "uint8", True),  # a setting of the recipe goes before
        *(
            (source(each, None), model, "uint8", False)
            for each in (OLD, NOW)
            for model in ({}, IMAGENETS, FILE)
        ),
        *((source(*of), AS_SCENES, "uint8", False) for of in ((OLD, None), (IMAGENET, OLD))),
        (source(IMAGENET, OLD, bands=4), {}, "uint8", False),  # the first layer starts anew
        (source(IMAGENET, OLD), {}, "uint16", False),
    ],
)
def test_the_normalisation_of_weights_that_are_kept_goes_with_them_and_statistics_of_scenes_give_way(
    said: Said, source: StartingRun, model: dict[str, Any], dtype: str, kept: bool
) -> None:
    """The recipe's own weights are not loaded: their normalisation is not said."""
    chosen = (source.run.normalisation, NOW) if kept else (NOW, None)
    assert found(source, model=model, data=statistics(dtype=dtype)) == chosen
    by = "as runs/a has it" if kept else "by the training scenes"
    assert said()[0].startswith(f"normalisation: {by} (")


def test_each_band_keeps_what_its_channel_was_trained_with(said: Said) -> None:
    mixed = Normalisation.of((*IMAGENET.mean, 50.0), (*IMAGENET.std, 9.0))
    own = Normalisation.of((*OLD.mean, 50.0), (*OLD.std, 9.0))
    here = Normalisation.of((*NOW.mean, 60.0), (*NOW.std, 8.0))
    chosen, scenes = found(source(mixed, own, bands=4), data=statistics(here))
    assert chosen == Normalisation.of((*IMAGENET.mean, 60.0), (*IMAGENET.std, 8.0))
    assert scenes == here
    assert "bands 1, 2, 3 as runs/a has them, bands 4 by the training scenes (" in said()[0]


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
        found(source(IMAGENET, OLD, bands), model=model, data=statistics(dtype=dtype))
    own = found(None, model=model, data=statistics(dtype=dtype), chief=False)
    assert own == (NOW, None)  # a worker that knows no source leaves it to the chief


@pytest.mark.parametrize("training", [{"freeze_encoder": 1}, {"rates": {"encoder stage 1": 0}}])
def test_a_frozen_first_layer_with_another_normalisation_is_warned_of(
    said: Said, training: dict[str, Any]
) -> None:
    found(source(OLD, None), training=training)
    assert said()[1].startswith("warning: the encoder's first layer is frozen")
    near = Normalisation.of([m + 1 for m in NOW.mean], NOW.std)
    for quiet in (source(IMAGENET, OLD), source(near, None), source(OLD, None, bands=4)):
        found(quiet, training=training)
        assert len(said()) == 1
    found(source(OLD, None), training={"rates": {"encoder": 0.1}})
    assert len(said()) == 1


@pytest.mark.slow
def test_a_fine_tuning_records_what_it_took_and_the_statistics_beside_it(tmp_path: Path, said: Said) -> None:
    recipe = load_recipe(made(tmp_path / "data"), ["training.rates={decoder stage 1: 0}"])
    dataset = load_dataset(recipe)
    tiles = prepare_tiles(recipe, dataset)
    devices = strategy.make_devices(recipe.distribution, None)
    arrays = {f"model/{p}": np.zeros(s, np.float32) for p, s in weight_shapes(recipe.model, 3, 3).items()}
    arrays = {path: array for path, array in arrays.items() if not path.startswith("model/up")}
    own = replace(source(IMAGENET, OLD).run, classes=dataset.classes)
    begun = StartingRun(own, arrays, partial=True)
    training = Training(recipe, dataset, tiles, devices, tmp_path / "run", source=begun)
    with open_training(plan_training(training)):
        pass
    lines = said()
    assert any(line.startswith("normalisation: as runs/a has it (") for line in lines)
    assert any(line.startswith("warning: random weights are frozen: decoder stage 1 for") for line in lines)
    run = load_run(tmp_path / "run")
    assert run.normalisation == IMAGENET
    assert run.scenes == Normalisation.of(tiles.statistics.mean_C, tiles.statistics.std_C)
