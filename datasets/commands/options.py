"""Options that several commands have."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from segmenter.config.recipe_options import RecipeOptions
from segmenter.extras.dask.options import ClusterOptions

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class ClusterRecipeOptions(RecipeOptions):
    """A recipe whose work may be spread over a cluster."""

    cluster: ClusterOptions | None = None

    def read(self, *more: str) -> Recipe:
        """Return the recipe; with a cluster, paths become absolute for its workers."""
        recipe = super().read(*more)
        if self.cluster is None:
            return recipe
        paths = {"root": recipe.dataset.root, "cache": recipe.dataset.cache}
        absolute = [f"dataset.{name}={json.dumps(os.path.abspath(p))}" for name, p in paths.items() if p]
        return super().read(*more, *absolute)
