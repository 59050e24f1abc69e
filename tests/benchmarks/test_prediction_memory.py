"""Memory of prediction as a benchmark: of a named model, its formula alone."""

from __future__ import annotations

import json

import pytest

from benchmarks import prediction_memory


def test_a_named_model_is_measured_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one process, at the window that was asked for; no raster is made for it."""
    asked: list[tuple[str, ...]] = []

    def stand_in(*arguments: str) -> dict[str, float]:
        asked.append(arguments)
        return {"measured": 200.0, "formula": 210.0}

    monkeypatch.setattr(prediction_memory, "_in_a_process", stand_in)
    monkeypatch.setattr("sys.argv", ["prediction_memory", "--model", "resnet18+fpn", "--window", "96"])
    prediction_memory.main()
    assert asked == [("model", "resnet18+fpn", "96")]
    assert json.loads(capsys.readouterr().out) == {
        "benchmark": "prediction_memory",
        "model": "resnet18+fpn",
        "bytes_per_pixel": 200,
        "formula_over_measured": 1.05,
    }
