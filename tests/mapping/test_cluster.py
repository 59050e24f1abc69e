"""Maps on a cluster: the bytes of one process, whatever happens to the workers."""

import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.extras.dask.windows import JobStrip
from segmenter.mapping.folder.partial import PartialMap
from tests.helpers.child_predict import CLASSES, COMMAND, files, scene, without_styles
from tests.helpers.cluster_worker import KILL, PRELOAD, running_with
from tests.helpers.clusters import threads_cluster
from tests.helpers.maps import Call, Make

OPTIONS = ("--window-size", "64", "--batch", "2", "--confidence", "--probabilities", "float16", "--quicklook")


@pytest.fixture
def small_strips(monkeypatch: Any) -> None:
    """Strips of one band of windows, of rasters that are as small."""
    monkeypatch.setattr("segmenter.extras.dask.windows.PIXELS", 4000)
    monkeypatch.setattr("segmenter.mapping.folder.state.LEAST_PIXELS", 1000)
    monkeypatch.setattr("segmenter.extras.dask.windows._BLENDED_BANDS", 2)


@pytest.fixture(scope="module")
def two_workers() -> Iterator[str]:
    with threads_cluster(2) as cluster:
        yield cluster.scheduler_address


def same_as_one_process(folder: Path, make_geotiff: Make, call: Call, address: str, *options: str) -> None:
    sources = [scene(make_geotiff, "in/a.tif", 350, 130)]
    if "--part" not in options:
        sources += [scene(make_geotiff, f"in/{i}.tif", 41, 37, i) for i in range(5)]
    arguments = ("in", *OPTIONS, *options)
    assert call(*arguments, output="one") == 0
    assert call(*arguments, "--scheduler", address) == 0
    assert len(files(folder / "one")) == 8 * len(sources)
    assert files(folder / "maps") == files(folder / "one")
    names = {path.name for path in (folder / "maps").iterdir() if path.name.startswith(".")}
    assert names == {".journal.jsonl"}


CODES, PART = ("--codes", "1,2,3,4,5,6,700"), ("--part", "11", "7", "300", "90")
CROSSES = [("--mode", "exact"), ("--gsd", "0.35", *CODES), PART]
MODES = [("--mode", "smooth"), *(pytest.param(each, marks=pytest.mark.slow) for each in CROSSES)]


@pytest.mark.parametrize("options", MODES, ids=str)
def test_maps_of_a_cluster_are_those_of_one_process(
    tmp_path: Path, make_geotiff: Make, call: Call, small_strips: None, two_workers: str, options: Any
) -> None:
    same_as_one_process(tmp_path, make_geotiff, call, two_workers, *options)


@pytest.mark.slow
def test_a_mosaic_has_no_seams(make_geotiff: Make, call: Call, small_strips: None, two_workers: str) -> None:
    image = np.random.default_rng(3).integers(1, 255, (210, 160, 3), np.uint8)
    make_geotiff("in/left.tif", image[:, :80])
    make_geotiff("in/right.tif", image[:, 80:], transform=rasterio.Affine(0.5, 0, 368040, 0, -0.5, 5808000))
    arguments = ("in", "--mosaic", "--window-size", "64", "--batch", "2")
    assert call(*arguments, output="one") == 0
    assert call(*arguments, "--scheduler", two_workers) == 0
    assert files("maps") == files("one")


