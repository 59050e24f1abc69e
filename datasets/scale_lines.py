"""Scale of a dataset's scenes in lines for `datasets check`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from segmenter.grid.gsd import UNKNOWN, range_text, scene_strata
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import RasterInfo

_APART = 1.1
"""Ratio of what the recipe and the georeference say from which it is pointed out."""

Images = Sequence[tuple[Scene, RasterInfo]]


def scale_line(dataset: Dataset, images: Images) -> str:
    """A line on the scales of scenes: one, or how many of each octave; empty where none is known."""
    metres = [dataset.scale_of(scene, info.metres_per_pixel) for scene, info in images]
    known = [m for m in metres if m is not None]
    if not known:
        return ""  # what needs it refuses the recipe by name
    found = scene_strata(metres)
    if len(found.titles) == 1:
        return f"{range_text(min(known), max(known))} a pixel"
    counts = [(int((found.number_S == i).sum()), title) for i, title in enumerate(found.titles)]
    shown = [f"{n} of {title}" if title != UNKNOWN else f"{n} unknown" for n, title in counts]
    return f"{range_text(min(known), max(known))} a pixel: scenes {', '.join(shown)}"


def contradictions(images: Images) -> Iterator[str]:
    """A line for each image whose georeference tells another scale than the recipe."""
    for scene, info in images:
        said, found = scene.metres_per_pixel, info.metres_per_pixel
        if said and found and not 1 / _APART <= said / found <= _APART:
            yield (
                f"{scene.image}: dataset.metres_per_pixel says {said:.3g} m a pixel, its georeference "
                f"{found:.3g} m"
            )
