"""Documents: links resolve, names exist, the reference is what the code makes; the site is built of them."""

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from pydantic import BaseModel

from datasets.commands.tools import TOOLS
from datasets.folder import load_folder
from segmenter.config.datasets import DATASET_KINDS, FolderConfig
from segmenter.config.models import MODEL_KINDS
from segmenter.config.reading import default_recipe, flat_settings, load_recipe
from segmenter.config.recipe import Recipe
from segmenter.diagnosis import data
from segmenter.sampling.forecast import Outlook
from tests.helpers.messages import messages
from tests.helpers.sources import nodes_of_program
from website import reference

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "studies").glob("*.md")),
]
NAMED = re.compile(
    r"(?<![\w./-])(?:segmenter|datasets|benchmarks|configs|docs|fuzz|studies|tests|website)/[\w/.-]*\w"
)
MODULE = re.compile(r"-m ((?:benchmarks|datasets|fuzz|studies)[.\w]*)")
OF_THE_USER = {"configs/mine.yaml"}


def _anchors(page: Path) -> set[str]:
    """Headings of a page as GitHub names them in links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_images_resolve(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith("https://"):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.is_file(), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
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


def test_the_recipes_of_the_first_pages_are_some(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    recipe = load_recipe(tmp_path / "mine.yaml")
    assert isinstance(recipe.dataset, FolderConfig)
    assert recipe.dataset.split.test == ("2_13",)
    page = (ROOT / "docs" / "start_sentinel2.md").read_text(encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    assert load_recipe(tmp_path / "mine.yaml").dataset.kind == "folder"


def test_the_patterns_of_the_data_page_pair_the_files_beside_them(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
    classes, split = (yaml.safe_load(part.partition("```")[0]) for part in page.split("```yaml\n")[1:3])
    section = {"kind": "folder", "root": "x", "images": "x", "labels": "y", **classes}
    config = FolderConfig.model_validate(section)
    assert [c.code for c in config.classes] == [0, 1, 7]
    rows = [line.split("|")[1:4] for line in page.splitlines() if line.count("{") >= 2 and line[0] == "|"]
    assert len(rows) == 4
    for number, row in enumerate(rows):
        files, images, labels = (re.findall(r"`\"?([^`\"]*)\"?`", cell) for cell in row)
        for name in files:
            (tmp_path / str(number) / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / str(number) / name).touch()
        changes = {"root": str(tmp_path / str(number)), "images": (images[0],), "labels": labels[0]}
        (scene,) = load_folder(config.model_copy(update=changes)).scenes
        assert [scene.image, scene.label] == [tmp_path / str(number) / name for name in files]
    assert set(split["split"]) == {"group", "validation", "test"}
    FolderConfig.model_validate({**config.model_dump(), **split})


def test_the_messages_of_the_page_on_troubles_are_those_of_the_code() -> None:
    """Each part of a message between `…` stands in a text of the code, but for what C libraries print."""
    page = (ROOT / "docs" / "troubles.md").read_text(encoding="utf-8")
    cells = [line.split(" | ")[0] for line in page.splitlines() if line.startswith("| `")]
    parts = [part for cell in cells for said in re.findall(r"`([^`]*)`", cell) for part in said.split("…")]
    assert len(parts) > 80
    literals = (node.value for node in nodes_of_program() if isinstance(node, ast.Constant))
    texts = "\n".join([*(value for value in literals if isinstance(value, str)), *messages()])
    wanted = [part.strip(" ,;:()") for part in parts]
    assert [part for part in wanted if len(part) > 3 and part not in texts] == []


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


@pytest.mark.parametrize("path", reference.PAGES, ids=lambda path: path.name)
def test_the_page_is_what_the_code_makes(path: Path) -> None:
    made = reference.PAGES[path]()
    assert path.read_text(encoding="utf-8") == made, "run: python -m website.reference"


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


POINTING = {
    *("also", "as", "at", "beside", "by", "for", "in", "its", "of", "on"),
    *("than", "that", "their", "to", "what", "when", "where", "which", "whose", "with"),
}
"""Openings that point to words before them: an option, a key and a title are read without any."""


def _keys(section: type[BaseModel]) -> Iterator[tuple[str, str]]:
    """Yield each key of a section, and of the sections in it, with its text."""
    for name, field in section.model_fields.items():
        if field.description:
            yield f"{section.__name__}.{name}", field.description
        if inner := reference._section_of(field.annotation):
            yield from _keys(inner)


def _options() -> Iterator[tuple[str, str]]:
    yield from TOOLS.items()
    yield from re.findall(r"^\*\*(\w+)\*\*: (.*)$", reference.options_page(), re.MULTILINE)
    for line in reference.options_page().splitlines():
        if line.startswith("|`"):
            name, text = re.split(r"(?<!\\)\|", line.strip("|"))
            yield name, text


TEXTS = {".py", ".md", ".yaml", ".toml", ".ipynb"}


def test_tools_have_one_spelling() -> None:
    """Old spellings stand only in the changelog, and in the modules that lead from them to the tools."""
    old = re.compile(r"python -m (?:datasets|segmenter)\b|segmenter (?:datasets|vectorise)\b|`vectorise`")
    folders = (
        *("benchmarks", "configs", "datasets", "docs", "fuzz"),
        *("segmenter", "studies", "tests", "website"),
    )
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.*") if path.suffix in TEXTS]
    paths += [
        path for path in ROOT.iterdir() if path.suffix in TEXTS or path.name in ("Makefile", "Dockerfile")
    ]
    texts = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in paths}
    del texts["CHANGELOG.md"]
    found = {
        name for name, text in texts.items() if old.search(text) and not text.startswith('"""Old spelling')
    }
    assert found == {"datasets/commands/tools.py", "tests/test_documents.py"}


