"""Labels: pixels that a file calls unlabelled are ignored; those placed by georeference follow one law."""

import struct
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.enums import Resampling
from rasterio.transform import Affine
from rasterio.warp import transform

from segmenter.base.errors import DatasetError, LabelError, RasterError
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap, LandCoverClass
from segmenter.raster import LabelIds, LabelRaster, open_raster, placement
from segmenter.raster.placement import PlacedLabels
from tests.helpers.refusals import refused

Make = Callable[..., Path]
SIZE = (23, 31)


@pytest.fixture
def truth(rng: np.random.Generator) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Ids of three classes, and where nothing is labelled; class 0 stands below that."""
    void = np.zeros(SIZE, np.bool_)
    void[4:15, 7:20] = True
    ids = rng.integers(0, 3, SIZE).astype(np.uint8)
    ids[void] = 0
    return ids, void


def _transparent_png(path: Path, indices: NDArray[np.uint8], palette: bytes, opacity: bytes) -> Path:
    """An 8-bit palette PNG with a tRNS chunk, by hand: GDAL writes none with several entries."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    height, width = indices.shape
    rows = b"".join(b"\0" + row.tobytes() for row in indices)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"PLTE", palette), (b"tRNS", opacity), (b"IDAT", zlib.compress(rows))]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in [*chunks, (b"IEND", b"")]))
    return path


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("encoding", ["codes", "colours"])
def test_transparent_pixels_of_colours_and_of_a_palette_are_ignored(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any, encoding: str
) -> None:
    """Other ways to say that nothing is labelled: `laws/test_one_meaning.py`."""
    ids, void = truth
    classes, codes = make_classes(3, encoding), encoding == "codes"
    palette = [0, 0, 0] * 5 if codes else [*classes.palette()[:3].ravel().tolist(), 1, 2, 3]
    indices = np.where(void, 4 if codes else 3, ids).astype(np.uint8)
    opacity = bytes([255, 255, 255, 0, 0])[: len(palette) // 3]
    shown = np.where(void, 0, 255).astype(np.uint8)
    stored = ids if codes else classes.palette()[ids]
    part = Window(3, 5, 11, 17)
    for path in (
        _transparent_png(tmp_path / "clear.png", indices, bytes(palette), opacity),
        make_geotiff("alpha.tif", np.dstack([stored, shown]), alpha=True),
    ):
        expected = np.where(void, IGNORE, ids)
        with LabelRaster(path, classes) as label:
            np.testing.assert_array_equal(label.ids(), expected)
            np.testing.assert_array_equal(label.ids(part), expected[part.slices()])
            assert label.ids(shape=Size(7, 9)).shape == (7, 9)


@pytest.mark.parametrize("form", ["codes", "palette", "colours"])
def test_nodata_that_is_a_class_is_asked_about(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any, form: str
) -> None:
    ids, _ = truth
    classes = make_classes(3, "codes" if form == "codes" else "colours")
    if form == "colours":
        path = make_geotiff("l.tif", classes.palette()[ids], nodata=255)  # white is class a
    else:
        table = {i: (*colour, 255) for i, colour in enumerate(classes.palette()[:3].tolist())}
        colours = table if form == "palette" else None
        path = make_geotiff("l.tif", ids, nodata=0, colours=colours)
    with refused(LabelError, remedy="label_nodata"):
        LabelRaster(path, classes)
    with LabelRaster(path, replace(classes, nodata="class")) as label:
        np.testing.assert_array_equal(label.ids(), ids)
    with LabelRaster(path, replace(classes, nodata="ignore")) as label:
        np.testing.assert_array_equal(label.ids(), np.where(ids == 0, IGNORE, ids))


@pytest.mark.parametrize("nodata", [None, 0])
def test_a_thinned_label_holds_stored_values_whatever_its_overviews_hold(
    make_geotiff: Make, rng: np.random.Generator, nodata: int | None
) -> None:
    classes = ClassMap(tuple(LandCoverClass(f"{code}", (code, 0, 0), code) for code in (1, 5, 9)))
    codes = rng.choice(np.array([1, 5, 9] if nodata is None else [0, 1, 5, 9], np.uint8), (90, 120))
    path = make_geotiff("label.tif", codes, nodata=nodata)
    with rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4], Resampling.average)
    window, shape = Window(3, 10, 80, 110), Size(20, 27)
    with LabelRaster(path, classes) as label:
        rows, cols = (np.ogrid[:20, :27][axis] for axis in (0, 1))
        part = label.ids(window)[((rows + 0.5) * 80 / 20).astype(int), ((cols + 0.5) * 110 / 27).astype(int)]
        np.testing.assert_array_equal(label.ids(window, shape=shape), part)


