"""Odd folders are read rightly or refused in one line: bands in files, one label for all, lists, values."""

import tempfile
from pathlib import Path

import cv2
import numpy as np
import pyogrio.raw
import pytest
import rasterio
import shapely
from hypothesis import given
from hypothesis import strategies as st
from rasterio.warp import transform, transform_bounds

from datasets.start.legends import find_legend
from datasets.start.look import look
from segmenter.base.errors import DatasetError
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import SPLITS
from segmenter.raster import LabelRaster
from tests.helpers import made_folders as made
from tests.helpers.made_folders import by_key, two_folders
from tests.helpers.refusals import refused

Rng = np.random.Generator
QML = """<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>
<qgis><pipe><rasterrenderer><colorPalette><paletteEntry value="0" color="#0a141e" label="grass"/>
<paletteEntry value="1" color="#010203" label="tarmac road"/>
<paletteEntry value="2" color="#0000ff" label="water"/></colorPalette></rasterrenderer></pipe></qgis>"""
EMD = """{"ImageHeight": 256, "ExtractBands": [0, 1, 2, 3], "Classes": [
{"Value": 0, "Name": "grass", "Color": [10, 20, 30]}, {"Value": 1, "Name": "tarmac road", "Color": [1, 2, 3]},
{"Value": 2, "Name": "water", "Color": [0, 0, 255]}]}"""
_ROWS = "".join(
    f"<Row><F>{i}</F><F>{name}</F></Row>" for i, name in enumerate(["grass", "tarmac road", "water"])
)
TABLE = f"""<PAMDataset><PAMRasterBand band='1'><GDALRasterAttributeTable>
<FieldDefn index='0'><Name>Value</Name><Type>0</Type><Usage>5</Usage></FieldDefn>
<FieldDefn index='1'><Name>Class</Name><Type>2</Type><Usage>2</Usage></FieldDefn>
{_ROWS}</GDALRasterAttributeTable></PAMRasterBand></PAMDataset>"""

SLD = QML.replace("paletteEntry value", "ColorMapEntry quantity").replace("<qgis>", "<qgis xmlns='a:sld'>")


def codes(classes: ClassMap) -> dict[str, int]:
    return {each.name: each.code for each in classes.classes}


def test_a_folder_that_is_no_data_set_ends_in_one_line(tmp_path: Path, rng: Rng) -> None:
    (tmp_path / "empty/deep/er").mkdir(parents=True)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_text("water")
    made.save(tmp_path / "images/a.tif", made.image(rng))
    made.save(tmp_path / "images/b.tif", made.image(rng))
    for i in range(3):
        made.save(tmp_path / f"labels/{i}.png", made.label([1, 2], shift=i))
    for name in ("empty", "texts", "images", "labels", "nowhere"):
        with pytest.raises(DatasetError) as caught:
            look(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [1, 4])
def test_names_that_pair_nothing_end_in_one_line(tmp_path: Path, rng: Rng, count: int) -> None:
    for i in range(5):
        made.save(tmp_path / f"im/a{i}.tif", made.image(rng))
    for i in range(count):
        made.save(tmp_path / f"gt/b{i + 50}.png", made.label([0, 1, 2], shift=i))
    with pytest.raises(DatasetError, match="pair"):
        look(tmp_path)


@pytest.mark.parametrize("colours", [True, False])
def test_labels_of_endless_values_are_refused_before_all_are_read(
    tmp_path: Path, rng: Rng, colours: bool
) -> None:
    for i in range(3):
        rows, cols = made.label([0]).shape
        endless = rng.integers(0, 255, (3 * rows, 3 * cols, 3), np.uint8)
        elevations = rng.integers(0, 60_000, (3 * rows, 3 * cols), np.uint16)
        made.save(tmp_path / f"im/{i}.tif", np.repeat(np.repeat(made.image(rng), 3, 0), 3, 1))
        made.save(tmp_path / f"gt/{i}.tif", endless if colours else elevations)
    with pytest.raises(DatasetError, match="in 1 file,"):
        look(tmp_path, tmp_path / "gt")


