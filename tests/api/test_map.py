"""Files and arrays from Python: to the byte what `predict.py` maps; nothing is printed, no error lost."""

import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import shapely

from datasets.commands import predict
from datasets.commands.predict import parse
from segmenter import MapsError, OpenRun, SegmenterError, open_run
from segmenter.api.mapping_call import keyword_call
from segmenter.base.errors import CheckpointError, DatasetError, RasterError
from segmenter.grid.labels import ClassMap
from segmenter.runs.run import load_run
from tests.helpers.made_rasters import written
from tests.helpers.made_runs import rewritten
from tests.helpers.maps import Make, ids
from tests.helpers.random_run import random_run
from tests.helpers.refusals import refused


@pytest.fixture
def scenes(make_geotiff: Make, rng: Any) -> Path:
    """A folder with two scenes."""
    for name in ("a", "b"):
        path = make_geotiff(f"in/{name}.tif", rng.integers(1, 1000, (61, 83, 3), np.uint16))
    return path.parent


def test_the_files_are_those_of_the_command(run: OpenRun, scenes: Path, tmp_path: Path, capfd: Any) -> None:
    said = ["--output", str(tmp_path / "command"), "--confidence", "--bbox"]
    box = (368003.0, 5807980.0, 368030.5, 5807999.0)
    assert predict.main([str(run.paths[0]), str(scenes), *said, *map(str, box)]) == 0
    capfd.readouterr()
    maps = run.map(scenes, tmp_path / "python", confidence=True, bbox=box, memory="4GB")
    assert capfd.readouterr() == ("", "")
    names = sorted(path.name for path in (tmp_path / "command").glob("*.tif"))
    assert names == ["a.confidence.tif", "a.tif", "b.confidence.tif", "b.tif"]
    for name in names:
        assert (tmp_path / "python" / name).read_bytes() == (tmp_path / "command" / name).read_bytes()
    assert [path.name for path in maps.paths] == ["a.tif", "b.tif"]
    assert maps.kept == ()
    assert "2 maps in" in maps.notes[-1]
    each = [scenes / "a.tif", scenes / "b.tif"]
    again = run.map(each, tmp_path / "python", confidence=True, bbox=box, memory="4GB")
    assert again.kept == again.paths == maps.paths
    assert repr(again).startswith("2 maps in")


@pytest.mark.slow
def test_maps_are_scored(run: OpenRun, scenes: Path, tmp_path: Path, capfd: Any) -> None:
    run.map(scenes, tmp_path / "maps", format="png")
    for name in ("a", "b"):
        (tmp_path / "truth").mkdir(exist_ok=True)
        shutil.copy(tmp_path / "maps" / f"{name}.png", tmp_path / "truth")
    maps = run.map(scenes, tmp_path / "maps", format="png", labels=str(tmp_path / "truth" / "{stem}.png"))
    assert maps.scores.miou == 1
    assert set(maps.scores.iou) == set(run.classes.names)
    assert "mIoU 100.00 %" in repr(maps)
    assert "IoU" in repr(maps.scores)
    assert capfd.readouterr() == ("", "")


