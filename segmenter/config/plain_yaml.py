"""YAML reduced to plain data of a bounded size.

Beyond mappings, lists, texts, numbers, true/false and null, everything is refused or read as text: no aliases
(351 bytes of them expand to gigabytes), no tags, no merge keys, no dates.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import yaml

from segmenter.base.errors import ConfigError, shortened
from segmenter.base.invocation import recipes_hint

MAX_BYTES = 1 << 20
"""Bytes of a file: some 10,000 scenes by name; PyYAML takes seconds for that."""
_PLAIN = frozenset(f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "null"))
"""Types of an unquoted value other than text."""
_QUOTED = re.compile(r'(?<!\\)"(?:[^"\\]|\\.)*+"|\'[^\']*+\'')
"""Quoted text; without the first condition, an unterminated one would be retried at each of its quotes."""
_BARE_COLOUR = re.compile(r"^[^#]*(?:[:-]\s+|[,\[{]\s*)#([0-9A-Fa-f]{6})(?![^\s,\]}])")


class _PlainLoader(yaml.SafeLoader):
    """YAML loader for plain data; a repeated key is an error (PyYAML itself keeps only the last one)."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Refuse aliases and tags; otherwise compose like `SafeLoader`."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _wrong("expected a value, got an anchor or an alias", event.start_mark)
        if getattr(event, "tag", None):
            raise _wrong("expected a plain value, got a tag (!)", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse repeated keys; otherwise construct like `SafeLoader`, without merge keys."""
        mapping: dict[Hashable, Any] = {}
        for key_node, value in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _wrong("expected a text as key", key_node.start_mark)
            key = self.construct_object(key_node, deep=True)
            if key in mapping:
                raise _wrong(f"key {shortened(str(key))} occurs twice", key_node.start_mark)
            mapping[key] = self.construct_object(value, deep=deep)
        return mapping

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Refuse text that cannot be encoded; otherwise construct like `SafeLoader`."""
        text = str(super().construct_scalar(node))
        if re.search("[\ud800-\udfff]", text):
            raise _wrong("expected text, got half of a surrogate pair", node.start_mark)
        return text


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag in _PLAIN]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _number(plain: Callable[..., int | float]) -> Callable[..., Any]:
    """Return a constructor of numbers that keeps 2_10 as text: YAML reads 210, but it can be a name."""

    def construct(loader: _PlainLoader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        return text if "_" in text else plain(loader, node)

    return construct


_PlainLoader.add_constructor("tag:yaml.org,2002:int", _number(yaml.SafeLoader.construct_yaml_int))
_PlainLoader.add_constructor("tag:yaml.org,2002:float", _number(yaml.SafeLoader.construct_yaml_float))


def read_text(path: Path) -> str:
    """Return the text of a small regular file; a pipe or device is refused.

    Raises:
        ConfigError: the file is not regular, too large, not UTF-8 or unreadable.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ConfigError(f"{path}: cannot read the recipe", expected="a file")
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{path}: cannot read the recipe", expected=f"at most {MAX_BYTES >> 20} MiB, it is larger"
            )
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        where = shortened(str(path))
        raise ConfigError(where, f"cannot read the recipe: {why}", remedy=recipes_hint()) from None


def parse(text: str, where: str) -> Any:
    """Parse YAML into plain data.

    Raises:
        ConfigError: the YAML is invalid; the message names `where`, line and column.
    """
    try:
        _refuse_bare_colours(text)
        return yaml.load(text, _PlainLoader)
    except (RecursionError, ValueError) as error:  # nested too deep; a number of thousands of digits
        raise ConfigError(where, f"not valid YAML: {shortened(str(error))}") from None
    except yaml.YAMLError as error:
        why = shortened(" ".join(str(error).replace(' in "<unicode string>"', "").split()), 500)
        hint = "; what begins with & or * needs quotes" if "an alias" in why or "an anchor" in why else ""
        raise ConfigError(where, f"not valid YAML: {why}{hint}") from None


def one_line(value: Any) -> str:
    """Return plain data as YAML on one line."""
    text: str = yaml.safe_dump(
        value, default_flow_style=True, allow_unicode=True, width=1 << 20, sort_keys=False
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _refuse_bare_colours(text: str) -> None:
    """Refuse an unquoted colour: its `#` would begin a comment and leave the setting empty."""
    for number, line in enumerate(text.splitlines(), start=1):
        if "#" in line and (match := _BARE_COLOUR.match(_QUOTED.sub("''", line))):
            colour = match[1]
            raise yaml.YAMLError(
                f"#{colour} without quotes begins a comment; write '#{colour}' in line {number}"
            )


def _wrong(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
