"""Archive of a run: one uncompressed zip file with checksums of all files; packing and unpacking.

    SHA256SUMS   checksums of the other files, for `sha256sum --check`
    pack.json    format, name, the file that predicts, omissions
    …            files of the run directory (`RUN_FILES`), its model card and STAC item

Files are not compressed, and no times or owners are stored: the same run gives the same bytes, and unpacking
never gives more than the archive's size.

Copy of a run without information on its owner's machine and locations. It omits the paths in the recipe and
in all its copies, a TPU's address, the outlines of the training scenes, and the pictures and page with
imagery. Weights, scores and settings are unchanged: the copy predicts the same bits, and training can resume
with `--set dataset.root=…`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import stat
import struct
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from segmenter.base.errors import CheckpointError, OutputError, SegmenterError, failing, shortened
from segmenter.base.files import (
    FileLock,
    alone_writing,
    check_stored,
    folder_aside,
    make_folder,
    read_regular,
    real,
    remove_killed,
    sync,
    written_whole,
)
from segmenter.base.invocation import invocation, typed
from segmenter.base.sealed import json_object, other_format, sealed, unsealed_text
from segmenter.base.terminal import unsafe
from segmenter.base.version import __version__
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.extras.sharing.card import FILE as CARD
from segmenter.extras.sharing.card import card_text
from segmenter.extras.sharing.known_facts import RunFactsForOthers, read_known
from segmenter.extras.sharing.stac import FILE as STAC
from segmenter.extras.sharing.stac import item
from segmenter.runs.checkpoints import BEST, META, checkpoints, load_arrays, save_arrays
from segmenter.runs.log import LOG
from segmenter.runs.records import ACCURACY, CALIBRATION, PROGRESS, WINDOWS, load_origin, save_origin
from segmenter.runs.records import FILE as ORIGIN
from segmenter.runs.report.sections import REPORT
from segmenter.runs.resume import CheckpointFacts
from segmenter.runs.run import RECIPE_FILE, RUN_FILE, Run, load_run
from segmenter.runs.scenes import FILE as SCENES
from segmenter.runs.scenes import load_scenes, save_scenes
from segmenter.runs.score_files import BEST_FILES, LAST_FILES, SUMMARY

LEFT_OUT = "left-out"
"""In the place of a folder's path."""
_SHOWING = (SUMMARY, REPORT, WINDOWS, PROGRESS)
"""Files that show imagery or paths."""
_PATHS = (("dataset", "root"), ("dataset", "files"), ("dataset", "cache"), ("distribution", "tpu"))


def paths_of(recipe: Recipe) -> Iterator[str]:
    """Yield text such as `dataset.root /data/city` for each setting with a path or address."""
    data = recipe.model_dump(mode="json")
    for section, key in _PATHS:
        if data[section].get(key) is not None:
            yield f"{section}.{key} {data[section][key]}"
    if (weights := data["model"].get("weights")) not in (None, "imagenet"):
        yield f"model.weights {weights}"


def without_paths(recipe: Recipe) -> Recipe:
    """Return the recipe without paths; of weight files, only the name remains."""
    data: dict[str, Any] = recipe.model_dump(mode="json")
    for section, key in _PATHS:
        if key in data[section]:
            data[section][key] = LEFT_OUT if key == "root" else None
    if data["model"].get("weights") is not None:
        data["model"]["weights"] = Path(data["model"]["weights"]).name
    return recipe_from(data, "recipe without paths")


def copy_without_paths(known: RunFactsForOthers, names: Iterable[str], folder: Path) -> list[str]:
    """Copy files of a run into an empty folder; return the names of the copies.

    Raises:
        SegmenterError: a file cannot be read or written.
    """
    run = replace(known.run, path=folder, recipe=without_paths(known.run.recipe))
    run.save()
    copied = [RUN_FILE, RECIPE_FILE]
    for name in names:
        if name in _SHOWING or name in copied:
            continue
        source, target = known.run.path / name, folder / name
        with failing(SegmenterError, source, "cannot copy it", "is the disk full?"):
            target.parent.mkdir(exist_ok=True)
            _copy(source, target, run)
            times = source.stat()
            os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
        copied.append(name)
    return copied


def _copy(source: Path, target: Path, run: Run) -> None:
    if target.suffix == ".npz":
        save_arrays(target, _rewritten(source, run))
    elif target.name == ORIGIN and (origin := load_origin(source.parent)) is not None:
        save_origin(target.parent, origin.model_copy(update={"place": None}))
    elif target.name == SCENES and (known := load_scenes(source.parent)) is not None and known.told:
        scenes = {name: replace(each, place=None, path="") for name, each in known.scenes.items()}
        save_scenes(target.parent, replace(known, scenes=scenes))
    else:
        shutil.copyfile(source, target)


