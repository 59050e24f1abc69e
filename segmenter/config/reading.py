"""Reading of recipes (YAML) with overrides; errors name the place and the expected value.

YAML reduced to plain data of a bounded size. Beyond mappings, lists, texts, numbers, true/false and null,
everything is refused or read as text: no aliases (351 bytes of them expand to gigabytes), no tags, no merge
keys, no dates.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from segmenter.base.errors import ConfigError, extended_error, shorten
from segmenter.base.invocation import invocation, quote_path, recipes_hint
from segmenter.config.datasets import DATASET_KINDS, PathGsd, SplitByNames
from segmenter.config.models import MODEL_KINDS
from segmenter.config.recipe import MAX_NAME, Recipe
from segmenter.config.sections import unit_of
from segmenter.grid.deals import Deals, deal_file, read_deals

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
                raise _wrong(f"key {shorten(str(key))} occurs twice", key_node.start_mark)
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
    """Return a constructor of numbers that keeps 2_10, 010 and 1:30 as text.

    YAML reads 210, 8 and 90, but they can be names, and nobody means those numbers.
    """

    def construct(loader: _PlainLoader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        return text if re.search(r"[_:]|^[-+]?0\d", text) else plain(loader, node)

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
                raise ConfigError(f"{path}: cannot read the recipe", expected="a file", remedy=_instead(path))
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ConfigError(
                f"{path}: cannot read the recipe",
                expected=f"at most {MAX_BYTES >> 20} MiB, it is larger",
                remedy=_instead(path),
            )
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        where = shorten(str(path))
        raise ConfigError(where, f"cannot read the recipe: {why}", remedy=_instead(path)) from None


def _instead(path: Path) -> str:
    """Return what may have been meant by the path of a recipe that cannot be read."""
    with suppress(OSError):
        if path.is_dir():
            return f"for a folder of images and labels: {invocation('start')} {quote_path(path)}"
        beside = path.with_suffix(".yaml")
        if path.suffix != ".yaml" and beside.is_file():
            return f"the recipe is {beside}"
        names = [each.name for each in path.parent.glob("*.y*ml")]
        if near := get_close_matches(path.name, names, 1):
            return f"did you mean {path.with_name(near[0])}?"
    return recipes_hint()


def parse(text: str, where: str) -> Any:
    """Parse YAML into plain data.

    Raises:
        ConfigError: the YAML is invalid; the message names `where`, line and column.
    """
    try:
        _refuse_bare_colours(text)
        return yaml.load(text, _PlainLoader)
    except (RecursionError, ValueError) as error:  # nested too deep; a number of thousands of digits
        raise ConfigError(where, f"not valid YAML: {shorten(str(error))}") from None
    except yaml.YAMLError as error:
        why = shorten(" ".join(str(error).replace(' in "<unicode string>"', "").split()), 500)
        hint = "; what begins with & or * needs quotes" if "an alias" in why or "an anchor" in why else ""
        hint = "; indent with spaces, not tabs" if "'\\t'" in why else hint
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


_KINDS: dict[str, Any] = {**DATASET_KINDS, **MODEL_KINDS}
"""Tags of the unions among the sections."""
_ONE_OF = {"SplitByNames": SplitByNames, "PathGsd": PathGsd}
"""Sections that a setting may hold instead of a word or a number."""
_WORDS = ("georeference", "number")
"""Other forms of `metres_per_pixel`."""
_SHOWN = 10
"""Mistakes that are reported together, at most."""


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Return the recipe in a YAML file, with `section.key=value` overrides applied.

    A recipe without a `name` is named after its file; it has the deals of the file beside it (`grid.deals`).

    Raises:
        ConfigError: all mistakes at once, each with file, dotted path, expected and actual value.
    """
    data = parse(read_text(path), str(path))
    if data is None:
        raise ConfigError(path, "the recipe is empty", remedy=recipes_hint())
    if not isinstance(data, dict):
        raise ConfigError(path, expected="sections of settings, as dataset: and training:", got=_kind(data))
    data.setdefault("name", _name_of(path))
    return with_deals(_overridden(data, overrides, str(path)), read_deals(deal_file(path)))


def _kind(data: Any) -> str:
    return "a list" if isinstance(data, list) else shorten(repr(data))


def with_deals(recipe: Recipe, deals: Deals) -> Recipe:
    """Return the recipe with other deals of its split."""
    return recipe.model_copy(update={"dataset": recipe.dataset.with_deals(deals)})


def default_recipe() -> Recipe:
    """Return every setting's default; its dataset is nowhere."""
    data = {"name": "defaults", "dataset": {"kind": "potsdam", "root": "nowhere"}}
    return recipe_from(data, "the defaults")


def _overridden(data: dict[str, Any], overrides: Sequence[str], where: str) -> Recipe:
    for override in overrides:
        _override(data, override)
    return recipe_from(data, where)


def _name_of(path: Path) -> str:
    """Return a name for an unnamed recipe: its file's, without characters that are forbidden in names."""
    return re.sub(r"[^\w .-]|^\W+", "_", path.stem)[:MAX_NAME] or "recipe"


