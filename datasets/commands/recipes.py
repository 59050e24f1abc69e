"""Ready-made recipes of the installed package: list them, or copy one to change it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segmenter.base.errors import ConfigError, plain
from segmenter.base.files import write_whole
from segmenter.base.invocation import COMMAND, ToolParser, installation
from segmenter.base.options import option, parse_options

from .frame import tool_parser

_LOADERS = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class _Options:
    name: str | None = option(
        None, "name of the recipe to copy (default: list all recipes)", "NAME", positional=True
    )
    file: Path | None = option(
        None, "file to write the copy to (default: NAME.yaml)", "FILE.yaml", positional=True
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """List the recipes, or copy one; return the exit code."""
    given = parse_options(_parser(), _Options, arguments)
    recipes = ready_made()
    if given.name is None:
        width = max(map(len, recipes))
        print("\n".join(f"{name:{width}}  {_first_line(path)}".rstrip() for name, path in recipes.items()))
        print(f"copy one, to change it: {COMMAND} recipes NAME [FILE.yaml]")
        return 0
    if given.name not in recipes:
        raise ConfigError(given.name, expected=f"one of the recipes {', '.join(recipes)}")
    target = given.file or Path(f"{given.name}.yaml")
    _copy(recipes[given.name], target)
    print(plain(f"written: {target}"))
    return 0


def ready_made() -> dict[str, Path]:
    """Return the file of each recipe, sorted by name: of the installed package, or of this clone."""
    installed, clone = _LOADERS / "recipes", _LOADERS.parent / "configs"
    folder = installed if installed.is_dir() else clone
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def _copy(recipe: Path, target: Path) -> None:
    """Write a copy whose comments have the commands of an installed package, also for scripts of a clone."""
    if target.exists():
        raise ConfigError(target, "exists already", remedy="name another file")
    if not target.parent.is_dir():
        raise ConfigError(target, f"there is no folder {target.parent}", remedy="make it first")
    text = re.sub(r"\bpython (\w+)\.py\b", rf"{COMMAND} \1", recipe.read_text(encoding="utf-8"))
    text = text.replace("make pretrained", installation("pretrained"))
    write_whole(target, text.replace(f"configs/{recipe.name}", str(target)).encode())


def _first_line(path: Path) -> str:
    """Return a recipe's purpose: the comment in its first line, or empty text."""
    first = path.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() if first.startswith("#") else ""


_CALLS = {
    "": "list all recipes",
    "folder mine.yaml": "copy the recipe folder, to change it",
}


def _parser() -> ToolParser:
    return tool_parser("recipes", __doc__, _Options, calls=_CALLS)
