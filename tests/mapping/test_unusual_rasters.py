"""Odd, damaged and strangely named rasters, of the kinds that GDAL knows: right, or refused in one line."""

import contextlib
import os
import shutil
import socket
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.control import GroundControlPoint
from rasterio.crs import CRS
from rasterio.enums import ColorInterp
from rasterio.rpc import RPC

from segmenter.base.errors import RasterError
from segmenter.grid.geometry import Window
from segmenter.raster import raster_info
from tests.helpers.made_rasters import written
from tests.helpers.maps import Call, Make, Verdict, ids
from tests.helpers.raster_verdict import H, W, pixels, points, shape

RGBA = (ColorInterp.red, ColorInterp.green, ColorInterp.blue, ColorInterp.alpha)
GCPS = [
    GroundControlPoint(row, col, 10 + col / 999, 50 - row / 999, 3)
    for row, col in ((0, 0), (0, 80), (60, 0), (50, 71))
]
SQUARE = np.ones((20, 30, 3), np.uint8)
COEFFICIENTS = [1.0, *[0.002] * 19]
TWICE = (COEFFICIENTS, COEFFICIENTS)
RPCS = RPC(100.0, 500.0, 50.0, 0.1, *TWICE, 30.0, 31.0, 10.0, 0.2, *TWICE, 40.0, 41.0, 1.0, 0.5)
ROTATED_POLE = "+proj=ob_tran +o_proj=longlat +o_lon_p=-162 +o_lat_p=39.25 +lon_0=180 +R=6371229"


@pytest.mark.parametrize(
    "options",
    [
        {"compress": "lerc"},
        {"compress": "zstd", "tiled": True, "blockxsize": 16, "blockysize": 32},
        {"compress": "webp", "webp_lossless": True},
        {"compress": "packbits", "interleave": "band"},
        {"compress": "lzw", "predictor": 2, "endianness": "BIG", "bigtiff": "YES"},
        {"compress": "jpeg", "photometric": "ycbcr"},
        {"compress": "deflate", "tiled": True, "blockxsize": 512, "blockysize": 512},
        {"nbits": 7, "nodata": 3},
    ],
    ids=str,
)
def test_every_way_of_storing(make_geotiff: Make, rng: Any, verdict: Verdict, options: Any) -> None:
    path = make_geotiff("a.tif", pixels(rng), **options)
    assert verdict(path, 3) is None


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float64"])
def test_every_type(make_geotiff: Make, rng: Any, verdict: Verdict, dtype: str) -> None:
    assert verdict(make_geotiff("a.tif", pixels(rng, dtype=dtype), nodata=5), 3) is None


@dataclass
class Odd:
    """A GeoTIFF: options of the writer, and what is done to the file before it is closed."""

    bands: int = 3
    dtype: str = "uint8"
    most: int = 120
    options: dict[str, Any] = field(default_factory=dict)
    colours: tuple[ColorInterp, ...] = ()
    masked: bool = False
    tags: dict[str, str] = field(default_factory=dict)
    scales: tuple[float, ...] = ()
    aux: str = ""


def per_band(what: str, *values: object) -> str:
    """An `.aux.xml` that says something of each band."""
    bands = "".join(
        f'<PAMRasterBand band="{band}"><{what}>{value}</{what}></PAMRasterBand>'
        for band, value in enumerate(values, 1)
        if value is not None
    )
    return f"<PAMDataset>{bands}</PAMDataset>"


