"""A real training with its input: tiles a second that it trains, that are fed, and that the step needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from statistics import median

from segmenter.runs.log import RunLog

from .bench import Bench, tool
from .figures import Figure
from .step import rate_name, rate_of_one

ENOUGH = 1.2
"""Tiles fed over tiles needed."""
_FED = re.compile(r"fed: (\d+) tiles/s by (.+)")


def figures(bench: Bench) -> Iterator[Figure]:
    """Yield what a short training says, then what its input alone makes, against the step's need."""
    epochs = bench.sizes.epochs[1]
    changes = {"dataset": {"split": {}}, "training": {"epochs": epochs, "validate_every": epochs}}
    recipe = bench.recipe("training", changes, bench.sizes.images[1])
    logical = ["--logical-devices", str(bench.logical)] if bench.logical else []
    run = bench.folder / "training"
    said = tool("train", str(recipe), "--run", str(run), *logical)
    lines = [line for line in RunLog(run).records() if line.get("images_per_second")]
    rates, waits = ([float(line[key]) for line in lines] for key in ("images_per_second", "waiting_for_data"))
    if not rates:
        yield Figure("trained", None, note="an epoch has one call of steps only")
    else:
        note = f"waiting for data {median(waits):.0%} of the time"
        yield Figure("trained", median(rates), "tiles/s", note=note, told=True)
    for line in re.findall(r"^xla: .*", said, re.MULTILINE):
        yield Figure("what the trial of XLA said", line)
    steps = [bench.known.get(rate_name(1, xla)) for xla in (True, False)]
    need = max((rate for rate in steps if isinstance(rate, float)), default=0.0) or rate_of_one(bench, False)
    minutes = "0.02" if bench.tiny else "0.2"
    fed = tool("input", str(recipe), "--minutes", minutes, "--need", f"{need:g}")
    found = _FED.search(fed)
    assert found is not None, fed
    yield Figure("fed", float(found[1]), "tiles/s", note=found[2], told=True)
    yield Figure("needed", need, "tiles/s", note="by the fastest step", told=True)
    ratio = float(found[1]) / need
    yield Figure("fed over needed", ratio, "", f"≥ {ENOUGH}", ratio >= ENOUGH)
