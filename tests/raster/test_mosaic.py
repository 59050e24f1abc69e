"""Adjoining files are one raster: a scene cut into files gives the map of the uncut one, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.transform import Affine

from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Size, Window
from segmenter.inference.blending import Blend
from segmenter.inference.prediction import ExtraOutputs
from segmenter.inference.predictor import Mapped, Tiling, classify_all
from segmenter.raster import RasterSpec, open_raster, write_raster
from segmenter.raster.mosaic import Mosaic
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map, exact_network, fake_run, run_predict

GRIDS = {
    "north-up": Affine(0.5, 0, 368000, 0, -0.5, 5808000),
    "south-up": Affine(2, 0, 100, 0, 2, 50),
    "rotated": Affine(1.7, 0.5, 100, 1.0, -0.9, 200),
}
ROWS, COLS = (0, 61, 64, 131), (0, 77, 203)


class FileJob:
    """One file of a mosaic, or the uncut scene."""

    columns, done_rows, abandoned = None, 0, False

    def __init__(self, open_it: Callable[[], Any], size: Size) -> None:
        self.open, self.part = open_it, Window.of(size)


def cut(
    folder: Path, image: NDArray[Any], grid: Affine, rows: Sequence[int] = ROWS, cols: Sequence[int] = COLS
) -> dict[Path, Window]:
    """A scene cut into files, in no particular order."""
    files = {}
    for top, bottom in itertools.pairwise(rows):
        for left, right in itertools.pairwise(cols):
            path = folder / f"{right}_{bottom}.tif"
            place = grid @ Affine.translation(left, top)
            write_raster(
                path,
                image[top:bottom, left:right],
                RasterSpec(crs=rasterio.CRS.from_epsg(25833), transform=place),
            )
            files[path] = Window(top, left, bottom - top, right - left)
    return files


def maps(jobs: Sequence[FileJob], tiling: Tiling) -> list[NDArray[Any]]:
    """Class and confidence of every job."""
    found = {id(job): np.zeros((job.part.height, job.part.width, 2), np.uint8) for job in jobs}
    for event in classify_all(jobs, tiling, exact_network(5, 8, wanted=ExtraOutputs(confidence=True))):
        if isinstance(event, Mapped):
            into = found[id(event.job)][event.window.slices()]
            into[..., 0], into[..., 1] = event.ids, event.prediction.confidence
    return [found[id(job)] for job in jobs]


@pytest.mark.parametrize("grid", GRIDS.values(), ids=GRIDS)
@pytest.mark.parametrize("blend", [None, Blend(50)], ids=["exact", "smooth"])
@pytest.mark.parametrize("side", [40, 72, 400])
def test_cut_is_uncut(
    tmp_path: Path, rng: np.random.Generator, grid: Affine, blend: Blend | None, side: int
) -> None:
    image = rng.integers(0, 255, (131, 203, 2), np.uint8)
    write_raster(tmp_path / "whole.tif", image, RasterSpec(transform=grid))
    files = cut(tmp_path, image, grid)
    tiling = Tiling(Size(side, side), 0 if blend else 12, 8, 3, blend)
    (whole,) = maps([FileJob(lambda: open_raster(tmp_path / "whole.tif"), Size(131, 203))], tiling)
    mosaic = Mosaic(list(files)[::-1], open_raster)
    jobs = [FileJob(lambda path=path: mosaic.view(path), window.size) for path, window in files.items()]
    for found, window in zip(maps(jobs, tiling), files.values(), strict=True):
        np.testing.assert_array_equal(found, whole[window.slices()])
    alone = [FileJob(lambda path=path: open_raster(path), window.size) for path, window in files.items()]
    cut_apart = zip(maps(alone, tiling), files.values(), strict=True)
    assert any((found != whole[window.slices()]).any() for found, window in cut_apart)


def test_a_gap_between_files_holds_no_data(tmp_path: Path, rng: np.random.Generator) -> None:
    image = rng.integers(0, 255, (131, 203, 2), np.uint8)
    files = cut(tmp_path, image, GRIDS["north-up"])
    missing = list(files)[2]
    hole = files.pop(missing)
    valid = np.ones((131, 203), np.bool_)
    valid[hole.slices()] = False
    expected = exact_map(image, valid, 5, 8)
    mosaic = Mosaic(list(files), open_raster)
    jobs = [FileJob(lambda path=path: mosaic.view(path), window.size) for path, window in files.items()]
    for found, window in zip(maps(jobs, Tiling(Size(48, 48), 12, 8, 2)), files.values(), strict=True):
        np.testing.assert_array_equal(found[..., 0], expected[window.slices()])


def test_neighbours_are_those_within_reach(tmp_path: Path) -> None:
    files = cut(tmp_path, np.ones((131, 203, 1), np.uint8), GRIDS["north-up"])
    mosaic = Mosaic(list(files), open_raster)
    near = {path.stem for path, _ in mosaic.neighbours(tmp_path / "77_61.tif", 3)}
    assert near == {"77_64", "203_61", "203_64"}
    assert len(mosaic.neighbours(tmp_path / "77_61.tif", 4)) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"transform": Affine(0.5, 0, 50.2, 0, -0.5, 0)},
            r"b.tif lies up to 0.4 pixels off the grid of .*a.tif",
        ),
        ({"transform": Affine(0.51, 0, 50, 0, -0.5, 0)}, r"b.tif lies up to \S+ pixels off the grid of"),
        ({"transform": Affine(0, 0.5, 50, 0.5, 0, 0)}, r"b.tif lies up to \S+ pixels off the grid of"),
        ({"crs": "EPSG:32633"}, "b.tif has EPSG:32633, .*a.tif EPSG:25833"),
        ({"transform": None, "crs": None}, "b.tif has no geotransform"),
        ({"dtype": "uint16"}, "b.tif has uint16, .*a.tif uint8"),
        ({"transform": Affine(0.5, 0, 49, 0, -0.5, 0)}, r"a.tif and \S*b.tif overlap by 2×100 pixels"),
    ],
    ids=["shifted", "larger pixels", "turned", "other CRS", "nowhere", "other type", "overlapping"],
)
def test_files_that_do_not_fit_are_refused_in_one_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    usual = {"crs": "EPSG:25833", "transform": Affine(0.5, 0, 50, 0, -0.5, 0), "dtype": "uint8"}
    for name, options in (
        ("a", {**usual, "transform": Affine(0.5, 0, 0, 0, -0.5, 0)}),
        ("b", {**usual, **change}),
    ):
        dtype, crs = options.pop("dtype"), options.pop("crs")
        crs = crs and rasterio.CRS.from_string(crs)
        write_raster(tmp_path / f"{name}.tif", np.ones((100, 100), dtype), RasterSpec(crs=crs, **options))
    with pytest.raises(DatasetError, match=f"^--mosaic: expected files .*{message}") as caught:
        Mosaic([tmp_path / "a.tif", tmp_path / "b.tif"], open_raster)
    assert "\n" not in str(caught.value)


def test_predict_with_mosaic_writes_a_map_for_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_classes: Any, rng: np.random.Generator, capsys: Any
) -> None:
    image = rng.integers(0, 255, (131, 203, 3), np.uint8)
    (tmp_path / "in").mkdir()
    files = cut(tmp_path / "in", image, GRIDS["north-up"])
    expected = exact_map(image, np.ones((131, 203), np.bool_), RADIUS, STRIDE)
    run = fake_run(make_classes(7))
    assert run_predict(monkeypatch, run, tmp_path / "in", "--output", tmp_path / "maps", "--mosaic") == 0
    for path, window in files.items():
        with rasterio.open(tmp_path / "maps" / path.name) as found, rasterio.open(path) as source:
            np.testing.assert_array_equal(found.read(1), expected[window.slices()])
            assert found.transform == source.transform
    write_raster(tmp_path / "in" / "odd.tif", image, RasterSpec(transform=Affine(1, 0, 0, 0, -1, 0)))
    assert run_predict(monkeypatch, run, tmp_path / "in", "--output", tmp_path / "maps", "--mosaic") == 2
    assert "error: --mosaic: expected files of one CRS, grid and type" in capsys.readouterr().err


def test_a_changed_file_changes_its_neighbours_maps_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_classes: Any, rng: np.random.Generator, capsys: Any
) -> None:
    image = rng.integers(0, 255, (400, 64, 3), np.uint8)
    (tmp_path / "in").mkdir()
    files = cut(tmp_path / "in", image, GRIDS["north-up"], rows=(0, 100, 200, 300, 400), cols=(0, 64))
    run = fake_run(make_classes(7))
    call = (tmp_path / "in", "--output", tmp_path / "maps", "--mosaic")
    assert run_predict(monkeypatch, run, *call) == 0
    first, changed = next(iter(files)), image.copy()
    changed[:100] = 255 - image[:100]
    with rasterio.open(first) as file:
        crs, place = file.crs, file.transform
    write_raster(first, changed[:100], RasterSpec(crs=crs, transform=place))
    capsys.readouterr()
    assert run_predict(monkeypatch, run, *call) == 0
    assert "2 of 4 maps are finished and unchanged" in capsys.readouterr().out
    expected = exact_map(changed, np.ones((400, 64), np.bool_), RADIUS, STRIDE)
    for path, window in files.items():
        with rasterio.open(tmp_path / "maps" / path.name) as found:
            np.testing.assert_array_equal(found.read(1), expected[window.slices()])
    capsys.readouterr()
    assert run_predict(monkeypatch, run, *call[:-1]) == 0  # each file alone is another map
    assert "finished and unchanged" not in capsys.readouterr().out
