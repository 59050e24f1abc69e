"""Default colours: natural by name, told apart by all kinds of sight; CIEDE2000 beside published pairs."""

import random

import numpy as np
import pytest

from segmenter.grid import colours as module
from segmenter.grid.colours import default_colours, natural_colour
from segmenter.grid.labels import MAX_CLASSES
from segmenter.grid.sight import APART, SIGHTS, ciede2000, lab_of, nearest, sight_lab, srgb_of

WORDS = [words.split() for words in module._NATURAL.values()]


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [  # Sharma, Wu, Dalal (2005), table 1: pairs 1, 4, 7, 11, 14, 17, 20, 25, 30, 34
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, -1.3802, -84.2814), (50, 0, -82.7485), 1.0),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.49, -0.001), (50, -2.49, 0.0011), 7.2195),
        ((50, -0.001, 2.49), (50, 0.0011, -2.49), 4.7461),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.5, 0), (58, 24, 15), 19.4535),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((36.4612, 47.8580, 18.3852), (36.2715, 50.5065, 21.2231), 1.4146),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_differences_are_those_published(
    one: tuple[float, ...], other: tuple[float, ...], difference: float
) -> None:
    for pair in ((one, other), (other, one)):
        assert float(ciede2000(*map(np.array, pair))) == pytest.approx(difference, abs=6e-5)


def test_colours_of_a_screen_come_back_from_cielab_and_grey_is_grey_for_all() -> None:
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (500, 3))
    assert np.abs(srgb_of(lab_of(colours)) - colours).max() < 1e-3
    grey = sight_lab(np.full((1, 3), 128))
    assert np.abs(grey - grey[0]).max() < 0.6


@pytest.mark.parametrize("seed", range(12))
def test_up_to_twelve_default_colours_are_told_apart_by_all(seed: int) -> None:
    """Names of any land cover, in any language, several of one kind, and names that say nothing."""
    rng = random.Random(seed)
    count = rng.randint(2, 12)
    known = [rng.choice(words) for words in rng.sample(WORDS, count)]
    if seed % 3 == 0:
        known = ["Laubwald", "Nadelwald", "Mischwald", "bois", *known][:count]
    names = [name if rng.random() < 0.7 else f"class {i}" for i, name in enumerate(known)]
    colours = default_colours(names)
    assert min(nearest(colours, sight)[0] for sight in SIGHTS) >= APART
    assert default_colours(names) == colours


@pytest.mark.parametrize(
    ("name", "hue"),
    [
        ("Forest", "green"), ("Laubwald", "green"), ("forêt de feuillus", "green"), ("森林", "green"),
        ("Gewässer", "blue"), ("open water", "blue"), ("agua", "blue"), ("Straße", "grey"), ("roads", "grey"),
        ("buildings", "red"), ("Gebäude", "red"), ("bâtiment", "red"), ("casa", "red"),
    ],
)  # fmt: skip
def test_a_name_has_the_hue_of_its_land_cover(name: str, hue: str) -> None:
    colour = natural_colour(name)
    assert colour is not None
    r, g, b = colour
    spread = max(colour) - min(colour)
    assert {"green": g > max(r, b), "blue": b > max(r, g), "red": r > max(g, b), "grey": not spread}[hue]
    alone = default_colours([name, "unknown"])[0]
    assert alone == colour


@pytest.mark.parametrize("name", ["class 3", "x", "seal", "", "1"])
def test_names_that_say_no_land_cover_have_no_natural_colour(name: str) -> None:
    assert natural_colour(name) is None


def test_given_colours_stay_and_the_others_keep_away_from_them() -> None:
    given = [(28, 122, 62), None, (59, 130, 208), None, None]
    colours = default_colours(["house", "forest", "road", "water", "class 4"], given)
    assert [colours[0], colours[2]] == [given[0], given[2]]
    assert min(nearest(colours, sight)[0] for sight in SIGHTS) >= APART


@pytest.mark.slow
def test_as_many_classes_as_there_may_be_have_a_colour_each() -> None:
    names = [*(word for words in WORDS for word in words), *(f"c{i}" for i in range(MAX_CLASSES))][
        :MAX_CLASSES
    ]
    assert len(set(default_colours(names))) == MAX_CLASSES
