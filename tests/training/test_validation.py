"""Validation on all devices and by scale, in windows of bounded memory; a training with scenes of scales."""

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import TrainingError
from segmenter.config.recipe import PredictionConfig, Recipe, UNetConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices, make_devices
from segmenter.evaluation.by_gsd import GsdConfusions
from segmenter.evaluation.intervals import Interval
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.inference import memory as memory_budget
from segmenter.inference.function import on_replicas
from segmenter.inference.memory import usual_tiling
from segmenter.inference.prediction import Prediction
from segmenter.model.building import build_model
from segmenter.model.normalisation import Normalisation
from segmenter.model.receptive_field import NetworkGeometry, network_geometry
from segmenter.runs.score_files import load_score
from segmenter.tiles.index import build_index
from segmenter.training.prepare import prepare_tiles
from segmenter.training.validation import Examples, _encode_results, _scenes_of, validate
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.laboratory import strategy_of
from tests.helpers.made_training import trained
from tests.helpers.maps import Make
from tests.helpers.scaled_scenes import SIDE, scaled_dataset, scaled_recipe

pytestmark = pytest.mark.usefixtures("tensorflow")

CLASSES = 3
NORMALISATION = Normalisation.of([80.0, 127.0, 127.0], [50.0, 70.0, 70.0])


def made(replicas: int, precision: str, weights: list[Any] | None) -> tuple[Any, Devices, list[Any]]:
    """A U-Net of these weights (else: of random ones) under a strategy."""
    strategy = strategy_of(replicas)
    names = [f"CPU:{number}" for number in range(replicas)]
    devices = Devices(strategy, tuple(Device(name, "a processor", "", "CPU") for name in names))
    with strategy.scope():
        model = build_model(
            UNetConfig(depth=1, width=4, dropout=0.3), 3, CLASSES, dtype=precision, synchronised=True
        )
    rng = np.random.default_rng(4)
    for number, variable in enumerate(model.variables):
        value = rng.normal(size=variable.shape)
        if not variable.path.endswith("/masks"):
            value = abs(value) + 0.3 if variable.path.endswith("variance") else value
            variable.assign(value if weights is None else weights[number])
    return model, devices, [variable.numpy() for variable in model.variables]


@pytest.fixture
def validated(
    four_replicas: list[str], make_geotiff: Make, make_classes: Callable[..., ClassMap], tmp_path: Path
) -> Callable[..., Any]:
    """`validated(model, devices)`: what it gives, how many batches each device computed, and with what."""
    classes = make_classes(CLASSES)
    dataset = scaled_dataset(tmp_path, make_geotiff, classes, (0.2, 0.9, 3.0), split="validation")

    def validated(model: Any, devices: Devices, check: Callable[[], None] = lambda: None) -> Any:
        recipe = SimpleNamespace(prediction=PredictionConfig(window=64, batch=1))
        run: Any = SimpleNamespace(network=network_geometry(model), recipe=recipe, classes=classes, mean_C=())
        predict = on_replicas(model, NORMALISATION, devices)
        batches = [_counted(worker) for worker in predict.workers]
        scales, examples = GsdConfusions(classes), Examples()
        total = validate(run, predict, dataset, examples, scales, going=check)
        by_scale = {scale: confusion.matrix.tolist() for scale, (confusion, _) in scales._found.items()}
        pictures = [(e.title, e.label_HW.tobytes(), e.map_HW.tobytes()) for e in examples.read(dataset)]
        blocks = [each.blocks and each.blocks.counts.tolist() for each in scales.scenes]
        return (total.matrix.tolist(), by_scale, pictures, blocks), [len(each) for each in batches]

    return validated


def _counted(worker: Any) -> list[int]:
    """Grows by one with each batch that a worker computes."""
    part, found = worker.part, list[int]()

    def counted(*arrays: Any) -> Any:
        found.append(1)
        return part(*arrays)

    worker.part = counted
    return found


@pytest.mark.slow
def test_validation_on_all_devices_gives_one_devices_numbers(validated: Callable[..., Any]) -> None:
    """Confusion matrix, scores by scale and examples, from windows that all four have computed.

    A fault elsewhere, of a worker process for instance, ends it at the next window.
    """
    model, devices, weights = made(1, "mixed_float16", None)
    expected, batches = validated(model, devices)
    model, devices, _ = made(4, "mixed_float16", weights)
    found, shared = validated(model, devices)
    assert found == expected
    assert len(expected[1]) == 3
    assert np.count_nonzero(expected[0]) > CLASSES, "the model sees one class only: an easy judge"
    assert sum(shared) == sum(batches) > 8
    assert min(shared) > 0, shared
    seen: list[int] = []

    def fault() -> None:
        seen.append(1)
        if len(seen) == 3:
            raise TrainingError("a worker ended")

    with pytest.raises(TrainingError, match="a worker ended"):
        validated(model, devices, fault)
    assert len(seen) == 3


