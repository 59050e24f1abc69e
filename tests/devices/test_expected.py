"""GPUs that a training will use, told before TensorFlow is imported."""

from __future__ import annotations

from typing import Any

import pytest

from segmenter.config.devices import DistributionConfig
from segmenter.devices import setup
from segmenter.extras.strategies import cards_expected


@pytest.mark.parametrize(
    ("named", "settings", "gpus"),
    [
        (None, {}, 4),
        ("", {}, 0),
        ("-1", {}, 0),
        ("1,3", {}, 2),
        ("0,-1,2", {}, 1),
        ("GPU-abc", {}, 1),
        (None, {"visible_devices": []}, 0),
        (None, {"visible_devices": [1, 2]}, 2),
        (None, {"strategy": "mirrored", "devices": [0, 1, 3]}, 3),
        (None, {"strategy": "one_device"}, 1),
        (None, {"strategy": "tpu"}, 8),
    ],
)
def test_cards_that_are_listed_count_as_far_as_they_are_not_hidden(
    named: str | None, settings: dict[str, Any], gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "cards_listed", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    config = DistributionConfig.model_validate(settings)
    assert cards_expected(config) == gpus
    assert cards_expected(config, logical_devices=4) == 0