def test_resampled_colours_are_refused_and_a_palette_with_a_rare_mixture_is_not(
    tmp_path: Path, rng: Rng
) -> None:
    palette = {0: (255, 255, 255), 1: (0, 0, 255), 2: (255, 0, 0), 3: (0, 0, 0)}
    for i in range(3):
        sharp = made.painted(made.label([0, 1, 2, 3], shift=i), palette)
        made.save(tmp_path / f"blurred/im/{i}.png", made.image(rng))
        made.save(tmp_path / f"blurred/gt/{i}.png", cv2.GaussianBlur(sharp, (3, 3), 0))
        sharp[:5, :5] = 128  # between black and white
        made.save(tmp_path / f"sharp/im/{i}.png", made.image(rng))
        made.save(tmp_path / f"sharp/gt/{i}.png", sharp)
    with pytest.raises(DatasetError, match="without loss"):
        look(tmp_path / "blurred")
    assert len(made.planned(tmp_path / "sharp")[2].classes) in (4, 5)


def test_named_colours_are_classes_also_between_others(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        sharp = made.painted(made.label([0, 1], shift=i), {0: (0, 0, 0), 1: (255, 0, 0)})
        for k in range(4):
            sharp[3 * k : 3 * k + 3, :3] = (51 * (k + 1), 0, 0)
        made.save(tmp_path / f"im/{i}.png", made.image(rng))
        made.save(tmp_path / f"gt/{i}.png", sharp)
    names = ["land", "road", "roof", "field", "lake", "wood"]
    lines = [f"#{51 * k:02x}0000 {name}" for k, name in enumerate(names)]
    (tmp_path / "classes.txt").write_text("\n".join(lines))
    assert [each.name for each in made.planned(tmp_path)[2].classes.classes] == names


def test_labels_of_whole_numbers_as_floats_are_codes(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng, 5, dtype="float32"))
        made.save(tmp_path / f"gt/{i}.tif", made.label([1, 2, 3], shift=i).astype(np.float32), nodata=-9999)
    assert [each.code for each in made.planned(tmp_path)[2].classes.classes] == [1, 2, 3]


