"""Setting `dataset.vector` of the recipe: how polygons become labels."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, setting

IGNORE_WORD = "ignore"
"""In place of a class: pixels that count nowhere."""


def _as_text(value: object) -> object:
    """YAML reads `3` as a number, which a value of an attribute is written as too."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Text = Annotated[str, BeforeValidator(_as_text)]


class VectorLabels(Section):
    """How polygons become labels, where the label files are vectors."""

    attribute: str = setting(
        "class", "", "that holds the class of a polygon: its name, its code, or a value below"
    )
    values: dict[Text, Text] = setting(
        {}, "", "value of the attribute: class, or ignore; without a value (null) a polygon is ignored"
    )
    order: tuple[Text, ...] = setting(
        (), "", "classes from top to bottom where polygons overlap; those not named lie below, apart"
    )
    outside: Text = setting(IGNORE_WORD, "", "of pixels in no polygon: ignore, or a class")
    all_touched: bool = setting(
        False, "", "a pixel belongs to each polygon that touches it, not only to that of its centre"
    )
    layer: str | None = setting(None, "", "of the file; default: its only one")
    crs: str | None = setting(None, "", "of files that do not say theirs, as EPSG:25832")

    def check(self, classes: list[str]) -> None:
        """Refuse a class that the dataset does not have.

        Raises:
            PydanticCustomError: naming the setting.
        """
        named = [("values", name) for name in self.values.values()]
        named += [("order", name) for name in self.order] + [("outside", self.outside)]
        for key, name in named:
            if name not in (*classes, IGNORE_WORD):
                raise PydanticCustomError(
                    f"dataset.vector.{key}",
                    "expected classes of dataset.classes, or ignore, got {name}; there are {known}",
                    {"name": name, "known": ", ".join(classes)},
                )
        twice = [name for i, name in enumerate(self.order) if name in self.order[:i]]
        if twice:
            raise PydanticCustomError(
                "dataset.vector.order", "expected each class once, got {name} twice", {"name": twice[0]}
            )
