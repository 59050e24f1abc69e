"""Made diagnoses for the report's tests: drawn class counts, maps and plans, and what follows from them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from segmenter.diagnosis import Diagnosis, facts, report
from segmenter.sampling.forecast import forecast

NAIC = (
    *("water", "road", "building", "airport", "railway station", "photovoltaic panels", "parking lot"),
    *("playground", "farmland", "greenhouse", "grassland", "artificial grassland", "woodland"),
    *("artificial woodland", "bare soil"),
)
NAIC_RATES = (0.3, 0.4, 0.5, 0.01, 0.008, 0.02, 0.1, 0.04, 0.5, 0.05, 0.3, 0.06, 0.4, 0.2, 0.15)
POTSDAM = ("impervious surfaces", "building", "low vegetation", "tree", "car", "clutter")
POTSDAM_RATES = (0.9, 0.55, 0.8, 0.7, 0.35, 0.04)
# Names that would be markup, templates or formulas if they were not text; each on one line already.
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "<b>x</b>",
    "</script><script>alert(2)</script>",
    "%{x} %{customdata}",
    "$\\LaTeX$ and $x^2$",
    "\"quotes\" & 'more' &lt;i&gt;",
    "a<br>b 🌳 <!-- ünïcode",
    "<a href='javascript:alert(3)'>link</a>",
)
BATCHES = (16, 32, 64, 128)

Data = dict[str, Any]


def made_diagnosis(
    names: Sequence[str] = POTSDAM,
    rates: Sequence[float] = POTSDAM_RATES,
    *,
    tiles: int = 1501,
    batches: Sequence[int] = BATCHES,
    maps: int = 3,
    map_names: Sequence[str] = (),
    best_effort: Sequence[int] = (),
    refused: Sequence[int] = (),
    run: int = 0,
    seed: int = 1,
    **more: Any,
) -> Data:
    """A diagnosis of `tiles` tiles that hold class c with probability `rates[c]`.

    Args:
        maps: how many; of odd sizes, some without a place on the ground, some cells without data.
        best_effort: ids that no plan promises.
        refused: batch sizes that have no plan.
        run: lines in the log of a run; 0 for none.
        more: keys of the diagnosis to put in place of the made ones.
    """
    rng = np.random.default_rng(seed)
    K = len(names)
    holds_NK = rng.random((tiles, K)) < np.array(rates)
    counts = holds_NK.sum(axis=0)
    pixels = (counts * rng.integers(60, 9000, K)).tolist()
    colours = [f"#{value:06x}" for value in rng.integers(0, 1 << 24, K).tolist()]
    classes = [
        {"id": c, "name": name, "colour": colours[c], "tiles": int(counts[c]), "pixels": pixels[c],
         "share": pixels[c] / max(1, sum(pixels)), "scenes": min(24, int(counts[c]))}
        for c, name in enumerate(names)
    ]  # fmt: skip
    together = holds_NK.T.astype(int) @ holds_NK.astype(int)
    diagnosis: Data = {
        "version": 1, "dataset": "potsdam", "split": "train", "scenes": 24, "tiles": tiles, "left_out": 7,
        "tile_px": 256, "overlap_px": 32, "min_pixels": 32, "global_batch": None, "classes": classes,
        "tiles_by_classes": np.bincount(holds_NK.sum(axis=1), minlength=K + 1).tolist(),
        "together": together.tolist(),
        "maps": [_map(rng, i, K, rates, map_names) for i in range(maps)], "maps_left_out": 3,
        "forecast": asdict(facts._forecast(forecast(holds_NK, seed=seed), batches)),
        "plans": [_plan(rng, holds_NK, b, best_effort, b in refused) for b in batches],
        "limit": {
            "class": int(counts.argmin()),
            "why": f"{names[int(counts.argmin())]} limits: {counts.min()} tiles hold it.",
            "levers": [
                {"lever": "batch", "text": f"At 128 tiles, {names[0]} needs no repeats."},
                {"lever": "min_pixels", "text": "With 16 pixels instead of 32, 12 more tiles would hold it."},
                {"lever": "label", "text": "Label scenes like top_potsdam_2_10, which has most of it."},
            ],
        },
        "run": _run(rng, K, best_effort, run) if run else None, "scales": None, "samplings": [], "quotas": [],
    }  # fmt: skip
    return {**diagnosis, **more}


def _map(rng: np.random.Generator, i: int, K: int, rates: Sequence[float], names: Sequence[str]) -> Data:
    rows, cols = ((31, 40), (40, 23), (9, 9))[i % 3]
    y, x = np.mgrid[0:rows, 0:cols]
    field_KHW = np.zeros((K, rows, cols))
    for field, rate in zip(field_KHW, rates, strict=True):
        distance = (y - rng.uniform(0, rows)) ** 2 + (x - rng.uniform(0, cols)) ** 2
        field += rate * np.exp(-distance / rng.uniform(20, 300))
    field_KHW[field_KHW < 0.002] = 0
    share = np.where((x + y < 8) & (i % 2 == 1), np.nan, field_KHW / np.maximum(field_KHW.sum(axis=0), 1e-3))
    cells = [[[None if np.isnan(s) else float(s) for s in row] for row in plane] for plane in share]
    on_ground = i % 3 != 2
    return {
        "name": names[i] if i < len(names) else f"top_potsdam_{2 + i // 5}_{10 + i}_RGB",
        "scenes": 1 + 11 * (i % 3 == 2),
        "georeferenced": on_ground, "crs": "EPSG:25833" if on_ground else None,
        "rows": rows, "cols": cols, "share": cells,
        "bounds": [368000.0, 5807000.0, 368000.0 + 7.5 * cols, 5807000.0 + 7.5 * rows] if on_ground else None,
    }  # fmt: skip


def _plan(
    rng: np.random.Generator, holds_NK: NDArray[np.bool_], batch: int, best: Sequence[int], no: bool
) -> Data:
    tiles = len(holds_NK)
    steps = -(-tiles // batch)
    rows = np.resize(rng.permutation(tiles), (steps, batch))
    occurring = np.flatnonzero(holds_NK.any(axis=0)).tolist()
    planned_SK = holds_NK[rows].any(axis=1)
    promised = [c for c in occurring if c not in best]
    planned_SK[:, promised] = True
    short = max([steps - int(holds_NK[:, c].sum()) for c in promised] + [0])
    refused = "no 16 tiles hold all classes; the smallest batch that can is 18" if no else None
    return {
        "batch": batch, "refused": refused, "steps": steps, "coverage_repeats": short + short // 50,
        "repeats_bound": short, "fillers": steps * batch - tiles, "promised": promised,
        "best_effort": list(best), "replicas": 4,
        "plan": _side(np.arange(steps)[:, None], planned_SK, occurring),
        "shuffle": _side(rows, holds_NK, occurring),
    }  # fmt: skip


def _side(rows: NDArray[np.int64], holds: NDArray[np.bool_], occurring: Sequence[int]) -> Data:
    return asdict(facts._side(rows, holds, occurring, ordered=False))


def _run(rng: np.random.Generator, K: int, best: Sequence[int], lines: int) -> Data:
    shares = np.ones((lines, K))
    shares[:, list(best)] = 0.2 + 0.3 * rng.random((lines, len(best)))
    return {
        "path": "runs/potsdam-64", "steps": 25 * lines, "short_steps": 0,
        "promised": [c for c in range(K) if c not in best], "best_effort": list(best),
        "held_share": shares.mean(axis=0).tolist(),
        "tiles_drawn": 1600 * lines, "redrawn": 0.031, "replaced": 0.0004,
        "history": [
            {"step": 25 * i, "epoch": i // 20, "held_share": row} for i, row in enumerate(shares.tolist(), 1)
        ],
    }  # fmt: skip


def from_dict(data: Data) -> Diagnosis:
    """The diagnosis of data of `to_dict`."""
    return TypeAdapter(Diagnosis).validate_python(data)


def html_report(diagnosis: Data) -> str:
    return report.html_report(from_dict(diagnosis))
