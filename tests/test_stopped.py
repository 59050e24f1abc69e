"""Killed and given again, or given twice at once: outputs are whole, nothing of a killed call stays."""

import csv
import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datasets.commands import call as datasets_main
from datasets.start.names import pair, patterns_of
from segmenter.base.errors import SegmenterError
from segmenter.base.files import alone_writing, exclusive_outputs, write_whole, written_whole
from segmenter.extras.review.places import ReviewPlace, write_table
from segmenter.grid.geometry import Window
from segmenter.mapping.folder.state import of_one_run
from segmenter.raster import RasterSpec, read_label, write_raster
from tests.helpers.refusals import refused

CLONE = Path(__file__).resolve().parents[1]
KILLED = """
import os, signal
calls = [0]
def killing(*given, real={what}, **named):
    calls[0] += 1
    if calls[0] == {at}:
        os.kill(os.getpid(), signal.{by})
    return real(*given, **named)
{what} = killing
{code}
"""


def kill(code: str, what: str, at: int = 1, by: str = "SIGKILL") -> None:
    """Run code whose process is killed before the `at`-th call of a function of `os`."""
    text = KILLED.format(what=what, at=at, by=by, code=code)
    done = subprocess.run([sys.executable, "-c", text], cwd=CLONE, capture_output=True, text=True)
    assert done.returncode < 0, done.stderr


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("what", ["os.fsync", "os.chmod", "os.replace"])
def test_a_file_written_again_leaves_nothing_of_killed_calls(tmp_path: Path, what: str) -> None:
    path = tmp_path / "s00.tif.aux.xml"
    code = "from pathlib import Path\nfrom segmenter.base.files import write_whole\n"
    code += f"write_whole(Path({str(path)!r}), b'old')"
    kill(code, what)
    assert len(names(tmp_path)) == 1
    (tmp_path / f".{path.name}.00000000.txt").write_text("mine")
    write_whole(path, b"new")
    assert names(tmp_path) == [f".{path.name}.00000000.txt", path.name]
    assert path.read_bytes() == b"new"


def test_of_two_at_once_each_writes_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with written_whole(path) as one, written_whole(path) as other:
        one.write(b"one")
        other.write(b"other")
    assert path.read_bytes() == b"one"
    assert names(tmp_path) == ["a"]


TWO = """
from pathlib import Path
from segmenter.base.files import exclusive_outputs, write_whole
folder = Path({folder!r})
with exclusive_outputs(folder / "m.yaml", folder / "m.html", remedy="no"):
    write_whole(folder / "m.html", b"page")
    write_whole(folder / "m.yaml", b"recipe")
"""


@pytest.mark.parametrize("by", ["SIGKILL", "SIGTERM"])
@pytest.mark.parametrize("at", [1, 2])
def test_a_call_killed_between_its_outputs_goes_on(tmp_path: Path, at: int, by: str) -> None:
    kill(TWO.format(folder=str(tmp_path)), "os.replace", at, by)
    exec(TWO.format(folder=str(tmp_path)))
    assert names(tmp_path) == ["m.html", "m.yaml"]


def test_what_no_killed_call_wrote_is_kept_and_an_error_leaves_nothing(tmp_path: Path) -> None:
    last, first = tmp_path / "m.yaml", tmp_path / "m.html"

    def write(error: bool = False) -> None:
        with exclusive_outputs(last, first, remedy="no"):
            write_whole(first, b"page")
            if error:
                raise SegmenterError("full")

    with refused(SegmenterError):
        write(error=True)
    assert names(tmp_path) == []
    first.write_bytes(b"mine")
    with refused(SegmenterError, where=first):
        write()
    assert first.read_bytes() == b"mine"
    first.unlink()
    kill(TWO.format(folder=str(tmp_path)), "os.replace", 2)
    last.write_bytes(b"mine")
    with refused(SegmenterError, where=last):
        write()
    assert last.read_bytes() == b"mine"


def test_of_two_calls_at_once_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    second = exclusive_outputs(path, overwrite=True, remedy="no")
    with alone_writing(path), refused(SegmenterError, where=path), second:
        raise AssertionError("two are at work")
    assert names(tmp_path) == []


