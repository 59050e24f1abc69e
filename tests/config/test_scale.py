"""Settings of scale that cannot be meant, or would do nothing, are refused where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from segmenter.base.errors import ConfigError
from tests.helpers.scaled_scenes import scaled_recipe


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"augmentation": {"scale_to": [1.0, 0.2]}}, r"scale_to: expected the finest .* got \[1.0, 0.2\]"),
        ({"augmentation": {"scale_to": [0.2, 1], "scale": 0.3}}, "scale: expected 0 with scale_to"),
        ({"augmentation": {"scale_to": 0.3}}, r"augmentation.scale_to: expected a list \(metres\), got 0.3"),
        ({"augmentation": {"scale_to": [0, 1]}}, "scale_to.0: expected greater than 0"),
        ({"sampling": {"scale_strata": [1, 0.3]}}, r"scale_strata: expected rising .*, got \[1.0, 0.3\]"),
        ({"sampling": {"scale_strata": [0.3], "coverage": False}}, "expected coverage: relaxed or"),
    ],
)
def test_what_cannot_be_meant_is_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scaled_recipe(**sections)


def test_one_scale_is_a_range_too() -> None:
    assert scaled_recipe(augmentation={"scale_to": [0.5, 0.5]}).augmentation.scale_to == (0.5, 0.5)
