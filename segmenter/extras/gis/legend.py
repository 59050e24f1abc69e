"""Legend of a class map: which value of the file is which class, and XML that may hold any name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from segmenter.mapping.jobs import MapJob
    from segmenter.mapping.outputs.finished import MapStyle

MARK = "written by coverage-segmenter; a file without this line is left as it is"
"""QGIS leaves comments out of what it saves: where this one stands, nobody changed the file by QGIS."""

QGIS_HEAD = f"<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>\n<!-- {MARK} -->\n"
QGIS_VERSION = "3.22.0"
"""Whose form our files have: the oldest that is tested. Later versions read it."""

_HEAD = 1 << 10
_NOT_IN_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class LegendEntry:
    """One class in a file.

    Attributes:
        value: of its pixels.
        colour: red, green, blue, 0 … 255.
        pixels: how many there are; None: not counted.
    """

    value: int
    name: str
    colour: tuple[int, int, int]
    pixels: int | None = None


def legend(style: MapStyle, job: MapJob, pixels: Sequence[int] | None = None) -> list[LegendEntry]:
    """Return the classes by what a job's map holds for them.

    Args:
        pixels: of each class.
    """
    counts = [None] * len(style.classes) if pixels is None else [int(count) for count in pixels]
    rows = zip(style.file_values(job).codes, style.classes.classes, counts, strict=True)
    return [LegendEntry(value, each.name, each.colour, count) for value, each, count in rows]


def shown(text: str) -> str:
    """A text as XML may hold it: characters that it cannot are replaced by U+FFFD."""
    return _NOT_IN_XML.sub("\ufffd", text)


def child(parent: ET.Element, tag: str, text: str | None = None, /, **attributes: object) -> ET.Element:
    """A new element below another, with its text and its attributes."""
    element = ET.SubElement(parent, tag, {name: shown(str(value)) for name, value in attributes.items()})
    element.text = None if text is None else shown(text)
    return element


def document(root: ET.Element, head: str = "") -> bytes:
    """An XML file, with lines before its root."""
    ET.indent(root)
    return f"{head}{ET.tostring(root, encoding='unicode')}\n".encode()


def is_ours(content: bytes) -> bool:
    """Whether a file's content is as this program wrote it, and not as QGIS saved it since."""
    return MARK.encode() in content[:_HEAD]