GEO = {"images": "images/{name}.tif", "labels": "coarse/{name}.tif", "labels_by": "georeference"}
MASKS = {"images": "images/{name}.tif", "labels": "masks/{class}/{name}.png", "encoding": "masks"}
POLYGONS = {
    "images": "images/{name}.tif",
    "labels": "areas.gpkg",
    "vector": {"attribute": "landuse", "values": {"pond": "water"}, "outside": "field"},
}
ALL_IN_ONE = {"images": "images/{name}.tif", "labels": "all.tif"}
BANDS = {"images": [f"b{band}/{{name}}.tif" for band in (1, 2, 3)], "labels": "labels/{name}.tif"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("section", "given", "labels"),
    [
        pytest.param(GEO, "images", "coarse/{name}.tif", id="georeference", marks=pytest.mark.slow),
        pytest.param(GEO, "images", "coarse/{stem}.tif", id="by stem"),
        pytest.param(MASKS, "images", "masks/{class}/{stem}.png", id="masks", marks=pytest.mark.slow),
        pytest.param(POLYGONS, "images", "areas.gpkg", id="polygons"),
        pytest.param(ALL_IN_ONE, "images", "all.tif", id="one for all", marks=pytest.mark.slow),
        pytest.param(BANDS, ".", "labels/{name}.tif", id="bands", marks=pytest.mark.slow),
        pytest.param(BANDS, ".", None, id="bands unscored"),
    ],
)
def test_labels_mean_what_they_mean_to_the_command(
    section: dict[str, Any],
    given: str,
    labels: str | None,
    run: OpenRun,
    tmp_path: Path,
    make_geotiff: Make,
    rng: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However a recipe lays its data out, scores, maps and their names are the same."""
    monkeypatch.chdir(tmp_path)
    _labelled_scenes(make_geotiff, rng)
    if labels == "areas.gpkg":
        _polygons(Path(labels))
    classes = tuple(replace(each, code=i) for i, each in enumerate(run.classes.classes, 1))
    dataset = {**section, "classes": [{"name": each.name, "code": each.code} for each in classes]}
    path = random_run(tmp_path / "run", ClassMap(classes), depth=1, dataset=dataset)
    words = [] if labels is None else ["--labels", labels]
    assert predict.main([str(path), given, "--output", "command", *words]) == 0
    open_run(path).map(given, "python", labels=labels)
    scores = ["confusion.png", "scores.json"]
    names = ["a.tif", "b.tif", *(scores if labels else [])]
    for folder in ("command", "python"):
        made = {each.name for each in Path(folder).iterdir() if each.suffix in (".tif", ".json", ".png")}
        assert sorted(made) == sorted(names)
    for name in names:
        assert Path("python", name).read_bytes() == Path("command", name).read_bytes()


def _labelled_scenes(make: Make, rng: Any) -> None:
    """Write two scenes with labels of all kinds, with the codes 1 to 4; `coarse` and `all.tif` have 1 m."""
    coarse, fine = (
        rasterio.Affine(1, 0, 368000, 0, -1, 5808000),
        rasterio.Affine(0.5, 0, 368000, 0, -0.5, 5808000),
    )
    for number, name in enumerate("ab"):
        image, label = rng.integers(1, 1000, (62, 84, 3), np.uint16), rng.integers(1, 5, (31, 42), np.uint8)
        pixels = np.kron(label, np.ones((2, 2), np.uint8))
        place = fine @ rasterio.Affine.translation(100 * number, 0)
        make(f"images/{name}.tif", image, transform=place)
        for band in (1, 2, 3):
            make(f"b{band}/{name}.tif", image[..., band - 1], transform=place)
        make(f"labels/{name}.tif", pixels, transform=place)
        make(f"coarse/{name}.tif", label, transform=coarse @ rasterio.Affine.translation(50 * number, 0))
        for code, kind in enumerate(("water", "road", "field", "house"), 1):
            written(Path(f"masks/{kind}/{name}.png"), np.where(pixels == code, np.uint8(255), np.uint8(0)))
    make("all.tif", rng.integers(1, 5, (40, 150), np.uint8), transform=coarse)


def _polygons(path: Path) -> None:
    pyogrio = pytest.importorskip(
        "pyogrio", reason="the package pyogrio is not here: pip install -e '.[vectors]'"
    )
    left = 368000 + 50 * np.arange(2)
    shapes = shapely.to_wkb(shapely.box(left, 5807980, left + 12, 5807995))
    write = {"driver": "GPKG", "geometry_type": "Polygon", "crs": "EPSG:25833"}
    pyogrio.raw.write(
        path, shapes, [np.array(["pond", "house"], object)], ["landuse"], layer="areas", **write
    )


def test_a_failing_input_is_an_error_others_are_mapped(run: OpenRun, scenes: Path, tmp_path: Path) -> None:
    (scenes / "c.tif").write_bytes((scenes / "a.tif").read_bytes()[:300])
    with refused(MapsError, fault="1 input failed, 2") as caught:
        run.map(scenes, tmp_path / "maps")
    assert [path.name for path in caught.value.maps.paths] == ["a.tif", "b.tif"]
    assert len(caught.value.failures) == 1
    with pytest.raises(RasterError, match=r"c\.tif"):
        run.map(scenes / "c.tif", tmp_path / "alone")
    assert not (tmp_path / "alone").exists()


@pytest.mark.slow
def test_the_model_is_compiled_once_for_many_calls(run: OpenRun, scenes: Path, tmp_path: Path) -> None:
    opened = open_run(run.paths[0])
    opened.map(scenes / "a.tif", tmp_path / "maps")
    models = list(opened._models._found.values())
    opened.map(scenes / "b.tif", tmp_path / "maps")
    opened.predict(np.ones((3, 5, 3), np.uint16))
    assert [model for _, model in opened._models._found.values()] == [model for _, model in models]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"windowsize": 64}, "windowsize: .* window_size"),
        ({"nonsense": 64}, "known are .*blend_weights, .*window_size"),
        ({"cog": "yes"}, "cog: .* got 'yes'"),
        ({"bbox": (1, 2, 3)}, "bbox: .* got"),
        ({"split": "test"}, "split: "),
        ({"window_size": -1}, "got -1"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_options_are_checked_first(run: OpenRun, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(DatasetError, match=said):
        run.map("nowhere.tif", tmp_path / "maps", **options)
    assert not (tmp_path / "maps").exists()


def test_keywords_are_the_options_of_the_command() -> None:
    words = ["--bands", "4,2", "--memory", "8GB", "--part", "1,2,3,4", "--window-size", "64", "--mosaic"]
    spoken, _ = parse(["runs/a,", "x.tif", "--output", "maps", *words])
    size = np.int64(64)
    typed = {"bands": [4, 2], "memory": "8GB", "part": [1, 2, 3, 4], "window_size": size, "mosaic": True}
    assert _asked(**typed) == spoken
    assert type(_asked(**typed).request.window_size) is int
    assert _asked() == parse(["runs/a,", "x.tif", "--output", "maps"])[0]


def _asked(**options: Any) -> Any:
    return keyword_call((Path("runs/a"),), ["x.tif"], "maps", options)


@pytest.mark.parametrize(
    ("natural", "words"),
    [
        ({"codes": {"water": 1, "road": 300}}, {"codes": "water=1,road=300"}),
        ({"codes": np.array([10, 20])}, {"codes": "10,20"}),
        ({"vectors": Path("a/b.gpkg"), "only": "water"}, {"vectors": "a/b.gpkg", "only": ["water"]}),
        ({"memory": 8e9}, {"memory": "8GB"}),
        ({"labels": Path("truth/{stem}.png")}, {"labels": "truth/{stem}.png"}),
        ({"bbox": np.array([1.5, 2, 3, 4])}, {"bbox": (1.5, 2, 3, 4)}),
        ({"drivers": None, "only": None, "tta": None}, {}),
        ({"bands": (3, 1)}, {"bands": "3,1"}),
    ],
    ids=lambda value: "+".join(value),
)
def test_python_s_own_values_stand_for_texts(natural: dict[str, Any], words: dict[str, Any]) -> None:
    assert _asked(**natural) == _asked(**words)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"codes": 5}, {"expected": "a text", "got": 5}),
        ({"labels": ["a.png"]}, {"expected": "a text", "got": "a.png"}),
        ({"batch": 2.5}, {"expected": "whole number", "got": 2.5}),
        ({"workers": 10**30}, {"expected": "whole number", "got": 10**30}),
        ({"batch": 0}, {"expected": "whole number from 1", "got": 0}),
        ({"gsd": [1]}, {"expected": "a number", "got": "[1]"}),
        ({"memory": float("inf")}, {"expected": "whole number"}),
        ({"part": ("a", 1, 2, 3)}, {"expected": "number"}),
        ({"only": [3], "vectors": "a.gpkg"}, {"expected": "texts", "got": "[3]"}),
        ({"bands": [1, "x"]}, {"fault": "numbers"}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_values_that_can_be_none_are_refused_in_a_line(
    options: dict[str, Any], fields: dict[str, object]
) -> None:
    with refused(DatasetError, **fields):
        _asked(**options)


def _mapped(run: OpenRun, source: Path, output: Path, *options: str) -> Any:
    """Map files as `predict.py` writes them; with the models that the run has compiled."""
    with run._models.used():
        assert predict.main([str(run.paths[0]), str(source), "--output", str(output), *options]) == 0
    return ids(output / f"{source.stem}.tif")


@pytest.fixture
def image(rng: Any) -> Any:
    """131 × 203 pixels: neither is a multiple of the stride."""
    return rng.integers(1, 1000, (131, 203, 3), np.uint16)


def test_an_array_is_mapped_as_the_file_of_its_pixels(
    run: OpenRun, image: Any, make_geotiff: Make, tmp_path: Path
) -> None:
    """With a nodata value, in windows of another size than the file's, which do not show."""
    image[60:, :40] = 0
    image[3, 5] = 0, 7, 0  # holds nodata in two bands: data, whose mean is 500 there
    source = make_geotiff("a.tif", image, nodata=0)
    expected = _mapped(run, source, tmp_path / "maps")
    found = run.predict(image, nodata=0, window_size=128, batch=2)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, expected)
    assert set(np.unique(expected)) == {0, 1, 2, 3, 255}
    masked = np.ma.masked_equal(image, 0)
    np.testing.assert_array_equal(run.predict(masked), expected)
    valid = (image != 0).any(axis=2)
    filled = np.where(valid[..., None], image, 9)
    filled[3, 5] = 500, 7, 500
    np.testing.assert_array_equal(run.predict(filled, valid), expected)


