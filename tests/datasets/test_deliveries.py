"""Data as agencies deliver them: bands in files, other formats, labels of another grid; the page on it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml
from numpy.typing import NDArray
from rasterio.rio.main import main_group
from rasterio.transform import Affine
from rasterio.warp import transform

from datasets import load_dataset
from datasets.__main__ import main
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
ROOT = Path(__file__).parents[2]
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
    """As an image and as the label of all; without the driver, the line says which key opens it."""
    for name in "abc":
        _vrt(root / f"{name}.vrt", root / f"{name}_B02.tif")
    _vrt(root / "all.vrt", root / "landcover.tif")
    with pytest.raises(MadeFilesError, match=r"dataset\.drivers"):
        load_dataset(recipe(root, images="{name}.vrt"))
    asked = recipe(root, images="{name}.vrt", labels="all.vrt", drivers=["VRT"])
    first, plain = load_dataset(asked), load_dataset(recipe(root, images="{name}_B02.tif"))
    for mine, theirs in zip(first.scenes, plain.scenes, strict=True):
        for one, other in ((mine.image, theirs.image), (mine.label, theirs.label)):
            assert one is not None
            assert other is not None
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


CODES = np.array([10, 20, 30, 40, 50, 60, 80, 90], np.uint8)
_BANDS = {10: ("B02", "B03", "B04", "B08"), 20: ("B11", "B12")}
_STEP = 1 / 12_000
_WEST, _NORTH = 14.995, 50.56


def land(longitude: NDArray[np.float64], latitude: NDArray[np.float64]) -> NDArray[np.intp]:
    """Class numbers of fields some 150 m wide."""
    east, north = np.floor(longitude * 400).astype(int), np.floor(latitude * 700).astype(int)
    return (east * 3 + north * 5) % len(CODES)


def product(root: Path, tile: str, x: float, y: float, pixels: int, seed: int) -> Path:
    """A product of six bands in EPSG:32633; its last columns hold 0, as at the end of an orbit."""
    name = f"S2B_MSIL2A_20230610T101609_N0509_R065_{tile}_20230610T132509.SAFE"
    data = root / name / "GRANULE" / f"L2A_{tile}_A032710" / "IMG_DATA"
    rng = np.random.default_rng(seed)
    for side, bands in _BANDS.items():
        n, at = pixels * 10 // side, Affine(side, 0, x, 0, -side, y)
        cols, rows = np.meshgrid(np.arange(n) + 0.5, np.arange(n) + 0.5)
        lon, lat = transform("EPSG:32633", "EPSG:4326", *(at @ (cols.ravel(), rows.ravel())))
        kind = land(np.array(lon), np.array(lat)).reshape(n, n)
        for i, band in enumerate(bands):
            values = 1500 + 900 * ((kind * (i + 3)) % 8) + rng.integers(-99, 99, kind.shape)
            values[:, n - 80 // side :] = 0
            path = data / f"R{side}m" / f"{tile}_20230610T101609_{band}_{side}m.jp2"
            path.parent.mkdir(parents=True, exist_ok=True)
            with rasterio.open(
                path, "w", driver="JP2OpenJPEG", width=n, height=n, count=1, dtype="uint16",
                crs="EPSG:32633", transform=at, QUALITY="100", REVERSIBLE="YES",
            ) as file:  # fmt: skip
                file.write(values.astype(np.uint16), 1)
    return root / name


def worldcover(root: Path, width: int, height: int) -> Path:
    """A tile of the map, from 14.995° E and 50.56° N on."""
    lon, lat = _WEST + (np.arange(width) + 0.5) * _STEP, _NORTH - (np.arange(height) + 0.5) * _STEP
    path = root / "ESA_WorldCover_10m_2021_v200_N48E015_Map.tif"
    with rasterio.open(
        path, "w", driver="GTiff", width=width, height=height, count=1, dtype="uint8", nodata=0,
        crs="EPSG:4326", transform=Affine(_STEP, 0, _WEST, 0, -_STEP, _NORTH), tiled=True,
    ) as file:  # fmt: skip
        file.write(CODES[land(*np.meshgrid(lon, lat))], 1)
    return path


@pytest.mark.parametrize("map_too", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_page_leads_from_products_to_a_map(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, map_too: bool
) -> None:
    """Its recipe and its commands, as they stand there, on made files of that layout."""
    page = (ROOT / "docs" / "start_sentinel2.md").read_text(encoding="utf-8")
    data = tmp_path / "data"
    for i, tile in enumerate(("T33UVR", "T33UVS", "T33UWR")):
        product(data / "s2", tile, 500_000 + 1280 * i, 5_600_000, 128, i)
    product(data / "new", "T33UXR", 500_000, 5_598_720, 96, 9)
    worldcover(data / "s2", 700, 250)
    section = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    section |= {"tiles": {"size": 32}, "model": {"depth": 2, "width": 8}, "name": "s2"}
    section["training"] = {"global_batch": 8, "epochs": 1}
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(yaml.safe_dump(section))
    loop, commands = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    score = re.search(r"`--labels (\S+_Map\.tif)`", page)
    assert score is not None
    monkeypatch.chdir(tmp_path)
    for call in _run(tmp_path, f'rio() {{ echo "$*"; }}\n{loop}').splitlines():
        main_group(call.split(), standalone_mode=False)  # a process for each file takes a minute
    for line in commands.splitlines():
        more = f" --labels {score[1]}" if line.startswith("python predict.py") else ""
        said = _run(tmp_path, line.replace(" train.py", f" {ROOT}/train.py")
                    .replace(" predict.py", f" {ROOT}/predict.py") + more)  # fmt: skip
        if " check " in line:
            assert "placed on 3 images by the majority" in said
            assert said.endswith("clean\n")
            if not map_too:
                return
    assert "1 map in maps" in said
    assert "mIoU" in said
    (made,) = (tmp_path / "maps").glob("*.tif")
    assert made.stem == "S2B_MSIL2A_20230610T101609_N0509_R065_T33UXR_20230610T132509"
    with rasterio.open(made) as file:
        found = file.read(1)
        assert (file.crs, file.shape, file.transform[2]) == (rasterio.crs.CRS.from_epsg(32633), (96, 96), 5e5)
    assert (found[:, -8:] == 255).all()
    assert (found[:, :-8] < 8).all()


def _run(folder: Path, command: str) -> str:
    """What a line of the page prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder / "cache")}
    command = re.sub(r"^python ", f"{sys.executable} ", command)
    done = subprocess.run(
        ["bash", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
