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
from segmenter.model.normalisation import Normalisation
from segmenter.runs.records import AccuracyFile, GroundPlace

FILE = "README.md"
"""Name under which hubs look for a card."""
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")
_HUB_METRICS = {"miou": "mean_iou", "mf1": "f1", "oa": "accuracy"}
"""Score → name of the metric on the Hugging Face hub."""

_NOT_MEASURED = (
    "Not measured: other sensors, seasons and places than the training's; whether a probability of 0.9 is "
    "right nine times in ten; speed."
)


def card_text(known: RunFactsForOthers, licence: str | None = None) -> str:
    """Return the card.

    Args:
        licence: licence of the weights, given by the owner (an SPDX identifier); None: not stated.
    """
    parts = [
        _header(known, licence),
        [f"# {plain_markdown(known.name)}", "", *_introduction(known, licence)],
        ["## Classes", "", *_classes(known)],
        ["## Input", "", *_input(known)],
        ["## Model", "", *_model(known)],
        ["## Data", "", *_data(known)],
        ["## Training", "", *_training(known)],
        ["## Scores", "", *_scores(known)],
        *([["## Accuracy of its maps", "", *_accuracy(known.accuracy)]] if known.accuracy else []),
        ["## Limits", "", *(f"- {plain_markdown(line)}" for line in _limits(known))],
        ["## Use", "", *_use()],
    ]
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def plain_markdown(text: str) -> str:
    """Escape a text for Markdown: class names may contain any character."""
    return _SPECIAL.sub(r"\\\1", text)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.2f} %" if whole else "–"


# ------------------------------------------------------------------------------------------ header


def _header(known: RunFactsForOthers, licence: str | None) -> list[str]:
    data: dict[str, object] = {} if licence is None else {"license": licence}
    data |= {
        "library_name": "coverage-segmenter",
        "pipeline_tag": "image-segmentation",
        "tags": ["semantic-segmentation", "land-cover", "remote-sensing", "tensorflow", "keras"],
    }
    if known.scores is not None:
        data["model-index"] = [{"name": known.name, "results": [_hub_result(known, known.scores)]}]
    return ["---", yaml.safe_dump(data, sort_keys=False, allow_unicode=True).rstrip(), "---"]


def _hub_result(known: RunFactsForOthers, scores: Scores) -> dict[str, object]:
    protocol = scores.protocol
    metrics = {key: getattr(scores, key) for key in _HUB_METRICS}
    return {
        "task": {"type": "image-segmentation"},
        "dataset": {
            "name": f"{known.run.recipe.dataset.title}, {protocol.split} split, {protocol.labels} labels",
            "type": known.run.dataset,
        },
        "metrics": [
            {"type": _HUB_METRICS[key], "name": FIGURES[key], "value": round(value, 4)}
            for key, value in metrics.items()
            if not math.isnan(value)
        ],
    }


# ---------------------------------------------------------------------------------------- sections


def _introduction(known: RunFactsForOthers, licence: str | None) -> list[str]:
    metres = known.run.metres_per_pixel
    scale = "of a scale that is not known" if metres is None else f"at {metres:.3g} m a pixel"
    return [
        f"A land-cover model: {known.architecture}, {len(known.run.classes)} classes, for imagery {scale}. "
        f"Trained on {known.run.recipe.dataset.title}.",
        "",
        "This card was made from the files of the run. A figure that is not in it was not measured.",
        "",
        f"- Licence of the weights: {plain_markdown(licence) if licence else 'not stated; ask their owner'}",
        f"- Fingerprint of the weights: `{known.fingerprint}` (SHA-256 of what predicts, by name)",
    ]


