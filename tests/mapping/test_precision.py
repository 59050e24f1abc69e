"""Maps in the precision of the run's validation, the journal's key to it, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.helpers.exact_network import RADIUS, STRIDE, exact_network, fake_run

MIXED = "mixed_float16"
CPU = "precision: float32, which a CPU computes faster; --precision run takes the other"
DIFFERS = "(trained and validated in mixed_float16: some pixels differ)"


class Folder:
    """predict.py with a stand-in for a run, on a machine with or without a GPU; `used`: of each load."""

    def __init__(self, call: Any, capsys: Any, monkeypatch: Any, source: Path) -> None:
        self._call, self._capsys, self._patch, self._source = call, capsys, monkeypatch, source
        self.used: list[Any] = []

    def map(self, *options: str, gpu: bool = False, trained: str = MIXED) -> list[str]:
        """Lines of stdout that speak of precision, or of maps that are made anew or kept."""
        card = 11 * 2**30 if gpu else None
        self._patch.setattr("segmenter.mapping.computing.smallest_card", lambda: card)
        recipe = fake_run(SimpleNamespace()).recipe  # type: ignore[arg-type]
        recipe.training.precision = trained
        assert self._call(self._source, *options, recipe=recipe) == 0
        lines = self._capsys.readouterr().out.splitlines()
        return [line for line in lines if any(w in line for w in ("precision", "anew", "finished"))]


@pytest.fixture
def folder(
    call: Callable[..., int], make_geotiff: Callable[..., Path],
    capsys: Any, monkeypatch: Any,
) -> Folder:  # fmt: skip
    found = Folder(call, capsys, monkeypatch, make_geotiff("in/a.tif", np.full((40, 50, 3), 9, np.uint8)))

    def load(run: Any, wanted: Any = None, tta: str = "none", precision: Any = None) -> Any:
        found.used.append(precision)
        return exact_network(RADIUS, STRIDE, wanted=wanted)

    monkeypatch.setattr("tests.helpers.exact_network.fake_load_predictor", load)
    return found


def test_a_gpu_computes_in_the_runs_precision_and_a_cpu_in_float32(folder: Folder) -> None:
    assert folder.map(gpu=True) == ["precision: mixed_float16, as in training and validation"]
    assert folder.map("--redo")[0] == f"{CPU} {DIFFERS}"
    assert folder.used == [(MIXED,), ("float32",)]
    assert folder.map("--redo", gpu=True, trained="float32") == ["maps/a.tif: made anew: asked for by --redo"]


def test_the_same_call_keeps_its_maps_and_its_precision_on_another_machine(folder: Folder) -> None:
    folder.map(gpu=True)
    line = (
        "precision: mixed_float16, as in training and validation, as the maps before; slow on a CPU, "
        "--precision float32 makes them anew"
    )
    assert folder.map() == [line, "1 of 1 maps are finished and unchanged"]
    assert len(folder.used) == 1


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([MIXED], ["float32"], "precision was mixed_float16, is float32"),
        (["float32"], ["run"], "precision was float32, is mixed_float16"),
    ],
)
def test_a_map_of_another_precision_is_made_anew(
    folder: Folder, before: list[str], after: list[str], reason: str
) -> None:
    folder.map("--precision", *before)
    assert f"maps/a.tif: made anew: other options: {reason}" in folder.map("--precision", *after)


def test_a_precision_that_is_asked_for_is_taken_and_told(folder: Folder) -> None:
    assert folder.map("--precision", "float32", gpu=True) == [f"precision: float32 {DIFFERS}"]
    assert folder.map("--precision", "float32", gpu=True, trained="float32") == [
        "1 of 1 maps are finished and unchanged"  # as those of an older journal, which names no precision
    ]
    assert folder.used == [("float32",)]
