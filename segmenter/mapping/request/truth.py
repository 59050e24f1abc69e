"""Images of a call and the labels they are scored with: inputs and a pattern, or a recipe's split."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from segmenter.base.addresses import is_address, masked
from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.base.files import caches, real
from segmenter.base.finding import is_vector, matches
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
from segmenter.raster.ground import both_placed
from segmenter.raster.made import MadeLabels
from segmenter.raster.placed import PlacedLabels
from segmenter.raster.stacked import StackedImages

if TYPE_CHECKING:
    from segmenter.mapping.jobs import MapJob
    from segmenter.runs.ensemble import AnyRun

_LOOKING_THREADS = 4
_BANDS_IN_NAME = re.compile(r"_(RGB|IRRG|RGBIR)$")
_PLACEHOLDER = re.compile(r"\{([^}]*)\}")
Labels = Mapping[Path, Path | SegmenterError]
"""Image → its label, or why it has none."""
ScaleOf = Callable[[Path, float | None], float | None]
Shown = Mapping[Path, tuple[Path, Path]]
"""Image → the file that its outputs are named after, and that whose name has the recipe's form."""


PolygonReader = Callable[["AnyRun", str], MadeLabels]
"""A run, whose recipe says what polygons mean, and the argument that asks for them → their labels."""


def by_georeference(image: Path, metres: float | None) -> float | None:
    """Return the metres a pixel of an image that belongs to no dataset: those of its georeference."""
    return metres


@dataclass(frozen=True)
class Truth:
    """The labels of a call's images.

    Attributes:
        asked: the arguments that they come from, for messages.
        files: image → its label, or why it has none.
        classes: what the labels' values mean, in the order of the run's classes.
        kind: full or eroded.
        split: what is scored, for the record.
        scenes: image → its scene's name; without, scores call it as its map.
        scale_of: an image and the metres a pixel of its georeference → those that count.
    """

    asked: str
    files: Labels
    classes: ClassMap
    kind: Literal["full", "eroded"]
    split: str
    scenes: Mapping[Path, str] = field(default_factory=dict)
    scale_of: ScaleOf = by_georeference

    def label(self, image: Path) -> Path:
        """Return the label of an image.

        Raises:
            SegmenterError: it has none.
        """
        label = self.files[image]
        if isinstance(label, SegmenterError):
            raise label
        return label


@dataclass(frozen=True)
class Images:
    """Images of a call, and the labels that their maps are scored with.

    Attributes:
        names: image → name of its outputs, all different.
        truth: None: nothing is scored.
        bands: of the image files, where the recipe names others than the run.
        layout: of the dataset that the images belong to, whose files no output may join.
    """

    inputs: Inputs
    names: Mapping[Path, str]
    truth: Truth | None = None
    bands: tuple[int, ...] | None = None
    layout: Layout | None = None


def images_of_inputs(
    request: MapRequest, run: AnyRun, layout: Layout | None = None, polygons: PolygonReader | None = None
) -> Images:
    """Find the files that a request's inputs stand for, and the labels that its pattern finds.

    Args:
        layout: of the run's dataset, whose fields may stand in the pattern; a request with labels needs it.
        polygons: what reads labels that are polygons.

    Raises:
        DatasetError: an input stands for nothing, or the pattern cannot be meant.
    """
    scenes, others = scenes_of_bands(request.inputs, layout)
    inputs = find_inputs(others, request.output, remote=request.remote) if others else Inputs((), (), ())
    shown: dict[Path, tuple[Path, Path]] = {path: (path, path) for path in inputs.files}
    if scenes and layout is not None:
        shown |= _stacked(scenes, layout, request.drivers)
        folders = *inputs.folders, *(folder for folder, _, _ in scenes)
        inputs = replace(inputs, files=tuple(shown), folders=tuple(dict.fromkeys(folders)))
    truth = None
    if request.labels is not None:
        if layout is None:
            raise DatasetError(f"--labels {request.labels}: expected the layout of the run's dataset with it")
        named_like = {image: first for image, (_, first) in shown.items()}
        truth = labels_by_pattern(request, request.labels, layout, named_like, run, polygons)
    names = output_names(name for name, _ in shown.values())
    return Images(inputs, {image: names[name] for image, (name, _) in shown.items()}, truth)