def _classes(known: RunFactsForOthers) -> list[str]:
    classes, scores, trained = known.run.classes, known.scores, known.trained_pixels
    head = ["class", "id", "code", "colour", "share in training", "share in validation"]
    total = sum(trained.values()) if trained else 0
    truth = dict(zip(scores.protocol.classes, scores.truth_pixels.tolist(), strict=True)) if scores else {}
    rows = []
    for number, each in enumerate(classes.classes):
        name, colour = plain_markdown(each.name), "#{:02x}{:02x}{:02x}".format(*each.colour)
        learned = "not known" if trained is None else _share(trained.get(each.name, 0), total)
        seen = _share(truth[each.name], scores.pixels) if scores and each.name in truth else "not known"
        rows.append([name, str(number), str(each.code), f"`{colour}`", learned, seen])
    note = (
        []
        if trained is None
        else ["", f"Shares in training are of the {total:,} labelled pixels of its tiles."]
    )
    return [*_table(head, rows), *note]


def _input(known: RunFactsForOthers) -> list[str]:
    run = known.run
    bands = ", ".join(known.band_names)
    chosen = "" if run.bands else " (all but an alpha band, in the order of the file)"
    metres, origin = run.metres_per_pixel, known.origin
    scale = "- Ground resolution of the training: " + (
        "not known" if metres is None else f"{metres:.4g} m a pixel"
    )
    if origin is not None and origin.metres_per_pixel is not None:
        low, high = origin.metres_per_pixel
        scale += f"; its scenes have {low:.4g} to {high:.4g} m" if high > 1.001 * low else ""
    own = (
        "the training scenes' own" if run.scenes is None else "those that the first weights were trained with"
    )
    return [
        f"- Bands: {run.band_count}: {bands}{chosen}. The run knows no wavelengths.",
        f"- Type of the values: {run.dtype}",
        scale,
        f"- Normalisation, (value − mean) / deviation, by {own}:",
        "",
        *_normalisation(known.band_names, run.normalisation),
        "",
        "- Pixels without data become 0 after normalisation; maps have 255 there.",
    ]


def _normalisation(names: Sequence[str], found: Normalisation) -> list[str]:
    rows = zip(names, found.mean, found.std, strict=True)
    return _table(["band", "mean", "deviation"], [[n, f"{m:.6g}", f"{s:.6g}"] for n, m, s in rows])


def _model(known: RunFactsForOthers) -> list[str]:
    network = known.run.network
    sees = (
        f"every pixel of a window ({network.unlimited})" if network.radius is None else f"{network.radius} px"
    )
    metres = known.run.metres_per_pixel
    if network.radius is not None and metres is not None:
        sees += f", {network.radius * metres:.3g} m,"
    return [
        f"- Architecture: {known.architecture}; {known.parameters:,} parameters, with BatchNorm's statistics",
        f"- Output: {len(known.run.classes)} logits a pixel, at the resolution of the input",
        f"- Stride {network.stride} px; an output pixel depends on {sees} to each side",
        f"- Started from {plain_markdown(known.describe_start())}",
    ]


def _data(known: RunFactsForOthers) -> list[str]:
    run, origin = known.run, known.origin
    lines = [f"- Data: {run.recipe.dataset.title}, {run.labels} labels"]
    if origin is None:
        lines.append("- Scenes, tiles and place: not known: the run has no origin.json (an older program)")
    else:
        scenes = ", ".join(f"{count} {split}" for split, count in origin.scenes.items())
        lines.append(f"- Scenes: {scenes}")
        lines.append(
            f"- {origin.tiles:,} training tiles of {origin.tile_px}² pixels; {origin.tiles_left_out:,} were "
            "left out, which have too few labels"
        )
        lines.append(_place(origin.place, origin.scenes.get("train", 0)))
    digest = f"`{run.tiles}` (tiles, class counts and files)" if run.tiles else "not known"
    return [*lines, f"- Fingerprint of the training data: {digest}"]


