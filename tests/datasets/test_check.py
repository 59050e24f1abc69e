"""The audit finds each fault and each leak by name; the index refuses the same files alike."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st
from rasterio.warp import transform

from datasets.check import CheckReport, check_dataset
from datasets.commands import call as main
from datasets.contents import pieces
from datasets.leaks import AuditedScene, find_leaks
from segmenter.base.errors import DatasetError, LabelError, RasterError, run_script
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.raster import raster_info, read_label
from segmenter.tiles.index import build_index
from segmenter.tiles.statistics import band_statistics
from tests.helpers.refusals import refused

Make = Callable[..., Path]
SHAPE = (23, 31)
COLOURS = np.array([(255, 255, 255), (0, 0, 255), (0, 255, 255)], np.uint8)


@pytest.fixture
def one(tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap]) -> Callable[..., Dataset]:
    """`one(label=…, image=…)`: a dataset of a good scene and one with these files."""

    def make(
        *,
        label: Path | None,
        image: Path | None = None,
        classes: ClassMap | None = None,
        split: Split = "train",
        **options: Any,
    ) -> Dataset:
        good = make_geotiff("good.tif", np.ones((*SHAPE, 3), np.uint8))
        ids = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) % 3
        if classes is not None and classes.encoding == "colours":
            truth = make_geotiff("good_label.tif", COLOURS[ids])
        else:
            truth = make_geotiff("good_label.tif", ids.astype(np.uint8))
        scenes = (
            Scene("good", good, truth, "good", split),
            Scene("odd", image or good, label, "odd", "train"),
        )
        return Dataset("made", tmp_path, scenes, classes or make_classes(3), **options)

    return make


def kinds(report: CheckReport) -> list[str]:
    return [finding.kind for finding in report.findings]


def label_of(value: int = 1, shape: tuple[int, ...] = SHAPE) -> Any:
    return np.full(shape, value, np.uint8)


def test_a_clean_dataset(one: Callable[..., Dataset], make_png: Make) -> None:
    report = check_dataset(one(label=make_png("l.png", label_of())), progress=False)
    assert report.clean
    pixels = SHAPE[0] * SHAPE[1]
    expected = np.bincount(np.arange(pixels) % 3, minlength=3) + np.array([0, pixels, 0])
    assert report.pixels_K.tolist() == expected.tolist()
    assert report.scenes_K.tolist() == [1, 2, 1]
    assert report.shares().sum() == pytest.approx(1)
    assert report.text().splitlines()[-1] == "clean"
    warned = replace(report, remarks=("tiles of a picture lie in several splits",))
    assert warned.clean
    assert warned.text().splitlines()[-1] != "clean", "the verdict tells of the warning"
    assert report.text(fits=False).splitlines()[-1] != "clean"  # of files alone: the recipe cannot train


def test_unknown_codes_are_counted_with_their_files(one: Callable[..., Dataset], make_png: Make) -> None:
    label = label_of()
    label[0, :5], label[1, 0] = 40, 41
    dataset = one(label=make_png("l.png", label))
    report = check_dataset(dataset, progress=False)
    assert kinds(report) == ["unknown value"] * 2
    assert {f.text: f.pixels for f in report.findings} == {"40": 5, "41": 1}
    assert f"40: 5 pixels in 1 file: {dataset.root / 'l.png'}" in report.text()
    assert int(report.pixels_K.sum()) + 6 == 2 * SHAPE[0] * SHAPE[1]
    with refused(LabelError, fault="know: 40 (5 px), 41"):
        build_index(dataset, "train", TilesConfig(size=16), progress=False)


def test_unknown_colours_in_rgb_and_in_palettes(
    one: Callable[..., Dataset], make_png: Make, make_classes: Callable[..., ClassMap]
) -> None:
    classes = make_classes(3, encoding="colours", ignored=((9, 9, 9),))
    ids = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE) % 3
    rgb = COLOURS[ids]
    rgb[0, 0], rgb[0, 1] = (255, 0, 170), (9, 9, 9)
    palette = {0: (0, 0, 255, 255), 1: (255, 255, 255, 255), 2: (1, 2, 3, 255)}
    files = make_png("rgb.png", rgb), make_png("palette.png", ids.astype(np.uint8), colours=palette)
    for label, unknown in zip(files, ("#ff00aa", "#010203"), strict=True):
        dataset = one(label=label, classes=classes)
        report = check_dataset(dataset, progress=False)
        assert [f.text for f in report.findings] == [unknown]
        with refused(LabelError, fault=unknown):
            build_index(dataset, "train", TilesConfig(size=16), progress=False)


def test_a_label_that_does_not_fit_is_named(
    one: Callable[..., Dataset], make_png: Make, make_geotiff: Make
) -> None:
    moved = rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808001)
    cases = (
        (make_png("wide.png", label_of(shape=(23, 34))), "size", "wide.png: expected 31×23 .* got 34×23"),
        (make_geotiff("moved.tif", label_of(), transform=moved), "georeferencing", "up to 2.0 pixels from"),
        (make_geotiff("crs.tif", label_of(), crs="EPSG:25832"), "georeferencing", "CRS EPSG:25833, got"),
    )
    for label, kind, message in cases:
        dataset = one(label=label)
        report = check_dataset(dataset, progress=False)
        assert kinds(report) == [kind]
        with pytest.raises(DatasetError, match=message) as raised:
            build_index(dataset, "train", TilesConfig(size=16), progress=False)
        assert str(raised.value) == report.findings[0].text


def test_unreadable_files(one: Callable[..., Dataset], make_png: Make, make_geotiff: Make) -> None:
    broken = make_geotiff("broken.tif", np.random.default_rng(0).integers(0, 255, (*SHAPE, 3), np.uint8))
    broken.write_bytes(broken.read_bytes()[:-900])
    good = make_png("l.png", label_of())
    empty = good.with_name("empty.png")
    empty.touch()
    for dataset, file in ((one(label=good, image=broken), broken), (one(label=empty), empty)):
        report = check_dataset(dataset, progress=False)
        assert kinds(report) == ["unreadable"]
        assert file.name in report.findings[0].text
    with pytest.raises(RasterError, match=r"empty\.png"):
        build_index(one(label=empty), "train", TilesConfig(size=16), progress=False)


def test_a_label_of_several_bands_is_no_label_of_codes(
    one: Callable[..., Dataset], make_geotiff: Make
) -> None:
    for bands in (2, 3):
        unlike = np.zeros((*SHAPE, bands), np.uint8)
        unlike[..., 0] = 1
        report = check_dataset(one(label=make_geotiff(f"{bands}.tif", unlike)), progress=False)
        assert kinds(report) == ["label"]


def test_classes_that_nobody_has(
    one: Callable[..., Dataset], make_png: Make, make_classes: Callable[..., ClassMap]
) -> None:
    label = make_png("l.png", label_of())
    report = check_dataset(one(label=label, classes=make_classes(4), split="test"), progress=False)
    assert [f.text for f in report.findings if f.kind == "class"] == [
        "a: no pixel in any training scene",
        "c: no pixel in any training scene",
        "d: no pixel in any scene",
    ]


def test_nodata_is_ignored_and_scenes_without_labels_are_named(
    one: Callable[..., Dataset], make_png: Make, make_geotiff: Make
) -> None:
    image = make_geotiff("empty.tif", np.zeros((*SHAPE, 3), np.uint8), nodata=0)
    report = check_dataset(one(label=make_png("l.png", label_of()), image=image), progress=False)
    assert (report.clean, report.ignored) == (True, SHAPE[0] * SHAPE[1])
    assert report.unlabelled == ("odd",)
    assert "without a labelled pixel: 1 scene: odd" in report.text()


@pytest.fixture
def recipe(tmp_path: Path, make_geotiff: Make, make_png: Make) -> Path:
    """A recipe of 14 scenes."""
    for i in range(14):
        make_geotiff(f"data/images/{i:02}.tif", np.ones((*SHAPE, 3), np.uint8))
        make_png(f"data/labels/{i:02}.png", label_of(i % 2))
    section = {
        "kind": "folder",
        "root": str(tmp_path / "data"),
        "images": "images/{name}.tif",
        "labels": "labels/{name}.png",
        "classes": [{"name": "a", "code": 0}, {"name": "b", "code": 1}],
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "t", "dataset": section}))
    return path


def run(*arguments: Any) -> int:
    return run_script(lambda: main([str(a) for a in arguments]))


def test_check_exits_0_only_if_clean(
    recipe: Path, make_png: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("check", recipe) == 0
    assert "clean" in capsys.readouterr().out
    for i in range(12):
        make_png(f"data/labels/{i:02}.png", label_of(7, (23, 32)))
    assert run("check", recipe) == 1
    out = capsys.readouterr().out
    assert "size: 12" in out
    assert "and 11 more: " in out
    assert "7: 8,832 pixels in 12 files" in out
    assert "and 7 more" in out
    assert run("check", "--all", recipe) == 1
    out = capsys.readouterr().out
    assert "more" not in out
    assert "labels/11.png" in out.partition("unknown value")[2]


def test_check_as_json_is_all_that_stdout_gets(
    recipe: Path, make_png: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    make_png("data/labels/03.png", label_of(7))
    assert run("check", "--json", recipe) == 1
    said = capsys.readouterr()
    answer = json.loads(said.out)
    assert (answer["clean"], answer["unmet"]) == (False, [])
    finding = {"kind": "unknown value", "scene": "03", "text": "7", "pixels": SHAPE[0] * SHAPE[1]}
    assert finding in answer["findings"]
    assert sum(sum(pixels.values()) for pixels in answer["pixels"].values()) > 0
    assert "unknown value" in said.err


def test_a_scene_whose_named_bands_are_others_or_in_another_order_is_found(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    scenes = []
    for i, names in enumerate([("red", "green"), ("red", "green"), ("green", "red"), ("red", "nir")]):
        image = make_geotiff(f"i{i}.tif", rng.integers(0, 9, (*SHAPE, 2), np.uint8), descriptions=names)
        label = make_geotiff(f"l{i}.tif", rng.integers(0, 3, SHAPE, np.uint8))
        scenes.append(Scene(f"s{i}", image, label, f"s{i}", "train"))
    dataset = Dataset("made", tmp_path, tuple(scenes), make_classes(3))
    report = check_dataset(dataset, progress=False)
    assert [finding.scene for finding in report.findings if finding.kind == "bands"] == [scenes[2]]
    assert [Path(line.partition(":")[0]).name for line in report.remarks] == ["i3.tif"]
    with refused(DatasetError, where="i2.tif", got="green, red"):
        band_statistics(dataset, progress=False)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 16_000))
def test_pieces_cover_a_raster_once_and_are_bounded(height: int, width: int, bytes_per_pixel: int) -> None:
    found = list(pieces(Size(height, width), bytes_per_pixel * 1000))
    assert sum(piece.size.pixels for piece in found) == height * width
    assert max(piece.size.pixels for piece in found) * bytes_per_pixel * 1000 <= 1 << 24
    assert max(piece.row_stop for piece in found) == height
    assert max(piece.col_stop for piece in found) == width
    corners = {(piece.row, piece.col) for piece in found}
    assert len(corners) == len(found)


def test_a_raster_of_one_endless_row_is_cut_too() -> None:
    sizes = [piece.size.pixels for piece in pieces(Size(1, 1 << 30))]
    assert (sum(sizes), max(sizes)) == (1 << 30, 1 << 22)


def sparse(path: Path, height: int, width: int) -> Path:
    """A small GeoTIFF that declares so many pixels."""
    shape: dict[str, Any] = {"height": height, "width": width, "count": 1, "dtype": "uint8"}
    with rasterio.open(path, "w", driver="GTiff", SPARSE_OK="TRUE", **shape):
        pass
    assert path.stat().st_size < 1 << 21
    return path


def test_a_label_that_is_far_larger_than_its_image_is_not_read(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap]
) -> None:
    image = make_geotiff("a.tif", np.ones((23, 31, 3), np.uint8), crs=None)
    for height, width in ((1, (1 << 31) - 1), ((1 << 31) - 1, 1), (1, 1 << 30)):
        label = sparse(tmp_path / "label.tif", height, width)
        dataset = Dataset("made", tmp_path, (Scene("a", image, label, "a", "train"),), make_classes(1))
        report = check_dataset(dataset, progress=False)
        assert [f.kind for f in report.findings] == ["size", "class"]
        assert f"expected 31×23 pixels as its image {image} has, got {width}×{height}" in report.text()
    with refused(RasterError, fault="declares 2147483647×1 pixels"):
        read_label(sparse(label, 1, (1 << 31) - 1))


HEIGHT, WIDTH = 23, 31
PIXEL = 0.5
EAST, NORTH = 368_000.0, 5_808_000.0


def pixels(seed: int, bands: int = 3) -> Any:
    return np.random.default_rng(seed).integers(1, 255, (HEIGHT, WIDTH, bands)).astype(np.uint8)


def at(col: float, row: float, degrees: float = 0.0, pixel: float = PIXEL) -> Affine:
    """A transform whose upper left corner lies so many pixels east and south of the first scene's."""
    place = Affine.translation(EAST + col * PIXEL, NORTH - row * PIXEL)
    return place @ Affine.rotation(degrees) @ Affine.scale(pixel, -pixel)


