"""The documentation's site: built without a warning, links lead somewhere, no network is needed."""

import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

pytest.importorskip("mkdocs", reason="the package mkdocs is not here: pip install -e '.[docs]'")
pytest.importorskip("material", reason="the package mkdocs-material is not here: pip install -e '.[docs]'")

ROOT = Path(__file__).parents[1]
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
    assert [link for link in fetched if "//" in link] == []
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert styles
    assert not any("url(http" in style or "@import" in style for style in styles)
