"""Small files, written whole or not at all (law 8, *nothing half-written is ever visible*); file helpers."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import itertools
import os
import re
import shutil
import stat
import tempfile
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path, PurePath
from typing import BinaryIO, Self

from segmenter.base.errors import FULL, OutputError, SegmenterError, failing

VECTOR_ENDINGS = (".gpkg", ".geojson", ".shp", ".fgb", ".parquet")
"""Endings of files of polygons."""


def compose_accents(text: str) -> str:
    """Return a text with each accent in its letter (NFC); names from macOS archives have them apart (NFD)."""
    return unicodedata.normalize("NFC", text)


def walk_once(
    root: str | Path, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """Yield `root` and each folder below it with its file names; sorted, without hidden ones.

    Links to folders are followed, but no folder is visited twice: two links to their own parent would
    otherwise give 2⁴⁰ paths.
    """
    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=onerror):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield folder, sorted(name for name in names if not name.startswith("."))


def matches(pattern: str) -> list[str]:
    """Return the paths that match a glob pattern, sorted; `**` matches any folders, each visited once."""
    return sorted(set(_matches(pattern)))


def _matches(pattern: str) -> Iterator[str]:
    parts = pattern.split("/")
    if "**" not in parts:
        yield from glob.iglob(pattern)
        return
    first = parts.index("**")
    while parts[first + 1 : first + 2] == ["**"]:  # two in a row mean one
        del parts[first]
    rest = "/".join(parts[first + 1 :])
    for start in _folders("/".join(parts[:first]), from_root=pattern.startswith("/")):
        for folder, names in walk_once(start or "."):
            inside = folder if start else os.path.relpath(folder, ".")
            base = "" if inside == "." and not start else os.path.join(inside, "")
            if not rest:
                names = [] if pattern.endswith("/") else names
                yield from filter(None, (base, *(base + name for name in names)))
            else:
                yield from _matches(glob.escape(base) + rest)


def _folders(pattern: str, *, from_root: bool) -> list[str]:
    if not pattern:
        return ["/"] if from_root else [""]
    return sorted(glob.glob(pattern))


def is_vector(name: str | PurePath) -> bool:
    """Return whether a file name, or a pattern of names, has the ending of a vector file."""
    return PurePath(name).suffix.lower() in VECTOR_ENDINGS


_NONE_HERE = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL)
"""Errors of file systems without locks: Lustre mounted without them, some of FUSE, SMB and NFS."""


class FileLock:
    """Lock on a file, which serves no other purpose or must exist and stays.

    A file of no other purpose is deleted when the lock is released; after a kill it stays, empty, until the
    next lock.

    Attributes:
        missing: reason why the file system has no locks, set by `take`; None if it has. Without locks, other
            processes are not kept out, and no file stays.
    """

    def __init__(self, path: Path, *, shared: bool = False, keeps_file: bool = False) -> None:
        """Name the file; a `shared` lock keeps out only those that are not.

        Args:
            keeps_file: True for an existing file with a content of its own.
        """
        self.path, self._kind = path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        self._keeps_file = keeps_file
        self.missing: str | None = None
        self._handle: int | None = None

    def take(self, *, wait: bool = False) -> None:
        """Take the lock at once, or fail; `wait`: when it is free.

        Raises:
            BlockingIOError: another process has the lock.
            OSError: the lock file cannot be made, or the file to lock is missing.
        """
        self.missing = None
        while self._handle is None and self.missing is None:
            self._handle = self._try(0 if wait else fcntl.LOCK_NB)

    def _try(self, how: int) -> int | None:
        flags = os.O_RDONLY | os.O_NONBLOCK if self._keeps_file else os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        handle = os.open(self.path, flags | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, self._kind | how)
            # Whoever had it may have removed the file in between: then this is a lock on nothing.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(handle), os.stat(self.path)):
                    kept, handle = handle, -1
                    return kept
        except BlockingIOError:
            raise
        except OSError as error:
            if not self._keeps_file:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            if error.errno not in _NONE_HERE:
                raise
            self.missing = error.strerror
        finally:
            if handle >= 0:
                os.close(handle)
        return None

    def release(self) -> None:
        """Release the lock, if it was taken."""
        handle, self._handle = self._handle, None
        if handle is not None:
            if not self._keeps_file:
                with contextlib.suppress(OSError):
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which fails while others share it
                    self.path.unlink()
            os.close(handle)


_ASIDE = re.compile(r"\..+\.(npz|json|jsonl|yaml|png|html)\.[a-z0-9_]{8}")
"""Names of temporary files in our own folders; elsewhere only those of killed processes are removed."""
_LETTERS = re.compile(r"[a-z0-9_]{8}")
"""Characters that `tempfile` appends to a name."""
_SETTLED_NS = 2_000_000_000
"""Age of a change from which on another one shows: clocks of file systems tick in up to 2 s."""
PIECES = 16
"""Pieces of a long file that its digest samples."""


class Closing:
    """A context that closes itself at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what it holds."""
        raise NotImplementedError


FileState = tuple[str, int, int]
"""Name, bytes, and time of change in nanoseconds; -1 and -1 of a missing file."""


def file_state(path: Path | str) -> FileState:
    """Return the state of a file or folder; it differs once the file has changed."""
    try:
        state = os.stat(path) if isinstance(path, str) else path.stat()  # a remote one asks its server
    except (OSError, ValueError):
        return os.path.basename(str(path)), -1, -1
    return os.path.basename(str(path)), state.st_size, state.st_mtime_ns


def has_settled(changed_ns: int, looked_ns: int | None = None) -> bool:
    """Return whether any change after this look (None: now) would alter the file's modification time."""
    return (time.time_ns() if looked_ns is None else looked_ns) - changed_ns > _SETTLED_NS


