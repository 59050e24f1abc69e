"""Classes of polygons that nobody described: file, layer and attribute that tell them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from segmenter.base.bars import Bar
from segmenter.base.errors import DatasetError, counted
from segmenter.base.invocation import needing
from segmenter.config.datasets import IGNORE_WORD
from segmenter.evaluation.drawing import hex_colour
from segmenter.grid.colours import default_colours
from segmenter.grid.labels import MAX_CLASSES
from segmenter.raster import RasterInfo
from segmenter.raster.ground import outlines

from ..files import few
from .choice import Choice, nest_choices
from .legends import LegendClass

_USUAL = re.compile(
    r"[ck]las|[ck]ateg|typ|kind|label|cover|land_?use|name|cod|dlbm|crop|habitat|biotop|species|veget|"
    r"nutzung|kultur|uso(?![^\W_])|usage|occupation",
    re.IGNORECASE,
)
_NUMBERED = re.compile(r"id|dn|val(ue)?|l[cu]|lulc", re.IGNORECASE)
"""Names of attributes of classes, and further ones whose numbers may be classes."""
_NUMBER, _YES, _NO = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?"), {"yes", "true"}, {"no", "false"}
_BACKGROUND = "background"
_HALF, _MOST = 0.5, 0.9
"""Shares of the polygons with a value of a usual attribute, for it to go before others, and usual ones."""

_MOST_DRAWN, _EVERYWHERE = 200_000, (-1e15, -1e15, 1e15, 1e15)
"""Polygons up to which their areas are compared, and the box that holds them."""


def polygon_choices(
    root: Path, files: Sequence[str], images: Sequence[RasterInfo] = ()
) -> Generator[Choice, None, dict[str, str]]:
    """Yield layer and attribute of the classes, the classes, and what lies outside, as empty files tell.

    The CRS comes before them, where files name none and lie on the images. Of several layers the one is taken
    whose attribute tells classes; if several do, it is asked.

    Returns:
        File that cannot be read → reason.

    Raises:
        DatasetError: none can be read, none has a polygon, or the extra `vectors` is missing.
    """
    with needing("vectors", "polygons", "dataset.labels", DatasetError):
        from segmenter.extras.vector_files.features import area_layers
    yield from _crs_choice(root, files, images)
    layers, damaged = Counter[str](), dict[str, str]()
    for file in files:
        try:
            layers.update(area_layers(root / file))
        except DatasetError as error:
            damaged[file] = str(error)
    whole = [file for file in files if file not in damaged]
    if not whole:
        raise DatasetError(root, f"no file of polygons can be read; {damaged[files[0]]}")
    several = [layer for layer, count in layers.items() if count > len(whole) // 2]
    yield from _choose_layer(root, whole, several) if len(several) > 1 else classes_told(root, whole, None)[0]
    return damaged


def _choose_layer(root: Path, files: Sequence[str], several: Sequence[str]) -> Iterator[Choice]:
    """Yield the layer whose attribute tells classes, and its classes; if several do, it is asked.

    Raises:
        DatasetError: none has a polygon, or none tells classes.
    """
    readings = dict[str, tuple[list[Choice], int]]()
    for layer in several:
        with suppress(DatasetError):
            readings[layer] = classes_told(root, files, layer)
    if not readings:
        raise DatasetError(root, expected="a layer of polygons", got=f"{few(several)} of {few(files)}")
    first, *others = sorted(readings, key=lambda layer: (-min(2, readings[layer][1]), several.index(layer)))
    if others and readings[first][1] == readings[others[0]][1] < 2:
        raise DatasetError(
            root,
            expected="a layer with an attribute that tells classes",
            got=f"{few([first, *others], 3)} of {few(files, 2)}, none with one",
            remedy="if each layer is a class, merge them: ogrmerge.py -single -src_layer_field_name class "
            "-src_layer_field_content {LAYER_NAME} -o all.gpkg FILE; if one is the labels, take it out: "
            "ogr2ogr labels.gpkg FILE LAYER",
        )
    why = (
        f"of {counted(len(several), 'layer')} the one with {counted(readings[first][1], 'class', 'classes')}"
    )
    choice = Choice("dataset.vector.layer", first, why, f"layer {few(others)}" if others else "")
    if rivals := [layer for layer in others if readings[layer][1] > 1]:
        told = nest_choices([*readings[rivals[0]][0], Choice("dataset.vector.layer", rivals[0], "")])[
            "dataset"
        ]
        found = counted(readings[rivals[0]][1], "class", "classes")
        question = f"layer {rivals[0]} tells {found}, too: is it the one?"
        instead = {f"dataset.{key}": told[key] for key in ("vector", "classes")}
        choice = Choice(choice.key, first, why, question=question, instead=instead)
    yield choice
    yield from readings[first][0]


def _crs_choice(root: Path, files: Sequence[str], images: Sequence[RasterInfo]) -> Iterator[Choice]:
    """Yield the images' CRS for polygons without one, as in a shapefile without .prj, that lie on them."""
    from segmenter.extras.vector_files.features import VectorFile

    codes = {info.crs.to_epsg() for info in images if info.crs is not None}
    corners = [each for each in outlines(images) if each is not None]
    if len(codes) != 1 or None in codes or not corners:
        return
    points = np.concatenate(corners)
    box = (*points.min(axis=0).tolist(), *points.max(axis=0).tolist())
    for file in files:
        with suppress(DatasetError):
            vectors = VectorFile(root / file, None)
            if vectors.crs is None and len(vectors.within(box).shape_F):
                code = f"EPSG:{codes.pop()}"
                why = f"{file} names no CRS, and its coordinates lie on the images in {code}"
                yield Choice("dataset.vector.crs", code, why, "the CRS that its makers used")
                return


