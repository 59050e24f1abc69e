"""Program version, recorded in runs, maps and checkpoints; digest of the sources."""

import functools
import hashlib
from pathlib import Path

__version__ = "0.1.0"


@functools.cache
def source_digest() -> str:
    """Return a digest of the library's sources: during development, the version number does not change."""
    root, total = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root)}\n".encode())
        total.update(path.read_bytes())
    return total.hexdigest()[:12]
