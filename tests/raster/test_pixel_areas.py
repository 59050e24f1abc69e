"""Areas on the ground of pixels and polygons, and metres of a pixel, in any CRS; against equal areas."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from rasterio.crs import CRS
from rasterio.transform import Affine
from rasterio.warp import transform

from segmenter.grid.geometry import Window
from segmenter.raster import RasterInfo, RasterSpec, pixel_sides, raster_info, write_raster
from segmenter.raster.pixel_areas import pixel_areas

HEIGHT, WIDTH = 41, 67
PLACES = [  # PROJ inverts Robinson to centimetres, with steps at each 5 degrees: large pixels
    ("EPSG:4087", 10, 60, 20.0),
    ("ESRI:54001", -70, -55, 20.0),
    ("ESRI:54030", 60, 61, 500.0),
    ("ESRI:54019", 10, 63, 20.0),
    ("EPSG:3413", -45, 60, 20.0),
    ("EPSG:3413", 100, 75, 5000.0),
    ("EPSG:3031", 100, -75, 20.0),
    ("EPSG:3034", 15, 38, 20.0),
    ("EPSG:3034", 15, 50, 9000.0),
    ("ESRI:102004", -80, 27, 20.0),
    ("EPSG:25832", 9, 50, 2.0),
    ("EPSG:25832", 16, 50, 20.0),
    ("EPSG:2263", -74, 41, 2.0),
    ("EPSG:4326", 10, 60, 0.001),
    ("EPSG:4326", 10, 10, 1.0),
    ("EPSG:4267", -100, 40, 0.001),
    ("EPSG:3857", 10, 60, 20.0),
    ("EPSG:3035", 15, 45, 20.0),
    ("EPSG:6933", 15, 60, 20.0),
]
_STRETCHED = ("EPSG:4087", "ESRI:54001", "ESRI:54019", "EPSG:6933", "EPSG:4326", "EPSG:4267")
"""CRSs that stretch one direction: turned pixels are rhomboids on the ground; Robinson's are always."""
TURNED = {
    "north-up": Affine.scale(1, -1),
    "south-up": Affine.scale(1, 1),
    "rotated": Affine.rotation(33) @ Affine.scale(1, -1),
    "oblong": Affine.scale(3, -1),
}


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> RasterInfo:
    """The header of any raster of that size."""
    path: Path = tmp_path_factory.mktemp("areas") / "a.tif"
    write_raster(path, np.zeros((HEIGHT, WIDTH), np.uint8), RasterSpec())
    return raster_info(path)


def placed(header: RasterInfo, name: str, lon: float, lat: float, move: Affine) -> RasterInfo:
    """The header with its middle at a place."""
    crs = CRS.from_user_input(name)
    x, y = transform("EPSG:4326", crs, [lon], [lat])
    middle = Affine.translation(-WIDTH / 2, -HEIGHT / 2)
    return replace(header, crs=crs, transform=Affine.translation(x[0], y[0]) @ move @ middle)


def ground(info: RasterInfo, corners: Any) -> float:
    """The area of a polygon of (column, row) corners in an equal-area projection."""
    x, y = zip(*(info.transform @ corner for corner in corners), strict=True)
    return float(shapely.Polygon(np.transpose(transform(info.crs, "EPSG:6933", x, y))).area)


def cell(row: int, col: int, height: int = 1, width: int = 1) -> list[tuple[int, int]]:
    return [(col, row), (col + width, row), (col + width, row + height), (col, row + height)]


