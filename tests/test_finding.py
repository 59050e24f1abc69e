"""Patterns find what `glob` finds, and end where links go round in circles."""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path

import pytest

from datasets.files import files_under
from segmenter.base.errors import DatasetError
from segmenter.base.files import matches
from segmenter.grid.scenes import Layout
from segmenter.mapping.request.inputs import find_inputs
from segmenter.mapping.request.truth import LabelPattern
from tests.helpers.refusals import refused

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