NO_DATA = {
    "value and internal mask": Odd(most=8, options={"nodata": 3}, masked=True),
    "alpha": Odd(4, most=4, colours=RGBA),
    "alpha and value": Odd(4, most=9, colours=RGBA, options={"nodata": 7}),
    "alpha and mask": Odd(4, most=4, colours=RGBA, masked=True),
    "alpha first": Odd(4, most=4, colours=RGBA[::-1]),
    "two alphas": Odd(5, most=4, colours=(*RGBA, ColorInterp.alpha)),
    "alpha of 16 bits": Odd(4, "uint16", 4, colours=RGBA),
    "alpha of floats": Odd(4, "float32", 4, colours=RGBA),
    "one band's value": Odd(most=9, aux=per_band("NoDataValue", None, 7)),
    "each band's value": Odd(most=9, aux=per_band("NoDataValue", 2, 3, 4)),
    "value out of range": Odd(aux=per_band("NoDataValue", -9999, 300, 2.5)),
    "NaN of whole numbers": Odd(aux=per_band("NoDataValue", *["nan"] * 3)),
    "infinite value": Odd(dtype="float32", aux=per_band("NoDataValue", *["inf"] * 3)),
    "a colour": Odd(most=4, tags={"NODATA_VALUES": "2 3 2"}),
    "a colour of too few bands": Odd(most=4, tags={"NODATA_VALUES": "2 3"}),
    "value before scaling": Odd(dtype="int16", most=9, options={"nodata": 5}, scales=(0.5, 3, 1)),
}


@pytest.mark.parametrize(
    ("kind", "mode"), [*((kind, "exact") for kind in NO_DATA), ("alpha and mask", "smooth")]
)
def test_every_way_of_no_data(make_geotiff: Make, rng: Any, verdict: Verdict, kind: str, mode: str) -> None:
    odd = NO_DATA[kind]
    values = pixels(rng, odd.bands, odd.dtype, odd.most) - (1 if odd.colours else 0)
    if odd.dtype == "float32" and not odd.colours:
        values[3, 4], values[5, 6, 0], values[7, 8, 1] = np.inf, np.nan, -np.inf
    masks = {"masks": shape(rng)} if odd.masked else {}
    path = make_geotiff("in/a.tif", values.astype(odd.dtype), **odd.options, **masks)
    with rasterio.open(path, "r+") as file:
        file.colorinterp = odd.colours or file.colorinterp
        file.scales = odd.scales or file.scales
        file.update_tags(**odd.tags)
    if odd.aux:
        path.with_name("a.tif.aux.xml").write_text(odd.aux)
    assert verdict(path, 3, "--mode", mode) is None


@pytest.mark.parametrize(("scale", "offset"), [("nan", 0), (1, "-inf"), (0, 1)])
def test_a_scale_that_leaves_no_data_is_refused(
    make_geotiff: Make, rng: Any, verdict: Verdict, call: Call, scale: Any, offset: Any
) -> None:
    path = make_geotiff("a.tif", pixels(rng, 4))
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = (1, float(scale), 1, 1), (0, float(offset), 0, 0)
    refusal = str(verdict(path, 4))
    assert refusal.startswith("expected a finite scale (not 0) and offset of band 2, got ")
    assert call(path, "--bands", "1,3,4", band_count=3) == 0


@pytest.mark.parametrize("value", [float("inf"), float("nan"), 7.0])
def test_no_data_at_all_is_told(make_geotiff: Make, call: Call, capfd: Any, value: float) -> None:
    path = make_geotiff("a.tif", np.full((H, W, 3), value, np.float32), nodata=7)
    assert call(path, dtype="float32") == 0
    assert capfd.readouterr().err.startswith(f"warning: {path}: has no pixel")


@pytest.mark.parametrize("masked", [False, True])
def test_nodata_values_that_are_data_are_told(
    make_geotiff: Make, rng: Any, call: Call, capfd: Any, masked: bool
) -> None:
    values = pixels(rng, most=5)
    options = {"masks": np.full((H, W), 255, np.uint8)} if masked else {}
    path = make_geotiff("a.tif", values, nodata=3, **options)
    assert call(path) == 0
    some, all_ = (values == 3).any(axis=2), (values == 3).all(axis=2)
    count = (some if masked else some & ~all_).sum()
    why = "its mask says so" if masked else "other bands do not"
    (line,) = capfd.readouterr().err.splitlines()
    share = int(line.removeprefix(f"warning: {path}: ").split(" % of the pixels hold")[0])
    assert abs(share - 100 * count / (H * W)) < 3  # of what was read, and windows overlap
    assert why in line


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_undeclared_fills_are_no_data(make_geotiff: Make, rng: Any, verdict: Verdict, dtype: str) -> None:
    """The largest numbers of a type: NaN around them after the first convolution."""
    values = pixels(rng, 1, dtype)
    values[3:5, 7] = np.finfo(dtype).min
    assert verdict(make_geotiff("a.tif", values), 1) is None
    assert (ids("maps/a.tif") == 255).sum() == 2


