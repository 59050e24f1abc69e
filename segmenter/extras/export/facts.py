"""What a model takes and gives, for whoever has the file and nothing else."""

from __future__ import annotations

from typing import Any

from segmenter.base.version import __version__
from segmenter.grid.windows import round_up
from segmenter.raster.validity import NO_MEASUREMENT
from segmenter.runs.run import Run

_FORMAT = 1


def facts_of(
    run: Run, *, image: list[Any], outputs: dict[str, list[Any]], standardised: bool, fp16: str
) -> dict[str, Any]:
    """Facts of an exported model; JSON values.

    Args:
        image: shape of the input, names for what may be any number.
        outputs: name → shape.
        standardised: the caller normalises, and there is no rule for pixels without data.
        fp16: how 16-bit floats are used; empty: not at all.
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
        "normalisation": {
            "where": "outside" if standardised else "inside",
            "mean": list(run.normalisation.mean),
            "std": list(run.normalisation.std),
        },
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
    "255, its probabilities are 0"
)
_STANDARDISED = "outside: every pixel counts as data; give 0 (after normalisation) where there are none"


def _values(run: Run, standardised: bool) -> str:
    if standardised:
        return "value / 255, minus mean / 255, divided by std / 255 of each band"
    return f"as in the images ({run.dtype}), NaN where a pixel has no data"


def tiling_text(run: Run, image: list[Any]) -> str:
    """Which windows give the map of the whole raster, for people.

    Args:
        image: shape of the input, names for what may be any number.
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
