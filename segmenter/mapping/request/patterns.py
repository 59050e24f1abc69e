"""Label files by a pattern: `truth/{stem}.png`, with the fields that an image's name or its recipe gives."""

from __future__ import annotations

import glob
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from segmenter.base.errors import DatasetError
from segmenter.base.finding import matches
from segmenter.grid.scenes import Layout
from segmenter.mapping.request.inputs import readable

_BANDS_IN_NAME = re.compile(r"_(RGB|IRRG|RGBIR)$")
_PLACEHOLDER = re.compile(r"\{([^}]*)\}")


class LabelPattern:
    """A path, also a glob pattern, in which fields of an image's name stand in braces.

    Without fields it is one file for all images.

    `{stem}` is the image's name without its extension, `{scene}` that without a trailing `_RGB`, `_IRRG` or
    `_RGBIR`. The others are the recipe's: the `{names}` of its image pattern, Potsdam's `{row}` and
    `{column}`, NAIC2020's `{name}`. Where the recipe has one called stem or scene, its own counts.

    Args:
        layout: of the recipe's dataset.

    Raises:
        DatasetError: for an unknown field.
    """

    def __init__(self, text: str, layout: Layout) -> None:
        self.text, self._layout = text, layout
        self._used = list(dict.fromkeys(_PLACEHOLDER.findall(text)))
        known = dict.fromkeys(("stem", "scene", *layout.names))
        if unknown := [name for name in self._used if name not in known]:
            names = [f"{{{name}}}" for name in known]
            listed = f"{', '.join(names[:-1])} and {names[-1]}"
            raise DatasetError(f"--labels {text}: unknown {{{unknown[0]}}}; known are {listed}")

    @property
    def has_fields(self) -> bool:
        """Whether images have files of their own."""
        return bool(self._used)

    def label(self, image: Path) -> Path:
        """The one label file of an image.

        Raises:
            DatasetError: not exactly one file matches, or the image's path has not the recipe's form.
        """
        fields = self._fields(image)
        plain = self._filled(fields, str)
        with readable(plain):
            if Path(plain).is_file():
                return Path(plain)
        wanted = self._filled(fields, glob.escape)
        found = [Path(name) for name in matches(wanted) if Path(name).is_file()]
        if len(found) != 1:
            names = ", ".join(map(str, found[:3])) or "none"
            raise DatasetError(f"{image}: expected one label file {plain}, found {names}")
        return found[0]

    def _fields(self, image: Path) -> dict[str, str]:
        own = {"stem": image.stem, "scene": _BANDS_IN_NAME.sub("", image.stem)}
        theirs = self._layout.fields(image) if {*self._used} & {*self._layout.names} else None
        found = {**own, **(theirs or {})}
        if missing := [name for name in self._used if name not in found]:
            raise DatasetError(
                f"{image}: expected a path like {self._layout.form}, as the recipe has it, for "
                f"{{{missing[0]}}} in --labels {self.text}; or use {{stem}}"
            )
        return found

    def _filled(self, fields: Mapping[str, str], written: Callable[[str], str]) -> str:
        return _PLACEHOLDER.sub(lambda match: written(fields[match[1]]), self.text)