@pytest.mark.parametrize(
    ("beside", "refusal"),
    [
        ((H, W), None),
        ((H + 9, W + 7), "expected a mask of 83×61 pixels"),
        (b"<VRTDataset/>", "expected a TIFF beside it as .msk"),
    ],
)
def test_a_mask_beside(
    make_geotiff: Make, rng: Any, verdict: Verdict, beside: Any, refusal: str | None
) -> None:
    """GDAL takes the top left part of a larger one, and passes in silence over what it cannot read."""
    path = make_geotiff("in/a.tif", pixels(rng))
    mask = path.with_name("a.tif.msk")
    if isinstance(beside, bytes):
        mask.write_bytes(beside)
    else:
        values = np.ones(beside, np.uint8) * 255
        values[5:9, 3:] = 0
        make_geotiff("in/mask.tif", values, crs=None).rename(mask)
        with rasterio.open(mask, "r+") as file:
            file.update_tags(INTERNAL_MASK_FLAGS_1=2, INTERNAL_MASK_FLAGS_2=2, INTERNAL_MASK_FLAGS_3=2)
    found = verdict(path, 3)
    assert found is None if refusal is None else str(found).startswith(refusal)
    if refusal is None:
        assert (ids("maps/a.tif")[5:9, 3:] == 255).all()


PLACES: dict[str, dict[str, Any]] = {
    "control points": {"gcps": GCPS, "crs": CRS.from_epsg(4326)},
    "control points of no CRS": {"gcps": GCPS, "crs": CRS()},
    "RPCs": {"rpcs": RPCS},
    "RPCs and a transform": {
        "rpcs": RPCS,
        "crs": "EPSG:25833",
        "transform": rasterio.Affine(2, 0, 5, 0, -2, 9),
    },
    "a CRS alone": {"crs": "EPSG:25833"},
    "a transform alone": {"transform": rasterio.Affine(2, 0, 5, 0, -2, 9)},
    "rotated": {"crs": "EPSG:25833", "transform": rasterio.Affine(1, 2, 3, 2, -1, 5)},
    "south up": {"crs": "EPSG:25833", "transform": rasterio.Affine(1, 0, 3, 0, 1, 5)},
    "no area": {"crs": "EPSG:25833", "transform": rasterio.Affine(0, 0, 3, 0, 0, 5)},
    "three dimensions": {"crs": "EPSG:4979", "transform": rasterio.Affine(2, 0, 5, 0, -2, 9)},
    "heights": {"crs": "EPSG:7415", "transform": rasterio.Affine(2, 0, 5, 0, -2, 9)},
    "kilometres": {"crs": "+proj=laea +lat_0=10 +datum=WGS84 +units=km"},
    "a building site": {"crs": CRS.from_wkt('LOCAL_CS["site",UNIT["metre",1]]')},
}


@pytest.mark.parametrize("part", [None, Window(7, 11, 40, 50)], ids=["whole", "part"])
@pytest.mark.parametrize("kind", PLACES)
def test_every_place(verdict: Verdict, rng: Any, kind: str, part: Window | None) -> None:
    path = written(Path("a.tif"), pixels(rng, 1), **PLACES[kind])
    assert verdict(path, 1, part=part) is None


@pytest.mark.parametrize(("offset", "refused"), [("30", False), ("somewhere", True)])
def test_rpcs_beside(make_geotiff: Make, rng: Any, verdict: Verdict, offset: str, refused: bool) -> None:
    path = make_geotiff("in/a.tif", pixels(rng), crs=None)
    names = [f"{of}_{what}" for of in ("LINE", "SAMP", "LAT", "LONG", "HEIGHT") for what in ("OFF", "SCALE")]
    names += [
        f"{of}_COEFF_{i}" for of in ("LINE_NUM", "LINE_DEN", "SAMP_NUM", "SAMP_DEN") for i in range(1, 21)
    ]
    path.with_name("a_RPC.TXT").write_text("".join(f"{name}: {offset}\n" for name in names))
    refusal = verdict(path, 3)
    assert (refusal is not None) is refused
    assert refusal is None or refusal.startswith("expected whole RPCs, got others: ")


