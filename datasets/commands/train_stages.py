"""Stages of a training, in the order in which train.py calls them; each returns a value for the next ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from segmenter.base.errors import CheckpointError, counted, plain
from segmenter.base.machine import keep_freed_memory
from segmenter.base.terminal import quiet, warn

from .train_options import TrainOptions

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.devices.machines.cluster import Cluster
    from segmenter.devices.strategy import Devices
    from segmenter.extras.parameter_servers.control import Watch
    from segmenter.grid.scenes import Dataset
    from segmenter.runs.records import ChosenBy
    from segmenter.runs.resume import Checkpoint
    from segmenter.tiles.feeding.processes import WorkerPool
    from segmenter.training.beginning.fine_tuning import StartingRun
    from segmenter.training.prepare import TrainingTiles
    from segmenter.training.start import Training


@dataclass(frozen=True)
class TrainRequest:
    """One training that is asked for, and the part that this process has in it.

    Attributes:
        cluster: workers that train together; None: one.
        watch: over the servers and workers of a chief of parameter servers.
        sibling: run of another fold, whose scenes it has; None: those of the folder.
        chosen: how validation chose the steps of a training on all scenes; None: it validates itself.
    """

    options: TrainOptions
    recipe: Recipe
    cluster: Cluster | None = None
    watch: Watch | None = None
    sibling: Path | None = None
    chosen: ChosenBy | None = None

    @property
    def chief(self) -> bool:
        """True if this process writes the run."""
        return self.cluster is None or self.cluster.chief


class RunFolder(NamedTuple):
    """Run directory, and the checkpoint to go on from, if any."""

    path: Path
    checkpoint: Checkpoint | None


class Scenes(NamedTuple):
    """Scenes of a training, and the run whose weights it starts from, if any."""

    dataset: Dataset
    source: StartingRun | None


def run_folder(request: TrainRequest) -> RunFolder:
    """Return the directory of the run; refuse to overwrite one."""
    from segmenter.raster import quiet_gdal
    from segmenter.training.prepare import check_run_directory

    quiet_gdal()
    given, recipe = request.options, request.recipe
    path = given.run or Path("runs") / recipe.name
    if not request.chief:
        return RunFolder(path, None)
    how = {"resume": given.resumes, "resume_from": given.resume_from}
    return RunFolder(path, check_run_directory(path, recipe, **how))  # type: ignore[arg-type]


def find_scenes(request: TrainRequest, run: RunFolder) -> Scenes:
    """Return the scenes, for a resumed training those that it began with, and the run of `--init-from`."""
    resumed = run.path if request.options.resumes else None
    dataset = scenes_of(request.recipe, resumed, request.sibling)
    if request.chosen is not None:
        dataset = with_validation(dataset)
    return Scenes(dataset, _source(request, dataset) if request.chief else None)


def with_validation(dataset: Dataset) -> Dataset:
    """Return a dataset whose validation scenes train."""
    scenes = (
        replace(scene, split="train") if scene.split == "validation" else scene for scene in dataset.scenes
    )
    return replace(dataset, scenes=tuple(scenes))


def scenes_of(recipe: Recipe, resumed: Path | None, sibling: Path | None) -> Dataset:
    """Return the scenes of a training: a resumed one has its own, whatever has been added to the folder."""
    from segmenter.runs.run import RUN_FILE, load_run

    from .. import load_dataset
    from ..known import known_dataset

    begun = resumed or sibling
    if begun is None or not (begun / RUN_FILE).exists():
        return load_dataset(recipe)
    try:
        return known_dataset(recipe, load_run(begun), roles=resumed is not None)
    except CheckpointError:  # of before: other data are refused once they are compared
        return load_dataset(recipe)


def _source(request: TrainRequest, dataset: Dataset) -> StartingRun | None:
    """Return the run of `--init-from`; else check the encoder's initial weights and return None."""
    from segmenter.demands.encoder import check_encoder_weights
    from segmenter.training.beginning.fine_tuning import find_source

    given, recipe = request.options, request.recipe
    if given.init_from is not None:
        source = find_source(given.init_from, recipe, dataset, partial=given.init_from_partial)
        _warn_of_seen(source, recipe, dataset)
        return source
    if not given.resumes:
        check_encoder_weights(recipe.model, dataset)
    return None


def _warn_of_seen(source: StartingRun, recipe: Recipe, dataset: Dataset) -> None:
    """Warn of validation and test scenes that trained the run of `--init-from`."""
    from ..known import seen_by

    held_out = (*dataset.of("validation"), *dataset.of("test"))
    if seen := seen_by(source.run, held_out, dataset, recipe):
        splits = " and ".join(dict.fromkeys(scene.split for scene in seen))
        scenes = counted(len(seen), f"{splits} scene")
        warn(plain(f"{scenes} trained {source.run.path}, as {seen[0].image}, so that the scores flatter"))


def index_tiles(request: TrainRequest, scenes: Scenes) -> TrainingTiles:
    """Index the training tiles, measure the bands, and print a summary with the steps of an epoch."""
    from segmenter.training.prepare import prepare_tiles

    from ..known import keep_deal

    with quiet(not request.chief):
        tiles = prepare_tiles(request.recipe, scenes.dataset)
    if request.chief and not request.options.resumes:
        keep_deal(request.options.recipe, request.recipe.dataset.deals, scenes.dataset)
    return tiles


@contextmanager
def input_workers(request: TrainRequest, tiles: TrainingTiles) -> Iterator[WorkerPool | None]:
    """Yield the processes that make the batches, started before TensorFlow is imported; None: threads do."""
    from segmenter.extras.strategies import cards_expected
    from segmenter.tiles.feeding.processes import worker_processes

    recipe, logical = request.recipe, request.options.logical_devices
    cards = cards_expected(recipe.distribution, logical, request.watch)
    count = 1 if request.cluster is None else request.cluster.workers
    with worker_processes(recipe, *tiles.image_form, cards, count) as workers:
        yield workers


def start_devices(request: TrainRequest, run: RunFolder, scenes: Scenes, tiles: TrainingTiles) -> Devices:
    """Start TensorFlow with the devices and the strategy of the recipe; print a table of them."""
    from segmenter.devices.setup import load_tensorflow
    from segmenter.extras.strategies import devices_of, share_tiles

    cluster, watch, logical = request.cluster, request.watch, request.options.logical_devices
    config, several = request.recipe.distribution, cluster is not None and cluster.workers > 1
    load_tensorflow(logical, log_placement=config.log_placement, clustered=several, remote=watch is not None)
    devices = devices_of(config, logical, cluster, watch)
    if devices.names[0].startswith("CPU"):
        keep_freed_memory()
    resumed = run.path if run.checkpoint else None
    return share_tiles(devices, request.recipe, tiles.image_form, len(scenes.dataset.classes), resumed)


def training_of(
    request: TrainRequest,
    run: RunFolder,
    scenes: Scenes,
    tiles: TrainingTiles,
    devices: Devices,
    workers: WorkerPool | None,
) -> Training:
    """Return the training that all stages before it make up."""
    from segmenter.training.start import Training

    return Training(
        request.recipe,
        scenes.dataset,
        tiles,
        devices,
        run.path,
        checkpoint=run.checkpoint,
        source=scenes.source,
        chosen=request.chosen,
        profile=request.options.profile,
        workers=workers,
    )