@pytest.mark.slow
def test_probabilities_and_blended_windows_are_those_of_the_file(
    run: OpenRun, image: Any, make_geotiff: Make, tmp_path: Path
) -> None:
    source = make_geotiff("a.tif", image, masks=np.arange(131 * 203).reshape(131, 203) % 200 > 20)
    valid = np.arange(131 * 203).reshape(131, 203) % 200 > 20
    smooth = ("--mode", "smooth", "--window-size", "64", "--probabilities", "float16")
    expected = _mapped(run, source, tmp_path / "maps", *smooth)
    with rasterio.open(tmp_path / "maps" / "a.probabilities.tif") as file:
        shares = np.moveaxis(file.read(), 0, -1)
    found = run.predict(image, valid, probabilities=True, mode="smooth", window_size=64)
    assert found.shape == (131, 203, 4)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, shares)
    np.testing.assert_allclose(found[valid].sum(axis=-1), 1, atol=2e-3)
    assert np.isnan(found[~valid]).all()
    np.testing.assert_array_equal(run.predict(image, valid, mode="smooth", window_size=64), expected)


@pytest.mark.slow
def test_another_scale_is_the_files(run: OpenRun, image: Any, make_geotiff: Make, tmp_path: Path) -> None:
    expected = _mapped(run, make_geotiff("a.tif", image), tmp_path / "maps", "--gsd", "0.8")
    np.testing.assert_array_equal(run.predict(image, gsd=0.8, raster_gsd=0.5), expected)
    assert (expected != run.predict(image)).any()
    with pytest.raises(RasterError, match="--raster-gsd METRES"):
        run.predict(image, gsd=0.8)


