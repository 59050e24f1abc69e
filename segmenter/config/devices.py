"""Section `distribution` of the recipe: which devices compute, with how much memory, and how they sum."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, setting

DeviceNumber = Annotated[int, Field(ge=0)]


class LogicalGpus(Section):
    """One GPU split into several, to try out several replicas on one card."""

    number: int = setting(..., "devices", "how many are made of the one card", ge=2, le=64)
    memory: int = setting(..., "MiB", "of each; a quarter of an 11 GB card is about 2500", ge=64)


class DistributionConfig(Section):
    """Devices of a training, and how they work together."""

    strategy: Literal["auto", "one_device", "mirrored", "parameter_server"] = setting(
        "auto",
        "",
        "auto: all GPUs if there are any, else all CPU devices; parameter_server: docs/several_machines.md",
    )
    devices: tuple[DeviceNumber, ...] | None = setting(
        None,
        "",
        "of the visible devices only these numbers, from 0; default: all, or the first for one_device",
    )
    cross_device: Literal["auto", "nccl", "hierarchical_copy", "reduction_to_one"] = setting(
        "auto",
        "",
        "how sums over devices are made; auto: TensorFlow's collectives, NCCL between GPUs that are cards "
        "of their own",
    )
    visible_devices: tuple[DeviceNumber, ...] | None = setting(
        None, "", "GPUs that TensorFlow may see, by its numbers, from 0; []: none; default: all"
    )
    memory_growth: bool = setting(True, "", "take GPU memory as it is needed; false: all of it at the start")
    memory_limit: int | None = setting(
        None, "MiB", "hard limit of each GPU, taken at the start; needs memory_growth: false", ge=64
    )
    logical_gpus: LogicalGpus | None = setting(
        None, "", "{number, memory}: split the one visible GPU; needs memory_growth: false"
    )
    soft_placement: bool = setting(
        True, "", "compute on the CPU what has no GPU version; false: such an operation is an error"
    )
    log_placement: bool = setting(
        False, "", "write the device of every operation to stderr: thousands of lines"
    )
    deterministic: bool = setting(
        False, "", "the same bits in each run on GPUs too, at a cost; a CPU has them without"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> DistributionConfig:
        for key, message in self._contradictions():
            raise PydanticCustomError(f"distribution.{key}", message)
        return self

    def _unserved(self) -> list[tuple[str, str]]:
        """Settings that mean nothing with parameter servers."""
        whys = {
            "devices": "each worker computes on one device",
            "cross_device": "nothing is summed over devices",
            "logical_gpus": "each worker computes on one device",
            "memory_limit": "workers take memory as they need it",
            "deterministic": "updates come in any order, so that no run repeats another's bits",
            "log_placement": "the workers' operations are not the chief's to log",
        }
        fields = type(self).model_fields
        return [
            (key, f"{why} under strategy: parameter_server: expected the default, got {getattr(self, key)}")
            for key, why in whys.items()
            if self.strategy == "parameter_server" and getattr(self, key) != fields[key].default
        ]

    def _contradictions(self) -> list[tuple[str, str]]:
        """(setting, what is wrong with it) for each pair of settings that cannot both hold."""
        found = self._unserved()
        numbers = self.devices
        if numbers is not None:
            if self.strategy == "auto":
                found.append(("devices", "expected strategy: mirrored or one_device with it, got auto"))
            elif self.strategy == "one_device" and len(numbers) != 1:
                found.append(
                    ("devices", f"expected one number with strategy: one_device, got {len(numbers)}")
                )
            elif self.strategy == "mirrored" and len(numbers) < 2:
                found.append(("devices", f"expected two or more with strategy: mirrored, got {len(numbers)}"))
        for key in ("devices", "visible_devices"):
            listed = getattr(self, key) or ()
            if len(set(listed)) < len(listed):
                found.append((key, f"expected each number once, got {list(listed)}"))
        if self.cross_device != "auto" and self.strategy == "one_device":
            found.append(("cross_device", f"one device has no other to add to, got {self.cross_device}"))
        if self.memory_limit is not None and self.logical_gpus is not None:
            found.append(
                ("memory_limit", "logical_gpus says the memory itself: expected one of both, got both")
            )
        for key in ("memory_limit", "logical_gpus"):
            if getattr(self, key) is not None and self.memory_growth:
                found.append(
                    (key, "expected memory_growth: false with it: fixed memory cannot grow, got true")
                )
        if self.logical_gpus is not None and self.cross_device == "nccl":
            found.append(
                ("cross_device", "nccl needs one card for each device, logical_gpus has one, got nccl")
            )
        return found
