"""Scoring of maps against their labels, by a protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.bars import Bar
from segmenter.base.errors import ScoreError, SegmenterError, plain
from segmenter.base.files import read_regular
from segmenter.base.sealed import digest, json_object
from segmenter.base.terminal import fit_table
from segmenter.evaluation.bootstrap import forget_blocks
from segmenter.evaluation.by_gsd import GsdConfusions, gsd_facts, gsd_table
from segmenter.evaluation.intervals import INTERVAL
from segmenter.evaluation.scores import FIGURES, MODEL, ConfusionMatrix, Protocol, Scores, percent
from segmenter.evaluation.tallies import MapTally, count_map
from segmenter.grid.geometry import Window
from segmenter.mapping.calibrated import FittedScenes, kind_of_calibration, relate_to_fit
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outcome import Outcome, Scorer, Tallies
from segmenter.mapping.style import MapStyle
from segmenter.raster import read_label
from segmenter.runs.score_files import MOST_BYTES

if TYPE_CHECKING:
    from segmenter.mapping.call import Call
    from segmenter.mapping.request.truth import Truth

SCORE_FILES = ("scores.json", "confusion.png")
_SCENES_SHOWN = 40
"""Lines of the table of scenes: of more, those that need a look."""


def score_kept(outcome: Outcome, style: MapStyle) -> None:
    """Score existing maps that have a label."""
    for job in outcome.kept:
        if job.label is None:
            continue
        scorer = Scorer(job, style.classes)
        try:
            for window, ids in style.read_back(job):
                scorer.add(window.shifted(job.part.row, job.part.col), ids)
        except SegmenterError as error:
            scorer.error = error
        outcome.add_score(job, scorer)


def note_scores(call: Call, outcome: Outcome) -> None:
    """Note in the journal which maps the files of scores are of: they go when these are replaced."""
    from segmenter.mapping.folder.journal import file_facts  # brings rasterio

    maps = _state_of_maps(call, [job.output.name for job, _ in outcome.each])
    for name in SCORE_FILES:
        facts = file_facts(call.request.output / name)
        call.journal.settle({"scores": name}, {**facts, "maps": maps})
    call.journal.flush()


def remove_stale_scores(call: Call) -> list[Path]:
    """Remove the scores of earlier calls if a map that they are of was replaced; return the files.

    Those that were changed by others stay.
    """
    from segmenter.mapping.folder.journal import file_facts  # brings rasterio

    files = [call.request.output / name for name in SCORE_FILES]
    noted = {path: call.journal.settings({"scores": path.name}) or {} for path in files}
    removed: list[Path] = []
    with contextlib.suppress(OSError, SegmenterError, AttributeError, TypeError, KeyError):
        if not noted[files[0]]:
            return removed
        scored = (json_object(read_regular(files[0], MOST_BYTES)) or {})["per_scene"]
        maps = _state_of_maps(call, [each["map"] for each in scored.values()])
        for path in files:
            if noted[path].get("maps") != maps and file_facts(path).items() <= noted[path].items():
                path.unlink()
                removed.append(path)
    return removed


def _state_of_maps(call: Call, names: Iterable[str]) -> str:
    """Return a digest of the maps of these names as the journal has them."""
    entries = ((name, call.journal.find(name.rpartition(".")[0])) for name in sorted(names))
    return digest({name: None if entry is None else entry.outputs.get(name) for name, entry in entries})


def count_further(outcome: Outcome, scoring: Scoring) -> None:
    """Count what further scores need in all scored maps, from their files (`evaluation.tallies`)."""
    request, style = scoring.call.request, scoring.call.style
    names, counted = style.classes.names, scoring.of(()).classes
    left_out = [id_ for id_, name in enumerate(names) if name not in counted]
    if not request.tallies(names):
        return
    total, each = sum(job.part.size.pixels for job, _ in outcome.each), outcome.each
    outcome.each = []
    with Bar(total=total, desc="further scores", unit="pixel", unit_scale=True) as bar:
        for job, tallies in each:
            try:
                tallies.further = request.tallies(names)
                for tally in tallies.further:
                    _count(tally, job, style, left_out)
                outcome.each.append((job, tallies))
            except SegmenterError as error:
                outcome.unscored.append((job, error))
            bar.update(job.part.size.pixels)


def _count(tally: MapTally, job: MapJob, style: MapStyle, left_out: Sequence[int]) -> None:
    label = job.truth(style.classes)
    assert label is not None, "it was scored"

    def read(window: Window) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        ids = style.ids(job, read_label(job.output, window))
        return label.read(window.shifted(job.part.row, job.part.col)), ids

    with contextlib.closing(label):
        count_map(tally, read, job.part.size, left_out)


@dataclass(frozen=True)
class Scoring:
    """Rules for scoring the maps of a call.

    Attributes:
        fitted: for each scored scene, whether the run's calibration was fitted on it; None: unknown.

    Raises:
        ScoreError: the protocol does not fit the run's classes; raised before computing.
    """

    call: Call
    truth: Truth
    fitted: Mapping[str, bool | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ConfusionMatrix(self.call.run.classes).scores(self.of(()))

    def of(self, scenes: Sequence[str]) -> Protocol:
        """Return the protocol with the scored scenes."""
        request, scale = self.call.request, self.call.style.gsd
        tta = f"{request.tta}, at {scale} a pixel" if scale else request.tta
        labels, split = request.label_kind or self.truth.kind, self.truth.split
        if request.protocol:
            name = request.protocol
            rules = Protocol.published(name, labels=labels, split=split, tta=tta, scenes=scenes)
        else:
            rules = Protocol(tuple(self.call.run.classes.names), labels, split, tta, scenes=tuple(scenes))
        if (kind := kind_of_calibration(self.call.run)) == "none":
            return rules
        on = relate_to_fit([self.fitted[name] for name in scenes])
        return replace(rules, calibration=kind, fitted_on=on)

    def knowing_the_fit(self, jobs: Mapping[str, MapJob]) -> Scoring:
        """Return these rules with what is known of the scored scenes, by name, and the calibration's."""
        if kind_of_calibration(self.call.run) == "none":
            return self
        scenes, blocks = FittedScenes(self.call.run), self.truth.blocks
        fitted = {
            name: scenes.holds(job.info.path, job.label, blocks=job.info.path in blocks)
            for name, job in jobs.items()
        }
        return replace(self, fitted=fitted)


