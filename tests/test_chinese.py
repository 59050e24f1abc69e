"""README.md and README.zh-CN.md have the same commands: code blocks in their order, and code within text."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENGLISH, CHINESE = "README.md", "README.zh-CN.md"
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"(^|\s{2,})#.*$")


def _blocks(text: str) -> list[str]:
    """Return the code blocks, without comments."""
    return ["\n".join(COMMENT.sub("", line) for line in block.splitlines()) for block in BLOCK.findall(text)]


def _inline(text: str) -> Counter[str]:
    """Return the code within text; its order depends on the language."""
    return Counter(re.findall(r"`[^`\n]+`", BLOCK.sub("", text)))


def _differences(english: str, chinese: str) -> list[str]:
    ours, theirs = _inline(english), _inline(chinese)
    return [
        *(f"a block of one page alone: {block}" for block in set(_blocks(english)) ^ set(_blocks(chinese))),
        *(["the blocks stand in another order"] if _blocks(english) != _blocks(chinese) else []),
        *(f"{ENGLISH} alone: {code}" for code in ours - theirs),
        *(f"{CHINESE} alone: {code}" for code in theirs - ours),
    ]


def test_both_readmes_have_the_same_commands_and_lead_to_each_other() -> None:
    english, chinese = ((ROOT / name).read_text(encoding="utf-8") for name in (ENGLISH, CHINESE))
    assert _differences(english, chinese) == []
    assert f"]({CHINESE})" in english
    assert f"]({ENGLISH})" in chinese


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("`--memory 8GB`", "`--memory 4GB`"),
        ("```\nrun a  # one\n```", "```\nrun b  # 一\n```"),
        ("```\na\n```\n```\nb\n```", "```\nb\n```\n```\na\n```"),
        ("`a` `a`", "`a`"),
    ],
)
def test_a_difference_is_found(there: str, here: str) -> None:
    assert _differences(f"# a\n\n{there}\n", f"# 一\n\n{there}\n") == []
    assert _differences(f"# a\n\n{there}\n", f"# 一\n\n{here}\n") != []


def test_comments_may_be_in_either_language() -> None:
    assert _differences("```\nrun a  # one\n```\n", "```\nrun a  # 一\n```\n") == []
