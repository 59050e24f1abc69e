"""The documentation's site: it shows what GitHub shows, needs no network, and faults end its build."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("mkdocs", reason="the package mkdocs is not here: pip install -e '.[docs]'")
pytest.importorskip("material", reason="the package mkdocs-material is not here: pip install -e '.[docs]'")
markdown_it = pytest.importorskip("markdown_it", reason="the package markdown-it-py is not here: .[test]")

ROOT = Path(__file__).parents[1]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("*.md"))
OTHERS = {"README.md": "index", "README.zh-CN.md": "README.zh-CN", "CONTRIBUTING.md": "CONTRIBUTING"}
FORMS = ("h1", "h2", "h3", "p", "ul", "ol", "li", "table", "tr", "th", "td", "pre", "a", "img", "strong")
FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """The tags of a page: all of them, and those of its text alone."""

    def __init__(self, html: str, *, whole: bool = False) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.counts: Counter[str] = Counter()
        self._in_text = whole
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.tags.append((tag, named))
        self._in_text = self._in_text or tag == "article"
        if self._in_text and tag in FORMS and "headerlink" not in named.get("class", ""):
            self.counts[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        self._in_text = self._in_text and tag != "article"

    def values(self, name: str) -> list[str]:
        return [attrs[name] for _, attrs in self.tags if name in attrs]


def _build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(root / "mkdocs.yml")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run([*command, "--site-dir", str(site)], env=quiet, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = _build(ROOT, folder)
    assert built.returncode == 0, built.stderr
    assert "WARNING" not in built.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}


@pytest.mark.parametrize("name", [*PAGES, *OTHERS])
def test_the_site_shows_what_github_shows(site: Path, pages: dict[Path, Page], name: str) -> None:
    folder = ROOT / "docs" if name in PAGES else ROOT
    github = markdown_it.MarkdownIt("commonmark").enable("table")
    meant = Page(github.render((folder / name).read_text(encoding="utf-8")), whole=True)
    path = site / f"{Path(name).stem}.html" if name in PAGES else site / f"repository/{OTHERS[name]}.html"
    assert {form: pages[path].counts[form] for form in FORMS} == {form: meant.counts[form] for form in FORMS}


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
    assert [link for link in fetched if "//" in link] == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not any("url(http" in style or "@import" in style for style in styles)


def test_the_search_knows_pages_and_not_sources(site: Path) -> None:
    index = (site / "search" / "search_index.json").read_text(encoding="utf-8")
    assert "receptive-field radius" in index
    assert "folder.yaml.html" not in index
    assert (site / "search" / "search_index.js").is_file()  # for pages that are opened without a server
    assert (site / "assets" / "iframe-worker.js").is_file()
