"""The report's page taken apart: its tags, texts and what its charts are drawn from."""

import json
from html.parser import HTMLParser
from typing import Any

VOID = {"meta", "link", "br", "img"}


class Page(HTMLParser):
    """The tags and texts of a page; it fails where they are not nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.append((self._open[-1], data))

    def attributes(self, name: str) -> list[str]:
        return [str(attrs[name]) for _, attrs in self.tags if name in attrs]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    def text(self) -> str:
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))

    def scripts(self) -> list[str]:
        return [text for tag, text in self.texts if tag == "script"]

    def data(self) -> dict[str, Any]:
        """What the charts are drawn from."""
        return json.loads(self.scripts()[0])

    def figure(self, name: str, choice: int = 0) -> dict[str, Any]:
        return self.data()["charts"][name]["figures"][choice]
