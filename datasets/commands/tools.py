"""All tools of the command `segmenter`: each is a module of this folder with `main` and `_parser`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

TOOLS = {
    "demo": "imagery, training, maps and a page in some minutes, to try it out",
    "start": "plan a recipe from a folder of images and labels",
    "train": "train a model as a recipe says",
    "predict": "class maps from images, with a trained model",
    "calibrate": "calibrated probabilities for a trained run",
    "check": "audit the dataset of a recipe; exit code 0 only if it is clean",
    "coverage": "which classes batches hold, at random and as planned, and what limits it",
    "augmented": "a picture of augmented training tiles and their labels",
    "pack": "decode all training scenes once, for the fastest reading; training then uses the packs",
    "make": "imagery in the layout of a published dataset, to try things on",
    "stitch": "join the parts of a cut scene into one GeoTIFF",
    "devices": "the GPUs of this machine, and what a training would use",
    "input": "what the input of a recipe costs, and how many GPUs it feeds",
    "gpu": "same bits, speed, training, maps of these GPUs, in ten minutes: a page",
    "vectors": "class maps as polygons",
    "accuracy": "sample, estimate: areas and accuracy of maps, with intervals",
    "review": "labels to review, and what to label next",
    "export": "the model for other runtimes: ONNX, SavedModel",
    "runs": "report, compare, card, stac, pack, unpack: of run directories",
    "convert-weights": "weights of PyTorch as .safetensors",
    "recipes": "ready-made recipes: list them, copy one",
    "completion": "script for the Tab key: tools, options, files",
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
