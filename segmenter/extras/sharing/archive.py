"""Packing of a run into one file; `contents` says what is in it."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from segmenter.base.errors import CheckpointError, OutputError
from segmenter.base.files import folder_aside, gibibytes, read_regular, remove_killed, written_whole
from segmenter.base.invocation import invocation
from segmenter.base.locks import FileLock
from segmenter.base.sealed import sealed
from segmenter.base.version import __version__
from segmenter.extras.sharing.anonymous import copy_without_paths, paths_of
from segmenter.extras.sharing.card import FILE as CARD
from segmenter.extras.sharing.card import card_text
from segmenter.extras.sharing.contents import MANIFEST, RUN_FILES, SUMS, Manifest, sums_text
from segmenter.extras.sharing.known_facts import Known, read_known
from segmenter.extras.sharing.stac import FILE as STAC
from segmenter.extras.sharing.stac import item
from segmenter.runs.arrays import load_arrays
from segmenter.runs.checkpoints import checkpoints

_PIECE = 1 << 20
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip file can say: the real one would make other bytes of the same run."""
_MODE = 0o100644 << 16
Content = Path | bytes


@dataclass(frozen=True)
class Packed:
    """What was packed.

    Attributes:
        files: in the packed run.
        size: of its file, in bytes.
        paths: settings of the recipe that hold such paths, with these; empty where they were left out.
        left_out: names in the run directory that are not in it.
        checkpoints: whether training can go on from it.
    """

    files: int
    size: int
    paths: tuple[str, ...]
    left_out: tuple[str, ...]
    checkpoints: bool


def pack_run(
    run: Path,
    output: Path,
    *,
    with_checkpoints: bool = False,
    anonymous: bool = False,
    licence: str | None = None,
) -> Packed:
    """Write a run as one file, whole or not at all.

    Args:
        licence: of the weights, for a card and an item that are made now.

    Raises:
        CheckpointError: it is no run, is damaged, or is being trained.
        SegmenterError: the output cannot be written; an OutputError, where the disk is full.
    """
    remove_killed(output)
    with ExitStack() as undo:
        undo.enter_context(_alone(run))
        known = read_known(run)
        names = _names(known, with_checkpoints)
        if anonymous:
            folder = undo.enter_context(folder_aside(output))
            names = copy_without_paths(known, names, folder)
            known = read_known(folder)
        manifest = Manifest(
            name=known.name,
            weights=_weights_name(known),
            fingerprint=known.fingerprint,
            checkpoints=any(name.startswith("checkpoints/") for name in names),
            anonymous=anonymous,
            program=__version__,
        )
        files: dict[str, Content] = {name: known.run.path / name for name in names}
        files |= _descriptions(run, known, [*names, CARD], licence, kept=not anonymous)
        files[MANIFEST] = (sealed(manifest.model_dump_json(indent=2)) + "\n").encode()
        _write(output, files)
    paths = () if anonymous else tuple(paths_of(known.run.recipe))
    left_out = tuple(sorted(_left_out(run, "", {*files, SUMS})))
    return Packed(len(files) + 1, output.stat().st_size, paths, left_out, manifest.checkpoints)


def _left_out(folder: Path, prefix: str, packed: Collection[str]) -> Iterator[str]:
    """Names in a run directory that are not packed: of a folder of which nothing is, only its own."""
    for path in folder.iterdir():
        name = prefix + path.name
        if any(each.startswith(f"{name}/") for each in packed):
            yield from _left_out(path, f"{name}/", packed)
        elif name not in packed and not path.name.startswith("."):
            yield name


def _weights_name(known: Known) -> str:
    return known.weights.relative_to(known.run.path).as_posix()


def _names(known: Known, with_checkpoints: bool) -> list[str]:
    """Files of a run that are packed: the weights, checkpoints that are whole, and what there is beside them.

    Raises:
        CheckpointError: a checkpoint is damaged.
    """
    run = known.run.path
    steps = list(checkpoints(run).values()) if with_checkpoints else []
    for path in steps:
        load_arrays(path)
    found = [_weights_name(known), *(path.relative_to(run).as_posix() for path in steps)]
    return list(dict.fromkeys([*found, *(name for name in RUN_FILES if (run / name).is_file())]))


@contextmanager
def _alone(run: Path) -> Iterator[None]:
    """Keep trainings out of a run meanwhile, where its folder can be written to."""
    lock = FileLock(run / ".lock")
    if run.is_dir():
        try:
            lock.take()
        except BlockingIOError:
            raise CheckpointError(
                f"{run}: a training is writing there; wait until it has ended, or stop it: --resume goes on"
            ) from None
        except OSError:
            pass  # it cannot be written to: nobody trains there
    try:
        yield
    finally:
        lock.give_back()


def _descriptions(
    run: Path, known: Known, names: list[str], licence: str | None, *, kept: bool
) -> dict[str, Content]:
    """The card and the STAC item: those in the run, which their owner may have edited, else made now.

    Args:
        kept: those in the run may go along; they may say where the scenes lie.

    Raises:
        CheckpointError: one in the run describes other weights.
    """
    card = _described(run / CARD, known.fingerprint, "card") if kept else None
    stac = _described(run / STAC, known.fingerprint[:16], "stac") if kept else None
    if card is None:
        card = card_text(known, licence).encode()
    if stac is None:
        stac = (json.dumps(item(known, "./", names, licence), indent=2, ensure_ascii=False) + "\n").encode()
    return {CARD: card, STAC: stac}


def _described(path: Path, fingerprint: str, command: str) -> bytes | None:
    if not path.exists():
        return None
    text = read_regular(path)
    if fingerprint.encode() not in text:
        raise CheckpointError(
            f"{path}: expected a description of these weights, it does not name their fingerprint "
            f"{fingerprint}; remove it, or write it anew: {invocation('runs')} {command} {path.parent} "
            "--overwrite"
        )
    return text


# ------------------------------------------------------------------------------------- the file


def _write(output: Path, files: Mapping[str, Content]) -> None:
    sums = {name: _digest(content) for name, content in files.items()}
    sizes = {n: len(c) if isinstance(c, bytes) else c.stat().st_size for n, c in files.items()}
    _check_space(output, sum(sizes.values()))
    with (
        written_whole(output) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        _add(archive, SUMS, sums_text(sums), None)
        for name in sorted(files, key=lambda name: (name != MANIFEST, name)):
            _add(archive, name, files[name], sums[name])


def _check_space(output: Path, needed: int) -> None:
    with suppress(OSError):  # where the folder is missing, writing says so
        free = shutil.disk_usage(output.parent).free
        if free < needed:
            raise OutputError(f"{output}: needs {gibibytes(needed)}, the disk has {gibibytes(free)} free")


def _add(archive: zipfile.ZipFile, name: str, content: Content, expected: str | None) -> None:
    """Add a file as it is.

    Raises:
        CheckpointError: it is no longer what its checksum was taken of.
    """
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr, info.create_system = _MODE, 3
    info.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
    digest = hashlib.sha256()
    with archive.open(info, "w") as part:
        for piece in _pieces(content):
            digest.update(piece)
            part.write(piece)
    if expected is not None and digest.hexdigest() != expected:
        raise CheckpointError(f"{content!s}: has changed while it was packed; pack again")


def _digest(content: Content) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(content):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(content: Content) -> Iterator[bytes]:
    if isinstance(content, bytes):
        yield content
        return
    try:
        with content.open("rb") as file:
            yield from _read(file)
    except OSError as error:
        raise CheckpointError(f"{content}: cannot read it: {error.strerror}") from None


def _read(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE):
        yield piece
