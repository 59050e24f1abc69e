"""Data as agencies deliver them: bands in files, other formats, labels of another grid; the page on it."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from rasterio.transform import Affine

from datasets import load_dataset
from datasets.commands import call as main
from datasets.made import MadeFilesError
from segmenter.base.errors import ConfigError, DatasetError, RasterError
from segmenter.config.reading import describe_recipe, recipe_from
from segmenter.config.recipe import Recipe, TilesConfig
from segmenter.grid.geometry import Window
from segmenter.raster import open_raster
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.store import SceneStore
from tests.helpers.refusals import refused

Make = Callable[..., Path]
HERE = Affine(10, 0, 500_000, 0, -10, 5_600_000)
UTM = "EPSG:32633"
SIZE = (36, 44)


def recipe(root: Path, **changes: Any) -> Recipe:
    section: dict[str, Any] = {
        "kind": "folder",
        "root": str(root),
        "images": ["{name}_B02.tif", "{name}_B11.tif"],
        "labels": "landcover.tif",
        "classes": [{"name": "water", "code": 10}, {"name": "road", "code": 20}],
        "split": {"validation": ["c"]},
    }
    return recipe_from({"name": "t", "dataset": {**section, **changes}}, "t")


@pytest.fixture
def root(tmp_path: Path, make_geotiff: Make, rng: np.random.Generator) -> Path:
    """Three scenes side by side of two files each, and one label raster of 20 m for all of them."""
    for i, name in enumerate("abc"):
        at = HERE @ Affine.translation(i * SIZE[1], 0)
        for band, times in (("B02", 1), ("B11", 2)):
            values = rng.integers(1, 9000, (SIZE[0] // times, SIZE[1] // times)).astype(np.uint16)
            make_geotiff(f"d/{name}_{band}.tif", values, crs=UTM, transform=at @ Affine.scale(times))
    codes = rng.choice([10, 20], (SIZE[0] // 2, 3 * SIZE[1] // 2)).astype(np.uint8)
    make_geotiff("d/landcover.tif", codes, crs=UTM, transform=HERE @ Affine.scale(2))
    return tmp_path / "d"


def _check(tmp_path: Path, asked: Recipe, *more: str) -> int:
    (tmp_path / "r.yaml").write_text(describe_recipe(asked))
    return main(["check", str(tmp_path / "r.yaml"), *more])


def test_check_index_and_tiles_see_the_bands_and_the_labels(
    tmp_path: Path, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _check(tmp_path, recipe(root)) == 0
    said = capsys.readouterr().out
    assert "images: 3 of 2 bands, uint16, 10 m a pixel, EPSG:32633, 44×36 pixels" in said
    assert "placed on 3 images by nearest" in said
    dataset = load_dataset(recipe(root))
    assert [scene.split for scene in dataset.scenes] == ["train", "train", "validation"]
    with rasterio.open(root / "landcover.tif") as file:
        codes = np.repeat(np.repeat(file.read(1), 2, axis=0), 2, axis=1)
    index = build_index(dataset, "train", TilesConfig(size=16, min_labelled=0), progress=False)
    store = SceneStore(dataset, dataset.of("train"), 16, cache_folder(dataset), progress=False)
    both = codes[:, : 2 * SIZE[1]]
    assert index.counts_NK.sum() >= both.size
    for i in range(2):
        image, valid, ids = store.read(i, store.window_in_scene(i, Window.of(store.size(i))))
        assert valid.all()
        assert (ids == (codes[:, i * SIZE[1] : (i + 1) * SIZE[1]] == 20)).all()
        with rasterio.open(root / f"{'ab'[i]}_B02.tif") as file:
            assert (image[..., 0] == file.read(1)).all()


@pytest.mark.parametrize("kind", ["labels", "bands"])
def test_files_of_another_folder_are_others_though_names_sizes_and_times_are_equal(
    kind: str, root: Path, make_geotiff: Make
) -> None:
    """Archives unpack files with the times that they had, and uncompressed ones are of equal size."""
    for version in (1, 2):
        codes = np.full((SIZE[0] // 2, SIZE[1] // 2), 10 * version, np.uint8)
        make_geotiff(f"d/labels{version}/a.tif", codes, crs=UTM, transform=HERE @ Affine.scale(2))
        for band, times in (("B02", 1), ("B11", 2)):
            values = np.full((SIZE[0] // times, SIZE[1] // times), version, np.uint16)
            make_geotiff(
                f"d/bands{version}/a_{band}.tif", values, crs=UTM, transform=HERE @ Affine.scale(times)
            )
    for path in root.rglob("*.tif"):
        os.utime(path, (1.6e9, 1.6e9))
    seen = []
    for version in (1, 2):
        of = {"labels": 1, "bands": 1, kind: version}
        asked = recipe(
            root,
            images=[f"bands{of['bands']}/{{name}}_{band}.tif" for band in ("B02", "B11")],
            labels=f"labels{of['labels']}/{{name}}.tif",
            labels_by="georeference",
            split={},
        )
        dataset = load_dataset(asked)
        store = SceneStore(dataset, dataset.of("train"), 16, cache_folder(dataset), progress=False)
        image, _, ids = store.read(0, store.window_in_scene(0, Window.of(store.size(0))))
        seen.append((np.unique(image).tolist(), np.unique(ids).tolist()))
    assert seen == [([1], [0]), ([1], [1]) if kind == "labels" else ([2], [0])]


def test_a_label_for_each_image_is_placed_only_if_the_recipe_says_so(
    tmp_path: Path, root: Path, make_geotiff: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """A label of another size or place is a mistake more often; the line that refuses it says how."""
    for i, name in enumerate("abc"):
        at = HERE @ Affine.translation(i * SIZE[1] - 2, 2) @ Affine.scale(2)
        make_geotiff(f"d/labels/{name}.tif", np.full((20, 23), 10, np.uint8), crs=UTM, transform=at)
    classes = [{"name": "water", "code": 10}]
    asked = {"labels": "labels/{name}.tif", "classes": classes}
    assert _check(tmp_path, recipe(root, **asked)) == 1
    assert "dataset.labels_by: georeference" in capsys.readouterr().out
    assert _check(tmp_path, recipe(root, labels_by="georeference", **asked)) == 0
    # Two rows of the image lie above the label.
    assert f"{3 * 2 * SIZE[1]:,} pixels are ignored or without data" in capsys.readouterr().out
    far = HERE @ Affine.translation(0, 5000)
    make_geotiff("d/labels/b.tif", np.full((20, 23), 10, np.uint8), crs=UTM, transform=far)
    with pytest.raises(MadeFilesError, match=r"b\.tif"):
        load_dataset(recipe(root, labels_by="georeference", **asked))
    assert _check(tmp_path, recipe(root, labels_by="georeference", **asked), "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["clean"], told["unmet"], len(told["findings"])) == (False, [], 1)
    assert "b.tif" in told["findings"][0]["text"]


def test_unknown_values_and_images_without_a_label_are_named(
    root: Path, make_geotiff: Make, tmp_path: Path
) -> None:
    with refused(MadeFilesError, fault="landcover.tif: codes"):
        load_dataset(recipe(root, classes=[{"name": "water", "code": 10}]))
    codes = np.full((SIZE[0] // 2, SIZE[1]), 10, np.uint8)
    make_geotiff("d/landcover.tif", codes, crs=UTM, transform=HERE @ Affine.scale(2))
    with refused(DatasetError, where="dataset.labels", fault="1 of 3 images"):
        load_dataset(recipe(root))
    dataset = load_dataset(recipe(root, unlabelled="skip"))
    assert [scene.name for scene in dataset.scenes] == ["a", "b"]
    assert [why for _, why in dataset.unused] == ["without a label on it (unlabelled: skip)"]
    make_geotiff("d/other.tif", codes, crs=UTM, transform=HERE)
    with refused(DatasetError, got="landcover.tif, other.tif", remedy="VRT"):
        load_dataset(recipe(root, labels="*r.tif"))


@pytest.mark.parametrize(
    ("changes", "error", "fields"),
    [
        ({"images": ["{name}_B02.tif", "{n}_B11.tif"]}, ConfigError, {"expected": "the same"}),
        ({"images": ["{name}_B02.tif", "{name}_B12.tif"]}, DatasetError, {"expected": "B12", "got": "none"}),
        ({"images": ["{name}_B02.tif", "{name}_B*.tif"]}, DatasetError, {"got": "a_B02"}),
        ({"images": "{name}_B*.tif"}, DatasetError, {"got": "2: a_B02.tif, a_B11.tif"}),
        ({"drivers": ["JP2"]}, RasterError, {"where": "dataset.drivers", "fault": "driver JP2"}),
    ],
)  # fmt: skip
def test_files_that_are_no_scenes_are_refused(
    root: Path, changes: dict[str, Any], error: type[Exception], fields: dict[str, object]
) -> None:
    with refused(error, **fields):
        load_dataset(recipe(root, **changes))


def test_a_scene_without_one_of_its_files_and_a_file_without_its_scene_are_named(
    root: Path, make_geotiff: Make
) -> None:
    (root / "b_B11.tif").rename(root / "x_B11.tif")
    with refused(DatasetError, fault="_B11.tif"):
        load_dataset(recipe(root))
    (root / "x_B11.tif").unlink()
    with refused(DatasetError, got="none", remedy="leave_out"):
        load_dataset(recipe(root))
    split = {"validation": ["c"], "leave_out": ["b"]}
    assert [scene.name for scene in load_dataset(recipe(root, split=split)).scenes] == ["a", "c"]


def test_the_grid_is_one_of_the_patterns(root: Path) -> None:
    dataset = load_dataset(recipe(root, grid="{name}_B11.tif"))
    with open_raster(dataset.scenes[0].image) as raster:
        assert (raster.info.size.height, raster.info.size.width) == (SIZE[0] // 2, SIZE[1] // 2)
    with refused(ConfigError, where="dataset.grid", got="_B8A.tif; there are"):
        recipe(root, grid="{name}_B8A.tif")


def _vrt(path: Path, source: Path) -> Path:
    with rasterio.open(source) as file:
        band = f"""<VRTRasterBand dataType="{"Byte" if file.dtypes[0] == "uint8" else "UInt16"}" band="1">
          <SimpleSource><SourceFilename relativeToVRT="1">{source.name}</SourceFilename></SimpleSource>
        </VRTRasterBand>"""
        path.write_text(
            f'<VRTDataset rasterXSize="{file.width}" rasterYSize="{file.height}"><SRS>{UTM}</SRS>'
            f"<GeoTransform>{', '.join(map(str, file.transform.to_gdal()))}</GeoTransform>{band}</VRTDataset>"
        )
    return path


def test_a_vrt_is_opened_where_its_driver_is_named_and_changes_with_its_sources(
    root: Path, make_geotiff: Make
) -> None:
    for name in "abc":
        _vrt(root / f"{name}.vrt", root / f"{name}_B02.tif")
    _vrt(root / "all.vrt", root / "landcover.tif")
    with pytest.raises(MadeFilesError, match=r"dataset\.drivers"):
        load_dataset(recipe(root, images="{name}.vrt"))
    asked = recipe(root, images="{name}.vrt", labels="all.vrt", drivers=["VRT"])
    first, plain = load_dataset(asked), load_dataset(recipe(root, images="{name}_B02.tif"))
    for mine, theirs in zip(first.scenes, plain.scenes, strict=True):
        for one, other in ((mine.image, theirs.image), (mine.label, theirs.label)):
            with rasterio.open(one) as a, rasterio.open(other) as b:
                assert (a.read() == b.read()).all()
                assert a.transform == b.transform
    codes = np.full((SIZE[0] // 2, 3 * SIZE[1] // 2), 20, np.uint8)
    make_geotiff("d/landcover.tif", codes, crs=UTM, transform=HERE @ Affine.scale(2))
    os.utime(root / "a_B02.tif", ns=(1, 1))
    again = load_dataset(asked)
    assert [s.image for s in again.scenes][1:] == [s.image for s in first.scenes][1:]
    assert again.scenes[0].image != first.scenes[0].image
    assert {s.label for s in again.scenes}.isdisjoint({s.label for s in first.scenes})
