"""A folder that one may not enter, also where the tests run as root, who may enter all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_NOBODY = 65534


@contextmanager
def forbidden(folder: Path) -> Iterator[None]:
    """Nothing below `folder` can be looked at meanwhile; what is to be imported must have been."""
    before, user = folder.stat().st_mode, os.getuid()
    folder.chmod(0)
    try:
        if user == 0:
            try:
                os.setresuid(_NOBODY, _NOBODY, user)  # os.access asks for the first, all else for the second
            except OSError as error:
                pytest.skip(f"root cannot become another user here: {error}")
        yield
    finally:
        os.setresuid(user, user, user)
        folder.chmod(before)
