"""Folders in use: full disks, good and bad files, names that clash, paths that lead elsewhere."""

import io
import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tqdm import tqdm

from segmenter.base.errors import DeviceError, RasterError
from segmenter.base.sealed import seal
from segmenter.mapping import session
from segmenter.mapping.outputs.pictures import RemoveStalePictures
from segmenter.raster import RasterSpec, RasterWriter, raster_info, write_raster
from tests.helpers.child_predict import COMMAND, ENVIRONMENT, files, without_styles
from tests.helpers.forbidden import small_files
from tests.helpers.maps import Call, Make, at_batch, names, vrt_of

OPTIONS = ("--probabilities", "uint8", "--window-size", "128", "--batch", "1")
RAW, MAPS = 8 * 1500 * 300, 1_100_000
"""Bytes of what is kept of the raster, a class and 7 probabilities a pixel, and of its maps, about."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """`disk(bytes)`: a small file system of its own; only root may make one."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def make(size: int) -> Path:
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("there is no mount command")
        if done.returncode:
            pytest.skip(f"a small file system cannot be mounted: {done.stderr.strip()}")
        return folder

    yield make
    subprocess.run(["umount", "--lazy", str(folder)], capture_output=True, check=False)


@pytest.fixture
def source(make_geotiff: Make) -> Path:
    image = np.random.default_rng(0).integers(0, 255, (1500, 300, 3), np.uint8)
    return make_geotiff("in/a.tif", image)


@pytest.fixture
def stopped_at(call: Call, monkeypatch: Any) -> Callable[..., None]:
    """`stopped_at(9, source, output)`: predict.py, stopped when so many batches are computed."""
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)

    def stop(at: int, source: Path, output: Path) -> None:
        stopped = at_batch(at, KeyboardInterrupt())
        assert call(source, *OPTIONS, predictor=stopped, output=str(output)) == 130
        assert (output / ".a.tif.partial").stat().st_size > 100_000

    return stop


