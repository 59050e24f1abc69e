"""The page as one file: within its bytes, coarse before fine, and what is left out is said."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from segmenter.base.errors import SegmenterError
from segmenter.extras.view import export
from segmenter.extras.view.built import BUILT
from segmenter.extras.view.opening import Wanted, map_pages
from segmenter.extras.view.pyramid import levels
from segmenter.extras.view.routes import MapPages
from segmenter.grid.geometry import Size
from tests.helpers.refusals import refused
from tests.helpers.viewed_maps import UTM, made_map


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[MapPages]:
    if not (BUILT / "app.js").exists():
        pytest.skip("the page is not built: make view")
    made_map(tmp_path, size=Size(603, 707), **UTM)
    opened = map_pages(
        Wanted((tmp_path / "maps",), tmp_path / "images", f"{tmp_path}/labels/{{stem}}.tif"), now=True
    )
    yield opened
    opened.close()


def held(page: bytes) -> dict[str, Any]:
    found = re.search(rb"globalThis.OFFLINE = (.*)</script>", page)
    assert found is not None
    return json.loads(found[1])


def test_a_small_map_is_all_there(pages: MapPages) -> None:
    page, remarks = export.export_pages(pages)
    assert remarks == []
    content = held(page)
    assert set(content["finest"].values()) == {0}
    layers = len(pages.maps[0].layers)
    tiles = sum(-(-603 // (256 << k)) * -(-707 // (256 << k)) for k in range(levels(Size(603, 707)) + 1))
    assert len(content["tiles"]) == tiles * layers
    assert content["answers"]["list/errors"] == pages.lists[0].entries()
    assert b"http-equiv" in page
    assert not re.findall(rb'(?:src|href)="(?!data:)', page)


@pytest.mark.slow
def test_a_file_keeps_to_its_bytes_and_says_what_it_leaves_out(pages: MapPages) -> None:
    whole, _ = export.export_pages(pages)
    most = export._HEAD + 700_000
    page, remarks = export.export_pages(pages, most)
    assert len(page) <= most < len(whole)
    finest = held(page)["finest"]
    assert finest["0/map"] == 0 < finest["0/probabilities"]
    coarse = {f"0/{id}" for id in pages.maps[0].layers} - {key for key, level in finest.items() if level == 0}
    assert {f"0/{remark.split()[1]}" for remark in remarks} == coarse
    assert held(page)["state"]["notes"] == remarks


def test_maps_beyond_the_most_pixels_are_left_out(pages: MapPages, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_PIXELS", 1000)
    with refused(SegmenterError, where="a.tif", expected="--export"):
        export.export_pages(pages)
