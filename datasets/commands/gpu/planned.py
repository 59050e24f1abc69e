"""Recipe that `segmenter start` writes on this machine for made scenes."""

from __future__ import annotations

from collections.abc import Iterator

from .bench import Bench
from .figures import Figure


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield the settings that decide speed and memory."""
    recipe = bench.settings()
    model, training = recipe.model, recipe.training
    name = f"{model.encoder} + {model.decoder}" if model.kind == "encoder_decoder" else model.kind
    tiles = f"{training.global_batch} tiles of {recipe.tiles.size}² a step"
    xla = {"auto": "xla: auto", True: "XLA"}.get(training.xla, "no XLA")
    yield Figure("start writes", f"{name}, {tiles}, {training.precision}, {xla}", told=True)
    yield Figure("epochs", float(training.epochs))
    yield Figure("input workers", str(training.input_workers))