def fill(folder: Path, free: int) -> None:
    rest = shutil.disk_usage(folder).free - free
    assert rest > 0
    (folder / "hog").write_bytes(b"\1" * rest)


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("size", [MAPS + (1 << 19), RAW - (1 << 18), RAW + MAPS // 2, RAW + MAPS + (1 << 16)])
def test_maps_that_fit_are_made_whatever_is_kept_beside_them(
    disk: Callable[[int], Path], source: Path, call: Call, capsys: Any, monkeypatch: Any, size: int
) -> None:
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    maps = disk(size) / "maps"
    assert call(source, *OPTIONS, output=str(maps)) == 0
    assert "maps/a.tif: cannot" in capsys.readouterr().err
    assert without_styles(files(maps)) == ["a.probabilities.tif", "a.tif"]
    assert hidden(maps) == [".journal.jsonl"]


def test_a_stopped_map_that_finds_a_full_disk_takes_what_was_kept_of_it(
    disk: Callable[[int], Path], source: Path, stopped_at: Callable[..., None], call: Call, capsys: Any
) -> None:
    folder = disk(20_000_000)
    stopped_at(30, source, folder / "maps")
    fill(folder, 100_000)
    assert call(source, *OPTIONS, output=str(folder / "maps")) == 0
    told = capsys.readouterr().err  # by which of the two, depends on when GDAL writes its blocks
    ways = ("found no space beside what was kept of it, and was begun anew", "cannot be resumed from within")
    assert any(f"a.tif: {way}" in told for way in ways)
    assert call(source, *OPTIONS, output=str(Path("whole"))) == 0
    assert files(folder / "maps") == files("whole")
    assert hidden(folder / "maps") == [".journal.jsonl"]


@pytest.mark.slow
def test_a_map_that_does_not_fit_leaves_nothing_half_written(
    disk: Callable[[int], Path], source: Path, stopped_at: Callable[..., None], call: Call, capsys: Any
) -> None:
    folder = disk(20_000_000)
    stopped_at(9, source, folder / "maps")
    fill(folder, 20_000)
    capsys.readouterr()
    assert call(source, *OPTIONS, output=str(folder / "maps")) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert "written" in errors[0]
    assert hidden(folder / "maps") == [".journal.jsonl"]
    (folder / "hog").unlink()
    assert call(source, *OPTIONS, output=str(folder / "maps")) == 0


def test_what_was_kept_and_cannot_be_written_leaves_no_temporary_files(
    source: Path, stopped_at: Callable[..., None], call: Call, monkeypatch: Any
) -> None:
    stopped_at(9, source, Path("maps"))

    def denied(*_: Any) -> None:
        try:
            raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise RasterError(f"a.tif: could not be written: {error.strerror}") from None

    with monkeypatch.context() as patch:
        patch.setattr(RasterWriter, "write", denied)
        assert call(source, *OPTIONS) == 1
    assert sorted(hidden(Path("maps"))) == [".a.tif.partial", ".journal.jsonl"]
    assert call(source, *OPTIONS) == 0


@pytest.mark.slow
def test_what_nobody_reads_stops_no_maps(tmp_path: Path, make_geotiff: Make) -> None:
    """As with `| head`: failed inputs are listed, scores and pictures are made."""
    make_geotiff("in/a.tif", np.random.default_rng(0).integers(0, 255, (70, 60, 3), np.uint8))
    make_geotiff("truth/a.tif", np.ones((70, 60), np.uint8))
    (tmp_path / "in" / "b.tif").write_text("no image")
    (tmp_path / "truth" / "b.tif").write_text("no image")
    options = ["--labels", str(tmp_path / "truth" / "{stem}.tif"), "--pictures"]
    command = [*COMMAND, "0", "1000", str(tmp_path / "in"), "--output", str(tmp_path / "maps"), *options]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, check=False
        )
    assert done.returncode == 1
    assert "b.tif: expected a GeoTIFF" in done.stderr
    assert done.stderr.count("\n") == 1
    made = without_styles(files(tmp_path / "maps"))
    assert made == ["a.tif", "a.view.png", "confusion.png", "scores.json"]


def test_fail_fast_stops_at_the_first_bad_input(make_geotiff: Make, call: Call, capsys: Any) -> None:
    image = np.random.default_rng(0).integers(0, 255, (700, 30, 3), np.uint8)
    for name in ("a", "b", "c"):
        make_geotiff(f"in/{name}.tif", image)
    bad = Path("in/b.tif")
    bad.write_bytes(bad.read_bytes()[:40_000])
    assert call("in", "--fail-fast", "--batch", 1) == 1
    said = capsys.readouterr().err
    assert "b.tif: cannot read" in said
    assert said.count("\n") == 1
    assert names("maps", hidden=True) == [".journal.jsonl", "a.tif"]
    Path("in/a0.tif").write_text("no image")
    assert call("in", "--fail-fast", output="other") == 1
    assert "a0.tif: expected a GeoTIFF" in capsys.readouterr().err
    assert not Path("other").exists()
    bad.write_bytes(Path("in/a.tif").read_bytes())
    Path("in/a0.tif").unlink()
    assert call("in", "--fail-fast", "--batch", 1) == 0
    assert "1 of 3 maps are finished" in capsys.readouterr().out


def test_outputs_of_different_inputs_never_get_one_name(make_geotiff: Make, call: Call, capsys: Any) -> None:
    for name in ("a", "A.confidence"):
        make_geotiff(f"in/{name}.tif", np.ones((9, 9, 3), np.uint8))
    assert call("in") == 0
    assert call("in", "--confidence", output="other") == 2
    said = capsys.readouterr().err
    assert "confidence.tif: would" in said
    assert said.count("\n") == 1
    assert not Path("other").exists()


def test_a_link_in_the_output_folder_is_replaced_and_not_followed(make_geotiff: Make, call: Call) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    Path("elsewhere").mkdir()
    Path("maps").mkdir()
    for name in ("a.tif", ".a.tif.lock", ".a.tif.partial", "a.quicklook.png"):
        (Path("elsewhere") / name).write_text("mine")
    for name in ("a.tif", "a.quicklook.png"):
        (Path("maps") / name).symlink_to(Path("elsewhere") / name)
    assert call(source, "--quicklook") == 0
    assert all(path.read_text() == "mine" for path in Path("elsewhere").iterdir())
    assert not Path("maps/a.tif").is_symlink()
    assert raster_info(Path("maps/a.tif")).size.height == 9


def test_the_output_folder_may_be_a_link(make_geotiff: Make, call: Call) -> None:
    make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    Path("elsewhere").mkdir()
    Path("maps").symlink_to("elsewhere")
    assert call("in", "--confidence", "--quicklook") == 0
    assert {"a.tif", "a.qml", "a.confidence.tif", "a.quicklook.png"} <= set(os.listdir("elsewhere"))


def test_a_link_to_an_input_is_refused(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint8))
    Path("maps").mkdir()
    Path("maps/a.confidence.tif").symlink_to(source)
    before = source.read_bytes()
    assert call(source, "--confidence") == 2
    assert "would replace" in capsys.readouterr().err
    assert source.read_bytes() == before


