"""Reference pages made from the code: `python -m website.reference` writes recipe.md and options.md in docs/.

Keys, values, defaults and descriptions of a recipe are those of its sections (`segmenter.config`); options
are those of the parsers. Nothing is written by hand, and TensorFlow is not imported.
"""

from __future__ import annotations

import argparse
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from datasets.commands.tools import TOOLS, module_of
from segmenter.base.invocation import ToolParser
from segmenter.base.options import add_options
from segmenter.config.datasets import DATASET_KINDS
from segmenter.config.models import MODEL_KINDS
from segmenter.config.reading import one_line
from segmenter.config.recipe import Recipe
from segmenter.config.sections import unit_of
from segmenter.extras.dask.options import ClusterOptions

DOCS = Path(__file__).parents[1] / "docs"
_KINDS = {"dataset": DATASET_KINDS, "model": MODEL_KINDS}
_RECIPE = """\
# Every key of a recipe

Made from the code by `python -m website.reference`. `python train.py RECIPE --print-config` shows the values
of your recipe with the same words; `--set section.key=value` changes one. A number may have its unit:
`256 px`. A mistake is refused with its place, what was expected and what came.
"""
_OPTIONS = """\
# Every option of every command

Made from the code by `python -m website.reference`. `segmenter TOOL --help` says the same, and more.
"""


def recipe_page() -> str:
    """Every key of a recipe: value or unit, default, description."""
    parts = [_RECIPE, *_keys(Recipe, sections=False)]
    for name, field in Recipe.model_fields.items():
        if name in _KINDS:
            parts += _of_kinds(name, _KINDS[name])
        elif section := _section_of(field.annotation):
            parts += [f"\n## {name}\n\n{_first_line(section)}\n", *_keys(section)]
    return "\n".join(parts) + "\n"


def _of_kinds(name: str, kinds: dict[str, Any]) -> Iterator[str]:
    """A section for each kind; keys that all kinds have alike stand in one table before them."""
    rows = {kind: dict(_rows(section)) for kind, section in kinds.items()}
    first, *others = rows.values()
    shared = {key: row for key, row in first.items() if all(other.get(key) == row for other in others)}
    yield f"\n## {name}\n"
    if shared:
        yield "Of every kind:\n"
        yield from _table(_HEAD, shared.values())
    for kind, section in kinds.items():
        yield f"\n### {name}: kind {kind}\n\n{_first_line(section)}\n"
        yield from _table(_HEAD, [row for key, row in rows[kind].items() if key not in shared])


_HEAD = ("key", "default", "meaning")


def _keys(section: type[BaseModel], *, sections: bool = True) -> Iterator[str]:
    yield from _table(_HEAD, [row for _, row in _rows(section, sections=sections)])


