"""README.md and README.zh-CN.md say the same: block for block the same commands, links and figures."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
START = re.compile(r"(#+ |[-*] |\d+\. |\||```)")
COMMENT = re.compile(r"(^|\s{2,})#.*$")


@dataclass(frozen=True)
class Block:
    """A heading, paragraph, list item, table row or code block, with the line that it begins on."""

    line: int
    kind: str
    text: str


def _blocks(text: str) -> list[Block]:
    blocks: list[Block] = []
    fresh = True
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        start = START.match(line)
        if fenced or (not fresh and start is None and line.strip()):
            last = blocks.pop()
            blocks.append(Block(last.line, last.kind, f"{last.text}\n{line}"))
            fenced = fenced and line != "```"
            fresh = not fenced and last.kind == "```"
        elif line.strip():
            blocks.append(Block(number, start[1].strip() if start else "text", line))
            fenced = line.startswith("```")
            fresh = bool(start) and line.startswith(("#", "|"))
        else:
            fresh = True
    return blocks


def _facts(block: Block) -> dict[str, list[str]]:
    """What must not depend on the language. Order may: a sentence puts its parts otherwise."""
    if block.kind == "```":
        return {"commands": [COMMENT.sub("", line) for line in block.text.splitlines()]}
    prose = re.sub(r"`[^`\n]*`|\]\([^)]*\)", " ", block.text)
    return {
        "inline code": sorted(re.findall(r"`[^`\n]*`", block.text)),
        "links": sorted(re.findall(r"\]\(([^)]*)\)", block.text)),
        "pictures": sorted(re.findall(r"!\[[^]]*\]\(([^)]*)\)", block.text)),
        "figures": sorted(re.findall(r"\d[\d,.]*(?<![,.])(?:e-?\d+)?%?", prose)),
    }


def _differences(english: str, chinese: str) -> list[str]:
    """Blocks that say something else, with both places; the first that is of another kind ends the search."""
    found = []
    for one, other in zip_longest(_blocks(english), _blocks(chinese)):
        if one is None or other is None or one.kind != other.kind:
            places = [f"{b.line}: {b.text[:60]!r}" if b else "the end" for b in (one, other)]
            return [*found, f"{ENGLISH} has {places[0]}, where {CHINESE} has {places[1]}"]
        ours, theirs = _facts(one), _facts(other)
        found += [
            f"{ENGLISH}:{one.line} has {kind} {ours[kind]}, {CHINESE}:{other.line} has {theirs[kind]}"
            for kind in ours
            if ours[kind] != theirs[kind]
        ]
    return found


def _without_languages(name: str, line: str) -> str:
    """A page without the line that leads to the other language, which it must have."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text.split("\n")[2] == line
    return text.replace(f"{line}\n", "", 1)


def test_both_readmes_say_the_same_and_lead_to_each_other() -> None:
    english = _without_languages(ENGLISH, f"English · [简体中文]({CHINESE})")
    chinese = _without_languages(CHINESE, f"[English]({ENGLISH}) · 简体中文")
    assert _differences(english, chinese) == []


def test_the_chinese_readme_is_chinese() -> None:
    prose = [b for b in _blocks((ROOT / CHINESE).read_text(encoding="utf-8")) if b.kind != "```"]
    latin = [b.text for b in prose if not re.search(r"[\u4e00-\u9fff]", b.text)]
    assert latin == ["# coverage-segmenter", "Apache-2.0。"]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("`--memory 8GB`", "`--memory 4GB`"),
        ("[a](docs/a.md)", "[a](docs/b.md)"),
        ("0.76", "0.67"),
        ("```\nrun a  # one\n```", "```\nrun b  # 一\n```"),
        ("- one\n- two", "- 一"),
        ("one\n\ntwo", "一"),
        ("## one\ntext", "text\n## one"),
        ("![a](a.jpg)", "[a](a.jpg)"),
    ],
)
def test_a_difference_is_found(there: str, here: str) -> None:
    assert _differences(f"# a\n\n{there}\n", f"# a\n\n{there}\n") == []
    assert len(_differences(f"# a\n\n{there}\n", f"# a\n\n{here}\n")) == 1