def _stacked(scenes: Sequence[BandFiles], layout: Layout, drivers: Sequence[str]) -> Shown:
    """Make one raster of each scene, kept in the user's cache; a line says where."""
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
        f"{len(scenes)} scenes of {len(layout.bands)} files each, brought into one GeoTIFF each in "
        f"{stacks.folder}"
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
    """Find the labels of inputs by `--labels`; an image without one is reported when its turn comes.

    One raster for several images is placed by its georeference, and so are those of a run whose recipe says
    so.

    Args:
        images: image → the file whose name the fields are taken from.

    Raises:
        DatasetError: the pattern cannot be meant.
    """
    wanted = LabelPattern(pattern, layout)

    def label(image: Path) -> Path | SegmenterError:
        try:
            return wanted.label(images[image])
        except SegmenterError as error:
            return error

    with ThreadPoolExecutor(_LOOKING_THREADS) as pool:
        files: Labels = dict(zip(images, pool.map(label, images), strict=True))
    asked, classes, shared = f"--labels {pattern}", run.classes, not wanted.has_fields
    made: MadeLabels | None = None
    if is_vector(pattern) and polygons is not None:
        made = polygons(run, asked)
    elif (shared and len(images) > 1) or layout.by_georeference:
        made = PlacedLabels(caches() / "labels", layout.classes or classes, request.drivers)
    if made is not None:
        files, classes = _on_images(files, made, shared=shared), made.classes
    return Truth(asked, files, classes, request.label_kind or run.labels, request.split_name or "unstated")


def _on_images(labels: Labels, files: MadeLabels, *, shared: bool) -> Labels:
    """Return labels on the grid of each image, in place of their sources."""

    def made(image: Path) -> Path | SegmenterError:
        source = labels[image]
        if isinstance(source, SegmenterError):
            return source
        try:
            label = files.label(str(real(image)), image, source, shared=shared)
        except SegmenterError as error:
            return error
        return label or DatasetError(f"{image}: no label of {source} lies on it")

    rasters = in_threads(made, list(labels), description="labels onto images", unit="label")
    files.tidy()
    return dict(zip(labels, rasters, strict=True))


class LabelPattern:
    """A path, also a glob pattern, in which fields of an image's name stand in braces.

    Without fields it is one file for all images.

    `{stem}` is the image's name without its extension, `{scene}` that without a trailing `_RGB`, `_IRRG` or
    `_RGBIR`. The others are the recipe's: the `{names}` of its image pattern, Potsdam's `{row}` and
    `{column}`, NAIC2020's `{name}`. Where the recipe has one called stem or scene, its own counts.

    Args:
        layout: of the recipe's dataset.

    Raises:
        DatasetError: for an unknown field.
    """

    def __init__(self, text: str, layout: Layout) -> None:
        self.text, self._layout = text, layout
        self._used = list(dict.fromkeys(_PLACEHOLDER.findall(text)))
        fields = dict.fromkeys(("stem", "scene", *layout.names))
        if unknown := [name for name in self._used if name not in fields]:
            names = [f"{{{name}}}" for name in fields]
            listed = f"{', '.join(names[:-1])} and {names[-1]}"
            raise DatasetError(f"--labels {text}: unknown {{{unknown[0]}}}; known are {listed}")

    @property
    def has_fields(self) -> bool:
        """True if images have files of their own, and not one for all."""
        return bool(self._used)

    def label(self, image: Path) -> Path:
        """Return the one label file of an image.

        Raises:
            DatasetError: not exactly one file matches, or the image's path has not the recipe's form.
        """
        fields = self._fields(image)
        plain = self._filled(fields, str)
        with readable(plain):
            if Path(plain).is_file():
                return Path(plain)
        wanted = self._filled(fields, glob.escape)
        files = [Path(name) for name in matches(wanted) if Path(name).is_file()]
        if len(files) != 1:
            names = ", ".join(map(str, files[:3])) or "none"
            raise DatasetError(f"{image}: expected one label file {plain}, found {names}")
        return files[0]

    def _fields(self, image: Path) -> dict[str, str]:
        own = {"stem": image.stem, "scene": _BANDS_IN_NAME.sub("", image.stem)}
        of_recipe = self._layout.fields(image) if {*self._used} & {*self._layout.names} else None
        fields = {**own, **(of_recipe or {})}
        if missing := [name for name in self._used if name not in fields]:
            raise DatasetError(
                f"{image}: expected a path like {self._layout.form}, as the recipe has it, for "
                f"{{{missing[0]}}} in --labels {self.text}; or use {{stem}}"
            )
        return fields

    def _filled(self, fields: Mapping[str, str], written: Callable[[str], str]) -> str:
        return _PLACEHOLDER.sub(lambda match: written(fields[match[1]]), self.text)


