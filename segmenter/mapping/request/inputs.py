"""Inputs of `predict.py`: the files found, and the names of their outputs."""

from __future__ import annotations

import contextlib
import glob
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from segmenter.base.addresses import is_address
from segmenter.base.errors import DatasetError, failing
from segmenter.base.files import compose_accents, matches, real, walk_once
from segmenter.grid.scenes import Layout
from segmenter.raster.remote.buckets import BucketPrefix, listing
from segmenter.raster.remote.settings import RemotePath, note_state

_MOST_LOOKED_AT = 10_000
"""Files in subfolders, for a hint."""
EXTENSIONS = (".tif", ".tiff", ".png", ".jpg", ".jpeg")
"""Endings of files that are taken from a folder; a file that is named itself may be called anything."""


@dataclass(frozen=True)
class Inputs:
    """Files in the order given, each once.

    Attributes:
        left_out: files in folders that are no images by their name.
        outputs: files that patterns match in the output folder; not used as inputs either.
    """

    files: tuple[Path, ...]
    left_out: tuple[Path, ...]
    folders: tuple[Path, ...]
    outputs: tuple[Path, ...] = ()


def find_inputs(given: Sequence[str], output: Path | None = None, *, remote: bool = False) -> Inputs:
    """Return the files that paths, folders (without subfolders) and glob patterns (also `**`) match.

    Args:
        output: folder of the maps, which patterns do not match.
        remote: True to allow URLs and GDAL's own paths; each is one file, except folders (ending with a
            slash) and patterns in buckets.

    Raises:
        DatasetError: a path or pattern matches nothing.
    """
    files: dict[Path, Path] = {}
    left_out: list[Path] = []
    folders: list[Path] = []
    outputs: list[Path] = []
    for text in given:
        if remote and is_address(text):
            for address in _remote(text):
                files.setdefault(address, address)
            continue
        with readable(text):
            paths = _matches(text)
        if output is not None and not Path(text).exists():
            paths, maps = _without_outputs(paths, real(output))
            outputs += maps
            if not paths:
                raise DatasetError(text, f"matches only files in --output {output}; choose another folder")
        for path in paths:
            if path.is_dir():
                folders.append(path)
                with readable(path):
                    images, others = _in_folder(path)
                if not images and path == Path(text):
                    raise DatasetError(
                        path, expected=f"image files ({', '.join(EXTENSIONS)}), there is none{_deeper(path)}"
                    )
                left_out += others
            else:
                images = [path]
            for image in images:
                files.setdefault(real(image), image)
        if not files:
            raise DatasetError(text, "matches only folders without images")
    return Inputs(tuple(files.values()), tuple(left_out), tuple(folders), tuple(dict.fromkeys(outputs)))


class BandFiles(NamedTuple):
    """A scene whose bands are in several files below a folder."""

    folder: Path
    name: str
    files: tuple[Path, ...]


def scenes_of_bands(given: Sequence[str], layout: Layout | None) -> tuple[list[BandFiles], list[str]]:
    """Return scenes of several band files in folders, and the inputs that contain none.

    Args:
        layout: layout of the run's dataset.

    Raises:
        DatasetError: a scene does not have exactly one file of each pattern.
    """
    if layout is None or not layout.bands:
        return [], list(given)
    scenes: dict[Path, BandFiles] = {}
    others: list[str] = []
    for text in given:
        with readable(text):
            folders = [] if is_address(text) else [real(path) for path in _matches(text) if path.is_dir()]
            in_folders = [scene for folder in folders for scene in _scenes_below(folder, layout)]
        scenes |= {scene.files[0]: scene for scene in in_folders}
        others += [] if in_folders else [text]
    return list(scenes.values()), others


def _scenes_below(folder: Path, layout: Layout) -> Iterator[BandFiles]:
    """Yield scenes of several files in a folder and its subfolders, or the scene that contains the folder."""
    keys: dict[tuple[str, ...], list[list[Path]]] = {}
    paths = [Path(inside, name) for inside, names in walk_once(folder) for name in names]
    regexes = [re.compile(f"(.*?/)??{regex.pattern}") for regex in layout.bands.values()]
    for at, regex in enumerate(regexes):
        for path in paths:
            if match := regex.fullmatch(compose_accents(path.as_posix())):
                key = (match[1] or "", *(match[name] for name in layout.names))
                keys.setdefault(key, [[] for _ in regexes])[at].append(path)
    for (_, *names), files in sorted(keys.items()):
        for form, own in zip(layout.bands, files, strict=True):
            if len(own) != 1:
                raise DatasetError(
                    folder,
                    expected=f"one file like {form} for {'_'.join(names)}, as the run's recipe has it",
                    got=", ".join(map(str, own[:3])) or "none",
                )
        yield BandFiles(folder, "_".join(names), tuple(file for own in files for file in own))


