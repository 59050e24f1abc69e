"""Coverage of the 95 % intervals of `accuracy estimate` over made maps with pixels of unlike size.

    python -m studies.accuracy_intervals [--draws 2000] [--seeds 100]

Each line has maps of equal areas, 95 and 80 % right where nothing else is said. A class is a stratum, and each
pixel's reference class is drawn once with its map's accuracy. Samples are drawn by the program's own `StratumTally`,
`Reservoirs` and `estimates`; "drawn alike" draws the pixels of a stratum with one probability, as was done
before. The last line runs `accuracy sample` and `accuracy estimate` on two files, pixels of 1 m and of 10 m, for
`--seeds` seeds; 0 leaves it out.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray
from rasterio.transform import from_origin

from segmenter.extras.accuracy import covers
from segmenter.extras.accuracy.covers import Reservoirs
from segmenter.extras.accuracy.estimators import Estimates, Estimate, PointSample, estimates
from segmenter.extras.accuracy.request import SampleRequest
from segmenter.extras.accuracy.sampling import SamplePlan, sample
from segmenter.extras.accuracy.tables import read_labelled
from segmenter.extras.accuracy.tally import PixelSizes, StratumTally
from segmenter.grid.geometry import Window
from segmenter.raster.pixel_areas import PixelAreas


@dataclass(frozen=True, eq=False)
class Made:
    """Maps in memory: (1, N) class, reference class and area of the pixels of each map."""

    mapped: list[NDArray[np.int64]]
    reference: list[NDArray[np.int64]]
    areas: list[PixelAreas]
    classes: int

    def truth(self) -> NDArray[np.float64]:
        """Return overall accuracy, share of the last class, and its user's accuracy."""
        mapped, reference = (np.concatenate(each, axis=1)[0] for each in (self.mapped, self.reference))
        size = np.concatenate(
            [
                np.broadcast_to(areas.of(window_of(ids)), ids.shape)[0]
                for areas, ids in zip(self.areas, self.mapped, strict=True)
            ]
        )
        last = self.classes - 1
        hits = size[(mapped == last) & (reference == last)].sum()
        shares = size[mapped == reference].sum(), size[reference == last].sum()
        return np.array([*(share / size.sum() for share in shares), hits / size[mapped == last].sum()])


def window_of(ids: NDArray[np.int64]) -> Window:
    """Return the window of all pixels of a map."""
    return Window(0, 0, 1, ids.shape[1])


def made(rng: np.random.Generator, sizes: list[Any], accuracies: list[float], parts: list[float]) -> Made:
    """Return maps.

    Args:
        sizes: of each map, the area of a pixel, or of each.
        parts: share of each class.
    """
    mapped, reference, areas = [], [], []
    for size, accuracy in zip(sizes, accuracies, strict=True):
        each = np.atleast_1d(np.asarray(size, np.float64))
        count = len(each) if len(each) > 1 else round(TOTAL / float(each[0]))
        ids = rng.choice(len(parts), (1, count), p=parts)
        other = (ids + rng.integers(1, len(parts), ids.shape)) % len(parts)
        mapped.append(ids)
        reference.append(np.where(rng.random(ids.shape) < accuracy, ids, other))
        nodes = np.arange(len(each), dtype=np.float64)
        areas.append(PixelAreas(np.zeros(1), nodes, each[np.newaxis], plane=True))
    return Made(mapped, reference, areas, len(parts))


TOTAL = 100_000.0
"""Area of a map, in fine pixels."""
WINDOW = 1 << 13
"""Pixels of a window."""


@dataclass(frozen=True, eq=False)
class Drawing:
    """Samples of maps, by area or alike."""

    maps: Made
    tally: StratumTally
    points_H: NDArray[np.int64]
    by_area: bool

    @staticmethod
    def of(maps: Made, plan: Any, *, by_area: bool) -> Drawing:
        """Return samples of the points `plan(tally)` of each stratum."""
        tally = StratumTally(PixelSizes(maps.areas), np.zeros(maps.classes, np.int64), np.zeros(maps.classes))
        for ids, areas in zip(maps.mapped, maps.areas, strict=True):
            tally.add(ids, ids, areas.of(window_of(ids)))
        return Drawing(maps, tally, plan(tally), by_area)

    def sample(self, seed: int) -> Estimates:
        """Return the estimates of one sample."""
        maps, tally = self.maps, self.tally
        chances, kept = tally.chances(self.points_H), Reservoirs(maps.classes, self.points_H, seed)
        for number, (ids, areas) in enumerate(zip(maps.mapped, maps.areas, strict=True)):
            for first in range(0, ids.shape[1], WINDOW):
                part = ids[:, first : first + WINDOW]
                window = Window(0, first, *part.shape)
                chance = chances.of(part, areas.of(window)) if self.by_area else None
                kept.add(number, window, part, part, chance)
        pixels = kept.sample(self.points_H)
        size, reference = np.zeros(len(pixels)), np.zeros(len(pixels), np.int64)
        for number, areas in enumerate(maps.areas):
            of = pixels.raster == number
            size[of] = areas.at(pixels.row[of], pixels.col[of])
            reference[of] = maps.reference[number][0, pixels.col[of]]
        names = tuple(map(str, range(maps.classes)))
        probability = chances.of(pixels.stratum, size) if self.by_area else None
        found = PointSample(
            classes=names,
            strata=names,
            area_H=tally.area_H,
            pixels_H=tally.pixels_H,
            stratum_N=pixels.stratum,
            mapped_N=pixels.mapped,
            reference_N=reference,
            size_N=size,
            mapped_area_K=tally.mapped_area_K,
            probability_N=probability,
        )
        return estimates(found)