def write_scores(outcome: Outcome, scoring: Scoring) -> str:
    """Write `scores.json` and `confusion.png` of all labelled maps; return the tables as text.

    Besides the total, `scores.json` has the scores and map name of each scene under `per_scene`, and those of
    each scale stratum under `per_scale` if the scenes' scales differ.

    Raises:
        ScoreError: no pixel is labelled.
        OutputError: a file cannot be written.
    """
    from segmenter.evaluation.drawing import save_figure
    from segmenter.evaluation.figures import confusion_panel  # brings matplotlib

    # By name: the same file whether the maps were made by this call or by earlier ones.
    each = {_scene(job): (job, tallies) for job, tallies in outcome.each}
    scenes = {name: each[name] for name in sorted(each)}
    scoring = scoring.knowing_the_fit({name: job for name, (job, _) in scenes.items()})
    protocol = scoring.of(list(scenes))
    classes = scoring.call.run.classes
    total = Tallies(ConfusionMatrix(classes), scoring.call.request.tallies(classes.names))
    for _, tallies in scenes.values():
        total.merge(tallies)
    if not total.confusion.counts.any():
        raise ScoreError(scoring.truth.asked, expected="labelled pixels in the maps", got="none")
    confusions = [tallies.confusion for _, tallies in scenes.values()]
    forget_blocks(confusions)
    outcome.scores = scores = total.scores(protocol, confusions)
    alone = {name: each.scores(scoring.of([name]), [each.confusion]) for name, (_, each) in scenes.items()}
    per_scene = {name: _facts(scenes[name][0], own) for name, own in alone.items()}
    by_scale = _by_scale(scenes, scoring)
    score_file, figure = (scoring.call.request.output / name for name in SCORE_FILES)
    outcome.further += [score_file, figure]
    more = {MODEL: scoring.call.model, "per_scene": per_scene, **gsd_facts(by_scale)}
    scores.write(score_file, more)
    save_figure(confusion_panel(scores, f"{scoring.call.run.recipe.name}: {protocol}"), figure)
    tables = [scene_table(alone)] if len(alone) > 1 else []
    return "\n\n".join(
        [
            *tables,
            *([gsd_table(by_scale)] if by_scale else []),
            scores.table(),
            *(tally.table(protocol) for tally in total.further),
        ]
    )


def _by_scale(scenes: Mapping[str, tuple[MapJob, Tallies]], scoring: Scoring) -> dict[str, Scores]:
    """Return the scores of each stratum of scene scale; empty if there is only one."""
    run = scoring.call.run
    scales = GsdConfusions(run.classes)
    for name, (job, tallies) in scenes.items():
        metres = scoring.truth.scale_of(job.info.path, job.info.metres_per_pixel)
        scales.add(name, metres, tallies.confusion)
    return scales.scores(scoring.of, tuple(run.recipe.sampling.scale_strata))


def _scene(job: MapJob) -> str:
    return job.name if job.scene is None else job.scene


def _facts(job: MapJob, scores: Scores) -> dict[str, Any]:
    facts = scores.to_dict()
    keys = (*FIGURES, *INTERVAL, "iou", "pixels", *scores.more)
    return {"map": job.output.name, **{key: facts[key] for key in keys if key in facts}}


def scene_table(scores: Mapping[str, Scores]) -> str:
    """Return a terminal table with a line per scene, in percent; of many scenes, the lowest mIoU only."""
    names = list(scores)
    more = ""
    if len(names) > _SCENES_SHOWN:
        order = sorted(names, key=lambda name: np.nan_to_num(scores[name].miou, nan=2))
        names = order[:_SCENES_SHOWN]
        more = f"the {len(names)} of {len(scores)} scenes with the lowest mIoU; scores.json has all"
    rows = []
    for name in names:
        cells = (percent(getattr(scores[name], key)) for key in FIGURES)
        interval = scores[name].interval
        rows.append((plain(name), *cells, f"{scores[name].pixels:,}", interval.span if interval else "–"))
    lines = fit_table(("scene", *FIGURES.values(), "pixels", "mIoU, 95 %"), rows, gap="   ")
    return "\n".join([*lines, *([more] if more else [])])
