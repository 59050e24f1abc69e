"""Scenes of a run: path, content, group, place and role of each, fixed when its training starts.

The law of this module: **a run knows what it learnt**. Whatever asks whether a model learnt from a scene asks
this record (scenes.json), never the folder of today. A scene is found again by its image's content, whatever
its name, else by its name: a label that was mended, or an image that was stored anew, keeps its role.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from segmenter.base.errors import CheckpointError, SegmenterError, counted, plain, shorten
from segmenter.base.files import read_regular, write_whole
from segmenter.base.sealed import other_format, seal, unseal
from segmenter.base.terminal import fit_table
from segmenter.grid.deals import Deals, as_json, deals_from
from segmenter.grid.scenes import SPLITS, Scene, Split

FILE = "scenes.json"
_FORMAT, _OLD_FORMAT, _MOST_BYTES = 2, 1, 1 << 28
ROLES = (*SPLITS, "left out")
"""Uses of a scene by a training; `left out` by a rule of its recipe."""
_CHANGES = (
    *("scene {} is new", "the image of scene {} has changed", "the label of scene {} has changed"),
    "scene {} is gone",
)

Digests = dict[str, tuple[str, str]]
"""Name of a scene → digests of its image and of its label, empty where it has none."""


@dataclass(frozen=True)
class KnownScene:
    """A scene as a run knows it.

    Attributes:
        image, label: digests of its files (`tiles.scene_files.file_digest`); empty: no file, or not read.
        path: its image, below the dataset's root.
        group: scenes of one group show the same place.
        part: of its group, if a hash dealt it: `fold 2`, `test`, …; empty: the recipe names the roles.
        place: west, south, east and north in degrees; None: no georeference, or not read.
        role: one of `ROLES`; empty: the run is of before, and does not say it.
        blocks: True if only some blocks of the image have this role.
    """

    image: str
    label: str
    path: str = ""
    group: str = ""
    part: str = ""
    place: tuple[float, float, float, float] | None = None
    role: str = ""
    blocks: bool = False


@dataclass(frozen=True)
class RunScenes:
    """Scenes of a run by name, with the deals that they come from.

    Attributes:
        told: False for a run of before, which knows the content of its scenes and not their roles.
    """

    scenes: Mapping[str, KnownScene]
    deals: Deals = ()
    told: bool = True

    @cached_property
    def _by_image(self) -> dict[str, list[KnownScene]]:
        found: dict[str, list[KnownScene]] = {}
        for scene in self.scenes.values():
            if scene.image:
                found.setdefault(scene.image, []).append(scene)
        return found

    def find(self, scene: Scene, image: str, *, by_name: bool = True) -> KnownScene | None:
        """Return a scene of today as the run knows it; None if it is new to the run.

        Args:
            image: digest of its image.
            by_name: False: names are those of other data, and its content alone counts.
        """
        named = self.scenes.get(scene.name) if by_name else None
        alike = self._by_image.get(image, [])
        if named is not None and (not alike or named in alike):
            return named
        own = [each for each in alike if each.role == scene.split or not scene.blocks]
        if named is not None and not own:
            return named
        return min(own or alike, key=lambda each: ROLES.index(each.role or "train"), default=None)

    def trained_on(self, image: str) -> bool:
        """Return whether an image of this content, or blocks of it, trained the run."""
        return any(scene.role == "train" for scene in self._by_image.get(image, ()))

    @property
    def counts(self) -> dict[str, int]:
        """Number of scenes of each role."""
        counted = Counter(scene.role for scene in self.scenes.values())
        return {role: counted[role] for role in ROLES}

    @property
    def digests(self) -> Digests:
        """Digests of the scenes that trained and validated."""
        used = ("train", "validation", "")
        return {n: (scene.image, scene.label) for n, scene in self.scenes.items() if scene.role in used}

    def with_roles(self, roles: Mapping[str, Split], blocks: Collection[str] = ()) -> RunScenes:
        """Return the record of a run of before with roles that were found out; some of `blocks` of images."""
        none = KnownScene("", "")
        scenes = {
            name: replace(self.scenes.get(name, none), role=role, blocks=name in blocks)
            for name, role in roles.items()
        }
        return replace(self, scenes=scenes, told=True)

    def rows(self) -> Iterable[dict[str, Any]]:
        """Yield the record of each scene as plain JSON."""
        return ({"scene": name, **asdict(scene)} for name, scene in self.scenes.items())


TITLES = ("Scene", "Role", "Part", "Group", "Place", "Image")
"""Columns of `scene_rows`."""


def scene_rows(known: RunScenes) -> list[list[str]]:
    """Return a row of texts for each scene, by role and name; `Place` in degrees, east and north."""
    order = sorted(known.scenes.items(), key=lambda item: (ROLES.index(item[1].role), item[0]))
    return [
        [
            *(name, f"{each.role}{' (blocks)' if each.blocks else ''}", each.part),
            *(each.group if each.group != name else "", _degrees(each.place), each.path),
        ]
        for name, each in order
    ]


def _degrees(place: tuple[float, float, float, float] | None) -> str:
    if place is None:
        return ""
    west, south, east, north = place
    return f"{(west + east) / 2:.5f}, {(south + north) / 2:.5f}"


def scene_table(known: RunScenes) -> list[str]:
    """Return the lines of a table of a run's scenes, and a line with the number of each role."""
    counts = ", ".join(f"{count} {role}" for role, count in known.counts.items() if count)
    lines = fit_table(TITLES, scene_rows(known), left=len(TITLES))
    return [*(plain(line) for line in lines), f"{counted(len(known.scenes), 'scene')}: {counts}"]


