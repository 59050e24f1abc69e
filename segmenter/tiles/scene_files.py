"""Digests of the files that a run is trained on: each scene's image and label, from a bounded part of them.

It shows whether a resumed run has the data that it was begun with, also where these were copied to
another disk: names, times and places are not part of it. It reads no more of a file than a training does
that sees it once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from segmenter.base.errors import DatasetError, SegmenterError
from segmenter.base.files import pieces, read_regular, write_whole
from segmenter.base.sealed import sealed, unsealed
from segmenter.base.threads import in_threads
from segmenter.grid.scenes import Scene
from segmenter.raster.remote.settings import RemotePath, open_bytes
from segmenter.raster.stamps import stamp_of

FILE = "scenes.json"
_FORMAT = 1
_REMOTE, _MOST_KEPT = "remote-files.json", 1 << 28
PIECES, PIECE_BYTES = 16, 1 << 14
"""Pieces of a file at even distances that are read, with both ends; up to 256 KiB a file is read whole."""

Digests = dict[str, tuple[str, str]]
"""Name of a scene → digests of its image and of its label, empty where it has none."""


def file_digest(path: Path) -> str:
    """Return 64 bits, as hexadecimal digits, of a file's size and of pieces of it.

    Raises:
        DatasetError: it cannot be read.
    """
    try:
        with open_bytes(path) as file:
            remote = isinstance(path, RemotePath)
            size = (path.stat() if remote else os.fstat(file.fileno())).st_size
            content = hashlib.sha256(str(size).encode())
            for piece in pieces(file, size, PIECES, PIECE_BYTES):
                content.update(piece)
    except OSError as error:
        raise DatasetError(f"{path}: cannot read it: {error.strerror}") from None
    return content.hexdigest()[:16]


def scene_digests(scenes: Sequence[Scene], cache: Path, *, progress: bool = True) -> Digests:
    """Return digests of the scenes' files; cache those of remote files in a folder until a file changes.

    Raises:
        DatasetError: a file cannot be read.
    """
    kept = _Kept(cache / _REMOTE)

    def both(scene: Scene) -> tuple[str, str]:
        return kept.digest(scene.image), "" if scene.label is None else kept.digest(scene.label)

    found = list(in_threads(both, scenes, description="files", unit="scene", progress=progress))
    kept.save()
    return {scene.name: pair for scene, pair in zip(scenes, found, strict=True)}


class _Kept:
    """Digests of remote files, kept: to read them in each training would be most of its requests."""

    def __init__(self, path: Path) -> None:
        self._path, self._new = path, False
        self._known: dict[str, str] = {}
        with contextlib.suppress(SegmenterError):  # there is none yet
            found = unsealed(read_regular(path, _MOST_KEPT)) or {}
            self._known = {name: str(value) for name, value in found.items()}

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
    """Return one digest of those of all scenes, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]


def save_digests(run: Path, digests: Digests) -> None:
    """Write them into a run directory; they serve to name what has changed."""
    write_whole(run / FILE, json.dumps({"format": _FORMAT, "scenes": digests}, indent=0).encode())


def changed_file(run: Path, now: Digests) -> str:
    """Describe the first difference between the scenes that a run was begun with and those here.

    Empty if there is none; if the run does not record them, a line that says so.
    """
    before = _load(run / FILE)
    if before is None:
        return f"training images or labels have changed ({FILE}, missing or not readable, would name them)"
    found = []
    for name, pair in now.items():
        if name not in before:
            found.append(f"scene {name} is new")
            continue
        kinds = zip(("image", "label"), before[name], pair, strict=True)
        found += [f"the {kind} of scene {name} has changed" for kind, old, new in kinds if old != new]
    found += [f"scene {name} is gone" for name in before if name not in now]
    others = len(found) - 1
    more = f", and {others} more difference{'s' * (others > 1)}" if others else ""
    return found[0] + more if found else ""


def _load(path: Path) -> Mapping[str, tuple[str, str]] | None:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != _FORMAT:
            return None
        scenes = data["scenes"]
        return {str(name): (str(image), str(label)) for name, (image, label) in scenes.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