@pytest.mark.parametrize("turned", TURNED)
@pytest.mark.parametrize(("name", "lon", "lat", "side"), PLACES)
def test_areas_are_right_to_a_thousandth_and_metres_to_a_hundredth(
    header: RasterInfo, tmp_path: Path, name: str, lon: float, lat: float, side: float, turned: str
) -> None:
    info = placed(header, name, lon, lat, TURNED[turned] @ Affine.scale(side))
    areas = pixel_areas(info)
    assert areas is not None
    rows, cols = np.array([0, 3, HEIGHT // 2, HEIGHT - 1]), np.array([WIDTH - 1, 11, WIDTH // 2, 0])
    expected = [ground(info, cell(row, col)) for row, col in zip(rows.tolist(), cols.tolist(), strict=True)]
    np.testing.assert_allclose(areas.at(rows, cols), expected, rtol=1e-3)
    of_window = np.broadcast_to(areas.of(Window(2, 5, 30, 40)), (30, 40))
    np.testing.assert_allclose(of_window[1, 6], areas.at(rows[1:2], cols[1:2])[0], rtol=1e-12)
    file = tmp_path / "a.tif"
    write_raster(
        file, np.zeros((HEIGHT, WIDTH), np.uint8), RasterSpec(crs=info.crs, transform=info.transform)
    )
    written = raster_info(file)
    assert written.metres_per_pixel == pytest.approx(expected[2] ** 0.5, rel=0.01)
    if name != "ESRI:54030" and (turned != "rotated" or name not in _STRETCHED):
        assert np.prod(pixel_sides(written)) == pytest.approx(expected[2], rel=0.02)


def test_areas_of_polygons_are_those_of_their_pixels(header: RasterInfo) -> None:
    vectorise = pytest.importorskip(
        "segmenter.extras.vectors.vectorise", reason="the extra vectors is not here"
    )
    seam = [("EPSG:4326", 180, -17, 1e-4), ("EPSG:3857", 180, -17, 10.0), ("EPSG:3395", 180, 60, 10.0)]
    whole = [("EPSG:4326", 180, 10, 360 / WIDTH / 3), ("EPSG:3832", 180, 60, 20.0)]
    for name, lon, lat, side in PLACES + seam + whole:
        info = placed(header, name, lon, lat, Affine.scale(side, -side))
        areas = pixel_areas(info)
        assert areas is not None
        window = Window(5, 7, 20, 30)
        expected = float(np.broadcast_to(areas.of(window), (20, 30)).sum())
        shapes = np.array([shapely.Polygon(cell(5, 7, 20, 30)), shapely.Polygon(cell(5, 7))])
        found = vectorise.square_metres(vectorise.on_the_ground(shapes, info), info)
        one = areas.at(np.array([5]), np.array([7]))[0]
        np.testing.assert_allclose(found, [expected, one], rtol=1e-3, err_msg=name)


def test_a_raster_over_the_pole_and_the_180th_meridian_has_areas_everywhere(header: RasterInfo) -> None:
    for name, lon, lat in (("EPSG:3413", 0, 90), ("EPSG:4087", 180, 20), ("EPSG:3995", 180, 70)):
        areas = pixel_areas(placed(header, name, lon, lat, Affine.scale(1000, -1000)))
        assert areas is not None
        found = areas.of(Window(0, 0, HEIGHT, WIDTH))
        assert np.isfinite(found).all()
        assert found.max() < 1.1 * found.min(), name  # without a seam


def test_the_area_of_the_earth_is_that_of_its_pixels(header: RasterInfo) -> None:
    """On WGS 84 510,065,621.7 km²; of the Mollweide and Robinson projections only what lies in them."""
    side = 360 / WIDTH
    info = placed(header, "EPSG:4326", 0, 0, Affine.scale(side, -180 / HEIGHT))
    areas = pixel_areas(info)
    assert areas is not None
    whole = float(np.broadcast_to(areas.of(Window(0, 0, HEIGHT, WIDTH)), (HEIGHT, WIDTH)).sum())
    assert whole == pytest.approx(510_065_621.7e6, rel=1e-3)
    vectorise = pytest.importorskip(
        "segmenter.extras.vectors.vectorise", reason="the extra vectors is not here"
    )
    for lon in (0, 180):
        info = placed(header, "EPSG:4326", lon, 0, Affine.scale(side, -180 / HEIGHT))
        all_of_it = np.array([shapely.Polygon(cell(0, 0, HEIGHT, WIDTH))])
        found = vectorise.square_metres(vectorise.on_the_ground(all_of_it, info), info)
        assert found[0] == pytest.approx(510_065_621.7e6, rel=1e-6)
    crs = CRS.from_user_input("ESRI:54030")
    (x, _), (_, y) = transform("EPSG:4326", crs, [180, 0], [0, 90])
    info = placed(header, "ESRI:54030", 0, 0, Affine.scale(2 * x / WIDTH, -2 * y / HEIGHT))
    areas = pixel_areas(info)
    assert areas is not None
    assert np.isfinite(areas.of(Window(0, 0, HEIGHT, WIDTH))).all()


def test_without_ground_there_are_no_areas(header: RasterInfo) -> None:
    assert pixel_areas(header) is None
    local = CRS.from_user_input('LOCAL_CS["made",UNIT["metre",1]]')
    assert pixel_areas(replace(header, crs=local, transform=Affine.scale(1, -1))) is None
    metres_as_degrees = Affine(0.5, 0, 368_000, 0, -0.5, 5_808_000)
    assert pixel_areas(replace(header, crs=CRS.from_epsg(4326), transform=metres_as_degrees)) is None