def check_root(root: str, remote: bool, recipe: Path) -> None:
    """Refuse a recipe whose scenes lie at an address, unless the call allows addresses.

    A run may come from anywhere: that its recipe names a server is no reason to ask that server.

    Raises:
        DatasetError: it is not allowed.
    """
    if is_address(root) and not remote:
        raise DatasetError(
            f"{recipe}: its scenes lie at {masked(root)}; addresses are opened only with --remote"
        )


def images_of_split(dataset: Dataset, layout: Layout, split: str, run: AnyRun, recipe: Path) -> Images:
    """Return the scenes of a split with their labels; outputs are named as if all splits were mapped.

    Args:
        recipe: that names the dataset, for messages.

    Raises:
        DatasetError: the split has no scenes, or the dataset has other classes than the run.
    """
    check_split(split)
    scenes = [scene for scene in dataset.scenes if scene.split == split]
    if not scenes:
        counts = ", ".join(f"{len(dataset.of(each))} {each}" for each in SPLITS if dataset.of(each))
        raise DatasetError(
            f"{recipe}: expected scenes of the split {split}, it has {counts or 'none'}; name some in "
            "dataset.split, or another recipe with --recipe"
        )
    named_after = {s.image: Path(f"{s.name}.tif") if s.files else s.image for s in dataset.scenes}
    names = output_names(named_after.values())
    by_image = {scene.image: scene for scene in scenes}
    truth = Truth(
        f"--split {split}",
        {
            scene.image: scene.label or DatasetError(f"{scene.image}: scene {scene.name} has no label")
            for scene in scenes
        },
        _in_order_of(run.classes, dataset.classes, recipe),
        dataset.labels,
        split,
        {scene.image: scene.name for scene in scenes},
        lambda image, metres: dataset.scale_of(by_image[image], metres),
    )
    inputs = Inputs(tuple(scene.image for scene in scenes), (), ())
    bands = None if dataset.bands == run.bands else dataset.bands
    return Images(inputs, {image: names[named_after[image]] for image in inputs.files}, truth, bands, layout)


def _in_order_of(ours: ClassMap, theirs: ClassMap, recipe: Path) -> ClassMap:
    """Return a dataset's class map in the order of the run's ids, by the classes' names."""
    if different := sorted({*ours.names} ^ {*theirs.names}):
        whose = "the run" if different[0] in ours.names else "the recipe"
        raise DatasetError(
            f"{recipe}: expected the classes of the run ({', '.join(ours.names)}), got "
            f"{', '.join(theirs.names)}; only {whose} has {different[0]}"
        )
    by_name = {each.name: each for each in theirs.classes}
    return replace(theirs, classes=tuple(by_name[name] for name in ours.names))


def check_shared(truth: Truth, jobs: Sequence[MapJob]) -> None:
    """Refuse one label file for several images, unless its georeference shows that it lies on each.

    Raises:
        DatasetError: nothing says to which image it belongs.
    """
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
                f"{truth.asked}: expected a label file for each image, got {job.label} for {sharing[0]} and "
                f"for {sharing[1]}, and no georeference that says where it lies; use one call for each "
                "folder, or --split"
            )
