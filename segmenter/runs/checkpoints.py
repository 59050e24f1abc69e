"""Checkpoints of a run directory: `checkpoints/step-N.npz`, and `best.npz`; imports no TensorFlow itself.

They are files of named arrays that detect damage and never run code when loaded. A zip's CRC has only 32 bits
and covers the content of its parts, not their names. So a file also has a SHA-256 of all arrays: names,
dtypes, shapes and bytes.
"""

from __future__ import annotations

import hashlib
import io
import re
import struct
import tokenize
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import CheckpointError, DamagedCheckpointError, failing, shorten
from segmenter.base.files import check_stored, make_folder, write_whole
from segmenter.base.sealed import other_format

BEST = "best.npz"
_STEP = re.compile(r"step-(\d+)\.npz")
Arrays = dict[str, NDArray[Any]]
META = "meta"
"""Array with the record of how a checkpoint was made: the bytes of a JSON text."""
FORMAT = 3
"""Version of the files and of the meaning of their arrays, each under its name."""
_DIGEST, _FORMAT = "sha256", "format"
_DAMAGE = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, RuntimeError, MemoryError, OverflowError),
    *(SyntaxError, tokenize.TokenError, struct.error, zipfile.BadZipFile),
)
"""Errors of `zipfile` and NumPy about damaged files; each was seen (RuntimeError: "encrypted")."""


def save_checkpoint(run: Path, step: int, arrays: Mapping[str, NDArray[Any]], keep: int) -> Path:
    """Write the checkpoint of a step, completely or not at all, then remove all but the newest `keep`."""
    folder = run / "checkpoints"
    make_run_folder(folder)
    path = folder / f"step-{step:08d}.npz"
    save_arrays(path, arrays)
    for old in list(checkpoints(run).values())[:-keep]:
        old.unlink(missing_ok=True)
    return path


def make_run_folder(folder: Path) -> None:
    """Make a folder of a run directory.

    Raises:
        CheckpointError: the folder cannot be made.
    """
    with failing(CheckpointError, folder, "cannot make the folder"):
        make_folder(folder)


def has_checkpoint(run: Path) -> bool:
    """Return True if a run directory has a checkpoint to resume from."""
    return bool(checkpoints(run))


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run directory, without checking it for damage."""
    paths = list(checkpoints(run).values())
    if not paths:
        raise CheckpointError(run, expected=f"a checkpoint in {run / 'checkpoints'}, there is none yet")
    return paths[-1]


def newest_whole(run: Path, *, but: Path | None = None) -> Path | None:
    """Return the newest checkpoint that is not damaged and not `but`; None if no other is whole."""
    for path in reversed(checkpoints(run).values()):
        with suppress(CheckpointError):
            if path != but:
                load_arrays(path)
                return path
    return None


def checkpoints(run: Path) -> dict[int, Path]:
    """Return the checkpoint files by step, oldest first, without the best model."""
    matches = ((_STEP.fullmatch(path.name), path) for path in (run / "checkpoints").glob("step-*.npz"))
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


# -------------------------------------------------------------------------------------------- files of arrays


def save_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays to a file, completely or not at all.

    The same arrays give the same bytes: no times or paths are written.

    Raises:
        SegmenterError: the file cannot be written; an older file stays unchanged.
    """
    buffer = io.BytesIO()
    # The digest comes first: a table of contents that is cut short loses others before it.
    arrays = {_FORMAT: np.array(FORMAT), **arrays}
    np.savez(buffer, allow_pickle=False, **{_DIGEST: arrays_digest(arrays), **arrays})
    write_whole(path, buffer.getbuffer())


def load_some(path: Path, names: Sequence[str]) -> Arrays:
    """Load some small arrays of a file without reading the others; detects damage only in these.

    Raises:
        CheckpointError: the file is missing or unreadable.
        DamagedCheckpointError: the file is damaged or lacks one of them.
    """
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            _check_contents(archive, path.stat().st_size)
            parts = {
                name: io.BytesIO(archive.read(f"{name}.npy")) for name in names
            }  # checks the CRC of each
        return {name: np.lib.format.read_array(part, allow_pickle=False) for name, part in parts.items()}
    except FileNotFoundError:
        raise CheckpointError(path, expected="a checkpoint, there is none") from None
    except _DAMAGE as error:
        what = shorten(" ".join(str(error).split())) or type(error).__name__
        raise DamagedCheckpointError(path, f"damaged checkpoint ({what})") from None


