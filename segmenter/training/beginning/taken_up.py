"""Change of the data since the run that a training starts from: which scenes, and which classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from segmenter.base.errors import counted
from segmenter.runs.origin import load_origin
from segmenter.runs.run import Run
from segmenter.tiles.scene_files import Digests, changes_since

_NAMED = 5
"""Scenes of a kind of change that are named."""


def lines_of_change(source: Run, digests: Digests, pixels: Mapping[str, int]) -> Iterator[str]:
    """Yield lines on scenes and classes that differ from those of an earlier run; none if it has no record.

    Args:
        digests: digests of the training and validation scenes.
        pixels: labelled pixels of the training tiles by class.
    """
    changes = changes_since(source.path, digests)
    if changes is None:
        return
    told = [
        f"{counted(len(names), 'scene')} {how} ({_few(names)})" for how, names in changes.items() if names
    ]
    yield f"since {source.path}: {'; '.join(told) or 'the same scenes and labels'}"
    origin = load_origin(source.path)
    before = {} if origin is None else origin.pixels
    moved = [
        f"{name} {before.get(name, 0):,} → {count:,}"
        for name, count in pixels.items()
        if before and count != before.get(name, 0)
    ]
    if moved:
        yield f"labelled pixels of the training tiles since then: {', '.join(moved)}"


def _few(names: list[str]) -> str:
    more = f", … {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