def points_beside(path: Path, crs: str = "EPSG:4326") -> None:
    each = "".join(
        f'<GCP Id="{i}" Pixel="{p.col}" Line="{p.row}" X="{p.x}" Y="{p.y}"/>' for i, p in enumerate(GCPS)
    )
    path.with_name(path.name + ".aux.xml").write_text(
        f'<PAMDataset><GCPList Projection="{crs}">{each}</GCPList></PAMDataset>'
    )


def test_of_transform_and_points_the_one_with_crs_stays(make_geotiff: Make, rng: Any, call: Call) -> None:
    """A GeoTIFF cannot hold both; GDAL has no CRS for a transform where control points have theirs."""
    path = make_geotiff("in/a.tif", pixels(rng))
    points_beside(path)
    assert call(path) == 0
    with rasterio.open("maps/a.tif") as result:
        assert points(result) == [(p.row, p.col, p.x, p.y, 0) for p in GCPS]
        assert result.gcps[1] == CRS.from_epsg(4326)
    points_beside(path, "")
    assert call(path) == 0
    with rasterio.open("maps/a.tif") as result:
        assert result.transform.c == 368000
        assert not result.gcps[0]


@pytest.mark.parametrize(
    ("crs", "kept"), [(ROTATED_POLE, False), ("EPSG:5773", False), ("ESRI:102003", True), ("EPSG:2053", True)]
)
def test_a_crs_no_geotiff_can_hold(make_png: Make, rng: Any, verdict: Verdict, crs: str, kept: bool) -> None:
    """GDAL would write it into a file beside, or something else into the map."""
    path = make_png("in/a.png", pixels(rng))
    wkt = CRS.from_string(crs).to_wkt(version="WKT2_2019").replace('"', "&quot;")
    where = "<GeoTransform>100, 1, 0, 200, 0, -1</GeoTransform>"
    path.with_name("a.png.aux.xml").write_text(f"<PAMDataset><SRS>{wkt}</SRS>{where}</PAMDataset>")
    refusal = verdict(path, 3)
    assert (refusal is None) is kept
    if not kept:
        assert str(refusal).startswith("a GeoTIFF cannot hold its CRS (")


def test_a_transform_that_is_no_number(make_geotiff: Make, rng: Any, verdict: Verdict) -> None:
    path = make_geotiff("a.tif", pixels(rng), transform=rasterio.Affine(float("nan"), 0, 3, 0, -1, 5))
    assert str(verdict(path, 3)).startswith("expected a geotransform of finite numbers, got (")


@pytest.mark.parametrize("options", [("--bbox", 1, 2, 3, 4), ("--mosaic",)])
def test_pixels_without_area(make_geotiff: Make, rng: Any, call: Call, capfd: Any, options: Any) -> None:
    path = make_geotiff("a.tif", pixels(rng), transform=rasterio.Affine(0, 0, 3, 0, 0, 5))
    assert call(path, *options) in (1, 2)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "no area" in line


@pytest.mark.parametrize(("crs", "pixel"), [("EPSG:4326", 1e308), ("EPSG:25833", 1e200)])
def test_a_huge_pixel_fails_alone(make_geotiff: Make, call: Call, capfd: Any, crs: str, pixel: float) -> None:
    """A geotransform that leads beyond all numbers."""
    make_geotiff("in/a.tif", SQUARE, crs=crs, transform=rasterio.Affine(pixel, 0, 0, 0, -pixel, 0))
    make_geotiff("in/b.tif", SQUARE)
    assert call("in") == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: in/a.tif: expected a geotransform")
    assert [path.name for path in Path("maps").glob("*.tif")] == ["b.tif"]


