"""Stitching: what was cut comes back, and parts that do not fit are refused."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from datasets.commands import call as main
from datasets.stitch import find_parts, stitch
from segmenter.base.errors import DatasetError, run_script
from segmenter.grid.geometry import Size
from tests.helpers.refusals import refused

Make = Callable[..., Path]
ROWS, COLS = (0, 21, 43, 64), (0, 17, 33, 50)


def cut(image: NDArray[Any]) -> list[NDArray[Any]]:
    """3×3 parts, row by row, in thirds that differ by a pixel."""
    return [image[a:b, c:d] for a, b in pairwise(ROWS) for c, d in pairwise(COLS)]


def read(path: Path) -> NDArray[Any]:
    with rasterio.open(path) as file:
        return np.asarray(np.moveaxis(file.read(), 0, 2))


@pytest.mark.parametrize(("dtype", "bands"), [("uint8", 3), ("float32", 4)])
def test_what_was_cut_comes_back(
    tmp_path: Path, make_geotiff: Make, rng: Any, dtype: str, bands: int
) -> None:
    image = rng.integers(0, 255, (64, 50, bands)).astype(dtype)
    parts = [make_geotiff(f"part_{i:03}.tif", p, crs=None) for i, p in enumerate(cut(image))]
    assert stitch(parts, 3, tmp_path / "out.tif", progress=False) == Size(64, 50)
    np.testing.assert_array_equal(read(tmp_path / "out.tif"), image)


def test_palettes_become_colours_whatever_their_order(tmp_path: Path, make_png: Make) -> None:
    first = {0: (10, 20, 30, 255), 1: (200, 100, 50, 255)}
    second = {0: (200, 100, 50, 255), 1: (10, 20, 30, 255)}
    indices = np.arange(12, dtype=np.uint8).reshape(3, 4) % 2
    rgb = np.full((3, 5, 3), 7, np.uint8)
    parts = [
        make_png("a.png", indices, colours=first),
        make_png("b.png", 1 - indices, colours=second),
        make_png("c.png", rgb),
    ]
    stitch(parts, 3, tmp_path / "out.tif", progress=False)
    out = read(tmp_path / "out.tif")
    np.testing.assert_array_equal(out[:, :4], out[:, 4:8])
    np.testing.assert_array_equal(out[:, 8:], rgb)
    assert out[0, 1].tolist() == [200, 100, 50]


def test_georeferencing_and_nodata_stay(tmp_path: Path, make_geotiff: Make, rng: Any) -> None:
    image = rng.integers(0, 3, (64, 50, 2)).astype(np.int16) - 1
    whole = rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000)
    corners = [(row, col) for row in ROWS[:-1] for col in COLS[:-1]]
    parts = [
        make_geotiff(f"{i}.tif", part, transform=whole @ rasterio.Affine.translation(col, row), nodata=-1)
        for i, (part, (row, col)) in enumerate(zip(cut(image), corners, strict=True))
    ]
    stitch(parts, 3, tmp_path / "out.tif", progress=False)
    with rasterio.open(tmp_path / "out.tif") as file:
        assert (file.transform, file.crs.to_epsg(), file.nodata) == (whole, 25833, -1)
    np.testing.assert_array_equal(read(tmp_path / "out.tif"), image)
    with refused(DatasetError, expected="row 21, column 0"):
        stitch([parts[0], parts[2]], 1, tmp_path / "wrong.tif", progress=False)


@pytest.mark.parametrize(
    "changed",
    [
        rasterio.Affine.scale(2),
        rasterio.Affine.scale(1, 2),
        rasterio.Affine.scale(1, -1),
        rasterio.Affine.rotation(10),
    ],
)
def test_a_part_with_other_pixels_at_the_right_place_is_refused(
    changed: Any, tmp_path: Path, make_geotiff: Make
) -> None:
    left = rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000)
    right = left @ rasterio.Affine.translation(6, 0)
    grey = np.ones((5, 6, 1), np.uint8)
    parts = [make_geotiff("a.tif", grey, transform=left), make_geotiff("b.tif", grey, transform=right)]
    assert stitch(parts, 2, tmp_path / "out.tif", progress=False) == Size(5, 12)
    other = make_geotiff("c.tif", grey, transform=right @ changed)
    with refused(DatasetError, where="c.tif"):
        stitch([parts[0], other], 2, tmp_path / "wrong.tif", progress=False)


def test_names_and_transparency_stay(tmp_path: Path, make_geotiff: Make, rng: Any) -> None:
    image = rng.integers(0, 255, (64, 50, 4), np.uint8)
    named: dict[str, Any] = {"crs": None, "descriptions": ("Green", "Blue", "Red", None)}
    parts = [make_geotiff(f"{i}.tif", part, alpha=True, **named) for i, part in enumerate(cut(image))]
    stitch(parts, 3, tmp_path / "out.tif", progress=False)
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.descriptions == named["descriptions"]
        np.testing.assert_array_equal(file.dataset_mask(), image[..., 3])
    np.testing.assert_array_equal(read(tmp_path / "out.tif"), image)
    plain = make_geotiff("plain.tif", image[:21, :17], photometric="minisblack", **named)
    turned_to = {"descriptions": ("Red", "Green", "Blue", None)}
    turned = make_geotiff("turned.tif", image[:21, :17], alpha=True, **named | turned_to)
    for other, got in ((plain, "nodata None"), (turned, "red, green, blue")):
        with refused(DatasetError, where=other.name, got=got):
            stitch([parts[0], other], 1, tmp_path / "wrong.tif", progress=False)


def test_errors(tmp_path: Path, make_geotiff: Make) -> None:
    def part(name: str, shape: tuple[int, ...], dtype: str = "uint8", **options: Any) -> Path:
        return make_geotiff(name, np.ones(shape, dtype), **{"crs": None, **options})

    a, b = part("a.tif", (5, 6, 3)), part("b.tif", (5, 6, 3))
    masked = part("masked.tif", (5, 6, 3), masks=np.eye(5, 6, dtype=np.uint8) * 255)
    out = tmp_path / "out.tif"
    cases = (
        ([a, b, a, part("low.tif", (4, 6, 3))], 2, out, "low.tif: expected 6×5 .* row 2, column 2"),
        ([a, part("wide.tif", (5, 7, 3))], 1, out, "wide.tif: expected 6×5"),
        ([a, part("grey.tif", (5, 6, 1))], 2, out, "grey.tif: expected bands, type .* got 1, uint8"),
        ([a, part("u16.tif", (5, 6, 3), "uint16")], 2, out, "got 3, uint16"),
        ([a, part("placed.tif", (5, 6, 3), crs="EPSG:25833")], 2, out, "expected the CRS of a.tif"),
        ([a, masked], 2, out, "masked.tif: has pixels without data"),
        ([a, b], 2, tmp_path / "out.png", "expected a name that ends in .tif"),
        ([a, b], 2, a, "a.tif: is one of the parts"),
    )
    for parts, columns, output, message in cases:
        with pytest.raises(DatasetError, match=message):
            stitch(parts, columns, output, progress=False)
    assert not out.exists()
    with refused(DatasetError, where="none*", expected="matches"):
        find_parts(str(tmp_path / "none*"))


def test_parts_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    names = ["part_1.png", "part_2.png", "part_10.png"]
    for name in reversed(names):
        (tmp_path / name).touch()
    assert [path.name for path in find_parts(f"{tmp_path}/*.png")] == names


def test_stitch_command(tmp_path: Path, make_geotiff: Make, capsys: pytest.CaptureFixture[str]) -> None:
    for i, part in enumerate(cut(np.ones((64, 50, 3), np.uint8))):
        make_geotiff(f"part_{i}.tif", part, crs=None)
    command = ["stitch", f"{tmp_path}/part_*.tif", "--columns", "3", "--output", str(tmp_path / "o.tif")]
    assert run_script(lambda: main(command)) == 0
    assert "o.tif: 50×64 pixels from 9 parts" in capsys.readouterr().out
    assert run_script(lambda: main(command)) == 2
    assert "o.tif: exists already" in capsys.readouterr().err
    assert run_script(lambda: main([*command, "--overwrite"])) == 0
    capsys.readouterr()
    command[3], command[5] = "4", str(tmp_path / "other.tif")
    assert run_script(lambda: main(command)) == 2
    assert "multiple of 4" in capsys.readouterr().err
