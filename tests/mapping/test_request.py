"""A call as a value: what options become, which files are meant; its tiling, precision and names of maps."""

import glob
import os
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pydantic import TypeAdapter

from datasets.commands.predict import parse
from datasets.files import files_under
from segmenter.api.layouts import layout_of
from segmenter.base.errors import ConfigError, DatasetError, SegmenterError
from segmenter.base.files import matches
from segmenter.config.datasets import DatasetConfig
from segmenter.extras.dask.windows import tiling_of_worker
from segmenter.grid.geometry import Size, Window
from segmenter.grid.scenes import Layout
from segmenter.mapping.call import Call, needs_of, tiling_for
from segmenter.mapping.jobs import MapJob, RasterRequest
from segmenter.mapping.request.inputs import find_inputs, output_names
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.request.truth import LabelPattern
from segmenter.mapping.session import map_rasters
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster.in_memory import ArrayRaster
from segmenter.raster.resampled import ModelGrid
from tests.helpers.exact_network import RADIUS, STRIDE, exact_network, fake_run
from tests.helpers.maps import Make
from tests.helpers.refusals import refused

CALL = ["run", "a.tif", "--output", "maps"]


def request(**changes: Any) -> MapRequest:
    return MapRequest(**{"run": Path("run"), "output": Path("maps"), "inputs": ("a.tif",), **changes})


def test_without_options_a_request_has_the_defaults_of_the_command_line() -> None:
    assert parse(CALL)[0].request == request()


def test_options_become_values() -> None:
    asked, _ = parse(
        [
            *CALL,
            *("--window-size", "96", "--blend-weights", "linear", "--tta", "flips", "--memory", "3GB"),
            *("--part", "1", "2", "3", "4", "--bands", "3,1", "--drivers", "VRT,JP2OpenJPEG"),
        ]
    )
    assert asked.request == request(
        window_size=96,
        blend_weights="linear",
        tta="flips",
        memory=3 * 10**9,
        part=(1, 2, 3, 4),
        bands=(3, 1),
        drivers=("VRT", "JP2OpenJPEG"),
    )
    with pytest.raises(FrozenInstanceError):
        asked.request.tta = "all"  # type: ignore[misc]


