"""Law 10, one meaning: however files say the same thing, index, batches, map and score see the same.

A made scene is written in many ways; each is seen as the plainest one is, or refused by name. Nothing else.
"""

import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray
from rasterio.crs import CRS
from rasterio.errors import NotGeoreferencedWarning

from segmenter.base.errors import SegmenterError
from segmenter.config.recipe import TilesConfig
from segmenter.grid.geometry import Window
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import Dataset, Scene
from segmenter.tiles.index import build_index
from segmenter.tiles.store import SceneStore
from tests.helpers.exact_network import fake_run, run_predict

SIZE = (75, 91)
CLASSES = 7
PLACE = rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000)
FILL = 251
"""Value of image pixels without data, which no other pixel has."""

TILES = TilesConfig(size=32, overlap=4, min_labelled=0)

Write = Callable[["Made", Path], None]


@dataclass(frozen=True)
class Made:
    """A scene: (H, W, 3) image, where it has data, (H, W) ids, and where nothing is labelled."""

    image: NDArray[Any]
    valid: NDArray[np.bool_]
    ids: NDArray[np.uint8]
    void: NDArray[np.bool_]


def made(dtype: str = "uint8") -> Made:
    rng = np.random.default_rng(11)
    image = rng.integers(1, 250, (*SIZE, 3)).astype(dtype)
    valid = np.ones(SIZE, np.bool_)
    valid[:20, 30:70] = False
    image[~valid] = FILL
    void = np.zeros(SIZE, np.bool_)
    void[50:, :33] = True
    ids = rng.integers(0, CLASSES, (15, 13)).repeat(5, axis=0).repeat(7, axis=1).astype(np.uint8)
    ids[void] = 0  # a class stands there
    return Made(image, valid, ids, void)


def _tif(path: Path, array: NDArray[Any], beside: bool = False, **options: Any) -> None:
    """A GeoTIFF; `mask`, `clear` (the last band is alpha), `names`, `scale`; else GDAL's options."""
    bands = array if array.ndim == 3 else array[..., None]
    mask, names, scale = (options.pop(key, None) for key in ("mask", "names", "scale"))
    grid = {"crs": "EPSG:25833", "transform": PLACE, "driver": "GTiff"}
    shape = {"height": bands.shape[0], "width": bands.shape[1], "count": bands.shape[2], "dtype": bands.dtype}
    with (
        rasterio.Env(GDAL_TIFF_INTERNAL_MASK=not beside),
        rasterio.open(path, "w", **{**grid, **shape, **options}) as file,
    ):
        file.write(np.moveaxis(bands, 2, 0))
        if mask is not None:
            file.write_mask(np.where(mask, 255, 0).astype(np.uint8))
        for band, name in enumerate(names or (), 1):
            file.set_band_description(band, name)
        if scale is not None:
            file.scales, file.offsets = [scale] * bands.shape[2], [0.0] * bands.shape[2]


def _with_alpha(scene: Made) -> NDArray[Any]:
    top = np.iinfo(scene.image.dtype).max if scene.image.dtype.kind == "u" else 255
    return np.dstack([scene.image, np.where(scene.valid, top, 0).astype(scene.image.dtype)])


def _aux(path: Path, *bands: int) -> None:
    texts = (f'<PAMRasterBand band="{b}"><NoDataValue>{FILL}</NoDataValue></PAMRasterBand>' for b in bands)
    path.with_name(path.name + ".aux.xml").write_text(f"<PAMDataset>{''.join(texts)}</PAMDataset>")


def _nodata_beside(scene: Made, path: Path) -> None:
    _tif(path, scene.image)
    _aux(path, 1, 2, 3)