def load_arrays(path: Path) -> Arrays:
    """Load the arrays of a file; this never runs code.

    Raises:
        CheckpointError: the file is missing, unreadable, or of another format.
        DamagedCheckpointError: the file is damaged, or not written by this program.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe or a device might never end
            raise DamagedCheckpointError(path, expected="a file", got="a pipe, a device or a folder")
        content = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(path, expected="a checkpoint, there is none") from None
    except OSError as error:
        raise CheckpointError(path, f"cannot read the checkpoint: {error.strerror}") from None
    try:
        arrays = _parts(content)
    except _DAMAGE as error:
        what = shorten(" ".join(str(error).split())) or type(error).__name__
        raise DamagedCheckpointError(path, f"damaged checkpoint ({what})") from None
    digest = arrays.pop(_DIGEST, None)
    if digest is None or digest.tobytes() != arrays_digest(arrays).tobytes():
        raise DamagedCheckpointError(path, "damaged checkpoint (its SHA-256 is another, or missing)")
    version = arrays.pop(_FORMAT, np.array(None)).tolist()
    if version != FORMAT:
        raise CheckpointError(path, other_format(FORMAT, version))
    return arrays


def _parts(content: bytes) -> Arrays:
    arrays = {}
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        _check_contents(archive, len(content))
        for part in archive.infolist():
            array = io.BytesIO(archive.read(part))  # all of it, so that its CRC is checked before its header
            arrays[part.filename.removesuffix(".npy")] = np.lib.format.read_array(array, allow_pickle=False)
    return arrays


def _check_contents(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse a zip directory with repeated names, overlapping parts, or parts that are not plain arrays."""
    for part in archive.infolist():
        if not part.filename.endswith(".npy"):
            raise ValueError(f"{part.filename}: expected a plain array")
    check_stored(archive, size)


def arrays_digest(arrays: Mapping[str, NDArray[Any]]) -> NDArray[np.uint8]:
    """Return (32,) bytes: the SHA-256 of arrays' names, dtypes, shapes and values, in any order."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        digest.update(np.ascontiguousarray(array).data if array.size else b"")
    return np.frombuffer(digest.digest(), np.uint8)


# ----------------------------------------------------------------------------------- weights of a Keras model


def _is_dropout(variable: Any) -> bool:
    """Return True for a variable of dropout's random state, which is not learned."""
    return str(variable.path).endswith("/masks")


def weight_arrays(model: Any, prefix: str) -> Arrays:
    """Return a Keras model's weights by variable path; with several replicas, the first one's."""
    return {f"{prefix}/{variable.path}": np.asarray(variable.numpy()) for variable in model.variables}


def assign_weights(
    model: Any, arrays: Mapping[str, NDArray[Any]], prefix: str, *, predicting: bool = False
) -> None:
    """Set all weights of a model; for predicting, without the state of dropout's masks.

    Raises:
        CheckpointError: a weight is missing or has another shape; the message names the first.
    """
    for variable in model.variables:
        if predicting and _is_dropout(variable):
            continue
        value = arrays.get(f"{prefix}/{variable.path}")
        if value is None and _is_dropout(variable):
            raise CheckpointError(
                "checkpoint",
                expected=f"where dropout's masks stand ({variable.path})",
                got="none: an older program wrote it",
                remedy="predict with this run, or use --init-from to start a new one from it",
            )
        if value is None or value.shape != tuple(variable.shape):
            got = "none" if value is None else str(value.shape)
            raise CheckpointError(
                "checkpoint", expected=f"weight {variable.path} of shape {tuple(variable.shape)}", got=got
            )
        variable.assign(value)


def _prefix_of_learned(names: Iterable[str]) -> str:
    return "ema/" if any(name.startswith("ema/") for name in names) else "model/"


def learned_weights(arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """Return a checkpoint's weights for prediction under `model/`: averaged ones if it has them."""
    prefix = _prefix_of_learned(arrays)
    return {f"model/{n.removeprefix(prefix)}": array for n, array in arrays.items() if n.startswith(prefix)}


def fingerprint(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the SHA-256 of the weights that predict, by name: the same whatever file they are in."""
    learned = {n: a for n, a in learned_weights(arrays).items() if not n.endswith("/masks")}
    return arrays_digest(learned).tobytes().hex()


def file_fingerprint(path: Path) -> str:
    """Return the `fingerprint` of a file of weights; it is computed anew only if the file has changed.

    Raises:
        CheckpointError: the file is missing or unreadable.
        DamagedCheckpointError: the file is damaged.
    """
    with failing(CheckpointError, path, "cannot read the checkpoint"):
        state = path.stat()
    key = (state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    return _fingerprint_in(path.absolute(), key)


@lru_cache(maxsize=64)
def _fingerprint_in(path: Path, state: tuple[int, ...]) -> str:
    """Read only the weights that predict: the optimiser's state may take twice their size."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [part.removesuffix(".npy") for part in archive.namelist()]
    except _DAMAGE as error:
        what = shorten(" ".join(str(error).split())) or type(error).__name__
        raise DamagedCheckpointError(path, f"damaged checkpoint ({what})") from None
    prefix = _prefix_of_learned(names)
    return fingerprint(load_some(path, [name for name in names if name.startswith(prefix)]))


def transfer_weights(
    model: Any, arrays: Mapping[str, NDArray[Any]], *, same_classes: bool = True
) -> tuple[list[str], list[str]]:
    """Set weights whose name and shape match, for fine-tuning; return (names set, names left random).

    With other classes the head stays random, even if it has the same number of outputs.
    """
    transferred, fresh = [], []
    for variable in model.variables:
        if _is_dropout(variable):
            continue  # where dropout's randomness stands is no knowledge to carry over
        value = arrays.get(f"model/{variable.path}")
        if variable.path.startswith("logits/") and not same_classes:
            value = None
        if value is not None and value.shape == tuple(variable.shape):
            variable.assign(value)
            transferred.append(variable.path)
        else:
            fresh.append(variable.path)
    return transferred, fresh
