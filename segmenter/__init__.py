"""Land-cover segmentation of remote-sensing imagery: planned coverage, exact training, tiled maps.

    from segmenter import open_run

    run = open_run("runs/mine")
    ids = run.predict(image)

The names exported here are for Python users (docs/python.md). Each is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from segmenter.base.version import __version__ as __version__
from segmenter.extras import strategies as strategies  # registers them for recipes

if TYPE_CHECKING:
    from segmenter.api.diagnosing import Coverage as Coverage
    from segmenter.api.diagnosing import diagnose as diagnose
    from segmenter.api.open_run import OpenRun as OpenRun
    from segmenter.api.open_run import open_run as open_run
    from segmenter.api.planning import EpochPlan as EpochPlan
    from segmenter.api.planning import RandomBatches as RandomBatches
    from segmenter.api.planning import forecast as forecast
    from segmenter.api.planning import plan_epoch as plan_epoch
    from segmenter.api.results import Maps as Maps
    from segmenter.api.results import MapScores as MapScores
    from segmenter.api.results import MapsError as MapsError
    from segmenter.api.tiles import Tiles as Tiles
    from segmenter.api.tiles import index_tiles as index_tiles
    from segmenter.base.errors import SegmenterError as SegmenterError
    from segmenter.grid.labels import ClassMap as ClassMap
    from segmenter.grid.labels import LandCoverClass as LandCoverClass
    from segmenter.grid.scenes import Dataset as Dataset
    from segmenter.grid.scenes import Scene as Scene

_HOMES = {
    "open_run": "api.open_run",
    "OpenRun": "api.open_run",
    "Maps": "api.results",
    "MapScores": "api.results",
    "MapsError": "api.results",
    "index_tiles": "api.tiles",
    "Tiles": "api.tiles",
    "plan_epoch": "api.planning",
    "EpochPlan": "api.planning",
    "forecast": "api.planning",
    "RandomBatches": "api.planning",
    "diagnose": "api.diagnosing",
    "Coverage": "api.diagnosing",
    "ClassMap": "grid.labels",
    "LandCoverClass": "grid.labels",
    "Dataset": "grid.scenes",
    "Scene": "grid.scenes",
    "SegmenterError": "base.errors",
}
"""Exported name → its module, in the order in which docs/python.md shows them."""

__all__ = [
    "ClassMap",
    "Coverage",
    "Dataset",
    "EpochPlan",
    "LandCoverClass",
    "MapScores",
    "Maps",
    "MapsError",
    "OpenRun",
    "RandomBatches",
    "Scene",
    "SegmenterError",
    "Tiles",
    "diagnose",
    "forecast",
    "index_tiles",
    "open_run",
    "plan_epoch",
]


def __getattr__(name: str) -> Any:
    """Import an exported name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module 'segmenter' has no attribute {name!r}")
    found = getattr(import_module(f"segmenter.{_HOMES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
