"""Maps on large clusters, by discrete events from measured costs: hours, traffic, what is full first.

A caller deals pieces of a raster's rows to workers in order, three for each; a worker reads its piece from
storage that all share, computes it, and its result waits until those before it came; then the caller writes
it. The costs are those of `studies.map_cluster` on the machine where it was run, but for what a GPU
computes, which is an assumption, as are the links (`docs/machines.md`).
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

CASES = ("scenes", "country")


@dataclass(frozen=True)
class Cluster:
    """What there is, and what it costs.

    Attributes:
        workers: GPUs.
        pixels: of a piece.
        gpu_rate: pixels a second that one computes; so `link_rate` of storage and of the caller's network, in
            bytes a second.
        in_bytes: read for a pixel that is mapped, with halos; `out_bytes`: that come back, compressed.
        write_seconds: of the caller for a pixel: unpacked, compressed into the map, checked.
        deal_seconds: of scheduler and caller for a piece.
        ahead: pieces for each worker that are dealt.
        callers: independent calls on the same scheduler, each with its share of the workers.
    """

    workers: int = 32
    pixels: int = 1 << 24
    gpu_rate: float = 4e6
    storage_rate: float = 2.5e9
    link_rate: float = 1.2e9
    in_bytes: float = 3.6
    out_bytes: float = 0.06
    write_seconds: float = 21e-9
    deal_seconds: float = 5e-3
    ahead: int = 3
    callers: int = 1


@dataclass(frozen=True)
class Simulated:
    """What came of it: seconds, shares of the time that each part was busy, and the most that waited."""

    seconds: float
    gpus: float
    storage: float
    link: float
    caller: float
    dealing: float
    waiting_pieces: int

    @property
    def full(self) -> str:
        """The part that was busy longest."""
        parts = ("gpus", "storage", "link", "caller", "dealing")
        return max(parts, key=lambda name: float(getattr(self, name)))


class _Line:
    """Something that does one thing after the other."""

    def __init__(self) -> None:
        self.free = self.busy = 0.0

    def take(self, now: float, seconds: float) -> float:
        """When it will be done."""
        self.free = max(self.free, now) + seconds
        self.busy += seconds
        return self.free


def simulate(pieces: int, cluster: Cluster, slow: float = 0.1) -> Simulated:
    """One caller with its workers, of which each tenth computes by `slow` more slowly.

    Pieces are given to whichever worker is free first, and written in order.
    """
    storage, link, caller, dealing = (_Line() for _ in range(4))
    free = [(0.0, number) for number in range(cluster.workers)]
    heapq.heapify(free)
    most = cluster.ahead * cluster.workers
    done = _written(pieces, cluster, slow, (storage, link, caller, dealing), free, most)
    waiting = max(done)
    seconds = max(caller.free, 1e-9)
    computing = pieces * cluster.pixels / cluster.gpu_rate / cluster.workers
    busy = [line.busy / seconds for line in (storage, link, caller, dealing)]
    return Simulated(seconds, computing / seconds, busy[0], busy[1], busy[2], busy[3], waiting)


def _written(
    pieces: int,
    cluster: Cluster,
    slow: float,
    lines: tuple[_Line, _Line, _Line, _Line],
    free: list[tuple[float, int]],
    most: int,
) -> Iterator[int]:
    """After each piece that was written, how many had come that wait for earlier ones."""
    storage, link, caller, dealing = lines
    came: list[float] = []  # when each piece's result was here
    written: list[float] = []
    for piece in range(pieces):
        room = written[piece - most] if piece >= most else 0.0
        ready, number = heapq.heappop(free)
        dealt = dealing.take(room, cluster.deal_seconds)
        read = storage.take(max(ready, dealt), cluster.pixels * cluster.in_bytes / cluster.storage_rate)
        rate = cluster.gpu_rate * (1 - slow if number % 10 == 9 else 1)
        computed = max(read, ready + cluster.pixels * cluster.in_bytes / cluster.storage_rate)
        computed += cluster.pixels / rate
        heapq.heappush(free, (computed, number))
        came.append(link.take(computed, cluster.pixels * cluster.out_bytes / cluster.link_rate))
        written.append(caller.take(came[-1], cluster.pixels * cluster.write_seconds))
        yield sum(moment <= written[-1] for moment in came[-most:]) - 1 if piece % 64 == 0 else 0


def case(name: str, cluster: Cluster) -> dict[str, object]:
    """A case of the page, with the pieces shared out among the callers."""
    if name == "scenes":
        total, pieces = 1000 * 10_000**2, 1000 * math.ceil(10_000**2 / cluster.pixels)
        pixels = total // pieces
    else:  # 357,600 km² at 20 cm
        total = int(357_600e6 / 0.2**2)
        pieces, pixels = math.ceil(total / cluster.pixels), cluster.pixels
    share = replace(
        cluster,
        workers=cluster.workers // cluster.callers,
        pixels=pixels,
        storage_rate=cluster.storage_rate / cluster.callers,
    )
    shown = min(pieces // cluster.callers, 20_000)  # it is steady long before
    found = simulate(shown, share)
    hours = found.seconds * (pieces / cluster.callers / shown) / 3600
    return {
        "case": name,
        "callers": cluster.callers,
        "Gpixel": round(total / 1e9, 1),
        "pieces": pieces,
        "read_TB": round(total * cluster.in_bytes / 1e12, 2),
        "sent_GB": round(total * cluster.out_bytes / 1e9, 1),
        "hours": round(hours, 2),
        "busy": {
            part: round(getattr(found, part), 2) for part in ("gpus", "storage", "link", "caller", "dealing")
        },
        "full_first": found.full,
        "results_waiting_MB": round(found.waiting_pieces * share.pixels * cluster.out_bytes / 1e6, 1),
    }


def main() -> None:
    """A line for each case, with one caller and with several, and for faster GPUs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gpu-rates", type=float, nargs="+", default=(1e6, 4e6, 16e6), help="pixels a second"
    )
    parser.add_argument("--callers", type=int, nargs="+", default=(1, 4))
    parser.add_argument("--workers", type=int, default=32)
    parser.add_argument("--write-ns", type=float, default=21, help="of the caller for a pixel")
    given = parser.parse_args()
    for rate in given.gpu_rates:
        for callers in given.callers:
            cluster = Cluster(
                workers=given.workers, gpu_rate=rate, callers=callers, write_seconds=given.write_ns * 1e-9
            )
            for name in CASES:
                found = case(name, cluster)
                print(json.dumps({"benchmark": "cluster_simulation", "gpu_Mpixel_s": rate / 1e6, **found}))


if __name__ == "__main__":
    main()
