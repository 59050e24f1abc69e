"""Estimates kept with what they are of: in the metadata of maps, and in the run whose weights made them.

A map's file stays as it is, and so does its entry in the journal of `predict.py`: the texts `ACCURACY` and
`AREAS` go into GDAL's metadata beside it, `NAME.tif.aux.xml`, which goes when the map is made anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from segmenter.base.errors import DatasetError, counted, plain
from segmenter.base.files import read_regular, write_whole
from segmenter.base.invocation import invocation, quote_path
from segmenter.base.terminal import warn
from segmenter.extras.accuracy import estimators as account
from segmenter.extras.accuracy.estimators import Estimates, unit_for
from segmenter.extras.accuracy.points import images_of_maps, weights_of_maps
from segmenter.extras.gis.documents import child, document
from segmenter.extras.written_map import WrittenMap, maps_in
from segmenter.grid.geometry import Window
from segmenter.runs.records import save_accuracy
from segmenter.runs.run import RUN_FILE, Run, load_run
from segmenter.runs.scenes import load_scenes

Drawn = Mapping[str, Sequence[tuple[int, int, str]]]
"""Name of a map, or the end of its path → row, column and mapped class of its points."""


def keep(
    found: Estimates, unit: str, points: Path, mapped: Drawn | None, given: Sequence[Path]
) -> list[Path]:
    """Write the estimates into maps, folders of maps and run directories; return the maps and runs.

    Args:
        mapped: the sampled maps; None: unknown. Other maps of a folder are left out.

    Raises:
        DatasetError: a map or run has other classes, a map is another at the points, none is of the sample,
            or the maps of the sample are not known to be of a run's weights; nothing is written then.
        SegmenterError: a file cannot be read or written.
    """
    runs = [load_run(path) for path in given if (path / RUN_FILE).is_file()]
    images = images_of_maps(points) if runs else {}
    maps = maps_in(path for path in given if not (path / RUN_FILE).is_file())
    drawn = {
        path: at for path in maps for name, at in (mapped or {path.name: ()}).items() if _is_of(path, name)
    }
    if maps and not drawn:
        raise DatasetError(
            maps[0], expected=f"maps that {points} was drawn from: {', '.join(sorted(mapped or ())[:3])}"
        )
    for run in runs:
        _check_classes(found, run.path, run.classes.names)
        _check_weights(run, points, mapped, drawn)
    of = f"{len(mapped)} maps together: " if mapped and len(mapped) > 1 else ""
    texts = {"ACCURACY": account.head(found), "AREAS": of + "; ".join(account.sentences(found, unit))}
    sidecars = {
        path.with_name(f"{path.name}.aux.xml"): _describe(found, path, texts, at)
        for path, at in drawn.items()
    }
    for path, content in sidecars.items():
        write_whole(path, content)
    shown = unit_for(unit, found.sample.total)
    table = {"titles": account.titles(shown), "rows": list(account.class_rows(found, shown))}
    for run in runs:
        facts = account.as_json(found, unit)
        if learnt := _learnt(run, images):
            warn(plain(f"{run.path}: {learnt}"))
            facts["remarks"] = [*facts["remarks"], learnt]
        save_accuracy(run, {"source": points.name, "head": texts["ACCURACY"], **table, **facts})
    return [*drawn, *(run.path for run in runs)]


def _learnt(run: Run, images: Mapping[str, str]) -> str:
    """Return a remark on maps of scenes that trained the run; empty if there are none."""
    known = load_scenes(run.path)
    if known is None or not known.told:
        return "which scenes trained the run is not known, and so whether its accuracy there flatters"
    seen = [name for name, image in images.items() if known.trained_on(image)]
    if not seen:
        return ""
    maps = counted(len(images), "map is", "maps are")
    return f"{len(seen)} of {maps} of scenes that trained the run, as {seen[0]}: there its accuracy flatters"


def _check_classes(found: Estimates, path: Path, names: Sequence[str]) -> None:
    if unknown := [name for name in found.sample.classes if name not in names]:
        raise DatasetError(
            path, expected="the classes of the sample", got=", ".join(names), remedy=f"it has no {unknown[0]}"
        )


def _check_weights(run: Run, points: Path, mapped: Drawn | None, drawn: Iterable[Path]) -> None:
    """Refuse maps that other weights made, or of which nothing tells it: their accuracy is not this run's."""
    noted = {} if mapped is None else weights_of_maps(points)
    made: list[tuple[str, str]] = [(name, noted.get(name, "")) for name in mapped or ()]
    for path in drawn:
        with WrittenMap(path, with_confidence=False) as one:
            made = [(name, its or one.weights) if _is_of(path, name) else (name, its) for name, its in made]
            made.append((str(path), one.weights))
    mine = run.fingerprint()
    for name, weights in made or [(str(points), "")]:
        if not weights:
            raise DatasetError(
                run.path,
                expected="maps that name the weights that made them",
                got=f"{name}, which names none",
                remedy=f"give the maps too, --keep MAPS --keep {quote_path(run.path)}; those of earlier "
                f"versions name none, {invocation('predict')} --redo makes them anew",
            )
        if weights != mine:
            several = "," in weights
            raise DatasetError(
                run.path,
                expected="maps of its weights",
                got=f"{name}, of {'several runs' if several else 'other weights'}",
                remedy=f"keep it in {'' if several else 'the run that made the maps, or in '}the maps alone",
            )


def _is_of(path: Path, name: str) -> bool:
    """Return whether a map is the one of this name in a sample: the end of its path."""
    return str(path.absolute()).endswith(f"/{name}")


def _describe(
    found: Estimates, path: Path, texts: Mapping[str, str], drawn: Sequence[tuple[int, int, str]]
) -> bytes:
    """Return GDAL's metadata beside a map, with the texts in place of earlier ones."""
    with WrittenMap(path, with_confidence=False) as one:
        names = [each.name for each in one.classes]
        _check_classes(found, path, names)
        _check_points(one, names, drawn)
    sidecar = path.with_name(f"{path.name}.aux.xml")
    root: Any = ET.Element("PAMDataset")
    if sidecar.exists():
        root = ET.fromstring(read_regular(sidecar))  # whole: it was looked at with the map
    items = next((each for each in root.findall("Metadata") if not each.get("domain")), None)
    items = ET.SubElement(root, "Metadata") if items is None else items
    for item in [each for each in items if each.get("key") in texts]:
        items.remove(item)
    for name, text in texts.items():
        child(items, "MDI", text, key=name)
    return document(root)


def _check_points(one: WrittenMap, names: Sequence[str], drawn: Sequence[tuple[int, int, str]]) -> None:
    for row, col, mapped in drawn:
        there = int(one.read(Window(row, col, 1, 1))[0][0, 0])
        if mapped in names and there != names.index(mapped):
            raise DatasetError(
                one.info.path,
                expected=f"{mapped} in row {row}, column {col}, as at a point of the sample",
                got=names[there] if there < len(names) else "no data",
                remedy="is it another map of that name?",
            )
