"""A step for a TPU, as far as it shows without one: XLA compiles it, the host has no part in it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from datasets.commands.gpu.laboratory import BATCH, EMPHASES, SHARES, WEIGHTS
from segmenter.base.errors import ConfigError, DeviceError
from segmenter.config.devices import DistributionConfig
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import TrainingConfig, UNetConfig
from segmenter.grid.labels import ClassMap
from tests.helpers.made_trainer import made_trainer
from tests.helpers.refusals import refused
from tests.helpers.small_training import AVERAGE, NORM, PER_IMAGE, PER_PIXEL, Training, batches, difference

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


def test_the_host_has_no_part_in_the_steps_of_a_call(tensorflow: ModuleType) -> None:
    from segmenter.training.losses import segmentation_loss

    loss = EMPHASES.model_copy(update={"lovasz": 0.5, "jaccard": 0.5, "tversky": 0.5})
    made = segmentation_loss(loss, WEIGHTS, BATCH, SHARES)
    model = UNetConfig(depth=1, width=3, dropout=0.3)
    training = Training(model, made, 2, "mixed_bfloat16", AVERAGE, BFLOAT16)
    stack = training.devices.distributed(batches(2), axis=1)
    graph = training._many.get_concrete_function(stack, tensorflow.constant(2)).graph.as_graph_def()
    names = {n.op for n in [*graph.node, *(n for f in graph.library.function for n in f.node_def)]}
    assert {"Conv2D", "StatelessRandomUniformV2", "While"} <= names
    assert {name for name in names if ON_THE_HOST.search(name)} == set()


@pytest.mark.slow
def test_bfloat16_trains_without_a_loss_scale(tensorflow: ModuleType) -> None:
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
    tensorflow: ModuleType,
    tmp_path: Path,
    make_classes: Callable[..., ClassMap],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from segmenter.devices.strategy import Devices

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
    from segmenter.extras.strategies import make_devices

    def none(**_: Any) -> None:
        raise ValueError("TPUs not found in the cluster.\n" + "more " * 100)

    monkeypatch.setattr(tensorflow.distribute.cluster_resolver, "TPUClusterResolver", none)
    config = DistributionConfig(strategy="tpu", tpu="its-name")
    message = r"strategy: tpu: expected a TPU \(its-name\), found none \(TPUs not found in the cluster\); on"
    with pytest.raises(DeviceError, match=message) as caught:
        make_devices(config)
    assert "\n" not in str(caught.value)
    with refused(DeviceError, where="--logical-devices", fault="strategy: tpu uses"):
        make_devices(config, 2)


@pytest.mark.parametrize(("name", "connects"), [(None, False), ("its-name", True)])
def test_a_tpu_is_connected_and_started_before_its_strategy_is_made(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, name: str | None, connects: bool
) -> None:
    from segmenter.extras.strategies import make_devices

    done: list[str] = []
    cores = [f"/job:worker/replica:0/task:0/device:TPU:{i}" for i in range(8)]
    made = SimpleNamespace(extended=SimpleNamespace(worker_devices=cores))
    tf = tensorflow
    monkeypatch.setattr(tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: done.append(tpu))
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda _: done.append("connected"))
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda _: done.append("started"))
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda _: made)
    devices = make_devices(DistributionConfig(strategy="tpu", tpu=name))
    assert devices.names == (tuple(cores) if connects else tuple(f"TPU:{i}" for i in range(8)))
    assert done == [name or "local", *(["connected"] if connects else []), "started"]
    assert devices.dealt(64) == (8,) * 8


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"training": {"precision": "mixed_float16"}}, "training.precision"),
        ({"training": {"xla": True}}, "training.xla"),
        ({"distribution": {"strategy": "tpu", "shares": [1, 2]}}, "shares"),
        ({"distribution": {"tpu": "x"}}, "distribution.tpu"),
    ],
    ids=str,
)
def test_what_does_not_go_with_a_tpu_is_refused(settings: dict[str, Any], where: str) -> None:
    recipe = {"name": "r", "dataset": {"kind": "potsdam", "root": "r"}, "distribution": {"strategy": "tpu"}}
    with refused(ConfigError, where=where):
        recipe_from(recipe | settings, "r.yaml")
