"""Lines on a terminal: broken between words, tables that fit, alike errors as one line with a count."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segmenter.base.errors import group_lines
from segmenter.base.terminal import align_table, fit_table, fold_line, terminal_width

WORDS = st.text(st.sampled_from("ab文,.é"), min_size=1, max_size=12)


@given(st.lists(WORDS, min_size=1, max_size=30), st.integers(0, 12), st.integers(20, 90))
def test_a_line_is_broken_between_words_and_loses_none(words: list[str], indent: int, width: int) -> None:
    line = " " * indent + " ".join(words)
    shown = fold_line(line, width)
    assert shown.split() == line.split()
    for each in shown.split("\n"):
        assert terminal_width(each) <= width or len(each.split()) == 1
        assert each.startswith(" " * indent)


@pytest.mark.parametrize("quote", ["'", "`"])
def test_a_command_in_quotes_stays_on_one_line(quote: str) -> None:
    command = f"{quote}pip install coverage-segmenter[vectors]{quote}"
    assert command in fold_line(
        f"error: polygons need the package shapely, which is missing here: {command}", 60
    )


@given(
    st.lists(st.integers(1, 14), min_size=2, max_size=9),
    st.integers(1, 4),
    st.integers(40, 120),
    st.integers(0, 3),
)
def test_a_table_fits_and_shows_each_cell(widths: list[int], rows: int, room: int, words: int) -> None:
    head = [" ".join(f"head{c}w{word}" for word in range(words + 1)) for c in range(len(widths))]
    cells = [[f"r{r}c{c}".ljust(width, "x") for c, width in enumerate(widths)] for r in range(rows)]
    lines = fit_table(head, cells, room=room)
    assert max(map(terminal_width, lines)) <= room
    text = " ".join(lines).split()
    for row in cells:
        assert set(row) <= set(text)
    assert {word for title in head for word in title.split()} <= set(text)
    if max(map(terminal_width, align_table(head, cells))) <= room:
        assert lines == align_table(head, cells)


def test_messages_that_differ_in_the_stem_of_their_file_are_one_line_with_a_count() -> None:
    """200 labels that are not there are one line."""
    missing = [f"in/t{i}.tif: expected one label file truth/t{i}.png, found none" for i in range(200)]
    other = "in/x.tif: is damaged"
    assert group_lines([*missing, other]) == [
        "in/t0.tif and 199 more: expected one label file truth/{stem}.png, found none",
        other,
    ]
    assert group_lines(missing[:3]) == missing[:3], "of a few, each is named"


@given(st.lists(st.text(st.sampled_from("ab:/. "), max_size=12), max_size=9))
def test_grouped_lines_lose_no_message(texts: list[str]) -> None:
    lines = group_lines(texts)
    counts = [int(found[1]) + 1 if (found := re.search(r" and (\d+) more", line)) else 1 for line in lines]
    assert sum(counts) == len(texts)
