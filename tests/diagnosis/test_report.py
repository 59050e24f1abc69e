"""The report's page without a browser: what it says, what its charts are drawn from; text stays text."""

import base64
import hashlib
import html
import json
import re
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.pages.page import escape_html
from segmenter.pages.parts import label, percent
from tests.helpers.made_diagnosis import HOSTILE, NAIC, NAIC_RATES, html_report, made_diagnosis
from tests.helpers.report_page import Page

RATES = (0.9, 0.5, 0.3, 0.2, 0.1, 0.05, 0.4, 0.6)


CASES: dict[str, dict[str, Any]] = {
    "potsdam": {"run": 7, "maps": 5},
    "naic": {"names": NAIC, "rates": NAIC_RATES, "tiles": 3001, "best_effort": [4], "run": 3},
    "one class": {"names": ("water",), "rates": (1.0,), "tiles": 101, "batches": (16,)},
    "many classes": {
        "names": [f"class {i}" for i in range(23)],
        "rates": np.linspace(0.02, 0.6, 23),
        "run": 401,
    },
    "some refused": {"refused": (16, 32)},
    "scales": {
        "scales": {
            "planned": False,
            "strata": ["0.05–0.3 m", "0.3–1 m", "<b>unknown scale</b>"],
            "scenes": [20, 3, 1],
            "tiles": [1400, 101, 0],
            "held": [[900, 5, 0, 3, 1400, 1], [101, 0, 7, 0, 50, 0], [0] * 6],
            "pixels": [[90000, 500, 0, 300, 140000, 100], [10100, 0, 700, 0, 5000, 0], [0] * 6],
            "columns": 9,
            "random": [{"batch": 16, "probability": 0.002, "error": 0.0, "expected_classes": 4.5}],
        }
    },
    "all refused": {"refused": (16, 32, 64, 128), "maps": 0},
    "no class at all": {"rates": (0.0,) * 6, "refused": (16, 32, 64, 128)},
    "plans without a class": {"rates": (0.0,) * 6},
    "hostile names": {"names": HOSTILE, "rates": RATES, "map_names": HOSTILE, "maps": 8, "run": 5},
}


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Page]:
    diagnosis = made_diagnosis(**CASES[request.param])
    return diagnosis, Page(html_report(diagnosis))


def test_every_page_is_sound_and_accessible(case: tuple[dict[str, Any], Page]) -> None:
    _, page = case
    ids = page.attributes("id")
    assert len(ids) == len(set(ids))
    referred = [*page.attributes("aria-labelledby"), *page.attributes("aria-describedby")]
    referred += [*page.attributes("for"), *page.attributes("data-chart")]
    referred += [link.removeprefix("#") for link in page.attributes("href") if link.startswith("#")]
    assert set(referred) <= set(ids)
    assert ("html", {"lang": "en"}) in page.tags
    assert [page.count(tag) for tag in ("h1", "main", "header", "footer", "title")] == [1] * 5
    assert page.count("figure") == page.count("figcaption") == page.count("details")
    assert page.count("figure") == len(page.data()["charts"]) + bool(page.data()["maps"])
    assert page.count("table") == page.count("caption")
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in page.tags if tag == "th")
    drawn = [attrs for _, attrs in page.tags if attrs.get("class") == "chart"]
    assert len(drawn) == len(page.data()["charts"]) + len((page.data()["maps"] or {"maps": []})["maps"])
    assert all(attrs["role"] == "img" for attrs in drawn)


def test_every_figure_is_what_plotly_takes(case: tuple[dict[str, Any], Page]) -> None:
    for name, chart in case[1].data()["charts"].items():
        assert len(chart["figures"]) == len(chart["titles"]) > chart["chosen"]
        for figure in chart["figures"]:
            assert {trace["type"] for trace in figure["data"]} <= {"bar", "scatter", "heatmap"}, name
            go.Figure(figure)  # raises on a key or value that Plotly does not know


