"""Unpacking of a run that `packing` wrote: checked in full, then whole or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from segmenter.base.errors import CheckpointError, OutputError, SegmenterError, shortened
from segmenter.base.files import check_stored, folder_aside, gibibytes, make_folder, real, sync
from segmenter.base.invocation import invocation
from segmenter.base.sealed import json_object, other_format, unsealed_text
from segmenter.base.terminal import unsafe
from segmenter.extras.sharing.contents import (
    FORMAT,
    MANIFEST,
    MOST_FILES,
    NEEDED,
    SUMS,
    Manifest,
    may_be_packed,
    parsed_sums,
)
from segmenter.runs.run import load_run

_PIECE = 1 << 20
_MOST_TEXT = 1 << 22
_DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OverflowError, struct.error, zipfile.BadZipFile)
"""What `zipfile` raises of damaged files beside OSError."""
_WHAT = f"expected a run that `{invocation('runs')} pack` wrote"


def unpack_run(file: Path, output: Path | None) -> tuple[Path, Manifest, int]:
    """Unpack a run into a folder that is not there yet, or empty; None: `runs/NAME`.

    Returns:
        The folder, what the file says of itself, and its number of files.

    Raises:
        CheckpointError: the file is damaged, cut short, or no packed run; nothing is written.
        SegmenterError: the folder holds something, or cannot be written.
    """
    with _opened(file) as archive:
        manifest = _manifest(archive, file)
        sums = _checked_sums(archive, file)
        folder = output if output is not None else Path("runs") / _folder_name(manifest, file)
        _check_free(folder, sum(part.file_size for part in archive.infolist()))
        with folder_aside(folder.absolute()) as aside:
            inner = aside / "run"
            inner.mkdir()
            for name in [*sums, SUMS]:
                _extract(archive, name, inner, sums.get(name), file)
            _check_run(inner, manifest, file)
            _give_name(inner, folder)
    return folder, manifest, len(sums) + 1


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    with _refusing_damage(file):
        if not stat.S_ISREG(file.stat().st_mode):
            raise CheckpointError(f"{file}: {_WHAT}, got a folder, a pipe or a device")
        archive = zipfile.ZipFile(file)
    with archive:
        _check_parts(archive, file)
        yield archive


@contextmanager
def _refusing_damage(file: Path) -> Iterator[None]:
    """Say in one line what `zipfile` raises in the block."""
    try:
        yield
    except _DAMAGE as error:
        what = shortened(" ".join(str(error).split())) or type(error).__name__
        raise CheckpointError(f"{file}: {_WHAT}; it is damaged, cut short or another file ({what})") from None
    except OSError as error:
        raise CheckpointError(f"{file}: cannot read it: {error.strerror or error}") from None


def _check_parts(archive: zipfile.ZipFile, file: Path) -> None:
    """Refuse names that a packed run does not have, links, and what would grow."""
    parts = archive.infolist()
    names = {part.filename for part in parts}
    if missing := [name for name in NEEDED if name not in names]:
        raise CheckpointError(f"{file}: {_WHAT}; it holds no {missing[0]}")
    if len(parts) > MOST_FILES:
        raise CheckpointError(f"{file}: {_WHAT}, of at most {MOST_FILES} files, got {len(parts)}")
    with _refusing_damage(file):
        check_stored(archive, file.stat().st_size)
    for part in parts:
        if part.orig_filename != part.filename or not may_be_packed(part.filename):
            raise CheckpointError(
                f"{file}: {_WHAT}; it holds {shortened(part.orig_filename)!a}, which none has"
            )
        if stat.S_IFMT(part.external_attr >> 16) not in (0, stat.S_IFREG):
            raise CheckpointError(f"{file}: {_WHAT}; {part.filename} in it is no plain file")


def _text(archive: zipfile.ZipFile, name: str, file: Path) -> bytes:
    if archive.getinfo(name).file_size > _MOST_TEXT:
        raise CheckpointError(f"{file}: {_WHAT}; its {name} is too long")
    with _refusing_damage(file):
        return archive.read(name)


def _manifest(archive: zipfile.ZipFile, file: Path) -> Manifest:
    text = unsealed_text(_text(archive, MANIFEST, file))
    if text is None:
        raise CheckpointError(f"{file}: {_WHAT}; its {MANIFEST} is damaged or edited")
    if (version := (json_object(text) or {}).get("format")) != FORMAT:
        raise CheckpointError(f"{file}: {other_format(FORMAT, version)}")
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(f"{file}: {_WHAT}; its {MANIFEST} has no valid {where}") from None


def _checked_sums(archive: zipfile.ZipFile, file: Path) -> dict[str, str]:
    try:
        sums = parsed_sums(_text(archive, SUMS, file))
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {_WHAT}; {error}") from None
    names = {name for name in archive.namelist() if name != SUMS}
    if different := sorted(names ^ sums.keys()):
        where = f"only in {SUMS}" if different[0] in sums else f"not in {SUMS}"
        raise CheckpointError(f"{file}: {_WHAT}; {shortened(different[0])} is {where}")
    return sums


def _folder_name(manifest: Manifest, file: Path) -> str:
    name = manifest.name
    if "/" in name or name.startswith(".") or unsafe(name) is not None:
        raise SegmenterError(
            f"{file}: its run is called {name!a}, which names no folder; say one with --output"
        )
    return name


def _check_free(folder: Path, needed: int) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SegmenterError(f"{folder}: exists already; name another folder with --output")
    try:
        make_folder(folder.absolute().parent)
        free = shutil.disk_usage(folder.absolute().parent).free
    except OSError as error:
        raise SegmenterError(f"{folder}: cannot write there: {error.strerror}") from None
    if free < needed:
        raise OutputError(f"{folder}: needs {gibibytes(needed)}, the disk has {gibibytes(free)} free")


def _extract(archive: zipfile.ZipFile, name: str, folder: Path, expected: str | None, file: Path) -> None:
    target, digest = folder / name, hashlib.sha256()
    try:
        target.parent.mkdir(exist_ok=True)
        with target.open("xb") as written:
            for piece in _pieces(archive, name, file):
                digest.update(piece)
                written.write(piece)
            written.flush()
            os.fsync(written.fileno())
    except OSError as error:
        below = folder.parent.parent
        raise OutputError(
            f"{file}: cannot write {name} below {below}: {error.strerror}; is the disk full?"
        ) from None
    if expected is not None and digest.hexdigest() != expected:
        raise CheckpointError(f"{file}: {name} in it is damaged: its SHA-256 is another")


def _pieces(archive: zipfile.ZipFile, name: str, file: Path) -> Iterator[bytes]:
    with _refusing_damage(file), archive.open(name) as part:
        while piece := part.read(_PIECE):
            yield piece


def _check_run(folder: Path, manifest: Manifest, file: Path) -> None:
    """Refuse what has all its checksums and is no run that predicts nevertheless."""
    try:
        run = load_run(folder)
        run.weights()
        weights = run.weights_file().relative_to(folder).as_posix()
    except SegmenterError as error:
        said = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the run")
        raise CheckpointError(f"{file}: {_WHAT}; {said}") from None
    if weights != manifest.weights:
        raise CheckpointError(
            f"{file}: {_WHAT}; {MANIFEST} names {manifest.weights}, {weights} would predict"
        )


def _give_name(inner: Path, folder: Path) -> None:
    try:
        for below in (inner / "checkpoints", inner):
            if below.is_dir():
                sync(below)
        os.rename(inner, real(folder))  # on an empty folder, too
        sync(real(folder).parent)
    except OSError as error:
        raise SegmenterError(f"{folder}: cannot write there: {error.strerror}") from None
