"""Table of all targets; a new file format or cache gets a line here."""

from __future__ import annotations

from functools import partial

from fuzz import caches, outputs, points, polygons, rasters, runs, sharing, weights
from fuzz.target import Target, begins, is_part

TARGETS: dict[str, Target] = {
    "tiff": Target(rasters.make_tiffs, ["*.tif"], rasters.read_raster),
    "png": Target(partial(rasters.make_pictures, driver="PNG"), ["*.png"], rasters.read_raster, True),
    "jpeg": Target(partial(rasters.make_pictures, driver="JPEG"), ["*.jpeg"], rasters.read_raster),
    "sidecars": Target(rasters.make_sidecars, ["*.aux.xml", "*.wld", "*.msk", "*.ovr"], rasters.read_beside),
    "label": Target(rasters.make_tiffs, ["*.tif"], rasters.read_labels),
    "polygons": Target(polygons.make_polygons, ["a.*"], polygons.read_polygons),
    "points": Target(points.make_points, ["points.*", "areas.csv"], points.read_points),
    "recipe": Target(runs.make_recipes, ["*.yaml"], runs.read_recipe, tokens=runs.YAML),
    "run": Target(runs.make_run, ["run.json", "recipe.yaml"], runs.read_run, checksum=True, tokens=runs.YAML),
    "weights": Target(runs.make_run, ["best.npz"], runs.read_run, checksum=True),
    "checkpoint": Target(
        runs.make_run, ["checkpoints/step-00000008.npz"], runs.read_checkpoint, checksum=True
    ),
    "log": Target(runs.make_run, ["log.jsonl"], runs.read_log),
    "log-rewind": Target(runs.make_run, ["log.jsonl"], runs.rewind_log),
    "packed": Target(sharing.make_packed, ["*.run.zip"], sharing.read_packed, checksum=True),
    "origin": Target(sharing.make_packed, ["origin.json"], sharing.read_origin, fits=is_part),
    "report": Target(runs.make_run, ["log.jsonl", "scores.json"], runs.read_report),
    "windows": Target(runs.make_run, ["windows.json"], runs.read_windows, checksum=True),
    "calibration": Target(runs.make_run, ["calibration.json"], runs.read_calibration, checksum=True),
    "sets": Target(runs.make_run, ["sets.json"], runs.read_sets, checksum=True),
    "accuracy": Target(runs.make_run, ["accuracy.json"], runs.read_accuracy, checksum=True),
    "journal": Target(outputs.make_journal, [".journal.jsonl"], outputs.read_journal, fits=is_part),
    "partial": Target(
        outputs.make_partial, [".a.tif.partial"], outputs.read_partial, checksum=True, fits=begins
    ),
    "map": Target(outputs.make_map, ["map.tif"], outputs.read_map),
    "index": Target(caches.make_dataset, [".tile-index/tiles-*"], caches.read_index, checksum=True),
    "bands": Target(caches.make_dataset, [".tile-index/bands-*"], caches.read_bands, checksum=True),
    "torch": Target(weights.make_torch, ["*.pth"], weights.read_pickled, tokens=weights.PICKLES),
    "safetensors": Target(weights.make_safetensors, ["*.safetensors"], weights.read_table),
    "keras": Target(weights.make_keras, ["*.h5"], weights.read_keras),
    "packs": Target(caches.make_dataset, [".tile-index/packed/*"], caches.read_packs, checksum=True),
}
