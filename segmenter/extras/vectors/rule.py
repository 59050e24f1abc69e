"""Rule that turns polygons into labels: class by attribute value, and priorities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from segmenter.base.errors import LabelError, shorten
from segmenter.base.files import compose_accents
from segmenter.base.sealed import digest
from segmenter.config.datasets import IGNORE_WORD, VectorLabels
from segmenter.grid.labels import IGNORE, ClassMap, rasterised_classes


@dataclass(frozen=True)
class BurnRule:
    """Rule from the polygons of a file to the class ids of an image's pixels.

    Attributes:
        classes: class map of the rasterised labels, see `labels.rasterised_classes`.
        attribute: None: all polygons are of the one class beside that of `outside`.
        ignored: attribute values for pixels to ignore; a missing value means the same.
        uncoded: classes whose code is made up, since the recipe has none: no value means it.
    """

    classes: ClassMap
    attribute: str | None
    values: Mapping[str, str]
    ignored: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    outside: str = IGNORE_WORD
    all_touched: bool = False
    layer: str | None = None
    crs: str | None = None
    uncoded: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        section: VectorLabels | None,
        classes: ClassMap,
        ignored: Sequence[int | str] = (),
        uncoded: Sequence[str] = (),
    ) -> BurnRule:
        """Make the rule from a recipe's section (None: defaults) for classes in the order of their ids."""
        section = section or VectorLabels()
        return cls(
            classes=rasterised_classes(classes),
            attribute=section.attribute,
            values=section.values,
            ignored=tuple(map(str, ignored)),
            order=section.order,
            outside=section.outside,
            all_touched=section.all_touched,
            layer=section.layer,
            crs=section.crs,
            uncoded=tuple(uncoded),
        )

    @cached_property
    def _ids(self) -> dict[str, int]:
        """Class id by attribute text; for repeated texts, the first one."""
        names = {name: i for i, name in enumerate(self.classes.names)}
        coded = ((i, each) for i, each in enumerate(self.classes.classes) if each.name not in self.uncoded)
        codes = {str(each.code): i for i, each in coded}
        named = {value: names.get(name, IGNORE) for value, name in self.values.items()}
        return {**codes, **names, **dict.fromkeys(self.ignored, IGNORE), **named}

    def kind_of(self, value: Any, where: str, hint: Callable[[Any], str] = lambda value: "") -> int:
        """Return the class id of a polygon from its attribute value; `IGNORE` if it has none.

        Raises:
            LabelError: the value names no class; `where` names file and polygon, `hint` a likely cause.
        """
        if self.attribute is None:
            return next(i for i in range(len(self.classes)) if i != self.outside_id)
        text = as_text(value)
        if text is None:
            return IGNORE
        kind = self._ids.get(text)
        if kind is None:
            if self.uncoded and text.isdecimal():
                raise self._without_codes(text, where)
            listed = ", ".join(shorten(name, 40) for name in self.classes.names)
            raise LabelError(
                where,
                f"{self.attribute} is {shorten(text, 60)!r}, which names no class (there are {listed}); "
                f"add it to dataset.vector.values, as the class that it means or as ignore{hint(value)}",
            )
        return kind

    def _without_codes(self, text: str, where: str) -> LabelError:
        """Return the error of a number where classes have no code, with the codes of earlier versions."""
        pairs = ((shorten(each.name, 40), each.code) for each in self.classes.classes)
        listed = ", ".join(f"{{name: {name}, code: {code}}}" for name, code in pairs)
        return LabelError(
            where,
            f"{self.attribute} is {text}, which is no class's name, and no class has the code {text}",
            remedy="write in dataset.classes which class each number means; earlier versions counted the "
            f"list from 0: [{shorten(listed, 1000)}]",
        )

    @cached_property
    def outside_id(self) -> int:
        """Class id of pixels outside all polygons."""
        return self._id(self.outside)

    @cached_property
    def above(self) -> tuple[int, ...]:
        """Class ids with a set priority, from top to bottom; ignored polygons are on top."""
        order = tuple(self._id(name) for name in self.order)
        return order if IGNORE in order else (IGNORE, *order)

    def _id(self, name: str) -> int:
        names = self.classes.names
        return names.index(name) if name in names else IGNORE

    def name_of(self, kind: int) -> str:
        """Return the name of a class id, or `ignore`."""
        return IGNORE_WORD if kind == IGNORE else self.classes.names[kind]

    def key(self) -> str:
        """Return a digest of everything except the file that pixel ids depend on."""
        facts = {**asdict(self), "classes": self.classes.to_dict(), "values": dict(self.values)}
        if not self.uncoded:  # the key of earlier versions, which gave the same pixels
            del facts["uncoded"]
        return digest(facts, 64)


def as_text(value: Any) -> str | None:
    """Return an attribute value as text; None if it is null, NaN or empty.

    Whole floats are written as integers: integer columns with nulls are read as floats.
    """
    if value is None or (isinstance(value, (float, np.floating)) and np.isnan(value)):
        return None
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    return compose_accents(str(value)).strip() or None
