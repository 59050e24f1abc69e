"""Base class of recipe sections: strict, frozen, each setting with its unit and reason."""

from __future__ import annotations

import re
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

_NUMBER_WITH_UNIT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?")
_SHORT_UNITS = {"px": "pixels", "pixel": "pixels", "°": "degrees", "deg": "degrees", "epoch": "epochs"}
_SHORT_UNITS |= {"step": "steps", "tile": "tiles", "GB": "GiB", "m": "metres"}

Count = Annotated[int, Field(le=10**9)]
"""A whole number used as a factor; limited, so that NumPy and TensorFlow can represent the product."""


def about(unit: str, why: str) -> Any:
    """Return a field with unit (empty for a choice) and reason, for a type that several fields share."""
    return Field(description=why, json_schema_extra={"unit": unit})


def setting(default: Any, unit: str, why: str, **limits: Any) -> Any:
    """Declare a field: default (`...` for none), unit (empty for a choice) and reason."""
    return Field(default, description=why, json_schema_extra={"unit": unit}, **limits)


class Section(BaseModel):
    """A strict, frozen part of a recipe: an unknown key or a wrong unit is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _units(cls, data: Any) -> Any:
        """Convert texts such as `256 px` to numbers if the unit is right; leave a wrong unit as text."""
        if not isinstance(data, dict):
            return data
        return {key: _plain_number(value, unit_of(cls, str(key))) for key, value in data.items()}


def kinds_of(union: Any) -> dict[str, type[Section]]:
    """Return the section class of each `kind` in an annotated union of sections."""
    sections = {}
    for part in get_args(get_args(union)[0]):
        section: type[Section] = part if isinstance(part, type) else get_args(part)[0]
        (kind,) = get_args(section.model_fields["kind"].annotation)
        sections[kind] = section
    return sections


def unit_of(section: Any, key: str) -> str:
    """Return the unit of a section's field; empty for a choice and for an unknown field."""
    field = getattr(section, "model_fields", {}).get(key)
    extra = field.json_schema_extra if field is not None else None
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def _plain_number(value: Any, unit: str) -> Any:
    """Return `value` without its unit if that is `unit`; leave any other text unchanged."""
    if unit and isinstance(value, bool):
        return str(value)
    match = _NUMBER_WITH_UNIT.fullmatch(value) if unit and isinstance(value, str) else None
    if match is None:
        return value
    number, given = match[1], (match[2] or unit).strip()
    if _SHORT_UNITS.get(given, given) != unit:
        return value
    return float(number) if re.search(r"[.eE]", number) else int(number)
