"""Files of the page as esbuild makes them of `web/`: by `make view`, and part of a wheel."""

from __future__ import annotations

from pathlib import Path

from segmenter.base.errors import SegmenterError
from segmenter.extras.view.server import Answer, Asked, Routes

BUILT = Path(__file__).parent / "built"
_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "app.css": "text/css; charset=utf-8",
    "LICENSES.txt": "text/plain; charset=utf-8",
}


def built_file(name: str) -> bytes:
    """Return a file of the page.

    Raises:
        SegmenterError: the page was not built.
    """
    try:
        return (BUILT / name).read_bytes()
    except OSError:
        raise SegmenterError(
            BUILT, expected="the page, which is built once", got="none", remedy="make view builds it"
        ) from None


def page_routes() -> Routes:
    """Return the routes of the page's own files, by fixed names."""
    files = {name: Answer(built_file(name), kind) for name, kind in _KINDS.items()}

    def file(asked: Asked) -> Answer:
        return files[asked.words[0] or "index.html"]

    return {"GET ": file, **{f"GET {name}": file for name in files}}
