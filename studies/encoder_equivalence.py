"""Equivalence of R replicas and one device for encoders and decoders: law 2, in float64 on logical CPUs.

Prints one JSON line a pair: the largest difference of losses, gradients, weights and BatchNorm statistics,
and whether a training that is resumed from a checkpoint has the very weights of one that went straight on.
`--page` writes those of this call into the page's table, beside the pairs that it has already. All pairs take
some hours: a step of a large encoder is compiled for minutes. `--growth` prints instead what a relative error
of 1e-15 in the start weights comes to on one device, at several learning rates.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from studies.equivalence import four_devices
from benchmarks.page import renew, rows_of
from tests.helpers.laboratory import KINDS, LIMIT, difference
from segmenter.config.models import NOT_RESIDUAL, EncoderDecoderConfig
from segmenter.config.recipe import LossConfig
from tests.helpers.encoder_pairs import DECODERS, ENCODERS, SIDE, STEPS, PairLaboratory, pair
from tests.helpers.small_training import SGD, Training, batches

_MARK = "<!-- table: python -m studies.encoder_equivalence --page -->"
REPLICAS = 4
_OFF = 1e-15


def main() -> int:
    """The exit code is 1 if a pair is not exact."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the table in this page")
    parser.add_argument(
        "--pairs", type=lambda text: text.split(","), metavar="ENCODER+DECODER,…", help="default: all"
    )
    parser.add_argument(
        "--growth", type=float, nargs="+", metavar="RATE", help="the growth of an error at these rates alone"
    )
    arguments = parser.parse_args()
    four_devices()
    pairs = arguments.pairs or [f"{encoder}+{decoder}" for encoder in ENCODERS for decoder in DECODERS]
    exact = True
    for name in pairs:
        encoder, _, decoder = name.partition("+")
        if arguments.growth:
            _print_growth(encoder, decoder, arguments.growth)
            continue
        found, resumes = _measured(encoder, decoder)
        exact &= resumes and all(value <= LIMIT for value in found.values())
        said = {"benchmark": "encoder_equivalence", "pair": name, **found, "resumes": resumes}
        print(json.dumps(said), flush=True)
        if arguments.page:
            _write(arguments.page, encoder, decoder, found, resumes)
    return int(not exact)


def _print_growth(encoder: str, decoder: str, rates: list[float]) -> None:
    for rate in rates:
        grown = _grown(pair(encoder, decoder), rate, _OFF)
        said = {"pair": f"{encoder}+{decoder}", "rate": rate, "after each step": [f"{x:.1e}" for x in grown]}
        print(json.dumps({"benchmark": "encoder_equivalence --growth", **said}), flush=True)


def _grown(config: EncoderDecoderConfig, rate: float, by: float) -> list[float]:
    """Return what start weights that are off by `by`, relatively and at random, come to after each step.

    Both trainings are of one device: it is the network's own doing, not that of replicas. Relative to the
    largest weight.
    """
    training = Training(config, LossConfig(), training=SGD.model_copy(update={"learning_rate": rate}))
    state = [*training.model.variables, *training.optimiser.variables]
    start, stack = [variable.numpy() for variable in state], batches(STEPS, SIDE)
    rng = np.random.default_rng(0)
    found: list[list[dict[str, list[Any]]]] = []
    for off in (0.0, by):
        for variable, value in zip(state, start, strict=True):
            variable.assign(value)
        for variable in training.model.trainable_variables:
            variable.assign(variable.numpy() * (1 + off * rng.standard_normal(variable.shape)))
        found.append([])
        for step in range(STEPS):
            training.each(tuple(part[step : step + 1] for part in stack))
            found[-1].append({"weights": [v.numpy() for v in training.model.trainable_variables]})
    return [difference(other, straight, "weights") for straight, other in zip(*found, strict=True)]


def _measured(encoder: str, decoder: str) -> tuple[dict[str, float], bool]:
    laboratory = PairLaboratory(pair(encoder, decoder))
    found = {kind: float(f"{value:.1e}") for kind, value in laboratory.differences(REPLICAS).items()}
    straight, resumed = laboratory.resumed()
    return found, straight == resumed


def _write(page: Path, encoder: str, decoder: str, found: dict[str, float], resumes: bool) -> None:
    """The table with this pair's row, new or in place of an older one."""
    start = f"| {encoder} | {decoder} |"
    drop_path = "none" if encoder in NOT_RESIDUAL else "0.2"
    differences = " | ".join(f"{found[kind]:.0e}" for kind in KINDS)
    row = f"{start} {drop_path} | {differences} | {'to the bit' if resumes else 'not the same'} |"
    rows = [each for each in rows_of(page, _MARK)[2:] if not each.startswith(start)]
    head = f"| encoder | decoder | drop path | {' | '.join(KINDS)} | resumes |"
    rule = "| --- | --- | ---: |" + " ---: |" * len(KINDS) + " --- |"
    renew(page, _MARK, [head, rule, *sorted([*rows, row])])


if __name__ == "__main__":
    sys.exit(main())