def test_only_drivers_that_are_named_open_a_file(make_geotiff: Make, call: Call, capsys: Any) -> None:
    make_geotiff("in/a.tif", np.ones((20, 30, 3), np.uint8))
    Path("b.vrt").write_text(vrt_of("in/a.tif", 20, 30))
    assert call("b.vrt") == 1
    assert "begins with b'<VRT'" in capsys.readouterr().err
    assert call("b.vrt", "--drivers", "JP2OpenJPEG") == 1
    assert "b.vrt: cannot open" in capsys.readouterr().err
    assert call("b.vrt", "--drivers", "JP2OpenJPEG,VRT") == 0
    assert raster_info(Path("maps/b.tif")).size.width == 30
    Path("b.vrt").rename(Path("b.xml"))  # whatever its name: its files are not looked at
    for _ in range(2):
        assert call("b.xml", "--drivers", "VRT") == 0
    assert "b.tif: made anew: the files that a VRT reads are not looked at" in capsys.readouterr().out
    assert call("b.xml", "--drivers", "Virtual") == 2
    assert "--drivers: GDAL" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("limit", "options", "name"),
    [
        (4000, (), "a.tif"),  # of 15,000: fails when it is closed
        (17_000, ("--cog",), "a.tif"),  # holds the map, and not the map with its overviews
        (30_000, ("--probabilities", "float16"), "a.probabilities.tif"),
    ],
)
def test_a_full_disk_is_one_line_and_leaves_what_was_there(
    make_geotiff: Make, call: Call, capsys: Any, limit: int, options: Any, name: str
) -> None:
    make_geotiff("in/a.tif", np.random.default_rng(0).integers(0, 255, (601, 61, 3), np.uint8))
    make_geotiff("in/b.tif", np.zeros((9, 9, 3), np.uint8), nodata=0)
    Path("maps").mkdir()
    Path("maps/a.tif").write_bytes(b"older")
    with small_files(limit):
        assert call("in", "--redo", *options) == 1
    lines = capsys.readouterr().err.splitlines()
    (error,) = [line for line in lines if not line.startswith("warning: ")]
    assert error.startswith(f"error: maps/{name}: ")
    assert Path("maps/a.tif").read_bytes() == b"older"
    assert not [n for n in names("maps", hidden=True) if "tmp" in n or "lock" in n]
    assert Path("maps/b.tif").is_file()


def test_the_bar_counts_the_pixels_of_all_inputs(make_geotiff: Make, call: Call, monkeypatch: Any) -> None:
    bars: list[Any] = []

    class Bar(tqdm):  # type: ignore[type-arg]
        def __init__(self, *given: Any, shown: bool = True, lines: bool = True, **options: Any) -> None:
            super().__init__(*given, **{**options, "disable": False, "file": io.StringIO()})
            if not given:
                bars.append(self)

    monkeypatch.setattr("segmenter.mapping.session.Bar", Bar)
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1)
    for name, height in (("a", 20), ("b", 300)):
        make_geotiff(f"in/{name}.tif", np.ones((height, 30, 3), np.uint8))
    assert call("in/a.tif") == 0
    assert (bars[0].initial, bars[0].total, bars[0].n) == (0, 600, 600)
    asked = ("in", "--window-size", 64, "--batch", 1)
    assert call(*asked, predictor=at_batch(6, KeyboardInterrupt())) == 130
    assert call(*asked) == 0
    last = bars[-1]
    assert last.total == last.n == 30 * 320
    assert 0 < last.initial < 30 * 320


@pytest.mark.slow
def test_more_inputs_than_may_be_open_at_once(call: Call) -> None:
    """Locks, partial maps and maps under way are let go of."""
    for index in range(100):
        write_raster(Path(f"in/{index}.tif"), np.full((12, 9, 3), index, np.uint8))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = len(os.listdir("/proc/self/fd")) + 60  # some are open already, by whatever ran in this process
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most), hard))
    try:
        assert call("in", "--batch", 2) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(list(Path("maps").glob("*.tif"))) == 100


