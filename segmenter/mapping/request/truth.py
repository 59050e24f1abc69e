"""Images of a call and labels to score them: inputs and a pattern, or a recipe's split."""

from __future__ import annotations

import bisect
import functools
import glob
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from segmenter.base.addresses import is_address, mask_secrets
from segmenter.base.errors import DatasetError, SegmenterError, counted
from segmenter.base.files import caches, is_vector, matches, real
from segmenter.base.terminal import say
from segmenter.base.threads import in_threads
from segmenter.grid.labels import ClassMap
from segmenter.grid.scenes import SPLITS, Dataset, Layout
from segmenter.mapping.request.inputs import (
    BandFiles,
    Inputs,
    find_inputs,
    output_names,
    readable,
    scenes_of_bands,
)
from segmenter.mapping.request.map_request import MapRequest, check_split
from segmenter.raster import raster_info
from segmenter.raster.band_stack import StackedImages
from segmenter.raster.ground import both_placed
from segmenter.raster.made import MadeLabels
from segmenter.raster.masks import MaskLabels
from segmenter.raster.placement import PlacedLabels

if TYPE_CHECKING:
    from segmenter.mapping.jobs import MapJob
    from segmenter.runs.ensemble import AnyRun

_LOOKING_THREADS = 4
_BANDS_IN_NAME = re.compile(r"_(RGB|IRRG|RGBIR)$")
_WILD = re.compile(r"\[([*?[])\]|\*|\?|\[[^\]]*\]?")
_PLACEHOLDER = re.compile(r"\{([^}]*)\}")
Labels = Mapping[Path, Path | SegmenterError]
"""Image → its label, or why it has none."""
GsdOf = Callable[[Path, float | None], float | None]
Shown = Mapping[Path, tuple[Path, Path]]
"""Image → the file that its outputs are named after, and that whose name has the recipe's form."""


PolygonReader = Callable[["AnyRun", str], MadeLabels]
"""Function from a run, whose recipe has the rule for polygons, and the argument that names them to labels."""


def by_georeference(image: Path, metres: float | None) -> float | None:
    """Return the metres a pixel by georeference of an image that belongs to no dataset."""
    return metres


@dataclass(frozen=True)
class Truth:
    """Labels of a call's images.

    Attributes:
        asked: the arguments that define them, for messages.
        files: label of each image, or the error why it has none.
        classes: class map of the labels, in the order of the run's classes.
        kind: kind of labels: full or eroded.
        split: name of the scored split, for the record.
        scenes: scene name of each image in scores; the map's name if missing.
        blocks: images whose label is of some blocks of them alone.
        groups: group of each image's scene in its data set; none for labels by a pattern.
        scale_of: function from an image and its georeference's metres a pixel to the scale to use.
    """

    asked: str
    files: Labels
    classes: ClassMap
    kind: Literal["full", "eroded"]
    split: str
    scenes: Mapping[Path, str] = field(default_factory=dict)
    scale_of: GsdOf = by_georeference
    blocks: frozenset[Path] = frozenset()
    groups: Mapping[Path, str] = field(default_factory=dict)

    def label(self, image: Path) -> Path:
        """Return the label of an image (SegmenterError: the image has no label)."""
        label = self.files[image]
        if isinstance(label, SegmenterError):
            raise label
        return label


@dataclass(frozen=True)
class Images:
    """Images of a call, and labels to score their maps.

    Attributes:
        names: unique name of each image's outputs.
        truth: labels; None: nothing is scored.
        bands: bands of the image files, if the recipe lists others than the run.
        layout: layout of the images' dataset; no output may match its file patterns.
    """

    inputs: Inputs
    names: Mapping[Path, str]
    truth: Truth | None = None
    bands: tuple[int, ...] | None = None
    layout: Layout | None = None


def images_of_inputs(
    request: MapRequest, run: AnyRun, layout: Layout | None = None, polygons: PolygonReader | None = None
) -> Images:
    """Find the files of a request's inputs, and the labels that its pattern matches.

    Args:
        layout: layout of the run's dataset, whose fields the pattern may use; required for labels.
        polygons: reader of polygon labels.

    Raises:
        DatasetError: an input matches nothing, or the pattern is invalid.
    """
    inputs, shown = shown_images(
        request.inputs, layout, output=request.output, remote=request.remote, drivers=request.drivers
    )
    truth = None
    if request.labels is not None:
        if layout is None:
            raise DatasetError(
                f"--labels {request.labels}", expected="the layout of the run's dataset with it"
            )
        named_like = {image: first for image, (_, first) in shown.items()}
        truth = labels_by_pattern(request, request.labels, layout, named_like, run, polygons)
    names = output_names(name for name, _ in shown.values())
    return Images(inputs, {image: names[name] for image, (name, _) in shown.items()}, truth)


