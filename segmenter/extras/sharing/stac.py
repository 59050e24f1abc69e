"""STAC item of a run's model, with the Machine Learning Model extension (MLM 1.4).

STAC: github.com/radiantearth/stac-spec, 1.1. MLM: github.com/stac-extensions/mlm, v1.4.0.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from segmenter.base.addresses import is_address
from segmenter.base.errors import SegmenterError
from segmenter.evaluation.scores import FIGURES, percent
from segmenter.extras.sharing import card
from segmenter.extras.sharing.known_facts import RunFactsForOthers
from segmenter.runs.records import GroundPlace

FILE = "stac.json"
_EXTENSIONS = {
    name: f"https://stac-extensions.github.io/{name}/v{version}/schema.json"
    for name, version in (("mlm", "1.4.0"), ("file", "2.1.0"))
}
_NAME, _ALLOWED = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-]+[a-zA-Z0-9]"), re.compile(r"[^a-zA-Z0-9_.\-]+")
_NO_LETTERS = re.compile(r"[^0-9A-Za-z_-]+")
_VERSION = re.compile(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ)?")
_SHA256 = "1220"
"""Prefix of a multihash: SHA-256, of 32 bytes."""


def item(
    known: RunFactsForOthers,
    base: str,
    names: Collection[str],
    licence: str | None = None,
    times: tuple[str, str] | None = None,
) -> dict[str, Any]:
    """Return the item as plain data.

    Args:
        base: address or relative path of the run's files, ending with a slash.
        licence: licence of the weights (an SPDX identifier); None: not stated.
        times: acquisition period of suitable imagery, see `times_of`; None: unknown, the item has the time of
            the weights.
    """
    place = None if known.origin is None else known.origin.place
    content: dict[str, Any] = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": list(_EXTENSIONS.values()),
        "id": f"{_plain_name(known)}-{known.fingerprint[:16]}",
        "geometry": None if place is None else _geometry(place),
        "properties": {**_common(known, licence, times), **_model(known)},
        "links": [],
        "assets": _assets(known, base, names),
    }
    return content if place is None else {**content, "bbox": _bbox(place)}


def times_of(text: str) -> tuple[str, str]:
    """Parse `BEGIN/END`, each as `2026-05-01` or `2026-05-01T09:30:00Z`; a single value stands for both.

    Raises:
        SegmenterError: the text has another form, or the end is before the begin.
    """
    first, _, last = text.partition("/")
    ends = (first, "T00:00:00Z"), (last or first, "T23:59:59Z")
    times = [each if "T" in each else each + rest for each, rest in ends]
    try:
        if not all(_TIME.fullmatch(each) for each, _ in ends) or _moment(times[0]) > _moment(times[1]):
            raise ValueError
    except ValueError:
        raise SegmenterError(
            "--datetime", expected="BEGIN/END as 2024-05-01/2024-09-30, in order", got=text
        ) from None
    return times[0], times[1]


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ")


def base_of(run: Path, output: Path, href: str | None) -> str:
    """Return the base of links to the run's files from `output`: a given address, else a path."""
    if href is not None:
        if not is_address(href):
            raise SegmenterError("--href", expected="an address (https://…, s3://…)", got=href)
        return href.rstrip("/") + "/"
    between = os.path.relpath(os.path.realpath(run), os.path.realpath(output.parent))
    return "./" if between == "." else quote(between) + "/"


def _plain_name(known: RunFactsForOthers) -> str:
    """Return the run's name in the characters that MLM allows."""
    name = _ALLOWED.sub("-", known.name).strip("-._")
    return name if _NAME.fullmatch(name) else f"model-{name}".rstrip("-")


# ------------------------------------------------------------------------------------------- place


def _geometry(place: GroundPlace) -> dict[str, Any]:
    rings = [[[list(point) for point in ring]] for ring in place.rings]
    if len(rings) == 1:
        return {"type": "Polygon", "coordinates": rings[0]}
    return {"type": "MultiPolygon", "coordinates": rings}


def _bbox(place: GroundPlace) -> list[float]:
    lon, lat = zip(*(point for ring in place.rings for point in ring), strict=True)
    return [min(lon), min(lat), max(lon), max(lat)]


# -------------------------------------------------------------------------------------- properties


def _common(known: RunFactsForOthers, licence: str | None, times: tuple[str, str] | None) -> dict[str, Any]:
    begun = known.origin.begun if known.origin else None
    if begun is None:
        begun = datetime.fromtimestamp(int(known.weights.stat().st_mtime), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    when: dict[str, str | None] = {"datetime": begun}
    if times is not None:
        when = {"datetime": None, "start_datetime": times[0], "end_datetime": times[1], "created": begun}
    metres = known.run.metres_per_pixel
    return {
        **when,
        "title": f"{known.name}: {known.architecture}",
        "description": _description(known, times is None),
        **({} if licence is None else {"license": licence}),
        **({} if metres is None else {"gsd": float(f"{metres:.6g}")}),
        "bands": _bands(known),
    }


def _description(known: RunFactsForOthers, unknown_time: bool) -> str:
    classes = ", ".join(known.run.classes.names)
    text = f"Land-cover segmentation by coverage-segmenter. Classes: {classes}."
    if known.scores is not None:
        means = ", ".join(
            f"{title} {percent(getattr(known.scores, key))} %" for key, title in FIGURES.items()
        )
        text += f" Scores: {means} ({known.scores.protocol}). The weights were chosen by them."
    else:
        text += f" Scores: none, {known.no_scores}."
    if unknown_time:
        of = "the training's begin" if known.origin and known.origin.begun else "the file of weights"
        text += f" When the imagery was taken is not known: the time is that of {of}."
    return text


def _bands(known: RunFactsForOthers) -> list[dict[str, Any]]:
    return [{"name": name, "data_type": known.run.dtype} for name in known.band_names]


def _model(known: RunFactsForOthers) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "mlm:name": _plain_name(known),
        "mlm:architecture": known.architecture,
        "mlm:tasks": ["semantic-segmentation"],
        "mlm:framework": "TensorFlow",
        "mlm:total_parameters": known.parameters,
        "mlm:accelerator_constrained": False,
        **_start(known),
        "mlm:input": [_input(known)],
        "mlm:output": [_output(known)],
        "mlm:hyperparameters": _hyperparameters(known),
    }
    if (batch := known.run.recipe.prediction.batch) is not None:
        properties["mlm:batch_size_suggestion"] = batch
    if known.facts is None:
        return properties
    if version := _VERSION.fullmatch(known.facts.versions.get("tensorflow", "")):
        properties["mlm:framework_version"] = version[0]
    on = known.facts.computed_on.get("devices", "")
    if on:
        properties["mlm:accelerator"] = "amd64" if on == "CPU" else "xla" if "TPU" in on else "cuda"
        properties["mlm:accelerator_summary"] = (
            f"trained on {known.facts.replicas} × {on}; predicts on a CPU too"
        )
    return properties


