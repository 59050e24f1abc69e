"""Plan of a recipe: a split in space and ten rules, from the choices of its dataset to all others.

Each rule gives settings with the number that decides, and names its source. The first three settle what the
split needs to know; the others look at the tiles that train.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from segmenter.base.errors import DatasetError, WeightsError, counted
from segmenter.base.files import gibibytes
from segmenter.config.datasets import FolderConfig
from segmenter.config.models import EncoderDecoderConfig, UNetConfig
from segmenter.demands.dataset import check_demands
from segmenter.demands.encoder import check_encoder_weights
from segmenter.diagnosis.limits import plan_first_epoch
from segmenter.grid.labels import IGNORE
from segmenter.model.size import BYTES_PER_PARAMETER, ON_PROCESSOR, parts_that_fit
from segmenter.pages.parts import percent
from segmenter.sampling.forecast import holds
from segmenter.sampling.kinds import MOST_CLASSES

from ..contents import Contents
from .choice import Choice
from .draft import Draft
from .samples import LEAST_SCENES, area_of
from .split import longest_buffer, split_of
from .timing import STEPS_OF_HOURS, epoch_steps, seconds_a_step

_PRETRAINED = EncoderDecoderConfig(kind="encoder_decoder", weights="imagenet")
_BATCHES = (8, 16, 32, 64)
_ENOUGH_FOR_CARDS, _FEW, _MANY = 500, 2_000, 20_000
"""Tiles from which cards get 16 each; below which batches are small; from which epochs are fewer."""
_LEAST_STEPS = 8
"""In an epoch."""
_FEW_REPEATS = 0.05
"""Share of the tiles that may be shown again for the sake of a class."""
_ROOM, _FILLED = 0.9, 0.87
"""Shares of the memory that a step may take, and that it takes on cards where there are tiles enough."""
_ON_CARDS, _ON_PROCESSOR = (1 << 30, 1.0), (7 << 28, ON_PROCESSOR)
"""Bytes beside the tiles, and the share of the counted bytes that these take at the most (benchmarks.memory;
on a processor the peak was 2.01 GiB in 850 steps of 4 tiles of 94 MiB, 2.77 in 3 steps of 16)."""
_MOST_TILES = 512
"""Tiles of a step that fills the cards, at the most."""
_MOST_RATE = 4
"""Times the learning rate that was tried, whatever the batch."""
_LEAST_UPDATES = 1_000
"""Steps of a training: the recipes of Dubai have 900 and 1,400."""
_CURVE = (
    "on CamVid's test 852, 1,278 and 3,408 steps of 8 tiles gave mIoU 57.9, 61.4 and 64.4, on the roads of "
    "EPFL 420 and 1,260 an F1 of 87.2 and 88.4"
)
"""Cost of fewer steps (docs/benchmarks_public.md)."""
_BETWEEN_VALIDATIONS = 50
"""Steps; a validation costs as much as some ten."""
_MANY_PASSES = 30
"""Epochs from which a net from scratch has the time to learn turned and zoomed tiles, too."""


def plan(
    choices: Sequence[Choice],
    name: str,
    hours: float | None = None,
    gpus: tuple[int, ...] | None = None,
    contents: Contents | None = None,
) -> tuple[Choice, ...]:
    """Return the choices of `dataset.split` and of all sections beside `dataset`.

    The same data and the same machine give the same choices, but for epochs by measured hours. A split that
    the choices hold is kept.

    Args:
        choices: the dataset section.
        name: name of the recipe and its run.
        hours: hours that the training may take on this machine; None: as long as the tiles ask for.
        gpus: GiB of each card of the machine to plan for; empty: it has none; None: this machine as it is.
        contents: what was read before of the files; None: nothing.

    Raises:
        ConfigError, DatasetError, LabelError, RasterError: the choices make no dataset that can train.
    """
    draft = Draft(choices, name, hours, gpus, contents or Contents())
    after_split = sampling, batch, loss, length, geometry, colours, rate
    for rule in (precision, model, tiles, split_of, *after_split):
        draft.choices += list(rule(draft))
    check_demands(draft.recipe, draft.split_dataset)  # what a training refuses
    return tuple(draft.choices[len(choices) :])


def precision(draft: Draft) -> Iterator[Choice]:
    """Compute in half floats on cards, which have units for them (Micikevicius et al., arXiv:1710.03740)."""
    if draft.cards:
        cards = f"{len(draft.cards)} × {min(draft.cards):.0f} GiB"
        yield Choice("training.precision", "mixed_float16", f"{cards}: half the memory, tensor cores")
        if len(draft.cards) == 1:  # over several, XLA never ran
            yield Choice("training.xla", "auto", "2.7 times as fast on an H200; a trial decides")
    else:
        yield Choice("training.precision", "float32", "a processor is no faster in half floats")


def model(draft: Draft) -> Iterator[Choice]:
    """Start from ImageNet's encoder for 8-bit imagery with red, green and blue, else a U-Net from scratch.

    On Dubai the encoder gains 6.7 points of mIoU for half the time (docs/results.md). Where blocks have to be
    cut inside scenes, a model must see no farther than a third of a block.
    """
    longest = longest_buffer(draft)
    why = _against_pretrained(draft, longest)
    if not why:
        of_8_bits = f"{counted(draft.bands, 'band')} of 8 bits, and weights are installed"
        yield Choice("model.kind", "encoder_decoder", of_8_bits)
        yield Choice("model.encoder", _PRETRAINED.encoder, "6 times as fast as a wide U-Net; exact windows")
        yield Choice("model.decoder", _PRETRAINED.decoder, "ends at stride 2: the finest borders")
        yield Choice("model.weights", "imagenet", "few labels go farther")
        return
    depth, width = (4, 32) if draft.cards else (3, 16)
    while depth > 1 and (draft.size_of(UNetConfig(depth=depth)).network.radius or 0) > longest:
        depth -= 1
    small = "what a card takes in half a second" if draft.cards else "small enough for a processor"
    radius = draft.size_of(UNetConfig(depth=depth)).network.radius
    yield Choice("model.kind", "unet", f"from scratch: {why}")
    yield Choice("model.depth", depth, f"sees {radius} pixels far")
    yield Choice("model.width", width, small)


def _against_pretrained(draft: Draft, longest: float) -> str:
    """Return the reason against the pretrained encoder; empty if it fits."""
    dtype = draft.infos[draft.dataset.scenes[0]].dtype
    if draft.bands < 3 or dtype != "uint8":
        return f"{counted(draft.bands, 'band')} of {dtype} are no photographs"
    try:
        check_encoder_weights(_PRETRAINED, draft.dataset, download=False)
    except WeightsError:
        return "no pretrained weights are installed (make pretrained)"
    radius = draft.size_of(_PRETRAINED).network.radius if longest < math.inf else 0
    if radius is None or radius > longest:
        return f"an encoder sees {radius} pixels far, blocks of these scenes allow {longest:.0f}"
    return ""


def tiles(draft: Draft) -> Iterator[Choice]:
    """Cut tiles in which the network sees an area with its surroundings, no larger than scenes.

    256 for deep features (of 192, 256 and 384 the best on Dubai, studies/results_method.md), 128 for a U-Net
    from scratch on a processor, 512 on cards where areas of the rarest class are large.
    """
    stride, side = draft.recipe.model.stride, 256
    median = int(np.median([min(i.size.height, i.size.width) for i in draft.infos.values()]))
    across = math.sqrt(area_of(draft.samples, draft.rarest) or 0) if draft.cards else 0.0
    if draft.cards and 4 * across > side and median >= 1024:
        rarest = draft.dataset.classes.names[draft.rarest]
        side, why = 512, f"areas of {rarest} are {across:.0f} pixels wide"
    elif draft.cards:
        why = "what cards take many of"
    elif draft.pretrained:
        why = "deep features see little of less"
    else:
        side, why = 128, "many steps for a processor"
    if median < side:
        side, why = max(2 * stride, median // stride * stride), f"scenes are {median} pixels high or wide"
    yield Choice("tiles.size", side, why)
    labelled = float(np.mean([np.mean(sample.coarse != IGNORE) for sample in draft.samples]))
    if labelled < draft.recipe.tiles.min_labelled:
        yield Choice(
            "tiles.min_labelled", 1e-5, f"{percent(labelled)} of the pixels are labelled, as by points"
        )


def sampling(draft: Draft) -> Iterator[Choice]:
    """Plan every class into every step, rare ones in more tiles.

    Quotas gain 3.3 points on Dubai and 1.2 on CamVid over one tile of each class, with the loss that is
    chosen here; beside rare-class sampling they win on CamVid, 4.1 points, and lose on Dubai, 1.9
    (docs/benchmarks_public.md, studies/planned.md).
    """
    if (count := len(draft.dataset.classes)) > MOST_CLASSES:
        why = f"{count} classes, of which a plan takes {MOST_CLASSES}; draws rare ones often"
        yield Choice("sampling.method", "rare_class", why)
        return
    yield Choice("sampling.method", "plan", "every step holds every class; each tile is used")
    yield Choice("sampling.quota", "rarity", "rare classes in more tiles than one: 3 points on Dubai")


def batch(draft: Draft) -> Iterator[Choice]:
    """Take the smallest batch at which classes force hardly any repeats, with steps enough, if parts fit.

    If none of these holds all classes, take the next larger one that does. Cards are filled as far as the
    usual epochs then have a thousand steps: the same tiles are seen, sooner (studies/four_gpus.md).

    From docs/settings.md: 8 below 2,000 tiles, 16 to 64 above; at least 8 steps an epoch.
    """
    count, cards, names = len(draft.index), max(1, len(draft.cards)), draft.dataset.classes.names
    least = 16 if count >= _FEW else 8
    if draft.cards and count >= _ENOUGH_FOR_CARDS:
        least = min(64, 16 * cards)
    most = max(4, 1 << max(0, (count // _LEAST_STEPS).bit_length() - 1))
    held = {b: _repeats(draft, b) for b in _BATCHES if least <= b <= most} or {min(least, most): math.inf}
    free = [b for b, repeats in held.items() if repeats <= _FEW_REPEATS * count]
    chosen = free[0] if free else min(held, key=lambda b: (held[b], b))
    if math.isinf(_repeats(draft, chosen)):  # too small for all classes
        chosen = next((b for b in _BATCHES if b > chosen and math.isfinite(_repeats(draft, b))), chosen)
    chosen = max(-(-chosen // cards) * cards, _filling(draft))
    held.setdefault(chosen, _repeats(draft, chosen))
    holds_N = holds(draft.index.counts_NK[:, draft.rarest], draft.recipe.sampling.min_pixels)
    rare = f"{names[draft.rarest]} is in {holds_N.sum()} of {counted(count, 'tile')}"
    repeats = held.get(chosen, math.inf)
    cost = f", which costs {counted(int(repeats), 'repeat')}" if 0 < repeats < math.inf else ""
    parts, taken = _parts(draft, chosen // cards)
    memory = f"a step takes {gibibytes(int(taken))} of {gibibytes(int(draft.budget))}"
    yield Choice("training.global_batch", chosen, f"{rare}{cost}; {memory}")
    if parts > 1:
        yield Choice("training.accumulate", parts, f"{chosen // cards} tiles at once would not fit")


def _filling(draft: Draft) -> int:
    """Return the tiles of a step that fill the cards, if so many leave steps enough; 0 without cards."""
    cards, count = len(draft.cards), len(draft.index)
    fixed, of_tile = _step_bytes(draft)
    tiles_a_card = int((_FILLED * draft.budget - fixed) / of_tile)
    of_tiles = min(_MOST_TILES, count * _passes(count) // _LEAST_UPDATES) // max(1, cards)
    return cards * max(0, min(tiles_a_card, of_tiles))


def _passes(count: int) -> int:
    """Return the epochs of a training on so many tiles, if they have steps enough."""
    return 40 if count >= _MANY else 50


def _step_bytes(draft: Draft) -> tuple[float, float]:
    """Return the bytes that a step takes beside its tiles, and those of a tile."""
    size = draft.size_of(draft.recipe.model)
    beside, share = _ON_CARDS if draft.cards else _ON_PROCESSOR
    return size.parameters * BYTES_PER_PARAMETER + beside, share * size.tile_bytes


def _repeats(draft: Draft, size: int) -> float:
    """Return the repeats of a plan with one tile of each class, more for classes that it cannot promise."""
    one = draft.recipe.sampling.model_copy(update={"quota": "presence"})
    recipe = draft.recipe.model_copy(update={"sampling": one})
    try:
        result = plan_first_epoch(draft.split_dataset, draft.index, recipe, size)
    except DatasetError:
        return math.inf
    return float(result.coverage_repeats + len(draft.index) * len(result.best_effort))


def _parts(draft: Draft, tiles_a_card: int) -> tuple[int, float]:
    """Return micro-batches of a card's part of a step, and the bytes that the step takes then.

    Raises:
        DatasetError: not even one tile fits.
    """
    fixed, of_tile = _step_bytes(draft)
    fits = int((_ROOM * draft.budget - fixed) / of_tile)
    if fits < 1:
        raise DatasetError(
            "--gpus",
            expected=f"memory for a tile of {draft.recipe.tiles.size} pixels and the model, "
            f"{gibibytes(int((fixed + of_tile) / _ROOM))}",
            got=gibibytes(int(draft.budget)),
            remedy="plan for larger cards, or set tiles.size and model in a recipe of your own",
        )
    parts = parts_that_fit(tiles_a_card, fits)
    return parts, fixed + tiles_a_card // parts * of_tile


def loss(draft: Draft) -> Iterator[Choice]:
    """Weight classes by the root of their rarity and add Dice over the batch (studies/what_lifts.md)."""
    shares, names = draft.index.shares(), draft.dataset.classes.names
    present = np.flatnonzero(shares)
    low, high = (int(present[np.argmin(sign * shares[present])]) for sign in (1, -1))
    if shares[high] >= 2 * shares[low]:
        reason = f"{names[low]} has {shares[low]:.2%} of the pixels, {names[high]} {shares[high]:.0%}"
        yield Choice("loss.class_weights", "inverse_sqrt", reason)
    if draft.recipe.training.accumulate == 1:
        yield Choice("loss.dice", 1.0, "beside cross-entropy: counts areas, however small")


def geometry(draft: Draft) -> Iterator[Choice]:
    """Turn tiles by quarters only where images look straight down; zoom and rotate them if time is enough.

    Zoom helps the encoder on Dubai (studies/results_method.md). From scratch, in 15 passes over the tiles,
    zoom and rotation cost 5 points of Potsdam's look-alikes (studies/planned.md). Beside held-out blocks of
    the same scene they would let a model see farther than the buffer.
    """
    up, differ = draft.up
    section = draft.recipe.dataset
    if isinstance(section, FolderConfig) and section.split.blocks is not None:
        apart = section.split.blocks.buffer
        why = f"no zoom, and quarter turns alone: held-out blocks lie {apart} pixels away, as far as it sees"
        yield Choice("augmentation.d4", not up, why)
        return
    if up:
        yield Choice("augmentation.d4", False, f"classes above and below differ by {differ:.0%}")
        yield Choice(
            "augmentation.transforms", [{"name": "HorizontalFlip", "p": 0.5}], "left and right are alike"
        )
        yield Choice("augmentation.scale", 0.25, "things are near and far")
        return
    how, other = "georeferenced", ""
    if differ:
        how = f"classes above and below differ by {differ:.0%}"
        other = "" if len(draft.samples) >= LEAST_SCENES else "false, if images have an up: too few to tell"
    yield Choice("augmentation.d4", True, f"seen from above: {how}", other)
    if not draft.pretrained and draft.recipe.training.epochs < _MANY_PASSES:
        return  # quarter turns are free
    yield Choice("augmentation.rotation", 15, "land has no up")
    yield Choice("augmentation.scale", 0.5 if draft.pretrained else 0.25, "pixels and things differ in size")


def colours(draft: Draft) -> Iterator[Choice]:
    """Leave colours alone for encoders that look straight down, change them little from scratch.

    Left alone they gain 2 points with the encoder on Dubai (studies/results_method.md), 0.8 on roads; on
    roads of another year, which are brighter, they cost 6 (studies/new_place.md). From scratch 0.25, with
    hue, costs 15 points of Potsdam's look-alikes in 480 steps (studies/planned.md).
    """
    amount = 0.2 if draft.up[0] else 0.0 if draft.pretrained else 0.1
    reason = "how bright a thing is tells it apart" if not amount else "light differs from scene to scene"
    elsewhere = (
        "0.25 here and for contrast, to map places in other light: "
        "6 points of mIoU more on roads of another year, 2 fewer on Dubai"
    )
    yield Choice("augmentation.brightness", amount, reason, "" if amount else elsewhere)
    yield Choice("augmentation.contrast", amount, reason)


def length(draft: Draft) -> Iterator[Choice]:
    """Train as many epochs as the hours hold by measured steps, else as many as docs/settings.md has."""
    count, recipe = len(draft.index), draft.recipe
    size = recipe.training.global_batch
    steps, other = _epoch_steps(draft), ""
    hours, usual = draft.hours, max(_passes(count), -(-_LEAST_UPDATES // steps))
    if hours is None or draft.gpus is not None:
        epochs = usual
        reason = counted(count, "tile")
        if hours is not None:
            reason += "; hours are measured on the machine that trains, not for --gpus"
    else:
        seconds = _step_seconds(draft)
        epochs = max(1, int(STEPS_OF_HOURS * hours * 3600 / (steps * seconds)))
        reason = f"{hours:g} h at {seconds:.2f} s a step"
        if epochs * steps < _LEAST_UPDATES:
            enough = _LEAST_UPDATES * seconds / 3600 / STEPS_OF_HOURS
            other = f"--hours {enough:.2g}: fewer than {_LEAST_UPDATES:,} steps are a short training"
    reason += f": {counted(epochs * steps, 'step')} of {size} tiles"
    if epochs < usual:
        reason += f"; without --hours it would be {counted(usual * steps, 'step')}; {_CURVE}"
    yield Choice("training.epochs", epochs, reason, other)
    every = max(1, min(epochs, round(_BETWEEN_VALIDATIONS / steps)))
    if every > 1:
        yield Choice("training.validate_every", every, f"an epoch has only {counted(steps, 'step')}")


def _epoch_steps(draft: Draft) -> int:
    return epoch_steps(draft.recipe, draft.split_dataset, draft.index)


def _step_seconds(draft: Draft) -> float:
    return seconds_a_step(draft.recipe)


def rate(draft: Draft) -> Iterator[Choice]:
    """Scale the learning rate by the root of the batch (Malladi et al., arXiv:2205.10287) from tried ones.

    1.5e-3 at 8 tiles with a slower encoder, 2e-3 at 16 from scratch, as configs/dubai_pretrained.yaml and
    configs/dubai.yaml have; never more than four times as much, which nobody tried.
    """
    training = draft.recipe.training
    peak, of = (1.5e-3, 8) if draft.pretrained else (2e-3, 16)
    value = float(f"{peak * min(math.sqrt(training.global_batch / of), _MOST_RATE):.2g}")
    steps = training.epochs * _epoch_steps(draft)
    yield Choice("training.learning_rate", value, f"{peak:g} at {of} tiles, by the root of the batch")
    yield Choice("training.schedule", "cosine", f"over {counted(steps, 'step')}")
    yield Choice("training.warmup", max(1, min(40, steps // 10)), "steps")
    yield Choice("training.clip_norm", 1.0, "one bad batch moves no more")
    if draft.pretrained:
        yield Choice("training.rates", {"encoder": 0.3}, "what is learned already is moved less")
        decay = min(0.998, round(1 - 2 / max(20, steps), 3))
        yield Choice("training.ema", decay, f"averages some {1 / (1 - decay):.0f} steps")