def test_a_failing_device_costs_only_what_is_not_done(make_geotiff: Make, call: Call, capsys: Any) -> None:
    for name in ("a", "b", "c"):
        make_geotiff(f"in/{name}.tif", np.ones((300, 30, 3), np.uint8))
    lost = at_batch(15, DeviceError("no memory"))
    assert call("in", "--window-size", 64, "--batch", 1, predictor=lost) == 1
    assert capsys.readouterr().err == "error: no memory\n"
    assert names("maps", hidden=True) == [".journal.jsonl", "a.tif"]
    assert call("in", "--window-size", 64, "--batch", 1) == 0
    assert "1 of 3 maps are finished" in capsys.readouterr().out


IMAGE = np.arange(11 * 13 * 3, dtype=np.uint8).reshape(11, 13, 3)


def label(path: Path, value: int = 0) -> bytes:
    """A label of one value for IMAGE; gives the file's bytes."""
    write_raster(path, np.full(IMAGE.shape[:2], value, np.uint8), RasterSpec(driver="PNG"))
    return path.read_bytes()


@pytest.mark.parametrize("pattern", ["scenes/**/*.tif", "scenes/*"])
def test_a_pattern_does_not_mean_the_maps(make_geotiff: Make, call: Call, capsys: Any, pattern: str) -> None:
    make_geotiff("scenes/a.tif", IMAGE)
    make_geotiff("scenes/b.tif", IMAGE)
    assert call(pattern, output="scenes/maps") == 0
    assert "2 maps in scenes/maps" in capsys.readouterr().out
    for _ in range(2):
        assert call(pattern, output="scenes/maps") == 0
        said = capsys.readouterr().out
        assert "2 of 2 maps are finished" in said
        assert "maps in --output, not images: 2 files: scenes/maps/a.tif, …" in said
        assert names("scenes/maps", hidden=True) == [".journal.jsonl", "a.tif", "b.tif"]
    assert call("scenes/maps/*.tif", output="scenes/maps") == 2
    assert "files in --output scenes/maps" in capsys.readouterr().err
    assert call("scenes/maps/a.tif", output="scenes/maps", band_count=1) != 0
    assert "scenes/maps/a.tif" in capsys.readouterr().err


