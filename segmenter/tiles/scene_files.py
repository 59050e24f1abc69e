"""Digests of a run's training files: each scene's image and label, from a bounded part of the bytes.

They show whether a resumed run has its original data, even if these were copied to another disk: names, times
and paths do not count. At most as much is read as in one pass of training.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.sealed import sealed, unsealed
from segmenter.base.threads import in_threads
from segmenter.grid.scenes import Scene
from segmenter.raster.remote.settings import RemotePath
from segmenter.raster.stamps import file_digest, stamp_of

FILE = "scenes.json"
_FORMAT = 1
_REMOTE, _MOST_KEPT = "remote-files.json", 1 << 28
_CHANGES = (
    *("scene {} is new", "the image of scene {} has changed", "the label of scene {} has changed"),
    "scene {} is gone",
)
Digests = dict[str, tuple[str, str]]
"""Name of a scene → digests of its image and of its label, empty where it has none."""


def scene_digests(scenes: Sequence[Scene], cache: Path, *, progress: bool = True) -> Digests:
    """Return digests of the scenes' files; those of remote files are cached until a file changes."""
    cached = _Kept(cache / _REMOTE)

    def both(scene: Scene) -> tuple[str, str]:
        return cached.digest(scene.image), "" if scene.label is None else cached.digest(scene.label)

    pairs = list(in_threads(both, scenes, description="files", unit="scene", progress=progress))
    cached.save()
    return {scene.name: pair for scene, pair in zip(scenes, pairs, strict=True)}


class _Kept:
    """Cached digests of remote files; rereading them would dominate a training's requests."""

    def __init__(self, path: Path) -> None:
        self._path, self._new = path, False
        self._known: dict[str, str] = {}
        with contextlib.suppress(SegmenterError):  # not written yet
            cached = unsealed(read_regular(path, _MOST_KEPT)) or {}
            self._known = {name: str(value) for name, value in cached.items()}

    def digest(self, path: Path) -> str:
        if not isinstance(path, RemotePath):
            return file_digest(path)
        stamp = stamp_of(path)
        key = f"{path} {stamp.key}"
        if key not in self._known or not stamp.file[2]:
            self._known[key], self._new = file_digest(path), True
        return self._known[key]

    def save(self) -> None:
        if self._new:
            with contextlib.suppress(SegmenterError):  # then they are read again
                write_whole(self._path, sealed(json.dumps(self._known)).encode())


def joint_digest(digests: Digests) -> str:
    """Return one digest of all scenes' digests, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]


def save_digests(run: Path, digests: Digests) -> None:
    """Write digests into a run directory; they allow a later run to name a changed file."""
    write_whole(run / FILE, json.dumps({"format": _FORMAT, "scenes": digests}, indent=0).encode())


def changed_file(run: Path, now: Digests) -> str:
    """Return a message on the first difference between the recorded scenes of a run and the current ones.

    Empty if nothing differs; a line that says so if the run has no record.
    """
    names = changes_since(run, now)
    if names is None:
        return f"training images or labels have changed ({FILE}, missing or not readable, would name them)"
    changes = [
        text.format(name) for text, scenes in zip(_CHANGES, names.values(), strict=True) for name in scenes
    ]
    others = len(changes) - 1
    more = f", and {others} more difference{'s' * (others > 1)}" if others else ""
    return changes[0] + more if changes else ""


def changes_since(run: Path, now: Digests) -> dict[str, list[str]] | None:
    """Return the names of scenes by change: new, with another image, with another label, gone.

    None if the run has no readable record.
    """
    before = _load(run / FILE)
    if before is None:
        return None
    both = [name for name in now if name in before]
    return {
        "new": [name for name in now if name not in before],
        "with another image": [name for name in both if now[name][0] != before[name][0]],
        "with another label": [name for name in both if now[name][1] != before[name][1]],
        "gone": [name for name in before if name not in now],
    }


def _load(path: Path) -> Mapping[str, tuple[str, str]] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            return None
        scenes = data["scenes"]
        return {str(name): (str(image), str(label)) for name, (image, label) in scenes.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