def shown_images(
    given: Sequence[str],
    layout: Layout | None,
    *,
    output: Path | None = None,
    remote: bool = False,
    drivers: Sequence[str] = (),
) -> tuple[Inputs, Shown]:
    """Return the files that inputs match, bands of a scene in one, and their names; see `find_inputs`.

    Args:
        layout: layout of the run's dataset, which says which files are bands of a scene.

    Raises:
        DatasetError: an input matches nothing.
    """
    scenes, others = scenes_of_bands(given, layout)
    inputs = find_inputs(others, output, remote=remote) if others else Inputs((), (), ())
    shown: dict[Path, tuple[Path, Path]] = {path: (path, path) for path in inputs.files}
    if scenes and layout is not None:
        shown |= _stack_bands(scenes, layout, drivers)
        folders = *inputs.folders, *(folder for folder, _, _ in scenes)
        inputs = replace(inputs, files=tuple(shown), folders=tuple(dict.fromkeys(folders)))
    return inputs, shown


def _stack_bands(scenes: Sequence[BandFiles], layout: Layout, drivers: Sequence[str]) -> Shown:
    """Make one raster of each scene in the user's cache; print its path."""
    stacks = StackedImages(caches() / "scenes", layout.grid, drivers)
    made = in_threads(
        lambda scene: stacks.image(str(scene.files[0].parent / scene.name), scene.files),
        scenes,
        description="bands of scenes into one file",
        unit="scene",
        workers=2,
    )
    images = {
        image: (Path(f"{scene.name}.tif"), scene.files[0]) for scene, image in zip(scenes, made, strict=True)
    }
    stacks.tidy()
    say(
        f"{counted(len(scenes), 'scene')} of {len(layout.bands)} files each, brought into one GeoTIFF each "
        f"in {stacks.path}"
    )
    return images


def labels_by_pattern(
    request: MapRequest,
    pattern: str,
    layout: Layout,
    images: Mapping[Path, Path],
    run: AnyRun,
    polygons: PolygonReader | None = None,
) -> Truth:
    """Find the labels of inputs by `--labels`; a missing label is reported when its image is processed.

    A raster shared by several images is aligned by georeference, and so are labels of a run whose recipe sets
    this. `{class}` is each class of a run whose labels are masks.

    Args:
        images: for each image, the file whose name gives the fields.

    Raises:
        DatasetError: the pattern is invalid.
    """
    codes = layout.masks if "{class}" in pattern else None
    wanted = [
        (code, LabelPattern(pattern.replace("{class}", name), layout))
        for name, code in (codes or {"{class}": 0}).items()
    ]
    asked, classes, shared = f"--labels {pattern}", run.classes, not wanted[0][1].has_fields
    masks: MaskLabels | None = None
    if (codes or layout.masks == {}) and not is_vector(pattern):
        masks = MaskLabels(caches() / "labels", layout.classes or classes, request.drivers)
        classes = masks.classes

    lacking: list[LabelPattern] = []

    def label(image: Path) -> Path | SegmenterError:
        try:
            there = [(code, one) for code, one in wanted if one.files(images[image])] or wanted
            files = [(code, one.label(images[image])) for code, one in there]
            lacking.extend(one for code, one in wanted if (code, one) not in there)
            return files[0][1] if masks is None else masks.join(str(real(image)), files)
        except SegmenterError as error:
            return error

    with ThreadPoolExecutor(_LOOKING_THREADS) as pool:
        files: Labels = dict(zip(images, pool.map(label, images), strict=True))
    if lacking:
        say(f"{asked}: {counted(len(lacking), 'mask is', 'masks are')} not there: no such class")
    made: MadeLabels | None = None
    if is_vector(pattern) and polygons is not None:
        made = polygons(run, asked)
    elif (shared and len(images) > 1) or layout.by_georeference:
        theirs = layout.classes if layout.classes and masks is None else classes
        made = PlacedLabels(caches() / "labels", theirs, request.drivers)
    if made is not None:
        files, classes = _on_images(files, made, shared=shared), made.classes
    return Truth(asked, files, classes, request.label_kind or run.labels, request.split_name or "unstated")


