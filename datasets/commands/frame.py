"""Frame of every command: its parser, with the name as it is typed and the options of dataclasses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from segmenter.base.invocation import ParagraphFormatter, ToolParser, invocation
from segmenter.base.options import Command, add_commands, add_options, parse_options

Kind = TypeVar("Kind")


def tool_parser(
    tool: str,
    about: str,
    *options: type,
    calls: Mapping[str, str],
    commands: Mapping[str, Command] | None = None,
    titles: Iterable[str] = (),
    **more: Any,
) -> ToolParser:
    """Return the parser of a tool, with its options, or with its commands, each with options of its own.

    Args:
        about: shown as it is written.
        calls: usual calls: words behind the tool's name → what they do.
        titles: groups of options in the order of `--help`; others follow.
        more: further arguments of the parser.
    """
    parser = ToolParser(
        prog=invocation(tool).removeprefix("python "),
        description=about,
        formatter_class=ParagraphFormatter,
        **more,
    )
    parser.calls = calls
    if commands is not None:
        return add_commands(parser, commands)
    return add_options(parser, *options, titles=titles)


def parse_quietly(parser: ToolParser, kind: type[Kind], arguments: Sequence[str] | None) -> Kind:
    """Parse the command line of a tool that opens rasters, and silence GDAL's own output from then on."""
    given = parse_options(parser, kind, arguments)
    from segmenter.raster import quiet_gdal  # not before: --help answers at once

    quiet_gdal()
    return given