def _png(scene: Made, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        bands = _with_alpha(scene)
        shape = {"height": SIZE[0], "width": SIZE[1], "count": 4, "dtype": "uint8"}
        with rasterio.open(path.with_suffix(".png"), "w", driver="PNG", **shape) as file:
            file.write(np.moveaxis(bands, 2, 0))
    world = "\n".join(map(str, (0.5, 0, 0, -0.5, 368000.25, 5807999.75)))
    path.with_suffix(".pgw").write_text(world)


def _pages(scene: Made, path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    first, *others = (Image.fromarray(scene.image[..., band].copy()) for band in range(3))
    first.save(path, save_all=True, append_images=others)


def _turned(scene: Made, path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    Image.fromarray(scene.image[::-1, ::-1]).save(path, tiffinfo={274: 3})


IMAGES: dict[str, Write] = {
    "mask inside": lambda s, p: _tif(p, s.image, mask=s.valid),
    "mask beside": lambda s, p: _tif(p, s.image, beside=True, mask=s.valid),
    "alpha": lambda s, p: _tif(p, _with_alpha(s), alpha="YES"),
    "nodata": lambda s, p: _tif(p, s.image, nodata=FILL),
    "nodata beside": _nodata_beside,
    "tiles, deflated, BigTIFF": lambda s, p: _tif(
        p, s.image, nodata=FILL, tiled=True, blockxsize=16, blockysize=32, compress="deflate", BIGTIFF="YES"
    ),
    "planes, big-endian": lambda s, p: _tif(
        p, s.image, nodata=FILL, interleave="band", compress="lzw", predictor=2, ENDIANNESS="BIG"
    ),
    "CRS with heights": lambda s, p: _tif(p, s.image, nodata=FILL, crs="EPSG:25833+7837"),
    "CRS as WKT": lambda s, p: _tif(p, s.image, nodata=FILL, crs=CRS.from_wkt(CRS.from_epsg(25833).to_wkt())),
    "named bands": lambda s, p: _tif(p, s.image, nodata=FILL, names=("Red", "Green", "Blue")),
    "other order, named": lambda s, p: _tif(
        p, s.image[..., ::-1], nodata=FILL, names=("Blue", "Green", "Red"), photometric="MINISBLACK"
    ),
    "PNG with alpha and a world file": _png,
    "pages": _pages,
    "stored turned": _turned,
}
FLOATS: dict[str, Write] = {
    "floats": lambda s, p: _tif(p, np.where(s.valid[..., None], s.image, np.nan).astype(np.float32)),
    "nodata": lambda s, p: _tif(p, s.image.astype(np.float32), nodata=FILL),
    "scaled": lambda s, p: _tif(p, s.image.astype(np.int16) * 2, nodata=2 * FILL, scale=0.5),
    "mask": lambda s, p: _tif(p, s.image.astype(np.float32), mask=s.valid, interleave="band"),
}
_ODD = 99


def _label_png(scene: Made, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        bands = np.dstack([scene.ids, np.where(scene.void, 0, 255).astype(np.uint8)])
        shape = {"height": SIZE[0], "width": SIZE[1], "count": 2, "dtype": "uint8"}
        with rasterio.open(path.with_suffix(".png"), "w", driver="PNG", **shape) as file:
            file.write(np.moveaxis(bands, 2, 0))


def _coded(scene: Made, value: float, dtype: str) -> NDArray[Any]:
    return np.where(scene.void, value, scene.ids.astype(dtype)).astype(dtype)


_LEAST = float(np.finfo(np.float32).min)
LABELS: dict[str, Write] = {
    "ignored code": lambda s, p: _tif(p, _coded(s, _ODD, "uint8")),
    "nodata": lambda s, p: _tif(p, _coded(s, 200, "uint8"), nodata=200),
    "nodata −1": lambda s, p: _tif(p, _coded(s, -1, "int16"), nodata=-1),
    "nodata 65535": lambda s, p: _tif(p, _coded(s, 65535, "uint16"), nodata=65535, compress="deflate"),
    "floats with NaN": lambda s, p: _tif(p, _coded(s, np.nan, "float32"), tiled=True),
    "nodata −3.4e38": lambda s, p: _tif(p, _coded(s, _LEAST, "float32"), nodata=_LEAST),
    "mask inside": lambda s, p: _tif(p, s.ids, mask=~s.void),
    "mask beside": lambda s, p: _tif(p, s.ids, beside=True, mask=~s.void),
    "grey with alpha": _label_png,
    "CRS with heights": lambda s, p: _tif(p, _coded(s, _ODD, "uint8"), crs="EPSG:25833+7837"),
    "nodata that is a class": lambda s, p: _tif(p, s.ids, nodata=0),
}


def _raster_in(folder: Path) -> Path:
    return next(file for file in folder.iterdir() if file.suffix in (".tif", ".png"))


@dataclass(frozen=True)
class World:
    """Folders and tools of one test."""

    root: Path
    classes: ClassMap
    predict: Callable[..., int]

    def seen(self, name: str, scene: Made, image: Write, label: Write, dtype: str) -> dict[str, Any] | str:
        """What index, batches, map and score see of a scene; or the refusal, which names a file."""
        folder = self.root / name
        for part in ("images", "labels"):
            (folder / part).mkdir(parents=True)
        image(scene, folder / "images" / "s.tif")
        label(scene, folder / "labels" / "s.tif")
        files = [_raster_in(folder / part) for part in ("images", "labels")]
        dataset = Dataset(name, folder, (Scene("s", *files, "s", "train"),), self.classes)
        try:
            index = build_index(dataset, "train", TILES, progress=False)
            store = SceneStore(dataset, dataset.scenes, 32, folder, progress=False)
            batch = [part.tolist() for part in store.read(0, Window(-3, 5, 70, 80))]
        except SegmenterError as error:
            return str(error)
        if self.predict(files[0], files[1], folder / "maps", dtype):
            return (folder / "maps" / "said").read_text()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotGeoreferencedWarning)
            with rasterio.open(folder / "maps" / "s.tif") as file:
                ids = file.read(1).tolist()
        scores = json.loads((folder / "maps" / "scores.json").read_text())
        return {
            "index": [index.counts_NK.tolist(), index.row_N.tolist(), index.col_N.tolist()],
            "batch": batch,
            "map": ids,
            "score": [scores["iou"], scores["pixels"]],
        }


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_classes: Callable[..., ClassMap], capsys: Any
) -> World:
    classes = make_classes(CLASSES, ignored=(_ODD,))

    def call(image: Path, label: Path, output: Path, dtype: str) -> int:
        names = ("red", "green", "blue")
        run = fake_run(classes, dtype=dtype, band_names=names)
        options = ("--format", "geotiff", "--labels", str(label).replace("/s.", "/{stem}."))
        capsys.readouterr()
        code = run_predict(monkeypatch, run, image, *options, "--output", output, insist=False)
        if code:
            output.mkdir(exist_ok=True)
            (output / "said").write_text(capsys.readouterr().err)
        return code

    return World(tmp_path, classes, call)


def _agrees(found: dict[str, Any] | str, plain: dict[str, Any], name: str) -> bool:
    """Whether what was seen is what the plainest way shows; a refusal has to name the file."""
    if isinstance(found, str):
        assert "/s." in found, found
        return False
    for what, value in plain.items():
        assert found[what] == value, f"{name}: {what}"
    return True


@pytest.mark.slow
def test_every_way_to_write_an_image_shows_the_same(world: World) -> None:
    for dtype, ways in (("uint8", IMAGES), ("float32", FLOATS)):
        scene, refused = made(), set()
        first, *others = ways
        label = LABELS["ignored code"]
        plain = world.seen(f"plain {dtype}", scene, ways[first], label, dtype)
        assert isinstance(plain, dict), plain
        for name in others:
            if not _agrees(world.seen(f"{dtype} {name}", scene, ways[name], label, dtype), plain, name):
                refused.add(name)
        assert refused == ({"other order, named", "pages", "stored turned"} if dtype == "uint8" else set())


def test_every_way_to_write_a_label_shows_the_same(world: World) -> None:
    scene, image = made(), IMAGES["nodata"]
    found = {name: world.seen(name, scene, image, way, "uint8") for name, way in LABELS.items()}
    plain = found["ignored code"]
    assert isinstance(plain, dict), plain
    asked = [name for name, seen in found.items() if not _agrees(seen, plain, name)]
    assert asked == ["nodata that is a class"]
    assert "label_nodata" in str(found["nodata that is a class"])


def test_a_file_put_beside_later_is_seen_by_all(world: World) -> None:
    """A mask, or a nodata value, beside an image or its label: index, batches and packs are made anew."""
    scene = made()
    plain = world.seen("plain", scene, IMAGES["mask beside"], LABELS["mask beside"], "uint8")
    assert isinstance(plain, dict)
    folder = world.root / "later"
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True)
    image, label = folder / "images" / "s.tif", folder / "labels" / "s.tif"
    _tif(image, scene.image)
    _tif(label, scene.ids)
    dataset = Dataset("later", folder, (Scene("s", image, label, "s", "train"),), world.classes)

    def seen() -> list[Any]:
        index = build_index(dataset, "train", TILES, progress=False)
        store = SceneStore(dataset, dataset.scenes, 4, folder, progress=False)  # so small: from packs
        batch = [part.tolist() for part in store.read(0, Window(-3, 5, 70, 80))]
        return [index.counts_NK.tolist(), batch]

    before = seen()
    for kind in ("images", "labels"):
        shutil.copy(world.root / "plain" / kind / "s.tif.msk", folder / kind)
    after = seen()
    assert after != before
    assert after == [plain["index"][0], plain["batch"]]