def _on_images(labels: Labels, files: MadeLabels, *, shared: bool) -> Labels:
    """Return labels resampled to the grid of each image, in place of their sources."""

    def made(image: Path) -> Path | SegmenterError:
        source = labels[image]
        if isinstance(source, SegmenterError):
            return source
        try:
            label = files.label(str(real(image)), image, source, shared=shared)
        except SegmenterError as error:
            return error
        return label or DatasetError(image, f"no label of {source} lies on it")

    rasters = in_threads(made, list(labels), description="labels onto images", unit="label")
    files.tidy()
    return dict(zip(labels, rasters, strict=True))


class LabelPattern:
    """Path or glob pattern with fields of an image's name in braces.

    Without fields it names one file for all images.

    `{stem}` is the image's name without its extension, `{scene}` that without a trailing `_RGB`, `_IRRG` or
    `_RGBIR`. Other fields come from the recipe: `{names}` in its image pattern, Potsdam's `{row}` and
    `{column}`, NAIC2020's `{name}`. A recipe's field called stem or scene has priority.

    Args:
        layout: layout of the recipe's dataset.

    Raises:
        DatasetError: a field is unknown.
    """

    def __init__(self, text: str, layout: Layout) -> None:
        self.text, self._layout = text, layout
        self._template = re.sub("/+", "/", text)
        self._used = list(dict.fromkeys(_PLACEHOLDER.findall(text)))
        fields = dict.fromkeys(("stem", "scene", *layout.names))
        if unknown := [name for name in self._used if name not in fields]:
            names = [f"{{{name}}}" for name in fields]
            listed = f"{', '.join(names[:-1])} and {names[-1]}"
            raise DatasetError(f"--labels {text}", f"unknown {{{unknown[0]}}}", remedy=f"known are {listed}")

    @property
    def has_fields(self) -> bool:
        """True if each image has its own label file; False for one file for all."""
        return bool(self._used)

    def label(self, image: Path) -> Path:
        """Return the one label file of an image."""
        files = self.files(image)
        if len(files) != 1:
            names, plain = ", ".join(map(str, files[:3])) or "none", self._fill(self._fields(image), str)
            within = f"name its files: --labels '{self.text}/{{stem}}.*'" if Path(plain).is_dir() else ...
            raise DatasetError(image, expected=f"one label file {plain}, found {names}", remedy=within)
        return files[0]

    def files(self, image: Path) -> list[Path]:
        """Return the files that match for an image."""
        fields = self._fields(image)
        plain = self._fill(fields, str)
        with readable(plain):
            if Path(plain).is_file():
                return [Path(plain)]
        if not glob.has_magic(_PLACEHOLDER.sub("", self.text)):
            return []
        paths = self._listed.matching(self._fill(fields, glob.escape))
        return [Path(path) for path in paths if Path(path).is_file()]

    @functools.cached_property
    def _listed(self) -> _Listed:
        return _Listed(matches(self._fill(dict.fromkeys(self._used, "*"), str)))

    def _fields(self, image: Path) -> dict[str, str]:
        own = {"stem": image.stem, "scene": _BANDS_IN_NAME.sub("", image.stem)}
        of_recipe = self._layout.fields(image) if {*self._used} & {*self._layout.names} else None
        fields = {**own, **(of_recipe or {})}
        if missing := [name for name in self._used if name not in fields]:
            raise DatasetError(
                image,
                expected=f"a path like {self._layout.form}, as the recipe has it, for {{{missing[0]}}} in "
                f"--labels {self.text}",
                remedy="or use {stem}",
            )
        return fields

    def _fill(self, fields: Mapping[str, str], written: Callable[[str], str]) -> str:
        return _PLACEHOLDER.sub(lambda match: written(fields[match[1]]), self._template)


_KEYS: tuple[Callable[[str], str], ...] = (str, os.path.basename, lambda path: path[::-1])
"""Orders of paths: a pattern is literal at its beginning, at that of its last part, or at its end."""


