"""Errors that a test expects, by class and fields."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from segmenter.base.errors import SegmenterError


@contextlib.contextmanager
def refused(
    kind: type[SegmenterError] | tuple[type[SegmenterError], ...], **fields: object
) -> Iterator[pytest.ExceptionInfo[Any]]:
    """Expect an error: `refused(RasterError, where="a.tif", got=4)`; a text is part of it, a value all."""
    with pytest.raises(kind) as raised:
        yield raised
    for name, part in fields.items():
        field = getattr(raised.value, name)
        fits = part in (field or "") if isinstance(part, str) else field == str(part)
        assert fits, f"expected {name} with {part!r}, got {field!r} of: {raised.value}"
