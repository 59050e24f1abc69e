"""Packing of a recipe's training scenes, including those that are cheap to read in place."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError
from segmenter.base.files import gibibytes
from segmenter.base.threads import Spread, in_threads
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import raster_info
from segmenter.raster.ground import check_label
from segmenter.tiles.cache.file import KINDS, CachedArray, Kind
from segmenter.tiles.cache.folder import CacheFolder, PackJob, bytes_read, key_of, pack
from segmenter.tiles.index import cache_folder
from segmenter.tiles.store import make_room, tell_damaged, tell_leftovers, tell_replaced

_LOTS = 64
"""Number of lots of scenes packed outside this process, each into at most two packs."""


def pack_dataset(dataset: Dataset, *, progress: bool = True, spread: Spread = in_threads) -> Iterator[str]:
    """Pack the training scenes that are not packed yet; yield lines on progress, place and size.

    Scenes of other splits are not packed: validation, prediction and statistics read whole scenes from files.

    Args:
        spread: runs the work on some scenes at a time; by default in threads of this process.

    Raises:
        DatasetError: training scenes are missing, a label does not match its image, or packs are too large.
        OutputError: the disk is full; SegmenterError: a file cannot be read. Completed packs stay.
    """
    scenes = dataset.of("train")
    if not scenes:
        raise DatasetError(dataset.root, expected="scenes to train on, the split leaves none")
    folder = _folder(dataset, scenes)
    jobs = _jobs(dataset, folder, scenes, progress)
    if not jobs:
        yield f"all {len(scenes)} training scenes are packed already, in {folder.path}"
        return
    make_room(folder, jobs, dataset.cache_bytes)
    images = [job for job in jobs if job.kind == "image"]
    most = "" if dataset.cache_codec == "none" else "at most "
    yield (
        f"packing images of {len(images)} and labels of {len(jobs) - len(images)} of {len(scenes)} scenes: "
        f"{most}{gibibytes(sum(job.bytes for job in jobs))}, in {folder.path}; dataset.cache names another "
        "folder"
    )
    before, started = set(folder.path.glob("*.pack")), time.monotonic()
    counted = images or jobs
    pixels = sum(job.size.pixels for job in counted)
    with Bar(total=pixels, desc="packing", unit="px", unit_scale=True, shown=progress) as bar:
        advance = _counting(bar, counted[0].kind)
        if spread is in_threads:
            pack(dataset, folder, jobs, progress=False, advance=advance, usable=_as_asked(dataset))
        else:
            _pack_elsewhere(dataset, folder, jobs, spread, advance)
    seconds = max(time.monotonic() - started, 1e-3)
    tell_replaced(folder)
    new = [path.stat().st_size for path in set(folder.path.glob("*.pack")) - before]
    yield f"packed: {_ratios(sum(new), len(new), jobs)}; {seconds:.0f} s, {pixels / 1e6 / seconds:.0f} MPx/s"


def _pack_elsewhere(
    dataset: Dataset,
    folder: CacheFolder,
    jobs: Sequence[PackJob],
    spread: Spread,
    advance: Callable[[PackJob, int], None],
) -> None:
    """Pack each lot of files by one worker into separate packs; few lots, since each pack is an open file."""

    def work(lot: Sequence[PackJob]) -> None:
        pack(dataset, folder, lot, progress=False, usable=_as_asked(dataset), workers=1)

    least, lots = sum(job.bytes for job in jobs) // _LOTS, [list[PackJob]()]
    for job in jobs:
        if sum(one.bytes for one in lots[-1]) > least:
            lots.append([])
        lots[-1].append(job)
    for lot, _ in zip(
        lots, spread(work, lots, description="packing", unit="lot", progress=False), strict=True
    ):
        for job in lot:
            advance(job, job.size.pixels)
    folder.look()


def _folder(dataset: Dataset, scenes: Sequence[Scene]) -> CacheFolder:
    """Return the existing packs; those to keep are locked, so that only others are evicted."""
    folder = CacheFolder(cache_folder(dataset), shared=dataset.cache is not None)
    tell_leftovers(folder)
    folder.look()
    tell_damaged(folder)
    keys = [key_of(dataset, scene, kind) for scene in scenes for kind in KINDS]
    packed = [one for key in keys if key is not None and (one := folder.find(key)) is not None]
    packs = {one.pack.path: one.pack for one in packed if _as_asked(dataset)(one)}
    folder.hold(pack.path.name for pack in packs.values())
    return folder


def _ratios(written: int, files: int, jobs: Sequence[PackJob]) -> str:
    read, pixels = max(1, bytes_read(jobs)), max(1, sum(job.bytes for job in jobs))
    return (
        f"{gibibytes(written)} in {files} files, {written / read:.2f} times what was read, "
        f"{written / pixels:.2f} of the pixels' bytes"
    )


def _jobs(dataset: Dataset, folder: CacheFolder, scenes: Sequence[Scene], progress: bool) -> list[PackJob]:
    """Return jobs for scenes that are not packed, or by another codec; check labels against images."""

    def missing(scene: Scene, kind: Kind) -> bool:
        key = key_of(dataset, scene, kind)
        packed = None if key is None else folder.find(key)
        return packed is None or not _as_asked(dataset)(packed)

    def look(scene: Scene) -> list[PackJob]:
        kinds = [kind for kind in KINDS if missing(scene, kind)]
        if not kinds:
            return []
        info = raster_info(scene.image)
        jobs = [PackJob.of_image(dataset, scene, info)] if "image" in kinds else []
        if "label" in kinds and scene.label is not None:
            check_label(scene.label, info)
            jobs.append(PackJob.of_label(dataset, scene, info.size))
        return jobs

    per_scene = in_threads(look, scenes, description="headers", unit="scene", progress=progress)
    return [job for jobs in per_scene for job in jobs]


def _as_asked(dataset: Dataset) -> Callable[[CachedArray], bool]:
    """Return a function that tests whether an array is packed with the recipe's codec."""
    return lambda array: array.content.codec == dataset.cache_codec


def _counting(bar: Bar, kind: Kind) -> Callable[[PackJob, int], None]:
    """Return a thread-safe counter of packed pixels of one kind, image or label."""
    lock = threading.Lock()

    def advance(job: PackJob, pixels: int) -> None:
        if job.kind == kind:
            with lock:
                bar.update(pixels)

    return advance
