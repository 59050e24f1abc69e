"""STAC item of a run's model, with the Machine Learning Model extension (MLM 1.4).

STAC: github.com/radiantearth/stac-spec, 1.1. MLM: github.com/stac-extensions/mlm, v1.4.0.
"""

from __future__ import annotations

import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from segmenter.base.addresses import is_address
from segmenter.base.errors import SegmenterError
from segmenter.evaluation.scores import FIGURES, percent
from segmenter.extras.sharing.card import FILE as CARD
from segmenter.extras.sharing.known_facts import RunFactsForOthers
from segmenter.runs.records import CALIBRATION

FILE = "stac.json"
Times = tuple[str, str]
_EXTENSION = "https://stac-extensions.github.io/{}/schema.json"
_FORM = "%Y-%m-%dT%H:%M:%SZ"
_UNKNOWN: Any = ...
"""In the place of values that the run does not record; their keys are left out."""
_TASKS = ["semantic-segmentation"]
_ASSETS = {
    "run": ("run.json", "application/json", "Meaning of the input and output"),
    "recipe": ("recipe.yaml", "application/yaml", "All settings of the training"),
    "scores": ("scores.json", "application/json", "Scores of the best validation"),
    "calibration": (CALIBRATION, "application/json", "Calibration of the probabilities"),
    "card": (CARD, "text/markdown", "Model card"),
}


def item_text(
    known: RunFactsForOthers,
    licence: str | None = None,
    base: str = "./",
    times: Times | None = None,
    card: bool = True,
) -> str:
    """Return the item as JSON.

    Args:
        base: address or relative path of the run's files, ending with a slash.
        licence: licence of the weights (an SPDX identifier); None: not stated.
        times: acquisition period of suitable imagery, see `times_of`; None: unknown, the item has the time of
            the weights.
        card: True to link the model card.
    """
    rings = known.origin.place.rings if known.origin and known.origin.place else ()
    lon, lat = zip(*(point for ring in rings for point in ring), strict=True) if rings else ((), ())
    item = {
        "type": "Feature",
        "stac_version": "1.1.0",
        "stac_extensions": [_EXTENSION.format("mlm/v1.4.0"), _EXTENSION.format("file/v2.1.0")],
        "id": f"{_plain_name(known)}-{known.fingerprint[:16]}",
        "geometry": {"type": "MultiPolygon", "coordinates": [[r] for r in rings]} if rings else None,
        "bbox": [min(lon), min(lat), max(lon), max(lat)] if rings else _UNKNOWN,
        "properties": _properties(known, licence, times),
        "links": [],
        "assets": _assets(known, base, card),
    }
    return json.dumps(_record_source(item), indent=2, ensure_ascii=False) + "\n"


def times_of(text: str) -> Times:
    """Parse `BEGIN/END`, each as `2026-05-01` or `2026-05-01T09:30:00Z`; a single value stands for both.

    Raises:
        SegmenterError: the text has another form, or the end is before the begin.
    """
    first, _, last = text.partition("/")
    ends = (first, "T00:00:00Z"), (last or first, "T23:59:59Z")
    begin, end = (each if "T" in each else each + rest for each, rest in ends)
    try:
        wrong = datetime.strptime(begin, _FORM) > datetime.strptime(end, _FORM)
    except ValueError:
        wrong = True
    if wrong or not all(re.fullmatch(r"[\d-]{10}(T[\d:]{8}Z)?", each) for each, _ in ends):
        raise SegmenterError("--datetime", expected="BEGIN/END as 2024-05-01/2024-09-30, in order", got=text)
    return begin, end


def base_of(run: Path, output: Path, href: str | None) -> str:
    """Return the base of links to the run's files from `output`: a given address, else a path."""
    if href is None:
        between = os.path.relpath(os.path.realpath(run), os.path.realpath(output.parent))
        return quote(between) + "/"
    if not is_address(href):
        raise SegmenterError("--href", expected="an address (https://…, s3://…)", got=href)
    return href.rstrip("/") + "/"


def _record_source(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not _UNKNOWN}


def _plain_name(known: RunFactsForOthers) -> str:
    """Return the run's name in the characters that MLM allows."""
    name = re.sub(r"[^a-zA-Z0-9_.\-]+", "-", known.name).strip("-._")
    return name if re.fullmatch(r"[a-zA-Z].+", name) else f"model-{name}".rstrip("-")


def _bands(known: RunFactsForOthers) -> list[dict[str, str]]:
    return [{"name": name, "data_type": known.run.dtype} for name in known.band_names]


