"""Ground of rasters: metres a pixel of any CRS, never a wrong number; rectangles that meet."""

import math
from pathlib import Path

import numpy as np
import pytest
from rasterio.crs import CRS
from rasterio.transform import Affine

from segmenter.grid.geometry import Size
from segmenter.raster import RasterInfo, RasterSpec, pixel_sides, raster_info, write_raster
from segmenter.raster.ground import meeting

DEGREE, GRAD = math.pi / 180, math.pi / 200


def geographic(radius: float, flat: float = 0.0, unit: str = "degree", radians: float = DEGREE) -> str:
    """A geographic CRS as WKT; `flat` is the inverse flattening, 0 for a sphere."""
    return (
        f'GEOGCS["made",DATUM["made",SPHEROID["made",{radius!r},{flat!r}]],PRIMEM["made",0],'
        f'UNIT["{unit}",{radians!r}]]'
    )


def projected(unit: str, metres: float) -> str:
    """Transverse Mercator as WKT, in units of so many metres."""
    return (
        f'PROJCS["made",{geographic(6378137.0, 298.257223563)},PROJECTION["Transverse_Mercator"],'
        'PARAMETER["latitude_of_origin",0],PARAMETER["central_meridian",15],PARAMETER["scale_factor",1],'
        f'PARAMETER["false_easting",0],PARAMETER["false_northing",0],UNIT["{unit}",{metres!r}]]'
    )


def raster(tmp_path: Path, crs: str, side: float, centre: tuple[float, float]) -> RasterInfo:
    """The header of a raster of square pixels around a centre (x, y)."""
    size = Size(10, 14)
    transform = Affine.translation(*centre) @ Affine.scale(side, -side) @ Affine.translation(-7, -5)
    spec = RasterSpec(crs=CRS.from_user_input(crs), transform=transform)
    write_raster(tmp_path / "a.tif", np.zeros((size.height, size.width), np.uint8), spec)
    return raster_info(tmp_path / "a.tif")


@pytest.mark.parametrize(
    ("crs", "side", "centre", "high", "wide"),
    [
        ("EPSG:4326", 0.001, (11, 60), 111.3195, 111.3195 / 2),
        ("EPSG:4807", 0.001, (3, 200 / 3), 6378.2492 * GRAD, 6378.2492 * GRAD / 2),
        (geographic(6378137.0, 298.257223563, "grad", GRAD), 0.01, (9, 50), 1001.8754, 1001.8754 / 2**0.5),
        ("IAU_2015:30100", 0.001, (11, -60), 30.32335, 30.32335 / 2),
        (projected("US survey foot", 1200 / 3937), 2.0, (9e5, 2e5), 2400 / 3937, 2400 / 3937),
        (projected("kilometre", 1000.0), 0.01, (400, 5800), 10, 10),
        ("EPSG:2263+5703", 2.0, (9e5, 2e5), 2400 / 3937, 2400 / 3937),
        ("EPSG:3857", 0.5, (1.2e6, 8399737.889818357), 0.25, 0.25),
        ("EPSG:3857+5773", 0.5, (1.2e6, 8399737.889818357), 0.25, 0.25),
        ("EPSG:3395", 0.5, (1.2e6, 8362698.548500745), 0.25, 0.25),
        ("+proj=webmerc +datum=WGS84", 0.5, (1.2e6, 8399737.889818357), 0.25, 0.25),
        ("+proj=merc +R=1737400 +lat_ts=60", 0.5, (2e5, 0), 1.0, 1.0),
        ("+proj=merc +R=6378137 +lon_0=180 +y_0=1e6 +units=km", 0.01, (0, 9399.737889818357), 5.0, 5.0),
        ("+proj=tmerc +lon_0=15 +ellps=GRS80", 0.5, (3e5, 6.7e6), 0.5, 0.5),
    ],
)
def test_a_pixel_has_its_metres_in_any_unit_and_on_any_body(
    tmp_path: Path, crs: str, side: float, centre: tuple[float, float], high: float, wide: float
) -> None:
    info = raster(tmp_path, crs, side, centre)
    assert pixel_sides(info) == pytest.approx((high, wide), rel=2e-6)
    assert info.metres_per_pixel == pytest.approx((high * wide) ** 0.5, rel=2e-6)


@pytest.mark.parametrize(
    ("crs", "side", "centre"),
    [
        ("EPSG:4326", 0.5, (368000, 5808000)),  # metres of a projection under a CRS of degrees
        ("EPSG:4807", 0.001, (11, 105)),
        ('LOCAL_CS["made",UNIT["metre",1]]', 0.5, (1, 1)),
    ],
    ids=["metres-as-degrees", "beyond-the-pole-in-grads", "local"],
)
def test_a_pixel_whose_metres_cannot_be_told_has_none(
    tmp_path: Path, crs: str, side: float, centre: tuple[float, float]
) -> None:
    info = raster(tmp_path, crs, side, centre)
    assert (info.metres_per_pixel, pixel_sides(info)) == (None, None)


@pytest.mark.parametrize("margin", [-0.5, 0.0, 0.4])
def test_components_are_those_of_all_pairs(margin: float) -> None:
    rng = np.random.default_rng(7)
    for count in (1, 2, 9, 23, 41):
        low = rng.integers(0, 30, (count, 2)).astype(float)
        high = low + rng.integers(1, 6, (count, 2))
        near = ((low[:, None] < high + margin) & (low < high[:, None] + margin)).all(axis=2)
        near |= np.eye(count, dtype=bool)
        first = np.arange(count)
        for _ in range(count):
            first = np.array([first[row].min() for row in near])
        assert meeting(low, high, margin).tolist() == np.unique(first, return_inverse=True)[1].tolist()
