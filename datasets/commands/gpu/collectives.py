"""Collectives: latency of chained small sums, as in BatchNorm, and bandwidth of the gradients' sum.

A collective takes α + 2 (R − 1) / R · bytes / β, β being the bus bandwidth of NCCL's tests.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from .bench import Bench
from .figures import Figure, spread

SMALL = 1024
"""float32 elements: as many as a BatchNorm layer of 512 channels sends."""
COLLECTIVES = ("CollectiveReduceV2", "CollectiveReduceV3", "CollectiveGatherV2", "NcclAllReduce")
LATENCY, BUS = "latency of a small sum, {} replicas", "bandwidth of the large sum, {} replicas"


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield latency and bandwidth of all devices."""
    devices, sizes, replicas = bench.devices(), bench.sizes, bench.replicas
    small, kinds = chain(devices, SMALL, sizes.chain)
    large, _ = chain(devices, sizes.gradients, 2)
    timed = [(small(), large()) for _ in range(sizes.rounds)]
    latencies = [1e6 * a / sizes.chain for a, _ in timed]
    buses = [_bus(4 * sizes.gradients, b / 2, a / sizes.chain, replicas) / 1e9 for a, b in timed]
    note = f"{spread(latencies, 'µs')}; {kinds}"
    yield Figure(LATENCY.format(replicas), median(latencies), "µs", note=note)
    note = f"{spread(buses, 'GB/s')}; {4 * sizes.gradients / 1e6:.1f} MB"
    yield Figure(BUS.format(replicas), median(buses), "GB/s", note=note, told=True)


def _bus(size: int, seconds: float, latency: float, replicas: int) -> float:
    """Return bytes a second: the formula, solved for β; latency is at most half of a time."""
    return 2 * (replicas - 1) / replicas * size / max(seconds - latency, seconds / 2)


def chain(devices: Any, size: int, length: int) -> tuple[Callable[[], float], str]:
    """Return a function that times `length` sums, each of the previous result, and the kinds of sums."""
    import tensorflow as tf

    strategy = devices.strategy

    @tf.function
    def sums() -> Any:
        def replica() -> Any:
            context, x = tf.distribute.get_replica_context(), tf.ones([size])
            for _ in range(length):
                x = context.all_reduce(tf.distribute.ReduceOp.SUM, x / context.num_replicas_in_sync)
            return x[0]

        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(replica), axis=None)

    nodes = collective_nodes(sums.get_concrete_function())
    for _ in range(2):  # compiles, and connects
        float(sums())

    def timed() -> float:
        started = time.perf_counter()
        total = float(sums())
        seconds = time.perf_counter() - started
        assert abs(total - devices.replicas) < 1e-3, total
        return seconds

    return timed, ", ".join(sorted(nodes)) or "no collective: sums by copies"


def collective_nodes(function: Any) -> Counter[str]:
    """Count the collectives of each kind and implementation (such as NCCL) in a concrete function."""
    return Counter(
        f"{node.op} {node.attr['communication_hint'].s.decode()}".strip()
        for node in nodes_of(function)
        if node.op in COLLECTIVES
    )


def nodes_of(function: Any) -> Iterator[Any]:
    graph = function.graph.as_graph_def()
    yield from graph.node
    for called in graph.library.function:
        yield from called.node_def