Check = Callable[..., CheckReport]


@pytest.fixture
def check(tmp_path: Path, make_png: Make, make_classes: Callable[..., ClassMap]) -> Check:
    """`check({"a.tif": "train", …})`: the report on these images, each with a label of its own."""

    def run(images: dict[Path, Split], classes: ClassMap | None = None, **options: Any) -> CheckReport:
        scenes = []
        for i, (image, split) in enumerate(images.items()):
            size = raster_info(image).size
            label = np.arange(size.pixels).reshape(size.height, size.width) % 3
            png = make_png(f"label_{i}.png", label.astype(np.uint8))
            scenes.append(Scene(image.stem, image, png, image.stem, split))
        dataset = Dataset("made", tmp_path, tuple(scenes), classes or make_classes(3), **options)
        return check_dataset(dataset, progress=False)

    return run


def leaks(report: CheckReport) -> list[str]:
    return [f.text for f in report.findings if f.kind == "leak"]


def test_the_same_pixels_in_two_splits_are_a_leak_however_they_are_stored(
    check: Check, make_geotiff: Make, make_png: Make
) -> None:
    one = make_geotiff("one.tif", pixels(1), crs=None)
    copy = make_png("copy.png", pixels(1))
    packed = make_geotiff("packed.tif", pixels(1), crs=None, compress="deflate")
    other = make_geotiff("other.tif", pixels(2), crs=None)
    report = check({one: "train", copy: "validation", packed: "train", other: "test"})
    (leak,) = leaks(report)
    assert leak.startswith(f"{one} (train) and {copy} (validation) have the same pixels")
    assert not report.clean
    apart = check({one: "train", packed: "train", other: "test"})
    assert (apart.equal, leaks(apart)) == ((("one", "packed"),), [])