def _place(place: GroundPlace | None, total: int) -> str:
    if place is None:
        return "- Place: not known: the training scenes have no georeference, or it was left out"
    points = [point for ring in place.rings for point in ring]
    (west, south), (east, north) = (tuple(f(p[i] for p in points) for i in (0, 1)) for f in (min, max))
    return (
        f"- Place, by {place.scenes} of {total} training scenes: longitude {west:.4f} to {east:.4f}, "
        f"latitude {south:.4f} to {north:.4f} (WGS 84)"
    )


def _training(known: RunFactsForOthers) -> list[str]:
    recipe, training, facts = known.run.recipe, known.run.recipe.training, known.facts
    done = "not known" if known.steps is None else f"{known.steps:,}"
    lines = [
        f"- Optimiser steps: {done}, of {training.global_batch} tiles of {recipe.tiles.size}² pixels; the "
        f"recipe plans {training.epochs} epochs",
        f"- Optimiser {training.optimizer}, learning rate {training.learning_rate:g}, schedule "
        f"{training.schedule}, precision {training.precision}",
        f"- Loss: {_loss(recipe.loss)}; sampling: {_sampling(recipe.sampling)}",
    ]
    if facts is None:
        lines.append("- Hardware and versions: not known")
    else:
        on = facts.computed_on
        where = "; ".join(f"{key}: {on[key]}" for key in ("devices", "processor", "updates") if key in on)
        versions = ", ".join(f"{name} {number}" for name, number in facts.versions.items())
        lines.append(
            f"- Hardware: {facts.replicas} replica{'s' * (facts.replicas != 1)}; {plain_markdown(where)}"
        )
        lines.append(f"- Versions: {plain_markdown(versions)}")
    begun = known.origin.begun if known.origin else None
    lines.append(f"- Begun: {begun or 'not known'}. How long it took was not recorded.")
    return [*lines, "- All settings: `recipe.yaml`"]


def _loss(loss: LossConfig) -> str:
    """Return text on the loss: terms with weights, and changed settings."""
    terms = " + ".join(f"{getattr(loss, name):g} × {name.replace('_', '-')}" for name in loss.used_terms)
    others = [
        f"{name.replace('_', ' ')} {value}"
        for name, field in type(loss).model_fields.items()
        if name not in loss.terms() and (value := getattr(loss, name)) != field.default
    ]
    return ", ".join([terms, *others])


def _sampling(rules: SamplingConfig) -> str:
    if not rules.plans_classes:
        return "shuffle" if rules.method == "plan" else rules.method.replace("_", " ")
    planned = f"planned, so that each step holds every class that can be promised ({rules.coverage})"
    amounts = [f"{rules.quota}, lift {rules.lift:g}"] if rules.quota == "rarity" else []
    amounts += [f"{plain_markdown(name)} {tiles}" for name, tiles in rules.quotas.items()]
    return planned + (f", in amounts of tiles ({', '.join(amounts)})" if amounts else "")


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
    return [
        f"In percent, on the {scores.protocol.split} scenes that the best weights were chosen by "
        f"({title_of(known.run.recipe.training.best_by)}).",
        "",
        f"**{means}**",
        "",
        *_table(["class", "IoU", "F1", "precision", "recall"], rows),
        "",
        *([f"mIoU {scores.interval}.", ""] if scores.interval is not None else []),
        f"Protocol: {scores.protocol}, {scores.pixels:,} pixels. Scores of other protocols cannot be put",
        "beside these.",
        *_per_gsd(known),
    ]


def _accuracy(found: AccuracyFile) -> list[str]:
    lines = [f"- {plain_markdown(line)}" for line in found.remarks]
    return [
        f"Estimated from `{found.source}`: {plain_markdown(found.head)}.",
        "",
        *_table(found.titles, [[plain_markdown(cell) for cell in row] for row in found.rows]),
        *([""] if lines else []),
        *lines,
    ]


