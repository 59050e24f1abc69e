"""Lists of scenes that hold a split: train.txt, val.txt, test.txt, or one YAML file with these keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from segmenter.base.errors import SegmenterError, counted
from segmenter.base.files import read_regular
from segmenter.config.plain_yaml import parse
from segmenter.grid.scenes import Scene

from ..files import few
from .choice import Choice
from .folder_facts import Place
from .names import SPLITS

_TEXTS, _YAMLS = (".txt", ".lst", ".csv"), (".yaml", ".yml")


def listed_splits(place: Place, scenes: Sequence[Scene]) -> Iterator[Choice]:
    """Yield validation and test of lists that name scenes or their images; what also trains is said."""
    names = {key: scene.name for scene in scenes for key in (scene.name, scene.image.stem, scene.image.name)}
    names |= {str(int(name)): name for name in list(names) if name.isdecimal()}
    named: dict[str, set[str]] = {}
    files: dict[str, str] = {}
    for path in place.paths:
        with suppress(SegmenterError, UnicodeError, KeyError):
            for split, keys in _lists(place, path):
                named[split], files[split] = {names[key] for key in keys}, path
    for split in ("validation", "test"):
        if "train" in named and (members := named.get(split)):
            both = sorted(members & named["train"])
            leak = f"; {few(both)} of them in train, too: held out" if both else ""
            why = f"{counted(len(members), 'scene')} named in {files[split]}{leak}"
            yield Choice(f"dataset.split.{split}", sorted(members), why)


def _lists(place: Place, path: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each split of a file, with the names of files that it lists."""
    stem, ending = PurePosixPath(path).stem.lower(), PurePosixPath(path).suffix.lower()
    lists: dict[str, list[str]] = {}
    if (ending in _TEXTS and stem in SPLITS) or (ending in _YAMLS and "split" in stem):
        text = read_regular(place.root / path).decode("utf-8-sig")
        if ending in _TEXTS:
            lists[stem] = [line.split()[0] for line in text.splitlines() if line.strip()]
        elif isinstance(data := parse(text, path), dict):
            lists = {
                str(key): list(map(str, value)) for key, value in data.items() if isinstance(value, list)
            }
    for key, values in lists.items():
        if key.lower() in SPLITS and values:
            yield SPLITS[key.lower()], [PurePosixPath(value).name for value in values]
