"""XLA on several GPUs, as far as it shows without one: what TensorFlow would compile, what is refused."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from segmenter.config.devices import DistributionConfig
from segmenter.config.recipe import LossConfig, TrainingConfig
from segmenter.devices.setup import Device
from segmenter.devices.strategy import sums_not_compiled
from tests.helpers.equivalence_matrix import BATCH
from tests.helpers.small_training import AVERAGE, NORM, Training, batches


@pytest.mark.parametrize(
    ("precision", "shares"),
    [("float32", ()), ("mixed_float16", (5, 3))],
    ids=["float32", "5 and 3 in 16 bits"],
)
def test_on_gpus_all_of_a_replicas_step_is_compiled_sums_included(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, precision: str, shares: tuple[int, ...]
) -> None:
    """Traced, not run, with TensorFlow told that the devices are GPUs: merge_call would be an error here."""
    from tensorflow.python.distribute import mirrored_run, mirrored_strategy

    for module in (mirrored_run, mirrored_strategy):
        monkeypatch.setattr(module, "_is_gpu_device", lambda device: True)
    settings = TrainingConfig(global_batch=BATCH, precision=precision, warmup=0, clip_norm=1.0)
    training = Training(NORM, LossConfig(dice=1.0), 2, precision, AVERAGE, settings, shares, xla=True)
    stack = training.devices.distributed(batches(2), axis=1)
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
    assert sorted(_images(program) for program in programs) == sorted(shares or (4, 4))


def _images(program: Any) -> int:
    """How many a compiled program takes: each its own number, known when it is compiled."""
    shapes = program.arg_attr[0].attr["_output_shapes"].list.shape
    return int(shapes[0].dim[0].size)


def devices(*cards: str) -> list[Device]:
    return [Device(f"{card[:3]}:{i}", "made up", "", card) for i, card in enumerate(cards)]


@pytest.mark.parametrize(
    ("cards", "cross_device", "why"),
    [
        (("GPU:0", "GPU:1"), "auto", ""),
        (("CPU", "CPU"), "auto", "over GPUs only, and CPU:0 is none"),
        (("GPU:2", "GPU:2"), "auto", "over cards only, and some devices are parts of one"),
        (("GPU:0", "GPU:1"), "nccl", "its own collectives only, not distribution.cross_device: nccl"),
    ],
)
def test_where_sums_cannot_be_compiled_it_says_why(
    cards: tuple[str, ...], cross_device: str, why: str
) -> None:
    found = sums_not_compiled(DistributionConfig(cross_device=cross_device), devices(*cards))
    assert found.endswith(why)
    assert bool(found) == bool(why)


def test_over_several_workers_nothing_is_compiled() -> None:
    assert "never tried" in sums_not_compiled(DistributionConfig(), devices("GPU:0", "GPU:1"), workers=2)
