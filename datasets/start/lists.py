"""Lists of a folder that tell its split: names of scenes for each part, tables and trees with its words."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import PurePosixPath
from typing import Any

from segmenter.base.errors import SegmenterError, counted
from segmenter.base.files import compose_accents
from segmenter.config.reading import parse
from segmenter.grid.scenes import Scene

from ..files import few
from .choice import Choice
from .legends import text_of
from .names import SET_ENDINGS, SPLIT_WORDS, split_of_word, split_of_words, splits_in
from .sight import DataPlace
from .split import folder_splits

_TEXTS, _TREES = (".txt", ".lst", ".csv", ".tsv"), (".yaml", ".yml", ".json", ".geojson")
"""Endings of lists of scenes, as train.txt or val_list.txt, or of tables with a column of these words; and of
files with such keys or values."""
_PARTS = re.compile(r"split|fold|partition|phase|stage|usage|role|(sub)?set", re.I)
"""Titles of columns, or names of files, of words of splits."""
_TELLS = re.compile(rf"(?<![A-Za-z])(?i:(?:{'|'.join(SPLIT_WORDS)}){SET_ENDINGS}?)(?![a-z])")
"""Words of splits in any text."""
_WORD = re.compile(r"[^\s,;:=|\"'\[\]{}()]+")
_TRAIN, _SHARE = "train", 0.2
"""Share of the scenes that validates if the user takes back those that a list does not train."""
_FLAGS, _NO_FLAGS = {"1", "true", "yes"}, {"0", "false", "no"}
"""Cells of a column that is titled by a split."""
_MOST_REMARKS = 4
"""Remarks on lists of scenes."""

Called = Mapping[str, str]
"""Text of a list, without regard to case → scene that it names."""
Listed = tuple[str, str]
"""Split, and a text that names a scene."""


def told_splits(
    place: DataPlace, folders: Mapping[str, Sequence[str]], scenes: Sequence[Scene]
) -> Iterator[Choice]:
    """Yield the split that folders tell, or lists; lists before folders of which some tell none.

    Args:
        folders: see `Patterns.splits`.
    """
    held = [] if "" in folders else list(folder_splits(folders))
    yield from held or list(listed_splits(place, scenes)) or folder_splits(folders)


def listed_splits(place: DataPlace, scenes: Sequence[Scene]) -> Iterator[Choice]:
    """Yield validation and test of lists that name scenes or their images, or of words in scenes' names.

    Findings of `place` take in lists that give no split.
    """
    keys = {scene.name: {*map(str.casefold, (scene.name, scene.name.lstrip("0")))} for scene in scenes}
    for scene in scenes:
        for file in filter(None, (scene.image, scene.label)):
            keys[scene.name].update(_keys(file.relative_to(place.root).as_posix()))
    times = Counter(key for own in keys.values() for key in own)
    called = {key: name for name, own in keys.items() for key in own if times[key] == 1}
    named, files, remarks = _named_scenes(place, called)
    held = named["validation"] | named["test"]
    if files and not keys.keys() - held:
        place.findings.append(f"lists leave no scene to train: {few(sorted({*files.values()}))}")
        return
    if files and not held:
        source = files[_TRAIN if _TRAIN in files else ""]
        yield from _held_out_rest(place, named[_TRAIN] | named[""], source, sorted(keys), remarks)
        return
    by_folder = {scene.name: _split_of_folders(place, scene) for scene in scenes}
    for words, where in (({name: split_of_words(name) for name in keys}, "names"), (by_folder, "folders")):
        if not files and _TRAIN in words.values() and "" not in words.values():
            for name, split in words.items():
                named[split], files[split] = named[split] | {name}, f"by a word of their {where}"
    if free := sorted(keys.keys() - set().union(*named.values())):
        remarks.append(f"{counted(len(free), 'scene')} of no list: {few(free, 2)}")
    named["validation"] -= named["test"]
    for split in ("validation", "test"):
        if (members := named[split]) and len(named["validation"] | named["test"]) < len(keys):
            if both := sorted(members & named[_TRAIN]):
                remarks.insert(0, f"{few(both)} of them in train, too: held out")
            told = (f"{counted(len(members), 'scene')} {files[split]}", *remarks[:_MOST_REMARKS])
            yield Choice(f"dataset.split.{split}", sorted(members), "; ".join(told))
            remarks.clear()


def _held_out_rest(
    place: DataPlace, train: set[str], file: str, names: list[str], remarks: list[str]
) -> Iterator[Choice]:
    """Yield the scenes as validation, with a question, that the only list, of what trains, lacks."""
    rest, of = [name for name in names if name not in train], counted(len(names), "scene")
    if not rest:
        place.findings.append(f"all {of} are {file} to train: validation is taken from them")
        return
    told = f"{len(train)} of {of} are {file} to train, and no list tells of the other {len(rest)}"
    if len(rest) > len(train):  # as a log has them
        place.findings.append(f"{told}: the split is of all")
        return
    instead = {"dataset.split.validation": [], "dataset.split.validation_share": _SHARE}
    question = f"{told}: do these train, too?"
    why = "; ".join((told, *remarks[:_MOST_REMARKS]))
    yield Choice("dataset.split.validation", rest, why, question=question, instead=instead)


def _split_of_folders(place: DataPlace, scene: Scene) -> str:
    """Return the split that the folders of image and label tell; empty if none does, or several."""
    paths = [path.relative_to(place.root).parent for path in (scene.image, scene.label) if path is not None]
    told = {split for path in paths for folder in path.parts if (split := split_of_words(folder))}
    return told.pop() if len(told) == 1 else ""


def _keys(path: str) -> tuple[str, ...]:
    """Return the texts by which a list may name a file: its path, ends of it, and its name without ending.

    Windows and macOS do not tell case apart, and neither do lists that were written there.
    """
    parts = compose_accents(path).casefold().replace("\\", "/").split("/")
    return *("/".join(parts[i:]) for i in range(len(parts))), PurePosixPath(parts[-1]).stem


def _scenes_of_line(line: str, called: Called) -> set[str]:
    """Return the scenes that a line names: as a whole, by cells or words, or but for the last or first word.

    Behind the first cell or word no numbers are names.
    """
    ends = [*line.rsplit(None, 1)[:1], *line.split(None, 1)[1:]]
    for parts in ([line], re.split(r"\s*[,;\t]\s*", line), re.split(r"[\s,;]+", line), ends):
        texts = [*parts[:1], *(text for text in parts[1:] if not text.isdecimal())]
        if found := {called[key] for text in texts for key in _keys(text) if key in called}:
            return found
    return set()


def _named_scenes(
    place: DataPlace, called: Called
) -> tuple[defaultdict[str, set[str]], dict[str, str], list[str]]:
    """Return the scenes of each split by lists, how these name them, and remarks on names without a scene."""
    named, files, remarks = defaultdict[str, set[str]](set), dict[str, str](), list[str]()
    unread = dict[str, set[str]]()
    for path in place.paths:
        if not path.lower().endswith((*_TEXTS, *_TREES)):
            continue
        with suppress(SegmenterError, ValueError):  # of no text
            text = text_of(place.file(path))
            if not _TELLS.search(f"{PurePosixPath(path).stem}\n{text}"):
                continue
            found = [(split, _scenes_of_line(line, called)) for split, line in _listed(path, text, called)]
            for split, members in found:
                if members:
                    named[split], files[split] = named[split] | members, f"named in {path}"
            lost = sum(not members for _, members in found)
            if lost == len(found):
                unread[path] = _scenes_beside_words(text, called)
            elif lost:
                remarks.append(f"{counted(lost, 'name')} of {path} without a labelled image")
    known = set[str]().union(*named.values())
    for path, members in unread.items():
        if len(members) > 1 and members - known:
            told = f"{path} has names of {counted(len(members), 'scene')} and words of splits"
            place.findings.append(f"{told}, in no form that gives a split")
    return named, files, remarks


def _scenes_beside_words(text: str, called: Called) -> set[str]:
    """Return the scenes that a text names, none by a number, if it has words of splits, too."""
    words, told = {*_WORD.findall(text)}, SPLIT_WORDS.keys() - {"valid"}  # which tells of quality, too
    if told.isdisjoint(word.lower() for word in words):
        return set()
    return {called[key] for word in words if not word.isdecimal() for key in _keys(word) if key in called}


def _listed(path: str, text: str, called: Called) -> list[Listed]:
    """Return the lines of a file that name scenes, each with its split."""
    stem, own = PurePosixPath(path).stem, list[Listed]()
    split = split_of_words(stem)
    if path.lower().endswith(_TREES):
        with suppress(SegmenterError, ValueError, RecursionError):  # of no form
            data = json.loads(text) if path.lower().endswith("json") else parse(text, path)
            own = list(_of_tree(data, split if isinstance(data, list) else ""))
            if split and not own:  # COCO's images of one split
                own = [each for each in _of_tree(data, split) if _scenes_of_line(each[1], called)]
        if not split and not _PARTS.search(stem):  # settings have lists of numbers, too
            own = [(part, line) for part, line in own if not line.isdecimal()]
    else:
        lines = [line.strip() for line in text.replace('"', "").splitlines() if line.strip()]
        own = _of_table(stem, lines, called)
        if split and len({part for part, _ in own}) < 2:
            both = splits_in(stem) == {_TRAIN, "validation"}  # which lists of each may divide
            own = [("" if both else split, line) for line in lines]
    return own


def _of_table(stem: str, lines: Sequence[str], called: Called) -> list[Listed]:
    """Return the lines with a word of a split in one column, if most lines that name a scene have one.

    Other lines are headings, comments, or of scenes without a split. Without a word for what trains, title or
    name of the file speak of splits.
    """
    tables = [re.split(r"\s*[,;\t]\s*", line) for line in lines]
    rows = [cells if len(cells) > 1 else [cells[0].split()[-1], *cells[0].split()] for cells in tables]
    columns = [[split_of_word(cell) for cell in each] for each in zip_longest(*rows, fillvalue="")]
    if not any(map(any, columns)):
        return _of_flags(tables, lines)
    known = [bool(_scenes_of_line(line, called)) for line in lines]
    best: list[Listed] = []
    for title, parts in zip_longest(rows[0], columns, fillvalue=""):
        if _TRAIN not in parts and not _PARTS.search(f"{stem} {title}"):
            continue
        own = [row for row, part in enumerate(parts) if part and (row or known[0])]
        if 2 * sum(known[row] for row in own) > sum(known) and len(own) > len(best):
            best = [(parts[row], lines[row]) for row in own]
    return best or _of_flags(tables, lines)


def _of_flags(tables: Sequence[Sequence[str]], lines: Sequence[str]) -> list[Listed]:
    """Return the lines of a table with flags below titles such as `is_test`; most scenes have none of these.

    A line without a flag trains, or validates, unless a flag says which lines train. The latter alone tells
    nothing: a class may be called train.
    """
    columns = [
        [cell.lower().removesuffix(".0") for cell in each] for each in zip_longest(*tables, fillvalue="")
    ]
    flags = {
        split_of_words(title): cells for title, *cells in columns if cells and {*cells} <= _FLAGS | _NO_FLAGS
    }
    flags.pop("", None)
    held = [cells for split, cells in flags.items() if split != _TRAIN]
    if not held or any(2 * sum(cell in _FLAGS for cell in cells) > len(cells) for cells in held):
        return []
    told = list[Listed]()
    for row, line in enumerate(lines[1:]):
        own = [split for split, cells in flags.items() if cells[row] in _FLAGS]
        if own or _TRAIN not in flags:
            told.append((own[-1] if own else "", line))
    return told


def _of_tree(data: Any, split: str = "") -> Iterator[Listed]:
    """Yield texts with their split: in lists below its word, in records with it, and keys whose value it is.

    Args:
        split: split that a key above tells.
    """
    if isinstance(data, list):
        for each in data:
            if isinstance(each, (dict, list)):
                yield from _of_tree(each, split)
            elif split:
                yield split, str(each)
    elif isinstance(data, dict):
        texts = {str(key): value for key, value in data.items() if isinstance(value, str)}
        words = {key: part for key, value in texts.items() if (part := split_of_word(value))}
        line = ",".join(value for key, value in texts.items() if key not in words)
        if line and (len(words) == 1 or split):
            yield next(iter(words.values()), split), line
        else:
            yield from ((word, key) for key, word in words.items())
        for key, value in data.items():
            below = split_of_words(str(key)) or split
            if isinstance(value, list):
                yield from _of_tree(value, below)
            elif isinstance(value, dict):
                yield from _of_tree({**({} if below else {"": str(key)}), **value}, below)
