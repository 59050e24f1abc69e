"""Remote rasters: addresses in place of files, settings, retries, and the same bytes while a file is read.

A file is identified by its ETag, or by time of change and size if the server gives none. Requests carry the
condition that the file is unchanged (`If-Match`); if a server ignores conditions, its tag is checked again
after each reading.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from segmenter.base.addresses import join_address, mask_secrets
from segmenter.base.errors import ChangedInputError, DatasetError, RasterError
from segmenter.raster.gdal.faults import FAULTS, one_line
from segmenter.raster.gdal.files import (
    NETWORK,
    asked_tag,
    close_file,
    file_state,
    is_network,
    open_file,
    read_at,
    set_condition,
)
from segmenter.raster.gdal.files import forget as forget_file

if TYPE_CHECKING:
    from pathlib import PosixPath as _HandedOn  # so that what hands paths on takes addresses, too

    from _typeshed import WriteableBuffer
else:
    _HandedOn = object

_SCHEMES = {"http": "/vsicurl/http://", "https": "/vsicurl/https://", "s3": "/vsis3/", "gs": "/vsigs/"}
_SCHEMES |= {"az": "/vsiaz/"}
_SETTINGS = {
    "GDAL_HTTP_CONNECTTIMEOUT": "10",
    # An answer that stands still for so long is given up; one that goes on may take any time.
    "GDAL_HTTP_LOW_SPEED_LIMIT": "1000",
    "GDAL_HTTP_LOW_SPEED_TIME": "30",
    # Of 429 and 500 to 504, each time after a pause twice as long: 22 s together.
    "GDAL_HTTP_MAX_RETRY": "5",
    "GDAL_HTTP_RETRY_DELAY": "0.5",
}
"""The one place for how patient we are with a server; a user's own setting wins."""
_PIECE = 1 << 14
"""Bytes that GDAL asks for at once: the first of them hold the header of most rasters too."""

_PARTS = (
    "name",
    "stem",
    "suffix",
    "suffixes",
    "parts",
    "parent",
    "as_posix",
    "with_suffix",
    "with_name",
    "match",
)
"""Attributes of `PurePosixPath` that a remote path has."""
_states: dict[str, tuple[int, int]] = {}
"""Address → bytes and seconds of the last change, as a listing gave them."""


class RemotePath(_HandedOn):
    """Address of a file in GDAL's form, with the names and parts of a path, but no path of a disk.

    Functions that take a `Path` to hand it on take it too; what opens files by name raises a TypeError, and
    `open_bytes` and `open_raster` read it. Its `str` hides secrets.

    Attributes:
        address: the address with its secrets, in GDAL's form.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self._shown = PurePosixPath(mask_secrets(address))

    @classmethod
    def of(cls, text: str) -> RemotePath:
        """Return the path of a URL or of one of GDAL's own paths."""
        scheme, separator, rest = text.partition("://")
        address = text
        if not text.startswith("/vsi"):
            if not separator or scheme.lower() not in _SCHEMES:
                schemes = ", ".join(f"{name}://" for name in _SCHEMES)
                raise DatasetError(
                    mask_secrets(text), expected=f"{schemes} or one of GDAL's own paths (/vsizip/…)"
                )
            address = _SCHEMES[scheme.lower()] + rest
        set_up_remote()
        return cls(address)

    def __str__(self) -> str:
        return mask_secrets(self.address)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __getattr__(self, name: str) -> Any:
        """Return a name or part of the path, without secrets."""
        if name not in _PARTS:
            raise AttributeError(f"'RemotePath' has no attribute {name!r}: it is no file of a disk")
        return getattr(self._shown, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and self.address == other.address

    def __lt__(self, other: PurePath) -> bool:
        return str(self) < str(other)

    def __gt__(self, other: PurePath) -> bool:
        return str(self) > str(other)

    def __hash__(self) -> int:
        return hash(self.address)

    def __reduce__(self) -> Any:
        return _unpickle, (self.address, _states.get(self.address), known_tag(self.address))

    def __truediv__(self, name: Any) -> RemotePath:
        return RemotePath(join_address(self.address, str(name)))

    def exists(self) -> bool:
        """Return False: the file is on no disk of this machine."""
        return False

    is_file = is_dir = exists

    def relative_to(self, *above: Any) -> Any:
        """Return the pure path from an address above to this one."""
        return self._shown.relative_to(*map(str, above))

    def is_relative_to(self, *above: Any) -> bool:
        """Return whether this address lies below another."""
        return self._shown.is_relative_to(*map(str, above))

    def absolute(self) -> RemotePath:
        return self

    def resolve(self, strict: bool = False) -> RemotePath:
        return self

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Return size and time of change from a listing or the server; all other fields are 0."""
        state = _states.get(self.address)
        if state is None:
            state = patiently(self.address, lambda: file_state(self.address))
        size, changed = state
        times = {"st_mtime_ns": changed * 10**9, "st_mtime": float(changed)}
        return os.stat_result((0, 0, 0, 0, 0, 0, size, 0, changed, 0), times)

    def known_state(self) -> int | None:
        """Return a hash of size and time of change, requested once per process; None if unknown."""
        if self.address not in _states:
            try:
                status = self.stat()
            except OSError:
                return None
            _states[self.address] = status.st_size, int(status.st_mtime)
        return hash(_states[self.address])

    def open_bytes(self) -> BinaryIO:
        """Open the file's bytes for reading (OSError: the server's reason)."""
        return io.BufferedReader(GdalFile(self.address), _PIECE)


def _unpickle(address: str, state: tuple[int, int] | None, tag: str | None) -> RemotePath:
    path = RemotePath(address)
    if state is not None:
        note_state(path, *state)
    if tag is not None:
        note_tag(address, tag)
    return path


def open_bytes(path: Path) -> BinaryIO:
    """Open a file's bytes, local or remote (OSError: the file cannot be read)."""
    return path.open_bytes() if isinstance(path, RemotePath) else path.open("rb")


