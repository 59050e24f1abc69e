"""Files of a folder, pairs of image and label, and assignment of splits, for all loaders.

The law of this module: **nothing is dropped in silence**. A file without a partner is an error.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.api.layouts import root_of
from segmenter.base.addresses import is_address, mask_secrets
from segmenter.base.errors import DatasetError, shorten
from segmenter.base.files import compose_accents, walk_once
from segmenter.grid.deals import Deals, parts_dealt
from segmenter.grid.scenes import SPLITS, Split

if TYPE_CHECKING:
    from segmenter.config.datasets import FolderSplit

SHOWN = 5
"""Files that an error names before it only counts."""


def data_root(text: str) -> Path:
    """Return the folder or address of `dataset.root`; relative paths start at the current folder."""
    if is_address(text):
        return root_of(text)
    root = path_of(text, "dataset.root")
    if not root.is_dir():
        raise DatasetError(
            "dataset.root", expected=f"a folder, {root} is none (relative paths start from {Path.cwd()})"
        )
    return root


def path_of(text: str, setting: str) -> Path:
    """Return a path as the user wrote it; refuse addresses, and texts that are no valid path."""
    if is_address(text):
        raise DatasetError(
            setting, expected="a folder on this machine", got=f"the address {mask_secrets(text)}"
        )
    try:
        path = Path(text).expanduser()
        path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:  # too long, a link to itself, no such user
        why = getattr(error, "strerror", None) or error
        raise DatasetError(setting, expected="a folder", got=f"{shorten(text)}: {why}") from None
    return path


def files_under(root: Path, files: str | None = None) -> list[str]:
    """Return relative POSIX paths of all files under `root`, sorted; links to folders are followed once.

    Names that start with a dot are left out, as in shell patterns: caches, and some systems' companion files
    (`._image.tif`).

    Args:
        files: list of a remote root's files, if the server cannot list them.

    Raises:
        SegmenterError: a folder or address cannot be listed, or a listed file is missing.
    """
    if is_address(str(root)):
        from .remote import remote_files

        names = remote_files(root, None if files is None else root_of(files))
    else:
        names = []
        for folder, inside in walk_once(root, _unreadable):
            below = Path(folder).relative_to(root).as_posix()
            names += [name if below == "." else f"{below}/{name}" for name in inside]
    return sorted(name for name in names if not any(part.startswith(".") for part in name.split("/")))


def stored_names(paths: Collection[str]) -> dict[str, str]:
    """Return the stored path by its composed spelling; both spellings of one name are two files."""
    stored = {path: path for path in paths if compose_accents(path) == path}
    for path in paths:
        stored.setdefault(path if compose_accents(path) in stored else compose_accents(path), path)
    return stored


def _unreadable(error: OSError) -> None:
    raise DatasetError(error.filename, f"cannot list this folder: {error.strerror}") from None


def few(items: Iterable[str], shown: int = SHOWN) -> str:
    """Return the first items as text, with the number of further ones."""
    names = list(items)
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


@dataclass
class Candidates:
    """Files found for the scenes of a dataset, by scene name, before pairing.

    Attributes:
        root: folder that the paths are relative to.
        images, labels: relative paths by scene name; more than one is ambiguous.
        image_form, label_form: expected forms of names, for messages.
        advice: further advice on files without a partner.
    """

    root: Path
    image_form: str
    label_form: str
    advice: str = ""
    images: dict[str, list[str]] = field(default_factory=dict)
    labels: dict[str, list[str]] = field(default_factory=dict)

    def pairs(self, only: set[str] | None = None) -> dict[str, tuple[str, str]]:
        """Return (image, label) by scene name, sorted; only for the scenes in `only`, if given."""
        images, labels = (
            {name: paths for name, paths in files.items() if only is None or name in only}
            for files in (self.images, self.labels)
        )
        if not images:
            raise DatasetError(self.root, "found no image", remedy=f"expected files like {self.image_form}")
        for what, files in (("image", images), ("label", labels)):
            for name, paths in files.items():
                if len(paths) > 1:
                    bands = "; bands in files of their own are a list of patterns" if what == "image" else ""
                    raise DatasetError(
                        self.root,
                        expected=f"one {what} for {name or 'the dataset'}",
                        got=f"{len(paths)}: {few(sorted(paths))}",
                        remedy=f"keep one, or tell them apart in the pattern{bands}",
                    )
        self._no_orphans(images, labels, "image", f"a label like {self.label_form}")
        self._no_orphans(labels, images, "label", f"an image like {self.image_form}")
        return {name: (images[name][0], labels[name][0]) for name in sorted(images)}

    def unused_files(self, names: Iterable[str], reason: str) -> tuple[tuple[Path, str], ...]:
        """Return files of scenes left out (the images, if any), each with the reason."""
        paths = (path for name in sorted(names) for path in self.images.get(name, self.labels.get(name, [])))
        return tuple((self.root / path, reason) for path in paths)

    def _no_orphans(
        self, files: Mapping[str, list[str]], others: Mapping[str, list[str]], what: str, wanted: str
    ) -> None:
        alone = sorted(paths[0] for name, paths in files.items() if name not in others)
        if alone:
            raise DatasetError(
                self.root,
                f"{len(alone)} of {len(files)} {what} files have no partner, expected {wanted}: {few(alone)}",
                remedy=f"add the partner or move the file out of the folder{self.advice}",
            )


# ------------------------------------------------------------------------------------------ splits


@dataclass(frozen=True)
class NamedScenes:
    """Scenes that a recipe lists for the splits; if `train` is None, all unlisted scenes train."""

    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    train: tuple[str, ...] | None = None


def assign_splits(
    known: Mapping[str, Sequence[str]], groups: Mapping[str, str], named: NamedScenes
) -> dict[str, Split]:
    """Return the split of every used scene, by name.

    Args:
        known: for each scene name its aliases (name, group, path); entries of `named` are compared with these
            literally, then as glob patterns.
        groups: group of each scene name; a group is never separated.
        named: scenes listed by the recipe.

    Raises:
        DatasetError: an entry matches nothing, a scene is listed for two splits, a group would be separated,
            or no scene is left to train on.
    """
    splits: dict[str, Split] = {}
    called = _by_alias(known)
    asked: tuple[tuple[Split, tuple[str, ...]], ...] = (
        ("validation", named.validation),
        ("test", named.test),
        ("train", named.train or ()),
    )
    for split, entries in asked:
        for entry in entries:
            for name in _matching(entry, called, f"dataset.split.{split}"):
                if splits.setdefault(name, split) != split:
                    raise DatasetError(
                        "dataset.split",
                        f"{name} is named for {splits[name]} and for {split} ({entry})",
                        remedy="a scene has one split",
                    )
    if named.train is None:
        splits |= {name: "train" for name in known if name not in splits}
    _groups_whole(splits, groups)
    if "train" not in splits.values():
        raise DatasetError(
            "dataset.split", expected="at least one scene to train on", got=f"none of {len(known)} scenes"
        )
    return {name: splits[name] for name in known if name in splits}


def matching(entries: Iterable[str], known: Mapping[str, Sequence[str]], setting: str) -> set[str]:
    """Return the names of the scenes that match the entries of a setting; `known`: see `assign_splits`."""
    called = _by_alias(known)
    return {name for entry in entries for name in _matching(entry, called, setting)}


def _by_alias(known: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    called: dict[str, list[str]] = {}
    for name, aliases in known.items():
        for alias in dict.fromkeys(aliases):
            called.setdefault(alias, []).append(name)
    return called


def _matching(entry: str, called: Mapping[str, list[str]], setting: str) -> list[str]:
    """Return the scenes with the alias `entry`, else those that match it as a glob pattern."""
    by_pattern = (name for alias, names in called.items() if fnmatchcase(alias, entry) for name in names)
    matched = called.get(entry) or list(dict.fromkeys(by_pattern))
    if not matched:
        raise DatasetError(
            setting,
            f"{entry} matches no scene and no group{_hint_for(entry, called)}; there are "
            f"{few(sorted(called))}",
        )
    return matched


def _hint_for(entry: str, called: Mapping[str, list[str]]) -> str:
    """Return a hint for an unmatched entry: a pattern that would match, or a similarly spelt name."""
    for pattern in (f"{entry}*", f"*{entry}*"):
        names = {name for alias, names in called.items() if fnmatchcase(alias, pattern) for name in names}
        if names:
            return f"; did you mean '{pattern}' ({len(names)} scene{'s' * (len(names) > 1)})?"
    near = get_close_matches(entry, called, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _groups_whole(splits: Mapping[str, Split], groups: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name, split in splits.items():
        other = first.setdefault(groups[name], name)
        if splits[other] != split:
            raise DatasetError(
                "dataset.split",
                f"group {groups[name]} would be in {splits[other]} ({other}) and in {split} ({name})",
                remedy="name whole groups",
            )


def splits_of(names: Iterable[str], split: FolderSplit) -> dict[str, Split]:
    """Return the split of each name."""
    return {name: split_of(part, split.fold) for name, part in parts_of(names, split).items()}


def split_of(part: str, fold: int) -> Split:
    """Return the split that a part (see `Deal`) is in while one fold validates."""
    if part in SPLITS:
        return part
    return "validation" if part == f"fold {fold}" else "train"


def parts_of(names: Iterable[str], split: FolderSplit, deals: Deals = ()) -> dict[str, str]:
    """Return the part of each name, in the order of their hashes.

    Names of an earlier deal keep their parts, and each new one goes to the smallest part. Without one, the
    test takes the largest hashes, or the names that another deal with as large a test has there; validation
    the smallest hashes; each k-th of the rest goes to a fold.

    Args:
        deals: earlier deals.

    Raises:
        DatasetError: there are fewer names than folds.
    """
    ranked = in_hash_order(names, split.seed)
    before = parts_dealt(deals, split.rule)
    if not any(name in before for name in ranked):
        return _first_parts(ranked, split, deals)
    parts = {name: before[name] for name in ranked if name in before}
    sizes = Counter(parts.values())
    for name in ranked:
        if name not in parts:
            parts[name] = _smallest_part(name, split, sizes)
            sizes[parts[name]] += 1
    return {name: parts[name] for name in ranked}


def _first_parts(ranked: Sequence[str], split: FolderSplit, deals: Deals) -> dict[str, str]:
    """Return the parts of names that no deal names yet."""
    parts = dict.fromkeys(ranked, "train")
    parts |= dict.fromkeys(_first_test(ranked, split, deals), "test")
    rest = [name for name in ranked if parts[name] == "train"]
    if split.folds:
        if len(rest) < split.folds:
            raise DatasetError(
                "dataset.split.folds",
                expected=f"no more than there are groups to deal, {len(rest)}",
                got=split.folds,
            )
        parts |= {name: f"fold {place % split.folds + 1}" for place, name in enumerate(rest)}
    elif split.validation_share:
        first = ranked[: share_of(len(ranked), split.validation_share)]
        parts |= {name: "validation" for name in first if parts[name] == "train"}
    return parts


def _first_test(ranked: Sequence[str], split: FolderSplit, deals: Deals) -> list[str]:
    """Return the names of the test: those of another deal with the same share, else the largest hashes."""
    rule = split.rule
    for deal in deals if split.test_share else ():
        alike = (deal.rule.test_share, deal.rule.blocks) == (rule.test_share, rule.blocks)
        if alike and (names := [name for name in ranked if deal.parts.get(name) == "test"]):
            return names
    return list(ranked[len(ranked) - share_of(len(ranked), split.test_share) :])


def _smallest_part(name: str, split: FolderSplit, sizes: Mapping[str, int]) -> str:
    """Return the part of a new name: one that is short of its share, else the smallest fold, or training."""
    count = sum(sizes.values()) + 1
    held_out = (("test", split.test_share), ("validation", split.validation_share))
    for part, share in held_out if split.folds or sizes.get("train") else ():
        if sizes.get(part, 0) < share_of(count, share):
            return part
    if not split.folds:
        return "train"
    folds = [f"fold {fold}" for fold in range(1, split.folds + 1)]
    least = min(sizes.get(fold, 0) for fold in folds)
    tied = [fold for fold in folds if sizes.get(fold, 0) == least]
    return tied[int(_unit_hash(name) * len(tied))]


def share_of(count: int, share: float) -> int:
    """Return the number of names that a share holds out: 0 for no share, else at least one of two."""
    return max(0, min(max(1, math.floor(share * count + 0.5)), count - 1)) if share else 0


def in_hash_order(names: Iterable[str], seed: int = 0) -> list[str]:
    """Return names in the order of their hashes: arbitrary, but the same on every machine."""
    return sorted(names, key=lambda name: _unit_hash(f"{seed}:{name}" if seed else name))


def _unit_hash(name: str) -> float:
    """Return a number in 0 … 1 from the name alone (Python's own hash changes with each process)."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8], "big") / 2**64


def found_in_paths(pattern: str, paths: Sequence[str]) -> list[str | None]:
    """Return the match of a regular expression's only group in each path; None if it does not match."""
    matches = (re.search(compose_accents(pattern), compose_accents(path)) for path in paths)
    return [None if match is None else match[1] for match in matches]
