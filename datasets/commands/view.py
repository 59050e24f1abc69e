"""Maps in the browser: `segmenter view MAPS/` shows image, map and more, and where to look.

The page is served to this machine alone, at an address with a token that is printed. It ends with Ctrl-C, or
ten minutes after the last page was closed. Exit code 0; with a one-line error 1 where a file cannot be
written, else 2.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.errors import plain
from segmenter.base.invocation import ToolParser
from segmenter.base.machine import return_freed_memory
from segmenter.base.options import OverwriteOptions, option
from segmenter.base.terminal import say

from .frame import parse_quietly, tool_parser

if TYPE_CHECKING:
    from segmenter.extras.view.opening import Wanted

SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class ViewOptions(OverwriteOptions):
    """Places to look at, with what they show."""

    given: tuple[Path, ...] = option(
        ...,
        "class maps as predict.py writes them, GeoTIFFs or folders of them; or a GeoPackage of points or "
        "findings to answer; or run directories",
        "MAPS",
        positional=True,
        several=True,
    )
    images: Path | None = option(
        None, "folder of the maps' images (default: where predict.py found them)", "DIR"
    )
    labels: str | None = option(
        None,
        "label files, such as 'truth/{stem}.png', by the stem of the image's name",
        "PATTERN",
        path=True,
    )
    beside: Path | None = option(None, "folder of other maps of the same images, to compare with", "DIR")
    places: tuple[Path, ...] = option(
        (), "places to walk through: review.csv, or points of `accuracy sample`", "FILE", several=True
    )
    export: Path | None = option(
        None, "write the page with its maps as one file of at most 20 MB, and serve nothing", "FILE.html"
    )
    port: int = option(0, "port to listen at (default: any free one)", "N", group=SERVER, least=0, most=65535)
    host: str = option(
        "127.0.0.1",
        "address to listen at; in a container 0.0.0.0, which the token still guards",
        "ADDRESS",
        group=SERVER,
    )
    browser: bool = option(True, "print the address, and open no browser", group=SERVER)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the page until it is left; return the exit code."""
    given = parse_quietly(_parser(), ViewOptions, arguments)
    from segmenter.extras.view.opening import Wanted
    from segmenter.extras.view.server import PageServer

    from .view_kinds import routes_of

    return_freed_memory()
    wanted = Wanted(given.given, given.images, given.labels, given.beside, given.places)
    if given.export is not None:
        return _export(wanted, given.export, given)
    with routes_of(wanted) as routes, PageServer(routes, host=given.host, port=given.port) as server:
        _announce(server.address, server.port)
        if given.browser:
            _open(server.address)
        try:
            server.serve()
            say("no page is open any more")
        except KeyboardInterrupt:
            print(file=sys.stderr)
    return 0


def _export(wanted: Wanted, file: Path, given: ViewOptions) -> int:
    from segmenter.base.files import write_whole
    from segmenter.extras.view.built import page_routes
    from segmenter.extras.view.export import export_pages
    from segmenter.extras.view.opening import map_pages

    page_routes()  # refuses at once a page that was not built
    with given.exclusive_outputs(file), closing(map_pages(wanted, now=True)) as pages:
        content, remarks = export_pages(pages)
        write_whole(file, content)
    for remark in remarks:
        say(remark)
    print(f"{file}: {len(content) / 1e6:.1f} MB, opens without a program or a network")
    return 0


def _announce(address: str, port: int) -> None:
    print(f"look: {address}", flush=True)
    own = plain(platform.node() or "THIS_MACHINE")
    say(f"from another machine: ssh -L {port}:localhost:{port} {own}, then the same address", aside=True)
    say("Ctrl-C ends it", aside=True)


def _open(address: str) -> None:
    """Open the user's browser, if there is one; the address is printed anyway."""
    import os
    import webbrowser

    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        webbrowser.open(address)


_CALLS = {
    "maps/": "all maps of a folder",
    "maps/a.tif --images scenes/": "one map, with its image",
    "points.gpkg": "label the points of `accuracy sample`",
    "review/review.gpkg": "answer the findings of `review`",
    "runs/mine": "a training as it goes on",
}


def _parser() -> ToolParser:
    return tool_parser("view", __doc__, ViewOptions, calls=_CALLS, titles=[SERVER])