def note_state(path: RemotePath, size: int, changed: int, tag: str | None = None) -> None:
    """Store a file's state from a listing; if it has changed, clear GDAL's cache of the file.

    If the listing has an ETag, reading is bound to it from now on.
    """
    if tag is not None:
        note_tag(path.address, tag)
    if _states.get(path.address, (size, changed)) != (size, changed):
        forget(path.address)
    _states[path.address] = (size, changed)


def set_up_remote() -> None:
    """Set GDAL's network options, unless the user has; child processes inherit them by the environment."""
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    # The endpoint of an S3-compatible store, as Amazon's tools take it; GDAL has settings of its own.
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint and "AWS_S3_ENDPOINT" not in os.environ:
        scheme, _, host = endpoint.rpartition("://")
        os.environ["AWS_S3_ENDPOINT"] = host.rstrip("/")
        os.environ.setdefault("AWS_HTTPS", "NO" if scheme == "http" else "YES")
        os.environ.setdefault("AWS_VIRTUAL_HOSTING", "FALSE")


T = TypeVar("T")

_FINAL = re.compile(
    r"response code|NoSuch|AccessDenied|Forbidden|InvalidAccessKey|SignatureDoesNotMatch|not defined|"
    r"not filled|does not exist|there is none|got a folder|resolve host",
    re.IGNORECASE,
)
"""Reasons for which another try is useless. GDAL itself has tried again where a status asks for it."""
_LONGEST_PAUSE = 30.0
_ARCHIVE = re.compile(r"^.*?\.(zip|kmz|tar|tgz|tar\.gz|gz)(?=[/}?]|$)")
_STRONG = re.compile(r'"[!#-\[\]-~]+"')
"""An ETag that names bytes, and needs no escapes in GDAL's list of headers."""
_REFUSED = re.compile(r"response code.*\b412\b")
"""Reason: the condition of a request does not hold."""
_tags: dict[str, str] = {}
"""Address at a server → ETag (or time and size) of the bytes that this process reads there."""
_keeps_conditions: dict[str, bool] = {}
"""Server address → True if it refuses requests whose condition does not hold."""
_conditions: dict[str, int] = {}
_lock = threading.RLock()
"""Lock of the three above; `_conditions` counts the threads that open or read an address on its condition."""


class _Trying(threading.local):
    """State of this thread: True while it is in `patiently`."""

    already = False


_trying = _Trying()


def forget(address: str) -> None:
    """Clear GDAL's cache of a file, or of the archive that contains it."""
    forget_file(_served_address(address) or address)


def known_tag(address: str) -> str | None:
    """Return the ETag that binds reads of this address in this process; None before the first read."""
    return _tags.get(_served_address(address) or address)


def note_tag(address: str, tag: str) -> None:
    """Store an ETag from a listing or another process; if it is new, forget the cached bytes."""
    if known_tag(address) not in (None, tag):
        forget(address)
    _tags[_served_address(address) or address] = tag


def renewed_tag(address: str) -> str | None:
    """Return the server's current tag, to which all further reading is bound; None if it gives none."""
    if (served := _served_address(address)) is None:
        return None
    if served in _tags:
        with contextlib.suppress(ChangedInputError):  # which forgets what is another
            check_same(address, _tags[served])
    return _in_tries(address, lambda: _tag(served))


def check_same(address: str, tag: str | None) -> None:
    """Ask the server again for a file's tag, and compare it."""
    if tag is not None and (served := _served_address(address)) is not None:
        _in_tries(address, lambda: _check_same(served, tag))


def _served_address(address: str) -> str | None:
    """Return the address of the file on a server, or of the archive that contains it; None if local."""
    if (network := NETWORK.search(address)) is None:
        return None
    whole = address[network.start() :]
    archive = _ARCHIVE.match(whole) if network.start() else None
    return archive[0] if archive else whole


def _tag(served: str) -> str:
    """Return the tag to which reading is bound; the server is asked once."""
    if served not in _tags:
        tag = asked_tag(served)
        with _lock:
            if _STRONG.fullmatch(tag) and served.startswith("/vsicurl/"):
                _probe(served)
            _tags.setdefault(served, tag)
    return _tags[served]