def test_equal_images_with_unlike_labels_are_named(
    tmp_path: Path, make_png: Make, make_classes: Callable[[int], ClassMap]
) -> None:
    """Classes are moved, so that there are as many pixels of each."""
    label = (np.indices((40, 60)).sum(axis=0) % 3).astype(np.uint8)
    images = [make_png(f"i{i}.png", pixels(i % 3)) for i in range(6)]
    size = raster_info(images[0]).size
    label = np.resize(label, (size.height, size.width))
    labels = [make_png(f"l{i}.png", np.roll(label, i // 5, axis=1)) for i in range(6)]
    scenes = [
        Scene(f"s{i}", a, b, f"s{i}", "train") for i, (a, b) in enumerate(zip(images, labels, strict=True))
    ]
    report = check_dataset(Dataset("made", tmp_path, tuple(scenes), make_classes(3)), progress=False)
    assert len(report.equal) == 3
    (told,) = [text for text in report.remarks if "labels" in text]
    assert told.startswith("s2, s5:")


def test_neither_one_other_pixel_nor_empty_tiles_are_a_leak(check: Check, make_geotiff: Make) -> None:
    one, changed, empty = pixels(1), pixels(1), np.full((HEIGHT, WIDTH, 3), 7, np.uint8)
    changed[-1, -1, -1] ^= 1
    for pair in ((one, changed), (empty, empty)):
        train, test = (make_geotiff(f"{i}.tif", image, crs=None) for i, image in enumerate(pair))
        assert leaks(check({train: "train", test: "test"})) == []


@pytest.mark.parametrize(
    ("place", "overlaps"),
    [
        (at(0, 0), "100.0%"),
        (at(10, 10), "38.3%"),
        (at(WIDTH, 0), None),  # adjoins
        (at(WIDTH - 0.5, -HEIGHT + 0.5), None),  # by rounding, half a pixel too near
        (at(0, HEIGHT - 0.4), None),
        (at(5, 5, 30), "62.7%"),
        (at(WIDTH + 9, 15, -45), None),  # their bounding boxes overlap, they do not
        (at(0, 0, pixel=0.25), "100.0%"),
    ],
)
def test_the_same_ground_in_two_splits_is_a_leak(
    place: Affine, overlaps: str | None, check: Check, make_geotiff: Make
) -> None:
    a = make_geotiff("a.tif", pixels(1), transform=at(0, 0))
    b = make_geotiff("b.tif", pixels(2), transform=place)
    found = leaks(check({b: "validation", a: "test"}))
    assert len(found) == (overlaps is not None)
    if overlaps:
        assert f"show the same ground ({overlaps} of the smaller)" in found[0]
    assert leaks(check({a: "train", b: "train"})) == []


def test_ground_is_compared_across_reference_systems(check: Check, make_geotiff: Make) -> None:
    place = Affine(10, 0, 499_900, 0, -10, 5_000_000)
    a = make_geotiff("a.tif", pixels(1), crs="EPSG:32633", transform=place)
    # The same place on the neighbouring zone's grid, and one some kilometres beside it.
    (x,), (y,) = transform("EPSG:32633", "EPSG:32632", [499_900], [5_000_000])
    same = make_geotiff("same.tif", pixels(2), crs="EPSG:32632", transform=Affine(10, 0, x, 0, -10, y))
    away = make_geotiff("away.tif", pixels(3), crs="EPSG:32632", transform=Affine(10, 0, x + 5000, 0, -10, y))
    assert len(leaks(check({a: "train", same: "test"}))) == 1
    assert leaks(check({a: "train", away: "test"})) == []


def test_extents_overlap_where_data_do_not(check: Check, make_geotiff: Make) -> None:
    left, right = pixels(1), pixels(2)
    left[:, WIDTH // 2 :] = 0
    right[:, : WIDTH // 2] = 0
    a, b = (make_geotiff(f"{n}.tif", p, nodata=0) for n, p in (("a", left), ("b", right)))
    whole = make_geotiff("whole.tif", pixels(3))
    assert leaks(check({a: "train", b: "test"})) == []
    assert "48.4% of the smaller" in leaks(check({a: "train", whole: "test"}))[0]


def test_without_any_crs_plain_coordinates_count_unless_they_begin_at_0(check: Check, make_png: Make) -> None:
    a, b = make_png("a.png", pixels(1)), make_png("b.png", pixels(2))
    for origin, number in (("4 6", 1), ("0 0", 0)):
        east, north = map(float, origin.split())
        for path in (a, b):  # a world file gives the middle of the first pixel
            text = f"0.5\n0\n0\n-0.5\n{east + 0.25}\n{north - 0.25}\n"
            path.with_suffix(".pgw").write_text(text)
        assert len(leaks(check({a: "train", b: "test"}))) == number


def test_many_scenes_are_compared_in_little_work(make_geotiff: Make) -> None:
    """A grid of 2,500 adjoining scenes, every other one a test: no leak, and then one between them."""
    info = raster_info(make_geotiff("a.tif", pixels(1)))

    def seen(i: int, col: float, row: float) -> AuditedScene:
        scene = Scene(str(i), Path(f"{i}.tif"), None, str(i), "train" if i % 2 else "test")
        return AuditedScene(scene, None, replace(info, transform=at(col * WIDTH, row * HEIGHT)))

    grid = [seen(i, i % 50, i // 50) for i in range(2500)]
    assert find_leaks(grid) == []
    found = find_leaks([*grid, seen(2501, 10.5, 10)])
    assert 1 <= len(found) <= 2
    assert "2501.tif" in found[0].text()


def test_classes_of_one_colour_are_a_finding(check: Check, make_geotiff: Make) -> None:
    names = ("wood", "road", "path\u200b")
    colours = ((1, 2, 3), (31, 119, 180), (31, 119, 180))
    classes = ClassMap(tuple(map(LandCoverClass, names, colours, range(3))))
    report = check({make_geotiff("a.tif", pixels(1)): "train"}, classes=classes)
    shown = "path\\u200b"
    assert f"road, {shown}: have one colour, #1f77b4; give each its own" in report.text()
    assert not report.clean
    assert all(line.isprintable() for line in report.text().split("\n"))
