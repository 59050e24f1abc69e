"""The figures of studies/four_gpus.md: what is counted, by hand; and the formula at its borders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import four_gpus, page, step_cost
from benchmarks.four_gpus import REPLICAS, Assumed, Plan, step_of
from datasets.commands.gpu import expected
from segmenter.config.recipe import UNetConfig

TINY = UNetConfig(depth=1, width=2)
SIDE, IMAGES = 16, 3
AT_ONCE = Assumed(launch=0.0, head_start=0.0, host=float("inf"))
INSTANT = replace(AT_ONCE, latency=0.0, bus=float("inf"))


@pytest.fixture(scope="module")
def counted(tensorflow: ModuleType) -> list[step_cost.Operation]:
    return step_cost.step_operations(TINY, "mixed_float16", IMAGES, SIDE, synchronised=True)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, counted: list[step_cost.Operation]) -> None:
    monkeypatch.setattr(four_gpus, "_operations", lambda *_: counted)


def test_arithmetic_by_hand(counted: list[step_cost.Operation]) -> None:
    """Two 3 × 3 convolutions at each level and on the way up, where 2 + 4 channels are joined; the logits."""
    whole, half = IMAGES * SIDE**2, IMAGES * (SIDE // 2) ** 2
    first, bands, classes = 2 * whole * 9 * 3 * 2, step_cost.BANDS, step_cost.CLASSES
    assert bands == 3
    others = (
        2 * whole * 9 * (2 * 2 + 6 * 2 + 2 * 2) + 2 * half * 9 * (2 * 4 + 4 * 4) + 2 * whole * 2 * classes
    )
    forward = sum(op.flops for op in counted if not op.backward)
    assert forward == first + others
    # Backward, the gradient of the weights and that of the input; of the image, none is asked for.
    assert sum(op.flops for op in counted) == 2 * first + 3 * others
    # In 16 bits, but for the head.
    assert {op.part for op in counted if op.flops and not op.half} == {"logits"}


def test_traffic_is_that_of_the_tensors(counted: list[step_cost.Operation]) -> None:
    """A ReLU reads and writes its tensor forward, and backward reads two and writes one: 16 bits each."""
    relu = [op for op in counted if op.part == "down0_relu0"]
    tensor = 2 * IMAGES * SIDE**2 * 2
    assert sum(op.bytes for op in relu if not op.backward) == 2 * tensor
    assert sum(op.bytes for op in relu if op.backward) == 3 * tensor


def test_the_roofline_takes_what_takes_longer() -> None:
    arithmetic = step_cost.Operation("a", 10**9, False, 8)
    memory = step_cost.Operation("b", 10, True, 10**9)
    assert arithmetic.seconds(1e9, 1e12, 1e9) == 1
    assert memory.seconds(1e9, 1e12, 1e9) == 1


@pytest.mark.usefixtures("tiny")
def test_without_cost_of_the_bus_four_are_four() -> None:
    step = step_of(Plan(TINY, images=10**9), INSTANT)
    assert step.speedup == pytest.approx(REPLICAS, rel=1e-6)
    doubled = step_of(Plan(TINY, images=2 * four_gpus.IMAGES), AT_ONCE).speedup
    assert step_of(Plan(TINY), AT_ONCE).speedup < doubled < REPLICAS


@pytest.mark.usefixtures("tiny")
def test_collectives_by_hand() -> None:
    """Six BatchNorm layers of 2, 2, 4, 4, 2 and 2 channels, one collective each way; all weights once."""
    machine = Assumed(latency=1.0, bus=1.5, bandwidth=float("inf"))
    channels = [2, 2, 4, 4, 2, 2]
    sent = sum(4 * REPLICAS * (2 * c + 1) + 8 * c for c in channels)
    step = step_of(Plan(TINY), machine)
    assert step.norms == pytest.approx(2 * 6 + sent)
    weights = 9 * (3 * 2 + 2 * 2 + 2 * 4 + 4 * 4 + 6 * 2 + 2 * 2) + 2 * sum(channels) + 2 * 6 + 6
    assert step.gradients == pytest.approx(1 + 4 * weights)


@pytest.mark.usefixtures("tiny")
def test_waits_for_the_host_by_hand(counted: list[step_cost.Operation]) -> None:
    """After each of twelve sums of BatchNorm and the gradients'; then each operation of the update."""
    machine = replace(INSTANT, head_start=1.0, launch=0.5)
    step = step_of(Plan(TINY), machine)
    assert step.waits == 13
    updates = [op for op in counted if op.update]
    assert len(updates) > 20
    assert step.update == pytest.approx(0.5 * len(updates), abs=1e-3)
    assert not any(op.backward or op.flops for op in updates)
    assert step.launches == 0.5 * len(counted)
    assert step_of(Plan(TINY, frozen="encoder"), machine).waits == 5  # two layers of the decoder are left
    # A host that is slower than its cards decides alone, for one card as for each of four.
    assert step.single == step.launches


