"""Stamp of a raster: the state of its file and of every sidecar that can change its meaning.

All code detects changes by stamps: index, statistics, packs, maps and reopened files compare them, or use a
stamp's key as a cache key. A stamp has each file's name, size and time of change; for an .aux.xml its text,
without the statistics that viewers write into it.

Some records have content as well: the journal of maps, in its own format (`mapping.folder.journal`), and, by
`file_digest`, a run's of its training files and of the scenes of its calibration, which may be moved.
"""

from __future__ import annotations

import functools
import os
import re
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import DatasetError, SegmenterError, failing
from segmenter.base.files import FileState, file_state, has_settled, read_regular, sampled_digest
from segmenter.base.sealed import digest
from segmenter.raster.gdal.sidecars import names_beside
from segmenter.raster.remote.settings import RemotePath, open_bytes

_ENDINGS = re.compile(r"\.(msk|ovr|aux|xml|txt|tab|imd|rpb|pvl|rpc|pass|wld|dim|\w{1,4}w)$", re.IGNORECASE)
"""Endings of all names of `names_beside`, and of overviews: most folders have no such file."""
_STATISTICS = re.compile(rb'<Histograms>.*?</Histograms>|<MDI key="STATISTICS_[^<]*</MDI>|<Metadata/>', re.S)
_FRAME = re.compile(rb"</?(PAMDataset|PAMRasterBand|Metadata)\b[^>]*>|\s+")
_MOST_LISTED = 1 << 12
PIECE_BYTES = 1 << 14
"""Size of the pieces of `file_digest`; a file of up to 256 KiB is read completely."""

_listed: dict[str, tuple[int, int, frozenset[str]]] = {}
"""Folder → its time of change, when it was listed, and those of its files that may have a say."""


@dataclass(frozen=True)
class Stamp:
    """State of a raster's file and of its sidecars.

    Attributes:
        file: the raster's own state.
        beside: states of its sidecars, sorted by name; for an .aux.xml the length and CRC-32 of its text.
    """

    file: FileState
    beside: tuple[FileState, ...] = ()

    @functools.cached_property
    def key(self) -> str:
        """24 hexadecimal digits that identify this state, independent of the folder."""
        return digest([self.file, *self.beside], 24)

    @property
    def is_settled(self) -> bool:
        """True if any further change of the file would alter its stamp."""
        return has_settled(self.file[2])


def stamp_of(path: Path) -> Stamp:
    """Return the state of a raster and its sidecars; for remote rasters GDAL looks for no sidecars."""
    if isinstance(path, RemotePath):
        return Stamp(file_state(path))
    folder, name = os.path.split(os.path.abspath(path))
    state = file_state(str(path))
    if not (sides := _sides(folder)):
        return Stamp(state)
    return Stamp(state, tuple(_companion_states(folder, sorted(sides.intersection(names_beside(name))))))


def is_alone(path: Path) -> bool:
    """Return True if no file of its folder can be a sidecar; of a folder that cannot be listed False."""
    folder = os.path.dirname(os.path.abspath(path))
    return not _sides(folder) and folder in _listed


def certain_stamp(path: Path) -> Stamp | None:
    """Return the state of a file; None if a further change might not show, or a server does not report it."""
    if isinstance(path, RemotePath):
        return stamp_of(path) if path.known_state() is not None else None
    stamp = stamp_of(path)
    return stamp if stamp.is_settled else None


def _companion_states(folder: str, names: list[str]) -> Iterator[FileState]:
    for name in names:
        path = os.path.join(folder, name)
        state = _text_state(path, name) if name.lower().endswith(".aux.xml") else file_state(path)
        if state is not None:
            yield state


def _text_state(path: str, name: str) -> FileState | None:
    """Return the state of an .aux.xml's text; None if it contains only statistics."""
    try:
        text = _STATISTICS.sub(b"", read_regular(Path(path)))
    except SegmenterError:  # what is wrong with it is said when the raster is opened
        return file_state(path)
    return (name, len(text), zlib.crc32(text)) if _FRAME.sub(b"", text) else None


def _sides(folder: str) -> frozenset[str]:
    """Return the names of a folder's possible sidecars; listed again once the folder changes."""
    try:
        changed, now = os.stat(folder).st_mtime_ns, time.time_ns()
        at, listed, names = _listed.get(folder, (-1, 0, frozenset[str]()))
        if at == changed and (has_settled(changed, listed) or not has_settled(listed, now)):
            return names
        with os.scandir(folder) as entries:
            names = frozenset(entry.name for entry in entries if _ENDINGS.search(entry.name))
    except OSError:
        return frozenset()
    if len(_listed) >= _MOST_LISTED:
        _listed.clear()
    _listed[folder] = changed, now, names
    return names


def file_digest(path: Path) -> str:
    """Return a digest, 16 hexadecimal digits, of a file's size and of pieces of its content.

    Raises:
        DatasetError: the file cannot be read.
    """
    with failing(DatasetError, path, "cannot read it"), open_bytes(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        return sampled_digest(file, size, PIECE_BYTES, str(size).encode())[:16]
