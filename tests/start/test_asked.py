"""Names and places of a stranger's files that prove nothing are asked about, refused or set aside."""

from pathlib import Path

import numpy as np
import pyogrio.raw
import pytest
import shapely

from datasets.start.choice import Choice
from segmenter.base.errors import DatasetError
from tests.helpers import made_folders as made
from tests.helpers.refusals import refused

Rng = np.random.Generator


def by_key(choices: tuple[Choice, ...]) -> dict[str, Choice]:
    return {choice.key: choice for choice in choices}


def areas(root: Path, rng: Rng, codes: list[int]) -> Path:
    """Folders of areas as OpenEarthMap has them, and many others."""
    for n, area in enumerate(("berlin", "paris", "rome")):
        for i in range(2):
            made.save(root / area / f"images/s{i}.tif", made.image(rng), **made.place(n * 200 + i * 83))
            made.save(root / area / f"labels/s{i}.png", made.label(codes, shift=i))
    return root


@pytest.mark.parametrize("codes", [[0, 1, 2, 3], [1, 2, 3], [0, 1, 2, 3, 4]])
def test_few_codes_in_folders_that_anyone_has_are_of_no_published_list(
    codes: list[int], tmp_path: Path, rng: Rng
) -> None:
    choices, recipe, _ = made.planned(areas(tmp_path, rng, codes))
    assert [each.code for each in recipe.dataset.classes] == codes
    assert "dataset.ignore" not in by_key(choices)
    assert "rangeland" not in {each.name for each in recipe.dataset.classes}


def test_all_codes_of_a_published_list_are_asked_with_zero_as_a_class(tmp_path: Path, rng: Rng) -> None:
    choices, recipe, _ = made.planned(areas(tmp_path, rng, list(range(9))))
    chosen = by_key(choices)["dataset.classes"]
    assert recipe.dataset.classes[1].name == "rangeland"
    assert list(recipe.dataset.ignore) == [0]
    assert chosen.question
    assert [each["code"] for each in chosen.instead["dataset.classes"]] == list(range(9))
    assert chosen.instead["dataset.ignore"] == []


@pytest.mark.parametrize(("poor", "count"), [(1, 8), (3, 8)])
def test_images_of_fewer_bands_are_left_out_or_asked(poor: int, count: int, tmp_path: Path, rng: Rng) -> None:
    for i in range(count):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng, 1 if i < poor else 3), **made.place(i * 83))
        made.save(tmp_path / f"gt/s{i}.png", made.label([0, 1, 2], shift=i))
    chosen = by_key(made.planned(tmp_path)[0])
    names = [f"s{i}" for i in range(poor)]
    if poor == 1:
        assert "dataset.bands" not in chosen
        assert chosen["dataset.split.leave_out"].value == names
        assert "1 band" in chosen["dataset.split.leave_out"].left
    else:
        bands = chosen["dataset.bands"]
        assert (bands.value, bool(bands.question)) == ([1], True)
        assert bands.instead == {"dataset.bands": [1, 2, 3], "dataset.split.leave_out": names}


def test_a_scene_that_is_left_out_anyway_costs_no_band(tmp_path: Path, rng: Rng) -> None:
    for i in range(9):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng, 1 if not i else 3), **made.place(i * 83))
        size = (30, 41) if not i else made.SIZE
        made.save(tmp_path / f"gt/s{i}.png", made.label([0, 1, 2], size, shift=i))
    chosen = by_key(made.planned(tmp_path)[0])
    assert chosen["dataset.split.leave_out"].value == ["s0"]
    assert "dataset.bands" not in chosen