def recipe_from(data: dict[str, Any], where: str) -> Recipe:
    """Build a recipe from plain data; errors name `where`."""
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        mistakes = [_explain(e, where) for e in error.errors()]
        more = f"; and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
        several = ConfigError("; ".join(map(str, mistakes[:_SHOWN])) + more)
        raise (several if len(mistakes) > 1 else mistakes[0]) from None


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as plain YAML that `load_recipe` reads."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def flat_settings(recipe: Recipe) -> dict[str, Any]:
    """Return settings of a recipe by dotted names such as training.global_batch; lists are values."""
    return dict(_flat(recipe.model_dump(mode="json")))


def _flat(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data


def describe_recipe(recipe: Recipe) -> str:
    """Return the resolved recipe as YAML, each setting with its unit and the reason for its default."""
    return "\n".join(_describe(recipe, 0)) + "\n"


def setting_doc(recipe: Recipe, key: str) -> str:
    """Return the description of a setting by its dotted key; empty for an unknown one."""
    *sections, name = key.split(".")
    section: Any = recipe
    for part in sections:
        section = getattr(section, part, None)
    field = getattr(type(section), "model_fields", {}).get(name)
    return "" if field is None else field.description or ""


def _override(data: dict[str, Any], override: str) -> None:
    dotted, equals, value = override.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {override}", expected="section.key=value, as in training.global_batch=32")
    *sections, key = dotted.split(".")
    node = data
    for section in sections:
        if node.get(section) is None:
            node[section] = {}
        node = node[section]
        if not isinstance(node, dict):
            raise ConfigError(f"--set {override}", f"{section} is a single setting, it has no {key}")
    try:
        node[key] = parse(value, f"--set {override}")
    except ConfigError as error:
        raise extended_error(
            error, remedy=f"a text with signs is quoted twice: --set '{dotted}=\"…\"'"
        ) from None


def _explain(error: ErrorDetails, where: str) -> ConfigError:
    # The tag of a union (`dataset.folder.root`) is no part of what the user wrote.
    full = [shorten(str(part)) for part in error["loc"]]
    tags = (*_KINDS, *_ONE_OF, *(_WORDS if "metres_per_pixel" in full else ()))
    location = [p for p in full if p not in tags and not p.startswith(("function-", "tuple[", "literal["))]
    # An impossible combination names its own path; its location is only the section that checks it.
    dotted = error["type"] if "." in error["type"] else ".".join(location) or "recipe"
    place, section = f"{where}: {dotted}", _section(full[:-1])
    if error["type"] == "extra_forbidden":
        keys = list(getattr(section, "model_fields", ()))
        elsewhere = [each for each in flat_settings(default_recipe()) if each.endswith(f".{location[-1]}")]
        near = get_close_matches(location[-1], keys, 1) or (elsewhere if len(elsewhere) == 1 else [])
        known = (
            f"did you mean {near[0]}?" if near else f"known here: {', '.join(keys) or 'see --print-config'}"
        )
        return ConfigError(place, "unknown key", remedy=known)
    if error["type"] == "missing":
        return ConfigError(place, expected="a value", got="none")
    if error["type"].startswith("union_tag"):
        kind = error.get("ctx", {}).get("tag", "none")
        kinds = ", ".join(MODEL_KINDS if dotted == "model" else DATASET_KINDS)
        return ConfigError(f"{place}.kind", expected=kinds, got=shorten(str(kind)))
    message = error["msg"].replace("Input should be", "expected").partition(", unable to")[0]
    message = re.sub("valid dictionary or instance of .*", "mapping of settings", message)
    message = message.replace("valid tuple", "list").replace("valid string", "text (a number in quotes)")
    unit = unit_of(section, location[-1]) if location else ""
    message = f"{message[:1].lower()}{message[1:]}" + (f" ({unit})" if unit else "")
    # A whole section as the culprit would bury the message.
    given = "" if "got" in message or _is_long(error["input"]) else shorten(repr(error["input"]))
    wrong, _, got = message.partition(", got ")
    name = "expected" if wrong.startswith("expected ") else "fault"
    return ConfigError(place, **{name: wrong.removeprefix("expected ")}, got=got or given or ...)


def _is_long(value: Any) -> bool:
    return isinstance(value, (dict, list, tuple)) and len(repr(value)) > 80


def _section(location: Sequence[str]) -> Any:
    """Return the section class at the location of an error; None if it is ambiguous."""
    model: Any = Recipe
    for part in location:
        if part in _KINDS:
            model = _KINDS[part]
        elif part in _ONE_OF:
            model = _ONE_OF[part]
        elif part.isdigit():  # an item of a list of sections
            model = next(iter(get_args(model)), None)
        else:
            field = getattr(model, "model_fields", {}).get(part)
            model = _without_none(field.annotation) if field is not None else None
    return model


def _without_none(annotation: Any) -> Any:
    """Return the section in `Section | None`; return any other annotation unchanged."""
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return parts[0] if len(parts) == 1 and hasattr(parts[0], "model_fields") else annotation


def _describe(section: BaseModel, depth: int) -> Iterator[str]:
    indent = "  " * depth
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            doc = (type(value).__doc__ or "").split("\n")[0]
            yield f"{indent}{name}:  # {doc}"
            yield from _describe(value, depth + 1)
            continue
        extra = field.json_schema_extra
        unit = extra.get("unit") if isinstance(extra, dict) else None
        plain = section.model_dump(mode="json")[name]
        note = f"{unit}: {field.description}" if unit else field.description
        yield f"{indent}{name}: {one_line(plain)}" + (f"  # {note}" if note else "")
