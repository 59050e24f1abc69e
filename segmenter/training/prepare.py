"""Preparation of a training before TensorFlow starts: run directory, tile index, band statistics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError, ConfigError, counted, plain
from segmenter.base.terminal import pad_text, say, terminal_width
from segmenter.config.augmentation import in_words
from segmenter.config.reading import flat_settings, recipe_from
from segmenter.config.recipe import LossConfig, Recipe, TrainingConfig
from segmenter.config.sampling import SamplingConfig
from segmenter.demands.dataset import check_demands, check_validation
from segmenter.grid.gsd import range_text
from segmenter.grid.scenes import Dataset
from segmenter.model.normalisation import Normalisation
from segmenter.runs.checkpoints import BEST, has_checkpoint
from segmenter.runs.log import RunLog
from segmenter.runs.resume import Checkpoint, check_extension, checkpoint_to_resume, extends
from segmenter.runs.run import Run, load_run
from segmenter.runs.scenes import Digests, changed_file
from segmenter.runs.score_files import folds_in
from segmenter.sampling import Plan, held_by_rows, mean_uses, part_table, part_title, plan
from segmenter.sampling.quotas import Part, Quota, tiles_of_parts
from segmenter.tiles.gsd import GroundGsd, scene_gsds, some_of, with_gsds
from segmenter.tiles.index import TileIndex, build_index, cache_folder
from segmenter.tiles.pasting import donors
from segmenter.tiles.scene_files import joint_digest, scene_digests
from segmenter.tiles.statistics import BandStatistics, band_statistics, check_kinds
from segmenter.tiles.store import SceneStore

_FREE_TO_CHANGE = (
    *("name", "distribution.", "dataset.root", "dataset.files", "dataset.cache", "prediction."),
    *("training.keep_checkpoints", "training.checkpoint_every", "training.steps_per_call"),
    *("training.stop_after", "training.input_workers"),
)
"""Settings that may differ between a run and its resumption: they do not change results."""

_MANY_FILLERS = 0.2
"""Share of an epoch from which fillers are pointed out."""
_STEPS_WANTED = 8
"""Steps an epoch that the batch size which is proposed then gives, at the least."""
_SAME = 1e-6
"""Share of a band's deviation: statistics taken on another processor differ in their last bits."""


@dataclass(frozen=True)
class TrainingTiles:
    """Training tiles and the statistics of their pixels.

    Attributes:
        digests: digests of the files of all training and validation scenes.
    """

    index: TileIndex
    statistics: BandStatistics
    store: SceneStore
    metres_per_pixel: float | None
    digests: Digests

    @property
    def image_form(self) -> tuple[int, str]:
        """Number of bands and pixel type of the images."""
        return len(self.statistics.mean_C), self.statistics.dtype

    def fingerprint(self) -> str:
        """Return a digest of tiles and files, which must be the same in a resumed run."""
        return joint_digest({"": (self.index.fingerprint(), ""), **self.digests})


def check_run_directory(
    path: Path, recipe: Recipe, *, resume: bool, resume_from: int | None = None
) -> Checkpoint | None:
    """Refuse to overwrite a run, or to resume it under another recipe; return the checkpoint to resume.

    Args:
        resume_from: step of the checkpoint; None: the newest.

    Raises:
        CheckpointError, ConfigError: refused; the message has an alternative.
    """
    _check_writable(path)
    if not resume:
        # Without a checkpoint there is nothing to lose: a run that failed at its start is begun again.
        if has_checkpoint(path):
            raise CheckpointError(
                path, "holds a run already", remedy="go on with --resume, or name another with --run"
            )
        if (path / BEST).exists():
            raise CheckpointError(
                path,
                f"holds the best model of a run, {BEST}, without a checkpoint to go on from",
                remedy="move it elsewhere, or name another directory with --run",
            )
        if folds_in(path):
            raise CheckpointError(
                path, "holds the folds of a training", remedy="name another directory with --run"
            )
        return None
    checkpoint = checkpoint_to_resume(path, resume_from)
    load_run(path)  # refuses what is damaged, or of another format
    RunLog(path).records()  # which is rewound once other files have been moved
    known = recipe_from(checkpoint.facts.recipe, str(checkpoint.path))
    if _check_same_recipe(path, known, recipe):
        say(check_extension(path, known.training, recipe.training, checkpoint.position))
    return checkpoint