def _rewritten(path: Path, run: Run) -> dict[str, Any]:
    """Return the arrays of a checkpoint with its copies of the recipe replaced by the run's."""
    arrays = load_arrays(path)
    arrays |= {name: text for name, text in run.text_arrays().items() if name in arrays}
    if META in arrays:
        facts = CheckpointFacts.model_validate_json(arrays[META].tobytes())
        facts = facts.model_copy(update={"recipe": run.recipe.model_dump(mode="json")})
        arrays[META] = np.frombuffer(facts.model_dump_json().encode(), np.uint8)
    return arrays


FORMAT = 1
SUMS, MANIFEST = "SHA256SUMS", "pack.json"
RUN_FILES = (
    *(RUN_FILE, RECIPE_FILE, SCENES, ORIGIN, *BEST_FILES, SUMMARY, *LAST_FILES),
    *("learning_curves.png", LOG, REPORT, WINDOWS, PROGRESS, CALIBRATION, ACCURACY),
)
"""Files of a run that are packed where they exist, beside weights and checkpoints. Not `validation.json`:
its paths lead nowhere elsewhere."""
_NEEDED = (SUMS, MANIFEST, RUN_FILE, RECIPE_FILE)
_STEP = re.compile(r"checkpoints/step-\d{1,15}\.npz")
_SUM = re.compile(r"([0-9a-f]{64})  ([^\n]+)")
_PIECE = 1 << 20
_TIME = (1980, 1, 1, 0, 0, 0)
"""The earliest that a zip file can say: the real one would make other bytes of the same run."""
_MODE = 0o100644 << 16
_DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OverflowError, struct.error, zipfile.BadZipFile)
"""Errors of `zipfile` on damaged files, besides OSError."""
_WHAT = f"a run that `{invocation('runs')} pack` wrote"
Content = Path | bytes


class Manifest(BaseModel):
    """Content of pack.json.

    Attributes:
        fingerprint: digest of the weights that predict (`known_facts.Known`).
        checkpoints: True if training can resume.
        anonymous: True if paths of the owner's machine were removed.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str = Field(min_length=1, max_length=1000)
    weights: str = Field(max_length=100)
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    checkpoints: bool
    anonymous: bool
    program: str = Field(max_length=100)


@dataclass(frozen=True)
class Packed:
    """Result of packing.

    Attributes:
        size: size of the archive in bytes.
        paths: settings of the recipe with paths, and the paths; empty if removed.
        left_out: names in the run directory that are not in the archive.
        checkpoints: True if training can resume from it.
    """

    files: int
    size: int
    paths: tuple[str, ...]
    left_out: tuple[str, ...]
    checkpoints: bool


# ------------------------------------------------------------------------------------------ packing


def pack_run(
    run: Path,
    output: Path,
    *,
    with_checkpoints: bool = False,
    anonymous: bool = False,
    licence: str | None = None,
) -> Packed:
    """Write a run as one file, completely or not at all.

    Args:
        licence: licence of the weights, for a new card and STAC item.

    Raises:
        CheckpointError: the directory is no run, is damaged, or is in training.
        SegmenterError: the output cannot be written (OutputError if the disk is full).
    """
    remove_killed(output)
    with ExitStack() as undo:
        undo.enter_context(_lock_run(run))
        facts = read_known(run)
        facts.run.calibration()  # which must be of these weights
        names = _names(facts, with_checkpoints)
        if anonymous:
            folder = undo.enter_context(folder_aside(output))
            names = copy_without_paths(facts, names, folder)
            facts = read_known(folder)
        manifest = Manifest(
            name=facts.name,
            weights=_weights_name(facts),
            fingerprint=facts.fingerprint,
            checkpoints=any(name.startswith("checkpoints/") for name in names),
            anonymous=anonymous,
            program=__version__,
        )
        files: dict[str, Content] = {name: facts.run.path / name for name in names}
        files |= _descriptions(run, facts, [*names, CARD], licence, kept=not anonymous)
        files[MANIFEST] = (sealed(manifest.model_dump_json(indent=2)) + "\n").encode()
        _write(output, files)
    paths = () if anonymous else tuple(paths_of(facts.run.recipe))
    left_out = tuple(sorted(_left_out(run, "", {*files, SUMS})))
    return Packed(len(files) + 1, output.stat().st_size, paths, left_out, manifest.checkpoints)


def _left_out(folder: Path, prefix: str, packed: Collection[str]) -> Iterator[str]:
    """Yield names in a run directory that are not packed; for an unpacked folder, only its name."""
    for path in folder.iterdir():
        name = prefix + path.name
        if any(each.startswith(f"{name}/") for each in packed):
            yield from _left_out(path, f"{name}/", packed)
        elif name not in packed and not path.name.startswith("."):
            yield name


def _weights_name(known: RunFactsForOthers) -> str:
    return known.weights.relative_to(known.run.path).as_posix()


def _names(known: RunFactsForOthers, with_checkpoints: bool) -> list[str]:
    """Return the files of a run to pack: weights, undamaged checkpoints, and further existing files.

    Raises:
        CheckpointError: a checkpoint is damaged.
    """
    run = known.run.path
    steps = list(checkpoints(run).values()) if with_checkpoints else []
    for path in steps:
        load_arrays(path)
    names = [_weights_name(known), *(path.relative_to(run).as_posix() for path in steps)]
    return list(dict.fromkeys([*names, *(name for name in RUN_FILES if (run / name).is_file())]))


@contextmanager
def _lock_run(run: Path) -> Iterator[None]:
    """Lock a run against trainings in the block, if its folder is writable."""
    lock = FileLock(run / ".lock")
    if run.is_dir():
        try:
            lock.take()
        except BlockingIOError:
            raise CheckpointError(
                run, "a training is writing there; wait until it has ended, or stop it: --resume goes on"
            ) from None
        except OSError:
            pass  # it cannot be written to: nobody trains there
    try:
        yield
    finally:
        lock.release()


def _descriptions(
    run: Path, known: RunFactsForOthers, names: list[str], licence: str | None, *, kept: bool
) -> dict[str, Content]:
    """Return card and STAC item: those in the run, perhaps edited by the owner, else new ones.

    Args:
        kept: True to use those in the run, which may reveal the scenes' location.

    Raises:
        CheckpointError: a description in the run belongs to other weights.
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
        anew = f"{invocation('runs')} {command} {typed(path.parent)} --overwrite"
        raise CheckpointError(
            path,
            expected=f"a description of these weights, it does not name their fingerprint {fingerprint}",
            remedy=f"remove it, or write it anew: {anew}",
        )
    return text