def test_grey_masks_are_cut_in_the_middle(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/{i}.jpg", made.image(rng))
        made.save(tmp_path / f"gt/{i}.jpg", (made.label([0, 1], shift=i) * 240).astype(np.uint8))
    _, _, dataset = made.planned(tmp_path)
    low, high = dataset.classes.classes
    assert (low.code, high.code) == (0, 240)
    assert sorted((low.code, *low.also, high.code, *high.also)) == list(range(256))
    assert low.also == (*range(1, 121),)


def test_jpegs_of_several_codes_are_refused(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/{i}.jpg", made.image(rng))
        made.save(tmp_path / f"gt/{i}.jpg", (made.label([0, 1, 2], shift=i) * 100 + 20).astype(np.uint8))
    with refused(DatasetError, where="labels", expected="a value for each class, at most"):
        look(tmp_path)


@pytest.mark.parametrize("nodata", [None, np.nan])
def test_reflectance_from_0_to_1_and_mostly_empty_images_are_no_labels(
    tmp_path: Path, rng: Rng, nodata: float | None
) -> None:
    for i in range(3):
        image = made.image(rng, 4, dtype="float32") / 1e6
        image[: len(image) * 3 // 4] = np.nan if nodata is not None else 0
        made.save(tmp_path / f"im/{i}.tif", image, nodata=nodata)
        made.save(tmp_path / f"gt/{i}.tif", made.label([111, 211, 512], shift=i).astype(np.uint16))
    assert len(made.planned(tmp_path)[2].scenes) == 3


@pytest.mark.parametrize("path", ["im/s{}.tif", "gt/s{}.png"])
def test_files_without_a_partner_are_skipped_and_counted(tmp_path: Path, rng: Rng, path: str) -> None:
    two_folders(tmp_path, rng)
    what = "image" if path.startswith("im") else "label"
    for i in (7, 8):
        made.save(tmp_path / path.format(i), made.image(rng) if what == "image" else made.label((0, 1, 2)))
    choices, recipe, dataset = made.planned(tmp_path)
    assert by_key(choices)["dataset.unlabelled"].value == "skip"
    assert f"2 {what}s" in by_key(choices)["dataset.unlabelled"].reason
    assert len(dataset.scenes) == 5
    assert recipe.dataset.kind == "folder"


def test_damaged_and_ill_fitting_scenes_are_left_out_by_name(tmp_path: Path, rng: Rng) -> None:
    two_folders(tmp_path, rng, 10)
    (tmp_path / "im/s1.tif").write_bytes(b"II*\0")
    made.save(tmp_path / "gt/s4.png", made.label([0, 1, 2], size=(61, 86)))
    choices, _, dataset = made.planned(tmp_path)
    assert by_key(choices)["dataset.split.leave_out"].value == ["s1", "s4"]
    assert by_key(choices)["dataset.split.leave_out"].left
    assert len(dataset.scenes) == 8
    made.save(tmp_path / "gt/s5.png", made.label([0, 1, 2], size=(61, 86)))
    with refused(DatasetError, where=str(tmp_path), expected="labels that fit them"):
        look(tmp_path)


def test_of_two_label_folders_one_is_taken_and_the_other_named(tmp_path: Path, rng: Rng) -> None:
    two_folders(tmp_path, rng)
    for i in range(5):
        made.save(tmp_path / f"gt_coarse/s{i}.png", made.label([0, 1], shift=i))
    choices, _, dataset = made.planned(tmp_path)
    assert by_key(choices)["dataset.labels"].value == "gt/{name}.png"
    assert "gt_coarse" in by_key(choices)["dataset.labels"].other
    assert len(dataset.scenes) == 5


def test_labels_elsewhere_are_named(tmp_path: Path, rng: Rng, monkeypatch: pytest.MonkeyPatch) -> None:
    two_folders(tmp_path / "a", rng)
    (tmp_path / "a/gt").rename(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path)
    _, recipe, dataset = made.planned(Path("a"), Path("elsewhere"))
    assert recipe.dataset.root == "."
    assert len(dataset.scenes) == 5
    (tmp_path / "here").mkdir()
    (tmp_path / "elsewhere").rename(tmp_path / "here/gt")
    monkeypatch.chdir(tmp_path / "here")
    for data in (Path("../a"), tmp_path / "a"):  # the common folder lies above
        _, recipe, dataset = made.planned(data, Path("gt"))
        assert recipe.dataset.root == (".." if data.parts[0] == ".." else tmp_path.as_posix())
        assert len(dataset.scenes) == 5


def test_one_image_and_its_label_named_by_hand(tmp_path: Path, rng: Rng) -> None:
    image = made.save(tmp_path / "a/scene.tif", made.image(rng))
    truth = made.save(tmp_path / "b/other.png", made.label([1, 4]))
    _, _, dataset = made.planned(image, truth)
    assert made.pairs_of(dataset) == {("a/scene.tif", "b/other.png")}


def test_bands_in_files_become_one_image(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        for band, times in (("B02", 1), ("B03", 1), ("B8A", 2)):
            size = tuple(side // times for side in (60, 84))
            where = made.place(i * 84) if times == 1 else made.place(i * 42, made.METRES * 2)
            made.save(tmp_path / f"s{i}_{band}.tif", made.image(rng, 1, size, "uint16"), **where)
        made.save(tmp_path / f"s{i}_label.tif", made.label([1, 2, 7], (60, 84), i), **made.place(i * 84))
    choices, _, dataset = made.planned(tmp_path)
    assert by_key(choices)["dataset.images"].value == [
        f"{{name}}_{band}.tif" for band in ("B02", "B03", "B8A")
    ]
    assert [scene.name for scene in dataset.scenes] == ["s0", "s1", "s2"]


def test_words_of_labels_name_scenes_and_no_bands(tmp_path: Path, rng: Rng) -> None:
    """Two dates in two folders: what differs within a folder would else be its bands."""
    for i in range(6):
        for folder in "AB":
            made.save(tmp_path / f"{folder}/x{i}.tif", made.image(rng, 1), **made.place(i * made.SIZE[1]))
        made.save(tmp_path / f"label/x{i}.tif", made.label([0, 1], shift=i))
    choices, _, dataset = made.planned(tmp_path)
    assert [scene.name for scene in dataset.scenes] == [f"x{i}" for i in range(6)]
    assert "B/x0.tif" in by_key(choices)["dataset.images"].other


def test_a_folder_of_bands_for_each_scene(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        for band in ("blue", "green", "red", "nir"):
            made.save(tmp_path / f"s{i}/{band}.tif", made.image(rng, 1), **made.place(i * 83))
        made.save(tmp_path / f"s{i}/mask.tif", made.label([1, 2], shift=i), **made.place(i * 83))
    choices, _, _ = made.planned(tmp_path)
    value = by_key(choices)["dataset.images"].value
    assert value == [f"{{folder}}/{band}.tif" for band in ("red", "green", "blue", "nir")]
    assert by_key(choices)["dataset.labels"].value == "{folder}/mask.tif"


def test_of_bands_the_finest_is_the_image_that_labels_lie_on(tmp_path: Path, rng: Rng) -> None:
    """BigEarthNet has the bands in order, so that the coarsest, of aerosols, is the first."""
    for i in range(3):
        for band, metres in (("B01", 60), ("B02", 10), ("B03", 10), ("B11", 20)):
            where, side = made.place(i * 1200 // metres, metres), 1200 // metres
            made.save(tmp_path / f"s{i}/x{i}_{band}.tif", made.image(rng, 1, (side, side), "uint16"), **where)
        where = made.place(i * 120, 10)
        made.save(tmp_path / f"maps/x{i}_map.tif", made.label([1, 2], (120, 120), shift=i), **where)
    keys = by_key(made.planned(tmp_path)[0])
    assert [str(pattern)[-7:-4] for pattern in keys["dataset.images"].value] == ["B01", "B02", "B03", "B11"]
    assert "dataset.labels_by" not in keys
    assert keys["dataset.metres_per_pixel"].reason.startswith("10 m")


def test_products_of_sentinel_2_with_one_map(tmp_path: Path, rng: Rng) -> None:
    for i, tile in enumerate(("T33UVR", "T33UWR")):
        inside = tmp_path / f"S2B_MSIL2A_2023_{tile}.SAFE/GRANULE/L2A_{tile}_A03{i}/IMG_DATA"
        for band, metres in (("B02", 10), ("B03", 10), ("B11", 20), ("B02", 20)):
            side = 120 * 10 // metres
            where = made.place(i * side, metres)
            path = inside / f"R{metres}m/{tile}_2023_{band}_{metres}m.jp2"
            made.save(path, made.image(rng, 1, (side, side), "uint16"), **where)
        quality = made.label(range(9), (60, 60), i).astype(np.uint8)  # layers of the product, no labels
        for path in (f"IMG_DATA/R20m/{tile}_2023_SCL_20m.jp2", "QI_DATA/MSK_CLDPRB_20m.jp2"):
            made.save(inside.parent / path, quality, **made.place(i * 60, 20))
    made.save(tmp_path / "map.tif", made.label([10, 20, 80], (130, 270)), **made.place(-1, 10))
    choices, _, dataset = made.planned(tmp_path)
    keys = by_key(choices)
    assert [Path(value).name for value in keys["dataset.images"].value] == [
        "{name}_B02_10m.jp2",
        "{name}_B03_10m.jp2",
        "{name}_B11_20m.jp2",
    ]
    assert keys["dataset.labels"].value == "map.tif"
    assert keys["dataset.drivers"].value == ["JP2OpenJPEG"]
    assert [scene.name for scene in dataset.scenes] == ["T33UVR_2023", "T33UWR_2023"]
    assert codes(dataset.classes) == {"class 10": 10, "class 20": 20, "class 80": 80}


def test_labels_that_need_a_driver_are_read_by_it(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng), **made.place(i * 100))
        made.save(
            tmp_path / f"gt/{i}.jp2", made.label([0, 1, 2], shift=i).astype(np.uint8), **made.place(i * 100)
        )
    _, _, dataset = made.planned(tmp_path)
    for i, scene in enumerate(dataset.scenes):
        assert scene.label is not None
        with LabelRaster(scene.label, dataset.classes) as label:
            np.testing.assert_array_equal(label.ids(), made.label([0, 1, 2], shift=i))


def test_labels_of_another_grid_are_placed(tmp_path: Path, rng: Rng) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng, 4, (60, 80), "uint16"), **made.place(i * 80))
        made.save(
            tmp_path / f"lc/{i}.tif", made.label([3, 4], (30, 40), i), **made.place(i * 40, made.METRES * 2)
        )
    choices, _, dataset = made.planned(tmp_path)
    assert by_key(choices)["dataset.labels_by"].value == "georeference"
    assert len(dataset.scenes) == 3


@pytest.mark.parametrize(("right", "reached"), [(120, 3), (70, 2)])
def test_one_file_of_polygons_labels_the_images_that_it_reaches(
    tmp_path: Path, rng: Rng, right: int, reached: int
) -> None:
    raw = pytest.importorskip("pyogrio.raw")
    for i in range(3):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng), **made.place(i * made.SIZE[1]))
    left, top = made.LEFT, made.TOP
    shapes = [shapely.box(left + x, top - 20, left + x + 8, top - 2) for x in range(0, right, 10)]
    landuse, names = ["road", "water", "wood"] * 4, [f"id{i}" for i in range(12)]
    kind = ["old", "new", "", ""] * 3  # a usual name, of half of the polygons
    fields = [np.array(values[: len(shapes)], object) for values in (landuse, names, kind)]
    options = {"driver": "GPKG", "geometry_type": "Polygon", "crs": "EPSG:25833"}
    raw.write(
        tmp_path / "areas.gpkg",
        shapely.to_wkb(np.array(shapes)),
        fields,
        ["landuse", "uid", "kind"],
        **options,
    )
    choices, _, dataset = made.planned(tmp_path)
    assert by_key(choices)["dataset.vector.attribute"].value == "landuse"
    assert dataset.classes.names == ["road", "water", "wood"]
    assert len(dataset.scenes) == reached


def test_polygons_of_one_class_leave_a_background(tmp_path: Path, rng: Rng) -> None:
    raw = pytest.importorskip("pyogrio.raw")
    for i in range(3):
        made.save(tmp_path / f"im/{i}.tif", made.image(rng), **made.place(i * made.SIZE[1]))
        corner = made.LEFT + i * made.SIZE[1] * made.METRES
        shapes = [shapely.box(corner + x, made.TOP - 20, corner + x + 4, made.TOP - 9) for x in (3, 12, 30)]
        fields = [np.array(["yes"] * 3, object), np.array([1.5 * i, 2.5, 3.5])]
        options = {"driver": "GeoJSON", "geometry_type": "Polygon", "crs": "EPSG:25833"}
        (tmp_path / "footprints").mkdir(exist_ok=True)
        path = tmp_path / f"footprints/{i}.geojson"
        raw.write(path, shapely.to_wkb(np.array(shapes)), fields, ["building", "height"], **options)
    choices, _, dataset = made.planned(tmp_path)
    assert by_key(choices)["dataset.labels"].value == "footprints/{name}.geojson"
    assert dataset.classes.names == ["background", "building"]


def test_of_layers_the_one_of_polygons_is_drawn_and_the_smaller_lie_above(tmp_path: Path, rng: Rng) -> None:
    raw = pytest.importorskip("pyogrio.raw")
    made.save(tmp_path / "ortho.tif", made.image(rng), **made.place())
    x, y = made.LEFT, made.TOP
    corners = [(0, 30, 20), (20, 30, 20), (5, 20, 10), (25, 20, 10)]
    areas = [shapely.box(x + a, y - b, x + a + side, y - b + side) for a, b, side in corners]
    lines = [shapely.LineString([(x, y), (x + 20, y - 9)])]
    options = {"driver": "GPKG", "crs": "EPSG:25833"}
    for kind, shapes, names in (("LineString", lines, ["a"]), ("Polygon", areas, [*"aabb"])):
        fields = [np.array(names, object)]
        wkb = shapely.to_wkb(np.array(shapes))
        raw.write(tmp_path / "map.gpkg", wkb, fields, ["class"], geometry_type=kind, layer=kind, **options)
    _, _, dataset = made.planned(tmp_path)
    with LabelRaster(dataset.scenes[0].label, dataset.classes) as label:
        assert (label.ids() == dataset.classes.names.index("b")).sum() == 2 * 400


def test_of_several_files_of_polygons_for_one_image_none_is_guessed(tmp_path: Path, rng: Rng) -> None:
    raw = pytest.importorskip("pyogrio.raw")
    made.save(tmp_path / "ortho.tif", made.image(rng), **made.place())
    shapes = shapely.to_wkb(np.array([shapely.box(made.LEFT, made.TOP - 9, made.LEFT + 9, made.TOP)]))
    for name in ("trees", "roads"):
        options = {"driver": "GPKG", "geometry_type": "Polygon", "crs": "EPSG:25833"}
        raw.write(tmp_path / f"{name}.gpkg", shapes, [np.array([1])], ["id"], **options)
    with refused(DatasetError, got="roads.gpkg, trees.gpkg"):
        look(tmp_path)
    assert made.planned(tmp_path, tmp_path / "trees.gpkg")[0]


def test_clouds_may_be_what_is_mapped(tmp_path: Path, rng: Rng) -> None:
    two_folders(tmp_path, rng, values=(0, 1))
    (tmp_path / "classes.txt").write_text("0 clear\n1 cloud\n")
    assert made.planned(tmp_path)[2].classes.names == ["clear", "cloud"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("classes.txt", "0 grass\n1 tarmac road\n2 water\n"),
        ("classes.csv", "code,name\n0,grass\n1,tarmac road\n2,water\n"),
        ("class_dict.csv", "name,value,r,g,b\ngrass,0,10,20,30\ntarmac road,1,1,2,3\nwater,2,0,0,255\n"),
        ("names.txt", "grass\ntarmac road\nwater\n"),
        ("gt.clr", "0 10 20 30 255 grass\n1 1 2 3 255 tarmac road\n2 0 0 255 255 water\n"),
        ("classes.json", '{"grass": 0, "tarmac road": 1, "water": 2}'),
        ("meta.json", '{"0": "grass", "1": "tarmac road", "2": "water"}'),
        ("labels.json", '["grass", "tarmac road", "water"]'),
        ("colours.json", '{"grass": [0, 10, 20, 30], "tarmac road": [1, 1, 2, 3], "water": [2, 0, 0, 255]}'),
        (
            "categories.json",
            '{"info": {"year": 2020}, "categories": [{"supercategory": "land", "id": 0, "name": "grass"},'
            '{"id": 1, "name": "tarmac road"}, {"name": "water", "id": 2, "color": "#0000ff"}]}',
        ),
        ("by_code.json", '{"0": {"name": "grass"}, "1": {"name": "tarmac road"}, "2": {"name": "water"}}'),
        ("classes.txt", "grass:0\ntarmac road:1\nwater:2\n"),
        ("data.yaml", "train: ../train\nnc: 3\nnames: [grass, tarmac road, water]\n"),
        ("data.yml", "nc: 3\nnames:\n  0: grass\n  1: tarmac road\n  2: water\n"),
        (
            "meta.yaml",
            "classes:\n- {name: grass, code: 0}\n- {name: tarmac road, code: 1}\n- {name: water, code: 2}\n",
        ),
        ("data.json", '{"nc": 3, "names": ["grass", "tarmac road", "water"]}'),
        ("crops.csv", 'name;code;parcels\n"grass";0;901\ntarmac road;1;2\nwater;2;12\n'),
        ("clc.csv", "grid,clc,level1,level3\n0,111,land,grass\n1,112,land,tarmac road\n2,512,sea,water\n"),
        ("clc.csv", "clc,grid,level1,level3\n111,0,land,grass\n112,1,land,tarmac road\n512,2,sea,water\n"),
        ("class_dict.csv", "name,r,g,b\ngrass,10,20,30\ntarmac road,1,2,3\nwater,0,0,255\n"),
        ("model.emd", EMD),
        ("style.qml", QML),
        ("gt/s0.png.aux.xml", TABLE),
        ("style.sld", SLD),
    ],
)
def test_lists_beside_the_labels_name_the_classes(tmp_path: Path, rng: Rng, file: str, text: str) -> None:
    two_folders(tmp_path, rng)
    (tmp_path / file).write_text(text)
    choices, _, dataset = made.planned(tmp_path)
    assert codes(dataset.classes) == {"grass": 0, "tarmac road": 1, "water": 2}
    assert file in by_key(choices)["dataset.classes"].reason
    if file.endswith((".clr", ".qml")) or "r,g,b" in text or "255]" in text or "#" in text:
        assert dataset.classes.classes[2].colour == (0, 0, 255)


def test_the_table_of_a_raster_of_arcgis_names_the_classes(tmp_path: Path, rng: Rng) -> None:
    two_folders(tmp_path, rng)
    names = ["grass, low", "tarmac road", "Wasserfläche"]
    columns = {"VALUE": [0, 1, 2], "COUNT": [9.0, 1, 2], "NLCD_Land": names, "RED": [0.1, 1, 0]}
    cells = [np.array(each, object if each is names else None) for each in columns.values()]
    table = tmp_path / "nlcd.tif.vat.dbf"
    pyogrio.raw.write(table, None, cells, list(columns), geometry_type=None, driver="ESRI Shapefile")
    assert codes(made.planned(tmp_path)[2].classes) == {name: code for code, name in enumerate(names)}


@pytest.mark.parametrize(
    "text",
    [
        "epochs: 2\nbatch: 1\nseed: 0\nrate: 0.1\n",
        "bands: [red, green, blue]\n",
        "data:\n  workers: 2\n  gpu: 0\n  shuffle: true\n  splits: [train, val, test]\nmodel: {depth: 1}\n",
    ],
)
def test_settings_name_no_classes(tmp_path: Path, rng: Rng, text: str) -> None:
    two_folders(tmp_path, rng)
    (tmp_path / "config.yaml").write_text(text)
    assert codes(made.planned(tmp_path)[2].classes) == {f"class {code}": code for code in range(3)}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252", "gb18030"])
def test_lists_are_read_as_windows_writes_them(tmp_path: Path, rng: Rng, encoding: str) -> None:
    names = (
        ["Grünland 2", "Straße, Weg", "Gehölz (Süd)"] if encoding != "gb18030" else ["耕地 2", "草地", "水"]
    )
    two_folders(tmp_path, rng)
    text = "\n".join(f'{code};"{name}"' for code, name in enumerate(names))
    (tmp_path / "Legende.csv").write_bytes(text.encode(encoding))
    assert made.planned(tmp_path)[2].classes.names == names


@given(
    st.one_of(
        st.text(), st.text(alphabet="<>/&!Row F1:=,;\"'#[]{}\n", max_size=60), st.sampled_from([QML, TABLE])
    ),
    st.text(),
)
def test_a_list_may_hold_any_text(text: str, more: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for ending in (".txt", ".qml", ".json"):
            (Path(folder) / f"a{ending}").write_bytes((text + more).encode("utf-8", "replace"))
        legend = find_legend(Path(folder), ["a.txt", "a.qml", "a.json"], [0, 1, 2], colours=False)
        assert all(entry.name == " ".join(entry.name.split()) for entry in legend.entries)


@pytest.mark.parametrize("words", [("tr", "val", "ts"), ("TrainSet", "EvalSet", "HoldSet")])
def test_folders_tell_the_split_by_many_words(tmp_path: Path, rng: Rng, words: tuple[str, ...]) -> None:
    for word in words:
        two_folders(tmp_path / word, rng, 2)
    dataset = made.planned(tmp_path)[2]
    for word, split in zip(words, SPLITS, strict=True):
        assert {scene.split for scene in dataset.scenes if word in scene.image.parts} == {split}


def test_palettes_that_agree_give_colours_and_those_that_differ_give_classes(
    tmp_path: Path, rng: Rng
) -> None:
    colours = {0: (200, 0, 0, 255), 1: (0, 200, 0, 255), 2: (0, 0, 200, 255)}
    two_folders(tmp_path / "same", rng, palette=colours)
    _, _, dataset = made.planned(tmp_path / "same")
    assert [each.colour for each in dataset.classes.classes] == [colours[i][:3] for i in range(3)]
    assert dataset.classes.encoding == "codes"
    two_folders(tmp_path / "other", rng, palette=colours)
    turned = {0: colours[1], 1: colours[2], 2: colours[0]}
    made.save(tmp_path / "other/gt/s0.png", made.label([2, 0, 1]), palette=turned)
    _, _, dataset = made.planned(tmp_path / "other")
    assert dataset.classes.encoding == "colours"
    assert {each.colour for each in dataset.classes.classes} == {colours[i][:3] for i in range(3)}


def test_values_that_look_like_no_class_are_ignored_with_counts(tmp_path: Path, rng: Rng) -> None:
    for i in range(5):
        light, drawn = made.image(rng), made.label([1, 2, 3], shift=i)
        light[:, :6], drawn[:, :6] = 0, 0
        drawn[20:22, 30:33] = 255
        made.save(tmp_path / f"im/{i}.tif", light)
        made.save(tmp_path / f"gt/{i}.png", drawn)
    choices, _, dataset = made.planned(tmp_path)
    ignored = by_key(choices)["dataset.ignore"]
    assert ignored.value == [0, 255]
    assert f"{5 * 6 * made.SIZE[0]:,} pixels" in ignored.reason
    assert "30 pixels" in ignored.reason
    assert [each.code for each in dataset.classes.classes] == [1, 2, 3]


@pytest.mark.parametrize("pixel", [0.3, 2.0, 9.0])
@pytest.mark.parametrize("crs", [None, "EPSG:4326"])
def test_one_raster_of_labels_has_the_classes_that_lie_on_images(
    crs: str | None, pixel: float, tmp_path: Path, rng: Rng
) -> None:
    """Images are turned by 30 degrees; three pixels beside them the label has another value."""
    turned = rasterio.Affine.translation(made.LEFT, made.TOP) @ rasterio.Affine.rotation(30)
    places = [turned @ rasterio.Affine(0.5, 0, 60 * i, 0, -0.5, 0) for i in range(4)]
    for i, place in enumerate(places):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng), crs="EPSG:25833", transform=place)
    low, high = (made.LEFT - 40, made.TOP - 60), (made.LEFT + 240, made.TOP + 180)
    cols, rows = (int((b - a) / pixel) for a, b in zip(low, high, strict=True))
    x, y = np.meshgrid(np.arange(cols) + 0.5, np.arange(rows) + 0.5)
    if crs is None:
        grid = rasterio.Affine(pixel, 0, low[0], 0, -pixel, high[1])
        east, north = grid.c + pixel * x, grid.f - pixel * y
    else:
        west, south, right, top = transform_bounds("EPSG:25833", crs, *low, *high)
        grid = rasterio.Affine((right - west) / cols, 0, west, 0, (south - top) / rows, top)
        moved = transform(crs, "EPSG:25833", (grid.c + grid.a * x).ravel(), (grid.f + grid.e * y).ravel())
        east, north = (np.reshape(each, x.shape) for each in moved)
    label, margin = np.full(x.shape, 9, np.uint8), 6 * pixel
    for place in places:
        col, row = ~place @ (east, north)
        on = (col > -margin) & (col < made.SIZE[1] + margin) & (row > -margin) & (row < made.SIZE[0] + margin)
        label[on] = rng.integers(1, 4, int(on.sum()))
    made.save(tmp_path / "lc.tif", label, crs=crs or "EPSG:25833", transform=grid)
    _, recipe, dataset = made.planned(tmp_path)
    assert [each.code for each in recipe.dataset.classes] == [1, 2, 3]
    assert len(dataset.scenes) == 4