def save_scenes(run: Path, known: RunScenes) -> None:
    """Write the record of its scenes into a run directory, completely or not at all.

    Raises:
        SegmenterError: the file cannot be written.
    """
    scenes = {name: asdict(scene) for name, scene in known.scenes.items()}
    content = {"format": _FORMAT, "scenes": scenes, "deals": as_json(known.deals)}
    write_whole(run / FILE, seal(json.dumps(content, indent=0)).encode())


def load_scenes(run: Path) -> RunScenes | None:
    """Load the record of a run's scenes; None without that file.

    Raises:
        CheckpointError: the file is damaged or edited, or of another format.
    """
    path = run / FILE
    if not path.exists():
        return None
    text = read_regular(path, _MOST_BYTES)
    try:
        if (old := _of_before(text)) is not None:
            return old
        content = unseal(text)
        if content is None:
            raise ValueError("its checksum is another, or missing")
        if content.get("format") != _FORMAT:
            raise CheckpointError(path, other_format(_FORMAT, content.get("format")))
        return RunScenes(
            {str(name): _scene(each) for name, each in content["scenes"].items()},
            deals_from(content["deals"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CheckpointError(
            path,
            f"damaged or edited: {shorten(str(error))}",
            remedy="put it back as it was; what the run learnt cannot be known without it",
        ) from None


def _scene(content: Any) -> KnownScene:
    scene = KnownScene(**content)
    place = None if scene.place is None else tuple(map(float, scene.place))
    if scene.role not in ROLES or not (place is None or len(place) == 4):
        raise ValueError(f"{scene.role!r} is no role, or {scene.place!r} no place")
    return replace(scene, place=place)


def _of_before(text: bytes) -> RunScenes | None:
    """Return the record of a run of before, with digests alone; None if it is not one."""
    try:
        content = json.loads(text)
        if content["format"] != _OLD_FORMAT:
            return None
        scenes = {
            str(n): KnownScene(str(image), str(label)) for n, (image, label) in content["scenes"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return RunScenes(scenes, told=False)


def deals_of(run: Path) -> Deals:
    """Return the deals of a run's scenes; none if its record is missing or damaged."""
    try:
        known = load_scenes(run)
    except SegmenterError:  # reported where the record is needed
        return ()
    return () if known is None else known.deals


# ------------------------------------------------------------------------------------------- changes since


def changed_file(run: Path, now: Digests) -> str:
    """Return a message on the first difference between the recorded scenes of a run and the current ones.

    Empty if nothing differs; a line that says so if the run has no record.
    """
    names = changes_since(run, now)
    if names is None:
        return f"training images or labels have changed ({FILE}, missing or not readable, would name them)"
    changes = [
        text.format(name) for text, scenes in zip(_CHANGES, names.values(), strict=True) for name in scenes
    ]
    others = len(changes) - 1
    more = f", and {others} more difference{'s' * (others > 1)}" if others else ""
    return changes[0] + more if changes else ""


def changes_since(run: Path, now: Digests) -> dict[str, list[str]] | None:
    """Return the names of scenes by change: new, with another image, with another label, gone.

    None if the run has no readable record.
    """
    try:
        known = load_scenes(run)
    except SegmenterError:
        return None
    if known is None:
        return None
    before = known.digests
    both = [name for name in now if name in before]
    return {
        "new": [name for name in now if name not in before],
        "with another image": [name for name in both if now[name][0] != before[name][0]],
        "with another label": [name for name in both if now[name][1] != before[name][1]],
        "gone": [name for name in before if name not in now],
    }
