"""Documents: links resolve, paths and modules that they name exist, and the JSON keys are all explained."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from segmenter.diagnosis import data
from segmenter.sampling.forecast import Outlook

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMED = re.compile(r"(?<![\w./-])(?:segmenter|datasets|benchmarks|configs|docs|fuzz|tests)/[\w/.-]*\w")
MODULE = re.compile(r"-m ((?:benchmarks|datasets|fuzz)[.\w]*)")
OF_THE_USER = {"configs/mine.yaml"}


def _anchors(page: Path) -> set[str]:
    """Headings of a page as GitHub names them in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_images_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_modules_that_are_named_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(NAMED.findall(text)) - OF_THE_USER - {"fuzz/found"}
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    modules = {name.rstrip(".").replace(".", "/") for name in MODULE.findall(text)}
    files = {name: (ROOT / f"{name}.py", ROOT / name / "__main__.py") for name in modules}
    assert [name for name, where in files.items() if not any(path.is_file() for path in where)] == []


def test_every_key_of_the_diagnosis_is_documented() -> None:
    text = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8").partition("## The JSON")[2]
    explained = set(re.findall(r"`(\w+)(?:\[\])*`", text))
    kinds = [kind for kind in vars(data).values() if dataclasses.is_dataclass(kind)]
    assert data.Diagnosis in kinds
    for kind in (*kinds, Outlook):
        names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        assert {"class" if name == "class_id" else name for name in names} <= explained, kind