def _check_same_recipe(path: Path, known: Recipe, recipe: Recipe) -> bool:
    """Refuse a recipe that differs from a checkpoint's; return True if only the epochs differ."""
    before, now = flat_settings(known), flat_settings(recipe)
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    changed = [key for key in changed if not key.startswith(_FREE_TO_CHANGE)]
    longer = extends(changed)
    if changed and not longer:
        what = ", ".join(f"{key}: {before.get(key)!r} → {now.get(key)!r}" for key in changed[:5])
        raise ConfigError(
            path, f"cannot resume under another recipe ({what}); use --init-from to start a new run from it"
        )
    return longer


def _check_writable(path: Path) -> None:
    existing = next(folder for folder in (path, *path.absolute().parents) if os.path.lexists(folder))
    if not existing.is_dir():
        raise CheckpointError(path, expected=f"a directory for the run, {existing} is none")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise CheckpointError(path, "cannot write the run there", remedy="name another folder with --run")


def prepare_tiles(recipe: Recipe, dataset: Dataset) -> TrainingTiles:
    """Index the training scenes, compute their statistics, and print a summary.

    Raises:
        DatasetError, LabelError, RasterError: a file is invalid; the message names it.
        ConfigError: the dataset does not satisfy the recipe.
    """
    for file, reason in dataset.unused:
        say(plain(f"left out: {file}: {reason}"))
    for note in dataset.notes:
        say(plain(note))
    check_demands(recipe, dataset)  # before hours of reading
    scenes = dataset.of("train")
    index = with_gsds(build_index(dataset, "train", recipe.tiles), dataset, recipe)
    if recipe.augmentation.copy_paste is not None:
        donors(recipe.augmentation.copy_paste, index, dataset.classes.names, recipe.sampling.min_pixels)
    if dataset.of("validation"):  # the same check of every file as for training, before hours are spent
        # Whole scenes are scored: tiles with few labels count like any.
        every = build_index(dataset, "validation", recipe.tiles.model_copy(update={"min_labelled": 0.0}))
        check_validation(recipe.training.best_by, dataset, every.counts_NK.sum(axis=0, dtype=np.int64))
    else:
        say("no validation scenes: the newest checkpoint is the result, there are no scores")
    statistics = band_statistics(dataset)
    check_kinds(dataset)
    digests = scene_digests([*scenes, *dataset.of("validation")], cache_folder(dataset))
    mean_C = statistics.mean_C.tolist()
    store = SceneStore(dataset, index.scenes, recipe.tiles.size, cache_folder(dataset), mean_C=mean_C)
    say(_summary(recipe, dataset, index))
    for line in describe_gsds(recipe, dataset, index, store):
        say(plain(line))
    return TrainingTiles(index, statistics, store, _trained_gsd(recipe, dataset, index, store), digests)


def _trained_gsd(recipe: Recipe, dataset: Dataset, index: TileIndex, store: SceneStore) -> float | None:
    if index.metres_S is not None:
        return trained_gsd(index.metres_S.tolist(), GroundGsd.of(recipe, index, store))
    return trained_gsd(scene_gsds(dataset, some_of(index.scenes), progress=False), None)


def changed_data(run: Run, tiles: TrainingTiles) -> str:
    """Return text on changes in the data since a run was started; empty text if there are none."""
    if run.tiles != tiles.fingerprint():
        return changed_file(run.path, tiles.digests) or "the training tiles have changed"
    there, here = (
        run.scenes or run.normalisation,
        Normalisation.of(tiles.statistics.mean_C, tiles.statistics.std_C),
    )
    for band, (mean, std) in enumerate(zip(here.mean, here.std, strict=True)):
        before = there.mean[band], there.std[band]
        if max(abs(mean - before[0]), abs(std - before[1])) > _SAME * std:
            return f"band {band + 1} of the training images has changed (mean {before[0]:.6g} → {mean:.6g})"
    then, now = run.metres_per_pixel or 0.0, tiles.metres_per_pixel or 0.0
    if run.recipe.augmentation.scale_to is not None and abs(now - then) > _SAME * now:
        return f"the training images have another scale ({then:.6g} → {now:.6g} m a pixel)"
    return ""


