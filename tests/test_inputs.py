"""Which files are meant, and what their outputs are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from segmenter.errors import DatasetError
from segmenter.maps.inputs import check_pattern, find_inputs, label_for, output_names


def test_files_folders_and_globs_each_once(tmp_path: Path) -> None:
    for name in ("a/x.tif", "a/y.PNG", "a/readme.txt", "a/.hidden.tif", "a/sub/z.tif", "b[1].tif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    given = [f"{tmp_path}/a", f"{tmp_path}/a/x.tif", f"{tmp_path}/b[1].tif", f"{tmp_path}/**/z.*"]
    found = find_inputs(given)
    assert [p.relative_to(tmp_path).as_posix() for p in found.files] == [
        "a/x.tif",
        "a/y.PNG",
        "b[1].tif",
        "a/sub/z.tif",
    ]
    assert [p.name for p in found.left_out] == ["readme.txt"]
    with pytest.raises(DatasetError, match=r"nowhere\.tif: no such file or folder"):
        find_inputs([str(tmp_path / "nowhere.tif")])
    with pytest.raises(DatasetError, match=r"\*\.jp2: pattern matches no file"):
        find_inputs([f"{tmp_path}/*.jp2"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match=r"empty: expected image files \(\.tif"):
        find_inputs([str(tmp_path / "empty")])


def test_no_two_inputs_share_an_output() -> None:
    paths = [
        Path(p) for p in ("/p/a/x.tif", "/p/b/x.tif", "/p/b/x.png", "/q/b/X.tif", "/p/y.tif", "/p/b_x.tif")
    ]
    names = output_names(paths)
    assert names[Path("/p/a/x.tif")] == "a_x"
    assert names[Path("/p/y.tif")] == "y"
    assert len({name.casefold() for name in names.values()}) == len(paths)
    assert all("/" not in name for name in names.values())
    assert output_names([]) == {}


def test_a_label_is_found_by_stem_or_scene(tmp_path: Path) -> None:
    labels = (
        "a/top_2_13_label.tif",
        "a/top_2_13_RGB_x.tif",
        "b/deep/top_2_13.png",
        "[1]_RGB.png",
        "1_RGB.png",
    )
    for name in labels:
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
    with pytest.raises(DatasetError, match=r"one label file .*a_\?\.png, found .*a_1\.png, .*a_3\.png"):
        label_for(Path("a.tif"), f"{tmp_path}/{{stem}}_?.png")
    with pytest.raises(DatasetError, match=r"expected one label file .*a_2\.png, found none"):
        label_for(Path("a.tif"), f"{tmp_path}/{{stem}}_2.png")


def test_a_pattern_must_tell_images_apart() -> None:
    check_pattern("a.png", 1)
    check_pattern("{stem}.png", 9)
    with pytest.raises(DatasetError, match=r"unknown \{name\}; known are \{stem\} and \{scene\}"):
        check_pattern("{name}.png", 1)
    with pytest.raises(DatasetError, match=r"expected \{stem\} or \{scene\} in it, for 2 images"):
        check_pattern("a.png", 2)