def _write(output: Path, files: Mapping[str, Content]) -> None:
    with written_whole(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        names = sorted(files, key=lambda name: (name != MANIFEST, name))
        sums = {name: _add(archive, name, files[name]) for name in names}
        _add(archive, SUMS, "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode())


def _add(archive: zipfile.ZipFile, name: str, content: Content) -> str:
    """Add a file uncompressed; return its SHA-256."""
    info, digest = zipfile.ZipInfo(name, _TIME), hashlib.sha256()
    info.external_attr, info.create_system = _MODE, 3
    info.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
    source = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
    with source, archive.open(info, "w") as part:
        while piece := source.read(_PIECE):
            digest.update(piece)
            part.write(piece)
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------- unpacking


def unpack_run(file: Path, output: Path | None) -> tuple[Path, Manifest, int]:
    """Unpack a run, fully checked, into a new or empty folder (None: `runs/NAME`), or write nothing.

    Returns:
        The folder, the archive's manifest, and its number of files.

    Raises:
        CheckpointError: the file is damaged, truncated, or no packed run; nothing is written.
        SegmenterError: the folder is not empty or not writable.
    """
    with _opened(file) as archive:
        manifest = _manifest(archive, file)
        sums = _checked_sums(archive, file)
        folder = output if output is not None else Path("runs") / _folder_name(manifest, file)
        with failing(SegmenterError, folder, "cannot write there"):
            make_folder(folder.absolute().parent)
        with alone_writing(folder.absolute()), folder_aside(folder.absolute()) as aside:
            _check_free(folder)
            inner = aside / "run"
            inner.mkdir()
            for name in [*sums, SUMS]:
                _extract(archive, name, inner, sums.get(name), file)
            _check_run(inner, manifest, file)
            _give_name(inner, folder)
    return folder, manifest, len(sums) + 1


@contextmanager
def _opened(file: Path) -> Iterator[zipfile.ZipFile]:
    """Open an archive; refuse unknown names, and content that could exceed the archive's size."""
    with _refusing_damage(file):
        if not stat.S_ISREG(file.stat().st_mode):
            raise CheckpointError(file, expected=_WHAT, got="a folder, a pipe or a device")
        archive = zipfile.ZipFile(file)
    with archive:
        names = archive.namelist()
        if missing := [name for name in _NEEDED if name not in names]:
            raise CheckpointError(file, expected=f"{_WHAT}; it holds no {missing[0]}")
        with _refusing_damage(file):
            check_stored(archive, file.stat().st_size)
        allowed = {SUMS, MANIFEST, BEST, CARD, STAC, *RUN_FILES}
        if other := [name for name in names if name not in allowed and not _STEP.fullmatch(name)]:
            raise CheckpointError(file, expected=f"{_WHAT}; it holds {shortened(other[0])!a}, which none has")
        yield archive


@contextmanager
def _refusing_damage(file: Path) -> Iterator[None]:
    """Convert errors of `zipfile` in the block to one line."""
    try:
        yield
    except _DAMAGE as error:
        what = shortened(" ".join(str(error).split())) or type(error).__name__
        raise CheckpointError(
            file, expected=f"{_WHAT}; it is damaged, cut short or another file ({what})"
        ) from None
    except OSError as error:
        raise CheckpointError(file, f"cannot read it: {error.strerror or error}") from None


def _text(archive: zipfile.ZipFile, name: str, file: Path) -> bytes:
    with _refusing_damage(file):
        return archive.read(name)


def _manifest(archive: zipfile.ZipFile, file: Path) -> Manifest:
    text = unsealed_text(_text(archive, MANIFEST, file))
    if text is None:
        raise CheckpointError(file, expected=f"{_WHAT}; its {MANIFEST} is damaged or edited")
    if (version := (json_object(text) or {}).get("format")) != FORMAT:
        raise CheckpointError(file, other_format(FORMAT, version))
    try:
        return Manifest.model_validate_json(text)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise CheckpointError(file, expected=f"{_WHAT}; its {MANIFEST} has no valid {where}") from None


def _checked_sums(archive: zipfile.ZipFile, file: Path) -> dict[str, str]:
    """Return the SHA-256 of every other file in the archive, by name."""
    sums: dict[str, str] = {}
    lines = _text(archive, SUMS, file).decode("ascii", "replace").splitlines()
    for number, line in enumerate(lines, 1):
        match = _SUM.fullmatch(line)
        if match is None or match[2] in sums:
            raise CheckpointError(
                file, expected=f"{_WHAT}; {SUMS}, line {number}: expected a checksum and a name, each once"
            )
        sums[match[2]] = match[1]
    names = {name for name in archive.namelist() if name != SUMS}
    if different := sorted(names ^ sums.keys()):
        where = f"only in {SUMS}" if different[0] in sums else f"not in {SUMS}"
        raise CheckpointError(file, expected=f"{_WHAT}; {shortened(different[0])} is {where}")
    return sums


def _folder_name(manifest: Manifest, file: Path) -> str:
    name = manifest.name
    if "/" in name or name.startswith(".") or unsafe(name) is not None:
        raise SegmenterError(
            file, f"its run name {name!a} cannot be a folder name", remedy="name a folder with --output"
        )
    return name


def _check_free(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise SegmenterError(folder, "exists already", remedy="name another folder with --output")


def _extract(archive: zipfile.ZipFile, name: str, folder: Path, expected: str | None, file: Path) -> None:
    target, digest = folder / name, hashlib.sha256()
    with failing(OutputError, file, f"cannot write {name} below {folder.parent.parent}", "is the disk full?"):
        target.parent.mkdir(exist_ok=True)
        with target.open("xb") as written:
            for piece in _pieces(archive, name, file):
                digest.update(piece)
                written.write(piece)
            written.flush()
            os.fsync(written.fileno())
    if expected is not None and digest.hexdigest() != expected:
        raise CheckpointError(file, f"{name} in it is damaged: its SHA-256 is another")


def _pieces(archive: zipfile.ZipFile, name: str, file: Path) -> Iterator[bytes]:
    with _refusing_damage(file), archive.open(name) as part:
        while piece := part.read(_PIECE):
            yield piece


def _check_run(folder: Path, manifest: Manifest, file: Path) -> None:
    """Refuse files with valid checksums that are still no usable run."""
    try:
        run = load_run(folder)
        run.weights()
        run.calibration()
        weights = run.weights_file().relative_to(folder).as_posix()
    except SegmenterError as error:
        why = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the run")
        raise CheckpointError(file, expected=f"{_WHAT}; {why}") from None
    if weights != manifest.weights:
        raise CheckpointError(
            file, expected=f"{_WHAT}; {MANIFEST} names {manifest.weights}, {weights} would predict"
        )


def _give_name(inner: Path, folder: Path) -> None:
    with failing(SegmenterError, folder, "cannot write there"):
        for below in (inner / "checkpoints", inner):
            if below.is_dir():
                sync(below)
        os.rename(inner, real(folder))  # on an empty folder, too
        sync(real(folder).parent)