def test_a_colour_that_the_file_calls_no_data_is_ignored_as_in_images(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any
) -> None:
    ids, _ = truth
    classes = make_classes(3, "colours")
    path = make_geotiff("label.tif", classes.palette()[ids])
    with rasterio.open(path, "r+") as file:
        file.update_tags(NODATA_VALUES=" ".join(map(str, classes.palette()[0])))
    with LabelRaster(path, classes) as label, open_raster(path) as image:
        np.testing.assert_array_equal(label.ids(), np.where(ids == 0, IGNORE, ids))
        np.testing.assert_array_equal(image.read(Window(0, 0, *SIZE))[1], ids != 0)


@pytest.mark.parametrize("encoding", ["codes", "colours"])
def test_palettes_of_16_bits(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any, encoding: str
) -> None:
    ids, _ = truth
    classes = make_classes(3, encoding, first_code=600)
    table = {600 + i: (*colour, 255) for i, colour in enumerate(classes.palette()[:3].tolist())}
    with LabelRaster(make_geotiff("l.tif", ids.astype(np.uint16) + 600, colours=table), classes) as label:
        np.testing.assert_array_equal(label.ids(), ids)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float32"])
def test_codes_beyond_16_bits_can_be_ignored(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], truth: Any, dtype: str
) -> None:
    ids, void = truth
    value = {"int8": -1, "uint16": 65535, "int32": 70_000}.get(dtype, -9999)
    path = make_geotiff("l.tif", np.where(void, value, ids.astype(dtype)).astype(dtype))
    with LabelRaster(path, make_classes(3)) as label, pytest.raises(LabelError, match=f"know: {value}"):
        label.ids()
    with LabelRaster(path, make_classes(3, ignored=(value,))) as label:
        np.testing.assert_array_equal(label.ids(), np.where(void, IGNORE, ids))


HERE = Affine(10, 0, 500_000, 0, -10, 5_600_000)
UTM, DEGREES = "EPSG:32633", "EPSG:4326"


@pytest.fixture
def classes(make_classes: Callable[..., ClassMap]) -> ClassMap:
    return make_classes(3, first_code=10, ignored=(99,))


def _ids(path: Path, classes: ClassMap) -> NDArray[np.uint8]:
    with rasterio.open(path) as file:
        return classes.decode(file.read(1))


