"""Precision in which maps are computed: that of the run's validation, but on a CPU float32.

A run that was trained in mixed_float16 chose its best model by numbers of mixed_float16, and on GPUs its
maps have these. A CPU computes them more slowly than float32 (docs/prediction.md), so there it takes float32
unless `--precision run` asks for them. A folder of maps stays in the precision that it was begun in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from segmenter.base.terminal import say
from segmenter.inference.loading import smallest_card
from segmenter.runs.ensemble import members

if TYPE_CHECKING:
    from segmenter.mapping.folder.journal import Journal
    from segmenter.mapping.request.map_request import MapRequest
    from segmenter.runs.ensemble import AnyRun

PLAIN = "float32"


def settled_precision(request: MapRequest, run: AnyRun, journal: Journal) -> tuple[str, ...]:
    """The Keras dtype policy for each of the run's members; prints what is to be said about it.

    What the program chooses, by whether there is a GPU, is noted in the journal for the same call.
    """
    trained: tuple[str, ...] = tuple(member.recipe.training.precision for member in members(run))
    if request.precision is not None:
        chosen = precision_of(run, request.precision)
        _tell(chosen, trained, "")
        return chosen
    plain = (PLAIN,) * len(trained)
    if trained == plain:
        return plain
    what = {"precision of": run.checksum()}
    found = None if request.redo else journal.settings(what)
    before = None if found is None else tuple(map(str, found.get("precision", ())))
    chosen = precision_of(run)
    on_gpu = chosen == trained
    if before in (trained, plain):
        slow = "" if on_gpu or before == plain else "; slow on a CPU, --precision float32 makes them anew"
        _tell(before, trained, f", as the maps before{slow}")
        return before
    _tell(chosen, trained, "" if on_gpu else ", which a CPU computes faster; --precision run takes the other")
    journal.settle(what, {"precision": list(chosen)})
    return chosen


def precision_of(run: AnyRun, asked: str | None = None) -> tuple[str, ...]:
    """The Keras dtype policy for each of the run's members, where no maps were begun in another.

    Args:
        asked: `run`, or a policy for all; None: the program chooses.
    """
    trained: tuple[str, ...] = tuple(member.recipe.training.precision for member in members(run))
    as_trained = asked == "run" or (asked is None and smallest_card() is not None)
    return trained if as_trained else (asked or PLAIN,) * len(trained)


def precision_option(chosen: tuple[str, ...]) -> str | None:
    """The precision as the journal has it; None for float32, which older journals do not name."""
    if set(chosen) == {PLAIN}:
        return None
    return ", ".join(chosen if len(set(chosen)) > 1 else chosen[:1])


def _tell(chosen: tuple[str, ...], trained: tuple[str, ...], why: str) -> None:
    if {*chosen, *trained} == {PLAIN}:
        return
    shown, theirs = (precision_option(each) or PLAIN for each in (chosen, trained))
    if chosen == trained:
        say(f"precision: {shown}, as in training and validation{why}")
    else:
        say(f"precision: {shown}{why} (trained and validated in {theirs}: some pixels differ)")