@pytest.mark.parametrize(
    ("fields", "classes"), [(("COUNTY", "CROP"), 4), (("BEZIRK", "NUTZUNG"), 4), (("AREA_A", "THEME"), 0)]
)
def test_the_attribute_of_classes_is_known_by_its_name_or_asked(
    fields: tuple[str, str], classes: int, tmp_path: Path, rng: Rng
) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng), **made.place(i * 83))
    boxes = [shapely.box(x, made.TOP - 30, x + 3, made.TOP - 1) for x in made.LEFT + np.arange(24) * 5.0]
    of = [np.array([f"county {n % 3}" for n in range(24)], object)]
    of += [np.array([f"crop {n // 2 % 4}" for n in range(24)], object)]
    pyogrio.raw.write(
        str(tmp_path / "fields.gpkg"), np.array(shapely.to_wkb(boxes), object), of, list(fields),
        driver="GPKG", geometry_type="Polygon", crs="EPSG:25833",
    )  # fmt: skip
    chosen = by_key(made.planned(tmp_path)[0])["dataset.vector.attribute"]
    if classes:
        assert (chosen.value, chosen.question) == (fields[1], "")
    else:
        assert chosen.question
        other = chosen.instead["dataset.vector"]["attribute"]
        assert {chosen.value, other} == set(fields)
        assert len(chosen.instead["dataset.classes"]) > 2


@pytest.mark.filterwarnings("ignore:'crs' was not provided")
@pytest.mark.parametrize(("west", "lies"), [(0.0, True), (9e5, False)])
def test_polygons_without_crs_have_that_of_the_images_that_they_lie_on(
    west: float, lies: bool, tmp_path: Path, rng: Rng
) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng), **made.place(i * 83))
    boxes = [
        shapely.box(made.LEFT + west + x, made.TOP - 30, made.LEFT + west + x + 9, made.TOP) for x in (1, 50)
    ]
    pyogrio.raw.write(
        str(tmp_path / "fields.shp"), np.array(shapely.to_wkb(boxes), object), [np.array(["a", "b"], object)],
        ["class"], geometry_type="Polygon", crs=None,
    )  # fmt: skip
    assert not (tmp_path / "fields.prj").exists()
    if lies:
        choices, _, dataset = made.planned(tmp_path)
        assert by_key(choices)["dataset.vector.crs"].value == "EPSG:25833"
        assert len(dataset.scenes) == 3
    else:
        with pytest.raises(DatasetError):
            made.planned(tmp_path)


@pytest.mark.parametrize("folder", ["mapping QA", "QA", "labels_scl"])
def test_a_folder_named_like_a_layer_of_quality_loses_no_data(folder: str, tmp_path: Path, rng: Rng) -> None:
    for i in range(5):
        made.save(tmp_path / folder / f"images/s{i}.tif", made.image(rng), **made.place(i * 83))
        made.save(tmp_path / folder / f"labels/s{i}.png", made.label([0, 1, 2], shift=i))
    assert len(made.planned(tmp_path)[2].scenes) == 5


def test_layers_of_quality_are_no_labels(tmp_path: Path, rng: Rng) -> None:
    for i in range(5):
        made.save(tmp_path / f"images/s{i}.tif", made.image(rng), **made.place(i * 83))
        made.save(tmp_path / f"labels/s{i}.tif", made.label([0, 1, 2], shift=i))
        made.save(tmp_path / f"SCL/s{i}.tif", made.label([4, 5, 6], shift=i))
    assert [each.code for each in made.planned(tmp_path)[1].dataset.classes] == [0, 1, 2]


@pytest.mark.parametrize(
    "codes", [[110000, 120000, 130000], [111, 212, 70000], [1, 2, 65536]], ids=lambda each: str(each[-1])
)
def test_codes_that_a_recipe_cannot_say_are_refused_by_their_number(
    codes: list[int], tmp_path: Path, rng: Rng
) -> None:
    for i in range(5):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng), **made.place(i * 83))
        label_HW = np.array(codes, np.int32)[made.label(range(len(codes)), shift=i)]
        made.save(tmp_path / f"gt/s{i}.tif", label_HW)
    with refused(DatasetError, where="labels", remedy="renumber"):
        made.planned(tmp_path)


@pytest.mark.parametrize(("void", "dtype"), [(65535, "uint16"), (2**31 - 1, "int32"), (2**32 - 1, "uint32")])
def test_the_largest_value_of_a_type_means_no_data(void: int, dtype: str, tmp_path: Path, rng: Rng) -> None:
    for i in range(5):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng), **made.place(i * 83))
        label_HW = np.array([1, 2, void], dtype)[made.label(range(3), shift=i)]
        made.save(tmp_path / f"gt/s{i}.tif", label_HW)
    assert [each.code for each in made.planned(tmp_path)[1].dataset.classes] == [1, 2]