def test_every_geotransform_of_numbers_has_a_header_or_a_line(make_geotiff: Make) -> None:
    """Whatever its powers of ten: no other error than ours."""
    rng, read = np.random.default_rng(0), 0
    for number in range(60):
        a, b, d, e = rng.choice([-1, 1], 4) * 10.0 ** rng.uniform(-320, 308, 4)
        c, f = 10.0 ** rng.uniform(-10, 308, 2)
        place = rasterio.Affine(a, 0, c, 0, e, f) if number % 2 else rasterio.Affine(a, b, c, d, e, f)
        crs = ["EPSG:4326", "EPSG:25833"][number % 3 > 0]
        path = make_geotiff("x.tif", SQUARE[:2, :2], crs=crs, transform=place)
        with contextlib.suppress(RasterError):
            read += raster_info(path).size.height == 2
    assert 9 < read < 60


def sources(make_geotiff: Make, make_png: Make, tmp_path: Path, rng: Any) -> dict[str, Path]:
    """Whole files of all formats."""
    values, blocks = pixels(rng), {"tiled": True, "blockxsize": 32, "blockysize": 32}
    files = [
        make_geotiff("in/a.tif", values),
        make_geotiff("in/b.tif", values, compress="deflate", masks=shape(rng), **blocks),
        make_geotiff("in/c.tif", values, compress="jpeg", photometric="ycbcr", nodata=5, **blocks),
        make_png("in/d.png", values),
        written(tmp_path / "in" / "e.jpg", values),
    ]
    return {path.name: path for path in files}


@pytest.mark.parametrize("name", ["a.tif", "b.tif", "c.tif", "d.png", "e.jpg"])
def test_wherever_a_file_is_cut_off(
    tmp_path: Path, make_geotiff: Make, make_png: Make, rng: Any, verdict: Verdict, name: str
) -> None:
    whole = sources(make_geotiff, make_png, tmp_path, rng)[name].read_bytes()
    path = tmp_path / name
    for left in (0, 3, 8, 60, 150, 200, *np.linspace(250, len(whole) - 20, 6).astype(int)):
        path.write_bytes(whole[:left])
        assert verdict(path, 3) is not None, left


def directory_of(data: bytes) -> tuple[int, int]:
    """Where a classic little-endian TIFF's first directory begins, and the number of its entries."""
    start = struct.unpack_from("<I", data, 4)[0]
    return start, struct.unpack_from("<H", data, start)[0]


def after_directory(data: bytes) -> int:
    """Where it says that the next one begins."""
    start, count = directory_of(data)
    return start + 2 + 12 * count


def entry_of(data: bytes, tag: int) -> int:
    start, count = directory_of(data)
    places = (start + 2 + 12 * index for index in range(count))
    return next(place for place in places if struct.unpack_from("<H", data, place)[0] == tag)


@pytest.mark.parametrize(
    ("tag", "masked", "what"),
    [
        (33550, False, "GeoPixelScale"),
        (34735, False, "GeoKeyDirectory"),
        (42113, False, "GDALNoDataValue"),
        (None, True, ""),  # where the mask's directory begins
    ],
)
def test_what_says_where_or_whether_is_not_lost_in_silence(
    make_geotiff: Make, rng: Any, verdict: Verdict, tag: int | None, masked: bool, what: str
) -> None:
    """GDAL passes with a remark over what it cannot read, and the file has no place, nodata or mask."""
    masks = {"masks": shape(rng)} if masked else {}
    path = make_geotiff("a.tif", pixels(rng, dtype="float32"), nodata=-9999.25, **masks)
    data = bytearray(path.read_bytes())
    place = entry_of(data, tag) + 8 if tag else after_directory(data)
    struct.pack_into("<I", data, place, 1 << 30)
    path.write_bytes(data)
    refusal = str(verdict(path, 3))
    assert refusal.startswith("cannot read its header: ")
    assert what in refusal


def test_directories_in_a_circle(make_geotiff: Make, rng: Any, verdict: Verdict) -> None:
    path = make_geotiff("a.tif", pixels(rng))
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, after_directory(data), directory_of(data)[0])
    path.write_bytes(data)
    verdict(path, 3)