def class_weights(
    loss: LossConfig, share_K: NDArray[np.float64], shown_K: NDArray[np.float64]
) -> tuple[float, ...] | None:
    """Return the class weights for cross-entropy, in the order of ids; None: no weights.

    `inverse_sqrt`: √share / shown, scaled so that the mean over all shown pixels is 1; a class that is not
    shown gets 1. The expected gradient of a class is proportional to weight · shown, so that the classes
    count as the roots of their shares under every sampling (importance weights: Kloek and van Dijk 1978).

    Args:
        share_K: shares of the labelled pixels of the training tiles.
        shown_K: shares of the pixels in an epoch's batches.
    """
    chosen = loss.class_weights
    if chosen == "none":
        return None
    if chosen == "inverse_sqrt":
        raw_K = np.where(shown_K > 0, np.sqrt(share_K) / np.maximum(shown_K, 1e-12), 0.0)
        return tuple(float(w) for w in np.where(shown_K > 0, raw_K / (raw_K * shown_K).sum(), 1.0))
    return tuple(float(w) for w in chosen)


def _summary(recipe: Recipe, dataset: Dataset, index: TileIndex) -> str:
    """Return text on scenes, tiles, each class with its share and tiles, and the plan's promises."""
    names = dataset.classes.names
    held_K = (index.counts_NK >= recipe.sampling.min_pixels).sum(axis=0)
    lines = [
        f"{dataset.name}: {', '.join(f'{len(dataset.of(s))} {s}' for s in ('train', 'validation', 'test'))} "
        f"scenes; {len(index.scene_N)} tiles of {index.tile}, {index.left_out} left out (min_labelled)"
    ]
    width = max(map(terminal_width, names))
    for name, share, held in zip(names, index.shares(), held_K, strict=True):
        note = "" if held else "  in no training tile" if share == 0 else "  too little of it in any tile"
        lines.append(
            f"  {pad_text(name, width)} {share:8.3%} of the tiles' pixels, held by {held} tiles{note}"
        )
    lines.append(f"  augmentation: {in_words(recipe.augmentation)}")
    if not recipe.sampling.planned_per_replica:  # that plan needs the number of devices: said once known
        first = epoch_plan(recipe, index, names, 0)
        promised = recipe.sampling.plans_classes
        lines += (
            describe_plan(first, recipe.sampling, index, names)
            if promised
            else [describe_drawn(first, recipe.sampling, index)]
        )
        lines += few_steps(recipe.training, first, len(index))
    return "\n".join(lines)


