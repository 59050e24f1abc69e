"""Python's and NumPy's values as arguments, where another type would end deep inside."""

from __future__ import annotations

import operator
from typing import Any

from segmenter.base.errors import DatasetError


def whole_number(where: str, value: Any) -> int:
    """Return Python's or NumPy's whole number as an int.

    Raises:
        DatasetError: the value is no whole number.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise DatasetError(where, expected="a whole number", got=f"{value!r}") from None
