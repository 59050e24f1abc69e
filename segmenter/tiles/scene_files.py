"""Digests of a run's training files: each scene's image and label, from a bounded part of the bytes.

They show whether a resumed run has its original data, even if these were copied to another disk: names, times
and paths do not count. At most as much is read as in one pass of training.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from segmenter.base.files import on_disk
from segmenter.base.keyed_folder import KeyedFolder, read_sealed
from segmenter.base.sealed import seal
from segmenter.base.threads import in_threads
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster.stamps import file_digest, stamp_of
from segmenter.tiles.index import cache_folder

_QUICK = 1000
"""Images whose digests take no time worth a bar."""
_REMOTE = "remote-files.json"
Digests = dict[str, tuple[str, str]]
"""Name of a scene → digests of its image and of its label, empty where it has none."""


def scene_digests(scenes: Sequence[Scene], cache: Path, *, progress: bool = True) -> Digests:
    """Return digests of the scenes' files; those of remote files are cached until a file changes."""
    folder = KeyedFolder(cache)
    known: dict[str, str] = folder.load(_REMOTE, lambda path: dict(json.loads(read_sealed(path)))) or {}
    before = len(known)

    def one(path: Path) -> str:
        if on_disk(path):
            return file_digest(path)
        stamp = stamp_of(path)
        key = f"{path} {stamp.key}"
        if key not in known or not stamp.file[2]:
            known[key] = file_digest(path)
        return str(known[key])

    def both(scene: Scene) -> tuple[str, str]:
        return one(scene.image), "" if scene.label is None else one(scene.label)

    pairs = list(in_threads(both, scenes, description="files", unit="scene", progress=progress))
    if len(known) > before:  # rereading remote files would dominate a training's requests
        folder.save(_REMOTE, seal(json.dumps(known)).encode())
    return {scene.name: pair for scene, pair in zip(scenes, pairs, strict=True)}


def image_digests(dataset: Dataset) -> dict[str, str]:
    """Return the digest of each scene's image by the scene's name."""
    images, cache = [replace(scene, label=None) for scene in dataset.scenes], cache_folder(dataset)
    found = scene_digests(images, cache, progress=len(images) > _QUICK)
    return {name: image for name, (image, _) in found.items()}


def joint_digest(digests: Digests) -> str:
    """Return one digest of all scenes' digests, whatever their order."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()[:32]
