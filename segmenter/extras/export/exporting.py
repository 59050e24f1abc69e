"""Export of a run to a checked file: written aside, read by its runtime, compared, then moved into place.

Deepness, a QGIS plug-in that runs ONNX models on layers: its tiles, and its metadata keys. It divides values
by 255, normalises by mean and deviation, cuts square tiles from the upper left corner, discards half of the
overlap on each side, and takes the class of the largest value. Values below a threshold count as 0, and a
median smooths the map: with both set to 0 its map is the model's. (github.com/PUTvision/qgis-plugin-deepness:
model_base.py, tile_params.py, processing_overlap.py, map_processor_segmentation.py.)
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from segmenter.base.errors import ConfigError, ExportError, OutputError, SegmenterError, failing
from segmenter.base.files import folder_aside, sync, write_whole
from segmenter.base.version import __version__
from segmenter.extras.export.check import (
    TOLERANCE,
    TOLERANCE_FP16,
    CheckImages,
    ExportAgreement,
    compare,
    find_source,
    probes,
)
from segmenter.extras.export.formats import (
    SUFFIX,
    Runtime,
    check_libraries,
    read_model,
    versions,
    write_model,
)
from segmenter.extras.export.request import ExportRequest
from segmenter.grid.windows import round_up
from segmenter.inference.loading import load_member
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster.validity import NO_MEASUREMENT
from segmenter.runs.run import Run, load_run

if TYPE_CHECKING:
    from segmenter.extras.export.graph import Shape
    from segmenter.inference.function import Member

_LEAST, _MOST = 512, 1536
"""Sides of tiles that are considered; larger ones take more than a small GPU's memory."""
_DEFAULT_PERCENT = 50
_MOST_PERCENT = 90


@dataclass(frozen=True)
class Tile:
    """A tile of the plug-in.

    Attributes:
        size: side in pixels.
        percent: percent of the side that neighbours share.
    """

    size: int
    percent: int

    @property
    def overlap(self) -> int:
        """Pixels that neighbours share, rounded as in the plug-in."""
        return int(self.size * self.percent / 100 * 2) // 2

    @property
    def step(self) -> int:
        """Pixels from one tile to the next."""
        return self.size - self.overlap

    def exact(self, network: NetworkGeometry) -> bool:
        """Return True if the kept part of each tile equals the map of the whole raster.

        This requires enough distance to the tile's border, and alignment to the model's stride.
        """
        if network.radius is None:
            return False
        return self.overlap // 2 >= network.radius and not self.step % network.stride


