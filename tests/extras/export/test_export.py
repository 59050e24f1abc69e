"""Exported models give the map of predict.py, by their runtimes alone; what does not is refused."""

import contextlib
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
from numpy.typing import NDArray

from benchmarks.export_table import measured_model
from datasets.commands import predict
from datasets.commands.export import main
from segmenter.base.errors import ConfigError, ExportError, run_script
from segmenter.extras.export import exporting
from segmenter.extras.export.check import CheckImages, ExportAgreement, ProbePixels, compare, probes
from segmenter.extras.export.exporting import Tile, choose_tile
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.grid.scenes import Scene
from segmenter.grid.windows import round_up
from segmenter.mapping.jobs import RasterRequest
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster.remote.settings import RemotePath
from segmenter.runs.records import save_validation_images, validation_images
from segmenter.runs.run import load_run
from tests.helpers.made_rasters import PLACE, written
from tests.helpers.maps import ids
from tests.helpers.random_run import random_run
from tests.helpers.refusals import refused

# Found, not imported: tf2onnx imports TensorFlow, which is the fixture's to do.
LIBRARIES = ("onnx", "onnxruntime", "tf2onnx")
pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in LIBRARIES),
    reason="the libraries of the extra `export` are not installed",
)

PAGE = Path(__file__).parents[3] / "docs" / "export.md"
HEIGHT, WIDTH, TIE = 155, 203, 5e-3
Export = Callable[..., "Exported"]


@dataclass
class Mapped:
    """An odd raster with holes, and its map and probabilities by predict.py."""

    run: Path
    image_HWC: NDArray[np.uint16]
    ids_HW: NDArray[np.uint8]
    margin_HW: NDArray[np.float32]

    @property
    def pixels(self) -> NDArray[np.float32]:
        """(H, W, C) as an exported model takes them."""
        image = self.image_HWC.astype(np.float32)
        image[(self.image_HWC == 0).all(axis=-1)] = np.nan
        return image

    def check(self, ids_HW: NDArray[np.uint8], where: Any = ...) -> None:
        """The law: equal but for ties."""
        other = ids_HW[where] != self.ids_HW[where]
        assert not (other & (self.margin_HW[where] >= TIE)).any()
        assert other.mean() < 1e-3


@dataclass
class Exported:
    """Path, what was printed, and the .json beside."""

    path: Path
    said: str

    @property
    def facts(self) -> Any:
        return json.loads(self.path.with_name(f"{self.path.name}.json").read_text())


@pytest.fixture(scope="module")
def mapped(
    tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory, make_classes: Callable[..., ClassMap]
) -> Mapped:
    folder = tmp_path_factory.mktemp("export")
    run = random_run(folder / "mine", make_classes(4), depth=1)
    rng = np.random.default_rng(4)
    image = rng.integers(1, 1000, (HEIGHT, WIDTH, 3), np.uint16)
    image[:40, 60:90] = 0
    file = written(folder / "a.tif", image, nodata=0, **PLACE)
    save_validation_images(run, [Scene("a", file, None, "a", "validation")])
    with contextlib.redirect_stdout(io.StringIO()):
        maps = folder / "maps"
        call = [str(run), str(file), "--output", str(maps), "--probabilities", "float16"]
        assert predict.main(call) == 0
    with rasterio.open(next(maps.glob("a.prob*.tif"))) as raster:
        best = np.sort(raster.read().astype(np.float32), axis=0)
    found = ids(maps / "a.tif")
    assert len(np.unique(found[found != IGNORE])) == 4
    return Mapped(run, image, found, best[-1] - best[-2])


@pytest.fixture(scope="module")
def export(mapped: Mapped, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """`export("--format", "onnx")`: made once for the same options."""
    folder, made = tmp_path_factory.mktemp("models"), {}

    def make(*options: str) -> Exported:
        if options not in made:
            said = io.StringIO()
            before = set(folder.iterdir())
            with contextlib.redirect_stdout(said):
                assert main([str(mapped.run), "--output", str(folder), *options]) == 0
            (path,) = (p for p in set(folder.iterdir()) - before if p.suffix != ".json")
            made[options] = Exported(path, said.getvalue())
        return made[options]

    return make


def session(exported: Exported) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(exported.path), providers=["CPUExecutionProvider"])


