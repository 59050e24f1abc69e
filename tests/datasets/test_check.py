"""The audit finds each fault by name, in bounded pieces; the index refuses the same files alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml
from hypothesis import given
from hypothesis import strategies as st

from datasets import leaks as pixels
from datasets import load_dataset
from datasets.__main__ import main
from datasets.check import CheckReport, check_dataset
from datasets.leaks import pieces
from segmenter.base.errors import DatasetError, LabelError, RasterError, run_script
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene, Split
from segmenter.raster import read_label
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


def test_palettes_are_decoded_by_their_colours(
    one: Callable[..., Dataset], make_png: Make, make_classes: Callable[..., ClassMap]
) -> None:
    palette = {0: (0, 0, 255, 255), 1: (0, 255, 255, 255)}
    label = make_png("palette.png", label_of(1), colours=palette)
    report = check_dataset(one(label=label, classes=make_classes(3, encoding="colours")), progress=False)
    assert report.clean
    assert int(report.pixels_K[2]) > SHAPE[0] * SHAPE[1]
    assert check_dataset(one(label=label), progress=False).pixels_K[1] > SHAPE[0] * SHAPE[1]


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


# ---------------------------------------------------------------------------------------- script


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
    assert "… and 2 more; --all shows them" in out
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


def test_check_says_what_cannot_be_paired(recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (recipe.parent / "data" / "labels" / "03.png").unlink()
    assert run("check", recipe) == 2
    assert "1 of 14 image" in capsys.readouterr().err
    assert run("check", recipe, "--set", "dataset.root=/none/such") == 2
    assert "/none/such" in capsys.readouterr().err


def check_real(root: Path, **section: Any) -> CheckReport:
    recipe = recipe_from({"name": "t", "dataset": {"kind": "folder", "root": str(root), **section}}, "t")
    return check_dataset(load_dataset(recipe), progress=False)


def test_amazon_has_a_mask_that_is_wider_than_its_image(shared_data: Callable[[str], Path]) -> None:
    report = check_real(
        shared_data("amazon") / "training",
        images="images/{name}.tiff",
        labels="masks/{name}.png",
        classes=[{"name": "forest", "code": 1}, {"name": "other", "code": 2}],
    )
    assert kinds(report) == ["size"]
    assert "Amazon_181.tiff_34.png: expected 512×512" in report.findings[0].text
    assert "got 515×512" in report.findings[0].text


def test_near_infrared_that_is_tagged_as_alpha_masks_nothing(shared_data: Callable[[str], Path]) -> None:
    names = ("background", "building", "road", "bare", "forest")
    report = check_real(
        shared_data("naip"),
        images="{part}/img/tile_{number}.tif",
        labels="{part}/mask/mask_{number}.tif",
        classes=[{"name": name, "code": i} for i, name in enumerate(names)],
        bands=[1, 2, 3, 4],
        split={"group": "^(train|val)/", "validation": ["val"]},
    )
    assert report.clean
    assert (report.ignored, int(report.pixels_K.sum())) == (0, 6 * 256 * 256)


def test_each_kind_of_finding_names_the_keys_that_settle_it(
    one: Callable[..., Dataset], make_png: Make, make_geotiff: Make, make_classes: Callable[..., ClassMap]
) -> None:
    stray = label_of()
    stray[0, 0] = 40
    damaged = make_png("damaged.png", label_of())
    damaged.write_bytes(damaged.read_bytes()[:20])
    wide = make_geotiff("wide.tif", np.ones((*SHAPE, 4), np.uint16))
    label = make_png("l.png", label_of())
    made = {
        "unknown value": (one(label=make_png("s.png", stray)), {"dataset.ignore", "dataset.classes"}),
        "size": (one(label=make_png("n.png", label_of(1, (9, 9)))), {"left_out.key"}),
        "unreadable": (one(label=damaged), {"left_out.key"}),
        "label": (one(label=None), {"dataset.labels", "dataset.encoding"}),
        "image type": (one(label=label, image=wide), {"dataset.bands"}),
        "class": (one(label=label, classes=make_classes(4)), {"dataset.classes", "dataset.split"}),
        "leak": (one(label=label, split="validation"), {"dataset.split", "left_out.key"}),
    }
    for kind, (dataset, keys) in made.items():
        report = check_dataset(replace(dataset, leave_out="left_out.key"), progress=False)
        assert kind in kinds(report)
        lines = report.text().splitlines()
        place = next(i for i, line in enumerate(lines) if line.startswith(f"{kind}: "))
        settled = next(line for line in lines[place:] if line.startswith("  to settle it: "))
        assert {key for key in keys if key in settled} == keys
    count = len(kinds(report))
    assert lines[-1] == f"not clean: {count} finding{'s' * (count > 1)}"


def test_a_recipe_names_its_own_key_for_leaving_out(tmp_path: Path, make_png: Make) -> None:
    for name, value in (("a", 1), ("b", 7)):
        make_png(f"{name}_image.png", np.full((*SHAPE, 3), value, np.uint8))
        root = make_png(f"{name}_label.png", label_of(value)).parent
    patterns = {"images": "{name}_image.png", "labels": "{name}_label.png"}
    section = {"kind": "folder", "root": str(root), **patterns, "classes": [{"name": "a", "code": 1}]}
    dataset = load_dataset(recipe_from({"name": "t", "dataset": section}, "t"))
    text = check_dataset(dataset, progress=False).text()
    assert "the scene in dataset.split.leave_out" in text
    assert "7: 713 pixels in 1 file: " in text
    assert "warning: dataset.classes: a is the only class" in text
    assert "scale: " not in text
    assert text.endswith("not clean: 1 finding")


def test_a_scene_whose_named_bands_stand_in_another_order_is_found(
    tmp_path: Path, make_geotiff: Make, make_classes: Callable[..., ClassMap], rng: np.random.Generator
) -> None:
    """By the check, and by training before it takes statistics."""
    scenes = []
    for i, names in enumerate([("red", "green"), ("red", "green"), ("green", "red")]):
        image = make_geotiff(f"i{i}.tif", rng.integers(0, 9, (*SHAPE, 2), np.uint8), descriptions=names)
        label = make_geotiff(f"l{i}.tif", rng.integers(0, 3, SHAPE, np.uint8))
        scenes.append(Scene(f"s{i}", image, label, f"s{i}", "train"))
    dataset = Dataset("made", tmp_path, tuple(scenes), make_classes(3))
    kinds = [(finding.kind, finding.scene) for finding in check_dataset(dataset, progress=False).findings]
    assert ("bands", scenes[2]) in kinds
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


def test_a_label_is_opened_once_however_many_pieces_it_has(
    make_geotiff: Make, make_classes: Callable[..., ClassMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make_geotiff("a.tif", np.arange(97 * 53 * 3).reshape(97, 53, 3).astype(np.uint8))
    label = make_geotiff("l.tif", (np.arange(97 * 53) % 3).reshape(97, 53).astype(np.uint8))
    opened: list[str] = []
    original = rasterio.open
    monkeypatch.setattr(
        rasterio, "open", lambda path, *a, **k: opened.append(str(path)) or original(path, *a, **k)
    )
    dataset = Dataset("made", image.parent, (Scene("a", image, label, "a", "train"),), make_classes(3))
    counts = []
    for piece in (1 << 22, 64):
        monkeypatch.setattr(pixels, "_PIECE_PIXELS", piece)
        opened.clear()
        report = check_dataset(dataset, progress=False)
        assert report.clean
        assert int(report.pixels_K.sum()) == 97 * 53
        counts.append(opened.count(str(label)))
    assert counts[0] == counts[1] > 0


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
