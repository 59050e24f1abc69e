"""Digests of a run's training files: each scene's image and label, from a bounded part of the bytes.

They show whether a resumed run has its original data, even if these were copied to another disk: names, times
and paths do not count. At most as much is read as in one pass of training.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.base.files import read_regular, write_whole
from segmenter.base.sealed import sealed, unsealed
from segmenter.base.threads import in_threads
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster.remote.settings import RemotePath
from segmenter.raster.stamps import file_digest, stamp_of
from segmenter.tiles.index import cache_folder

_QUICK = 1000
"""Images whose digests take no time worth a bar."""
_REMOTE, _MOST_KEPT = "remote-files.json", 1 << 28
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


def image_digests(dataset: Dataset) -> dict[str, str]:
    """Return the digest of each scene's image by the scene's name."""
    images, cache = [replace(scene, label=None) for scene in dataset.scenes], cache_folder(dataset)
    found = scene_digests(images, cache, progress=len(images) > _QUICK)
    return {name: image for name, (image, _) in found.items()}


def joint_digest(digests: Digests) -> str:
    """Return one digest of all scenes' digests, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]