def test_a_list_of_runs_may_be_longer_than_a_file_name() -> None:
    names = [letter * 100 for letter in "abcdef"]
    assert parse([",".join(names), *CALL[1:]])[0].request.runs == tuple(map(Path, names))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tta": "some"}, "--tta"),
        ({"blend_weights": None}, "--blend-weights: expected hann"),
        ({"window_size": 0}, "--window-size: expected a whole number from 1"),
        ({"part": (-1, 0, 9, 9)}, "ROW COL ≥ 0"),
        ({"part": (0, 0, -1, 9)}, "ROW COL ≥ 0"),
        ({"bbox": (5, 0, 1, 1)}, "numbers, LEFT <"),
        ({"bbox": (0, 0, float("inf"), 1)}, "--bbox: expected numbers"),
        ({"cog": True, "format": "png"}, "--format png asks"),
        ({"protocol": "potsdam-6"}, "need --labels or --split"),
        ({"split_name": "test"}, "need --labels or --split"),
        ({"split": "all", "inputs": ()}, "--split: expected train"),
        ({"split": "test"}, "out INPUT a.tif"),
        ({"split": "test", "inputs": (), "labels": "x.png"}, "leave out --labels x.png"),
        ({"split": "test", "inputs": (), "split_name": "test"}, "leave out --split-name"),
        ({"recipe": Path("r.yaml")}, "--recipe r.yaml: says whose"),
        ({"inputs": ()}, "expected INPUT"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(changes: dict[str, Any], line: str) -> None:
    with pytest.raises(SegmenterError) as raised:
        request(**changes)
    assert line in str(raised.value)


def test_labels_and_splits_of_python_users_need_what_a_loader_says(
    tmp_path: Path, make_geotiff: Make, make_classes: Any
) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    run: Any = fake_run(make_classes(7))
    with refused(SegmenterError, expected="run's dataset"):
        map_rasters(request(output=tmp_path / "maps", inputs=(str(source),), labels="truth/{stem}.tif"), run)
    with refused(SegmenterError, where="--split test"):
        map_rasters(request(output=tmp_path / "maps", inputs=(), split="test"), run)
    assert not (tmp_path / "maps").exists()


GB = 10**9


@pytest.fixture
def run(make_classes: Any, monkeypatch: Any) -> Any:
    monkeypatch.setattr("segmenter.inference.memory.smallest_card", lambda: None)
    return fake_run(make_classes(6), network=NetworkGeometry(16, 94, 650.0))


def call_of(run: Any, **options: Any) -> Call:
    return Call.of(MapRequest(Path("run"), Path("maps"), ("in",), **options), run)


def jobs(side: int) -> Any:
    return [SimpleNamespace(info=SimpleNamespace(dtype="uint8"), seen=Size(side, side), grid=None)]


@pytest.mark.parametrize("mode", [None, "exact", "smooth"])
def test_scales_whose_windows_no_machine_holds_are_refused_in_one_line(run: Any, mode: Any) -> None:
    """They meet every 2,306,304 pixels, to which each raster is padded, however small it is."""

    def tiling(tta: str) -> Any:
        return tiling_for(call_of(run, mode=mode, tta=tta), jobs(500))

    with refused(ConfigError, fault="windows of 2306304×2306304"):
        tiling("5/16,5/13,5/11,5/9,5/7")
    assert tiling("scales").stride == 64


def job(step: Fraction, width: int = 3000) -> MapJob:
    raster = ArrayRaster(np.broadcast_to(np.uint8(0), (700, width, 3)))
    part = Window.of(raster.info.size)
    request = RasterRequest(None, 3)
    return MapJob(request, raster.info, part, "a", Path("a.tif"), grid=ModelGrid(part, step, step))


@pytest.mark.parametrize("mode", ["exact", "smooth"])
@pytest.mark.parametrize(
    "step", [Fraction(1, 64), Fraction(1, 10), Fraction(3, 20), Fraction(1, 8), Fraction(7, 5), Fraction(5)]
)
def test_what_is_planned_holds_the_widest_column_of_the_grid(run: Any, mode: Any, step: Fraction) -> None:
    """With any memory that is not refused, however many pixels of the grid an own one has."""
    planned = 0
    for memory in (1.3, 1.6, 2, 3, 4, 8, 64):
        one, call = job(step), call_of(run, mode=mode, memory=int(memory * GB))
        try:
            tiling = tiling_for(call, [one])
        except ConfigError:
            continue
        one.set_column(tiling.column)
        widest = max(column.width for column in one.columns.remaining(0))
        needs = needs_of(call, [one])[1]
        taken = needs.total(tiling.window, tiling.batch, widest, blended=mode == "smooth")
        taken += needs.own_rows(tiling.column) + needs.model(tiling.window, tiling.batch)
        assert taken <= memory * GB
        planned += 1
    assert planned >= 4


def test_a_narrow_raster_needs_no_more_than_its_own_grid(run: Any) -> None:
    call = call_of(run, mode="exact", memory=int(1.5 * GB))
    narrow = job(Fraction(1, 64), width=60)
    assert tiling_for(call, [narrow]).halo == 94
    with refused(ConfigError, where="--memory", got="1.5GB"):
        tiling_for(call, [job(Fraction(1, 64))])


def test_workers_take_the_same_windows_in_smaller_batches(run: Any, capsys: Any) -> None:
    call = call_of(run, memory=16 * GB)
    one = tiling_for(call, jobs(256))
    shared = tiling_of_worker(call, jobs(256), one, 2 * GB, "--workers 8")
    assert (shared.window, shared.halo, shared.blend) == (one.window, one.halo, one.blend)
    assert 1 <= shared.batch < one.batch
    assert capsys.readouterr().out == ""


def test_windows_that_do_not_fit_are_smaller_and_that_is_said(run: Any, capsys: Any) -> None:
    call = call_of(run, memory=32 * GB)
    one = tiling_for(call, jobs(6000))
    shared = tiling_of_worker(call, jobs(6000), one, 4 * GB, "--workers 8")
    assert shared.window < one.window
    line = f"--workers 8: windows of {shared.window} pixels, one process takes {one.window}; --memory"
    assert capsys.readouterr().out.startswith(line)


def test_blended_windows_that_do_not_fit_are_refused(run: Any) -> None:
    """Their size decides what comes out: smaller ones would give another map."""
    call = call_of(run, memory=16 * GB, mode="smooth")
    one = tiling_for(call, jobs(6000))
    with refused(ConfigError, where="--workers 32", got="0.5GB"):
        tiling_of_worker(call, jobs(6000), one, GB // 2, "--workers 32")


MIXED = "mixed_float16"
CPU = "precision: float32, which a CPU computes faster; --precision run takes the other"
DIFFERS = "(trained and validated in mixed_float16: some pixels differ)"


class Folder:
    """predict.py with a stand-in for a run, on a machine with or without a GPU; `used`: of each load."""

    def __init__(self, call: Any, capsys: Any, monkeypatch: Any, source: Path) -> None:
        self._call, self._capsys, self._patch, self._source = call, capsys, monkeypatch, source
        self.used: list[Any] = []

    def map(self, *options: str, gpu: bool = False, trained: str = MIXED) -> list[str]:
        """Lines of stdout that speak of precision, or of maps that are made anew or kept."""
        card = 11 * 2**30 if gpu else None
        self._patch.setattr("segmenter.mapping.call.smallest_card", lambda: card)
        recipe = fake_run(SimpleNamespace()).recipe  # type: ignore[arg-type]
        recipe.training.precision = trained
        assert self._call(self._source, *options, recipe=recipe) == 0
        lines = self._capsys.readouterr().out.splitlines()
        return [line for line in lines if any(w in line for w in ("precision", "anew", "finished"))]


@pytest.fixture
def folder(
    call: Call, make_geotiff: Callable[..., Path],
    capsys: Any, monkeypatch: Any,
) -> Folder:  # fmt: skip
    found = Folder(call, capsys, monkeypatch, make_geotiff("in/a.tif", np.full((40, 50, 3), 9, np.uint8)))

    def load(run: Any, wanted: Any = None, tta: str = "none", precision: Any = None) -> Any:
        found.used.append(precision)
        return exact_network(RADIUS, STRIDE, wanted=wanted)

    monkeypatch.setattr("tests.helpers.exact_network.fake_load_predictor", load)
    return found


def test_a_gpu_computes_in_the_runs_precision_and_a_cpu_in_float32(folder: Folder) -> None:
    assert folder.map(gpu=True) == ["precision: mixed_float16, as in training and validation"]
    assert folder.map("--redo")[0] == f"{CPU} {DIFFERS}"
    assert folder.used == [(MIXED,), ("float32",)]
    assert folder.map("--redo", gpu=True, trained="float32") == ["maps/a.tif: made anew: asked for by --redo"]


def test_the_same_call_keeps_its_maps_and_its_precision_on_another_machine(folder: Folder) -> None:
    folder.map(gpu=True)
    line = (
        "precision: mixed_float16, as in training and validation, as the maps before; slow on a CPU, "
        "--precision float32 makes them anew"
    )
    assert folder.map() == [line, "1 of 1 maps are finished and unchanged"]
    assert len(folder.used) == 1


def test_a_precision_that_is_asked_for_is_taken_and_another_makes_anew(folder: Folder) -> None:
    assert folder.map("--precision", "float32", gpu=True) == [f"precision: float32 {DIFFERS}"]
    assert folder.map("--precision", "float32", gpu=True, trained="float32") == [
        "1 of 1 maps are finished and unchanged"  # as those of an older journal, which names no precision
    ]
    assert folder.used == [("float32",)]
    reason = "precision was float32, is mixed_float16"
    assert f"maps/a.tif: made anew: other options: {reason}" in folder.map("--precision", "run")
    assert folder.used[1:] == [(MIXED,)]


PLAIN = Layout(Path("."), re.compile(r"[^/]*"), re.compile(r"-"), "*")


def label_for(image: Path, pattern: str, layout: Layout = PLAIN) -> Path:
    return LabelPattern(pattern, layout).label(image)


def test_a_folder_of_labels_is_refused_with_the_pattern_that_names_its_files(tmp_path: Path) -> None:
    (tmp_path / "truth").mkdir()
    with refused(DatasetError, where="a.tif", remedy="truth/{stem}.*"):
        label_for(Path("a.tif"), f"{tmp_path}/truth")
    with refused(DatasetError, where="a.tif", remedy=""):
        label_for(Path("a.tif"), f"{tmp_path}/truth/{{stem}}.png")


def test_files_folders_and_globs_each_once(tmp_path: Path) -> None:
    for name in ("a/x.tif", "a/y.PNG", "a/readme.txt", "a/.hidden.tif", "a/sub/z.tif", "b[1].tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    given = [f"{tmp_path}/a", f"{tmp_path}/a/x.tif", f"{tmp_path}/b[1].tif", f"{tmp_path}/**/z.*"]
    found = find_inputs(given)
    files = [p.relative_to(tmp_path).as_posix() for p in found.files]
    assert files == ["a/x.tif", "a/y.PNG", "b[1].tif", "a/sub/z.tif"]
    assert [p.name for p in found.left_out] == ["readme.txt"]
    with refused(DatasetError, where="nowhere.tif", fault="such file"):
        find_inputs([str(tmp_path / "nowhere.tif")])
    with refused(DatasetError, where="*.jp2", fault="pattern matches"):
        find_inputs([f"{tmp_path}/*.jp2"])
    (tmp_path / "empty").mkdir()
    with refused(DatasetError, where="empty", expected="image files (.tif"):
        find_inputs([str(tmp_path / "empty")])


def test_no_two_inputs_share_an_output() -> None:
    given = ("/p/a/x.tif", "/p/b/x.tif", "/p/b/x.png", "/q/b/X.tif", "/p/y.tif", "/p/b_x.tif")
    names = output_names([Path(path) for path in given])
    assert names[Path("/p/a/x.tif")] == "a_x"
    assert names[Path("/p/y.tif")] == "y"
    assert len({name.casefold() for name in names.values()}) == len(given)
    assert all("/" not in name for name in names.values())
    assert output_names([]) == {}


def test_a_label_is_found_by_stem_or_scene(tmp_path: Path) -> None:
    beside = ("a/top_2_13_label.tif", "a/top_2_13_RGB_x.tif", "b/deep/top_2_13.png")
    for name in (*beside, "[1]_RGB.png", "1_RGB.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    image = Path("images/top_2_13_RGB.tif")
    assert label_for(image, f"{tmp_path}/a/{{scene}}_label.tif").name == "top_2_13_label.tif"
    assert label_for(image, f"{tmp_path}/a/{{stem}}_*.tif").name == "top_2_13_RGB_x.tif"
    assert label_for(image, f"{tmp_path}/**/{{scene}}.png").name == "top_2_13.png"
    assert label_for(Path("[1]_RGB.tif"), f"{tmp_path}/{{stem}}.p*").name == "[1]_RGB.png"


def test_a_label_that_is_missing_or_not_the_only_one(tmp_path: Path) -> None:
    for name in ("a_1.png", "a_3.png"):
        (tmp_path / name).touch()
    with refused(DatasetError, where="a.tif", expected="a_?.png, found"):
        label_for(Path("a.tif"), f"{tmp_path}/{{stem}}_?.png")
    with refused(DatasetError, where="a.tif", expected="a_2.png, found"):
        label_for(Path("a.tif"), f"{tmp_path}/{{stem}}_2.png")


def test_a_pattern_knows_the_fields_of_the_recipe(tmp_path: Path) -> None:
    def layout(kind: str, **section: Any) -> Layout:
        data = {"kind": kind, "root": f"{tmp_path}/data", **section}
        return layout_of(TypeAdapter(DatasetConfig).validate_python(data))

    paths = {"images": "tile_{tile}/images/{part}.jpg", "labels": "tile_{tile}/masks/{part}.png"}
    classes = [{"name": "a", "code": 0}]
    tiles = layout("folder", **paths, classes=classes)
    deep = layout("folder", images="{scene}/**/i.tif", labels="{scene}/l.tif", classes=classes)
    masks, scene = "data/tile_{tile}/masks/{part}.png", "top_potsdam_2_13"
    cases = (
        (tiles, "data/tile_7/images/p_1.jpg", masks, "data/tile_7/masks/p_1.png"),
        (tiles, "other/tile_7/images/p_1.jpg", "m/{tile}_{part}_{stem}.png", "m/7_p_1_p_1.png"),
        (deep, "data/a_RGB/b/c/i.tif", "data/{scene}/l.tif", "data/a_RGB/l.tif"),
        (layout("potsdam"), "x/top_potsdam_02_13_RGB.tif", "l/{row}-{column}.tif", "l/02-13.tif"),
        (layout("potsdam"), f"x/{scene}_RGB.tif", "l/{scene}_label.tif", f"l/{scene}_label.tif"),
        (layout("naic2020"), "x/71.tif", "{name}.png", "71.png"),
    )
    for form, image, pattern, label in cases:
        (tmp_path / label).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / label).touch()
        assert label_for(tmp_path / image, f"{tmp_path}/{pattern}", form) == tmp_path / label
    with refused(DatasetError, where="--labels {name}.png", remedy="{stem}, {scene}, {tile} and {part}"):
        LabelPattern("{name}.png", tiles)
    with refused(DatasetError, expected="path like tile_{tile}/images/"):
        label_for(Path("x.jpg"), "{tile}.png", tiles)


def test_what_stands_for_nothing_says_what_would(tmp_path: Path) -> None:
    (tmp_path / "tile_7" / "images" / "deep").mkdir(parents=True)
    (tmp_path / "tile_7" / "images" / "deep" / "a.jpg").touch()
    with refused(DatasetError, where="tile_7", expected="tile_7/**/*.jpg") as raised:
        find_inputs([str(tmp_path / "tile_7")])
    proposed = re.search("give '(.*)', in quotes", str(raised.value))
    assert [path.name for path in find_inputs([proposed[1]]).files] == ["a.jpg"]
    with refused(DatasetError, where="tile_{2,7}/*.jpg", fault="file; patterns"):
        find_inputs([f"{tmp_path}/tile_{{2,7}}/*.jpg"])


PATTERNS = (
    *("**/*.tif", "a/**/*.tif", "*/**/b/*.tif", "**", "a/**", "a/**/", "**/b/**/*.tif", "**/*", "**/x.tif"),
    *("./**/*.tif", "a/**/**/z.tif", "a/*.tif", "**/[[]1]/*", "a/*/", "*.nothing", "**/b", "x", "n/**/*.tif"),
)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    names = ("a/x.tif", "a/b/y.tif", "a/b/c/z.tif", "q/x.tif", ".h/x.tif", "a/.h/x.tif", "a/[1]/w.tif", "x")
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_mean_what_they_mean_to_glob(pattern: str, tree: Path) -> None:
    for start in ("", f"{tree}/"):
        wanted = sorted({os.path.normpath(path) for path in glob.glob(start + pattern, recursive=True)})
        assert sorted(os.path.normpath(path) for path in matches(start + pattern)) == wanted


@pytest.mark.parametrize(
    "pattern",
    [
        *("{stem}_*.png", "*{stem}.png", "{stem}*/m.png", "*/{stem}*", "**/{stem}_?.png", "//{stem}_*", "*"),
        *("*_{stem}_*.png", "[a-c]*{stem}.png", "./**/{stem}/*.png", "d/**/m*.png", "{stem}/{stem}*.png"),
    ],
)
def test_labels_are_those_of_glob_for_each_image(pattern: str, tree: Path) -> None:
    stems = ("a", "a_b", "b", "[1]", "m", "none")
    for stem in stems:
        for name in (
            f"{stem}_l.png",
            f"x_{stem}.png",
            f"{stem}/m.png",
            f"d/{stem}/m1.png",
            f"x_{stem}_y.png",
        ):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).touch()
    for start in ("", f"{tree}/"):
        labels = LabelPattern(start + pattern, PLAIN)
        for stem in stems:
            filled = (start + pattern).replace("{stem}", glob.escape(stem))
            wanted = [path for path in glob.glob(filled, recursive=True) if Path(path).is_file()]
            found = labels.files(Path(f"i/{stem}.tif"))
            assert len(found) == len({*found})
            assert {*found} == {*map(Path, wanted)}


def test_each_real_folder_is_visited_once(tree: Path) -> None:
    for name in ("one", "two"):  # two such links give 2⁴⁰ paths
        (tree / "a" / name).symlink_to(tree / "a")
    found = [path.name for path in find_inputs([f"{tree}/**/*.tif"]).files]
    assert sorted(found) == ["w.tif", "x.tif", "x.tif", "y.tif", "z.tif"]
    assert len(files_under(tree)) == 6
    (tree / "labels").mkdir()
    (tree / "labels" / "round").symlink_to(tree)
    (tree / "labels" / "again").symlink_to(tree)
    (tree / "labels" / "y.png").touch()
    pattern = LabelPattern(
        f"{tree}/labels/**/{{stem}}.png", Layout(Path("."), re.compile(r"[^/]*"), re.compile(r"-"), "*")
    )
    assert pattern.label(Path("y.tif")) == tree / "labels" / "y.png"
    with refused(DatasetError, where="**/none.tif", fault="pattern matches"):
        find_inputs([f"{tree}/**/none.tif"])


def test_a_folder_behind_a_link_is_visited(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    beyond = tmp_path_factory.mktemp("beyond")
    (beyond / "far.tif").touch()
    (tree / "q" / "link").symlink_to(beyond)
    assert matches("**/far.tif") == ["q/link/far.tif"]