def test_a_picture_is_drawn_again_with_a_label_that_is_older(make_geotiff: Make, call: Call) -> None:
    source, view = make_geotiff("in/a.tif", IMAGE), Path("maps/a.view.png")
    label(Path("truth.png"), 1)
    drawn = []
    for words in ((), ("--labels", "truth.png"), ("--labels", "truth.png"), ()):
        assert call(source, "--pictures", *words) == 0
        drawn.append((view.read_bytes(), view.stat().st_mtime_ns))
    assert drawn[1][0] != drawn[0][0]
    assert drawn[2] == drawn[1]
    assert drawn[3][0] == drawn[0][0]
    journal = Path("maps/.journal.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for line in lines:  # as earlier versions wrote it
        line.get("settings", {}).pop("label", None)
        line.pop("crc")
    journal.write_text("".join(f"{seal(json.dumps(line, ensure_ascii=False))}\n" for line in lines))
    make_geotiff("in/a.tif", IMAGE[::-1])
    assert call(source) == 0
    assert not view.exists(), "a picture of the map before"


def test_scores_go_with_the_maps_that_they_are_of(
    make_geotiff: Make, call: Call, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    label(Path("truth.png"), 1)
    scores = Path("maps/scores.json")
    assert call(source, "--labels", "truth.png") == 0
    other = make_geotiff("in/b.tif", IMAGE)
    assert call(other) == 0
    assert scores.exists(), "of a map that is as it was"
    make_geotiff("in/a.tif", IMAGE[::-1])
    capsys.readouterr()
    assert call(source) == 0
    assert str(scores) in capsys.readouterr().out
    assert {"scores.json", "confusion.png"} & set(names("maps")) == set()
    make_geotiff("in/a.tif", IMAGE)
    assert call(source, "--labels", "truth.png", "--pictures") == 0
    make_geotiff("in/a.tif", IMAGE[::-1])
    with monkeypatch.context() as killed:
        killed.setattr(session, "_score", lambda *_: [])
        killed.setattr(RemoveStalePictures, "finish", lambda *_: [])
        assert call(source) == 0
    assert {"scores.json", "a.view.png"} <= set(names("maps"))
    assert call(source) == 0
    assert {"scores.json", "confusion.png", "a.view.png"} & set(names("maps")) == set(), (
        "killed before its end"
    )
    for text in ("{}", "[", '{"per_scene": [1]}', '{"per_scene": {"a": {"map": []}}}'):
        scores.write_text(text)
        assert call(source, "--redo") == 0
        assert scores.read_text() == text, "of others"


@pytest.mark.slow
def test_a_picture_older_than_its_map_or_label_is_drawn_again(make_geotiff: Make, call: Call) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    label(Path("truth.png"), 1)
    view = Path("maps/a.view.png")
    how = (source, "--labels", "truth.png")
    assert call(*how, "--pictures") == 0
    first = view.stat().st_mtime_ns
    assert call(*how, "--pictures") == 0
    assert view.stat().st_mtime_ns == first
    before = view.read_bytes()
    label(Path("truth.png"), 2)
    assert call(*how, "--pictures") == 0
    assert view.read_bytes() != before
    make_geotiff("in/a.tif", IMAGE[::-1])
    assert call(*how, "--no-styles") == 0
    assert [path.name for path in Path("maps").glob("a*")] == ["a.tif"]
    assert call(*how, "--pictures") == 0
    view.write_bytes(b"of someone")
    assert call(*how, "--redo") == 0
    assert view.read_bytes() == b"of someone"


def test_a_file_of_others_is_not_replaced(make_geotiff: Make, call: Call, capsys: Any) -> None:
    """Any output's name counts; a map is known as ours without the journal, and others go by `--redo`."""
    source = make_geotiff("in/a.tif", IMAGE)
    others = [make_geotiff("maps/a.tif", IMAGE), Path("maps/a.confidence.tif"), Path("maps/a.quicklook.png")]
    options = ("--confidence", "--quicklook")
    for path in others:
        path.write_bytes(content := path.read_bytes() if path.exists() else b"of someone")
        assert call(source, *options) == 1
        assert capsys.readouterr().err.count("\n") == 1
        assert (names("maps"), path.read_bytes()) == ([path.name], content)
        path.unlink()
    assert call(source) == 0
    Path("maps/.journal.jsonl").unlink()
    assert call(source) == 0
    others[1].write_bytes(b"of someone")
    assert call(source, *options) == 1
    assert call(source, *options, "--redo") == 0
    assert others[1].read_bytes() != b"of someone"


def test_a_name_that_is_not_utf8_is_one_line(make_geotiff: Make, call: Call, capsys: Any) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    path = Path(os.fsdecode(bytes(Path("in")) + b"/\xff.tif"))
    path.write_bytes(source.read_bytes())
    assert call("in") == 1
    assert capsys.readouterr().err.startswith("error: 'in/\\udcff.tif': ")
    assert names("maps") == ["a.tif"]


def test_the_system_s_refusal_is_one_line(
    make_geotiff: Make, call: Call, capsys: Any, monkeypatch: Any
) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    long = "x" * 300 + ".png"
    assert call(long) == 2
    assert "File name" in capsys.readouterr().err
    assert call(source, "--labels", long) == 1
    assert "cannot look" in capsys.readouterr().err

    def refuse(self: Path) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert call("in") == 2
    assert "Permission denied" in capsys.readouterr().err


def test_an_output_folder_that_cannot_be_made_is_told_before_the_model_is_loaded(
    make_geotiff: Make, call: Call, capsys: Any, monkeypatch: Any
) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    Path("file").touch()

    def never(_: Path) -> Any:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr("datasets.commands.predict_stages.load_runs", never)
    for output, why in (("file", "it is a file"), ("file/maps", "Not a directory")):
        assert call(source, output=output) == 2
        assert capsys.readouterr().err.endswith(f"{why}\n")


def test_an_empty_output_folder_is_removed_again(tmp_path: Path, make_geotiff: Make, call: Call) -> None:
    source = make_geotiff("in/a.tif", IMAGE)
    Path("there").mkdir()
    for output in ("maps", "there"):
        assert call(source, output=output, band_count=4) == 1
        assert call("nothing.tif", output=output) == 2
    assert names(tmp_path) == ["in", "there"]
