"""Comparison of runs: scores by class, speed, and differing settings.

Scores of different protocols are never mixed. A ranking has runs of one protocol and of the same labels,
recognised by equal pixel counts of each class.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.base.errors import SegmenterError
from segmenter.base.files import shortest_ends
from segmenter.base.terminal import fit_table
from segmenter.config.reading import flat_settings
from segmenter.evaluation.scores import FIGURES, Protocol, Scores, score_of, title_of
from segmenter.evaluation.scores import percent as table_percent
from segmenter.pages.parts import number, percent, plain
from segmenter.runs.report.run_record import Story, read_story
from segmenter.runs.run import RUN_FILE, runs_in

_WIDEST = 36
"""Characters of a cell in the terminal."""
Ranked = tuple[int, Scores]
"""Index of a run, and its best scores."""


def compare(given: Sequence[Path]) -> str:
    """Return the tables of runs, or of the runs in folders, as text.

    Raises:
        SegmenterError: there are fewer than two, or one comes twice.
    """
    paths = _check_runs([run for path in given for run in _runs_of(path)])
    return comparison([read_story(path) for path in paths])


def _runs_of(path: Path) -> list[Path]:
    """Return the path itself if it is a run, else the runs in that folder."""
    return [path] if (path / RUN_FILE).exists() else runs_in(path) or [path]


def _check_runs(paths: Sequence[Path]) -> list[Path]:
    if len(paths) < 2:
        raise SegmenterError(
            "compare",
            expected="two run directories or more, or their folder",
            got=f"{len(paths)}: {paths[0]}",
        )
    by_path: dict[Path, Path] = {}
    for path in paths:
        first = by_path.setdefault(path.resolve(), path)
        if first is not path:
            raise SegmenterError(
                "compare", expected="each run once", got=f"{first} and {path}, which are the same"
            )
    return list(paths)


def comparison(stories: Sequence[Story]) -> str:
    """Return a comparison as text: rankings, why they are separate, runs without scores, speed, settings."""
    names = shortest_ends(story.run.path for story in stories)
    with_scores = [(i, story.best.scores) for i, story in enumerate(stories) if story.best is not None]
    groups: list[list[Ranked]] = []
    for one in with_scores:
        alike = (g for g in groups if not score_differences(one[1], g[0][1]))
        group = next(alike, None)
        if group is None:
            groups.append([one])
        else:
            group.append(one)
    groups.sort(key=len, reverse=True)  # the largest first
    parts = [part for group in groups for part in _group(stories, names, group)]
    if lines := _protocol_differences(names, groups):
        parts.append("\n".join(["not in one ranking:", *(f"  {line}" for line in lines)]))
    without = [[names[i], _why_none(story)] for i, story in enumerate(stories) if story.best is None]
    parts += [_table("Without scores", ["Run", "Why"], without)] if without else []
    return "\n\n".join([*parts, _speed(stories, names), _settings(stories, names)])


def _why_none(story: Story) -> str:
    return "no validation was done" if not story.validations else "the file of its best scores is not there"


def _protocol_differences(names: Sequence[str], groups: Sequence[Sequence[Ranked]]) -> list[str]:
    lines = []
    for other in groups[1:]:
        differences = score_differences(groups[0][0][1], other[0][1])
        two = f"{names[groups[0][0][0]]} and {names[other[0][0]]}"
        lines.append(f"{two}: {'; '.join(map(_short, differences))}")
    return lines


def score_differences(one: Scores, other: Scores) -> list[str]:
    """Return the reasons why two scores must not be compared."""
    differences = one.protocol.differences(other.protocol)
    if differences or np.array_equal(one.truth_pixels, other.truth_pixels):
        return differences
    differing = int(np.flatnonzero(one.truth_pixels != other.truth_pixels)[0])
    name, pixels = one.protocol.classes[differing], [s.truth_pixels[differing] for s in (one, other)]
    return [f"labels that differ: {pixels[0]:,} and {pixels[1]:,} pixels of {plain(name)}"]


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:70]} … {text[-48:]}"


# ---------------------------------------------------------------------------------------- rankings


def _group(stories: Sequence[Story], names: Sequence[str], group: Sequence[Ranked]) -> list[str]:
    """Return the ranking of runs whose scores may be compared, the best first, and their classes."""
    name = _ranking_score([stories[i] for i, _ in group], group[0][1].protocol)
    ranked = sorted(group, key=lambda one: _descending(score_of(one[1], name)))
    columns = list(dict.fromkeys([name, *FIGURES]))
    header = ["Run", *map(title_of, columns), "best epoch", "of", "steps"]
    rows = []
    for i, scores in ranked:
        story = stories[i]
        best = story.best
        cells = [table_percent(score_of(scores, column)) for column in columns]
        epochs = str(story.run.recipe.training.epochs)
        rows.append([names[i], *cells, "–" if best is None else str(best.epoch), epochs, number(story.steps)])
    title = f"{plain(str(group[0][1].protocol))}; by {title_of(name)}, in percent"
    return [_table(title, header, rows), _class_table(names, ranked)]


def _ranking_score(stories: Sequence[Story], protocol: Protocol) -> str:
    """Return the score by which all runs choose their best model; mIoU if they differ."""
    chosen = {story.run.recipe.training.best_by for story in stories}
    name = next(iter(chosen)) if len(chosen) == 1 else "miou"
    of = name.partition(":")[2]
    return name if not of or of in protocol.classes else "miou"


def _class_table(names: Sequence[str], ranked: Sequence[Ranked]) -> str:
    rows = []
    for name in ranked[0][1].protocol.classes:
        values = [float(s.iou[s.protocol.classes.index(name)]) for _, s in ranked]
        defined = [value for value in values if not math.isnan(value)]
        top = max(defined, default=math.inf)
        several = len(defined) > 1
        rows.append([name, *(("*" if several and v == top else "") + table_percent(v) for v in values)])
    header = ["Class", *(names[i] for i, _ in ranked)]
    return _table("IoU of each class, in percent", header, rows)


def _descending(value: float) -> float:
    return math.inf if math.isnan(value) else -value


# ------------------------------------------------------------------------------- speed and settings


def _speed(stories: Sequence[Story], names: Sequence[str]) -> str:
    rows = []
    for story, name in zip(stories, names, strict=True):
        speeds = story.speeds
        rate = f"{sorted(s.rate for s in speeds)[len(speeds) // 2]:,.1f}" if speeds else "–"
        times = [s.seconds for s in speeds if s.seconds is not None]
        time = duration(sum(times)) if times else "–"
        devices = "–" if story.facts is None else str(story.facts.replicas)
        rows.append([name, rate, percent(story.waiting), time, devices, story.status])
    header = ["Run", "images/s", "waiting", "time of steps", "devices", "how far"]
    return _table("Speed; waiting: for data, share of the time", header, rows)


def differing_settings(stories: Sequence[Story]) -> list[list[str]]:
    """Return rows of the settings in which runs differ: name, and the value of each run."""
    settings_of = [flat_settings(story.run.recipe) for story in stories]
    keys = dict.fromkeys(key for settings in settings_of for key in settings)
    rows = []
    for key in keys:
        values = [setting_text(settings[key]) if key in settings else "–" for settings in settings_of]
        if len({repr(settings.get(key)) for settings in settings_of}) > 1 and key != "name":
            rows.append([key, *values])
    return rows


def _settings(stories: Sequence[Story], names: Sequence[str]) -> str:
    rows = differing_settings(stories)
    if not rows:
        return "their recipes have the same settings"
    return _table("Settings in which they differ", ["Setting", *names], rows, words=True)


def setting_text(value: Any) -> str:
    """Return a setting's value as text."""
    return "–" if value is None else ("true" if value else "false") if isinstance(value, bool) else str(value)


def duration(seconds: float) -> str:
    """Return a duration as text: `45 s`, `12 min` or `3 h 5 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


# ------------------------------------------------------------------------------------------- text


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> str:
    """Return a table under its title; long cells are cut, columns of `words` are left-fitted."""
    lines = fit_table(header, [list(map(_cut, row)) for row in rows], left=len(header) if words else 1)
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _cut(text: str) -> str:
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