def _probe(served: str) -> None:
    """Find out whether a server respects conditions: else every reading needs a second check."""
    if (key := _place(served)) not in _keeps_conditions:
        _keeps_conditions[key] = False
        set_condition(served, '"another"')
        try:
            asked_tag(served)
        except OSError as error:
            _keeps_conditions[key] = bool(_REFUSED.search(str(error)))
        finally:
            set_condition(served, None)
            forget(served)  # GDAL takes what is refused for a file that is not there


def _place(served: str) -> str:
    return "/".join(served.split("/", 5)[:5])


@contextlib.contextmanager
def _on_condition(served: str, tag: str) -> Iterator[bool]:
    """Open files in a block on the condition of a tag; yield True if the server respects it.

    Not used if the user sets request headers, which would be replaced, nor for Azure, which signs all
    headers. A handle keeps the condition that it was opened with. GDAL searches all paths with settings at
    each opening, so a path keeps its settings only during the block.
    """
    keeps = served.startswith("/vsis3/") or _keeps_conditions.get(_place(served), False)
    if not keeps or not _STRONG.fullmatch(tag) or os.environ.get("GDAL_HTTP_HEADERS"):
        yield False
        return
    with _lock:
        _conditions[served] = _conditions.get(served, 0) + 1
        if _conditions[served] == 1:
            set_condition(served, tag)
    try:
        yield True
    finally:
        with _lock:
            _conditions[served] -= 1
            if not _conditions[served]:
                del _conditions[served]
                set_condition(served, None)


def _check_same(served: str, tag: str) -> None:
    try:
        now = asked_tag(served)
    except OSError as error:
        if not _REFUSED.search(str(error)):
            raise
        now = "another"
    if now != tag:
        forget(served)
        _tags.pop(served, None)
        raise ChangedInputError(
            f"{mask_secrets(served)}: has changed on its server since it was first read",
            expected=f"{tag or 'none'} (ETag, or time and size)",
            got=now or "none",
            remedy="nothing is made of it: wait until nothing writes to it any more, then the same call "
            "again",
        )


def _same_bytes(address: str, action: Callable[[], T]) -> T:
    """Run an action on the same bytes that this process read at the address before."""
    served = _served_address(address)
    assert served is not None
    try:
        tag = _tag(served)
    except OSError:
        action()  # says what it was doing; what it gives does not count
        raise
    with _on_condition(served, tag) as is_conditional:
        result = action()
    if not is_conditional:
        _check_same(served, tag)
    return result


def patiently(file: Path | str, action: Callable[[], T]) -> T:
    """Run an action that reads a file; if it lies at an address, repeat it after pauses if it fails.

    GDAL repeats what a server refuses for a while (429, 500 to 504). It does not where an answer ends early,
    and keeps the half of it as if it were all: that is forgotten here before the next try.
    `GDAL_HTTP_MAX_RETRY` and `GDAL_HTTP_RETRY_DELAY` say how often, and how long the first pause is; each
    further one is twice as long, more or less, so that many processes do not come back at once.

    Raises:
        ChangedInputError: the file is another than the one that this process first read there.
    """
    address = file if isinstance(file, str) else getattr(file, "address", "")
    if _trying.already or not is_network(address):  # what an action does has its tries with the action
        return action()
    return _in_tries(address, lambda: _same_bytes(address, action))


def _in_tries(address: str, action: Callable[[], T]) -> T:
    _trying.already = True
    try:
        for number, pause in enumerate((*_pauses(), None)):
            try:
                return action()
            except ChangedInputError:
                raise
            except (RasterError, *FAULTS) as error:
                served = _served_address(address)
                if (
                    not number and served is not None and served in _tags
                ):  # GDAL does not tell that a condition was refused
                    with contextlib.suppress(*FAULTS):
                        _check_same(served, _tags[served])
                if pause is None or _FINAL.search(f"{error} {one_line(error)}"):
                    raise
            forget(address)
            time.sleep(pause)
        raise AssertionError("the last try gives or raises")
    finally:
        _trying.already = False


def _pauses() -> Iterator[float]:
    count, first = 0, 0.0
    with contextlib.suppress(ValueError):
        count = int(os.environ.get("GDAL_HTTP_MAX_RETRY", "0"))
        first = float(os.environ.get("GDAL_HTTP_RETRY_DELAY", "0.5"))
    for i in range(count):
        yield min(_LONGEST_PAUSE, first * 2**i) * random.uniform(0.75, 1.25)


class GdalFile(io.RawIOBase):
    """A remote file opened for reading; truncated answers are requested again, never taken as complete."""

    def __init__(self, path: str) -> None:
        """Open the file (OSError: GDAL's reason)."""
        self._file: Any = None
        self._path, self._at = path, 0
        self._size = patiently(path, lambda: file_state(path)).size
        self._file = patiently(path, lambda: open_file(path))

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._at = max(0, offset + (0, self._at, self._size)[whence])
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read into a buffer (OSError: the file gives fewer bytes than its size)."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size - self._at))
        if wanted:
            patiently(self._path, lambda: read_at(self._file, self._at, view, wanted))
            self._at += wanted
        return wanted

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file:
            close_file(self._file)
            self._file = None
        super().close()
