"""Files of a remote root: a bucket's listing, or a list in the recipe."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from segmenter.base.addresses import is_address, mask_secrets
from segmenter.base.errors import DatasetError
from segmenter.base.files import read_regular
from segmenter.base.threads import in_threads
from segmenter.raster.remote.buckets import BucketPrefix, listing
from segmenter.raster.remote.settings import RemotePath, note_state, open_bytes

_MOST_BYTES = 1 << 28
"""Most bytes of a list of files."""
_ASKING_THREADS = 16
"""A request waits for the network, not for a processor."""


def remote_files(root: Path, files: Path | None) -> list[str]:
    """Return relative POSIX paths of the files below an address, and store the known state of each."""
    assert isinstance(root, RemotePath), "other folders are walked"
    if files is not None:
        return _request_states(root, _lines(root, files), files)
    place = BucketPrefix.of(root.address)
    if place is None:
        raise DatasetError(
            "dataset.root",
            f"{root} cannot be listed",
            remedy="name its files in dataset.files: a text with a relative path in each line, as "
            "`images/a.tif`",
        )
    names = []
    for one in listing(place):
        note_state(root / one.name, one.size, one.changed, one.tag)
        names.append(one.name)
    if not names:
        raise DatasetError("dataset.root", expected=f"files below {place}, there is none")
    return names


def _lines(root: RemotePath, source: Path) -> list[str]:
    """Return the unique paths of a list, which may also contain whole addresses below the root."""
    names: dict[str, None] = {}
    beginnings = [f"{text.rstrip('/')}/" for text in (root.address.partition("?")[0], str(root))]
    beginnings += [begin.removeprefix("/vsicurl/") for begin in beginnings if begin.startswith("/vsicurl/")]
    place = BucketPrefix.of(root.address)
    beginnings += [f"{place}/"] if place is not None else []
    for number, line in enumerate(_text(source).splitlines(), 1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        begin = next((begin for begin in beginnings if name.startswith(begin)), "")
        name = name.removeprefix(begin).partition("?")[0] if begin else name.removeprefix("./")
        if is_address(name) or name.startswith("/") or ".." in PurePosixPath(name).parts:
            raise DatasetError(
                f"dataset.files: {source}, line {number}",
                expected=f"a path below {root}",
                got=mask_secrets(name),
            )
        names[name] = None
    if not names:
        raise DatasetError(
            "dataset.files", expected=f"a relative path in each line of {source}, there is none"
        )
    return list(names)


def _text(source: Path) -> str:
    try:
        if isinstance(source, RemotePath):
            with open_bytes(source) as file:
                content = file.read(_MOST_BYTES)
        else:
            content = read_regular(source, _MOST_BYTES)
        return content.decode()
    except OSError as error:
        raise DatasetError("dataset.files", f"cannot read {source}: {error}") from None
    except UnicodeDecodeError:
        raise DatasetError("dataset.files", expected=f"UTF-8 text, {source} is not") from None


def _request_states(root: RemotePath, names: list[str], files: Path) -> list[str]:
    """Return the names after requesting size and time of each from the server."""

    def ask(name: str) -> None:
        path = root / name
        try:
            status = path.stat()
        except OSError as error:
            raise DatasetError(path, f"named in dataset.files {files}, but not to be had: {error}") from None
        note_state(path, status.st_size, int(status.st_mtime))

    for _ in in_threads(ask, names, description="files", unit="file", workers=_ASKING_THREADS):
        pass
    return names
