"""Start of a training: what is checked and recorded, and whether a run's data are those it was begun with."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import rasterio
from affine import Affine

from datasets import load_dataset
from segmenter.base.errors import CheckpointError, OutputError, SegmenterError
from segmenter.base.files import PIECES
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.devices import strategy
from segmenter.grid.scenes import Dataset
from segmenter.model.normalisation import Normalisation
from segmenter.raster import raster_info
from segmenter.raster.ground import lon_lat_corners
from segmenter.raster.stamps import PIECE_BYTES, file_digest
from segmenter.runs.checkpoints import BEST, checkpoints
from segmenter.runs.log import log_line
from segmenter.runs.records import MOST_OUTLINES, load_origin
from segmenter.runs.resume import checkpoint_to_resume
from segmenter.runs.run import Run, load_run
from segmenter.runs.scenes import FILE, KnownScene, RunScenes, save_scenes
from segmenter.training.beginning.origin import origin_of, place_of, record_origin
from segmenter.training.checks import check_same_plan
from segmenter.training.ending import train_to_end
from segmenter.training.prepare import TrainingTiles, changed_data, check_run_directory, prepare_tiles
from segmenter.training.start import PlannedTraining, Training, open_training, plan_training, resume_from
from tests.helpers.made_runs import MACHINE, save
from tests.helpers.made_training import made
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run

pytestmark = pytest.mark.usefixtures("tensorflow")
MADE_ON = {"devices": "RTX 2080 Ti", "libraries": "cuDNN 9.24, NCCL 2.30"}


class Prepared(NamedTuple):
    """Arguments of a training of the made scenes."""

    recipe: Recipe
    dataset: Dataset
    tiles: TrainingTiles
    devices: strategy.Devices


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run directory as it is at the start of a training."""
    return bare_run(tmp_path / "run")


class Trainer:
    """Stands for one that refuses a checkpoint, or notes what it is given."""

    def __init__(self, run: Run, refuses: bool = False) -> None:
        self.run, self.refuses, self.steps = run, refuses, 40
        self.devices, self.learner = SimpleNamespace(replicas=4), SimpleNamespace(computed_on=MACHINE)
        self.position: Any = None
        self.log_at_rewind = ""

    def resume(self, start: Any) -> None:
        if self.refuses:
            raise CheckpointError("does not fit")
        self.position = start.position

    def rewind_log(self) -> None:
        (self.run.path / "log.jsonl").write_text("rewound\n")


@pytest.fixture
def gone_on(run: Run) -> Run:
    """Steps 4, 8 and 12 are there, and the best is of step 8."""
    save(run.path, 8).replace(run.path / BEST)
    for step in (4, 8, 12):
        save(run.path, step)
    (run.path / "log.jsonl").write_text("whole\n")
    return run


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_checkpoint_that_is_refused_moves_nothing(gone_on: Run) -> None:
    before = contents(gone_on.path)
    with refused(CheckpointError, fault="does"):
        resume_from(Trainer(gone_on, refuses=True), checkpoint_to_resume(gone_on.path, 4))  # type: ignore[arg-type]
    assert contents(gone_on.path) == before


