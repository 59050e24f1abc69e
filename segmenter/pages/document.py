"""A whole page out of its sections; without the packages that it needs, one line says what to install."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from segmenter.base.errors import SegmenterError
from segmenter.base.invocation import installation
from segmenter.pages.parts import Chart, Charts, Head, Section, drawn


def html_page(head: Head, sections: Sequence[Section], maps: Mapping[str, Any] | None = None) -> str:
    """One self-contained HTML page, UTF-8.

    Args:
        sections: those without a block are left out.
        maps: what the page's script draws small maps from; None: there are none.

    Raises:
        SegmenterError: a package of the extra `report` is not installed.
    """
    data = {"charts": drawn(_charts(sections)), "maps": maps}
    try:
        from segmenter.pages.page import page

        return page(head, sections, data)
    except ImportError as error:
        raise SegmenterError(
            f"the HTML report needs the package {error.name}: {installation('report')}"
        ) from None


def _charts(sections: Sequence[Section]) -> Iterator[Chart]:
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Charts):
                yield from block.charts