def test_onnx_of_any_size_gives_the_map(mapped: Mapped, export: Export) -> None:
    """The whole raster at once, of odd sides; a batch of two; nodata as NaN."""
    exported = export("--format", "onnx")
    assert "checked on the run's validation images: 2 windows" in exported.said
    image = mapped.pixels.transpose(2, 0, 1)
    model = session(exported)
    given = {"image": np.stack([image, image[:, ::-1]])}
    found = dict(zip([each.name for each in model.get_outputs()], model.run(None, given), strict=True))
    assert found["classes"].shape == (2, HEIGHT, WIDTH)
    mapped.check(found["classes"][0])
    holes = np.isnan(image).any(axis=0)
    assert holes.sum() == 40 * 30
    assert (found["classes"][0][holes] == IGNORE).all()
    assert (found["probabilities"][0][:, holes] == 0).all()
    np.testing.assert_allclose(found["probabilities"][0][:, ~holes].sum(axis=0), 1, atol=1e-5)


@pytest.mark.slow
def test_savedmodel_of_any_size_gives_the_map(tensorflow: Any, mapped: Mapped, export: Export) -> None:
    exported = export("--format", "savedmodel")
    serve = tensorflow.saved_model.load(str(exported.path)).signatures["serving_default"]
    mapped.check(serve(image=tensorflow.constant(mapped.pixels[None]))["classes"].numpy()[0])
    assert exported.facts["input"]["image"]["shape"] == ["batch", "height", "width", 3]


def test_tiling_as_the_page_says_gives_the_map(mapped: Mapped, export: Export) -> None:
    """The page's own lines, in small windows over the odd raster; with less overlap they do not."""
    exported, network = export("--format", "onnx"), load_run(mapped.run).network
    assert (exported.facts["radius"], exported.facts["stride"]) == (network.radius, network.stride)
    halo = round_up(exported.facts["radius"], exported.facts["stride"])
    code = re.search(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL)
    text = code[1].replace("models/mine.onnx", str(exported.path))
    assert "window, halo = 512, 112" in text

    def tiled(halo: int) -> NDArray[np.uint8]:
        names: dict[str, Any] = {}
        exec(text.replace("window, halo = 512, 112", f"window, halo = {2 * halo + 32}, {halo}"), names)
        found: NDArray[np.uint8] = names["tiled_map"](mapped.pixels.transpose(2, 0, 1))
        return found

    mapped.check(tiled(halo))
    assert (tiled(4) != mapped.ids_HW).mean() > 0.01


def test_facts_are_in_the_file_and_beside_it(mapped: Mapped, export: Export) -> None:
    import onnx
    import onnxruntime

    exported, run = export("--format", "onnx"), load_run(mapped.run)
    graph = onnx.load(str(exported.path)).graph
    axes = {v.name: [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim]
            for v in (*graph.input, *graph.output)}  # fmt: skip
    free = ["batch", "height", "width"]
    assert axes["image"] == ["batch", 3, "height", "width"]
    assert axes["classes"] == free
    assert axes["probabilities"] == ["batch", 4, "height", "width"]
    inside = {p.key: json.loads(p.value) for p in onnx.load(str(exported.path)).metadata_props}
    beside = exported.facts
    checked = beside.pop("checked")
    assert inside == beside
    assert beside["class_names"] == run.classes.names
    assert beside["bands"] == [1, 2, 3]
    assert beside["metres_per_pixel"] == 0.5
    assert beside["run_checksum"] == run.checksum()
    mean, std = map(list, (run.normalisation.mean, run.normalisation.std))
    assert beside["normalisation"] == {"where": "inside", "mean": mean, "std": std}
    assert checked["pixels"] > 0
    assert checked["largest_difference"] < 1e-3
    assert checked["versions"]["onnxruntime"] == onnxruntime.__version__


@pytest.fixture(scope="module")
def deepness(export: Export) -> Exported:
    return export("--format", "onnx", "--profile", "deepness", "--size", "96")


@pytest.mark.slow
def test_deepness_finds_its_keys_and_gives_the_map(mapped: Mapped, deepness: Exported) -> None:
    """Where it has data, and farther than the radius from what it fills up with zeros."""
    run = load_run(mapped.run)
    keys = session(deepness).get_modelmeta().custom_metadata_map
    names = json.loads(keys["class_names"])
    assert [names[str(number)] for number in range(len(names))] == run.classes.names
    assert json.loads(keys["resolution"]) == 50
    tile = Tile(json.loads(keys["tile_size"]), json.loads(keys["tiles_overlap"]))
    assert tile.overlap // 2 >= (run.network.radius or 0)
    found = as_deepness(session(deepness), mapped.image_HWC)
    radius = run.network.radius or 0
    below = np.s_[40 + radius : HEIGHT - radius, : WIDTH - radius]
    mapped.check(found.astype(np.uint8), below)