def file_of_classes(root: Path, files: Sequence[str]) -> str | None:
    """Return the only one of several files whose attribute tells two classes or more; None: there is none.

    So an area of interest, or a grid of sheets, is none beside polygons of classes.
    """
    with needing("vectors", "polygons", "dataset.labels", DatasetError):
        from segmenter.extras.vector_files.features import area_layers
    telling = []
    for file in files:
        with suppress(DatasetError):
            layers = area_layers(root / file)
            counts = [classes_told(root, [file], layer if len(layers) > 1 else None)[1] for layer in layers]
            telling += [file] if max(counts, default=0) > 1 else []
    return telling[0] if len(telling) == 1 else None


def classes_told(root: Path, files: Sequence[str], layer: str | None) -> tuple[list[Choice], int]:
    """Return the choices of one layer, and the number of classes that its most telling attribute has.

    Of several files or layers that is how the one of classes is known, beside outlines and sheets.
    """
    from segmenter.extras.vector_files.features import VectorFile
    from segmenter.extras.vectors.rule import as_text

    columns, counts = dict[str, list[list[str]]](), list[int]()
    for file in Bar(files, desc="polygons", unit="file"):
        vectors = VectorFile(root / file, None, layer)
        counts.append(vectors.count)
        for name, own in vectors.attributes().items():
            columns.setdefault(name, []).append(list(filter(None, map(as_text, own.tolist()))))
    if not sum(counts):
        raise DatasetError(root, expected="polygons", got=f"none in {few(files)}", remedy="add some")
    fitting = {name: fit for name, each in columns.items() if (fit := _as_classes(name, each))}
    few_of, sparse = (
        {name for name, fit in fitting.items() if fit.total() < share * sum(counts)}
        for share in (_HALF, _MOST)
    )
    unusual = few_of | {name for name in fitting if not _USUAL.search(name)}
    numbers = {name for name, fit in fitting.items() if all(map(_NUMBER.fullmatch, fit))}
    later = unusual, sparse, {name for name, fit in fitting.items() if len(fit) == 1}, numbers
    order = sorted(fitting, key=lambda name: (*(name in each for each in later), name))
    attribute, values = (order[0], fitting[order[0]]) if order else (None, Counter(foreground=sum(counts)))
    shown = ", ".join(f"{value} {n:,}" for value, n in values.most_common(8))
    others = f"attribute {few(rest, 3)}" if (rest := order[1:] if order else list(columns)) else ""
    why = f"{counted(sum(counts), 'polygon')}: {shown}"
    made = [Choice("dataset.vector.attribute", attribute, why, others)]
    made += _classes_of(root, files, layer, attribute, values, counts)
    named = attribute and _USUAL.search(attribute)
    alike = [
        name
        for name in order[1:]
        if all((name in each) == (attribute in each) for each in later)
        or (not named and _USUAL.search(name))  # of too few polygons to go before
    ]
    if alike and attribute in unusual:
        rival = [Choice("dataset.vector.attribute", alike[0], "")]
        rival += _classes_of(root, files, layer, alike[0], fitting[alike[0]], counts)
        told = nest_choices(rival)["dataset"]
        question = f"attribute {alike[0]} has {counted(len(fitting[alike[0]]), 'value')}: is it the classes?"
        instead = {f"dataset.{key}": told[key] for key in ("vector", "classes")}
        made[0] = replace(made[0], other="", question=question, instead=instead)
    return made, len(values) if attribute else 0