def test_several_images_and_memory_maps_are_as_each_alone(run: OpenRun, image: Any, tmp_path: Path) -> None:
    """In the other byte order too, with rows that lie backwards, and into a file."""
    stack = np.stack([image[:40, :70], image[50:90, 100:170]])
    alone = [run.predict(each) for each in stack]
    np.testing.assert_array_equal(run.predict(stack), alone)
    backwards = run.predict(stack.astype(">u2")[:, ::-1])
    np.testing.assert_array_equal(backwards, run.predict(stack[:, ::-1].copy()))
    source = np.memmap(tmp_path / "in", np.uint16, "w+", shape=stack.shape)
    source[:] = stack
    out = np.memmap(tmp_path / "out", np.uint8, "w+", shape=stack.shape[:3])
    assert run.predict(source, out=out) is out
    np.testing.assert_array_equal(out, alone)


def test_threads_get_what_one_gets(run: OpenRun, image: Any) -> None:
    expected, found = run.predict(image), dict[int, Any]()
    kept = len(run._models._found)
    threads = [threading.Thread(target=lambda i=i: found.update({i: run.predict(image)})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    for each in found.values():
        np.testing.assert_array_equal(each, expected)
    assert len(run._models._found) == kept


SHAPE = r"expected an array of \(height, width, 3\), the bands last, got "
REFUSED: dict[str, tuple[Callable[[Any], dict[str, Any]], str]] = {
    "bands first": (
        lambda a: {"image": np.moveaxis(a, -1, 0)},
        SHAPE + r"\(3, 131, 203\); bands come first.*np\.moveaxis",
    ),
    "alpha": (lambda a: {"image": np.dstack([a, a[..., 0]])}, r"if the last is alpha: image\[..., :3\]"),
    "one band": (lambda a: {"image": a[..., 0]}, r"got \(131, 203\)"),
    "no pixel": (lambda a: {"image": a[:0]}, "at least one pixel"),
    "scaled": (lambda a: {"image": a / 1000}, "expected values of uint16 .*got float64"),
    "a file": (lambda _: {"image": Path("x.tif")}, r"files are mapped by run\.map"),
    "complex": (lambda a: {"image": a.astype(complex)}, "expected real numbers"),
    "mask of numbers": (lambda a: {"image": a, "valid": np.ones(a.shape[:2])}, "expected booleans"),
    "mask of another size": (lambda a: {"image": a, "valid": np.ones((3, 4), bool)}, r"got bool of \(3, 4\)"),
    "nodata of two bands": (lambda a: {"image": a, "nodata": (0, 1)}, r"each of 3 bands, got \(0, 1\)"),
    "nodata of two bands in an array": (lambda a: {"image": a, "nodata": np.zeros(2)}, "one for each of 3"),
    "nodata that is a text": (lambda a: {"image": a, "nodata": "000"}, "one for each of 3 bands, got '000'"),
    "a list of unlike images": (lambda a: {"image": [a, a[1:]]}, "an array, got a list of different shapes"),
    "another output": (lambda a: {"image": a, "out": np.zeros(a.shape[:2])}, "of uint8, got .* float64"),
    "an output that is none": (lambda a: {"image": a, "out": "x.npy"}, "can be written, got 'x.npy'"),
    "an output to read": (lambda a: {"image": a, "out": np.broadcast_to(a[0, 0, 0], (9, 9))}, "read only"),
    "an unknown option": (lambda a: {"image": a, "cog": True}, "cog: expected an option of prediction: mode"),
    "memory without unit": (lambda a: {"image": a, "memory": "8"}, "memory: expected a number with a unit"),
    "other shares": (lambda a: {"image": a, "probabilities": "int8"}, "expected uint8, float16, got int8"),
}  # fmt: skip
"""Name → arguments made of an image, and what the error says."""


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_meant_is_refused_with_advice(run: OpenRun, image: Any, what: str) -> None:
    arguments, said = REFUSED[what]
    with pytest.raises(SegmenterError, match=said):
        run.predict(**arguments(image))


def test_an_array_of_nodata_and_a_mask_of_the_mask_are_as_said_otherwise(run: OpenRun, image: Any) -> None:
    image = image.copy()
    image[:50] = 0
    known = np.ma.masked_array(np.ones(image.shape[:2], bool), (image == 0).all(axis=2))
    expected = run.predict(image, nodata=[0, 0, 0])
    assert (expected[:50] == 255).all()
    np.testing.assert_array_equal(run.predict(image, nodata=np.zeros(3)), expected)
    np.testing.assert_array_equal(run.predict(image, known), expected)


@pytest.mark.parametrize("inputs", [[b"a.tif"], [None], np.zeros((3, 3))], ids=["bytes", "none", "array"])
def test_inputs_that_are_no_paths_are_refused(run: OpenRun, tmp_path: Path, inputs: Any) -> None:
    with refused(DatasetError, where="inputs", expected="paths of images"):
        run.map(inputs, tmp_path / "maps")


def test_the_expression_that_chooses_bands_is_told(run: OpenRun, image: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(run, "_run", replace(load_run(run.paths[0]), bands=(4, 2, 1)))
    with refused(RasterError, where="image", got="files: image[..., [3, 1, 0]]"):
        run.predict(np.dstack([image, image]))


@pytest.mark.slow
def test_a_replaced_run_is_not_mixed_up_with_the_opened_one(run: OpenRun, image: Any, tmp_path: Path) -> None:
    """Newer weights of the same run are taken, as a training writes them; another run.json is refused."""
    path = tmp_path / "run"
    shutil.copytree(run.paths[0], path)
    opened = open_run(path)
    before = opened.predict(image)
    np.testing.assert_array_equal(before, run.predict(image))
    random_run(tmp_path / "other", run.classes, seed=11)
    shutil.copy(tmp_path / "other" / "best.npz", path / "best.npz")
    assert (before != opened.predict(image)).any()
    assert len(opened._models._found) == 1, "the older weights are let go"
    rewritten(path / "run.json", metres_per_pixel=0.25)
    with refused(CheckpointError, where="run", fault="another run"):
        opened.predict(image)


@pytest.mark.slow
def test_several_runs_are_one(run: OpenRun, image: Any, tmp_path: Path) -> None:
    other = random_run(tmp_path / "other", run.classes, seed=8, mean=300)
    both, alone = open_run(run.paths[0], other), open_run(other)
    mean = (run.predict(image, probabilities=True) + alone.predict(image, probabilities=True)) / 2
    np.testing.assert_allclose(both.predict(image, probabilities=True), mean, atol=2e-3)
    assert both.paths == (run.paths[0], other)
    assert both.scores is None
    rewritten(other / "run.json", metres_per_pixel=0.25)
    rewritten(Path(shutil.copytree(other, tmp_path / "third")) / "run.json", metres_per_pixel=0.5)
    assert open_run(other).metres_per_pixel == 0.25
    assert open_run(other, tmp_path / "third").metres_per_pixel is None


def test_what_cannot_be_opened_says_why(tmp_path: Path, run: OpenRun) -> None:
    with refused(CheckpointError, expected="run directory"):
        open_run(tmp_path / "nowhere")
    with refused(DatasetError, where="RUN", expected="each run"):
        open_run(run.paths[0], run.paths[0]).predict(np.zeros((3, 3, 3), np.uint16))
