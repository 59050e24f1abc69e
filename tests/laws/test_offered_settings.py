"""What is offered works, or is refused in a line: each setting, each recipe with its weights, pairs.

Each is a training of a few steps by train.py (`website.offered`), on the recipe that has what it needs.
"""

from pathlib import Path

import pytest

from segmenter.config.datasets import DATASET_KINDS
from segmenter.config.models import MODEL_KINDS
from segmenter.config.recipe import Recipe
from website.offered import PAGES, RECIPES, offers
from website.reference import keys_of
from website.refused import FAULT, RESULT, ROOT, TRAINS, kept, outcomes

KINDS = {"dataset": DATASET_KINDS, "model": MODEL_KINDS}
MOST = 250
OF_RECIPE = {
    "dubai_pretrained": {"dataset": "folder", "model": "encoder_decoder"},
    "dubai": {"dataset": "folder", "model": "unet"},
    "folder": {"dataset": "folder", "model": "unet"},
    "potsdam": {"dataset": "potsdam", "model": "unet"},
    "naic2020": {"dataset": "naic2020", "model": "unet"},
}


def shown() -> set[tuple[str, str]]:
    """(kind, key) of the settings that offers show; the kind of sections without kinds is empty."""
    found = set()
    for offer in offers():
        if offer.settings:
            key = offer.settings[0].partition("=")[0]
            section = key.partition(".")[0]
            found.add((OF_RECIPE[offer.recipe].get(section, ""), key))
    return found


def test_every_setting_is_tried_and_every_recipe() -> None:
    """A mapping as a value shows the keys in it; what a recipe must say, each recipe shows."""
    there = shown()
    missing = []
    for kind, key in keys_of(Recipe, KINDS):
        key = key.replace("[]", "")
        above = [key.rsplit(".", depth)[0] for depth in range(key.count("."))]
        kinds = {kind} if kind else {"", *OF_RECIPE["dubai_pretrained"].values()}
        if not any((each, name) in there for each in kinds for name in (key, *above)):
            missing.append((kind, key))
    assert missing == [("", "dataset.files")]  # of a root that is a server without a listing
    assert set(RECIPES) == {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    assert len(offers()) <= MOST
    assert set(PAGES) <= set(OF_RECIPE)


def test_the_kept_results_are_of_offers() -> None:
    names = {offer.name for offer in offers()}
    assert set(kept()) <= names
    assert all(kept().get(recipe, TRAINS) == TRAINS for recipe in RECIPES)
    assert RESULT.exists()


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_what_is_offered_trains_or_is_refused_in_a_line(tmp_path: Path) -> None:
    found = {offer.name: (kind, line or kind) for offer, kind, line in outcomes(offers(), tmp_path)}
    assert {name: line for name, (kind, line) in found.items() if kind == FAULT} == {}
    assert {name: found[name][1] for name in RECIPES} == dict.fromkeys(RECIPES, TRAINS)
    assert {name: line for name, (_, line) in found.items() if name in kept()} == kept()
