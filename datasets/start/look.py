"""Look at a folder that nobody described: all settings of its section `dataset`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from segmenter.base.errors import DatasetError, counted
from segmenter.base.files import is_vector
from segmenter.config.datasets import FolderConfig
from segmenter.config.reading import recipe_from
from segmenter.grid.scenes import Dataset
from segmenter.raster import KnownRasters, RasterInfo, crs_title, quiet_gdal

from .. import load_dataset
from ..check import image_lines
from ..contents import Contents
from ..files import few
from ..folder import IMAGELESS, SPELT, UNLABELLED, ScenesOfOtherFilesError, load_folder
from ..gsd import gsd_line
from ..made import SKIPPED, MadeFilesError
from .choice import Choice, limit_questions, nest_choices
from .classes import SPARSE, asked_of_tag, class_choices, is_tag_a_class, mask_choices
from .folder_facts import find_pairs, refuse_sheets
from .headers import Damaged, SeenScene, headers, parts_with_images, unreadable
from .legends import find_legend
from .lists import told_splits
from .names import Patterns
from .pixels import count_objects
from .polygons import polygon_choices
from .published import published_legend, published_settings
from .sight import DataPlace, drivers_of, place_of
from .values import LabelValues, Tally, count_values, palette_of_any, whereabouts

_LEAVE_OUT = "dataset.split.leave_out"
_MOST_KINDS = 3
"""Kinds of images that a reason names."""
_MOST_LEFT = 0.2
"""Share of the images with a label above which leaving them out is no plan."""
_OBJECT_LABELS = 12
"""Labels that are looked at for objects."""
_FEWEST_OBJECTS = 10
"""Values from which labels may number objects."""


def look(data: Path, labels: Path | None = None, contents: Contents | None = None) -> tuple[Choice, ...]:
    """Return the settings of section `dataset` that follow from a folder's files, without split.

    Only a split that folders hold is among them. Labels are read whole, then images: what cannot be read is
    left out.

    Args:
        labels: see `place_of`.
        contents: takes in what is read, for those who read on; None: nobody does.

    Raises:
        DatasetError: there is no reading of the folder as a data set; the line says what was looked for.
        LabelError: values of labels are no classes.
    """
    quiet_gdal()
    place = place_of(data, labels)
    contents = contents or Contents()
    if known := published_settings(place):
        kind, others = known[0], known[1:]
    else:
        kind = Choice("dataset.kind", "folder", "no published layout: any folder of images and labels")
        others = tuple(_choices(place, find_pairs(place), contents))
    unreadable = sum(sight.info is None for sight in place.looked.values())
    remark = f"; {counted(unreadable, 'file')} cannot be read" if unreadable else ""
    told = "; ".join(place.findings)
    why = "; ".join([f"{counted(len(place.paths), 'file')} below it{remark}", *place.findings])
    root = Choice("dataset.root", place.text, why, left=told)
    return (kind, root, *others) if known else limit_questions(_loadable((kind, root, *others)))


def _loadable(choices: tuple[Choice, ...]) -> tuple[Choice, ...]:
    """Return the choices once they load; scenes are left out whose files cannot be read or joined.

    So are images that a label for all does not reach.

    Raises:
        DatasetError: so are too many of the images with a label of their own.
    """
    skip = Choice("dataset.unlabelled", "skip", "")
    try:
        dataset = load_dataset(
            recipe_from({"name": "start", **nest_choices((*choices, skip))}, "what was seen")
        )
    except MadeFilesError as error:
        return _loadable(_leave_out_faults(choices, error))
    beside = [path.name for path, why in dataset.unused if why == SKIPPED]
    why = f"no label lies on {counted(len(beside), 'image')}: {few(beside, 2)}"
    if beside and any(choice.key == "dataset.labels_by" for choice in choices):
        total = len(dataset.scenes) + len(beside)
        skip = replace(
            skip,
            left=_describe_left_out(
                dataset.root, total, dict.fromkeys(beside, f"{why}, though names pair them")
            ),
        )
    return (*choices, replace(skip, reason=why)) if beside else choices


def _leave_out_faults(choices: tuple[Choice, ...], error: MadeFilesError) -> tuple[Choice, ...]:
    """Return the choices without the scenes of which no file can be made.

    Raises:
        MadeFilesError: so are more than a fifth of the scenes.
    """
    others = tuple(choice for choice in choices if choice.key != _LEAVE_OUT)
    known = [name for choice in choices if choice.key == _LEAVE_OUT for name in choice.value]
    left, total = {**error.faults, **dict.fromkeys(known, "")}, error.scenes + len(known)
    if len(left) > _MOST_LEFT * total:
        raise error
    told = _describe_left_out(Path(nest_choices(choices)["dataset"]["root"]), total, left)
    return (*others, Choice(_LEAVE_OUT, sorted(left), told, left=told))


def _describe_left_out(root: Path, total: int, left: Damaged) -> str:
    """Return what is said of scenes that are left out.

    Raises:
        DatasetError: they are more than a fifth of the scenes with a label.
    """
    first = next(iter(left.values())).replace(f"{root}/", "")
    told = f"{len(left)} of {counted(total, 'scene')} {'is' if len(left) == 1 else 'are'} left out: {first}"
    if len(left) > _MOST_LEFT * total:
        raise DatasetError(
            root,
            expected="images that can be read, and labels that fit them",
            got=f"{len(left)} of {total} with a fault, as {first}",
            remedy="mend these files, or move them out of the folder",
        )
    return told


def _choices(place: DataPlace, facts: Patterns, contents: Contents) -> Iterator[Choice]:
    root, vector = place.root, is_vector(facts.labels)
    drivers = list(dict.fromkeys(d for path in (*facts.images, facts.labels) for d in drivers_of(path)))
    dataset, lacking = _scenes(place, facts, drivers)
    if not vector and not facts.shared:
        _refuse_sheets(place, dataset)
    tallies: dict[str, Tally] = {}
    kept = None if vector or facts.masks else tallies
    seen = headers(dataset, contents, kept, vector=vector, shared=facts.shared)
    placed = not vector and (facts.shared or any(each.elsewhere for each in seen))
    left = {each.scene.name: each.fault for each in seen if each.fault and not (placed and each.elsewhere)}
    left |= lacking
    used = [each for each in seen if each.scene.name not in left]
    if not used:
        raise DatasetError(
            root, f"none of {counted(len(left), 'image')} can be used: {next(iter(left.values()))}"
        )
    yield from _file_choices(facts, [each.image for each in seen if each.image], drivers, dataset)
    if placed and not facts.shared:
        off = sum(each.elsewhere for each in seen)
        why = f"{off} of {counted(len(seen), 'label')} lie on another grid than their images"
        yield Choice("dataset.labels_by", "georeference", why)
    if vector:
        images = [each.image for each in used if each.image is not None]
        damaged = yield from polygon_choices(root, sorted({each.paths[1] for each in used}), images)
    elif facts.masks:
        damaged = yield from mask_choices(root, facts, [each.scene for each in used], drivers)
    else:
        damaged = yield from _value_choices(place, facts, used, tallies, contents.files, placed)
    left |= {each.scene.name: damaged[each.paths[1]] for each in used if each.paths[1] in damaged}
    used = [each for each in used if each.scene.name not in left]
    poor = _of_fewer_bands(used)
    if len(left) + len(poor) <= _MOST_LEFT * len(seen):
        left |= poor
        used = [each for each in used if each.scene.name not in left]
    yield from (
        about_images := list(
            _image_choices(dataset, used or seen, {} if poor.keys() <= left.keys() else poor)
        )
    )
    bands = nest_choices(about_images).get("dataset", {}).get("bands")
    left |= unreadable(contents, [each for each in used if each.scene.name not in left], bands and (*bands,))
    used = [each for each in used if each.scene.name not in left]
    if left:
        told = _describe_left_out(root, len(seen) + len(lacking), left)
        yield Choice(_LEAVE_OUT, sorted(left), told, left=told)
    yield from told_splits(place, facts.splits, [each.scene for each in used])


def _refuse_sheets(place: DataPlace, dataset: Dataset) -> None:
    """Refuse labels that are larger sheets of a map, of which images find only those of their own name."""
    alone = [path.relative_to(dataset.root).as_posix() for path, why in dataset.unused if why == UNLABELLED]
    labels = [scene.label.relative_to(dataset.root).as_posix() for scene in dataset.scenes if scene.label]
    if len(alone) > _MOST_LEFT * (len(alone) + len(labels)):
        refuse_sheets(place, (), labels, alone)


def _scenes(place: DataPlace, facts: Patterns, drivers: list[str]) -> tuple[Dataset, Damaged]:
    """Return the scenes that the patterns give, whose classes are not known yet, and those that lack a file.

    Raises:
        DatasetError: two files of one scene, or labels without an image; the line says how files were taken.
    """
    files = {"images": list(facts.images), "labels": facts.labels, "drivers": drivers, "unlabelled": "skip"}
    classes = [
        {"name": name, "code": code}
        for code, name in enumerate(facts.masks or ["unknown"], bool(facts.masks))
    ]
    held = {"encoding": "masks" if facts.masks else "codes", "classes": classes}
    data = {"kind": "folder", "root": place.text, **files, **held}
    try:
        try:
            return load_folder(FolderConfig.model_validate(data)), {}
        except ScenesOfOtherFilesError as error:
            whole = data | {"split": {"leave_out": sorted(error.faults)}}
            return load_folder(FolderConfig.model_validate(whole)), error.faults
    except DatasetError as error:
        taken = f"images are taken to be {facts.images[0]}, labels {facts.labels}"
        raise DatasetError(f"{error} ({taken})") from None


# ------------------------------------------------------------------------------------------------- choices


def _file_choices(
    facts: Patterns, infos: Sequence[RasterInfo], drivers: list[str], dataset: Dataset
) -> Iterator[Choice]:
    lines = list(image_lines([(info, tuple(range(1, info.count + 1))) for info in infos]))
    more = f"; {len(lines) - _MOST_KINDS} more kinds" if len(lines) > _MOST_KINDS else ""
    others = list(facts.others[0])
    if spelt := [path.name for path, why in dataset.unused if why == SPELT]:
        others.append(f"also {counted(len(spelt), 'file')} spelt otherwise: {few(spelt, 2)}")
    images = list(facts.images) if len(facts.images) > 1 else facts.images[0]
    of = len({scene.label for scene in dataset.scenes})
    dates = f"{counted(len(dataset.scenes), 'image')} of several dates share {counted(of, 'label')} by name: "
    question = f"{dates}are the labels of one date alone?" if facts.one_date else ""
    instead = {"dataset.images": facts.one_date} if facts.one_date else {}
    reason = "; ".join(lines[:_MOST_KINDS]) + more
    yield Choice("dataset.images", images, reason, "; ".join(others), question, instead)
    if drivers:
        yield Choice("dataset.drivers", drivers, "images are JPEG 2000")
    why = f"{counted(len(dataset.scenes), 'label')} found by the names of the images"
    if facts.shared:
        why = f"one file for {counted(len(dataset.scenes), 'image')}, placed by georeference"
    rival = f"{facts.rival} may be the labels of the same images as well: are they?" if facts.rival else ""
    instead = {"dataset.labels": facts.rival} if rival else {}
    yield Choice("dataset.labels", facts.labels, why, "; ".join(facts.others[1]), rival, instead)
    alone = [
        f"{counted(len(own), what)} {reason.partition(' (')[0]}: {few(own, 2)}"
        for what, reason in (("image", UNLABELLED), ("label", IMAGELESS))
        if (own := [path.name for path, why in dataset.unused if why == reason])
    ]
    if alone:
        yield Choice("dataset.unlabelled", "skip", "; ".join(alone))


def _value_choices(
    place: DataPlace,
    facts: Patterns,
    used: Sequence[SeenScene],
    tallies: dict[str, Tally],
    files: KnownRasters,
    placed: bool,
) -> Generator[Choice, None, Damaged]:
    infos = {each.paths[1]: each.label for each in used if each.label is not None}
    root = place.root
    values = count_values(root, infos, tallies, files, parts_with_images(used) if placed else {})
    colours = values.encoding == "colours"
    stored = {info.nodata[0] for info in infos.values()}
    tags = {int(tag) for tag in stored if tag is not None and 0 <= tag < 0xFFFF}
    tag = next(iter(tags)) if values.void and len(stored - {None}) == len(tags) == 1 and not colours else None
    legend = find_legend(root, sorted(place.stored.values()), list(values.pixels), colours=colours)
    if not legend.entries:
        legend = published_legend(" ".join((*facts.images, facts.labels)), values.pixels, colours=colours)
    if not legend.entries and not palette_of_any(infos):
        values = values.as_codes()
    if not legend.entries:
        _refuse_objects(place, used, values)
    pairs = [
        (
            [path.relative_to(root).as_posix() for path in each.scene.files or (each.scene.image,)],
            each.paths[1],
        )
        for each in used
    ]
    places = cache(partial(whereabouts, root, pairs, colours=colours, tallies=tallies, files=files))

    def choices(of: LabelValues) -> list[Choice]:
        return list(class_choices(of, legend, places))

    if tag is not None:
        # The tag may be the code of a class.
        pixels = Counter(values.pixels)
        pixels[tag] += values.void  # files without the tag hold it, too
        tagged = replace(values, pixels=dict(sorted(pixels.items())))
        likely, doubtful = is_tag_a_class(tagged, tag, legend)
        chosen = choices(tagged if likely else values)
        if doubtful and places(tag).empty < SPARSE:
            chosen = asked_of_tag(chosen, choices(values if likely else tagged), tagged, tag, likely)
        values = tagged if likely else values
    else:
        chosen = choices(values)
    ask = [each for each in chosen if each.key == "dataset.label_nodata"]
    yield from (each for each in chosen if each not in ask)
    why = f"{counted(values.void, 'pixel')} that label files mark as nodata or transparent"
    if len(tags) > 1 and (held := sorted(tags & values.pixels.keys())) and not colours:
        ask = [_asked_of_tags(tags, held[0], nest_choices(chosen)["dataset"].get("ignore", ()))]
    if values.void and tag not in values.pixels:
        usual = Choice("dataset.label_nodata", "ignore", why, "class, if that value is one")
        yield replace(ask[0], reason=why) if ask else usual
    elif values.void and tag not in nest_choices(chosen)["dataset"].get("ignore", ()):
        usual = Choice("dataset.label_nodata", "class", f"{why}; images have data there", "ignore")
        yield replace(ask[0], reason=usual.reason) if ask else usual
    return values.damaged


def _asked_of_tags(tags: set[int], held: int, ignored: Iterable[int]) -> Choice:
    """Return the question whether a value is a class that is nodata of some labels and a value of others."""
    told = " or ".join(map(str, sorted(tags)))
    question = f"labels have {told} as nodata, and {held} is a value of others: is it a class in all of them?"
    instead = {
        "dataset.label_nodata": "class",
        "dataset.ignore": sorted({*ignored, *tags} - {held}),
    }
    return Choice("dataset.label_nodata", "ignore", "", question=question, instead=instead)


def _refuse_objects(place: DataPlace, used: Sequence[SeenScene], values: LabelValues) -> None:
    """Refuse labels that number objects: their values are no classes.

    Raises:
        DatasetError: values are one area each, and count the objects of an image or are in one image alone.
    """
    if len(values.pixels) < _FEWEST_OBJECTS:
        return
    paths = sorted({each.paths[1] for each in used})
    some = [path for path in paths[:: -(-len(paths) // _OBJECT_LABELS)] if path not in values.damaged]
    if count := count_objects([place.codes(path) for path in some]):
        raise DatasetError(
            "labels",
            expected="a value for each class",
            got=f"numbers of objects: {len(values.pixels)} values, up to {count} in a label, one area each",
            remedy="--labels names labels of classes; of objects of one class, a recipe's class has "
            "`also: ['1-…']` (docs/data.md)",
        )


def _of_fewer_bands(seen: Sequence[SeenScene]) -> Damaged:
    """Return scene → text for those whose images have fewer bands than most."""
    counts = Counter(each.image.count for each in seen if each.image is not None)
    usual = counts.most_common(1)[0][0] if counts else 0
    return {
        each.scene.name: f"{each.paths[0]}: {counted(each.image.count, 'band')}, where most have {usual}"
        for each in seen
        if each.image is not None and each.image.count < usual
    }


def _image_choices(dataset: Dataset, seen: Sequence[SeenScene], poor: Damaged) -> Iterator[Choice]:
    """Yield bands and scale of the images.

    Args:
        poor: scenes of fewer bands than most, which are too many to be left out unasked.
    """
    images = [(each.scene, each.image) for each in seen if each.image is not None]
    measured, counts = max(each.measured for each in seen), Counter(info.count for _, info in images)
    if measured or len(counts) > 1:
        why = "images differ: " + ", ".join(f"{n} of {count} bands" for count, n in counts.most_common())
        if len(counts) == 1:
            why = f"band {measured} is tagged as alpha, but holds measurements and no mask"
        bands = Choice("dataset.bands", list(range(1, min(counts) + 1)), why)
        if poor:
            usual = counts.most_common(1)[0][0]
            few_bands = f"{counted(len(poor), 'image')} of fewer bands than {usual}"
            question = f"{few_bands}: leave them out, and use all bands of the others?"
            instead = {"dataset.bands": list(range(1, usual + 1)), _LEAVE_OUT: sorted(poor)}
            bands = replace(bands, question=question, instead=instead)
        yield bands
    if scales := gsd_line(dataset, images):
        names = Counter(crs_title(info.crs) for _, info in images if info.crs is not None)
        why = f"{scales}, {few([name for name, _ in names.most_common()], 3)}"
        yield Choice("dataset.metres_per_pixel", "georeference", why)