def _classes_of(
    root: Path,
    files: Sequence[str],
    layer: str | None,
    attribute: str | None,
    values: Counter[str],
    counts: Sequence[int],
) -> Iterator[Choice]:
    """Yield order, values, outside and classes for an attribute's values.

    Args:
        counts: polygons of each file.
    """
    from segmenter.extras.vector_files.features import VectorFile
    from segmenter.extras.vectors.rule import as_text

    nowhere = [name for name in sorted(values) if LegendClass(name).nowhere]
    names = sorted(values.keys() - set(nowhere)) or nowhere
    meant, alone, empty = dict.fromkeys(nowhere, IGNORE_WORD), len(names) == 1, counts.count(0)
    if not alone and sum(counts) <= _MOST_DRAWN:
        areas: dict[str, list[float]] = {name: [] for name in names}
        for drawn in (VectorFile(root / file, attribute, layer).within(_EVERYWHERE) for file in files):
            for value, shape in zip(map(as_text, drawn.value_F.tolist()), drawn.shape_F, strict=True):
                areas.get(value or "", []).append(0.0 if shape is None else shape.area)
        above = sorted(names, key=lambda name: (float(np.median(areas[name])), name))
        yield Choice("dataset.vector.order", above, "where polygons overlap, the smaller lie above")
    if attribute and alone:
        meant[names[0]] = _class_name(names[0], attribute)
        names = [meant[names[0]]]
    if meant:
        why = f"named {few(nowhere)}" if nowhere else "the only value"
        yield Choice("dataset.vector.values", meant, why)
    other = "a class more, by dataset.vector.outside, for what lies outside all polygons; it is ignored"
    if alone or empty:
        why = f"{counted(empty, 'file')} without a polygon" if empty else "polygons of one class"
        yield Choice("dataset.vector.outside", _BACKGROUND, f"{why}: all else is none of it")
        names = [_BACKGROUND, *(name for name in names if name != _BACKGROUND)]
        other = "" if attribute else "no attribute tells classes: the name of the only one is made up"
    shown = map(hex_colour, default_colours(names))
    classes = [{"name": name, "colour": colour} for name, colour in zip(names, shown, strict=True)]
    yield Choice("dataset.classes", classes, f"{attribute or 'all'} of {counted(len(files), 'file')}", other)


def _class_name(value: str, attribute: str) -> str:
    """Return a name of a class whose value may be no word, as `1` or `yes`."""
    return value if len(value) > 3 and re.search(r"[^\W\d]", value) else attribute


def _as_classes(name: str, files: Sequence[Sequence[str]]) -> Counter[str]:
    """Return an attribute's values if they are classes: no number or name of a polygon or file, no flag."""
    files = [values for values in files if values]
    values, usual = Counter(chain.from_iterable(files)), _USUAL.search(name) is not None
    total, different, words = values.total(), sum(len(set(each)) for each in files), {*map(str.lower, values)}
    numbers = not usual and all(_NUMBER.fullmatch(value) for value in values)
    running = different == total and (numbers or total > 3 * len(files))  # in a file
    of_file = different == len(files) < 2 * len(values) and len(files) > 1
    few_recur = 2 * len(values) <= total and len(values) < MAX_CLASSES and not (running or of_file)
    telling = usual or (_NUMBERED.fullmatch(name) is not None if numbers else not words <= _YES | _NO)
    fits = few_recur and telling if len(values) > 1 else usual or words <= _YES
    return values if fits else Counter()