def _properties(known: RunFactsForOthers, licence: str | None, times: Times | None) -> dict[str, Any]:
    recipe, facts, metres = known.run.recipe, known.facts, known.run.metres_per_pixel
    changed = datetime.fromtimestamp(int(known.weights.stat().st_mtime), UTC)
    begun = (known.origin and known.origin.begun) or changed.strftime(_FORM)
    when = ("datetime", "start_datetime", "end_datetime", "created")
    version = re.match(r"\d+\.\d+\.\d+$", "" if facts is None else facts.versions.get("tensorflow", ""))
    on = "" if facts is None else facts.computed_on.get("devices", "")
    absent = None if known.pretrained is False else _UNKNOWN
    properties = {
        **dict(zip(when, (None, *times, begun) if times else (begun,), strict=False)),
        "title": f"{known.name}: {known.architecture}",
        "description": _description(known, times is None),
        "license": licence or _UNKNOWN,
        "gsd": _UNKNOWN if metres is None else float(f"{metres:.6g}"),
        "bands": _bands(known),
        "mlm:name": _plain_name(known),
        "mlm:architecture": known.architecture,
        "mlm:tasks": _TASKS,
        "mlm:framework": "TensorFlow",
        "mlm:framework_version": version[0] if version else _UNKNOWN,
        "mlm:total_parameters": known.parameters,
        "mlm:accelerator_constrained": False,
        "mlm:accelerator": ("amd64" if on == "CPU" else "xla" if "TPU" in on else "cuda") if on else _UNKNOWN,
        "mlm:accelerator_summary": f"trained on {on}; predicts on a CPU too" if on else _UNKNOWN,
        "mlm:batch_size_suggestion": recipe.prediction.batch or _UNKNOWN,
        "mlm:pretrained": _UNKNOWN if known.pretrained is None else known.pretrained,
        "mlm:pretrained_source": known.describe_start() if known.pretrained else absent,
        "mlm:input": [_input(known)],
        "mlm:output": [_output(known)],
        "mlm:hyperparameters": {"seed": recipe.seed, **recipe.training.model_dump(mode="json")},
    }
    return _record_source(properties)


def _description(known: RunFactsForOthers, unknown_time: bool) -> str:
    scores, begun = known.scores, known.origin and known.origin.begun
    text = f"Land-cover segmentation by coverage-segmenter. Classes: {', '.join(known.run.classes.names)}. "
    if scores is not None:
        means = ", ".join(f"{title} {percent(getattr(scores, key))} %" for key, title in FIGURES.items())
        text += f"Scores: {means} ({scores.protocol}). The weights were chosen by them."
    else:
        text += f"Scores: none, {known.no_scores}."
    if unknown_time:
        of = "the training's begin" if begun else "the file of weights"
        text += f" When the imagery was taken is not known: the time is that of {of}."
    return text


def _input(known: RunFactsForOthers) -> dict[str, Any]:
    run, found = known.run, known.run.normalisation
    declared = "; scale × stored value + offset where a file declares them" * (run.dtype == "float32")
    pairs = zip(found.mean, found.std, strict=True)
    return {
        "name": "image",
        "description": f"Values as the files hold them ({run.dtype}{declared}), scaled band by band; pixels "
        f"without data are 0 after it. Height and width are multiples of {run.network.stride}.",
        "bands": list(known.band_names),
        "input": _array(run.band_count, "channel"),
        "value_scaling": [{"type": "z-score", "mean": mean, "stddev": std} for mean, std in pairs],
    }


def _array(depth: int, axis: str) -> dict[str, Any]:
    order = ["batch", "height", "width", axis]
    return {"shape": [-1, -1, -1, depth], "dim_order": order, "data_type": "float32"}


def _output(known: RunFactsForOthers) -> dict[str, Any]:
    """Return the description of the logits; names of classes are unique and of letters of the extension."""
    classes = known.run.classes
    logits, by, calibration = "logits", "", known.run.calibration()
    if calibration is not None:
        bias = " + numpy.array([" + ", ".join(f"{each:.6g}" for each in calibration.bias) + "])"
        by = ", as calibrated on validation scenes (calibration.json)"
        logits = f"logits / {calibration.temperature:.6g}{bias * calibration.shifts}"
    plain = [re.sub(r"[^0-9A-Za-z_-]+", "-", name).strip("-") for name in classes.names]
    names = [n if n and plain.count(n) == 1 else f"class-{number}" for number, n in enumerate(plain)]
    return {
        "name": "logits",
        "description": f"A logit for each class and pixel; the softmax of {logits} over the classes is the "
        f"probability{by}.",
        "tasks": _TASKS,
        "result": _array(len(classes.classes), "class"),
        "classification:classes": [
            {
                "value": number,
                "name": names[number],
                "title": each.name,
                "description": f"{each.name}; code {each.code} in the owner's files",
                "color_hint": "{:02X}{:02X}{:02X}".format(*each.colour),
            }
            for number, each in enumerate(classes.classes)
        ],
        "post_processing_function": {"format": "python", "expression": f"numpy.argmax({logits}, axis=-1)"},
    }


def _assets(known: RunFactsForOthers, base: str, card: bool) -> dict[str, Any]:
    weights = {
        "href": base + quote(known.weights.relative_to(known.run.path).as_posix()),
        "title": "Weights, optimiser and position, as arrays",
        "type": "application/zip",
        "roles": ["mlm:model", "mlm:weights", "mlm:checkpoint"],
        "mlm:artifact_type": "numpy.savez",
        "bands": _bands(known),
        "file:size": known.size,
        "file:checksum": "1220" + known.sha256,  # multihash: SHA-256, of 32 bytes
    }
    others = {
        key: {"href": base + name, "title": title, "type": kind, "roles": ["metadata"]}
        for key, (name, kind, title) in _ASSETS.items()
        if {
            "scores": known.scores is not None,
            "calibration": known.run.calibration() is not None,
            "card": card,
        }.get(key, True)
    }
    return {"weights": weights, **others}