def few_steps(training: TrainingConfig, first: Plan, tiles: int) -> Iterator[str]:
    """Yield a warning if the batch is large for the number of tiles."""
    batch = training.global_batch
    filled = first.fillers / first.rows_SB.size
    if first.steps > 1 and filled < _MANY_FILLERS:
        return
    smaller = 1 << max(0, (tiles // _STEPS_WANTED).bit_length() - 1)
    updates = counted(first.steps * training.epochs, "update")
    yield (
        f"  warning: training.global_batch {batch} for {counted(tiles, 'tile')}: "
        f"{counted(first.steps, 'step')} an epoch, {updates} of the weights in all, and {filled:.0%} of each "
        f"epoch are fillers, tiles that are used again to complete a batch; lower it "
        f"({smaller} makes {counted(-(-tiles // smaller), 'step')}), or cut more tiles by a smaller "
        "tiles.size or by tiles.overlap"
    )


def epoch_plan(recipe: Recipe, index: TileIndex, names: Sequence[str], epoch: int, replicas: int = 1) -> Plan:
    """Return the plan of an epoch under a recipe; `names`: names of the classes."""
    batch, rules = recipe.training.global_batch, recipe.sampling
    table = part_table(index.counts_NK, index.strata, names)
    return plan(table, batch, rules, recipe.seed, epoch, replicas=replicas)


def describe_plan(first: Plan, sampling: SamplingConfig, index: TileIndex, names: Sequence[str]) -> list[str]:
    """Return lines on the plan of an epoch: steps, repeats, quotas, and each class that it cannot promise."""
    held_K = (index.counts_NK >= sampling.min_pixels).sum(axis=0)
    by_rarity = sampling.quota == "rarity"
    repeats = counted(first.coverage_repeats, "repeat" if by_rarity else "coverage repeat")
    if first.coverage_repeats:
        asks = "as sampling.quota asks; " if by_rarity else ""
        repeats += f" ({asks}no plan has fewer than {first.repeats_bound})"
    lines = [f"  {counted(first.steps, 'step')} an epoch, {repeats}, {counted(first.fillers, 'filler')}"]
    lines += [
        f"  best effort: {names[c]}, held by {held_K[c]} tiles, is too rare to be in every step"
        for c in first.best_effort
    ]
    return (
        lines
        + _describe_quotas(first, sampling, index, names)
        + _describe_rare_parts(sampling, first, index, names)
    )


def _describe_quotas(
    first: Plan, sampling: SamplingConfig, index: TileIndex, names: Sequence[str]
) -> list[str]:
    """Return a line on tiles and uses of each class, if some have or wish for more than one tile a step."""
    quotas = list(zip(first.promises, first.quotas, strict=True)) if first.quotas else []
    unpromised = [c for c, name in enumerate(names) if name in sampling.quotas and c not in first.promised]
    quotas += [(Part(c), Quota(sampling.quotas[names[c]] / first.blocks, 0)) for c in unpromised]
    if not quotas:
        return []
    number_N = None if index.strata is None else index.strata.number_N
    holds_NP = np.stack(
        [
            (index.counts_NK[:, part.class_id] >= sampling.min_pixels)
            & (part.stratum is None or number_N == part.stratum)
            for part, _ in quotas
        ],
        axis=1,
    )
    amounts, fewer = [], False
    for (part, quota), uses in zip(quotas, mean_uses(first.rows_SB, holds_NP), strict=True):
        less = quota.wished - quota.given >= 0.05
        remarks = [f"wished {first.blocks * quota.wished:.1f}"] * less
        remarks += [f"tiles used {uses:.1f} times"] * bool(uses >= 1.05)
        amount = f"{part_title(part, names, index.strata)} {first.blocks * quota.given:.1f}"
        amounts.append(amount + (f" ({'; '.join(remarks)})" if remarks else ""))
        fewer |= less
    few = "; less than wished where tiles or places are few" if fewer else ""
    return [f"  tiles a step: {', '.join(amounts)}{few}"]


def describe_drawn(first: Plan, sampling: SamplingConfig, index: TileIndex) -> str:
    """Return a line on an epoch without promises: the number of steps that hold all classes, by the index."""
    held_SK = held_by_rows(first.rows_SB, index.counts_NK, sampling.min_pixels)
    present_K = (index.counts_NK >= sampling.min_pixels).any(axis=0)
    uses_N = np.bincount(first.rows_SB.reshape(-1), minlength=len(index))
    method = sampling.method if sampling.method != "plan" else "shuffle"
    complete = held_SK[:, present_K].all(axis=1).mean()
    return (
        f"  {counted(first.steps, 'step')} an epoch by {method}, which promises no class: {complete:.1%} of "
        f"the first epoch's hold all {present_K.sum()}, with {(uses_N > 0).mean():.1%} of the tiles, none "
        f"more than {uses_N.max()} times"
    )


# ------------------------------------------------------------------------------- metres a pixel


def trained_gsd(metres_S: Sequence[float | None], ground: GroundGsd | None) -> float | None:
    """Return the metres a pixel for which a model is trained; None if unknown.

    The geometric mean scale shown under `augmentation.scale_to`, else the median of the scenes.
    """
    if ground is not None:
        return ground.middle()
    scales = [metres for metres in metres_S if metres]
    return float(np.median(scales)) if scales else None


def describe_gsds(recipe: Recipe, dataset: Dataset, index: TileIndex, store: SceneStore) -> list[str]:
    """Return lines on the scales of tiles shown, and on validation scenes of other scales.

    Raises:
        ConfigError: no scene can be shown at any requested scale.
    """
    ground = GroundGsd.of(recipe, index, store)
    if ground is None:
        return []
    low, high = ground.ends()
    validation = scene_gsds(dataset, dataset.of("validation"), progress=False)
    outside = [metres for metres in validation if metres and not 0.99 * low <= metres <= 1.01 * high]
    lines = ground.describe()
    if outside:
        lines.append(
            f"  {len(outside)} of {len(validation)} validation scenes are scored at their own scale, "
            f"{range_text(min(outside), max(outside))} a pixel, which the model is not trained for"
        )
    return lines


def _describe_rare_parts(
    sampling: SamplingConfig, first: Plan, index: TileIndex, names: Sequence[str]
) -> list[str]:
    """Return a line on each pair of class and scale that the plan cannot promise."""
    if index.strata is None or not first.rare_parts:
        return []
    holds_NK = index.counts_NK >= sampling.min_pixels
    there_NP = tiles_of_parts(first.rare_parts, index.strata.number_N)
    held_P = (holds_NK[:, [part.class_id for part in first.rare_parts]] & there_NP).sum(axis=0)
    return [
        f"  best effort: {part_title(part, names, index.strata)}, held by {held} tiles, is too rare to be "
        "in every step"
        for part, held in zip(first.rare_parts, held_P, strict=True)
    ]
