"""All tools of the command `segmenter`: each is a module of this folder with `main` and `_parser`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

TOOLS = {
    "demo": "make imagery, train, map and write a page, in some minutes, to try the program out",
    "start": "plan a recipe from a folder of images and labels",
    "train": "train a model as a recipe says",
    "predict": "make class maps of images with a trained model",
    "calibrate": "calibrate the probabilities of a trained run",
    "check": "check the dataset of a recipe; exit code 0 only if it is clean",
    "coverage": "show which classes batches hold, at random and as planned, and what limits it",
    "augmented": "draw augmented training tiles and their labels as a picture",
    "pack": "decode all training scenes once, so that trainings read them fastest",
    "make": "make imagery in the layout of a published dataset, to try things on",
    "stitch": "join the parts of a cut scene into one GeoTIFF",
    "devices": "show the GPUs of this machine, and what a training would use",
    "input": "measure what the input of a recipe costs, and how many GPUs it feeds",
    "gpu": "measure these GPUs in ten minutes, as a page: same bits, speed, training, maps",
    "vectors": "convert class maps to polygons",
    "view": "show maps in the browser: image, map, label, errors, and where to look",
    "accuracy": "estimate accuracy and areas of maps, with intervals, from labelled points",
    "review": "find labels that are probably wrong, and places to label next",
    "export": "export a model for other runtimes: ONNX, SavedModel",
    "runs": "report on, compare, describe, pack and unpack run directories",
    "convert-weights": "convert weights of PyTorch to .safetensors",
    "recipes": "list ready-made recipes, or copy one",
    "completion": "print a script for the Tab key: tools, options, files",
}
"""Tool → its purpose, in the order of `segmenter --help`."""

OLD_NAMES = {"vectorise": "vectors"}
"""Names that tools had; `datasets` was a tool whose commands are tools now: `segmenter datasets check`."""

_LARGE = {"gpu": "gpu.command"}
"""Tools that are a folder, whose `__init__` is not their module."""


def module_of(tool: str) -> Any:
    """Return the module of a tool."""
    return import_module(f".{_LARGE.get(tool, tool.replace('-', '_'))}", __package__)


def with_new_name(words: list[str]) -> list[str]:
    """Return a command line with the tool's name of today; others are as they were."""
    if words[:1] == ["datasets"]:
        words = words[1:]
    return [OLD_NAMES.get(word, word) for word in words[:1]] + words[1:]
