"""Class maps: names, colours and file codes of the land-cover classes, and their dense ids.

The law of this module: **an unknown value is an error**, never class 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from segmenter.base.errors import LabelError
from segmenter.base.terminal import unsafe

IGNORE = 255
"""The id of pixels that count nowhere: not in loss, scores, nor class statistics."""
MAX_CLASSES = 254
"""Ids are uint8; 255 is `IGNORE`, 254 is kept for values that no class has (`decode` never returns it)."""
_OTHER, _OTHER_IGNORED = 1 << 16, (1 << 16) + 1
"""Keys of codes that are none of 16 bits."""
UNKNOWN = 254
"""Id that `decode_known` gives for a value that the class map does not know."""

Colour = tuple[int, int, int]
Encoding = Literal["codes", "colours"]
Nodata = Literal["ask", "ignore", "class"]


@dataclass(frozen=True)
class LandCoverClass:
    """One class.

    Attributes:
        name, colour: for people and maps.
        code: in label files and results.
        also: further codes in label files that mean it, as the greys of a mask with soft edges.
    """

    name: str
    colour: Colour
    code: int
    also: tuple[int, ...] = ()


@dataclass(frozen=True)
class ClassMap:
    """Conversion of label values to dense class ids 0 … K−1, and back.

    >>> water, road = LandCoverClass("water", (0, 0, 255), 100), LandCoverClass("road", (90, 90, 90), 200)
    >>> ClassMap((water, road), ignored=(0,)).decode(np.array([[200, 100, 0]]))
    array([[  1,   0, 255]], dtype=uint8)

    Attributes:
        classes: in the order of their ids.
        encoding: content of label files: codes (one band) or colours (three bands).
        ignored: further codes, or colours, of pixels to ignore.
        nodata: meaning of a label file's nodata value if it equals a class's value: pixels to ignore, the
            class, or unknown, so that the file is refused.
    """

    classes: tuple[LandCoverClass, ...]
    encoding: Encoding = "codes"
    ignored: tuple[int | Colour, ...] = ()
    nodata: Nodata = "ask"

    def __post_init__(self) -> None:
        if not 1 <= len(self.classes) <= MAX_CLASSES:
            raise LabelError(f"a class map has 1 to {MAX_CLASSES} classes, got {len(self.classes)}")
        if bad := [(name, sign) for name in self.names if (sign := unsafe(name)) is not None]:
            raise LabelError(
                "class map",
                expected="names without control characters",
                got=f"{bad[0][1]} in {bad[0][0]!a}",
                remedy="name the class otherwise in dataset.classes",
            )
        colours = [*(c.colour for c in self.classes), *(v for v in self.ignored if not isinstance(v, int))]
        if wrong := [colour for colour in colours if not all(0 <= value <= 255 for value in colour)]:
            raise LabelError("class map", "colours have three values in 0 … 255", got=wrong[0])
        if wrong_kind := [v for v in self.ignored if isinstance(v, int) != (self.encoding == "codes")]:
            raise LabelError(
                "class map",
                f"label files hold {self.encoding}, so what is ignored is given as {self.encoding}",
                got=f"{wrong_kind[0]!r}",
            )
        keys = [str(k) if self.encoding == "codes" else f"#{k:06x}" for k in self._keys]
        keys += [str(code) for each in self.classes for code in each.also]
        codes = [str(c.code) for c in self.classes]
        for what, values in (("name", self.names), ("value in label files", keys), ("code", codes)):
            twice = sorted(value for value, count in Counter(values).items() if count > 1)
            if twice:
                raise LabelError(
                    "class map",
                    f"each {what} may occur once",
                    got=f"twice: {', '.join(twice)}",
                    remedy="see dataset.classes and dataset.ignore",
                )
        if wrong_codes := [
            code for c in self.classes for code in (c.code, *c.also) if not 0 <= code < 0xFFFF
        ]:
            raise LabelError(
                "class map",
                "codes of classes lie in 0 … 65534",
                got=sorted(wrong_codes),
                remedy="other values of label files can only be ignored, by dataset.ignore",
            )

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def names(self) -> list[str]:
        """Class names in the order of their ids."""
        return [c.name for c in self.classes]

    @property
    def _keys(self) -> list[int]:
        """Label values as one integer each: first those of classes, then the ignored ones."""
        if self.encoding == "codes":
            return [*(c.code for c in self.classes), *(int(v) for v in self.ignored if isinstance(v, int))]
        colours = [*(c.colour for c in self.classes), *(v for v in self.ignored if not isinstance(v, int))]
        return pack_colours(np.array(colours).reshape(1, -1, 3))[0].tolist()

    @cached_property
    def _table(self) -> NDArray[np.uint8]:
        """Dense table from key to id: 64 KiB for codes, 16 MiB for colours; decoding is one look-up a pixel.

        After the 16-bit codes follow one entry for all other codes and one for other codes to ignore.
        """
        keys = np.array(self._keys)
        ids = np.array([*range(len(self.classes)), *[IGNORE] * len(self.ignored)], np.uint8)
        if self.encoding == "colours":
            table = np.full(1 << 24, UNKNOWN, np.uint8)
            table[keys] = ids
            return table
        table = np.full(_OTHER + 2, UNKNOWN, np.uint8)
        inside = (keys >= 0) & (keys < _OTHER)
        table[keys[inside]] = ids[inside]
        for i, each in enumerate(self.classes):
            table[list(each.also)] = i
        table[_OTHER_IGNORED] = IGNORE
        return table

    def _pack(self, raw: NDArray[Any], where: str) -> NDArray[Any]:
        """Return one unsigned integer per pixel of (H, W) or (H, W, 1) codes, or (H, W, 3+) colours."""
        bands = 1 if raw.ndim == 2 else raw.shape[2]
        if self.encoding == "colours":
            if bands < 3 or raw.dtype != np.uint8:
                raise LabelError(
                    where, expected="a label image of three 8-bit colour bands", got=f"{bands} of {raw.dtype}"
                )
            return pack_colours(raw)
        if bands != 1 or raw.dtype.kind not in "uibf":
            raise LabelError(where, expected="one band of whole numbers", got=f"{bands} of {raw.dtype}")
        codes = raw.reshape(raw.shape[:2])
        if codes.dtype in (np.uint8, np.uint16):
            return codes
        with np.errstate(invalid="ignore"):
            inside = (codes >= 0) & (codes < _OTHER)
            if codes.dtype.kind == "f":
                inside &= codes == np.rint(codes)
        keys = np.full(codes.shape, _OTHER, np.uint32)
        keys[inside] = codes[inside].astype(np.uint32)
        if not inside.all():
            outside = [key for key in self._keys if not 0 <= key < _OTHER]
            keys[np.isin(codes, outside) | (codes != codes)] = _OTHER_IGNORED  # NaN is no value
        return keys

    def class_of(self, raw: NDArray[Any]) -> str | None:
        """Return the class name for a single pixel's stored value; None if it belongs to no class."""
        class_id = int(self.decode_known(raw)[0, 0])
        return self.names[class_id] if class_id < len(self) else None

    def decode(
        self, raw: NDArray[Any], where: str = "label", void: NDArray[np.bool_] | None = None
    ) -> NDArray[np.uint8]:
        """Return the class ids of a label raster.

        Args:
            raw: (H, W) or (H, W, 1) codes, or (H, W, 3 or more) 8-bit colours. Codes may be whole numbers of
                any type, NaN is ignored.
            where: name of the raster in the error.
            void: (H, W) True where the file marks pixels as unlabelled, whatever their value.

        Returns:
            (H, W) uint8 ids; `IGNORE` for pixels without a class.

        Raises:
            LabelError: a value is not in the class map; no value is guessed.
        """
        ids = self.decode_known(raw, where, void)
        if (ids == UNKNOWN).any():
            unknown = list(self.unknown(raw, where, void).items())[:5]
            listed = ", ".join(f"{value} ({count} px)" for value, count in unknown)
            raise LabelError(
                where,
                f"{self.encoding} that the class map does not know: {listed}",
                remedy="add them to dataset.ignore (or a folder's dataset.classes), or name the scene in "
                "leave_out",
            )
        return ids

    def decode_known(
        self, raw: NDArray[Any], where: str = "label", void: NDArray[np.bool_] | None = None
    ) -> NDArray[np.uint8]:
        """Return class ids with `UNKNOWN` for undefined values instead of an error: for audits."""
        # No key lies beyond the table; told so, NumPy looks up eight times as fast as by indexing.
        ids: NDArray[np.uint8] = np.take(self._table, self._pack(raw, where), mode="wrap")
        if void is not None:
            ids[void] = IGNORE
        return ids

    def unknown(
        self, raw: NDArray[Any], where: str = "label", void: NDArray[np.bool_] | None = None
    ) -> dict[str, int]:
        """Return the pixel counts of values (`300` or `#ff00aa`) that the class map does not define."""
        keys = self._pack(raw, where)
        stray = self._table[keys] == UNKNOWN
        if void is not None:
            stray &= ~void
        if self.encoding == "codes":
            values, counts = np.unique(raw.reshape(raw.shape[:2])[stray], return_counts=True)
            return {str(v): int(n) for v, n in zip(values, counts, strict=True)}
        values, counts = np.unique(keys[stray], return_counts=True)
        return {f"#{int(v):06x}": int(n) for v, n in zip(values, counts, strict=True)}

    def codes(self) -> NDArray[np.uint16]:
        """Return the (K,) codes in the order of the ids: `codes()[ids]` gives the data's own codes."""
        return np.array([c.code for c in self.classes], np.uint16)

    def palette(self) -> NDArray[np.uint8]:
        """Return (256, 3) colours by id; black for unused ids."""
        table = np.zeros((256, 3), np.uint8)
        table[: len(self.classes)] = [c.colour for c in self.classes]
        return table

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for a run directory; `from_dict` is the inverse."""
        classes = [
            {"name": c.name, "colour": list(c.colour), "code": c.code}
            | ({"also": list(c.also)} if c.also else {})
            for c in self.classes
        ]
        ignored = [v if isinstance(v, int) else list(v) for v in self.ignored]
        settled = {} if self.nodata == "ask" else {"nodata": self.nodata}
        return {"classes": classes, "encoding": self.encoding, "ignored": ignored, **settled}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClassMap:
        """Build a class map from the data of `to_dict`."""
        return TypeAdapter(cls).validate_python(data)


def pack_colours(raw: NDArray[Any]) -> NDArray[Any]:
    """Return (H, W) codes unchanged, and (H, W, 3 or more) colours as numbers 0xrrggbb."""
    if raw.ndim == 2:
        return raw
    r, g, b = (raw[..., i].astype(np.uint32) for i in range(3))
    return (r << 16) | (g << 8) | b


def unpack_colour(number: int) -> Colour:
    """Return 0xrrggbb as three values."""
    return number >> 16, number >> 8 & 255, number & 255


def class_pixels(ids: NDArray[np.uint8], classes: int) -> NDArray[np.int64]:
    """Return (classes,) pixel counts of each class in an array of ids; `IGNORE` is left out."""
    return np.bincount(ids.reshape(-1), minlength=256)[:classes].astype(np.int64)


def rasterised_classes(classes: ClassMap) -> ClassMap:
    """Return the class map of rasterised polygons: class codes, and one unused code for pixels to ignore."""
    taken = {code for each in classes.classes for code in (each.code, *each.also)}
    none = next(code for code in (IGNORE, 0, *range(0xFFFE, 0, -1)) if code not in taken)
    return ClassMap(tuple(replace(each, also=()) for each in classes.classes), "codes", (none,))
