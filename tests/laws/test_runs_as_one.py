"""Several runs as one: the mean of their probabilities, in one reading, exact whatever the windows."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import rasterio

from datasets.commands import predict
from segmenter.base.errors import CheckpointError, run_script
from segmenter.grid.labels import ClassMap
from segmenter.inference.loading import load_predictor
from segmenter.inference.prediction import ExtraOutputs
from segmenter.mapping.call import Call, needs_of
from segmenter.mapping.request.map_request import MapRequest
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.runs.ensemble import Ensemble, join_runs
from segmenter.runs.run import Run, load_run
from tests.helpers.random_run import random_run
from tests.helpers.refusals import refused

Make = Callable[..., Path]


@pytest.fixture(scope="module")
def runs(
    tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory, make_classes: Callable[..., ClassMap]
) -> tuple[Path, Path]:
    """Two of other depths, weights and normalisations."""
    folder = tmp_path_factory.mktemp("runs")
    first = random_run(folder / "a", make_classes(4), name="deep")
    return first, random_run(folder / "b", make_classes(4), name="flat", depth=2, seed=8, mean=300)


@pytest.mark.slow
def test_the_map_of_runs_is_that_of_their_mean_over_the_whole(
    runs: tuple[Path, Path], make_geotiff: Make, tmp_path: Path, rng: np.random.Generator
) -> None:
    """In windows, through `predict.py`, bit for bit; the same call keeps it, other runs make it anew."""
    image = rng.integers(1, 1000, (203, 317, 3), np.uint16)
    image[100:, :60] = 0
    source = make_geotiff("in/a.tif", image, nodata=0)
    together = join_runs([load_run(path) for path in runs])
    assert isinstance(together, Ensemble)
    one, other = (load_run(path).network for path in runs)
    assert (together.network.stride, together.network.radius) == (8, max(one.radius or 0, other.radius or 0))
    below, right = -203 % 8, -317 % 8
    padded = np.pad(image, ((0, below), (0, right), (0, 0)))[None]
    valid = (padded != 0).all(axis=3)
    wanted = ExtraOutputs(probabilities="float16")
    whole = load_predictor(together, wanted)(padded, valid)
    alone = [load_predictor(load_run(path), wanted)(padded, valid) for path in runs]
    mean = sum(np.asarray(each.probabilities, np.float32) for each in alone) / 2
    np.testing.assert_allclose(np.asarray(whole.probabilities, np.float32), mean, atol=2e-3)
    assert (whole.ids != alone[0].ids).mean() > 0.1

    expected = np.where(valid, whole.ids, 255)[0, :203, :317]
    call = [f"{runs[0]},{runs[1]}", str(source), "--output", str(tmp_path / "maps"), "--window-size", "144"]
    assert predict.main(call) == 0
    with rasterio.open(tmp_path / "maps" / "a.tif") as result:
        np.testing.assert_array_equal(result.read(1), expected)
        assert result.tags()["RUN"] == "deep, flat"
    before = (tmp_path / "maps" / "a.tif").stat().st_mtime_ns
    assert predict.main(call) == 0
    assert (tmp_path / "maps" / "a.tif").stat().st_mtime_ns == before
    assert together.checksum() != join_runs([load_run(path) for path in reversed(runs)]).checksum()
    assert predict.main([str(runs[0]), *call[1:]]) == 0
    assert (tmp_path / "maps" / "a.tif").stat().st_mtime_ns != before


@pytest.mark.slow
def test_runs_of_other_means_are_told_where_bands_lack_data(
    runs: tuple[Path, Path], make_geotiff: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = np.full((40, 50, 3), 500, np.uint16)
    image[:9, :9, 0] = 0
    source = make_geotiff("in/a.tif", image, nodata=0)
    for named, said in ((f"{runs[0]},{runs[1]}", True), (str(runs[0]), False)):
        assert predict.main([named, str(source), "--output", str(tmp_path / "maps")]) == 0
        assert ("up to 0.7 standard deviations" in capsys.readouterr().err) is said
    near = [replace(load_run(path), normalisation=load_run(runs[0]).normalisation) for path in runs]
    assert Ensemble(tuple(near)).remark == ""


@pytest.mark.parametrize(
    ("changes", "got"),
    [
        ({"classes": 5}, "a, b, c, d and a, b, c, d, e"),
        ({"band_count": 4}, "3 and 4"),
        ({"bands": (3, 2, 1)}, "1, 2, 3 and 3, 2, 1"),
        ({"band_names": ("blue", "green", "red")}, "red, green, blue and blue, green, red"),
    ],
)
def test_runs_that_do_not_agree_are_refused_naming_both(
    runs: tuple[Path, Path], make_classes: Callable[..., ClassMap], changes: dict[str, object], got: str
) -> None:
    first, second = (load_run(path) for path in runs)
    if "classes" in changes:
        changes = {"classes": make_classes(5)}
    with refused(CheckpointError, where="a", got=got):
        join_runs([first, replace(second, **changes)])  # type: ignore[arg-type]


def test_a_run_named_twice_or_missing_is_refused(
    runs: tuple[Path, Path], make_geotiff: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make_geotiff("in/a.tif", np.ones((9, 9, 3), np.uint16))
    for named, line in [
        (f"{runs[0]},{runs[0]}", "once, got"),
        (f"{runs[0]},{tmp_path}/no", "there is no run.json"),
    ]:
        call = [named, str(source), "--output", str(tmp_path / "maps")]
        assert run_script(lambda call=call: predict.main(call)) == 2  # type: ignore[misc]
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
    assert not (tmp_path / "maps").exists()


def test_what_runs_do_not_share_is_asked_for_only_where_it_counts(runs: tuple[Path, Path]) -> None:
    first, second = (load_run(path) for path in runs)
    assert join_runs([first, replace(second, metres_per_pixel=None)]).metres_per_pixel is None
    with refused(CheckpointError, fault="0.5 and 2 m a pixel"):
        _ = join_runs([first, replace(second, metres_per_pixel=2.0)]).metres_per_pixel
    with refused(CheckpointError, remedy="--label-kind"):
        _ = join_runs([first, replace(second, labels="eroded")]).labels


def test_memory_is_counted_for_all_runs(runs: tuple[Path, Path]) -> None:
    """The largest of the models, the sum of probabilities, and every further model's weights and graph."""
    first, second = (load_run(path) for path in runs)
    together = join_runs([first, second])
    assert isinstance(together, Ensemble)
    largest = max(first.network.bytes_per_pixel, second.network.bytes_per_pixel)
    assert together.network.bytes_per_pixel == largest + 2 * 4 * 4
    weights = (runs[1] / "best.npz").stat().st_size
    assert together.further_bytes == 2 * weights + 80_000_000
    request = MapRequest(run=runs[0], inputs=("a.tif",), output=Path("maps"))
    for run, bytes_of_others in ((together, together.further_bytes), (first, 0)):
        assert needs_of(Call.of(request, run), [])[1].weights == bytes_of_others
    far: Run = replace(second, network=NetworkGeometry(4, None, 1.0, "it looks at all"))
    found = join_runs([first, far]).network
    assert (found.radius, found.unlimited) == (None, f"{second.path}: it looks at all")