def test_every_page_is_self_contained(case: tuple[dict[str, Any], Page]) -> None:
    page = case[1]
    assert page.attributes("src") == []
    assert {link for link in page.attributes("href") if not link.startswith("#")} == {"data:,"}
    assert "url(" not in "".join(text for tag, text in page.texts if tag == "style")
    policy = next(str(a["content"]) for _, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    _, *scripts = page.scripts()
    allowed = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
    assert re.search(r"script-src ([^;]*)", policy)[1].split() == allowed
    assert len(scripts) == 2
    assert "default-src 'none'" in policy


def test_names_change_no_tag_of_the_page() -> None:
    hostile = {"names": HOSTILE, "map_names": HOSTILE, "dataset": HOSTILE[0], "split": HOSTILE[2]}
    harmless = [f"name {i}" for i in range(len(HOSTILE))]
    calm = {"names": harmless, "map_names": harmless, "dataset": "data", "split": "train"}
    pages = []
    for names in (hostile, calm):
        diagnosis = made_diagnosis(rates=RATES, maps=8, run=5, best_effort=[5], **names)
        diagnosis["limit"]["why"] = diagnosis["run"]["path"] = names["dataset"]
        diagnosis["plans"][0]["refused"] = names["split"]
        pages.append(Page(html_report(diagnosis)))
    first, second = ([(tag, sorted(attrs)) for tag, attrs in page.tags] for page in pages)
    assert first == second
    words = " ".join(pages[0].text().split())
    assert all(name in words for name in HOSTILE)


@given(st.text())
def test_any_text_is_one_line_and_cannot_end_anything(text: str) -> None:
    for made in (escape_html(text), label(text)):
        made.encode("utf-8")
        assert not set("<>\"'\n\r\t\0") & set(made)
        assert not re.search(r"&(?![a-z]+;|#\d+;|#x[0-9a-f]+;)", made)
    assert html.unescape(label(text)) == html.unescape(escape_html(text))


def test_only_a_colour_gets_into_a_style() -> None:
    diagnosis = made_diagnosis()
    diagnosis["classes"][0]["colour"] = "red;background:url(//x)"
    page = Page(html_report(diagnosis))
    styles = [style for style in page.attributes("style") if "background" in style]
    assert all(re.fullmatch(r"background:#[0-9a-f]{6}", style) for style in styles)
    assert "//x" not in json.dumps(page.data())


@given(st.floats(0, 1))
def test_percent_never_rounds_to_none_or_all(share: float) -> None:
    text = percent(share)
    assert text.endswith(" %")
    assert (text == "0 %") == (share == 0)
    assert (text == "100 %") == (share == 1)
    if "<" not in text and ">" not in text:
        value = float(text.removesuffix(" %"))
        assert abs(value - 100 * share) <= max(0.051 * 100 * share, 1e-9)


def test_the_charts_draw_the_diagnosis() -> None:
    diagnosis = made_diagnosis(run=4, best_effort=[5])
    page = Page(html_report(diagnosis))
    tiles = {c["name"]: 100 * c["tiles"] / diagnosis["tiles"] for c in diagnosis["classes"]}
    bars = page.figure("class-tiles")
    assert bars["data"][0]["x"] == pytest.approx(sorted(tiles.values()))
    assert bars["layout"]["yaxis"]["ticktext"] == sorted(tiles, key=lambda name: tiles[name])
    assert page.figure("classes-per-tile")["data"][0]["y"] == pytest.approx(
        [100 * n / diagnosis["tiles"] for n in diagnosis["tiles_by_classes"]]
    )
    ids = sorted(range(6), key=lambda c: diagnosis["classes"][c]["tiles"])
    both = diagnosis["together"][ids[0]][ids[1]] / diagnosis["together"][ids[0]][ids[0]]
    assert page.figure("pairs")["data"][0]["z"][0][:2] == [None, pytest.approx(100 * both)]
    shuffle, plan = page.figure("complete-steps")["data"]
    for trace, side in ((shuffle, "shuffle"), (plan, "plan")):
        assert trace["y"] == pytest.approx([100 * p[side]["complete_steps"] for p in diagnosis["plans"]])
    repeats, bound, fillers = page.figure("repeats")["data"]
    for trace, key in ((repeats, "coverage_repeats"), (bound, "repeats_bound"), (fillers, "fillers")):
        assert trace["y"] == [p[key] for p in diagnosis["plans"]]
    for i, p in enumerate(diagnosis["plans"]):
        _, shuffle, plan = page.figure("gaps", i)["data"]
        assert plan["x"][1:] == [1] * 5
        assert shuffle["x"] == [p["shuffle"]["longest_gap"][c] for c in ids]
    history = page.figure("run-history")["data"][0]
    assert history["z"][0] == pytest.approx([100 * h["held_share"][5] for h in diagnosis["run"]["history"]])


def test_a_long_history_shows_its_worst() -> None:
    diagnosis = made_diagnosis(run=997)
    diagnosis["run"]["history"][613]["held_share"][2] = 0.25
    z = Page(html_report(diagnosis)).figure("run-history")["data"][0]["z"]
    assert len(z[0]) <= 160
    assert sorted(value for row in z for value in row if value < 100) == [25]


def test_maps_keep_a_trace_and_say_where_nothing_is_known() -> None:
    share = [[[0.0, 1e-6, None], [1.0, 0.12345, 0.0]], [[0.0, 0.999999, None], [0.0, 0.0, 0.0]]]
    diagnosis = made_diagnosis(("a", "b"), (0.1, 0.9), batches=(16,))
    place = {"georeferenced": True, "crs": "EPSG:25833", "bounds": [0.0, 0.0, 30.0, 10.0]}
    diagnosis["maps"] = [{"name": "m", "scenes": 1, "rows": 2, "cols": 3, "share": share, **place}]
    maps = Page(html_report(diagnosis)).data()["maps"]
    assert maps["maps"][0]["share"][0] == [[0, pytest.approx(1e-4), None], [100, 12, 0]]
    assert maps["maps"][0]["aspect"] == pytest.approx(1 / 3)
    assert maps["most"] == [100, 100]
    assert maps["titles"][1:] == ["a lies in 1 of 1 map", "b lies in 1 of 1 map"]


def test_a_curve_goes_on_to_the_sizes_that_are_needed() -> None:
    diagnosis = made_diagnosis()
    diagnosis["forecast"]["needed"] = {"90": 200, "99": 300, "99.9": 500}
    last = diagnosis["forecast"]["curve"][-1]
    traces = Page(html_report(diagnosis)).figure("forecast-curve")["data"]
    assert traces[0]["x"] == [last["batch"], 300, 500]
    assert traces[0]["y"] == pytest.approx([100 * last["probability"], 99, 99.9])
