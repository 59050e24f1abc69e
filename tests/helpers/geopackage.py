"""Changes to a GeoPackage by SQLite alone."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_CODE = """
import json, sqlite3, sys
with sqlite3.connect(sys.argv[1]) as file:
    for name in ("ST_IsEmpty", "ST_MinX", "ST_MaxX", "ST_MinY", "ST_MaxY"):
        file.create_function(name, 1, lambda _: 0)
    for statement, values in json.load(sys.stdin):
        file.execute(statement, values)
file.close()
"""


def changed(path: Path, *statements: str | tuple[str, tuple[Any, ...]]) -> None:
    """Run statements, with their values, without GDAL; triggers name functions that SQLite does not have.

    In a process of its own: once TensorFlow is imported, Python's sqlite3 calls the SQLite inside it, which
    has no R-trees.
    """
    pairs = [(each, ()) if isinstance(each, str) else each for each in statements]
    text = json.dumps(pairs)
    subprocess.run([sys.executable, "-c", _CODE, str(path)], input=text, text=True, check=True)