def _blobs(rng: np.random.Generator, height: int, width: int, values: tuple[int, ...]) -> NDArray[np.uint8]:
    coarse = rng.choice(values, (height // 3 + 1, width // 3 + 1)).astype(np.uint8)
    return np.repeat(np.repeat(coarse, 3, axis=0), 3, axis=1)[:height, :width]


def _place(tmp_path: Path, classes: ClassMap, image: Path, label: Path, **how: Any) -> NDArray[np.uint8]:
    labels = PlacedLabels(tmp_path / "made", classes)
    found = labels.label("a", image, label, shared=how.pop("shared", False))
    with rasterio.open(found) as made, rasterio.open(image) as of:
        assert (made.crs, made.transform, made.shape) == (of.crs, of.transform, of.shape)
    return _ids(found, labels.classes)


@pytest.mark.parametrize("side", [64, 13])
@pytest.mark.parametrize(
    ("crs", "label_at"),
    [
        (UTM, Affine(20, 0, 499_930, 0, -20, 5_600_110)),
        (UTM, Affine(10, 0, 500_003, 0, -10, 5_599_996)),
        (UTM, Affine(0, 30, 499_900, 30, 0, 5_597_000)),  # rows to the east, columns to the north
        (DEGREES, Affine(1 / 4000, 0, 14.995, 0, -1 / 5500, 50.552)),
    ],
)
def test_a_pixel_has_the_label_at_its_centre(
    tmp_path: Path, make_geotiff: Make, classes: ClassMap, rng: np.random.Generator,
    monkeypatch: pytest.MonkeyPatch, crs: str, label_at: Affine, side: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(placement, "_SIDE", side)
    image = make_geotiff("a.tif", np.ones((47, 61), np.uint8), crs=UTM, transform=HERE)
    codes = _blobs(rng, 101, 103, (10, 11, 12, 99))
    label = make_geotiff("label.tif", codes, crs=crs, transform=label_at)
    found = _place(tmp_path, classes, image, label)
    cols, rows = np.meshgrid(np.arange(61) + 0.5, np.arange(47) + 0.5)
    x, y = transform(UTM, crs, *(HERE @ (cols.ravel(), rows.ravel())))
    col, row = (np.floor(each).astype(int).reshape(47, 61) for each in ~label_at @ (np.array(x), np.array(y)))
    inside = (row >= 0) & (row < 101) & (col >= 0) & (col < 103)
    expected = np.full((47, 61), IGNORE)
    expected[inside] = classes.decode(codes)[row[inside], col[inside]]
    assert len(np.unique(expected)) == 4
    assert (found == expected).all()


@pytest.mark.parametrize("ratio", [2, 7])
def test_a_pixel_has_the_label_of_most_of_it(
    tmp_path: Path, make_geotiff: Make, classes: ClassMap, rng: np.random.Generator, ratio: int
) -> None:
    image = make_geotiff("a.tif", np.ones((19, 23), np.uint8), crs=UTM, transform=HERE)
    codes = _blobs(rng, 19 * ratio, 23 * ratio, (10, 11, 12, 99))
    label = make_geotiff("label.tif", codes, crs=UTM, transform=HERE @ Affine.scale(1 / ratio))
    found = _place(tmp_path, classes, image, label)
    ids, clear = classes.decode(codes), 0
    for row, col in np.ndindex(19, 23):
        part = ids[row * ratio : (row + 1) * ratio, col * ratio : (col + 1) * ratio]
        (first, most), *others = Counter(part.ravel().tolist()).most_common()
        if not others or others[0][1] < most:
            clear += 1
            assert found[row, col] == first
        else:  # equal shares: one of them
            assert found[row, col] in {value for value, count in [(first, most), *others] if count == most}
    assert clear > 200


def test_majority_is_that_of_the_area_also_off_the_grid(
    tmp_path: Path, make_geotiff: Make, classes: ClassMap
) -> None:
    """A label pixel that an image's pixel shares in counts by its part: 0.7 against 0.3."""
    codes = np.full((8, 40), 10, np.uint8)
    codes[:, 20:] = 11
    label = make_geotiff("l.tif", codes, crs=UTM, transform=Affine(4, 0, 500_000, 0, -4, 5_600_000))
    image = make_geotiff("a.tif", np.ones((3, 16), np.uint8), crs=UTM, transform=HERE)
    shifted = Affine(10, 0, 500_003, 0, -10, 5_600_000)
    other = make_geotiff("b.tif", np.ones((3, 15), np.uint8), crs=UTM, transform=shifted)
    assert _place(tmp_path, classes, image, label)[0].tolist() == [0] * 8 + [1] * 8
    # The border lies at 77 m of its grid: 7/10 of pixel 7 belong to the first class.
    assert _place(tmp_path, classes, other, label)[0].tolist() == [0] * 8 + [1] * 7


def test_values_that_are_no_class_are_refused_only_where_the_image_lies(
    tmp_path: Path, make_geotiff: Make, classes: ClassMap
) -> None:
    codes = np.full((40, 40), 10, np.uint8)
    codes[30:] = 77
    image = make_geotiff("a.tif", np.ones((20, 20), np.uint8), crs=UTM, transform=HERE)
    label = make_geotiff("l.tif", codes, crs=UTM, transform=HERE)
    assert (_place(tmp_path, classes, image, label) == 0).all()
    codes[5, 5:8] = 55
    label = make_geotiff("m.tif", codes, crs=UTM, transform=HERE)
    with refused(LabelError, where="m.tif", fault="codes"):
        PlacedLabels(tmp_path / "made", classes).label("a", image, label, shared=False)
    assert not list((tmp_path / "made").glob("*m*"))


def test_a_folder_that_cannot_be_written_has_another_as_its_remedy(
    tmp_path: Path, make_geotiff: Make, classes: ClassMap
) -> None:
    image = make_geotiff("a.tif", np.full((20, 20), 10, np.uint8), crs=UTM, transform=HERE)
    with refused(DatasetError, where="a.tif/made", remedy="dataset.cache"):
        PlacedLabels(image / "made", classes).label("b", image, image, shared=False)


def test_files_that_do_not_say_where_they_lie_are_refused(
    tmp_path: Path, make_geotiff: Make, classes: ClassMap
) -> None:
    pixels = np.full((20, 20), 10, np.uint8)
    image = make_geotiff("a.tif", pixels, crs=UTM, transform=HERE)
    labels = PlacedLabels(tmp_path / "made", classes)
    for label, why in (
        (make_geotiff("n.tif", pixels, crs=None), r"n\.tif: .* it has none"),
        (make_geotiff("o.tif", pixels, crs=None, transform=HERE), r"o\.tif: has no CRS, and .*a\.tif has"),
    ):
        with pytest.raises(RasterError, match=why):
            labels.label("a", image, label, shared=True)


def test_colours_are_placed_as_classes(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    classes = make_classes(3, "colours")
    ids = _blobs(rng, 60, 60, (0, 1, 2))
    colours = classes.palette()[ids]
    label = make_geotiff("l.tif", colours, crs=UTM, transform=HERE @ Affine.scale(1 / 3))
    image = make_geotiff("a.tif", np.ones((20, 20), np.uint8), crs=UTM, transform=HERE)
    assert (_place(tmp_path, classes, image, label) == ids[1::3, 1::3]).all()


def test_a_label_is_placed_anew_when_label_image_or_classes_change(
    tmp_path: Path, make_geotiff: Make, classes: ClassMap, make_classes: Callable[..., ClassMap]
) -> None:
    pixels = np.full((20, 20), 10, np.uint8)
    image = make_geotiff("a.tif", pixels, crs=UTM, transform=HERE)
    label = make_geotiff("l.tif", pixels, crs=UTM, transform=HERE)
    folder = tmp_path / "made"

    def made(classes: ClassMap) -> Path | None:
        return PlacedLabels(folder, classes).label("a", image, label, shared=False)

    first = made(classes)
    assert made(classes) == first
    other = made(make_classes(5, first_code=10))
    make_geotiff("l.tif", pixels + 1, crs=UTM, transform=HERE, compress="deflate")
    third = made(classes)
    make_geotiff("a.tif", np.ones((30, 20), np.uint8), crs=UTM, transform=HERE)
    fourth = made(classes)
    assert len({first, other, third, fourth}) == 4


def test_a_label_that_no_longer_lies_on_its_image_is_refused(
    make_geotiff: Make, make_classes: Callable[..., ClassMap]
) -> None:
    """Reviewing and calibrating read labels that may have been corrected since the training."""
    place = Affine(0.5, 0, 368000, 0, -0.5, 5808000)
    with open_raster(make_geotiff("image.tif", np.zeros((*SIZE, 3), np.uint8), transform=place)) as raster:
        image = raster.info
    for rows, moved in ((0, 0), (0, 1), (2, 0)):
        ids, at = np.zeros((SIZE[0] + rows, SIZE[1]), np.uint8), place @ Affine.translation(moved, 0)
        label = LabelIds(make_geotiff("label.tif", ids, transform=at), make_classes(3), image)
        with refused(DatasetError) if rows or moved else nullcontext():
            label.read(Window(0, 0, 4, 4))
        label.close()