@pytest.mark.slow
def test_what_fails_on_a_cluster_is_said_as_by_one_process(
    make_geotiff: Make, call: Call, small_strips: None, two_workers: str, capsys: Any
) -> None:
    damaged = scene(make_geotiff, "in/a.tif", 640, 210)
    scene(make_geotiff, "in/b.tif", 300, 90)
    make_geotiff("b_label.tif", np.full((300, 90), 3, np.uint8))
    with damaged.open("r+b") as file:
        file.truncate(damaged.stat().st_size * 2 // 3)
    arguments = ("in", "--window-size", "64", "--batch", "2", "--labels", "{stem}_label.tif", "--pictures")
    said = []
    for output, more in (("one", ()), ("maps", ("--scheduler", two_workers))):
        assert call(*arguments, *more, output=output) == 1
        out, err = capsys.readouterr()
        said.append((re.sub("Mpixel/s|[0-9.]+ Mpixel.*|one|maps", "", out), err))
    assert "in/a.tif: " in said[0][1]
    assert said[0] == said[1]
    assert files("maps").keys() >= {"b.tif", "b.view.png", "scores.json"}
    assert files("maps") == files("one")


@pytest.mark.slow
def test_a_scheduler_that_dies_is_one_line_and_the_same_call_goes_on(
    make_geotiff: Make, call: Call, small_strips: None, capsys: Any, monkeypatch: Any
) -> None:
    source = scene(make_geotiff, "in/a.tif", 900, 130)
    arguments = (source, "--window-size", "64", "--batch", "2")
    assert call(*arguments, output="one") == 0
    added, add = [], PartialMap.add

    with threads_cluster(2) as cluster:

        def closing(self: PartialMap, *window: Any) -> None:
            add(self, *window)
            added.append(window)
            if len(added) == 9:
                cluster.close()

        monkeypatch.setattr(PartialMap, "add", closing)
        capsys.readouterr()
        assert call(*arguments, "--scheduler", cluster.scheduler_address) == 1
    lines = capsys.readouterr().err.splitlines()
    (error,) = [line for line in lines if line.startswith("error: ")]
    assert "the scheduler is gone" in error
    assert files("maps") == {}
    first = len(added)
    with threads_cluster(1) as cluster:
        assert call(*arguments, "--scheduler", cluster.scheduler_address) == 0
    assert files("maps") == files("one")
    assert added[first][0].row > 0, "it goes on within the raster"


@pytest.mark.slow
def test_workers_that_do_not_see_the_images_end_the_call(
    make_geotiff: Make, call: Call, two_workers: str, capsys: Any, monkeypatch: Any
) -> None:
    source = scene(make_geotiff, "in/a.tif", 60, 50)
    to_send = JobStrip.to_send

    def elsewhere(strip: JobStrip) -> JobStrip:
        sent = to_send(strip)
        info = replace(sent.job.info, path=Path("/elsewhere/a.tif"))
        return replace(sent, job=replace(sent.job, info=info))

    monkeypatch.setattr(JobStrip, "to_send", elsewhere)
    assert call(source, "--scheduler", two_workers) == 1
    assert "worker does" in capsys.readouterr().err
    assert not Path("maps").exists()


@pytest.mark.slow
def test_killed_workers_cost_their_strips_only(tmp_path: Path, make_geotiff: Make, call: Call) -> None:
    """Real processes: both are killed in the middle, the call goes on, and nothing of it stays."""
    source = scene(make_geotiff, "in/a.tif", 2100, 1050)
    arguments = (str(source), "--window-size", "256", "--batch", "2")
    Path("victims").mkdir()
    for victim in "ab":
        (Path("victims") / victim).touch()
    environment = {**PRELOAD, KILL: str(Path("victims")), "TMPDIR": str(tmp_path)}
    command = [*COMMAND, "0", "1000", *arguments, "--workers", "2", "--output", str(Path("maps"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not list(Path("victims").iterdir())
    gone = [line for line in done.stderr.splitlines() if "is gone; what it had is done by others" in line]
    assert len(gone) == 2, done.stderr
    assert call(*arguments, classes=CLASSES, output="one") == 0
    assert files("maps") == files("one")
    assert [path.name for path in tmp_path.glob("segmenter-*")] == [], "scratch of workers"
    assert running_with(str(tmp_path)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_a_call_that_is_ended_ends_its_workers_and_goes_on(
    tmp_path: Path, make_geotiff: Make, call: Call, number: signal.Signals, code: int
) -> None:
    sizes = {"a": (90, 70), "b": (3000, 1050)}
    sources = [str(scene(make_geotiff, f"in/{name}.tif", *size)) for name, size in sizes.items()]
    asked = (*sources, "--window-size", "64", "--batch", "1")
    command = [*COMMAND, "0", "1000", *asked, "--workers", "2", "--output", str(Path("maps"))]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = {**PRELOAD, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=environment, **pipes)
    for line in process.stdout:
        if line.startswith("named a.tif"):
            process.send_signal(number)
            break
    _, err = process.communicate()
    assert process.returncode == code, err
    if code > 0:
        assert err.splitlines()[-1] == "interrupted"
        assert "Traceback" not in err
    assert without_styles(files("maps")) == ["a.tif"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    assert call(*asked, classes=CLASSES, output="one") == 0
    assert files("maps") == files("one")
    assert running_with(f"TMPDIR={tmp_path}") == []
    assert list(tmp_path.glob(".segmenter-workers*")) == []