def _start(known: RunFactsForOthers) -> dict[str, Any]:
    """Return whether training began with other weights, and their source; empty if not recorded."""
    origin, weights = known.origin, getattr(known.run.recipe.model, "weights", None)
    if weights is not None or (origin is not None and origin.started_from):
        return {"mlm:pretrained": True, "mlm:pretrained_source": known.describe_start()}
    if origin is None or origin.started_from is None:
        return {}
    return {"mlm:pretrained": False, "mlm:pretrained_source": None}


def _input(known: RunFactsForOthers) -> dict[str, Any]:
    run = known.run
    pairs = zip(run.normalisation.mean, run.normalisation.std, strict=True)
    return {
        "name": "image",
        "description": (
            f"Values as the files hold them ({run.dtype}), scaled band by band; pixels without data are 0 "
            f"after it. Height and width are multiples of {run.network.stride}."
        ),
        "bands": list(known.band_names),
        "input": {
            "shape": [-1, -1, -1, run.band_count],
            "dim_order": ["batch", "height", "width", "channel"],
            "data_type": "float32",
        },
        "value_scaling": [{"type": "z-score", "mean": mean, "stddev": std} for mean, std in pairs],
        "resize_type": None,
    }


def _output(known: RunFactsForOthers) -> dict[str, Any]:
    classes = known.run.classes.classes
    names = _machine_names(known.run.classes.names)
    return {
        "name": "logits",
        "description": "A logit for each class and pixel; their softmax over the classes is the probability.",
        "tasks": ["semantic-segmentation"],
        "result": {
            "shape": [-1, -1, -1, len(classes)],
            "dim_order": ["batch", "height", "width", "class"],
            "data_type": "float32",
        },
        "classification:classes": [
            {
                "value": number,
                "name": names[number],
                "title": each.name,
                "description": f"{each.name}; code {each.code} in the owner's files",
                "color_hint": "{:02X}{:02X}{:02X}".format(*each.colour),
            }
            for number, each in enumerate(classes)
        ],
        "post_processing_function": {"format": "python", "expression": "numpy.argmax(logits, axis=-1)"},
    }


def _machine_names(names: Sequence[str]) -> list[str]:
    """Return unique names in the characters that the classification extension allows, else `class-3`."""
    plain_names = [_NO_LETTERS.sub("-", name).strip("-") for name in names]
    return [
        n if n and plain_names.count(n) == 1 else f"class-{number}" for number, n in enumerate(plain_names)
    ]


def _hyperparameters(known: RunFactsForOthers) -> dict[str, Any]:
    recipe, training = known.run.recipe, known.run.recipe.training
    parameters = {
        "global_batch": training.global_batch,
        "tile_size": recipe.tiles.size,
        "epochs_planned": training.epochs,
        "optimizer": training.optimizer,
        "learning_rate": training.learning_rate,
        "schedule": training.schedule,
        "precision": training.precision,
        "seed": recipe.seed,
        "receptive_field_radius_px": known.run.network.radius,
        "stride_px": known.run.network.stride,
    }
    return parameters if known.steps is None else {**parameters, "steps": known.steps}


# ------------------------------------------------------------------------------------------ assets


def _assets(known: RunFactsForOthers, base: str, names: Collection[str]) -> dict[str, Any]:
    weights = known.weights.relative_to(known.run.path).as_posix()
    assets: dict[str, Any] = {
        "weights": {
            "href": base + quote(weights),
            "title": "Weights, optimiser and position, as arrays",
            "type": "application/zip",
            "roles": ["mlm:model", "mlm:weights", "mlm:checkpoint"],
            "mlm:artifact_type": "numpy.savez",
            "bands": _bands(known),
            "file:size": known.size,
            "file:checksum": _SHA256 + known.sha256,
        }
    }
    others = {
        "run": ("run.json", "application/json", "Meaning of the input and output"),
        "recipe": ("recipe.yaml", "application/yaml", "All settings of the training"),
        "scores": ("scores.json", "application/json", "Scores of the best validation"),
        "card": (card.FILE, "text/markdown", "Model card"),
    }
    for key, (name, kind, title) in others.items():
        if key == "scores" and known.scores is None:
            continue
        if name in names:
            assets[key] = {"href": base + name, "title": title, "type": kind, "roles": ["metadata"]}
    return assets