def _per_gsd(known: RunFactsForOthers) -> list[str]:
    if not known.per_scale:
        return []
    rows = [
        [
            plain_markdown(title),
            percent(float(scores.get("miou") or math.nan)),
            f"{int(scores.get('pixels', 0)):,}",
        ]
        for title, scores in known.per_scale.items()
    ]
    return ["", *_table(["metres a pixel", "mIoU", "pixels"], rows)]


# ------------------------------------------------------------------------------------------ limits


def _limits(known: RunFactsForOthers) -> list[str]:
    """Return the model's limits as text, those of classes first."""
    return [*_of_classes(known), *_of_scores(known), *_of_scale(known), *_of_pixels(known), _NOT_MEASURED]


def _of_classes(known: RunFactsForOthers) -> Iterator[str]:
    origin, scores = known.origin, known.scores
    if origin is not None:
        never = [name for name, pixels in origin.pixels.items() if not pixels]
        little = [name for name, tiles in origin.tiles_with.items() if not tiles and name not in never]
        if never:
            yield f"No training pixel shows {', '.join(never)}: the model cannot map it."
        if little:
            yield f"No training tile holds much of {', '.join(little)}: no step could promise it."
    if scores is not None:
        counted = zip(scores.protocol.classes, scores.truth_pixels.tolist(), strict=True)
        unseen = [name for name, pixels in counted if not pixels]
        unseen += [name for name in known.run.classes.names if name not in scores.protocol.classes]
        if unseen:
            yield f"Never seen in validation, so that no score speaks of it: {', '.join(unseen)}."


def _of_scores(known: RunFactsForOthers) -> Iterator[str]:
    run, origin = known.run, known.origin
    if known.scores is not None:
        yield (
            f"The weights were chosen by {title_of(run.recipe.training.best_by)} on the very scenes that the "
            "scores are of, which makes these optimistic."
        )
        scenes = known.scores.protocol.scenes
        if len(scenes) == 1:
            yield "All scores are of one scene."
    config = run.recipe.dataset
    split = config.split if isinstance(config, FolderConfig) else None
    if split is not None and split.blocks is not None:
        yield (
            "Blocks inside the scenes were held out: their surroundings trained, so that other places may be "
            "mapped less well."
        )
    elif split is not None and split.group is None and (split.validation_share or split.folds):
        yield "Scenes were held out one by one: neighbours of a validation scene may have trained."
    if origin is not None and origin.scenes.get("test"):
        yield f"{origin.scenes['test']} test scenes were set aside; the run holds no scores of them."


def _of_scale(known: RunFactsForOthers) -> Iterator[str]:
    metres, factor = known.run.metres_per_pixel, known.run.recipe.augmentation.scale
    if metres is None:
        yield "The scale of the training is not known: imagery of another is mapped as if it were the same."
        return
    scale_range = known.run.recipe.augmentation.scale_to
    if scale_range is not None:
        yield f"Trained on pixels of {scale_range[0]:g} to {scale_range[1]:g} m; beyond these it is a guess."
    elif factor:
        yield (
            f"Trained at {metres:.3g} m a pixel, give or take {100 * factor:g} %; for imagery of another "
            "scale, predict with --gsd auto."
        )
    else:
        yield f"Trained at {metres:.3g} m a pixel; for imagery of another scale, predict with --gsd auto."


def _of_pixels(known: RunFactsForOthers) -> Iterator[str]:
    network = known.run.network
    if network.radius is None:
        yield "A pixel depends on its whole window: maps are blended, and depend on their windows a little."
    else:
        yield (
            f"What lies farther away than {network.radius} px has no part in a pixel's class; with that much "
            "around each window, maps have no seams."
        )
    yield "Near nodata and at a raster's edge a pixel sees less of its surroundings."


# --------------------------------------------------------------------------------------------- use


def _use() -> list[str]:
    return [
        "```",
        "python predict.py THIS_FOLDER scenes/ --output maps/",
        "```",
        "with coverage-segmenter. `run.json` says what input and output mean; nothing in this folder is run",
        "when it is loaded.",
    ]