def holds(figure: Estimate, truth: float) -> bool:
    """Return whether an interval holds the truth."""
    return figure.low <= truth <= figure.high


def coverage(maps: Made, plan: Any, draws: int, *, by_area: bool) -> NDArray[np.float64]:
    """Return the share of samples whose intervals hold the figures of `Made.truth`."""
    truth, last = maps.truth(), maps.classes - 1
    found, drawing = [], Drawing.of(maps, plan, by_area=by_area)
    for seed in range(draws):
        one = drawing.sample(seed)
        found.append(
            [
                holds(*pair)
                for pair in zip((one.overall, one.shares[last], one.users[last]), truth, strict=True)
            ]
        )
    return np.mean(found, axis=0)


def proportional(points: int) -> Any:
    """Return a plan in proportion to area."""

    def plan(tally: StratumTally) -> NDArray[np.int64]:
        spread = np.full(len(tally.area_H), 0.4)
        return SamplePlan(tally.area_H, tally.pixels_H, spread, "proportional").points(points)

    return plan


def each(points: int) -> Any:
    """Return a plan of so many points for each stratum."""
    return lambda tally: np.full(len(tally.area_H), points)


def lines() -> list[tuple[str, Made, Any]]:
    """Return title, maps and plan of each line."""
    rng = np.random.default_rng(57)
    degrees = np.cos(np.radians(np.repeat(np.linspace(0.5, 74.5, 75), 1000)))
    two, four, six = [0.5, 0.5], [0.4, 0.3, 0.2, 0.1], [0.3, 0.25, 0.2, 0.1, 0.1, 0.05]
    return [
        ("alike, 600 points", made(rng, [1, 1], [0.95, 0.8], two), proportional(600)),
        ("1:100, 95 and 80 % right, 600 points", made(rng, [1, 100], [0.95, 0.8], two), proportional(600)),
        ("1:100, 95 and 70 % right, 600 points", made(rng, [1, 100], [0.95, 0.7], two), proportional(600)),
        ("1:100, 95 and 90 % right, 600 points", made(rng, [1, 100], [0.95, 0.9], two), proportional(600)),
        ("1:100, 4 strata × 150", made(rng, [1, 100], [0.95, 0.8], four), each(150)),
        ("1:25, 6 strata × 50", made(rng, [1, 25], [0.95, 0.8], six), each(50)),
        ("1:16, 6 strata × 100", made(rng, [1, 16], [0.95, 0.8], six), each(100)),
        ("1:4:1600, 600 points", made(rng, [1, 4, 1600], [0.95, 0.9, 0.8], four), proportional(600)),
        ("degrees, 0 to 75° north, 600 points", made(rng, [degrees], [0.85], four), proportional(600)),
    ]  # fmt: skip


def end_to_end(seeds: int) -> float:
    """Return the share of samples of two files whose interval of overall accuracy holds the truth."""
    rng, truth, right, held = np.random.default_rng(0), {}, 0, 0
    for name, side, metres, wrong in (("fine", 1000, 1, 0.05), ("coarse", 100, 10, 0.2)):
        ids = np.zeros((side, side), np.uint8)
        ids[:, side // 2 :] = 1
        truth[name] = np.where(rng.random(ids.shape) < wrong, 1 - ids, ids)
        right += int((truth[name] == ids).sum()) * metres**2
        move = from_origin(5e5 if name == "fine" else 5.1e5, 5e6, metres, metres)
        shape = {
            "driver": "GTiff",
            "width": side,
            "height": side,
            "count": 1,
            "dtype": "uint8",
            "nodata": 255,
        }
        with rasterio.open(f"{name}.tif", "w", crs="EPSG:32632", transform=move, **shape) as file:
            file.write(ids, 1)
            file.update_tags(CLASS_0="field", CLASS_1="wood", CODE_0="0", CODE_1="1")
    for seed in range(seeds):
        Path("p.gpkg").unlink(missing_ok=True)
        maps = (Path("fine.tif"), Path("coarse.tif"))
        sample(SampleRequest(maps=maps, output=Path("p.gpkg"), points=600, seed=seed))
        with sqlite3.connect("p.gpkg") as file:
            triggers = file.execute("select name from sqlite_master where type = 'trigger'").fetchall()
            for (trigger,) in triggers:
                file.execute(f'drop trigger "{trigger}"')
            rows = file.execute("select fid, map, row, col from points").fetchall()
            labels = [(("field", "wood")[truth[name[:-4]][row, col]], fid) for fid, name, row, col in rows]
            file.executemany("update points set reference = ? where fid = ?", labels)
        file.close()
        held += holds(estimates(read_labelled(Path("p.gpkg"), None, None)[0]).overall, right / 2e6)
    return held / seeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=100)
    given = parser.parse_args()
    covers._SLACK = WINDOW  # pixels that are not among the smallest are dropped early
    print("| pixel areas and points | drawn alike: overall | by area: overall | share | user's |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for title, maps, plan in lines():
        old = coverage(maps, plan, given.draws, by_area=False)
        new = coverage(maps, plan, given.draws, by_area=True)
        print(f"| {title} | {' | '.join(f'{100 * share:.1f} %' for share in (old[0], *new))} |", flush=True)
    if given.seeds:
        os.environ["TQDM_DISABLE"] = "1"
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            share = end_to_end(given.seeds)
        print(f"| 1 m and 10 m, by command, {given.seeds} seeds |  | {100 * share:.1f} % |  |  |")


if __name__ == "__main__":
    main()
