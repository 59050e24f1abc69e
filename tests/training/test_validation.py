"""Validation on all devices of the strategy: the numbers are one device's, to the bit."""

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from datasets.commands.gpu.bench import strategy_of
from segmenter.base.errors import TrainingError
from segmenter.config.recipe import PredictionConfig, UNetConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices
from segmenter.evaluation.by_gsd import GsdConfusions
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
from segmenter.training.validation import Examples, _scenes_of, _told, validate
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.scaled_scenes import scaled_dataset

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
    tensorflow: ModuleType, four_replicas: list[str], make_geotiff: Callable[..., Path],
    make_classes: Callable[..., ClassMap], tmp_path: Path,
) -> Callable[..., Any]:  # fmt: skip
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
        pictures = [
            (e.title, e.label_HW.tobytes(), e.prediction_HW.tobytes()) for e in examples.read(dataset)
        ]
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


def _validate(dataset: Dataset, classes: ClassMap, guess: int = 1) -> ConfusionMatrix:
    """ConfusionMatrix of a model that gives every pixel the same class, in small windows."""

    def predict(image: Any, valid: Any) -> Prediction:
        return Prediction(np.full(valid.shape, guess, np.uint8))

    recipe = SimpleNamespace(prediction=PredictionConfig(window=64, batch=1))
    run: Any = SimpleNamespace(
        network=NetworkGeometry(8, 9, 100.0), recipe=recipe, classes=classes, mean_C=()
    )
    return validate(run, FunctionPredictor(predict), dataset, Examples())


@pytest.mark.parametrize(
    "kind", ["colours", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("codes", "palette"))]
)
def test_memory_does_not_depend_on_the_height_of_a_label(
    tensorflow: ModuleType, make_geotiff: Callable[..., Path], make_png: Callable[..., Path],
    make_classes: Callable[..., ClassMap], tmp_path: Path, kind: str,
) -> None:  # fmt: skip
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
        confusion = _validate(dataset, classes)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert confusion.matrix[:, 1].tolist() == np.bincount(ids.reshape(-1)).tolist()
    assert peaks[2] - peaks[1] < 0.3 * (heights[2] - heights[1]) * width, peaks


def test_pixels_without_data_count_nowhere(
    tensorflow: ModuleType, make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap],
    tmp_path: Path,
) -> None:  # fmt: skip
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


def test_workers_tell_each_other_the_matrix_of_each_scene(
    tensorflow: ModuleType, make_classes: Callable[..., ClassMap]
) -> None:
    classes, rng = make_classes(3), np.random.default_rng(1)
    scenes: dict[str, tuple[float | None, ConfusionMatrix]] = {}
    for number, part in enumerate((Window(0, 0, 301, 437), None)):
        confusion = ConfusionMatrix(classes, part=part)
        confusion.add(*rng.integers(0, 3, (2, 301, 437), np.uint8), part)
        scenes[f"s{number}"] = 0.5, confusion
    told = _scenes_of(json.loads(_told(scenes, 0)), classes)
    assert list(told) == ["s0", "s1"]
    for name, (metres, confusion) in scenes.items():
        assert told[name][0] == metres
        np.testing.assert_array_equal(told[name][1].counts, confusion.counts)
    blocks, expected = told["s0"][1].blocks, scenes["s0"][1].blocks
    assert (blocks.part, blocks.side) == (expected.part, expected.side)
    np.testing.assert_array_equal(blocks.counts, expected.counts)
    assert told["s1"][1].blocks is None
    assert _scenes_of(json.loads(_told({}, 7)), classes) == {}
