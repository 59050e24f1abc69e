"""Hooks of the documentation's site: pages are written for GitHub, and become a site without a second copy.

- A link that leaves `docs/` leads to a page of the site that holds the file, a source as code.
- A notebook in `docs/` is a page too, with its cells and what they gave.
- A list or a table may follow a paragraph without a blank line, as GitHub has it.
- Headings have the anchors that GitHub gives them.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

OUTSIDE = "repository"
"""Folder of the site for files of the repository that lie outside docs/."""
ALWAYS = ("README.md", "README.zh-CN.md", "CONTRIBUTING.md", "CHANGELOG.md")
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".sh": "bash",
}

PICTURES = (".png", ".jpg")

_LINK = re.compile(r"(?<=\]\()[^)\s]+(?=\))")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)")
_FENCE = re.compile(r"^ *(```+|~~~+)")
_ITEM = re.compile(r"^ *([-*+]|1[.)]) +\S")
_ROW = re.compile(r"^ *\|.*\| *$")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    config.theme.static_templates.discard("404.html")  # its links hold only at the root of a server
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds a page for each file outside docs/ that pages link to, or that such a page links to."""
    root = _root(config)
    docs = _docs(config)
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        text = _notebook(json.loads(file.content_string), posixpath.basename(file.src_uri))
        files.append(File.generated(config, f"{file.src_uri}.md", content=text))
    waiting = [*ALWAYS, *(posixpath.join(docs, file.src_uri) for file in files.documentation_pages())]
    known = set(waiting)
    while waiting:
        source = waiting.pop()
        path = root / source
        if not PurePosixPath(source).is_relative_to(docs):
            _add(files, source, config)
        if path.suffix != ".md" or not path.is_file():
            continue
        for link in _links(path.read_text(encoding="utf-8")):
            target = _target(link, source)
            inside = target is None or PurePosixPath(target).is_relative_to(docs)
            if target is not None and not inside and target not in known and (root / target).is_file():
                known.add(target)
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = _source(page.file.src_uri, config)
    if page.file.generated_by is not None and not source.endswith(".md"):
        page.meta["search"] = {"exclude": True}  # sources would outnumber what is written for readers
    here = posixpath.dirname(page.file.src_uri)

    def on_the_site(link: str) -> str:
        target = _target(link, source)
        uri = None if target is None else _uri(target, config)
        if uri is None or files.get_file_from_path(uri) is None:
            return link  # MkDocs says what it leads to, or that it leads nowhere
        anchor = link.partition("#")[2]
        return posixpath.relpath(uri, here or ".") + (f"#{anchor}" if anchor else "")

    return "\n".join(_blocks_apart(_with_links(markdown, on_the_site)))


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent


def _docs(config: MkDocsConfig) -> str:
    return Path(config.docs_dir).relative_to(_root(config)).as_posix()


def _uri(target: str, config: MkDocsConfig) -> str:
    """Where a file of the repository stands among the site's sources."""
    docs = _docs(config)
    if PurePosixPath(target).is_relative_to(docs):
        inside = PurePosixPath(target).relative_to(docs).as_posix()
        return f"{inside}.md" if inside.endswith(".ipynb") else inside
    return f"{OUTSIDE}/{target}" + ("" if target.endswith((".md", *PICTURES)) else ".md")


def _source(uri: str, config: MkDocsConfig) -> str:
    """The file of the repository that a source of the site is made of; what `_uri` does, backwards."""
    if not uri.startswith(f"{OUTSIDE}/"):
        return posixpath.join(_docs(config), uri)
    target = uri.removeprefix(f"{OUTSIDE}/")
    return target if (_root(config) / target).is_file() else target.removesuffix(".md")


def _target(link: str, source: str) -> str | None:
    """The file of the repository that a link in `source` leads to; None for addresses and anchors alone."""
    name = unquote(link.partition("#")[0])
    if not name or ":" in name or name.startswith("/"):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(source), name))
    return None if target.startswith("..") else target


def _add(files: Files, source: str, config: MkDocsConfig) -> None:
    path = _root(config) / source
    if not path.is_file():
        return  # nav or a link names it: MkDocs says so
    if path.suffix in PICTURES:
        files.append(File.generated(config, _uri(source, config), content=path.read_bytes()))
        return
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        text = f"# {source}\n\n{_fenced(text, LANGUAGES.get(path.suffix, ''))}\n"
    files.append(
        File.generated(config, _uri(source, config), content=text, inclusion=InclusionLevel.NOT_IN_NAV)
    )


def _notebook(notebook: dict[str, Any], name: str) -> str:
    """A notebook as Markdown; the file itself lies beside the page."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(_fenced(source, "python") if cell["cell_type"] == "code" else source)
        parts += filter(None, map(_output, cell.get("outputs", [])))
    download = f'<a href="{name}" download>The notebook itself: {name}</a>'
    return "\n\n".join([*parts[:1], download, *parts[1:]]) + "\n"


def _output(output: dict[str, Any]) -> str:
    """What a cell gave: its picture, or its text."""
    data = output.get("data", {})
    for kind in ("image/png", "image/jpeg"):
        if picture := data.get(kind):
            return f"![output](data:{kind};base64,{''.join(''.join(picture).split())})"
    text = "".join(output.get("text", data.get("text/plain", "")))
    return _fenced(text, "") if text.strip() else ""


def _fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any in it."""
    fence = "`" * max(4, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Lines of a page, each with the place it has: prose, or the first or a further line of a code block."""
    fence = ""
    for line in text.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            yield line, "inside"
            fence = "" if mark and mark[1].startswith(fence) and line.strip() == mark[1] else fence
        else:
            yield line, "opening" if mark else "prose"
            fence = mark[1] if mark else ""


def _links(text: str) -> list[str]:
    return [
        link
        for line, place in _lines(text)
        if place == "prose"
        for link in _LINK.findall(_CODE.sub("", line))
    ]


def _with_links(text: str, change: Callable[[str], str]) -> str:
    """The text with other links. What looks like one in code stays."""
    lines = []
    for line, place in _lines(text):
        if place == "prose":
            codes = [match.span() for match in _CODE.finditer(line)]
            line = _LINK.sub(
                lambda found, codes=codes: (  # type: ignore[misc]
                    found[0] if any(a < found.start() < b for a, b in codes) else change(found[0])
                ),
                line,
            )
        lines.append(line)
    return "\n".join(lines)


def _blocks_apart(text: str) -> Iterator[str]:
    """Lines with a blank one between blocks that GitHub tells apart without: lists, tables, code, text."""
    before = "blank"
    for line, place in _lines(text):
        kind = _kind(line, before) if place == "prose" else "code"
        within = before == "list" and kind == "code" and (line.startswith(" ") or place == "inside")
        if "blank" not in (kind, before) and not within and (kind != before or place == "opening"):
            yield ""
        yield line
        before = "list" if within else kind


def _kind(line: str, before: str) -> str:
    if not line.strip():
        return "blank"
    if _ITEM.match(line) or before == "list":  # a list goes on to the next blank line
        return "list"
    if _ROW.match(line):
        return "table"
    return "other" if line.startswith(("#", "<!--")) else "paragraph"