def _rows(
    section: type[BaseModel], prefix: str = "", *, sections: bool = True
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Key → row; keys of a section within it follow it, with a dot."""
    for name, field in section.model_fields.items():
        inner = _section_of(field.annotation)
        if not sections and (inner or field.description is None):
            continue
        key = f"{prefix}{name}"
        unit, choices = unit_of(section, name), _value(field.annotation)
        before = choices if not unit else unit if isinstance(field.default, str) else ""
        yield key, (f"`{key}`", _default(field, unit), _joined(before, field.description))
        if inner is not None:
            within = "[]." if _is_list(field.annotation) else "."
            yield from _rows(inner, f"{key}{within}")


def keys_of(recipe: type[BaseModel], kinds: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (kind, key) of every optional setting of a recipe; keys that all kinds share have no kind."""
    for name, field in recipe.model_fields.items():
        section = _section_of(field.annotation)
        if name in kinds:
            rows = {kind: dict(_rows(each)) for kind, each in kinds[name].items()}
            first = next(iter(rows.values()))
            for kind, of_kind in rows.items():
                for key, row in of_kind.items():
                    shared = all(other.get(key) == row for other in rows.values())
                    if not row[1].startswith("needed") and key != "kind" and (not shared or of_kind is first):
                        yield "" if shared else kind, f"{name}.{key}"
        elif section is not None:
            yield from (
                ("", f"{name}.{key}") for key, row in _rows(section) if not row[1].startswith("needed")
            )
        elif field.description is not None and not field.is_required():
            yield "", name


def _section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a setting holds, or a list of it; None: it holds none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = [found for part in get_args(annotation) if (found := _section_of(part))]
    return inner[0] if inner else None


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _value(annotation: Any) -> str:
    """Return what a setting without a unit holds: choices, a list, a mapping; "" for text and sections."""
    return " or ".join(dict.fromkeys(filter(None, _values(annotation))))


def _values(annotation: Any) -> Iterator[str]:
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        yield ", ".join(f"`{str(each).lower() if isinstance(each, bool) else each}`" for each in parts)
    elif origin is Annotated:
        yield from _values(parts[0])
    elif origin in (Union, types.UnionType):
        for part in parts:
            yield from _values(part)
    elif origin is tuple:
        yield "list"
    elif origin is dict:
        yield "mapping"
    elif annotation is bool:
        yield "`true`, `false`"


def _joined(values: str, description: str | None) -> str:
    return "; ".join(filter(None, (values, description)))


def _default(field: FieldInfo, unit: str) -> str:
    """As it is written in a recipe, with its unit; empty where the description or further keys say it."""
    if field.is_required():
        return _joined("needed", unit)
    value = field.default
    if value is PydanticUndefined or value is None or isinstance(value, BaseModel):
        return unit
    unit = "" if isinstance(value, str) else unit
    plain = list(value) if isinstance(value, tuple) else value
    return f"`{one_line(plain)}` {unit}".rstrip()


def _first_line(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().split("\n")[0]


def options_page() -> str:
    """Every option of every command."""
    shared = ToolParser(add_help=False)
    add_options(shared, ClusterOptions)
    cluster = {action.dest for action in shared._actions}
    parts = [_OPTIONS]
    for name, about in TOOLS.items():
        started = f" (in a clone also `python {name}.py`)" if (DOCS.parent / f"{name}.py").is_file() else ""
        parts.append(f"## segmenter {name}\n\n{_sentence(about)}{started}\n")
        parts += _commands(module_of(name)._parser(), cluster)
    parts += ["## Options of a cluster\n", *_table(("option", "meaning"), map(_option, shared._actions)), ""]
    return "\n".join(parts).rstrip("\n") + "\n"


def _commands(parser: ToolParser, cluster: set[str]) -> Iterator[str]:
    """Tables of a parser, or of each of its commands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not below:
        yield from _options(parser, cluster)
    for action in below:
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, command in action.choices.items():
            yield f"**{name}**: {helps[name]}\n"
            yield from _options(command, cluster)


def _options(parser: argparse.ArgumentParser, cluster: set[str]) -> Iterator[str]:
    shown = [action for action in parser._actions if action.dest not in ("help", *cluster)]
    yield from _table(("option", "meaning"), map(_option, shown))
    if any(action.dest in cluster for action in parser._actions):
        yield "\nand the [options of a cluster](#options-of-a-cluster)."
    yield ""


def _option(action: argparse.Action) -> tuple[str, str]:
    names = ", ".join(action.option_strings)
    value = argparse.HelpFormatter("")._format_args(action, _metavar(action)) if action.nargs != 0 else ""
    text = (action.help or "").replace("%%", "%")
    unsaid = action.nargs != 0 and action.default not in (None, [], (), "") and "default" not in text
    needed = "; needed" if action.required and action.option_strings else ""
    default = f" (default: {action.default:g})" if unsaid and isinstance(action.default, float) else ""
    default = f" (default: {action.default})" if unsaid and not default else default
    return f"`{' '.join(filter(None, (names, value)))}`", f"{text}{needed}{default}"


def _metavar(action: argparse.Action) -> str:
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield _line(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        yield _line(cell.replace("|", "\\|") for cell in row)


def _line(cells: Iterable[str]) -> str:
    return f"|{'|'.join(cells)}|"


PAGES = {DOCS / "recipe.md": recipe_page, DOCS / "options.md": options_page}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(f"written: {path.relative_to(DOCS.parent)}")