class _Listed:
    """Paths in which those that match a glob pattern are found without looking at each of them.

    For as many images as labels, that would be the square of their number.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self._orders = [sorted((key(path), path) for path in paths) for key in _KEYS]

    def matching(self, pattern: str) -> list[str]:
        """Return the paths that match, sorted; `**` stands for any folders."""
        parts = [part for part in pattern.split("/") if part]
        alike = []
        for key, order in zip(_KEYS, self._orders, strict=True):
            begun = _literal_head(pattern, key)
            first = bisect.bisect_left(order, (begun,))
            alike.append(order[first : bisect.bisect_right(order, (begun + chr(sys.maxunicode),), first)])
        found = (path for _, path in min(alike, key=len))
        return sorted(path for path in found if _fits([part for part in path.split("/") if part], parts))


def _literal_head(pattern: str, key: Callable[[str], str]) -> str:
    """Return the beginning of a pattern's key that has no wildcard."""
    wild = _WILD.sub(lambda match: match[1] or "\0", pattern)  # an escaped character is that character
    return key(wild).partition("\0")[0]


def _fits(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_fits(parts[start:], pattern[1:]) for start in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _fits(parts[1:], pattern[1:])


def check_root(root: str, remote: bool, recipe: Path) -> None:
    """Refuse a recipe whose scenes lie at an address, unless the call allows addresses.

    A run may come from a stranger, so a server in its recipe must not be contacted without permission.
    """
    if is_address(root) and not remote:
        raise DatasetError(
            recipe,
            f"its scenes lie at {mask_secrets(root)}",
            remedy="addresses are opened only with --remote",
        )


def images_of_split(dataset: Dataset, layout: Layout, split: str, run: AnyRun, recipe: Path) -> Images:
    """Return the scenes of a split with their labels; output names are unique over all splits.

    Args:
        recipe: the recipe that describes the dataset, for messages.

    Raises:
        DatasetError: the split has no scenes, or the dataset has other classes than the run.
    """
    check_split(split)
    scenes = [scene for scene in dataset.scenes if scene.split == split]
    if not scenes:
        counts = ", ".join(f"{len(dataset.of(each))} {each}" for each in SPLITS if dataset.of(each))
        raise DatasetError(
            recipe,
            expected=f"scenes of the split {split}, it has {counts or 'none'}",
            remedy="name some in dataset.split, or another recipe with --recipe",
        )
    named_after = {s.image: Path(f"{s.name}.tif") if s.files else s.image for s in dataset.scenes}
    names = output_names(named_after.values())
    by_image = {scene.image: scene for scene in scenes}
    truth = Truth(
        f"--split {split}",
        {
            scene.image: scene.label or DatasetError(scene.image, f"scene {scene.name} has no label")
            for scene in scenes
        },
        _in_order_of(run.classes, dataset.classes, recipe),
        dataset.labels,
        split,
        {scene.image: scene.name for scene in scenes},
        lambda image, metres: dataset.scale_of(by_image[image], metres),
        frozenset(scene.image for scene in scenes if scene.blocks),
        {scene.image: scene.group for scene in scenes},
    )
    inputs = Inputs(tuple(scene.image for scene in scenes), (), ())
    bands = None if dataset.bands == run.bands else dataset.bands
    return Images(inputs, {image: names[named_after[image]] for image in inputs.files}, truth, bands, layout)


def _in_order_of(ours: ClassMap, theirs: ClassMap, recipe: Path) -> ClassMap:
    """Return a dataset's class map in the order of the run's ids, by the classes' names."""
    if different := sorted({*ours.names} ^ {*theirs.names}):
        whose = "the run" if different[0] in ours.names else "the recipe"
        raise DatasetError(
            recipe,
            expected=f"the classes of the run ({', '.join(ours.names)})",
            got=", ".join(theirs.names),
            remedy=f"only {whose} has {different[0]}",
        )
    by_name = {each.name: each for each in theirs.classes}
    return replace(theirs, classes=tuple(by_name[name] for name in ours.names))


def check_shared(truth: Truth, jobs: Sequence[MapJob]) -> None:
    """Refuse one label file for several images, unless its georeference shows that it covers each."""
    files = {image: real(label) for image, label in truth.files.items() if isinstance(label, Path)}
    images: dict[Path, list[Path]] = {}
    for image, label in files.items():
        images.setdefault(label, []).append(image)
    for job in jobs:
        if job.label is None:
            continue
        sharing = images[files[job.info.path]]
        if len(sharing) > 1 and not both_placed(job.info, raster_info(job.label)):
            raise DatasetError(
                truth.asked,
                expected="a label file for each image",
                got=f"{job.label} for {sharing[0]} and for {sharing[1]}, and no georeference that says "
                "where it lies",
                remedy="use one call for each folder, or --split",
            )
