"""Model card of a run: Markdown with a YAML header for model hubs, made from the run's records.

It contains no paths and no machine names, and only measured figures: unknown facts are marked as unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence

import yaml

from segmenter.config.datasets import FolderConfig
from segmenter.config.recipe import LossConfig, SamplingConfig
from segmenter.evaluation.scores import FIGURES, Scores, percent, title_of
from segmenter.extras.sharing.known_facts import RunFactsForOthers
from segmenter.runs.records import AccuracyFile, GroundPlace

FILE = "README.md"
"""Name under which hubs look for a card."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_HUB_METRICS = {"miou": "mean_iou", "mf1": "f1", "oa": "accuracy"}
"""Score → name of the metric on the Hugging Face hub."""
_HEAD = """\
# {title}

A land-cover model: {known.architecture}, {classes} classes, for imagery {scale}. Trained on {data}.

This card was made from the files of the run. A figure that is not in it was not measured."""
_USE = """\
```
python predict.py THIS_FOLDER scenes/ --output maps/
```
with coverage-segmenter. `run.json` says what input and output mean; nothing in this folder is run
when it is loaded."""
_LIMITS = {
    "never": "No training pixel shows {never}: the model cannot map it.",
    "little": "No training tile holds much of {little}: no step could promise it.",
    "unseen": "Never seen in validation, so that no score speaks of it: {unseen}.",
    "best_by": "The weights were chosen by {best_by} on the very scenes that the scores are of, which makes "
    "these optimistic.",
    "one_scene": "All scores are of one scene.",
    "blocks": "Blocks inside the scenes were held out: their surroundings trained, so that other places may "
    "be mapped less well.",
    "one_by_one": "Scenes were held out one by one: neighbours of a validation scene may have trained.",
    "tests": "{tests} test scenes were set aside; the run holds no scores of them.",
    "no_scale": "The scale of the training is not known: imagery of another is mapped as if it were "
    "the same.",
    "scales": "Trained on pixels of {scales}; beyond these it is a guess.",
    "scale": "Trained at {scale}; for imagery of another scale, predict with --gsd auto.",
    "whole_window": "A pixel depends on its whole window: maps are blended, and depend on their windows a "
    "little.",
    "radius": "Pixels farther away than {radius} do not influence a pixel's class; with that much around "
    "each window, maps have no seams.",
    "calibrated": "Probabilities are calibrated on validation scenes (calibration.json); their expected "
    "calibration error on ground left out of the fit was {calibrated}.",
    "uncalibrated": "Not measured: whether a probability of 0.9 is right nine times in ten.",
    "always": "Near nodata and at a raster's edge a pixel sees less of its surroundings. Not measured: "
    "other sensors, seasons and places than the training's; speed.",
}
"""Limits of a model by the name of the fact (`_limits`) with which they hold."""
Facts = Sequence[tuple[str, str | None]]
"""Label and value; None: not known."""


def card_text(known: RunFactsForOthers, licence: str | None = None) -> str:
    """Return the card.

    Args:
        licence: licence of the weights, given by the owner (an SPDX identifier); None: not stated.
    """
    metres = known.run.metres_per_pixel
    scale = "of a scale that is not known" if metres is None else f"at {metres:.3g} m a pixel"
    title, data = plain_markdown(known.name), known.run.recipe.dataset.title
    head = _HEAD.format(title=title, known=known, classes=len(known.run.classes), scale=scale, data=data)
    limits = _limits(known)
    bands, found = known.band_names, known.run.normalisation
    scaling = [[n, f"{m:.6g}", f"{s:.6g}"] for n, m, s in zip(bands, found.mean, found.std, strict=True)]
    sections = {
        "Classes": [*_classes(known)],
        "Input": [*_facts(_input(known)), "", *_table(["band", "mean", "deviation"], scaling)],
        "Model": [*_facts(_model(known))],
        "Data": [*_facts(_data(known))],
        "Training": [*_facts(_training(known))],
        "Scores": _scores(known),
        "Accuracy of its maps": [] if known.accuracy is None else _accuracy(known.accuracy),
        "Limits": [
            f"- {plain_markdown(_LIMITS[k].format(**limits))}" for k, value in limits.items() if value
        ],
        "Use": [_USE],
    }
    texts = ["\n".join([f"## {title}", "", *lines]) for title, lines in sections.items() if lines]
    head_facts = [
        ("Licence of the weights", plain_markdown(licence) if licence else "not stated; ask their owner"),
        ("Fingerprint of the weights", f"`{known.fingerprint}` (SHA-256 of what predicts, by name)"),
    ]
    return "\n\n".join([_header(known, licence), head, "\n".join(_facts(head_facts)), *texts]) + "\n"


