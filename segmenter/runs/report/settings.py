"""What a run was made with: its recipe, devices, versions."""

from __future__ import annotations

from typing import Any

from segmenter.base.errors import ConfigError, counted
from segmenter.config.reading import flat_settings, recipe_from
from segmenter.config.recipe import Recipe
from segmenter.pages.parts import Block, Fold, Paragraph, Table, number
from segmenter.runs.report.run_record import Story

_LONGEST = 300


def setting_blocks(story: Story) -> list[Block]:
    """Settings that were chosen, all of them behind a line, devices and versions."""
    run = story.run
    known = flat_settings(run.recipe)
    chosen = chosen_settings(run.recipe)
    blocks: list[Block] = []
    for each in run.extensions:
        blocks.append(
            Paragraph(
                f"Made longer after step {each.step:,}: training.epochs {each.before} → {each.epochs}.",
                "notice",
            )
        )
    blocks += [
        _table("Settings that are not the defaults", chosen),
        Fold(f"All {len(known)} settings", _table("The whole recipe (recipe.yaml)", known)),
        *_made_with(story),
    ]
    return blocks


def chosen_settings(recipe: Recipe) -> dict[str, Any]:
    """Settings that differ from their defaults, and all of the dataset."""
    plain = recipe.model_dump(mode="json")
    model = {key: value for key, value in plain["model"].items() if key in ("kind", "encoder", "decoder")}
    same = {"name": recipe.name, "dataset": plain["dataset"]}
    try:
        default = recipe_from({**same, "model": model}, "the defaults")
    except ConfigError:  # a model that is valid with other settings of its own only
        default = recipe_from({**same, "model": plain["model"], "tiles": plain["tiles"]}, "the defaults")
    before, now = flat_settings(default), flat_settings(recipe)
    return {
        key: value
        for key, value in now.items()
        if before.get(key) != value or key in ("dataset.kind", "dataset.root")
    }


def shown(value: Any) -> str:
    """A setting's value, cut where it is long."""
    text = "–" if value is None else ("true" if value else "false") if isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _table(caption: str, settings: dict[str, Any]) -> Table:
    return Table(
        caption, ["Setting", "Value"], [[key, shown(value)] for key, value in settings.items()], True
    )


def _made_with(story: Story) -> list[Block]:
    run, facts = story.run, story.facts
    form = f"{counted(run.band_count, 'band')} of {run.dtype}"
    ground = "not georeferenced" if run.metres_per_pixel is None else f"{run.metres_per_pixel:.4g} m a pixel"
    rows = [["Images", f"{form}, {ground}"], ["Labels", run.labels]]
    if facts is None:
        return [Table("Made with", ["What", "Value"], [*rows, ["Devices and versions", "not known"]], True)]
    rows.append(["Devices", number(facts.replicas)])
    rows += [[name, value] for name, value in facts.computed_on.items()]
    if run.shares is not None:
        shares = ", ".join(f"{d}: {t}" for d, t in zip(run.shares.devices, run.shares.tiles, strict=True))
        rows.append(["Tiles of a step on each device, measured", shares])
    versions = [[name, value] for name, value in facts.versions.items()]
    return [
        Table("Made with", ["What", "Value"], rows, True),
        Table("Versions", ["Package", "Version"], versions, True),
    ]
