"""Archive of a run: one uncompressed zip file with checksums of all files; packing and unpacking.

    SHA256SUMS   checksums of the other files, for `sha256sum --check`
    …            files of the run directory (`RUN_FILES`), its model card and STAC item

Files are not compressed, and no times or owners are stored: the same run gives the same bytes, and unpacking
never gives more than the archive's size.

An anonymous archive omits the paths in the recipe and in all its copies, a TPU's address, the outlines of the
training scenes, and the pictures and page with imagery. Weights, scores and settings are unchanged: it
predicts the same bits, and training can resume with `--set dataset.root=…`.
"""

from __future__ import annotations

import hashlib
import io
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
from typing import Any

import numpy as np

from segmenter.base.errors import CheckpointError, OutputError, SegmenterError, failing, shorten
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
from segmenter.base.invocation import invocation, quote_path
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.extras.sharing.card import FILE as CARD
from segmenter.extras.sharing.card import card_text
from segmenter.extras.sharing.known_facts import RunFactsForOthers, read_known
from segmenter.extras.sharing.stac import FILE as STAC
from segmenter.extras.sharing.stac import item_text
from segmenter.runs.checkpoints import BEST, META, checkpoints, load_arrays, save_arrays
from segmenter.runs.log import LOG
from segmenter.runs.records import (
    ACCURACY,
    CALIBRATION,
    PROGRESS,
    SETS,
    WINDOWS,
    load_calibration,
    load_origin,
    save_origin,
    write_calibration,
)
from segmenter.runs.records import FILE as ORIGIN
from segmenter.runs.report.sections import REPORT
from segmenter.runs.resume import CheckpointFacts
from segmenter.runs.run import RECIPE_FILE, RUN_FILE, Run, load_run
from segmenter.runs.scenes import FILE as SCENES
from segmenter.runs.scenes import load_scenes, save_scenes
from segmenter.runs.score_files import BEST_FILES, LAST_FILES, SUMMARY

SUMS = "SHA256SUMS"
RUN_FILES = (
    *(RUN_FILE, RECIPE_FILE, SCENES, ORIGIN, *BEST_FILES, SUMMARY, *LAST_FILES),
    *("learning_curves.png", LOG, REPORT, WINDOWS, PROGRESS, CALIBRATION, SETS, ACCURACY),
)
"""Files of a run that are packed where they exist, besides weights and checkpoints. Not `validation.json`:
its paths are of no use elsewhere."""
_ALLOWED = {SUMS, BEST, CARD, STAC, *RUN_FILES, "pack.json"}
"""Names in an archive, besides checkpoints; earlier versions added pack.json."""
_STEP = re.compile(r"checkpoints/step-\d{1,15}\.npz")
_SHOWING = (SUMMARY, REPORT, WINDOWS, PROGRESS)
"""Files that show imagery or paths."""
_PATHS = (("dataset", "root"), ("dataset", "files"), ("dataset", "cache"), ("distribution", "tpu"))
LEFT_OUT = "left-out"
"""Value of `dataset.root` in an anonymous recipe."""
_TIME = (1980, 1, 1, 0, 0, 0)
"""Earliest time of a zip file; the real one would change the bytes of the same run."""
_DAMAGE = (ValueError, EOFError, KeyError, RuntimeError, OverflowError, struct.error, zipfile.BadZipFile)
"""Errors of `zipfile` on damaged files, besides OSError."""
Content = Path | bytes


@dataclass(frozen=True)
class Packed:
    """Result of packing.

    Attributes:
        files: names in the archive.
        paths: settings of the recipe with paths, and the paths; empty if removed.
        left_out: names in the run directory that are not in the archive.
    """

    files: tuple[str, ...]
    paths: tuple[str, ...]
    left_out: tuple[str, ...]


def resumable(files: Iterable[str]) -> bool:
    """Return whether training can resume from an archive with these files."""
    return any(name.startswith("checkpoints/") for name in files)


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
        undo.enter_context(_without_training(run))
        known = read_known(run)
        known.run.calibration()  # which must be of these weights
        names = _names(known, with_checkpoints)
        if anonymous:
            folder = undo.enter_context(folder_aside(output))
            names = copy_without_paths(known, names, folder)
            known = read_known(folder)
        files: dict[str, Content] = {name: known.run.path / name for name in names}
        # Those in the run may be edited by its owner, and may say where the scenes lie.
        for name, command, text in ((CARD, "card", card_text), (STAC, "stac", item_text)):
            own = None if anonymous else _description(run / name, known.fingerprint, command)
            files[name] = own or text(known, licence).encode()
        _write(output, files)
    paths = () if anonymous else tuple(paths_of(known.run.recipe))
    return Packed((*files, SUMS), paths, tuple(sorted(_unpacked_names(run, "", {*files, SUMS}))))


