"""Journal of an output folder: a JSON line for each input, once all its outputs are in place.

A repeated command compares each line with its current task. Unchanged outputs are kept; if input, run, option
or file differ, the outputs are made again.

An **input** is identified by its size, its time of change in nanoseconds, its header, and a checksum of 16
pieces spread evenly over it, which is the whole file up to a megabyte: hashing a whole 200 GB mosaic would
take longer than its first map. Only a change between the pieces that also restores the old time would be
missed. Its folder may change, for instance if a disk is mounted elsewhere. An **output** is identified by the
SHA-256 of the whole file.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import threading
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from segmenter.base.errors import SegmenterError, failing
from segmenter.base.files import open_descriptor, sampled_digest, sync
from segmenter.base.sealed import digest, seal, unseal
from segmenter.raster.remote.settings import RemotePath
from segmenter.raster.stamps import stamp_of

JOURNAL = ".journal.jsonl"
_FORMAT = 4
"""Counted up when outputs of the same options come to hold something else."""
_PIECE_BYTES = 1 << 16

Facts = dict[str, Any]


@dataclass(frozen=True)
class JournalEntry:
    """One line of the journal, plain JSON.

    Attributes:
        name: name of the input's outputs, without extension: unique within a folder.
        source: former path of the input, as information.
        input: `input_facts`.
        run: name of the run and checksum of its model.
        options: all other facts that determine the outputs.
        outputs: size in bytes and SHA-256 of each file in the folder, by name.
    """

    name: str
    source: str
    input: Facts
    run: Facts
    options: Facts
    outputs: dict[str, Facts]

    def difference(self, other: JournalEntry) -> str | None:
        """Return text on how a new entry differs; None if its outputs would be the same.

        Outputs that the new entry does not request are ignored.
        """
        if self.input != other.input:
            return "the input has changed"
        if self.run != other.run:
            return "the run has changed"
        pairs = [(name, self.options.get(name), new) for name, new in other.options.items()]
        changed = [_change(name, old, new) for name, old, new in pairs if old != new]
        return f"other options: {', '.join(changed)}" if changed else None

    def extends(self, before: JournalEntry) -> bool:
        """Return whether an earlier entry's additional outputs would be unchanged under this entry."""
        if (self.input, self.run) != (before.input, before.run):
            return False
        # Not the format, in which only the map itself is written. What an older journal lacks is None.
        options = self.options.items()
        return all(before.options.get(name) == value for name, value in options if name != "format")


def _change(name: str, old: Any, new: Any) -> str:
    if name == "mosaic" and old is not None and new is not None:
        return "the inputs around it have changed"
    if name == "precision":
        old, new = old or "float32", new or "float32"
    return f"{name} was {_short(old)}, is {_short(new)}"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "another"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def label_rule(weights: str) -> Facts:
    """Return what the journal notes the recipe's class map of: its codes may be others than the maps'."""
    return {"labels of": weights}