@pytest.mark.slow
def test_half_precision_is_half_as_large(mapped: Mapped, export: Export) -> None:
    import onnx

    exported = export("--format", "onnx", "--fp16")
    weights = onnx.load(str(exported.path)).graph.initializer
    sizes = {kind: sum(len(w.raw_data) for w in weights if w.data_type == kind) for kind in (1, 10)}
    assert sizes[10] > 10 * sizes[1], "float16 against float32"
    assert exported.facts["checked"]["tolerance"] == 0.05
    found = session(exported).run(["classes"], {"image": mapped.pixels.transpose(2, 0, 1)[None]})[0][0]
    assert (found != mapped.ids_HW).mean() < 0.01


@pytest.fixture
def declined(mapped: Mapped, tmp_path: Path, capsys: Any) -> Any:
    """`declined("--size", "31")`: exit code and the one line; nothing is left behind."""
    output = tmp_path / "made" / "models"

    def call(*options: str, run: str = str(mapped.run), format: str = "onnx") -> tuple[int, str]:
        code = run_script(lambda: main([run, "--format", format, "--output", str(output), *options]))
        out, error = capsys.readouterr()
        assert out == ""
        assert error.count("\n") == 1, error
        assert not output.parent.exists()
        return code, error

    return call


@pytest.mark.slow
def test_another_class_is_refused(declined: Any, monkeypatch: Any) -> None:
    reading = exporting.read_model

    def rolled(*arguments: Any) -> Any:
        runtime = reading(*arguments)

        def other(image: Any) -> Any:
            probabilities, classes = runtime(image)
            return probabilities, np.where(classes == IGNORE, IGNORE, (classes + 1) % 4).astype(np.uint8)

        return other

    monkeypatch.setattr(exporting, "read_model", rolled)
    code, line = declined("--size", "64", format="savedmodel")
    assert code == 1
    assert "another class than predict.py at" in line
    assert line.endswith("nothing was written\n")


