"""QGIS, where this machine has it: asked in a process of the system's Python."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

_PYTHON = Path("/usr/bin/python3")
_LIBRARY = Path("/usr/lib/python3/dist-packages/qgis")
_SCRIPT = Path(__file__).with_name("qgis_look.py")


def ask_qgis(folder: Path, **asked: Any) -> dict[str, Any]:
    """What QGIS says of files, see `qgis_look`; skips the test where there is none.

    Args:
        folder: for its settings.
    """
    if not (_PYTHON.exists() and _LIBRARY.is_dir()):
        pytest.skip("QGIS is not installed (Debian: apt-get install python3-qgis qgis-providers)")
    foreign = ("PYTHON", "GDAL", "PROJ")  # of our own libraries
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    environment |= {"QT_QPA_PLATFORM": "offscreen", "HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    done = subprocess.run(
        [_PYTHON, "-W", "ignore", _SCRIPT],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found