@pytest.mark.parametrize(("bands", "options"), [(1, {}), (4, {}), (3, {"dtype": "uint16"})])
def test_a_png_with_fewer_rows_than_it_declares(
    make_png: Make, rng: Any, verdict: Verdict, bands: int, options: Any
) -> None:
    values = pixels(rng, bands, options.get("dtype", "uint8"))
    values[..., 3:] = 255
    path = make_png("a.png", values)
    assert verdict(path, bands - (bands == 4)) is None
    shutil.rmtree("maps")
    data = bytearray(path.read_bytes())
    for rows in (H + 1, 4 * H):
        struct.pack_into(">I", data, 20, rows)
        struct.pack_into(">I", data, 29, zlib.crc32(data[12:29]))
        path.write_bytes(data)
        assert "libpng: Not enough image data" in str(verdict(path, bands - (bands == 4)))


def test_a_jpeg_with_broken_code_is_not_grey(
    make_geotiff: Make, make_png: Make, tmp_path: Path, rng: Any, verdict: Verdict
) -> None:
    """libjpeg fills up what it cannot decode, and only remarks on it."""
    for name in ("e.jpg", "c.tif"):
        path = sources(make_geotiff, make_png, tmp_path, rng)[name]
        data = bytearray(path.read_bytes())
        middle = len(data) // 2 if name == "e.jpg" else data.index(b"\xff\xda", len(data) // 2) + 40
        data[middle : middle + 200] = b"\xff\xd9" * 100
        path.write_bytes(data)
        assert str(verdict(path, 3)).startswith("cannot read rows ")


@pytest.mark.parametrize(
    "name",
    ["new\nline.tif", "esc\x1b[31mred.tif", "a:b.tif", "GTIFF_DIR:1:a.tif", "per%cent%20 ?#'\".tif", "→.tif"],
)
def test_every_name(
    make_geotiff: Make, rng: Any, verdict: Verdict, call: Call, capfd: Any, name: str
) -> None:
    """Control characters are escaped in every line."""
    make_geotiff("a.tif", pixels(rng) + 1)
    path = make_geotiff(name, pixels(rng)).relative_to(Path.cwd())
    assert call(path, "--output", "one", band_count=1) == 1
    (line,) = capfd.readouterr().err.splitlines()
    shown = name.replace("\n", "\\n").replace("\x1b", "\\x1b")
    assert line.startswith(f"error: {shown}: expected 1")
    assert verdict(path, 3) is None


def test_a_name_that_leaves_no_room_for_ours(make_geotiff: Make, rng: Any, verdict: Verdict) -> None:
    path = make_geotiff("a.tif", pixels(rng)).rename("n" * 219 + ".tif")
    assert "too long" in str(verdict(path, 3))


def test_what_is_called_an_image_and_is_no_file(
    tmp_path: Path, make_geotiff: Make, rng: Any, call: Call, capfd: Any
) -> None:
    """Each is told, by folder, pattern or name; none of them is waited for."""
    make_geotiff("in/a.tif", pixels(rng))
    folder = tmp_path / "in"
    os.mkfifo(folder / "pipe.tif")
    (folder / "nowhere.tif").symlink_to(folder / "gone")
    (folder / "circle.tif").symlink_to(folder / "circle.tif")
    (folder / "folder.tif").mkdir()
    (folder / "zero.tif").symlink_to("/dev/zero")
    os.chdir(folder)  # a socket's name must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.tif")
        os.chdir(tmp_path)
        for given in (["in"], ["in/*.tif"]):
            assert call(*given) == 1
            said = capfd.readouterr()
            told = sorted(line.removeprefix("error: in/").split(":")[0] for line in said.err.splitlines())
            assert told == ["circle.tif", "nowhere.tif", "pipe.tif", "socket.tif", "zero.tif"]
            assert all("expected a raster file, " in line for line in said.err.splitlines())
            assert Path("maps/a.tif").exists()
    assert [call(given) for given in ("in/circle.tif", "in/folder.tif", "in/f*.tif")] == [1, 2, 2]
    assert len(capfd.readouterr().err.splitlines()) == 3