def test_a_full_disk_is_one_line(declined: Any, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(exporting, "write_model", full)
    code, line = declined()
    assert code == 1
    assert "No space left on device" in line


def test_wrong_calls_are_one_line(declined: Any, monkeypatch: Any, tmp_path: Path) -> None:
    two = declined(run="runs/a,runs/b")
    assert two[0] == 2
    assert "expected one run, got several" in two[1]
    assert "multiple of 2, the model's stride, got 31" in declined("--size", "31")[1]
    assert "expected --format onnx" in declined("--profile", "deepness", format="savedmodel")[1]
    assert "b.tif" in declined("--images", str(tmp_path / "b.tif"))[1]
    assert "run.json" in declined(run=str(tmp_path))[1]
    monkeypatch.setattr("segmenter.extras.export.formats.find_spec", lambda name: None)
    assert "needs the package tf2onnx: make export" in declined()[1]


def test_what_is_there_stays_unless_it_is_to_be_replaced(
    mapped: Mapped, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    """And what a killed call left goes; a model without images is said to be checked on made pixels. What
    computes is left out."""
    from segmenter.extras.export import exporting, graph

    def written(format: str, exported: Any, path: Path, *_: Any, **__: Any) -> None:
        path.mkdir()
        (path / "saved_model.pb").write_bytes(b"model")

    monkeypatch.setattr(exporting, "load_member", lambda *_: None)
    monkeypatch.setattr(graph, "exported_function", lambda *_: None)
    monkeypatch.setattr(exporting, "write_model", written)
    monkeypatch.setattr(exporting, "_check_file", lambda *_: ExportAgreement(2, 9, 0.0, 0, 1e-3))
    folder = tmp_path / "models"
    (folder / "mine.savedmodel").mkdir(parents=True)
    (folder / ".mine.savedmodel.killed_0").mkdir()
    call = [str(mapped.run), "--format", "savedmodel", "--output", str(folder), "--size", "64"]
    assert run_script(lambda: main(call)) == 2
    assert "exists already" in capsys.readouterr().err
    assert list((folder / "mine.savedmodel").iterdir()) == []
    (mapped.run / "validation.json").rename(tmp_path / "aside.json")
    (mapped.run / "validation.json").write_text('{"format": 1, "images": ["/home/kim/a.tif"]}')
    try:
        assert run_script(lambda: main([*call, "--overwrite"])) == 0
    finally:
        (tmp_path / "aside.json").rename(mapped.run / "validation.json")
    said = capsys.readouterr().out
    assert "MADE PIXELS, not imagery: the run's validation images are not here (/home/kim/a.tif" in said
    beside = (folder / "mine.savedmodel.json").read_text()
    assert json.loads(beside)["checked"]["on"] == "MADE PIXELS, not imagery"
    assert "kim" not in beside  # which travels
    assert sorted(path.name for path in folder.iterdir()) == ["mine.savedmodel", "mine.savedmodel.json"]
    assert (folder / "mine.savedmodel" / "saved_model.pb").is_file()


SHAPE = (1, 5, 7)
TOLERANCE = 1e-3


class _Original:
    """A model of one probability everywhere, which keeps what it is given."""

    at_once = 1

    def __init__(self, *probabilities: float) -> None:
        self.probabilities = np.array(probabilities, np.float32)
        self.valid: NDArray[np.bool_] | None = None

    def part(self, *_: Any) -> Any:
        raise NotImplementedError

    def weighted(self, image: Any, valid: Any, rows: Any, cols: Any) -> NDArray[np.float32]:
        self.valid = valid
        return np.broadcast_to(self.probabilities, (*valid.shape, len(self.probabilities)))


def _compare(original: _Original, *found: float, nodata: int = IGNORE) -> ExportAgreement:
    """With a runtime that gives such probabilities, and a class where there is no data."""

    def runtime(image: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        lacks = np.isnan(image).any(axis=-1)
        values = np.broadcast_to(np.array(found, np.float32), (*lacks.shape, len(found)))
        classes = values.argmax(axis=-1).astype(np.uint8)
        return np.where(lacks[..., None], 0, values), np.where(lacks, nodata, classes).astype(np.uint8)

    valid = np.ones(SHAPE, np.bool_)
    valid[:, 1, 2] = False
    probe = ProbePixels(np.zeros((*SHAPE, 2), np.uint8), valid)
    return compare(original, runtime, [probe, probe], 4, nodata=True, tolerance=TOLERANCE)


def test_ties_are_counted_and_everything_else_is_refused() -> None:
    found = _compare(_Original(0.5003, 0.4997), 0.4998, 0.5002)
    assert (found.windows, found.pixels, found.ties) == (2, 68, 68)
    assert found.largest == pytest.approx(5e-4, rel=1e-3)
    assert "but at 68, where the two best probabilities differ by less than 0.001" in str(found)
    assert _compare(_Original(0.6, 0.4), 0.6, 0.4).ties == 0
    with refused(ExportError, fault="predict.py at 34 of 34"):
        _compare(_Original(0.5006, 0.4994), 0.4998, 0.5002)
    with refused(ExportError, fault="differ from predict.py's"):
        _compare(_Original(0.6, 0.4), 0.55, 0.45)
    with refused(ExportError, fault="inf"):
        _compare(_Original(0.6, 0.4), np.inf, 0.4)
    with pytest.raises(ExportError, match="another class"):
        _compare(_Original(0.6, 0.4), 0.6, np.nan)
    with refused(ExportError, fault="1 pixels"):
        _compare(_Original(0.6, 0.4), 0.6, 0.4, nodata=0)


@pytest.mark.parametrize(("stride", "radius"), [(4, 21), (16, 107), (32, 401)])
def test_tiles_of_deepness_lie_on_the_grid_with_overlap_for_the_radius(stride: int, radius: int) -> None:
    network = NetworkGeometry(stride, radius)
    tile = choose_tile(network)
    assert tile.exact(network)
    assert tile.overlap // 2 >= radius
    assert tile.step % stride == tile.size % stride == 0
    assert 512 <= tile.size <= 1536
    # None of the sizes below keeps nearly as much.
    others = [Tile(size, percent) for size in range(512, tile.size, stride) for percent in range(1, 91)]
    assert not [t for t in others if t.exact(network) and t.step * tile.size > tile.step * t.size]


def test_a_tile_that_cannot_be_exact_is_refused_or_said() -> None:
    with refused(ConfigError, where="--size 208", fault="model's radius"):
        choose_tile(NetworkGeometry(16, 107), 208)
    with refused(ConfigError, where="--size", got=500):
        choose_tile(NetworkGeometry(16, 107), 500)
    assert choose_tile(NetworkGeometry(32, None)) == Tile(512, 50)


def test_validation_images_are_recorded_without_addresses(tmp_path: Path) -> None:
    def scene(path: Path) -> Scene:
        return Scene(path.name, path, None, "g", "validation")

    assert validation_images(tmp_path) == []
    paths = [tmp_path / f"{number}.tif" for number in range(150)]
    save_validation_images(tmp_path, [scene(RemotePath.of("https://host/a.tif")), *map(scene, paths)])
    found = validation_images(tmp_path)
    assert len(found) == 64
    assert found[0] == paths[0]
    assert set(found) <= set(paths)
    (tmp_path / "validation.json").write_text("[1")
    assert validation_images(tmp_path) == []


def test_what_is_compared_is_what_predict_reads_where_one_band_has_no_data(tmp_path: Path) -> None:
    image = np.full((600, 600, 3), 90, np.uint8)
    image[300:, :, 1] = 0
    path = written(tmp_path / "a.tif", image, nodata=0)
    run: Any = SimpleNamespace(bands=None, band_count=3, mean_C=(10.0, 20.0, 30.0))
    seen = next(probes(run, CheckImages((path,), "one"), None, 2))
    read = run_raster(path, run)
    assert np.unique(seen.image_BHWC[seen.valid_BHW][:, 1]).tolist() == [20, 90]
    assert np.unique(read[:, 1]).tolist() == [20, 90]


def run_raster(path: Path, run: Any) -> NDArray[Any]:
    """Pixels with data as predict.py reads them."""
    with RasterRequest(run.bands, run.band_count, mean_C=run.mean_C).open(path) as raster:
        image, valid = raster.read(Window(0, 0, 600, 600))
    return image[valid]


def as_deepness(model: Any, layer_HWC: NDArray[Any]) -> NDArray[np.int64]:
    """Class ids of a layer, by the keys of the file alone.

    Args:
        model: session of onnxruntime.
    """
    (image,), keys = model.get_inputs(), model.get_modelmeta().custom_metadata_map
    assert json.loads(keys["model_type"]) == "Segmentor"
    size = json.loads(keys["tile_size"])
    assert image.shape == [1, 3, size, size]
    assert json.loads(keys["tiles_size"]) == size
    overlap = int(size * json.loads(keys["tiles_overlap"]) / 100 * 2) // 2
    step, half = size - overlap, overlap // 2
    mean, std = (np.array(json.loads(keys[f"standardization_{k}"]), np.float32) for k in ("mean", "std"))
    count = [max(0, -(-(length - size) // step)) + 1 for length in layer_HWC.shape[:2]]
    whole = [(n - 1) * step + size for n in count]
    filled = np.zeros((*whole, 3), layer_HWC.dtype)
    filled[: layer_HWC.shape[0], : layer_HWC.shape[1]] = layer_HWC
    result = np.full(whole, -1)
    for i, j in np.ndindex(*count):
        tile = np.float32(filled[i * step :, j * step :][:size, :size] * 1.0 / 255.0)
        values = model.run(None, {"image": ((tile - mean) / std).transpose(2, 0, 1)[None]})[0]
        values[values < json.loads(keys["seg_thresh"])] = 0
        kept = [
            slice(0 if k == 0 else half, size if k == n - 1 else size - half)
            for k, n in zip((i, j), count, strict=True)
        ]
        result[i * step :, j * step :][kept[0], kept[1]] = values[0].argmax(axis=0)[kept[0], kept[1]]
    assert (result >= 0).all()
    assert json.loads(keys["seg_small_segment"]) == 0
    return result[: layer_HWC.shape[0], : layer_HWC.shape[1]]


LARGEST = 1e-4


@pytest.mark.slow
def test_our_own_layers_export(tensorflow: ModuleType) -> None:
    """Dropout, drop path, shared tensors, bilinear enlargement, means over parts of the window, and those of
    ConvNeXt, in one small model; windows of any size."""
    import keras

    from segmenter.model.decoders.pooling import pool
    from segmenter.model.dropout import GlobalDropout
    from segmenter.model.layers import ChannelNorm, Layers, LayerScale

    layers, image = Layers(keras.DTypePolicy("float32"), synchronised=True), keras.Input((None, None, 3))
    x = layers.block(image, 4, "first", strides=2)
    x = keras.layers.Conv2D(4, 3, padding="same", groups=4, name="groups")(x)
    x = LayerScale(0.5, name="scale")(ChannelNorm(name="norm")(x))
    x = keras.layers.Activation("gelu", name="gelu")(x)
    one, two, three = layers.share(x, 3, "x")
    x = layers.concatenate(
        [one, layers.drop_path(two, 0.5, "path"), pool(three, 3, 4, layers, "pooled")], "join"
    )
    x = layers.enlarge(GlobalDropout(0.5, name="dropout")(x), 2, "enlarge", smooth=True)
    model = keras.Model(image, keras.layers.Conv2D(5, 1, name="logits")(x))
    found = measured_model(model, ("onnx",))
    assert set(found) == {"onnx"}
    assert all(float(value) < LARGEST for value in found.values()), found
