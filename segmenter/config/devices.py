"""Section `distribution` of the recipe: devices, their memory, and how they sum gradients."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, setting
from segmenter.config.strategies import STRATEGIES, OtherSettings, Problem

if TYPE_CHECKING:
    StrategyName = str
else:
    StrategyName = Literal[tuple(STRATEGIES)]

DeviceNumber = Annotated[int, Field(ge=0)]
MemoryLimit = int | str
"""MiB, or a share of a card as in `50 %`."""
_MOST_SHARE = 1000
_PERCENT = re.compile(r"(\d{1,3}) ?%")
_MEBIBYTES = re.compile(r"(\d+)(?: ?MiB)?")
_LEAST_MEMORY = 64


def _shares(value: object) -> object:
    """Validate with one message; a union would give one message per member."""
    if value is None or value == "auto":
        return value
    if isinstance(value, list | tuple) and len(value) > 1:
        whole = all(type(part) is int and 0 <= part <= _MOST_SHARE for part in value)
        if whole and any(value):
            return tuple(value)
    raise PydanticCustomError(
        "distribution.shares",
        "expected auto, or a whole number from 0 to {most} for each device, not all 0, as in [2, 2, 1, 1]",
        {"most": _MOST_SHARE},
    )


def _memory_limits(value: object) -> object:
    """Return a limit in MiB, or a share such as `50 %`; one for all cards, or a list with one for each."""
    if isinstance(value, list | tuple) and value:
        return tuple(_memory_limit(part) for part in value)
    return value if value is None else _memory_limit(value)


def _memory_limit(value: object) -> MemoryLimit:
    if isinstance(value, str):
        if (share := _PERCENT.fullmatch(value.strip())) and 1 <= int(share[1]) <= 100:
            return f"{int(share[1])} %"
        if size := _MEBIBYTES.fullmatch(value.strip()):
            value = int(size[1])
    if type(value) is int and value >= _LEAST_MEMORY:
        return value
    raise PydanticCustomError(
        "distribution.memory_limit",
        "expected {least} or more, or a share of the card as in 50 %, or a list with one for each card",
        {"least": _LEAST_MEMORY},
    )


def share_of_card(limit: MemoryLimit) -> int | None:
    """Return the percentage of a card's memory in a limit; None for a limit in MiB."""
    return int(limit.rstrip(" %")) if isinstance(limit, str) else None


class LogicalGpus(Section):
    """One GPU split into several, to test several replicas on one card."""

    number: int = setting(
        ..., "devices", "number of logical GPUs that the one card is split into", ge=2, le=64
    )
    memory: int = setting(
        ..., "MiB", "memory of each logical GPU; a quarter of an 11 GB card is about 2500", ge=64
    )


