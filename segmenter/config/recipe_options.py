"""Options that name a recipe and change its settings, of all tools that read one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from segmenter.base.invocation import recipes_hint
from segmenter.base.options import option

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe


def _setting_names() -> Iterable[str]:
    """Return the names of all settings of recipes, for `did you mean`."""
    from segmenter.config.reading import default_recipe, flat_settings

    return flat_settings(default_recipe())


@dataclass(frozen=True, kw_only=True)
class SettingOptions:
    """Options that change settings."""

    set: tuple[str, ...] = option(
        (),
        "replace one setting of the recipe, as in training.global_batch=32; may be repeated",
        "KEY=VALUE",
        again=True,
        short="-s",
        meant=_setting_names,
    )


@dataclass(frozen=True, kw_only=True)
class RecipeOptions(SettingOptions):
    """A recipe and its changes."""

    recipe: Path = option(..., f"YAML recipe to read; {recipes_hint()}", positional=True)

    def read(self, *more: str) -> Recipe:
        """Return the recipe with its changes, and then with `more` of them."""
        from segmenter.config.reading import load_recipe

        return load_recipe(self.recipe, [*self.set, *more])
