"""Equivalence, law 2, on these devices: R replicas against one, in float64, and in float32 without TF32.

Rows of the matrix of `benchmarks.equivalence`; after each, all replicas' copies of all variables are
compared bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.figures import Figure
from tests.helpers.equivalence_matrix import KINDS, LIMIT, ROWS, Laboratory, Row

LIMITS = {"float64": LIMIT, "float32": 2e-3}
"""In float32, rounding is what is left; it is amplified by five steps. Rows of a loss whose gradient jumps
(OHEM keeps a pixel or does not, Lovász sorts them) are compared in float64 alone: in float32 roundings decide
about whole pixels."""


def figures(bench: Bench) -> Iterator[Figure]:
    """For each precision and number of replicas, the largest difference over rows and kinds."""
    if len(bench.numbers) < 2:
        yield Figure("replicas against one device", None, note="one device only")
        return
    bench.start()
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)  # Ampere and later: else three digits
    rows = {
        name: replace(ROWS[name], depth=1) if bench.sizes.tiny else ROWS[name] for name in bench.sizes.rows
    }
    for dtype, limit in LIMITS.items():
        if dtype == "float32":
            rows = {name: row for name, row in rows.items() if not row.loss.ohem and not row.loss.lovasz}
        try:
            yield from _in(bench, rows, dtype, limit)
        except (tf.errors.UnimplementedError, tf.errors.NotFoundError) as error:
            why = str(error).strip().splitlines()[0]
            yield Figure(f"replicas against one device, {dtype}", None, note=f"no kernel for it here: {why}")


def _in(bench: Bench, rows: dict[str, Row], dtype: str, limit: float) -> Iterator[Figure]:
    laboratory = Laboratory(rows, lambda number: bench.devices(number).strategy, dtype)
    for replicas in bench.numbers[1:]:
        found = {name: laboratory.differences(name, replicas) for name in rows}
        yield _difference(found, f"{replicas} {bench.said} against one, {dtype}", limit)
    unequal = laboratory.unequal_copies()
    name = f"variables that differ between replicas, {dtype}"
    yield Figure(name, float(unequal), "", "0", unequal == 0, law=True)


def _difference(found: dict[str, dict[str, float]], name: str, limit: float) -> Figure:
    values: list[tuple[float, Any]] = [(found[row][kind], (row, kind)) for row in found for kind in KINDS]
    holds = all(value <= limit for value, _ in values)  # not a number is no
    worst, (row, kind) = max(values, key=lambda pair: (pair[0] != pair[0], pair[0]))
    return Figure(name, worst, "", f"≤ {limit:.0e}", holds, law=True, note=f"{kind} of {row}")