def plain_markdown(text: str) -> str:
    """Escape a text for Markdown: class names may contain any character."""
    return _SPECIAL.sub(r"\\\1", text)


def _facts(facts: Facts) -> Iterator[str]:
    return (f"- {label}: {'not known' if value is None else value}" for label, value in facts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _header(known: RunFactsForOthers, licence: str | None) -> str:
    data: dict[str, object] = {} if licence is None else {"license": licence}
    data |= {
        "library_name": "coverage-segmenter",
        "pipeline_tag": "image-segmentation",
        "tags": ["semantic-segmentation", "land-cover", "remote-sensing", "tensorflow", "keras"],
    }
    if known.scores is not None:
        data["model-index"] = [{"name": known.name, "results": [_hub_result(known, known.scores)]}]
    return f"---\n{yaml.safe_dump(data, sort_keys=False, allow_unicode=True)}---"


def _hub_result(known: RunFactsForOthers, scores: Scores) -> dict[str, object]:
    title, protocol = known.run.recipe.dataset.title, scores.protocol
    metrics = {key: round(getattr(scores, key), 4) for key in _HUB_METRICS}
    name = f"{title}, {protocol.split} split, {protocol.labels} labels"
    return {
        "task": {"type": "image-segmentation"},
        "dataset": {"name": name, "type": known.run.dataset},
        "metrics": [
            {"type": _HUB_METRICS[key], "name": FIGURES[key], "value": value}
            for key, value in metrics.items()
            if not math.isnan(value)
        ],
    }


# ------------------------------------------------------------------------------------------- facts


def _input(known: RunFactsForOthers) -> Facts:
    run, origin, metres = known.run, known.origin, known.run.metres_per_pixel
    order = "" if run.bands else " (all but an alpha band, in the order of the file)"
    low, high = (origin and origin.metres_per_pixel) or (1.0, 1.0)
    scenes = f"; its scenes have {low:.4g} to {high:.4g} m" if high > 1.001 * low else ""
    own = "the training scenes'" if run.scenes is None else "those that the first weights were trained with"
    return [
        ("Bands", f"{run.band_count}: {', '.join(known.band_names)}{order}. The run knows no wavelengths"),
        ("Type of the values", run.dtype),
        ("Ground resolution of the training", None if metres is None else f"{metres:.4g} m a pixel{scenes}"),
        ("Pixels without data", "0 after normalisation; maps have 255 there"),
        ("Normalisation", f"(value − mean) / deviation, by {own}"),
    ]


def _model(known: RunFactsForOthers) -> Facts:
    network, metres = known.run.network, known.run.metres_per_pixel
    reach = f"every pixel of a window ({network.unlimited})"
    if network.radius is not None:
        reach = f"{network.radius} px, " + (f"{network.radius * metres:.3g} m, " if metres else "")
    return [
        (
            "Architecture",
            f"{known.architecture}; {known.parameters:,} parameters, with BatchNorm's statistics",
        ),
        ("Output", f"{len(known.run.classes)} logits a pixel, at the resolution of the input"),
        ("Stride", f"{network.stride} px; an output pixel depends on {reach.rstrip()} to each side"),
        ("First weights", plain_markdown(known.describe_start())),
    ]


def _data(known: RunFactsForOthers) -> Facts:
    run, origin = known.run, known.origin
    facts: list[tuple[str, str | None]] = [("Data", f"{run.recipe.dataset.title}, {run.labels} labels")]
    if origin is None:
        facts.append(("Scenes, tiles and place", None))
    else:
        tiles = f"{origin.tiles:,} training tiles of {origin.tile_px}² pixels; "
        tiles += f"{origin.tiles_left_out:,} were left out, which have too few labels"
        scenes = ", ".join(f"{count} {split}" for split, count in origin.scenes.items())
        facts += [("Scenes", scenes), ("Tiles", tiles)]
        facts.append(("Place", _place(origin.place, origin.scenes.get("train", 0))))
    digest = f"`{run.tiles}` (tiles, class counts and files)" if run.tiles else None
    return [*facts, ("Fingerprint of the training data", digest)]


def _place(place: GroundPlace | None, total: int) -> str:
    if place is None:
        return "not known: the training scenes have no georeference, or it was left out"
    lon, lat = zip(*(point for ring in place.rings for point in ring), strict=True)
    where = f"longitude {min(lon):.4f} to {max(lon):.4f}, latitude {min(lat):.4f} to {max(lat):.4f} (WGS 84)"
    return f"{where}, of {place.scenes} of {total} training scenes"


def _training(known: RunFactsForOthers) -> Facts:
    recipe, training, facts = known.run.recipe, known.run.recipe.training, known.facts
    steps = "not known" if known.steps is None else f"{known.steps:,}"
    on = {} if facts is None else facts.computed_on
    where = "; ".join(f"{key}: {on[key]}" for key in ("devices", "processor", "updates") if key in on)
    versions = "" if facts is None else ", ".join(f"{name} {n}" for name, n in facts.versions.items())
    return [
        ("Optimiser steps", f"{steps}, of {training.global_batch} tiles of {recipe.tiles.size}² pixels"),
        ("Epochs of the recipe", f"{training.epochs}"),
        ("Optimiser", f"{training.optimizer}, learning rate {training.learning_rate:g}"),
        ("Schedule", f"{training.schedule}, precision {training.precision}"),
        ("Loss", _loss(recipe.loss)),
        ("Sampling", _sampling(recipe.sampling)),
        ("Replicas", None if facts is None else f"{facts.replicas}, on {plain_markdown(where)}"),
        ("Versions", None if facts is None else plain_markdown(versions)),
        ("Begun", (known.origin and known.origin.begun) or None),
        ("All settings", "`recipe.yaml`"),
    ]


def _loss(loss: LossConfig) -> str:
    """Return text on the loss: terms with weights, and changed settings."""
    terms = " + ".join(f"{getattr(loss, name):g} × {name.replace('_', '-')}" for name in loss.used_terms)
    fields = {name: (getattr(loss, name), each.default) for name, each in type(loss).model_fields.items()}
    changed = {n: v for n, (v, default) in fields.items() if n not in loss.terms() and v != default}
    return ", ".join([terms, *(f"{name.replace('_', ' ')} {value}" for name, value in changed.items())])


def _sampling(rules: SamplingConfig) -> str:
    if not rules.plans_classes:
        return "shuffle" if rules.method == "plan" else rules.method.replace("_", " ")
    planned = f"planned, so that each step holds every class that can be promised ({rules.coverage})"
    amounts = [f"{rules.quota}, lift {rules.lift:g}"] if rules.quota == "rarity" else []
    amounts += [f"{plain_markdown(name)} {tiles}" for name, tiles in rules.quotas.items()]
    return planned + (f", in amounts of tiles ({', '.join(amounts)})" if amounts else "")


# ------------------------------------------------------------------------------------------ tables


def _classes(known: RunFactsForOthers) -> list[str]:
    scores, trained = known.scores, known.trained_pixels or {}
    total = sum(trained.values())
    truth = dict(zip(scores.protocol.classes, scores.truth_pixels.tolist(), strict=True)) if scores else {}

    def share(pixels: float | None, whole: float) -> str:
        return "not known" if pixels is None else f"{100 * pixels / whole:.2f} %" if whole else "–"

    rows = []
    for number, each in enumerate(known.run.classes.classes):
        learned = share(trained.get(each.name, 0) if trained else None, total)
        seen = share(truth.get(each.name), scores.pixels if scores else 0)
        colour = "`#{:02x}{:02x}{:02x}`".format(*each.colour)
        rows.append([plain_markdown(each.name), str(number), str(each.code), colour, learned, seen])
    head = ["class", "id", "code", "colour", "share in training", "share in validation"]
    note = ["", f"Shares in training are of the {total:,} labelled pixels of its tiles."] if trained else []
    return [*_table(head, rows), *note]


def _scores(known: RunFactsForOthers) -> list[str]:
    scores = known.scores
    if scores is None:
        return [f"None: {plain_markdown(known.no_scores)}."]
    columns = (scores.iou, scores.f1, scores.precision, scores.recall)
    rows = [
        [plain_markdown(name), *(percent(float(column[i])) for column in columns)]
        for i, name in enumerate(scores.protocol.classes)
    ]
    means = ", ".join(f"{title} {percent(getattr(scores, key))}" for key, title in FIGURES.items())
    strata = [
        [
            plain_markdown(title),
            percent(float(each.get("miou") or math.nan)),
            f"{int(each.get('pixels', 0)):,}",
        ]
        for title, each in known.per_scale.items()
    ]
    return [
        f"In percent, on the {scores.protocol.split} scenes that the best weights were chosen by "
        f"({title_of(known.run.recipe.training.best_by)}).",
        *("", f"**{means}**", ""),
        *_table(["class", "IoU", "F1", "precision", "recall"], rows),
        *([] if scores.interval is None else ["", f"mIoU {scores.interval}."]),
        *(
            "",
            f"Protocol: {scores.protocol}, {scores.pixels:,} pixels. Scores of other protocols cannot be put",
        ),
        "beside these.",
        *(["", *_table(["metres a pixel", "mIoU", "pixels"], strata)] if strata else []),
    ]


def _accuracy(found: AccuracyFile) -> list[str]:
    rows = [[plain_markdown(cell) for cell in row] for row in found.rows]
    lines = [f"- {plain_markdown(line)}" for line in found.remarks]
    head = f"Estimated from `{found.source}`: {plain_markdown(found.head)}."
    return [head, "", *_table(found.titles, rows), *([""] if lines else []), *lines]


# ------------------------------------------------------------------------------------------ limits


def _limits(known: RunFactsForOthers) -> dict[str, object]:
    """Return what the texts of `_LIMITS` name; those whose value is empty do not hold."""
    run, origin, scores = known.run, known.origin, known.scores
    metres, augmentation, config = run.metres_per_pixel, run.recipe.augmentation, run.recipe.dataset
    split = config.split if isinstance(config, FolderConfig) else None
    pixels, tiles = (origin.pixels, origin.tiles_with) if origin else ({}, {})
    never = [name for name, count in pixels.items() if not count]
    seen = dict(zip(scores.protocol.classes, scores.truth_pixels.tolist(), strict=True)) if scores else {}
    unseen = dict.fromkeys(name for name in (*seen, *run.classes.names) if scores and not seen.get(name))
    low, high = augmentation.scale_to or (0.0, 0.0)
    own = run.calibration_file()
    errors = "" if own is None else f"{own.fitted.before.ece:.2%} before and {own.fitted.after.ece:.2%} after"
    around = f", give or take {100 * augmentation.scale:g} %" if augmentation.scale else ""
    return {
        "never": ", ".join(never),
        "little": ", ".join(name for name, count in tiles.items() if not count and name not in never),
        "unseen": ", ".join(unseen),
        "best_by": title_of(run.recipe.training.best_by) if scores else "",
        "one_scene": scores and len(scores.protocol.scenes) == 1,
        "blocks": split and split.blocks,
        "one_by_one": split and not (split.blocks or split.group) and (split.validation_share or split.folds),
        "tests": origin and origin.scenes.get("test"),
        "no_scale": metres is None,
        "scales": f"{low:g} to {high:g} m" if high and metres else "",
        "scale": f"{metres:.3g} m a pixel{around}" if metres and not high else "",
        "whole_window": run.network.radius is None,
        "radius": "" if run.network.radius is None else f"{run.network.radius} px",
        "calibrated": errors,
        "uncalibrated": not errors,
        "always": True,
    }