def _unpacked_names(folder: Path, prefix: str, packed: Collection[str]) -> Iterator[str]:
    """Yield names in a run directory that are not packed; for an unpacked folder, only its name."""
    for path in folder.iterdir():
        name = prefix + path.name
        if any(each.startswith(f"{name}/") for each in packed):
            yield from _unpacked_names(path, f"{name}/", packed)
        elif name not in packed and not path.name.startswith("."):
            yield name


def _names(known: RunFactsForOthers, with_checkpoints: bool) -> list[str]:
    """Return the files of a run to pack: weights, undamaged checkpoints, and further existing files."""
    run = known.run.path
    steps = list(checkpoints(run).values()) if with_checkpoints else []
    for path in steps:
        load_arrays(path)
    names = [path.relative_to(run).as_posix() for path in (known.weights, *steps)]
    return list(dict.fromkeys([*names, *(name for name in RUN_FILES if (run / name).is_file())]))


@contextmanager
def _without_training(run: Path) -> Iterator[None]:
    """Lock a run against trainings in the block, if its folder is writable."""
    lock = FileLock(run / ".lock")
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


def _description(path: Path, fingerprint: str, command: str) -> bytes | None:
    """Return a description in the run; None if it has none.

    Raises:
        CheckpointError: it belongs to other weights.
    """
    if not path.exists():
        return None
    text = read_regular(path)
    if fingerprint[:16].encode() not in text:
        anew = f"{invocation('runs')} {command} {quote_path(path.parent)} --overwrite"
        raise CheckpointError(
            path,
            expected=f"a description of these weights, it does not name their fingerprint {fingerprint}",
            remedy=f"remove it, or write it anew: {anew}",
        )
    return text


def _write(output: Path, files: Mapping[str, Content]) -> None:
    with written_whole(output) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        sums = {name: _add(archive, name, files[name]) for name in sorted(files)}
        _add(archive, SUMS, "".join(f"{sums[name]}  {name}\n" for name in sums).encode())


def _add(archive: zipfile.ZipFile, name: str, content: Content) -> str:
    """Add a file uncompressed; return its SHA-256."""
    info, digest = zipfile.ZipInfo(name, _TIME), hashlib.sha256()
    info.external_attr, info.create_system = 0o100644 << 16, 3
    info.file_size = len(content) if isinstance(content, bytes) else content.stat().st_size
    source = io.BytesIO(content) if isinstance(content, bytes) else content.open("rb")
    with source, archive.open(info, "w") as part:
        while piece := source.read(1 << 20):
            digest.update(piece)
            part.write(piece)
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------- anonymous


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
            if _copy(source, target, run):
                shutil.copystat(source, target)
                copied.append(name)
    return copied


def _copy(source: Path, target: Path, run: Run) -> bool:
    """Copy a file without paths and places; return False where it cannot be read, and may hold some."""
    if target.suffix == ".npz":
        save_arrays(target, _rewrite_checkpoint(source, run))
    elif target.name == ORIGIN:
        if (origin := load_origin(source.parent)) is None:
            return False
        chosen = origin.chosen_by
        if chosen is not None:
            chosen = chosen.model_copy(update={"runs": tuple(Path(each).name for each in chosen.runs)})
        save_origin(target.parent, origin.model_copy(update={"place": None, "chosen_by": chosen}))
    elif target.name == CALIBRATION and (found := load_calibration(source.parent)) is not None:
        write_calibration(
            target.parent, found.model_copy(update={"copied_from": Path(found.copied_from).name})
        )
    elif target.name == SCENES and (known := load_scenes(source.parent)) is not None and known.told:
        scenes = {name: replace(each, place=None, path="") for name, each in known.scenes.items()}
        save_scenes(target.parent, replace(known, scenes=scenes))
    else:
        shutil.copyfile(source, target)
    return True