def choose_tile(network: NetworkGeometry, size: int | None = None) -> Tile:
    """Return the exact tile with the largest kept share; tiles overlap by half if none can be exact.

    The overlap is a whole number of percent, so not every size allows a multiple of the stride.

    Args:
        size: size chosen by the user; None: chosen here.

    Raises:
        ConfigError: the size is no multiple of the stride, or too small for the model's radius.
    """
    stride = network.stride
    if size is not None and size % stride:
        raise ConfigError("--size", expected=f"a multiple of {stride}, the model's stride", got=size)
    sizes = range(-(-_LEAST // stride) * stride, _MOST + 1, stride) if size is None else [size]
    tiles = [Tile(side, percent) for side in sizes for percent in range(1, _MOST_PERCENT + 1)]
    fitting = [tile for tile in tiles if tile.exact(network)]
    if fitting:
        # A larger tile keeps more, and takes more memory: by a tenth more it has to be worth it.
        best = max(tile.step / tile.size for tile in fitting)
        return min((t for t in fitting if t.step / t.size >= best * 0.9), key=lambda t: (t.size, t.percent))
    if size is not None and network.radius is not None:
        raise ConfigError(
            f"--size {size}",
            f"no whole percent of it is an overlap of twice the model's radius ({network.radius} pixels) "
            f"that keeps tiles on its stride ({stride} pixels); leave --size out, and one is chosen",
        )
    return Tile(-(-_LEAST // stride) * stride if size is None else size, _DEFAULT_PERCENT)


def behind_plugin(runtime: Runtime, run: Run) -> Runtime:
    """Return a runtime that gets values as from the plug-in: divided in float64, then float32."""
    metadata = keys(run, Tile(1, 0))
    mean, std = (np.array(metadata[f"standardization_{name}"], np.float32) for name in ("mean", "std"))
    return lambda image_BHWC: runtime(((image_BHWC / np.float64(255)).astype(np.float32) - mean) / std)


def keys(run: Run, tile: Tile) -> dict[str, Any]:
    """Return metadata under the plug-in's keys.

    Its documentation names `tiles_size`, but its code reads `tile_size`.
    """
    scale = {} if run.metres_per_pixel is None else {"resolution": run.metres_per_pixel * 100}
    return {
        "model_type": "Segmentor",
        "class_names": {str(number): name for number, name in enumerate(run.classes.names)},
        **scale,
        "tile_size": tile.size,
        "tiles_size": tile.size,
        "tiles_overlap": tile.percent,
        "standardization_mean": [mean / 255 for mean in run.normalisation.mean],
        "standardization_std": [std / 255 for std in run.normalisation.std],
        "seg_thresh": 0.0,
        "seg_small_segment": 0,
    }


_FORMAT = 1


@dataclass(frozen=True)
class Written:
    """An exported model.

    Attributes:
        path: the file, or the folder of a SavedModel, with `PATH.json` beside it.
    """

    path: Path
    bytes: int
    checked_on: str
    agreement: ExportAgreement
    facts: dict[str, Any]


@dataclass(frozen=True)
class _Plan:
    """Shape and precision of an export.

    Attributes:
        size: fixed side in pixels; None: any.
        tile: tile of Deepness; None without that profile.
    """

    size: int | None
    tile: Tile | None
    name: str


def export(request: ExportRequest) -> Written:
    """Export a run's model; on any failure, restore the folder.

    Raises:
        ExportError: the format lacks an operation, or classes differ from predict.py.
        SegmenterError: a library is missing, the run cannot be read, the file exists, or cannot be written.
    """
    check_libraries(request.format)
    run = load_run(request.run)
    plan = _plan(request, run)
    target = request.output / plan.name
    if target.exists() and not request.overwrite:
        raise SegmenterError(target, "exists already", remedy="name another folder, or add --overwrite")
    source = find_source(run, request.images)
    member = load_member(run)
    try:
        full = failing(OutputError, request.output, "cannot write it", "is the disk full?")
        with full, _folder(target) as aside:
            return _write_file(request, run, plan, member, source, aside)
    except ExportError as error:
        raise ExportError(request.run, error, remedy="nothing was written") from None


def _plan(request: ExportRequest, run: Run) -> _Plan:
    name = run.path.resolve().name + (".fp16" if request.fp16 else "")
    size, stride, tile = request.size, run.network.stride, None
    if request.profile == "deepness":
        tile = choose_tile(run.network, size)
        size, name = tile.size, f"{name}.deepness"
    if size is not None and size % stride:
        raise ConfigError("--size", expected=f"a multiple of {stride}, the model's stride", got=size)
    return _Plan(size, tile, name + SUFFIX[request.format])


def _write_file(
    request: ExportRequest, run: Run, plan: _Plan, member: Member, source: CheckImages, aside: Path
) -> Written:
    from segmenter.extras.export.graph import Shape, exported_function

    shape = Shape(
        run.band_count,
        run.network.stride,
        plan.size,
        None if plan.tile is None else 1,
        channels_first=request.format == "onnx",
        standardised=plan.tile is not None,
    )
    computing = load_member(run, "mixed_float16") if request.fp16 else member
    facts = _facts(request, run, plan, shape)
    file = aside / plan.name
    exported = exported_function(computing, shape)
    write_model(request.format, exported, file, facts)
    agreement = _check_file(request, run, member, shape, source, file)
    facts["checked"] = {
        "on": source.kind,
        "windows": agreement.windows,
        "pixels": agreement.pixels,
        "largest_difference": agreement.largest,
        "other_classes": agreement.ties,
        "tolerance": agreement.tolerance,
        "versions": versions(request.format),
    }
    beside = file.with_name(f"{file.name}.json")
    write_whole(beside, json.dumps(facts, indent=2, ensure_ascii=False).encode())
    total = sum(path.stat().st_size for path in _files(file))
    for each in (file, beside):
        _put(each, request.output / each.name)
    return Written(request.output / plan.name, total, source.said, agreement, facts)


def _facts(request: ExportRequest, run: Run, plan: _Plan, shape: Shape) -> dict[str, Any]:
    names = (
        ["batch", "bands", "height", "width"]
        if shape.channels_first
        else ["batch", "height", "width", "bands"]
    )
    image = [name if length is None else length for name, length in zip(names, shape.image, strict=True)]
    rows = [length for name, length in zip(names, image, strict=True) if name != "bands"]
    probabilities = [len(run.classes) if name == "bands" else n for name, n in zip(names, image, strict=True)]
    outputs = {"classes": rows, "probabilities": probabilities}
    if shape.standardised:
        outputs.pop("classes")
    half = "mixed_float16" if request.fp16 else ""
    facts = facts_of(run, image=image, outputs=outputs, standardised=shape.standardised, fp16=half)
    return facts if plan.tile is None else facts | keys(run, plan.tile)


def _check_file(
    request: ExportRequest, run: Run, member: Member, shape: Shape, source: CheckImages, file: Path
) -> ExportAgreement:
    """Compare the run's model with the exported one on the same windows, normalised as its user does it."""
    from segmenter.inference.function import predict_function

    runtime = read_model(request.format, file, shape)
    if shape.standardised:
        runtime = behind_plugin(runtime, run)
    return compare(
        predict_function(member.model, member.normalisation),
        runtime,
        probes(run, source, shape.size, shape.batch or 2),
        run.network.stride,
        nodata=not shape.standardised,
        tolerance=TOLERANCE_FP16 if request.fp16 else TOLERANCE,
    )


def _put(file: Path, target: Path) -> None:
    """Move it to its final path, atomically replacing any existing file."""
    for path in (*_files(file), *([file] if file.is_dir() else [])):
        sync(path)
    if target.is_dir():
        target.rename(file.with_name(f"before-{file.name}"))  # a folder with files cannot be replaced
    file.replace(target)
    sync(target.parent)


def _files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]


@contextlib.contextmanager
def _folder(target: Path) -> Iterator[Path]:
    """Make a temporary folder beside the target; remove what was made of its folders if the export fails."""
    missing = [folder for folder in target.absolute().parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with folder_aside(target) as aside:
            yield aside
    finally:
        with contextlib.suppress(OSError):  # one that holds something stays, and those above it
            for folder in missing:
                folder.rmdir()


# ------------------------------------------------------------------------------------------------------ facts


def facts_of(
    run: Run, *, image: list[Any], outputs: dict[str, list[Any]], standardised: bool, fp16: str
) -> dict[str, Any]:
    """Return the facts of an exported model as JSON values.

    Args:
        image: shape of the input, with names for variable sizes.
        standardised: True if the caller normalises, without a rule for pixels without data.
        fp16: use of 16-bit floats; empty: none.
    """
    classes = run.classes.classes
    return {
        "format": _FORMAT,
        "program": f"coverage-segmenter {__version__}",
        "run": run.path.resolve().name,
        "run_checksum": run.checksum(),
        "weights": run.weights_file().name,
        "class_names": run.classes.names,
        "class_codes": [each.code for each in classes],
        "class_colours": [list(each.colour) for each in classes],
        "bands": list(run.bands or range(1, run.band_count + 1)),
        "image_dtype": run.dtype,
        "metres_per_pixel": run.metres_per_pixel,
        "input": {"image": {"shape": image, "dtype": "float32", "values": _values(run, standardised)}},
        "outputs": {name: {"shape": shape, "dtype": _OUTPUTS[name]} for name, shape in outputs.items()},
        "normalisation": {"where": "outside" if standardised else "inside", **asdict(run.normalisation)},
        "nodata": _STANDARDISED if standardised else _NODATA,
        "softmax": "inside",
        "precision": fp16 or "float32",
        "stride": run.network.stride,
        "radius": run.network.radius,
        "tiling": tiling_text(run, image),
    }


_OUTPUTS = {"classes": "uint8", "probabilities": "float32"}
_NODATA = (
    f"inside: a pixel where a band is NaN, infinite or beyond ±{NO_MEASUREMENT:g} has no data; its class is "
    "255, its probabilities are 0; where only some bands hold the file's nodata value, predict.py takes the "
    "band's mean (normalisation.mean), and so should who calls the model"
)
_STANDARDISED = "outside: every pixel counts as data; give 0 (after normalisation) where there are none"


def _values(run: Run, standardised: bool) -> str:
    if standardised:
        return "value / 255, minus mean / 255, divided by std / 255 of each band"
    scaled = "; scale × stored value + offset where a file declares them" * (run.dtype == "float32")
    return f"as in the images ({run.dtype}{scaled}), NaN where a pixel has no data"


def tiling_text(run: Run, image: list[Any]) -> str:
    """Return text on the windows that reproduce the map of the whole raster.

    Args:
        image: shape of the input, with names for variable sizes.
    """
    network = run.network
    if network.radius is None:
        return f"no windows give the map of the whole raster: {network.unlimited}"
    halo = round_up(network.radius, network.stride)
    side = max((length for length in image if isinstance(length, int)), default=0)
    if "height" not in image and side <= 2 * halo:
        return (
            f"no windows of {side} pixels give the map of the whole raster, as what lies up to {halo} pixels "
            f"away has a part in each pixel: those of --size {3 * halo} would"
        )
    return (
        f"windows that begin at multiples of {network.stride} pixels, of which {halo} pixels on each side "
        "that is not the raster's are discarded, give the map of the whole raster"
    )
