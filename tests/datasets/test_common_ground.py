"""Common ground of two scenes, in float64: as shapely finds it, whatever the pixels and the turn."""

import numpy as np
import pytest
import shapely
from numpy.typing import NDArray

from datasets.leaks import _area, _common

Points = NDArray[np.float64]


def rectangle(rng: np.random.Generator, corner: Points, turn: float, pixel: float, most: int = 400) -> Points:
    """Corners of a scene of some hundred pixels, from its upper left one on, turned about that."""
    width, height = pixel * rng.integers(1, most, 2)
    across, down = np.array([np.cos(turn), np.sin(turn)]), np.array([np.sin(turn), -np.cos(turn)])
    return corner + np.array([0 * across, width * across, width * across + height * down, height * down])


@pytest.mark.parametrize("pixel", [0.02, 0.05, 1.0, 10.0, 1e-6])
@pytest.mark.parametrize("turned", [False, True], ids=["north up", "turned"])
def test_common_ground_is_that_of_another_clipper(pixel: float, turned: bool) -> None:
    """Also at a common corner, along a common side, and where both are one; mirrored ones run backwards."""
    rng = np.random.default_rng(7)
    for _ in range(300):
        place = rng.uniform(-1, 1, 2) * (180 if pixel < 1e-3 else 7e6)
        turns = rng.uniform(0, 2 * np.pi, 2) if turned else np.zeros(2)
        if rng.random() < 0.5:
            turns[1] = turns[0]
        one = rectangle(rng, place, turns[0], pixel)
        corner = one[rng.integers(4)] if rng.random() < 0.5 else place + pixel * rng.integers(-300, 300, 2)
        other = one.copy() if rng.random() < 0.1 else rectangle(rng, corner, turns[1], pixel)
        one, other = (each[::-1] if rng.random() < 0.3 else each for each in (one, other))
        expected = shapely.intersection(*(shapely.Polygon(each - place) for each in (one, other))).area
        for found in (_common(one, other), _common(other, one)):
            assert _area(found) == pytest.approx(expected, rel=1e-6, abs=1e-2 * pixel**2)


def test_a_chip_of_a_scene_is_wholly_common_at_any_corner_and_scenes_that_adjoin_have_nothing() -> None:
    rng = np.random.default_rng(8)
    for _ in range(300):
        scene = rectangle(rng, rng.uniform(-7e6, 7e6, 2), rng.uniform(0, 2 * np.pi), 0.02, most=4000)
        across, down = scene[1] - scene[0], scene[3] - scene[0]
        a, b = sorted(rng.choice([0, *rng.uniform(0, 1, 3), 1], 2, replace=False))
        c, d = sorted(rng.choice([0, *rng.uniform(0, 1, 3), 1], 2, replace=False))
        chip = (
            scene[0] + np.array([[x * across + y * down] for x, y in ((a, c), (b, c), (b, d), (a, d))])[:, 0]
        )
        assert _area(_common(chip, scene)) == pytest.approx(_area(chip), rel=1e-5)
        assert _area(_common(scene + across, chip)) <= 1e-6 * _area(scene)
