"""A recipe of a stranger is read in bounded time and memory, or refused in one line."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from datasets import load_dataset
from datasets.folder import pattern_regex
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.reading import MAX_BYTES, _refuse_bare_colours, load_recipe, parse, recipe_from
from tests.helpers.refusals import refused

LONGEST = 700
"""Characters of a line that can be read."""


def bomb(levels: int, reference: Callable[[str], str]) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([reference(f'*a{i - 1}')] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (bomb(12, str), {"where": "r.yaml", "fault": "line 1, column 5"}),
        (bomb(12, str) + "\n? *a11\n: 1", {"where": "r.yaml", "fault": "anchor"}),
        ("a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}", {"where": "r.yaml", "fault": "anchor"}),
        ("images: **/*.tif", {"where": "r.yaml", "fault": "valid YAML"}),
        ("? [a, b]\n: 1", {"where": "r.yaml", "fault": "text"}),
        ("seed: !!int x", {"where": "r.yaml", "fault": "tag (!)"}),
        ("name: !!python/object/apply:os.getcwd []", {"where": "r.yaml"}),
        ("seed: " + "9" * 5000, {"where": "r.yaml", "fault": "string conversion"}),
        ("[" * 100_000, {"where": "r.yaml", "fault": "maximum recursion"}),
        ('name: "\\ud800"', {"where": "r.yaml", "fault": "surrogate pair"}),
        ("q" * 500 + ": 1\n" + "q" * 500 + ": 1", {"where": "r.yaml", "fault": "… q"}),
        ("x: " + "q" * 50_000 + ": [", {"where": "r.yaml", "fault": "mapping values"}),
        ("colour: #1f77b4", {"where": "r.yaml", "fault": "'#1f77b4' in line 1"}),
        ("- {name: 'a # b', colour: #1f77b4}", {"where": "r.yaml"}),
        ("\nignore: [#000000]", {"where": "r.yaml", "fault": "'#000000' in line 2"}),
    ],
)
def test_what_is_more_than_plain_data_is_refused_in_a_short_line(
    text: str, fields: dict[str, object]
) -> None:
    with refused(ConfigError, **fields) as raised:
        parse(text, "r.yaml")
    assert len(str(raised.value)) < LONGEST


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2023-02-30", "2023-02-30"),
        ("2023-02-03", "2023-02-03"),
        ("2_10", "2_10"),  # a scene of Potsdam, not the number 210
        ("0x_", "0x_"),
        ("._", "._"),
        ("=", "="),
        ("{<<: {a: 1}}", {"<<": {"a": 1}}),
        ("[0x1F, -7, 1.5e+3, yes, ~]", [31, -7, 1500.0, True, None]),
        ("'#1f77b4' # not #1f77b4 but blue", "#1f77b4"),
        ("# colour: #1f77b4", None),
    ],
)
def test_what_is_no_number_is_text(text: str, value: Any) -> None:
    assert parse(text, "r") == value


def test_only_a_small_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    for path, message in (
        (tmp_path / "pipe.yaml", "a file"),
        (Path("/dev/zero"), "a file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "large.yaml", "1 MiB"),
        (tmp_path / ("x" * 5000), "too long"),
        (tmp_path / "a\0b", "null"),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            load_recipe(path)
        assert len(str(raised.value)) < LONGEST


def folder(**section: Any) -> Any:
    plain = {"kind": "folder", "root": ".", "images": "{n}.tif", "labels": "{n}.png"}
    classes = [{"name": "a", "code": 0}]
    return recipe_from({"name": "x", "dataset": {**plain, "classes": classes, **section}}, "r.yaml")


@pytest.mark.parametrize("root", ["~nosuchuser/x", "x" * 10_000, "/".join(["x" * 200] * 50), "a\0b"])
def test_a_root_that_no_system_knows_is_refused(root: str) -> None:
    with refused(DatasetError, where="dataset.root", expected="folder") as raised:
        load_dataset(folder(root=root))
    assert len(str(raised.value)) < LONGEST


@pytest.mark.parametrize(
    "pattern", ["*a" * 60 + "{n}.tif", "**/" * 60 + "{n}.tif", "*{a}*x", "{a}{b}{c}.tif"]
)
def test_a_pattern_that_would_be_tried_for_ever_is_refused(pattern: str) -> None:
    with refused(ConfigError, where="images"):
        pattern_regex(pattern, "images")


def test_stars_in_a_row_are_tried_as_one() -> None:
    regex = pattern_regex("*" * 60 + "{name}.tif", "images")
    assert regex.fullmatch("x" * 200 + ".png") is None  # with sixty, this has no end
    assert regex.fullmatch("x.tif")


def test_mistakes_are_told_shortly() -> None:
    many = {f"key{i}": "q" * 5000 for i in range(500)}
    with pytest.raises(ConfigError, match="and 490 more") as raised:
        recipe_from({"name": "x", "dataset": {"kind": "potsdam", "root": "r"}, **many}, "r.yaml")
    assert len(str(raised.value)) < 10 * LONGEST
    with pytest.raises(ConfigError, match=r"seed: .* got 'q+ … q+"):
        recipe_from({"name": "x", "seed": "q" * 5000, "dataset": {"kind": "potsdam", "root": "r"}}, "r.yaml")


def test_a_recipe_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    text = "dataset: {kind: potsdam, root: r}\n"
    for file, name in (("a(1)ü.yaml", "a_1_ü"), (".x.yaml", "_x"), ("q" * 99, "q" * 60)):
        path = tmp_path / file
        path.write_text(text)
        assert load_recipe(path).name == name
        assert load_recipe(path, ["name=own"]).name == "own"


ENDLESS = [
    'name: "' + r"\"" * 200_000 + " #",
    'name: "' + "\\" * 399_999 + " #",
    "name: '" + "''" * 200_000 + "' #x",
    "\"'" * 200_000 + "#",
    "- " * 300_000 + "#",
    ": " * 200_000 + "#00ff00x",
    "a: [" + ", " * 300_000 + "#00ff00",
]


@pytest.mark.parametrize("text", ENDLESS, ids=map(str, range(len(ENDLESS))))
def test_a_long_line_is_looked_at_once(text: str) -> None:
    """Each takes hours where it is looked at anew from each of its quotes, longer than a test may."""
    with contextlib.suppress(yaml.YAMLError):
        _refuse_bare_colours(text)


def test_an_apostrophe_in_a_word_is_no_quote() -> None:
    with pytest.raises(ConfigError, match="#00ff00 without quotes"):
        parse("a: [it's, #00ff00]", "r")
    assert parse("""a: [it's, "b, #00ff00"]""", "r") == {"a": ["it's", "b, #00ff00"]}


@pytest.mark.parametrize("wrong", ["(" * 5000 + ")" * 5000, "(a{99999999999})", "(a", "[(]", "(a)(b)"])
def test_what_is_no_expression_with_a_group_is_refused(wrong: str) -> None:
    with refused(ConfigError, where="r.yaml: dataset.metres_per_pixel.pattern"):
        folder(metres_per_pixel={"pattern": wrong})
