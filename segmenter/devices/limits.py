"""Limits of GPU memory in MiB, from what the recipe says of all cards or of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from segmenter.base.errors import DeviceError
from segmenter.config.devices import MemoryLimit, share_of_card

_MIB = 2**20


def memory_limits(
    asked: MemoryLimit | tuple[MemoryLimit, ...] | None, models: Sequence[str], totals: Mapping[str, int]
) -> list[int | None]:
    """MiB that each of the visible GPUs may take; None: as much as there is.

    Args:
        asked: the recipe's `distribution.memory_limit`.
        models: of the visible GPUs.
        totals: model → bytes, as far as the driver tells them.

    Raises:
        DeviceError: the recipe has another number of limits, more than a card has, or a share of a card of
            which the memory is not known.
    """
    if not isinstance(asked, tuple):
        asked = () if asked is None else (asked,) * len(models)
        if not asked:
            return [None] * len(models)
    if models and len(asked) != len(models):
        raise DeviceError(
            f"distribution.memory_limit: expected {len(models)}, one for each visible GPU, got {len(asked)}"
        )
    return [_mebibytes(limit, model, totals.get(model)) for limit, model in zip(asked, models, strict=False)]


def _mebibytes(limit: MemoryLimit, model: str, total: int | None) -> int:
    percent = share_of_card(limit)
    if percent is not None and total is None:
        raise DeviceError(
            f"distribution.memory_limit: {limit}: expected nvidia-smi to tell the memory of {model}, it does "
            "not; give MiB"
        )
    if percent is not None and total is not None:
        return total * percent // (100 * _MIB)
    if total is not None and int(limit) * _MIB > total:
        raise DeviceError(
            f"distribution.memory_limit: expected at most the {total // _MIB} MiB of {model}, got {limit}"
        )
    return int(limit)