def _titles() -> Iterator[tuple[str, str]]:
    for page in PAGES[:3] + sorted((ROOT / "docs").glob("*.md")):
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        yield from ((page.name, title) for title in re.findall(r"^#+ (?:\d+\. )?(.*)$", text, re.MULTILINE))


def test_options_keys_and_titles_are_phrases_of_their_own() -> None:
    sections = (Recipe, *DATASET_KINDS.values(), *MODEL_KINDS.values())
    texts = [*_options(), *_titles(), *(row for section in sections for row in _keys(section))]
    assert len(texts) > 600
    assert [row for row in texts if re.split(r"\W", row[1].lower(), maxsplit=1)[0] in POINTING] == []


FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """The tags of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def values(self, name: str) -> list[str]:
        return [attrs[name] for _, attrs in self.tags if name in attrs]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material"):
        pytest.importorskip(package, reason="the site's packages are not here: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run([*command, "--site-dir", folder], env=quiet, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


def test_all_links_lead_to_a_file_and_a_place_in_it(pages: dict[Path, Page]) -> None:
    places = {path: {unquote(name) for name in page.values("id")} for path, page in pages.items()}
    dead = []
    for path, page in pages.items():
        for link in [*page.values("href"), *page.values("src")]:
            name, _, anchor = unquote(link).partition("#")
            if "://" in name or name.startswith("data:"):
                continue
            target = (path.parent / name).resolve() if name else path
            if not target.is_file() or (anchor and anchor not in places.get(target, {anchor})):
                dead.append(f"{path.name}: {link}")
    assert dead == []


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    tags = [tag for page in pages.values() for tag in page.tags]
    fetched = [attrs[name] for tag, attrs in tags for name in attrs if (tag, name) in FETCHED]
    assert len(fetched) > len(pages)
    # A picture within the page, as a notebook's output, may hold slashes.
    assert [link for link in fetched if "//" in link and not link.startswith("data:image/")] == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not any("url(http" in style or "@import" in style for style in styles)
