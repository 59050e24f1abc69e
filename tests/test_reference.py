"""Pages made from the code: they are up to date, name every key and option, and need no TensorFlow."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from datasets import commands
from segmenter.config.models import MODEL_KINDS
from segmenter.config.reading import default_recipe, flat_settings
from website import reference

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("path", reference.PAGES, ids=lambda path: path.name)
def test_the_page_is_what_the_code_makes(path: Path) -> None:
    made = reference.PAGES[path]()
    assert path.read_text(encoding="utf-8") == made, "run: python -m website.reference"


def test_both_pages_together_stay_short() -> None:
    assert sum(len(page().split()) for page in reference.PAGES.values()) <= 5000


def test_every_setting_is_a_row_of_its_section() -> None:
    text = reference.recipe_page()
    sections = {part.partition("\n")[0]: part for part in text.split("\n## ")}
    for setting in flat_settings(default_recipe()):
        section, _, key = setting.partition(".")
        if key:
            assert f"|`{key}`|" in sections[section], setting
        else:
            assert f"|`{section}`|" in text, setting
    for section in MODEL_KINDS.values():
        assert all(f"|`{key}`|" in sections["model"] for key in section.model_fields if key != "kind")


def test_every_key_and_option_is_explained() -> None:
    rows = [
        re.split(r"(?<!\\)\|", line.strip("|"))
        for page in reference.PAGES.values()
        for line in page().splitlines()
        if line.startswith("|`")
    ]
    assert len(rows) > 250
    assert [row[0] for row in rows if not row[-1]] == []


def test_every_tool_has_its_options() -> None:
    text = reference.options_page()
    assert re.findall(r"^## segmenter (\S+)$", text, re.MULTILINE) == list(commands.TOOLS)
    assert reference._PARSERS.keys() == commands.TOOLS.keys()


def test_no_tensorflow_is_imported() -> None:
    code = "import sys, website.reference; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