def sampled_digest(file: BinaryIO, size: int, length: int, head: bytes = b"") -> str:
    """Return the SHA-256 of `head` and of a file's content, sampled where it is long.

    Args:
        length: bytes of each of `PIECES` evenly spaced pieces, with both ends; a file that is not longer than
            all of them is read completely.
    """
    total = hashlib.sha256(head)
    if size <= PIECES * length:
        total.update(file.read(PIECES * length))
        return total.hexdigest()
    for piece in range(PIECES):
        file.seek((size - length) * piece // (PIECES - 1))
        total.update(file.read(length))
    return total.hexdigest()


def check_writable(path: Path) -> None:
    """Check, before long work, that a file can be written at its end.

    Raises:
        SegmenterError: the path is a folder, or its parent is missing or not writable.
    """
    if path.is_dir():
        raise SegmenterError(path, expected="the name of a file to write, it is a folder")
    if not path.parent.is_dir():
        raise SegmenterError(path, f"cannot write there, there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise SegmenterError(path, f"cannot write to the folder {path.parent}; name a file elsewhere")


def write_whole(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` completely or not at all, like `written_whole`."""
    with written_whole(path) as file:
        file.write(content)


@contextlib.contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a temporary file for writing; rename it to `path` when the block ends without an error.

    An older file stays until then. Afterwards content and name are on the disk and survive a power failure.

    Raises:
        SegmenterError: the folder is missing or not writable (OutputError if the disk is full).
    """
    try:
        handle, aside = _make_aside(path)
    except OSError as error:
        kind = OutputError if error.errno in FULL else SegmenterError
        raise kind(path, f"cannot write there: {error.strerror}") from None
    try:
        with failing(OutputError, path, "cannot write it", "is the disk full?"):
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.chmod(0o666 & ~_umask())  # 0600 would hide the result from colleagues
            aside.replace(path)
            sync(path.parent)
    finally:
        aside.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """Make a temporary folder beside `path`; remove it at the end, and now those of killed calls.

    Raises:
        SegmenterError: the folder cannot be made.
    """
    remove_killed(path)
    with failing(SegmenterError, path.parent, "cannot write there"):
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        handle = os.open(folder, os.O_RDONLY)
    try:
        _hold(handle)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)


def _make_aside(path: Path) -> tuple[int, Path]:
    """Make, lock and return a temporary file beside a path; remove those that killed calls left.

    Names are numbered, so that leftovers are met without listing the folder, which may have many files.

    Raises:
        OSError: it cannot be made.
    """
    for number in itertools.count():
        aside, further = (path.with_name(f".{path.name}.{n:08d}") for n in (number, number + 1))
        if not _remove_leftover(aside):
            continue
        _remove_leftover(further)  # of two calls at once that were killed
        with contextlib.suppress(FileExistsError):  # another process was faster
            handle = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if _hold(handle) and _names(aside, handle):
                return handle, aside
            os.close(handle)
    raise AssertionError("numbers have no end")


def remove_killed(path: Path) -> None:
    """Remove the temporary files and folders that killed calls left beside a path."""
    start = f".{path.name}."
    for left in path.parent.glob(f"{glob.escape(start)}*"):
        if _LETTERS.fullmatch(left.name.removeprefix(start)):
            _remove_leftover(left)


def _hold(handle: int) -> bool:
    """Lock an open file or folder, to show other processes that it is in use until it is closed.

    Without locks nothing is ever taken for a killed call's. False: another process looks whether it is.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _names(path: Path, handle: int) -> bool:
    """Return whether a path still is the open file."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _remove_leftover(left: Path) -> bool:
    """Return whether a path is free, after a killed call's file or folder was removed from it."""
    try:
        with open_descriptor(left, os.O_RDONLY | os.O_NONBLOCK) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _names(left, handle):
                return False
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def read_regular(path: Path, most: int = 1 << 24) -> bytes:
    """Return the content of a small regular file; a pipe or a device could block and is refused.

    Raises:
        SegmenterError: the file is missing, not a regular file, larger than `most` bytes, or unreadable.
    """
    with failing(SegmenterError, path, "cannot read it"):
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):
                raise SegmenterError(path, expected="a file", got="a pipe, a device or a folder")
            if state.st_size > most:
                raise SegmenterError(path, expected=f"at most {most} bytes", got=state.st_size)
            return file.read(most)


def check_stored(archive: zipfile.ZipFile, size: int) -> None:
    """Refuse a zip file that would unpack to more than its own bytes: compressed, or with overlapping parts.

    Args:
        size: size of the file in bytes.

    Raises:
        ValueError: the reason.
    """
    parts = archive.infolist()
    for part in parts:
        if part.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{part.filename}: expected it stored as it is, got it compressed")
    if len({part.filename for part in parts}) < len(parts):
        raise ValueError("a part is named twice")
    if sum(part.file_size for part in parts) > size:
        raise ValueError("its parts would be larger than the file")


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, and write their names to the disk.

    Raises:
        OSError: a folder cannot be made.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for made in missing:
        with contextlib.suppress(PermissionError):  # a folder can be written to that cannot be read
            sync(made.parent)


def caches() -> Path:
    """Return this program's folder in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "coverage-segmenter"


def gibibytes(count: float) -> str:
    """Return a number of bytes as text in GiB or MiB."""
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def on_disk(path: Path) -> bool:
    """Return whether a path is of a file system; addresses of files at servers are none."""
    return isinstance(path, os.PathLike)


def real(path: Path) -> Path:
    """Return a path with all links resolved, an address as it is.

    Unlike `Path.resolve`, circular links raise only OSError.
    """
    return Path(os.path.realpath(path)) if on_disk(path) else path


def shortest_ends(paths: Iterable[Path]) -> list[str]:
    """Return the name of each path, with as many folders before it as make them differ."""
    parts = [path.absolute().parts for path in paths]
    most = max(map(len, parts), default=0)
    depth = next((n for n in range(1, most) if len({own[-n:] for own in parts}) == len(parts)), most)
    return ["/".join(own[-depth:]).replace("//", "/") for own in parts]


def special(status: os.stat_result) -> bool:
    """Return True for a pipe, a device or a socket: reading it could block."""
    return not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


@contextlib.contextmanager
def open_descriptor(path: Path, flags: int) -> Iterator[int]:
    """Open a file with `os.open`'s flags and yield its descriptor; refuse symbolic links."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        yield handle
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names of a folder or of a link to one, is on the disk.

    Until then a rename exists only in memory.
    """
    if not path.is_dir():
        with open_descriptor(path, os.O_RDONLY) as handle:
            os.fsync(handle)
        return
    # Some network file systems cannot, and do it at once anyway.
    with open_descriptor(real(path), os.O_RDONLY) as handle, contextlib.suppress(OSError):
        os.fsync(handle)


@contextlib.contextmanager
def exclusive_lock(folder: Path) -> Iterator[str | None]:
    """Create the folder and lock it for this process; the lock is released if the process dies.

    Yields a warning if the file system has no locks: other processes are then not kept out.

    Raises:
        SegmenterError: another process has locked it, or it is not writable.
    """
    lock = FileLock(folder / ".lock")
    with failing(SegmenterError, folder, "cannot write there"):
        make_folder(folder)
    _take(lock, folder, "there")
    try:
        yield None if lock.missing is None else no_locks(folder, lock.missing)
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive_outputs(
    path: Path,
    *earlier: Path,
    overwrite: bool = False,
    remedy: str,
    kind: type[SegmenterError] = SegmenterError,
) -> Iterator[None]:
    """Keep other calls from a command's output files in the block, and refuse files that exist.

    The lock of a killed call stays: what that call wrote `earlier` is then written anew. After an error, such
    files of this call are removed.

    Args:
        path: the file that the command writes last: once it exists, all is written.
        earlier: files that it writes before that one.
        overwrite: True: existing files are replaced.
        remedy: advice if a file exists.
        kind: class of that error.

    Raises:
        SegmenterError: a file exists, another process is at work, or the folder is not writable.
    """
    check_writable(path)
    with alone_writing(path) as killed:
        own = [each for each in earlier if killed or not os.path.lexists(each)]
        for each in () if overwrite else (path, *(each for each in earlier if each not in own)):
            if os.path.lexists(each):
                raise kind(each, "exists already", remedy=remedy)
        try:
            yield
        except BaseException:
            for each in own if not path.exists() else ():
                with contextlib.suppress(OSError):
                    each.unlink()
            raise


@contextlib.contextmanager
def alone_writing(path: Path) -> Iterator[bool]:
    """Keep other calls from a file or folder that a command writes; yield whether a killed call had it.

    Raises:
        SegmenterError: another process is at work, or the folder is not writable.
    """
    lock = FileLock(path.with_name(f".{path.name}.call.lock"))
    killed = lock.path.exists()
    _take(lock, path, "it")
    try:
        yield killed
    finally:
        lock.release()


def _take(lock: FileLock, path: Path, where: str) -> None:
    """Take the lock of a path, which is refused if another process is writing `where`: it, or there."""
    with failing(SegmenterError, path, "cannot write there"):
        try:
            lock.take()
        except BlockingIOError:
            raise SegmenterError(
                path, f"another process is writing {where}", remedy="wait until it has ended, or stop it"
            ) from None


def no_locks(folder: Path, why: str) -> str:
    """Return the warning for a folder on a file system without locks."""
    return f"{folder}: its file system has no file locks ({why}); make sure that only one call writes there"


def remove_leftovers(folder: Path) -> int:
    """Remove temporary files that killed processes left in a folder; return how many.

    Only for folders that a single process writes to.
    """
    left = [path for path in folder.glob(".*") if _ASIDE.fullmatch(path.name) and path.is_file()]
    for path in left:
        path.unlink(missing_ok=True)
    return len(left)


def may_be_full(error: BaseException | None) -> bool:
    """Return True if a write error may mean a full disk: the system reports the cause, GDAL does not."""
    number: int | None = None
    while error is not None and number is None:
        number = error.errno if isinstance(error, OSError) else None  # GDAL's errors have one of its own
        error = error.__context__
    return number is None or number in FULL


def _umask() -> int:
    """Return the process's file mode mask; reading it requires setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
