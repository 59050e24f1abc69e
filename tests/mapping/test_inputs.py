"""Which files are meant, and what their outputs are called; patterns find what `glob` finds."""

import glob
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from datasets import kinds
from datasets.files import files_under
from segmenter.base.errors import DatasetError
from segmenter.base.files import matches
from segmenter.config.datasets import DatasetConfig
from segmenter.grid.scenes import Layout
from segmenter.mapping.request.inputs import find_inputs, output_names
from segmenter.mapping.request.truth import LabelPattern
from tests.helpers.refusals import refused

PLAIN = Layout(Path("."), re.compile(r"[^/]*"), re.compile(r"-"), "*")


def label_for(image: Path, pattern: str, layout: Layout = PLAIN) -> Path:
    return LabelPattern(pattern, layout).label(image)


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
        return kinds()[kind][1](TypeAdapter(DatasetConfig).validate_python(data))

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