class Journal:
    """Journal of an output folder; safe for several threads and several processes.

    A line has a checksum (`seal`), is appended by one write and is on the disk before `append` returns.
    Damaged lines, such as the last one after a power cut, are ignored and counted in `damaged`; lines of
    another format are ignored too.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.damaged = 0
        self._lines: dict[str, bytes] = {}  # of the entries; a tenth of what these take in memory
        self._settings: dict[str, Facts] = {}
        self._pending: list[Facts] = []
        self._read_to = 0
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Read lines added since the last call, also by other processes."""
        with self._lock, contextlib.suppress(FileNotFoundError):
            try:
                with open_descriptor(self.path, os.O_RDONLY) as handle:
                    size = os.fstat(handle).st_size
                    self._read_to = self._read_to if self._read_to <= size else 0  # someone made it anew
                    data = os.pread(handle, size - self._read_to, self._read_to)
            except FileNotFoundError:
                raise
            except OSError as error:
                raise SegmenterError(self.path, f"cannot read it: {error.strerror}") from None
            whole = data[: data.rfind(b"\n") + 1]  # the rest is being written, or never will be
            self._read_to += len(whole)
            for line in whole.splitlines():
                self._take(line)

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        record = unseal(line)
        if record is None:
            self.damaged += 1
        elif record.pop("format", None) == _FORMAT:
            self._note(record, line)

    def _note(self, record: Facts, line: bytes) -> None:
        try:
            if "settings" in record:
                self._settings[str(record["for"])] = dict(record["settings"])
            else:
                self._lines[JournalEntry(**record).name] = line
        except (ValueError, TypeError, KeyError):  # another version's
            self.damaged += 1

    def find(self, name: str) -> JournalEntry | None:
        """Return the latest entry of that name; None if no entry has it."""
        line = self._lines.get(name)
        if line is None:
            return None
        record = unseal(line)
        assert record is not None, "it was whole when it was read"
        del record["format"]
        return JournalEntry(**record)

    def append(self, entry: JournalEntry) -> None:
        """Add an entry (SegmenterError: the journal cannot be written)."""
        self.flush()
        self._lines[entry.name] = self._write(asdict(entry))

    def settings(self, what: Mapping[str, Any]) -> Facts | None:
        """Return the program's last choice for `what`; None if there was none."""
        return self._settings.get(digest(what))

    def choices(self, key: str) -> list[Any]:
        """Return the values of `key` in all recorded choices that have it."""
        return [settings[key] for settings in self._settings.values() if key in settings]

    def settle(self, what: Mapping[str, Any], settings: Facts) -> None:
        """Record the program's choice for `what`, so that an equal call makes the same choice.

        It is written by `flush`, or with the next entry: a call without work leaves no trace.
        """
        if self.settings(what) != settings:
            self._settings[digest(what)] = settings
            self._pending.append({"for": digest(what), "settings": settings})

    def flush(self) -> None:
        """Write the recorded choices."""
        while self._pending:
            self._write(self._pending.pop(0))

    def _write(self, record: Facts) -> bytes:
        line = seal(json.dumps({"format": _FORMAT, **record}, ensure_ascii=False)).encode() + b"\n"
        with failing(SegmenterError, self.path, "cannot write it", "is there space?"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open_descriptor(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT) as handle:
                with self._lock:
                    new = os.fstat(handle).st_size == 0
                    text = (b"\n" if _ends_mid_line(handle) else b"") + line
                    if os.write(handle, text) != len(text):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(handle)
            if new:
                sync(self.path.parent)
        return line


def _ends_mid_line(handle: int) -> bool:
    """Return whether the last line is incomplete, since its writer was killed."""
    end = os.fstat(handle).st_size
    return end > 0 and os.pread(handle, 1, end - 1) != b"\n"


def input_facts(path: Path, header: Mapping[str, Any]) -> Facts:
    """Return the facts that reveal a changed input (see the module's docstring)."""
    if isinstance(path, RemotePath):
        return _remote_facts(path, header)
    stamp = stamp_of(path)
    with failing(SegmenterError, path, "cannot read it"), path.open("rb") as file:
        status = os.fstat(file.fileno())
        sample = sampled_digest(file, status.st_size, _PIECE_BYTES)
    return {
        "file": path.name,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "sample": sample,
        "header": digest(header),
        **{name.removeprefix(path.name): facts for name, *facts in stamp.beside},
    }


def _remote_facts(path: RemotePath, header: Mapping[str, Any]) -> Facts:
    """Return `input_facts` of a remote file; a signed URL is included if there is no time of change."""
    with failing(SegmenterError, path, "cannot read it"):
        status = path.stat()
    known = status.st_mtime_ns > 0
    state = {"bytes": status.st_size, "mtime_ns": status.st_mtime_ns} if known else {}
    address = str(path) if known else path.address
    return {"file": path.name, "remote": digest({"address": address}), "header": digest(header), **state}


def file_facts(path: Path) -> Facts:
    """Return size and SHA-256 of a file; raise OSError."""
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": checksum}


def damage(folder: Path, entry: JournalEntry, wanted: Collection[str]) -> str | None:
    """Return text on damaged outputs of an entry; None if all that are wanted are unchanged."""
    for name, facts in entry.outputs.items():
        if name not in wanted:
            continue
        try:
            if os.stat(folder / name).st_size != facts["bytes"] or file_facts(folder / name) != facts:
                return f"{name} has changed"
        except FileNotFoundError:
            return f"{name} is gone"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
    return None