def test_a_folder_has_maps_of_one_run_at_a_time(tmp_path: Path) -> None:
    one, same, other = (of_one_run(tmp_path, letter * 64) for letter in "aab")
    with one, same, refused(SegmenterError, where=tmp_path), other:
        raise AssertionError("two runs are at work")
    kill(
        "from pathlib import Path\nfrom segmenter.mapping.folder.state import of_one_run\n"
        f"with of_one_run(Path({str(tmp_path)!r}), 'c' * 64): os.getppid()",
        "os.getppid",
    )
    with of_one_run(tmp_path, "b" * 64):
        assert len(names(tmp_path)) == 1
    assert names(tmp_path) == []


def test_stitching_again_leaves_only_the_whole(tmp_path: Path, make_png: Callable[..., Path]) -> None:
    rng = np.random.default_rng(0)
    parts = [make_png(f"p_{i}.png", rng.integers(0, 9, (70, 90), np.uint8)) for i in range(2)]
    (tmp_path / "out").mkdir()
    words = ["stitch", str(parts[0].parent / "p_*.png"), "--columns", "2"]
    words += ["--output", str(tmp_path / "out/s.tif")]
    kill(f"from datasets.commands import call as main\nmain({words!r})", "os.replace")
    assert any(".tmp-" in name for name in names(tmp_path / "out"))
    assert datasets_main(words) == 0
    assert names(tmp_path / "out") == ["s.tif"]
    assert read_label(tmp_path / "out/s.tif").shape == (70, 180)


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2])
def test_a_sample_killed_between_form_and_points_goes_on(tmp_path: Path, at: int) -> None:
    pytest.importorskip("pyogrio")
    from datasets.commands.accuracy import main

    ids = np.random.default_rng(0).integers(0, 2, (60, 70)).astype(np.uint8)
    write_raster(tmp_path / "map.tif", ids, RasterSpec(tags={"CLASS_0": "a", "CLASS_1": "b"}))
    (tmp_path / "out").mkdir()
    words = ["sample", str(tmp_path / "map.tif"), "--output", str(tmp_path / "out/p.gpkg"), "--points", "20"]
    kill(f"from datasets.commands.accuracy import main\nmain({words!r})", "os.replace", at)
    assert main(words) == 0
    assert names(tmp_path / "out") == ["p.gpkg", "p.qml"]


@given(st.lists(st.text(st.characters(exclude_categories=("Cs",))), min_size=1, max_size=4))
def test_no_cell_of_a_table_is_a_formula(texts: list[str]) -> None:
    written = list[bytes]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("segmenter.extras.review.places.write_whole", lambda _, text: written.append(text))
        formulas = [f"{start}{texts[0]}" for start in ("=", "+", "-", "@", "\t=", " =", "＝")]
        columns = {"label": [*texts, *formulas], "wrong": [-1.5] * (len(texts) + len(formulas))}
        places = [ReviewPlace(text, SimpleNamespace(), Window(0, 0, 1, 1)) for text in columns["label"]]
        write_table(places, columns, Path("review.csv"))
    rows = list(csv.reader(io.StringIO(written[0].decode(), newline="")))[1:]
    cells = [cell for row in rows for cell in (row[1], row[6])]
    assert not [cell for cell in cells if cell.lstrip()[:1] in set("=+-@＝＋－＠") and cell.lstrip()]
    assert [row[7] for row in rows] == ["-1.5"] * len(rows)


@pytest.mark.parametrize("form", ["a\nb{}", "{}\na", "x{}\n", "\r{}", "a\u2028{}b", "d\n/{}"])
def test_patterns_are_found_of_names_with_line_breaks(form: str) -> None:
    images, labels = ([f"{kind}/{form.format(i)}.tif" for i in range(6)] for kind in ("images", "labels"))
    pairs = [(image, label) for label, (image,) in pair(images, labels).items()]
    found = patterns_of(pairs)
    assert found.images[0].replace("images", "labels") == found.labels
    assert "{name}" in found.labels
