"""Equivalence, law 2, on these devices: R replicas against one, in float64, and float32 without TF32.

The rows of `matrix` are run; after each, all replicas' copies of all variables are compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from .bench import Bench
from .figures import Figure
from .laboratory import DRAWS, KINDS, LIMIT, ROWS, STEPS, Laboratory, Row

_LEAST, _ROUNDINGS, _MOST = 1e-5, 10, 0.05
"""In float32 roundings are left: allowed is ten times what one rounding of each initial weight changes on one
device, within these bounds. A gradient jumps where a rounding turns a ReLU on or off: that is rare in a step,
and the median of three draws of the weights has none. Rows of a loss that jumps too (OHEM keeps a pixel or
not, Lovász sorts them) are compared in float64 alone, where five steps are exact."""
Kinds = Mapping[str, float]


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield for each precision and number of replicas the difference that is closest to its limit."""
    if len(bench.numbers) < 2:
        yield Figure("replicas against one device", None, note="one device only")
        return
    bench.start()
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)  # Ampere and later: else three digits
    rows = {
        name: replace(ROWS[name], depth=1) if bench.sizes.tiny else ROWS[name] for name in bench.sizes.rows
    }
    smooth = {name: row for name, row in rows.items() if not row.loss.ohem and not row.loss.lovasz}
    for dtype, compared in (("float64", rows), ("float32", smooth)):
        try:
            yield from _in(bench, compared, dtype)
        except (tf.errors.UnimplementedError, tf.errors.NotFoundError) as error:
            why = str(error).strip().splitlines()[0]
            yield Figure(f"replicas against one device, {dtype}", None, note=f"no kernel for it here: {why}")


def _in(bench: Bench, rows: dict[str, Row], dtype: str) -> Iterator[Figure]:
    exact = dtype == "float64"
    laboratory = Laboratory(
        rows, lambda number: bench.devices(number).strategy, dtype, steps=STEPS if exact else 1
    )
    limits: dict[str, Kinds] = {
        name: dict.fromkeys(KINDS, LIMIT) if exact else _allowed(laboratory.roundings(name)) for name in rows
    }
    for replicas in bench.numbers[1:]:
        draws = (0,) if exact else DRAWS
        differences = {name: _median(laboratory, name, replicas, draws) for name in rows}
        yield _difference(differences, limits, f"{replicas} {bench.device_noun} against one, {dtype}")
    unequal = laboratory.unequal_copies()
    name = f"variables that differ between replicas, {dtype}"
    yield Figure(name, float(unequal), "", "0", unequal == 0, law=True)


def _median(laboratory: Laboratory, name: str, replicas: int, draws: Sequence[int]) -> Kinds:
    drawn = [laboratory.differences(name, replicas, rounded=draw) for draw in draws]
    return {kind: float(np.median([differences[kind] for differences in drawn])) for kind in KINDS}


def _allowed(roundings: Kinds) -> Kinds:
    return {kind: min(max(_LEAST, _ROUNDINGS * change), _MOST) for kind, change in roundings.items()}


def _difference(change: Mapping[str, Kinds], limits: Mapping[str, Kinds], name: str) -> Figure:
    values = [(change[row][kind], limits[row][kind], f"{kind} of {row}") for row in change for kind in KINDS]
    holds = all(value <= limit for value, limit, _ in values)  # not a number is no
    worst, limit, where = max(values, key=lambda entry: (entry[0] != entry[0], entry[0] / entry[1]))
    return Figure(name, worst, "", f"≤ {limit:.0e}", holds, law=True, note=where)
