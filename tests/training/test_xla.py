"""XLA as far as it shows without GPUs and TPUs: what is compiled, what is refused, when it is tried."""

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tensorflow.python.distribute import mirrored_run, mirrored_strategy

from datasets.commands.gpu.bench import unequal_copies
from segmenter.base.errors import ConfigError, DeviceError
from segmenter.config.devices import DistributionConfig
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import LossConfig, TrainingConfig, UNetConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import Devices, sums_not_compiled
from segmenter.extras.strategies import devices_of
from segmenter.grid.labels import ClassMap
from segmenter.training import step as xla_trial
from segmenter.training.losses import segmentation_loss
from segmenter.training.step import tried_xla, xla_of
from tests.helpers.laboratory import BATCH, EMPHASES, SHARES, WEIGHTS
from tests.helpers.made_trainer import made_trainer
from tests.helpers.refusals import refused
from tests.helpers.small_training import (
    AVERAGE,
    NORM,
    PER_IMAGE,
    PER_PIXEL,
    Training,
    batches,
    difference,
    with_slots,
)

pytestmark = pytest.mark.usefixtures("tensorflow")


@pytest.mark.slow
def test_on_gpus_all_of_a_replicas_step_is_compiled_sums_included(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced, not run, with TensorFlow told that the devices are GPUs: merge_call would be an error here."""
    for module in (mirrored_run, mirrored_strategy):
        monkeypatch.setattr(module, "_is_gpu_device", lambda device: True)
    settings = TrainingConfig(global_batch=BATCH, precision="mixed_float16", warmup=0, clip_norm=1.0)
    training = Training(NORM, LossConfig(dice=1.0), 2, "mixed_float16", AVERAGE, settings, (5, 3), xla=True)
    stack = training.devices.distribute(batches(2), axis=1)
    graph = training._many.get_concrete_function(stack, tensorflow.constant(2)).graph.as_graph_def()
    sums = {
        f.signature.name: sum(node.op == "CollectiveReduceV2" for node in f.node_def)
        for f in graph.library.function
    }
    compiled = {f.signature.name for f in graph.library.function if f.attr["_XlaMustCompile"].b}
    # Forward and backward of six BatchNorms, Dice's overlaps, the gradients: in one function a replica.
    assert {name: count for name, count in sums.items() if count} == dict.fromkeys(compiled, 2 * 6 + 1 + 1)
    assert len(compiled) == 2
    assert not any(node.op.startswith("Collective") for node in graph.node)
    programs = [f for f in graph.library.function if f.signature.name in compiled]
    # Each takes its own number of images, known when it is compiled.
    shapes = [program.arg_attr[0].attr["_output_shapes"].list.shape[0] for program in programs]
    assert sorted(shape.dim[0].size for shape in shapes) == [3, 5]


def devices(*cards: str) -> list[Device]:
    return [Device(f"{card[:3]}:{i}", "made up", "", card) for i, card in enumerate(cards)]


TWO = ("GPU:0", "GPU:1")


@pytest.mark.parametrize(
    ("cards", "settings", "workers", "why"),
    [
        (TWO, {}, 1, ""),
        (TWO, {}, 2, "over several workers were never tried"),
        (("CPU", "CPU"), {}, 1, "over GPUs only, and CPU:0 is none"),
        (("GPU:2", "GPU:2"), {}, 1, "over cards only, and some devices are parts of one"),
        (TWO, {"cross_device": "nccl"}, 1, "not distribution.cross_device: nccl"),
        (TWO, {"strategy": "central_storage"}, 1, "central_storage adds and updates on the host"),
    ],
)
def test_where_sums_cannot_be_compiled_it_says_why(
    cards: tuple[str, ...], settings: dict[str, Any], workers: int, why: str
) -> None:
    found = sums_not_compiled(DistributionConfig(**settings), devices(*cards), workers=workers)
    assert found.endswith(why)
    assert bool(found) == bool(why)


@pytest.fixture(scope="module")
def dropping(tensorflow: ModuleType) -> Training:
    """With dropout, whose masks XLA draws otherwise, and BatchNorm, whose statistics each call changes."""
    return Training(UNetConfig(depth=1, width=3, dropout=0.3), PER_IMAGE, xla=None)


@pytest.fixture(scope="module")
def stack() -> Any:
    return with_slots(batches(2))


def recipe_with(**training: Any) -> Any:
    return SimpleNamespace(
        training=TrainingConfig(**training), distribution=DistributionConfig(), model=UNetConfig()
    )


@pytest.mark.slow
def test_a_trial_compares_both_ways_and_changes_nothing(dropping: Training, stack: Any) -> None:
    before, rates = (
        dropping.weights(),
        [layer.rate for layer in dropping.model.layers if hasattr(layer, "rate")],
    )
    parts, line = xla_trial.tried_xla(dropping.parts, dropping.devices.distribute(stack, axis=1))
    assert parts.xla is not None
    assert "XLA failed" not in line
    assert all(np.array_equal(a, b) for a, b in zip(before, dropping.weights(), strict=True))
    assert rates == [layer.rate for layer in dropping.model.layers if hasattr(layer, "rate")] == [0.3]
    with xla_trial._without_chance(dropping.parts):
        first = dropping.devices.distribute(tuple(part[0] for part in stack))
        plain, compiled = (
            xla_trial._time_gradient(dropping.parts, first, compiled=c)[0] for c in (False, True)
        )
    np.testing.assert_allclose(compiled, plain, rtol=0, atol=1e-12 * np.linalg.norm(plain))


@pytest.mark.slow
def test_where_xla_fails_the_training_goes_on_without_it(stack: Any) -> None:
    """Between CPU devices TensorFlow cannot compile sums; all copies of all variables are as before."""
    training = Training(UNetConfig(depth=1, width=3, dropout=0.3), PER_IMAGE, 2, xla=None)
    before = training.weights()
    parts, line = tried_xla(training.parts, training.devices.distribute(stack, axis=1))
    assert parts.xla is False
    assert "XLA failed" in line
    assert len(line.splitlines()) == 1
    assert all(np.array_equal(a, b) for a, b in zip(before, training.weights(), strict=True))
    assert unequal_copies(parts.strategy, training.model.variables) == 0
    assert np.isfinite(training.each(batches(1))[0])


@pytest.mark.slow
def test_in_16_bits_the_first_loss_scale_does_not_decide(stack: Any) -> None:
    """Gradients that overflow both ways cannot be compared."""
    settings = TrainingConfig(global_batch=BATCH, precision="mixed_float16", warmup=0)
    training = Training(NORM, PER_IMAGE, 1, "mixed_float16", training=settings, xla=None)
    training.optimiser.dynamic_scale.assign(2.0**126)
    before = training.weights()
    _, line = tried_xla(training.parts, training.devices.distribute(stack, axis=1))
    assert "nan" not in line
    assert "not compiled, in float32" not in line  # what rounding explains is no other gradient
    assert float(training.optimiser.dynamic_scale.numpy()) == 2.0**126
    assert all(np.array_equal(a, b) for a, b in zip(before, training.weights(), strict=True))


def as_before(training: Training, kept: dict[str, str], replicas: int = 1, model: str = "CPU") -> Any:
    """The parts of a training on one processor, resumed from a checkpoint made on so many devices."""
    facts: Any = SimpleNamespace(computed_on={"devices": model, **kept}, replicas=replicas)
    here: Any = SimpleNamespace(computed_on={"devices": "CPU"}, replicas=1)
    return xla_trial.with_xla_as_before(training.parts, facts, here)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["a term of the loss", "an image", "nothing"])
def test_a_wrong_gradient_is_not_taken_in_half_precision(
    monkeypatch: pytest.MonkeyPatch, stack: Any, wrong: str
) -> None:
    """In 16 bits such a gradient is nearer than roundings: it shows in float32."""
    settings = TrainingConfig(global_batch=BATCH, precision="mixed_float16", warmup=0)
    full, part = (segmentation_loss(loss, None, BATCH) for loss in (LossConfig(dice=0.2), LossConfig()))
    training = Training(UNetConfig(depth=2, width=8), full, 1, "mixed_float16", training=settings, xla=None)
    own = xla_trial._time_gradient

    def timed(parts: Any, batch: Any, *, compiled: bool) -> Any:
        if compiled and wrong == "an image":
            label = batch[2].numpy()
            label[-1] = 255
            batch = (*batch[:2], label, *batch[3:])
        if compiled and wrong == "a term of the loss":
            parts = replace(parts, loss=part)
        return own(parts, batch, compiled=False)[0], 2.0 - compiled

    monkeypatch.setattr(xla_trial, "_time_gradient", timed)
    parts, line = tried_xla(training.parts, training.devices.distribute(stack, axis=1))
    assert parts.xla is (wrong == "nothing"), line


def test_asked_for_the_same_bits_it_does_not_look_at_the_clock(
    dropping: Training, stack: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        xla_trial, "_time_gradient", lambda *_, compiled: (np.array([3.0, 4.0]), 1.0 + compiled)
    )
    monkeypatch.setattr(xla_trial, "_rounding_change", lambda *_: 1e-6)
    taken = dropping.devices.distribute(stack, axis=1)
    assert [tried_xla(dropping.parts, taken, timed=timed)[0].xla for timed in (True, False)] == [False, True]


def test_max_pooling_is_not_compiled_where_the_same_bits_are_asked_for() -> None:
    made = {"name": "x", "dataset": {"kind": "potsdam", "root": "d"}, "distribution": {"deterministic": True}}
    resnet = {"kind": "encoder_decoder", "encoder": "resnet18"}
    lite = {"kind": "encoder_decoder", "encoder": "efficientnet_lite0"}
    used: Any = tuple(devices("GPU:0"))
    card = Devices(SimpleNamespace(num_replicas_in_sync=1), used)
    for model, pooled in (({}, True), (resnet, True), (lite, False)):
        recipe = recipe_from({**made, "model": model, "training": {"xla": "auto"}}, "x")
        assert xla_of(recipe, card) is (False if pooled else None)
        assert bool(xla_trial.why_untried(recipe, card)) is pooled
        compiled = {**made, "model": model, "training": {"xla": True}}
        with refused(ConfigError, where="training.xla", got="true") if pooled else nullcontext():
            recipe_from(compiled, "x")


@pytest.mark.parametrize(
    ("gradient", "seconds", "chosen"),
    [
        ([3.0, 4.0], 1.0, True),
        ([3.0, 4.0], 3.0, False),
        ([3.0, 4.001], 1.0, False),
        ([3.0, np.nan], 1.0, False),
        (None, 0.0, False),
    ],
    ids=["sooner", "later", "another", "not finite", "failing"],
)
def test_xla_is_chosen_where_it_agrees_and_is_sooner(
    dropping: Training,
    stack: Any,
    monkeypatch: pytest.MonkeyPatch,
    gradient: Any,
    seconds: float,
    chosen: bool,
) -> None:
    def timed(parts: Any, batch: Any, *, compiled: bool) -> Any:
        if not compiled:
            return np.array([3.0, 4.0]), 2.0
        if gradient is None:
            raise ValueError("XLA cannot compile this")
        return np.array(gradient), seconds

    monkeypatch.setattr(xla_trial, "_time_gradient", timed)
    monkeypatch.setattr(xla_trial, "_rounding_change", lambda *_: 1e-6)
    parts, line = xla_trial.tried_xla(dropping.parts, dropping.devices.distribute(stack, axis=1))
    assert parts.xla is chosen
    assert line.startswith("xla: auto: compiled" if chosen else "xla: auto: not compiled")
    kept = xla_trial.xla_facts(recipe_with(xla="auto").training, parts)
    assert as_before(dropping, kept).xla is chosen  # resumed, it is not tried again
    assert as_before(dropping, {}).xla is None
    assert as_before(dropping, kept, replicas=2).xla is None
    assert as_before(dropping, kept, model="another").xla is None
    assert (
        as_before(dropping, xla_trial.xla_facts(recipe_with(xla="auto").training, dropping.parts)).xla is None
    )


@pytest.mark.parametrize(
    ("asked", "cards", "found"),
    [
        ({"xla": "auto"}, ("GPU:0", "GPU:1"), None),
        ({"xla": "auto"}, ("GPU:0",), None),
        ({"xla": "auto"}, ("CPU",), False),
        ({"xla": "auto"}, ("GPU:2", "GPU:2"), False),
        ({"xla": "auto", "accumulate": 2}, ("GPU:0",), False),
        ({"xla": True}, ("CPU",), True),
        ({}, ("GPU:0",), False),
    ],
)
def test_where_xla_is_tried(asked: dict[str, Any], cards: tuple[str, ...], found: bool | None) -> None:
    used: Any = tuple(devices(*cards))
    assert (
        xla_of(recipe_with(**asked), Devices(SimpleNamespace(num_replicas_in_sync=len(used)), used)) is found
    )


ON_THE_HOST = re.compile(r"PyFunc|Summary|Print|^(Where|Unique|Save|Iterator)")
"""Operations that ask the host, or whose result has a shape that only its values tell."""
BFLOAT16 = TrainingConfig(global_batch=BATCH, precision="mixed_bfloat16", warmup=0, clip_norm=1.0)


class OneOfFour(SimpleNamespace):
    """A core's view of four, on a TPU: one program for all, in which its number is not known beforehand."""

    def __init__(self, number: Any) -> None:
        super().__init__(num_replicas_in_sync=4, number=number)

    @property
    def replica_id_in_sync_group(self) -> Any:
        return self.number.read_value()

    def all_reduce(self, operation: Any, value: Any) -> Any:
        """As if the others had no images."""
        return value


@pytest.fixture
def one_of_four(tensorflow: ModuleType) -> Iterator[Any]:
    """The variable that holds the number."""
    number = tensorflow.Variable(0)
    core = OneOfFour(number)
    with mock.patch.object(tensorflow.distribute, "get_replica_context", return_value=core):
        yield number


@pytest.mark.slow
def test_the_program_of_all_cores_is_compiled_without_a_cores_number(one_of_four: Any) -> None:
    """Law 2 leaves no choice for what it computes: the same as not compiled."""
    stack = batches(2)
    plain, compiled = Training(NORM, PER_PIXEL), Training(NORM, PER_PIXEL, xla=True)
    one_of_four.assign(3)
    np.testing.assert_allclose(compiled.each(stack), plain.each(stack), rtol=1e-9)
    assert difference(compiled.weights(), plain.weights()) <= 1e-9


@pytest.mark.slow
def test_dropout_is_compiled_without_a_cores_number(one_of_four: Any) -> None:
    """XLA has other masks than TensorFlow, but they are of the images' slots: the same on any core."""
    model, stack = UNetConfig(depth=1, width=3, dropout=0.4), batches(1)
    compiled = Training(model, PER_IMAGE, xla=True)
    losses = []
    for number, seed in ((0, 5), (1, 5), (0, 6)):
        one_of_four.assign(number)
        compiled.model.get_layer("dropout").masks.assign(np.array([seed, 0], np.int64))
        start = compiled.weights()
        losses += compiled.each(stack)
        for variable, value in zip(compiled.model.variables, start, strict=True):
            variable.assign(value)
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.slow
def test_the_host_has_no_part_in_the_steps_of_a_call(tensorflow: ModuleType) -> None:
    loss = EMPHASES.model_copy(update={"lovasz": 0.5, "jaccard": 0.5, "tversky": 0.5})
    made = segmentation_loss(loss, WEIGHTS, BATCH, SHARES)
    model = UNetConfig(depth=1, width=3, dropout=0.3)
    training = Training(model, made, 2, "mixed_bfloat16", AVERAGE, BFLOAT16)
    stack = training.devices.distribute(batches(2), axis=1)
    graph = training._many.get_concrete_function(stack, tensorflow.constant(2)).graph.as_graph_def()
    names = {n.op for n in [*graph.node, *(n for f in graph.library.function for n in f.node_def)]}
    assert {"Conv2D", "StatelessRandomUniformV2", "While"} <= names
    assert {name for name in names if ON_THE_HOST.search(name)} == set()


@pytest.mark.slow
def test_bfloat16_trains_without_a_loss_scale() -> None:
    """Weights and updates in float32; the loss is that of float32 to the digits that bfloat16 has."""
    half = Training(NORM, PER_IMAGE, 1, "mixed_bfloat16", training=BFLOAT16)
    full = Training(
        NORM, PER_IMAGE, 1, "float32", training=BFLOAT16.model_copy(update={"precision": "float32"})
    )
    stack = batches(2)
    assert half.optimiser.dynamic_scale is None
    assert half.model.layers[2].compute_dtype == "bfloat16"
    assert {v.dtype for v in half.model.trainable_variables} == {"float32"}
    np.testing.assert_allclose(half.each(stack), full.each(stack), rtol=2e-2)


def test_where_the_host_validates_it_has_the_weights_of_now(
    tmp_path: Path, make_classes: Callable[..., ClassMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    classes, there = make_classes(3), made_trainer(tmp_path, make_classes(3), 1)
    monkeypatch.setattr(Devices, "predicts_on_host", True)
    here = made_trainer(tmp_path, classes, 1)
    image, valid, *_ = here.feed.loader.batch
    for variable in here.learner.model.trainable_variables:
        variable.assign(variable.value * 1.5)
    assert here.learner.predictor() is not here.learner._on_host
    found = here.learner.predictor()(image, valid).ids
    before = there.learner.predictor()(image, valid).ids
    for ours, theirs in zip(there.learner.model.variables, here.learner.model.variables, strict=True):
        ours.assign(theirs.value)
    assert np.array_equal(found, there.learner.predictor()(image, valid).ids)
    assert not np.array_equal(found, before)


def test_without_a_tpu_it_says_so_in_one_line(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(**_: Any) -> None:
        raise ValueError("TPUs not found in the cluster. Failed in initialization: " + "more " * 100)

    monkeypatch.setattr(tensorflow.distribute.cluster_resolver, "TPUClusterResolver", none)
    config = DistributionConfig(strategy="tpu", tpu="its-name")
    message = r"strategy: tpu: expected a TPU \(its-name\), found none \(TPUs not found in the cluster\); on"
    with pytest.raises(DeviceError, match=message):
        devices_of(config)
    with refused(DeviceError, where="--logical-devices", fault="strategy: tpu uses"):
        devices_of(config, 2)


@pytest.mark.parametrize("name", [None, "its-name"])
def test_a_tpu_is_connected_and_started_before_its_strategy_is_made(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    done: list[str] = []
    cores = [f"/job:worker/replica:0/task:0/device:TPU:{i}" for i in range(8)]
    made = SimpleNamespace(extended=SimpleNamespace(worker_devices=cores))
    tf = tensorflow
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: done.append(tpu))
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: done.append("connected"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda _: done.append("started"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda _: made)
    devices = devices_of(DistributionConfig(strategy="tpu", tpu=name))
    assert devices.names == (tuple(cores) if name else tuple(f"TPU:{i}" for i in range(8)))
    assert done == [name or "local", *(["connected"] if name else []), "started"]
    assert devices.replica_tiles(64) == (8,) * 8