def test_taken_back_the_next_best_is_kept_and_the_later_one_too(
    gone_on: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    path, later = gone_on.path, (gone_on.path / BEST).read_bytes()
    trainer = Trainer(gone_on)
    resume_from(trainer, checkpoint_to_resume(path, 4))  # type: ignore[arg-type]
    aside = path / "checkpoints" / "aside" / "1"
    assert (aside / BEST).read_bytes() == later
    assert (aside / "log.jsonl").read_text() == "whole\n"
    assert (path / "log.jsonl").read_text() == "rewound\n"
    assert trainer.position.best_score == -1
    assert f"({checkpoint_names(8, 12)}, {BEST}) and the log are kept in {aside}\n" in capsys.readouterr().out
    # Killed now, the checkpoint still has the old record; the next start forgets it, too.
    resume_from(trainer, checkpoint_to_resume(path))  # type: ignore[arg-type]
    assert trainer.position.best_score == -1
    save(path, 4).replace(path / BEST)
    save(path, 4)
    resume_from(trainer, checkpoint_to_resume(path))  # type: ignore[arg-type]
    assert trainer.position.best_score == 0.5


def checkpoint_names(*steps: int) -> str:
    return ", ".join(f"step-{step:08d}.npz" for step in steps)


@pytest.fixture(scope="module")
def prepared(tensorflow: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("start")
    recipe = load_recipe(made(folder / "data"))
    dataset = load_dataset(recipe)
    devices = strategy.make_devices(recipe.distribution, None)
    return Prepared(recipe, dataset, prepare_tiles(recipe, dataset), devices)


def check(prepared: Prepared, path: Path, *, resume: bool = False) -> PlannedTraining:
    """A training in `path`, checked as train.py does."""
    recipe, dataset, tiles, devices = prepared
    checkpoint = check_run_directory(path, recipe, resume=resume)
    return plan_training(Training(recipe, dataset, tiles, devices, path, checkpoint))


@pytest.fixture(scope="module")
def opened(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint of step 0."""
    path = tmp_path_factory.mktemp("opened") / "run"
    with open_training(check(prepared, path)) as trainer:
        trainer.save()
    return path


def test_a_check_writes_nothing(prepared: Prepared, opened: Path, tmp_path: Path) -> None:
    check(prepared, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    before = contents(opened)
    check(prepared, opened, resume=True)
    assert contents(opened) == before


def test_an_open_training_stands_at_its_checkpoint_and_keeps_others_out(
    prepared: Prepared, opened: Path
) -> None:
    checked = check(prepared, opened, resume=True)
    with open_training(checked) as trainer:
        assert trainer.position.done == checked.training.checkpoint.position.done
        assert trainer.run == load_run(opened)
        with refused(SegmenterError, where="run", fault="another process"), open_training(checked):
            pass


@pytest.mark.parametrize("resume", [False, True], ids=["start", "resume"])
def test_what_another_process_trained_meanwhile_is_not_written_over(
    prepared: Prepared, opened: Path, tmp_path: Path, resume: bool
) -> None:
    """It began and ended between the look at the directory and the lock."""
    path = tmp_path / "run"
    if resume:
        shutil.copytree(opened, path)
    checked = check(prepared, path, resume=resume)
    save(path, 8)
    before = contents(path)
    with (
        refused(CheckpointError, fault="another process"),
        open_training(checked),
    ):
        pass
    assert {file: content for file, content in contents(path).items() if file.name != ".lock"} == before
    assert 8 in checkpoints(path)


def test_killed_before_its_first_checkpoint_a_run_starts_again(prepared: Prepared, tmp_path: Path) -> None:
    path = tmp_path / "run"
    half = path / "checkpoints" / ".step-00000003.npz.abcdefgh"
    half.parent.mkdir(parents=True)
    half.write_bytes(b"PK")
    (path / "log.jsonl").write_text(log_line({"step": 2, "loss": 1.0}))
    with refused(CheckpointError, where="run", remedy="again without --resume"):
        check_run_directory(path, prepared.recipe, resume=True)
    with open_training(check(prepared, path)) as trainer:
        assert trainer.position.done == 0
        assert not half.exists()
        assert not (path / "log.jsonl").exists()  # else the steps would be in it twice


def test_the_record_of_origin_holds_the_pixels_of_the_training_tiles_and_the_place(
    prepared: Prepared,
) -> None:
    recipe, dataset, index = prepared.recipe, prepared.dataset, prepared.tiles.index
    found = origin_of(recipe.sampling, dataset, index, None, None)
    assert found.scenes == {"train": 4, "validation": 1, "test": 0}
    assert sum(found.pixels.values()) == index.counts_NK.sum()
    assert found.pixels["scarce"] == 4 * 100
    assert found.tiles_with["left"] == (index.counts_NK[:, 0] >= recipe.sampling.min_pixels).sum()
    assert (found.tiles, found.tile_px, found.metres_per_pixel) == (len(index), 32, (1.0, 1.0))
    assert (found.place.scenes, found.place.exact, len(found.place.rings)) == (4, True, 4)
    # UTM 33N, 0 … 83 m east and 0 … 97 m north: near 10.5° E, on the equator.
    lon, lat = np.array(found.place.rings[0]).T
    assert lon.min() == pytest.approx(10.5114, abs=1e-3)
    assert (lat.min(), lat.max()) == pytest.approx((0, 97 / 110_574), abs=1e-5)


def test_the_record_of_origin_is_written_once(prepared: Prepared, tmp_path: Path) -> None:
    recipe, dataset, index = prepared.recipe, prepared.dataset, prepared.tiles.index
    run: Any = SimpleNamespace(path=tmp_path, recipe=recipe)
    source: Any = SimpleNamespace(run=SimpleNamespace(recipe=SimpleNamespace(name="other")))
    record_origin(run, dataset, index, source, MADE_ON, resumed=False)
    first = load_origin(tmp_path)
    assert first.begun is not None
    assert first.started_from == "other"
    assert first.computed_on == MADE_ON
    record_origin(run, dataset, index, None, {}, resumed=True)
    assert load_origin(tmp_path) == first
    record_origin(run, dataset, index, None, {}, resumed=False)
    again = load_origin(tmp_path)
    assert again.started_from == ""


def test_of_a_run_that_began_without_that_record_the_start_is_not_known(
    prepared: Prepared, tmp_path: Path
) -> None:
    run: Any = SimpleNamespace(path=tmp_path, recipe=prepared.recipe)
    record_origin(run, prepared.dataset, prepared.tiles.index, None, {}, resumed=True)
    found = load_origin(tmp_path)
    assert (found.begun, found.started_from) == (None, None)
    assert found.pixels["scarce"] == 400


def test_scenes_without_a_place_are_not_outlined(make_png: Callable[..., Path], prepared: Prepared) -> None:
    recipe, dataset, index = prepared.recipe, prepared.dataset, prepared.tiles.index
    lost = replace(index.scenes[0], image=make_png("a.png", np.zeros((9, 8), np.uint8)))
    gone = replace(index.scenes[1], image=lost.image.with_name("none.png"))
    found = origin_of(
        recipe.sampling, dataset, replace(index, scenes=(lost, gone, *index.scenes[2:])), None, None
    )
    assert found.place.scenes == 2
    assert place_of([]) is None


def test_many_scenes_have_one_outline_around_them(rng: np.random.Generator) -> None:
    corners = np.array([(0, 0), (0, 0.1), (0.1, 0.1), (0.1, 0)])
    scenes = [corners + rng.uniform(-20, 20, 2) for _ in range(MOST_OUTLINES + 1)]
    each, around = place_of(scenes[:-1]), place_of(scenes)
    assert (len(each.rings), each.exact) == (MOST_OUTLINES, True)
    assert (len(around.rings), around.exact, around.scenes) == (1, False, MOST_OUTLINES + 1)
    ring = np.array(around.rings[0])
    for a, b in pairwise(ring):  # counter-clockwise: every corner lies to the left
        points = np.concatenate(scenes) - a
        assert ((b - a)[0] * points[:, 1] - (b - a)[1] * points[:, 0] > -1e-4).all()
    line = place_of([np.array([(i / 2, 5.0)] * 4) for i in range(MOST_OUTLINES + 1)])
    assert np.ptp(np.array(line.rings[0]), axis=0).tolist() == [MOST_OUTLINES / 2, 0]


def test_rings_are_counter_clockwise_and_closed() -> None:
    corners = np.array([(1.0, 2.0), (3.0, 2.0), (3.0, 1.0), (1.0, 1.0)])
    for given in (corners, corners[::-1]):
        place = place_of([given])
        ring = np.array(place.rings[0])
        assert (ring[0] == ring[-1]).all()
        x, y = (ring[:-1] - ring[0]).T
        assert (x * np.roll(y, -1) - np.roll(x, -1) * y).sum() == 4


def test_corners_in_degrees(make_geotiff: Callable[..., Path]) -> None:
    image = np.zeros((20, 30, 1), np.uint8)
    info = raster_info(
        make_geotiff("a.tif", image, crs="EPSG:4326", transform=Affine(0.1, 0, 7, 0, -0.2, 50))
    )
    found = lon_lat_corners(info)
    assert found.tolist() == pytest.approx(np.array([(7, 50), (10, 50), (10, 46), (7, 46)]))
    nowhere: tuple[tuple[str | None, Affine | None], ...] = (
        (None, None),
        ("EPSG:4326", Affine(1, 0, 0, 0, -1, 400)),  # beyond the pole
        ("EPSG:32660", Affine(20_000, 0, 500_000, 0, -20_000, 5_000_000)),  # across the 180th meridian
    )
    for number, (crs, transform) in enumerate(nowhere):
        where = {} if transform is None else {"transform": transform}
        assert lon_lat_corners(raster_info(make_geotiff(f"{number}.tif", image, crs=crs, **where))) is None


@pytest.fixture
def data(tmp_path: Path, prepared: Prepared) -> Path:
    return shutil.copytree(prepared.dataset.root, tmp_path / "data")


def tiles_of(folder: Path) -> TrainingTiles:
    recipe = load_recipe(folder / "recipe.yaml", [f"dataset.root={folder}"])
    return prepare_tiles(recipe, load_dataset(recipe))


@pytest.fixture
def begun(data: Path, tmp_path: Path) -> Run:
    """A run that is begun with the data."""
    tiles, recipe = tiles_of(data), load_recipe(data / "recipe.yaml")
    scale = Normalisation.of(tiles.statistics.mean_C, tiles.statistics.std_C)
    run = replace(
        bare_run(tmp_path / "run", recipe=recipe),
        classes=load_dataset(recipe).classes,
        normalisation=scale,
        tiles=tiles.fingerprint(),
    )
    run.save()
    known = {name: KnownScene(*pair, role="train") for name, pair in tiles.digests.items()}
    save_scenes(run.path, RunScenes(known))
    return run


def invert(file: Path) -> None:
    with rasterio.open(file, "r+") as raster:
        raster.write(255 - raster.read())


def test_copied_elsewhere_with_other_times_the_data_are_the_same(
    data: Path, begun: Run, tmp_path: Path
) -> None:
    assert changed_data(begun, tiles_of(data)) == ""
    copy = tmp_path / "elsewhere"
    shutil.copytree(data, copy, ignore=shutil.ignore_patterns(".tile-index"))
    for file in copy.rglob("*.tif"):
        os.utime(file, (1, 1))
    assert changed_data(begun, tiles_of(copy)) == ""


@pytest.mark.parametrize(
    ("scenes", "said"),
    [
        (["s4"], "image of scene s4 "),  # the one that validates: the best model hangs on it
        (["s0", "s3"], "s0 has changed, and 1 more"),
    ],
)
def test_a_run_does_not_go_on_with_other_images_under_the_same_labels(
    data: Path, begun: Run, scenes: list[str], said: str
) -> None:
    for scene in scenes:
        invert(data / "images" / f"{scene}.tif")
    checkpoint: Any = None  # is not looked at any more
    with refused(CheckpointError, fault=said):
        check_same_plan(begun, tiles_of(data), 1, checkpoint)


def test_labels_with_the_same_counts_new_and_lost_scenes_are_seen(data: Path, begun: Run) -> None:
    counts = tiles_of(data).index.fingerprint()
    with rasterio.open(data / "labels" / "s1.tif", "r+") as raster:
        label = raster.read()
        label[0, 2, 39:41] = label[0, 2, 40:38:-1]  # of two classes, in one tile
        raster.write(label)
    assert tiles_of(data).index.fingerprint() == counts
    assert changed_data(begun, tiles_of(data)) == "the label of scene s1 has changed"
    for part in ("images", "labels"):
        (data / part / "s2.tif").rename(data / part / "s7.tif")
    assert changed_data(begun, tiles_of(data)) == "scene s7 is new, and 2 more differences"


def test_where_the_run_does_not_say_which_the_change_is_seen_all_the_same(data: Path, begun: Run) -> None:
    (begun.path / FILE).unlink()
    assert changed_data(begun, tiles_of(data)) == ""
    invert(data / "images" / "s2.tif")
    other = json.dumps({"format": 2, "scenes": tiles_of(data).digests})
    for content in (None, "{", other, '{"scenes": [1]}', "[" * 100_000):
        if content is not None:
            (begun.path / FILE).write_text(content)
        assert changed_data(begun, tiles_of(data)) == (
            "training images or labels have changed (scenes.json, missing or not readable, would name them)"
        )


def test_values_that_no_piece_shows_are_seen_in_the_statistics(data: Path, begun: Run) -> None:
    tiles = tiles_of(data)
    tiles.statistics.mean_C[1] += 1e-5 * tiles.statistics.std_C[1]
    mean = begun.normalisation.mean[1]
    assert changed_data(begun, tiles) == (
        f"band 2 of the training images has changed (mean {mean:.6g} → {tiles.statistics.mean_C[1]:.6g})"
    )


def test_any_byte_of_a_small_file_counts_and_of_a_large_one_a_bounded_part_is_read(tmp_path: Path) -> None:
    file, rng = tmp_path / "f", np.random.default_rng(2)
    content = rng.integers(0, 256, 2000, np.uint8)
    file.write_bytes(content.tobytes())
    found = {file_digest(file)}
    for place in rng.integers(0, 2000, 50):
        other = content.copy()
        other[place] ^= 1
        file.write_bytes(other.tobytes())
        found.add(file_digest(file))
    file.write_bytes(content.tobytes() + b"\0")
    assert len(found | {file_digest(file)}) > 48
    size = 3 << 30  # sparse: takes no space
    with file.open("wb") as large:
        large.truncate(size)
    before, zeros = read_so_far(), file_digest(file)
    assert read_so_far() - before < 2 * PIECES * PIECE_BYTES
    for place in (0, size - 1, (size - PIECE_BYTES) * 7 // (PIECES - 1)):
        with file.open("r+b") as large:
            large.seek(place)
            large.write(b"\1")
        assert file_digest(file) != zeros
        zeros = file_digest(file)


def read_so_far() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize(("kept", "said"), [(0, " again"), (1, " again with --resume")])
def test_a_full_disk_is_told_with_resume_only_where_there_is_a_checkpoint(
    tmp_path: Path, kept: int, said: str
) -> None:
    def train() -> None:
        raise OutputError(tmp_path, "is full")

    (tmp_path / "checkpoints").mkdir()
    for step in range(kept):
        (tmp_path / "checkpoints" / f"step-{step:08d}.npz").touch()
    workers = SimpleNamespace(chief=True)
    trainer: Any = SimpleNamespace(
        run=SimpleNamespace(path=tmp_path), devices=SimpleNamespace(workers=workers), train=train
    )
    with pytest.raises(OutputError) as error:
        train_to_end(trainer)
    assert str(error.value).endswith(said)