def _rewrite_checkpoint(path: Path, run: Run) -> dict[str, Any]:
    """Return the arrays of a checkpoint with its copies of the recipe replaced by the run's."""
    arrays = load_arrays(path)
    arrays |= {name: text for name, text in run.text_arrays().items() if name in arrays}
    if META in arrays:
        facts = CheckpointFacts.model_validate_json(arrays[META].tobytes())
        facts = facts.model_copy(update={"recipe": run.recipe.model_dump(mode="json")})
        arrays[META] = np.frombuffer(facts.model_dump_json().encode(), np.uint8)
    return arrays


# ---------------------------------------------------------------------------------------- unpacking


def unpack_run(file: Path, output: Path | None) -> tuple[Run, list[str]]:
    """Unpack a run, fully checked, into a new or empty folder, or write nothing.

    Args:
        output: the folder; None: `runs/NAME` of the file NAME.run.zip.

    Returns:
        The run, and the names of its files.

    Raises:
        CheckpointError: the file is damaged, truncated, or no packed run; nothing is written.
        SegmenterError: the folder is not empty or not writable.
    """
    name = file.name.removesuffix(".zip").removesuffix(".run")
    folder = output if output is not None else Path("runs") / (name or "run")
    whole = folder.absolute()
    with _refusing_damage(file):
        if not stat.S_ISREG(file.stat().st_mode):
            raise ValueError("a folder, a pipe or a device")
        with zipfile.ZipFile(file) as archive:
            sums = _checked_sums(archive, file.stat().st_size)
            with failing(SegmenterError, folder, "cannot write there"):
                make_folder(whole.parent)
            with alone_writing(whole), folder_aside(whole) as aside:
                if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
                    raise SegmenterError(folder, "exists already", remedy="name another folder with --output")
                for name in (*sums, SUMS):
                    _extract(archive, name, aside / "run", sums.get(name), folder)
                run = _checked_run(aside / "run")
                _give_name(aside / "run", folder)
    return replace(run, path=folder), [*sums, SUMS]


@contextmanager
def _refusing_damage(file: Path) -> Iterator[None]:
    """Convert errors of reading an archive in the block to one line."""
    what = f"a run that `{invocation('runs')} pack` wrote"
    try:
        yield
    except _DAMAGE as error:
        why = shorten(" ".join(str(error).split())) or type(error).__name__
        raise CheckpointError(file, expected=f"{what}; it is damaged or another file ({why})") from None
    except OSError as error:
        raise CheckpointError(file, f"cannot read it: {error.strerror or error}") from None


def _checked_sums(archive: zipfile.ZipFile, size: int) -> dict[str, str]:
    """Return the SHA-256 of every other file in the archive, by name.

    Raises:
        ValueError: a name is unknown (it could lead out of the folder), missing or without a checksum, or the
            content could exceed `size`, the archive's own.
    """
    check_stored(archive, size)
    names = set(archive.namelist())
    for name in names:
        if name not in _ALLOWED and not _STEP.fullmatch(name):
            raise ValueError(f"it holds {shorten(name)!a}, which is no file of a run")
    lines = archive.read(SUMS).decode("ascii").splitlines()
    pairs = [re.fullmatch(r"([0-9a-f]{64})  (.+)", line) for line in lines]
    sums = {pair[2]: pair[1] for pair in pairs if pair is not None}
    if not len(lines) == len(sums) or sums.keys() != names - {SUMS}:
        raise ValueError(f"{SUMS} has not one checksum for each file")
    return sums


def _extract(archive: zipfile.ZipFile, name: str, folder: Path, expected: str | None, output: Path) -> None:
    target, digest = folder / name, hashlib.sha256()
    with (
        failing(OutputError, output, f"cannot write {name}", "is the disk full?"),
        archive.open(name) as part,
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as written:
            while piece := part.read(1 << 20):
                digest.update(piece)
                written.write(piece)
            written.flush()
            os.fsync(written.fileno())
    if expected is not None and digest.hexdigest() != expected:
        raise ValueError(f"{name}: another SHA-256")


def _checked_run(folder: Path) -> Run:
    """Refuse files with valid checksums that are still no usable run."""
    try:
        run = load_run(folder)
        run.weights()
        run.calibration()
    except SegmenterError as error:
        raise ValueError(
            str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the run")
        ) from None
    return run


def _give_name(inner: Path, folder: Path) -> None:
    with failing(SegmenterError, folder, "cannot write there"):
        for below in (inner / "checkpoints", inner):
            if below.is_dir():
                sync(below)
        os.rename(inner, real(folder))  # on an empty folder, too
        sync(real(folder).parent)