def test_windows_are_large_by_default_and_as_many_as_memory_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "smallest_card", lambda: None)
    exact, blended = NetworkGeometry(16, 107, 1306.0), NetworkGeometry(32, None, 3000.0)

    def sides(network: NetworkGeometry, memory: float, *asked: Any) -> tuple[int, int, int]:
        monkeypatch.setattr(memory_budget, "machine_memory", lambda: int(memory * 2**30))
        tiling = usual_tiling(network, *(asked or (None, None)))
        return tiling.window.height, tiling.batch, tiling.at_once(Size(256, 256))

    assert sides(exact, 16) == (1024, 1, 16)
    assert sides(exact, 3) == (512, 1, 6)  # half of it, less the base, is 0.5 GiB for the model
    assert sides(exact, 3, None, None, 4) == (512, 1, 1)  # four devices share it
    assert sides(exact, 16, 512, None) == (512, 4, 16)
    assert sides(exact, 16, 2048, 3) == (2048, 3, 3)
    assert sides(blended, 16) == (512, 4, 16)
    assert sides(NetworkGeometry(32, 562, 9000.0), 64) == (2304, 1, 16)  # keeps half of its side
    monkeypatch.setattr(memory_budget, "smallest_card", lambda: 11 * 2**30)
    assert sides(exact, 3) == (1024, 1, 16)  # the card's memory counts, and no other's


def _validate(dataset: Dataset, classes: ClassMap, window: int = 64) -> ConfusionMatrix:
    """ConfusionMatrix of a model that gives every pixel the second class, in small windows."""

    def predict(image: Any, valid: Any) -> Prediction:
        return Prediction(np.ones(valid.shape, np.uint8))

    recipe = SimpleNamespace(prediction=PredictionConfig(window=window, batch=1))
    run: Any = SimpleNamespace(
        network=NetworkGeometry(8, 9, 100.0), recipe=recipe, classes=classes, mean_C=()
    )
    return validate(run, FunctionPredictor(predict), dataset, Examples())