def _remote(text: str) -> list[RemotePath]:
    """Return the rasters at an address, which may be a folder or pattern."""
    address = RemotePath.of(text)
    place = BucketPrefix.of(address.address)
    if place is None or not (text.endswith("/") or glob.has_magic(text)):
        return [address]
    parts = [] if text.endswith("/") else place.prefix.split("/")
    first = next((i for i, part in enumerate(parts) if glob.has_magic(part)), 0)
    above = place if not parts else place._replace(prefix="/".join(parts[:first]))
    wanted = parts[first:] or ["*"]
    addresses = []
    for one in listing(above):
        names = one.name.split("/")
        deep = "**" in wanted or len(names) == len(wanted)
        pattern = "/".join(part for part in wanted if part != "**")
        if deep and PurePosixPath(one.name).match(pattern) and _is_image(one.name, named=bool(parts)):
            path = RemotePath.of(f"{above}/{one.name}")
            note_state(path, one.size, one.changed, one.tag)
            addresses.append(path)
    if not addresses:
        raise DatasetError(text, expected=f"images ({', '.join(EXTENSIONS)}) there, the bucket has none")
    return addresses


def _is_image(name: str, *, named: bool) -> bool:
    """Return whether a file is an input: any file that a pattern names; in folders, image endings only."""
    path = PurePosixPath(name)
    return not path.name.startswith(".") and (named or path.suffix.lower() in EXTENSIONS)


def readable(what: str | Path) -> contextlib.AbstractContextManager[None]:
    """Convert a system error about an unreadable folder or invalid name to one line."""
    return failing(DatasetError, what, "cannot look for files there")


def _matches(text: str) -> list[Path]:
    if Path(text).exists():  # a file may be called image[1].tif
        return [Path(text)]
    if is_address(text):
        raise DatasetError(
            text, expected="a local file", remedy="URLs and GDAL's own paths are opened only with --remote"
        )
    paths = [Path(name) for name in matches(text)]
    if not paths:
        kind = "pattern matches no file" if glob.has_magic(text) else "no such file or folder"
        braces = "; patterns have * ? [27] and **, no braces: without quotes, the shell resolves those"
        raise DatasetError(text, f"{kind}{braces if '{' in text else ''}")
    return paths


def _without_outputs(paths: Iterable[Path], output: Path) -> tuple[list[Path], list[Path]]:
    """Return paths outside the output folder, and the maps that lie directly in it."""
    others: list[Path] = []
    outputs: list[Path] = []
    for path in paths:
        if real(path) == output:
            with readable(path):
                outputs += (p for p in sorted(path.iterdir()) if p.suffix.lower() in EXTENSIONS)
        elif real(path.parent) == output and not path.is_dir():
            outputs += [path] * (path.suffix.lower() in EXTENSIONS)
        else:
            others.append(path)
    return others, outputs


def _in_folder(folder: Path) -> tuple[list[Path], list[Path]]:
    # What has an image's name and is none (a broken link, a pipe) is reported later, not skipped.
    names = sorted(p for p in folder.iterdir() if not p.is_dir() and not p.name.startswith("."))
    images = [p for p in names if p.suffix.lower() in EXTENSIONS]
    return images, [p for p in names if p.suffix.lower() not in EXTENSIONS]


def _deeper(folder: Path) -> str:
    """Return a hint with a pattern for images in subfolders, which an input folder does not include."""
    with contextlib.suppress(OSError):
        for path in itertools.islice(folder.glob("*/**/*"), _MOST_LOOKED_AT):
            if path.suffix.lower() in EXTENSIONS and path.is_file():
                return f"; its subfolders have some: give '{folder}/**/*{path.suffix}', in quotes"
    return ""


def output_names(paths: Iterable[Path]) -> dict[Path, str]:
    """Return a unique name for each path: its stem, with more of the path if stems are equal.

    `a/x.tif` and `b/x.tif` give `a_x` and `b_x`; `x.tif` and `x.png` give `x_tif` and `x_png`.
    """
    names = {path: path.stem for path in paths}
    if not names:
        return {}
    folders = {path: real(path).parent.parts for path in names}
    for depth in range(1, max(map(len, folders.values())) + 1):
        clashing = _clashing(names)
        if not clashing:
            return names
        for path in clashing:
            names[path] = "_".join([*(part.strip("/") for part in folders[path][-depth:]), path.stem])
    for path in _clashing(names):
        names[path] = f"{path.stem}_{path.suffix.lstrip('.')}"
    for number, path in enumerate(_clashing(names), start=1):
        names[path] = f"{names[path]}-{number}"
    return names


def _clashing(names: dict[Path, str]) -> list[Path]:
    # Some file systems do not distinguish capital letters from small ones.
    counts = Counter(name.casefold() for name in names.values())
    return [path for path, name in names.items() if counts[name.casefold()] > 1]