def test_every_weight_is_updated_after_the_gradients(counted: list[step_cost.Operation]) -> None:
    """Each weight is read and written at least once, with two moments of its size."""
    weights = 4 * step_cost.parameters(TINY)
    assert sum(op.bytes for op in counted if op.update) > 6 * weights


def test_a_window_keeps_what_lies_within_its_borders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expected, "MAPPED", {"float32": (1.0, 2.0)})
    assert expected.mapped("float32", 512) == f"{(288 / 512) ** 2:.3g} … {2 * (288 / 512) ** 2:.3g} MPx/s"
    assert expected.mapped("float32", 1024).startswith(f"{(800 / 1024) ** 2:.3g} ")


@pytest.mark.parametrize("precision", four_gpus.PRECISIONS)
def test_the_command_expects_what_the_page_computes(tensorflow: ModuleType, precision: str) -> None:
    ours, computed = expected.STEPS[precision], four_gpus.expected_step(precision)
    for name, value in vars(computed).items():
        assert getattr(ours, name) == pytest.approx(value, rel=1e-3), name
    middle = four_gpus.MACHINES[four_gpus.MIDDLE]
    step = step_of(Plan(UNetConfig(), precision), middle)
    assert computed.with_sums(middle.latency + middle.head_start, middle.bus) == pytest.approx(step.speedup)
    rates = [four_gpus.megapixels(UNetConfig(), precision, m) for m in four_gpus.MACHINES.values()]
    assert expected.MAPPED[precision] == pytest.approx((min(rates), max(rates)), rel=1e-3)


def test_the_assumed_bus_is_the_one_that_is_said() -> None:
    machines = four_gpus.MACHINES.values()
    times, buses = [1e6 * (m.latency + m.head_start) for m in machines], [m.bus / 1e9 for m in machines]
    assert f"{min(times):.0f} … {max(times):.0f} µs" == expected.LATENCY
    assert f"{min(buses):.1f} … {max(buses):.1f} GB/s" == expected.BUS


def test_frozen_batch_norm_is_left_out_of_the_sums_and_of_the_passes(
    tensorflow: ModuleType, counted: list[step_cost.Operation]
) -> None:
    frozen = step_cost.step_operations(TINY, "mixed_float16", IMAGES, SIDE, synchronised=True, frozen="all")
    assert step_cost.norm_channels(TINY, "encoder") == [2, 2]
    assert step_cost.norm_channels(TINY, "all") == []
    between = [sum(op.bytes for op in ops if not op.flops and not op.update) for ops in (counted, frozen)]
    assert between[1] < 0.7 * between[0]


def test_a_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"a\n<!-- one -->\nold\n{page.END}\nb\n<!-- two -->\nother\n{page.END}\nc\n")
    page.renew(path, "<!-- one -->", page.table(["x", "n"], [["y", "1"]]))
    new = "| x | n |\n| --- | ---: |\n| y | 1 |"
    assert path.read_text() == f"a\n<!-- one -->\n{new}\n{page.END}\nb\n<!-- two -->\nother\n{page.END}\nc\n"
