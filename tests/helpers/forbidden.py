"""A folder that one may not enter, also where the tests run as root, who may enter all."""

import os
import resource
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


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """This process may write no file larger than so many bytes, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