@pytest.mark.parametrize("kind", ["colours", "codes", "palette"])
def test_memory_does_not_depend_on_the_height_of_a_label(
    make_geotiff: Make, make_png: Make, make_classes: Callable[..., ClassMap], tmp_path: Path, kind: str
) -> None:
    """Law 6 in training. Which of the threads' peaks coincide is chance: some 0.4 MB, where a byte is 3.5."""
    classes = make_classes(3, "codes" if kind == "codes" else "colours")
    colours = np.array([one.colour for one in classes.classes], np.uint8)
    palette = {number: (*colour, 255) for number, colour in enumerate(colours.tolist())}
    peaks, heights, width = [], (203, 3501, 21001), 203  # the first brings what is made once
    for height in heights:
        ids = np.tile(np.arange(height, dtype=np.uint8)[:, None] // 9 % 3, (1, width))
        label = colours[ids] if kind == "colours" else ids
        files = (
            make_geotiff(f"i{height}.tif", ids, tiled=True, blockxsize=64, blockysize=64),
            make_png(f"l{height}.png", label, **({"colours": palette} if kind == "palette" else {})),
        )
        scene = Scene(f"s{height}", *files, f"s{height}", "validation")
        dataset = Dataset("made", tmp_path, (scene,), classes)
        tracemalloc.start()
        confusion = _validate(dataset, classes, window=160)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert confusion.matrix[:, 1].tolist() == np.bincount(ids.reshape(-1)).tolist()
    assert peaks[2] - peaks[1] < 0.3 * (heights[2] - heights[1]) * width, peaks


def test_pixels_without_data_count_nowhere(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    label, void = rng.integers(0, 3, (97, 143), np.uint8), np.zeros((97, 143), np.bool_)
    void[:31], void[60:, 100:] = True, True
    image = rng.integers(1, 255, (97, 143, 3), np.uint8)
    image[void] = 0
    files = make_geotiff("i.tif", image, nodata=0), make_geotiff("l.tif", label)
    dataset = Dataset("m", tmp_path, (Scene("s", *files, "s", "validation"),), make_classes(3))
    scores = _validate(dataset, dataset.classes).scores(Protocol(("a", "b", "c"), "full", "validation"))
    assert scores.truth_pixels.tolist() == np.bincount(label[~void]).tolist()
    assert scores.oa == (label[~void] == 1).mean()
    assert scores.completeness == (~void).mean()


def test_workers_tell_each_other_the_matrix_of_each_scene(make_classes: Callable[..., ClassMap]) -> None:
    classes, rng = make_classes(3), np.random.default_rng(1)
    scenes: dict[str, tuple[float | None, ConfusionMatrix]] = {}
    for number, part in enumerate((Window(0, 0, 301, 437), None)):
        confusion = ConfusionMatrix(classes, part=part)
        confusion.add(*rng.integers(0, 3, (2, 301, 437), np.uint8), part)
        scenes[f"s{number}"] = 0.5, confusion
    told = _scenes_of(json.loads(_encode_results(scenes, 0)), classes)
    assert list(told) == ["s0", "s1"]
    for name, (metres, confusion) in scenes.items():
        assert told[name][0] == metres
        np.testing.assert_array_equal(told[name][1].counts, confusion.counts)
    blocks, expected = told["s0"][1].blocks, scenes["s0"][1].blocks
    assert (blocks.part, blocks.side) == (expected.part, expected.side)
    np.testing.assert_array_equal(blocks.counts, expected.counts)
    assert told["s1"][1].blocks is None
    assert _scenes_of(json.loads(_encode_results({}, 7)), classes) == {}


METRES = (0.1, 0.25, 2.0, 0.12, 2.1)


def recipe(**sections: Any) -> Recipe:
    return scaled_recipe(
        model={"depth": 1, "width": 4},
        training={"global_batch": 12, "epochs": 1, "warmup": 0, "steps_per_call": 2},
        prediction={"window": 64},
        **sections,
    )


@pytest.fixture
def dataset(tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap]) -> Dataset:
    made = scaled_dataset(tmp_path, make_geotiff, make_classes(3), METRES)
    scenes = [replace(s, split="validation" if s.name in ("s3", "s4") else "train") for s in made.scenes]
    return replace(made, scenes=tuple(scenes))


def middle_of_what_is_shown(dataset: Dataset, settings: Recipe) -> float:
    """By hand: 0.1 m in 171 px reaches 0.53 m, 0.25 m all that is asked, 2 m no finer than 0.5 m."""
    ends = np.array([[0.2, 0.1 * 171 / SIDE], [0.2, 1.0], [2.0 / 4, 1.0]])
    tiles_S = np.bincount(build_index(dataset, "train", settings.tiles, progress=False).scene_N)
    return float(np.exp(np.log(ends).mean(axis=1) @ tiles_S / tiles_S.sum()))


def test_of_many_scenes_those_along_the_list_say_the_scale_of_the_training(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first hundred by name may be of one survey, and all that follow of another."""

    assert prepare_tiles(recipe(augmentation={}), dataset).metres_per_pixel == pytest.approx(0.25)
    monkeypatch.setattr("segmenter.tiles.gsd._MOST", 2)
    found = prepare_tiles(recipe(augmentation={}), dataset).metres_per_pixel
    assert found == pytest.approx((0.1 + 2.0) / 2, rel=1e-3)  # one of them is in degrees


def test_preparation_says_what_is_shown_and_planned_at_which_scale(
    dataset: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = recipe(sampling={"scale_strata": [0.15, 1.0], "max_repeats_per_tile": 0})
    tiles = prepare_tiles(settings, dataset)
    said = capsys.readouterr().out
    assert tiles.metres_per_pixel == pytest.approx(middle_of_what_is_shown(dataset, settings), rel=1e-3)
    assert "  best effort: c at 1–2 m, held by " in said
    assert "scale_to: tiles of 0.2–1 m a pixel, out of scenes of 0.1–2 m; a tile reads " in said
    assert "  2 of 2 validation scenes are scored at their own scale, 0.12–2.1 m a pixel, which" in said
    # What the plan and the draws depend on: another scale of a scene is another training.
    other = replace(dataset, scenes=tuple(replace(s, metres_per_pixel=0.3) for s in dataset.scenes))
    assert prepare_tiles(settings, other).fingerprint() != tiles.fingerprint()
    plain = prepare_tiles(recipe(augmentation={}), dataset), prepare_tiles(recipe(augmentation={}), other)
    assert plain[0].fingerprint() == plain[1].fingerprint()


@pytest.mark.slow
def test_a_training_scores_its_validation_by_scale(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LEAST": 2, "FEWEST": 2, "_SPREAD": 0.0, "_LEVEL": 0}.items():
        monkeypatch.setattr(f"segmenter.evaluation.bootstrap.{name}", value)
    from segmenter.training.start import Training

    settings = recipe(
        sampling={"scale_strata": [0.15, 1.0], "max_repeats_per_tile": 40},
        distribution={"strategy": "one_device"},
    )
    tiles = prepare_tiles(settings, dataset)
    run = tmp_path / "run"
    devices = make_devices(settings.distribution, None)
    assert trained(Training(settings, dataset, tiles, devices, run)).exit_code == 0
    scores = json.loads((run / "scores.json").read_text())
    found = scores["per_scale"]
    assert list(found) == ["0.12–0.15 m", "1–2.1 m"]
    total = np.sum([entry["confusion"] for entry in found.values()], axis=0)
    np.testing.assert_array_equal(total, scores["confusion"])
    assert [entry["scenes"] for entry in found.values()] == [1, 1]
    alone, (low, high) = sorted(entry["miou"] for entry in found.values()), scores["miou_interval"]
    assert low <= scores["miou"] <= high
    assert (low, high) == pytest.approx(alone, abs=0.02), "two scenes: each end draws one of them twice"
    kept = load_score(run / "scores.json")
    assert kept.scores.interval == Interval((low, high), 2)
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [line["miou_interval_over"] for line in log if "miou" in line] == [{"scenes": 2}]
    assert "bootstrap over 2 scenes" in (run / "report.html").read_text()
    record = log[0]
    assert record["promised"] == [0, 1, 2]
    assert record["short_steps"] == 0
    recorded = json.loads((run / "run.json").read_text())["metres_per_pixel"]
    assert recorded == pytest.approx(middle_of_what_is_shown(dataset, settings), rel=1e-3)