class DistributionConfig(Section):
    """Devices of a training, and how they work together."""

    strategy: StrategyName = setting(
        "auto",
        "",
        "strategy of tf.distribute by which devices work together; auto: all GPUs if there are any, else "
        "all CPU devices, and those of all workers where a cluster is given (--cluster, TF_CONFIG); "
        "docs/machines.md",
    )
    devices: tuple[DeviceNumber, ...] | None = setting(
        None,
        "",
        "numbers of the visible devices to use, counted from 0; default: all, or with one_device the first",
    )
    shares: Annotated[
        tuple[int, ...] | Literal["auto"] | None,
        BeforeValidator(_shares, json_schema_input_type=tuple[int, ...] | str | None),
    ] = setting(
        None,
        "",
        "relative part of each step that each device computes, as in [2, 2, 1, 1] where two are twice as "
        "fast; auto: measured before the first step; default: equal parts",
    )
    tpu: str | None = setting(
        None, "", "name or address of the TPU, for strategy: tpu; default: local, the TPU of this machine"
    )
    cross_device: Literal["auto", "nccl", "hierarchical_copy", "reduction_to_one"] = setting(
        "auto",
        "",
        "method by which sums over devices are made; auto: TensorFlow's collectives, with NCCL between "
        "GPUs that are separate cards",
    )
    visible_devices: tuple[DeviceNumber, ...] | None = setting(
        None,
        "",
        "numbers of the GPUs that TensorFlow may see, counted from 0 as TensorFlow does; []: none; "
        "default: all",
    )
    memory_growth: bool = setting(
        True, "", "true: take GPU memory as it is needed; false: take all of it at the start"
    )
    memory_limit: Annotated[MemoryLimit | tuple[MemoryLimit, ...] | None, BeforeValidator(_memory_limits)] = (
        setting(
            None,
            "MiB",
            "largest memory of each GPU, taken at the start: MiB, or a share such as 50 %; a list has one "
            "value for each visible GPU, in the order of the cards; needs memory_growth: false; default: no "
            "limit",
        )
    )
    logical_gpus: LogicalGpus | None = setting(
        None,
        "",
        "number and memory of the logical GPUs that the one visible GPU is split into; needs "
        "memory_growth: false; default: not split",
    )
    soft_placement: bool = setting(
        True, "", "true: compute on the CPU what has no GPU version; false: such an operation is an error"
    )
    log_placement: bool = setting(
        False, "", "true: write the device of every operation to stderr, which gives thousands of lines"
    )
    start_timeout: int = setting(
        1800,
        "s",
        "longest time that workers wait for each other at the start; building their tile indexes takes "
        "unequally long",
        ge=1,
    )
    heartbeat_timeout: int = setting(
        60,
        "s",
        "time without a sign of life after which a worker counts as lost; a busy machine may be silent for "
        "10 s",
        ge=5,
    )
    progress_timeout: int = setting(
        900,
        "s",
        "time without progress after which a worker that still answers counts as hung; compiling the step "
        "takes minutes",
        ge=5,
    )
    deterministic: bool = setting(
        False,
        "",
        "true: the same bits in each run on GPUs too, which is slower; on a CPU they are the same anyway",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> DistributionConfig:
        for key, message in self._contradictions():
            raise PydanticCustomError(f"distribution.{key}", message)
        return self

    def _contradictions(self) -> Iterator[tuple[str, str]]:
        """Yield (setting, problem) for each pair of settings that exclude each other."""
        unread = dict(STRATEGIES[self.strategy].unread)
        if self.strategy not in ("auto", "multi_worker_mirrored"):
            why = f"expected several workers with it, got strategy: {self.strategy}"
            unread |= dict.fromkeys(_OF_WORKERS, why)
        for key, message in unread.items():
            value = getattr(self, key)
            if value != type(self).model_fields[key].default:
                yield key, message.format(got=list(value) if isinstance(value, tuple) else value)
        count, shares = len(self.devices or ()), self.shares
        if self.devices is not None:
            if self.strategy == "auto":
                yield "devices", "expected strategy: mirrored or one_device with it, got auto"
            elif self.strategy == "one_device" and count != 1:
                yield "devices", f"expected one number with strategy: one_device, got {count}"
            elif self.strategy in ("mirrored", "central_storage") and count < 2:
                yield "devices", f"expected two or more with strategy: {self.strategy}, got {count}"
        for key in ("devices", "visible_devices"):
            listed = getattr(self, key) or ()
            if len(set(listed)) < len(listed):
                yield key, f"expected each number once, got {list(listed)}"
        if self.strategy == "multi_worker_mirrored" and self.cross_device not in ("auto", "nccl"):
            yield "cross_device", f"expected auto or nccl over workers, got {self.cross_device}"
        if isinstance(shares, tuple) and count and len(shares) != count:
            yield "shares", f"expected {count}, one for each of devices, got {len(shares)}"
        for name, rules in STRATEGIES.items():
            for key in rules.own if name != self.strategy else ():
                if getattr(self, key) != type(self).model_fields[key].default:
                    yield key, f"expected strategy: {name} with it, got {self.strategy}"
        if self.memory_limit is not None and self.logical_gpus is not None:
            yield "memory_limit", "logical_gpus says the memory itself: expected one of both, got both"
        for key in ("memory_limit", "logical_gpus"):
            if getattr(self, key) is not None and self.memory_growth:
                yield key, "expected memory_growth: false with it: fixed memory cannot grow, got true"
        if self.logical_gpus is not None and self.cross_device == "nccl":
            yield "cross_device", "nccl needs one card for each device, logical_gpus has one, got nccl"

    def misfits(self, others: OtherSettings) -> Iterator[Problem]:
        """Yield (setting, problem) for settings that do not fit other sections of a recipe."""
        if self.shares is not None and others.planned_per_replica:
            yield (
                "distribution.shares",
                "expected sampling.per_replica: best_effort or off with it: guarantee plans equal parts",
            )
        yield from STRATEGIES[self.strategy].misfits(others)


_OF_WORKERS = ("start_timeout", "heartbeat_timeout", "progress_timeout")
