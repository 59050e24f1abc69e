"""Sections of a training's report, and its summary sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segmenter.base.errors import counted
from segmenter.base.files import check_writable, write_whole
from segmenter.base.invocation import invocation
from segmenter.evaluation.calibration import COVERAGES, Fitted, Measures
from segmenter.evaluation.drawing import hex_colour
from segmenter.evaluation.intervals import Interval
from segmenter.evaluation.scores import score_of, title_of
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    FILLER,
    GREY,
    HOVER,
    PLAN,
    Block,
    Chart,
    ClassCell,
    Data,
    Head,
    KeyFigure,
    PageSection,
    Paragraph,
    Picture,
    PictureRow,
    PictureRows,
    Table,
    layout,
    lines,
    list_names,
    number,
    percent,
    percent_axis,
    plain,
    side_by_side,
)
from segmenter.runs.records import CalibrationFile, Progress, ProgressMap, ShownWindow, ShownWindows
from segmenter.runs.report.charts import (
    class_scores,
    confusion_chart,
    loss_chart,
    means_text,
    rate_chart,
    scores_chart,
)
from segmenter.runs.report.coverage import run_held, run_history, run_text
from segmenter.runs.report.run_record import Story, finite, map_blocks, read_story
from segmenter.runs.scenes import TITLES, RunScenes, scene_rows

_BEFORE, _AFTER = "before", "calibrated"
_LOOKS = {_BEFORE: (FILLER, "circle-open"), _AFTER: (PLAN, "square")}


def calibration_blocks(found: CalibrationFile) -> list[Block]:
    """Return the summary and charts of a run's calibration."""
    fitted = found.fitted
    kind = "a temperature and a bias for each class" if fitted.calibration.shifts else "a temperature"
    text = (
        f"Maps are made with {kind} ({fitted.calibration.temperature:.3g}) fitted on {found.pixels:,} "
        f"pixels of {counted(found.scenes, 'validation scene')}. Measured on scenes left out of the fit, the "
        f"expected calibration error goes from {percent(fitted.before.ece)} to {percent(fitted.after.ece)}. "
        f"With the bias, mIoU of these pixels is {percent(fitted.with_bias.miou)}, without it "
        f"{percent(fitted.temperature.miou)}."
    )
    if found.copied_from:
        text += plain(f" It was fitted for {found.copied_from} and copied: these weights saw those scenes.")
    return [Paragraph(text), *side_by_side(_reliability(fitted), _risk_coverage(fitted))]


def _reliability(fitted: Fitted) -> Chart:
    diagonal = {"type": "scatter", "x": [0, 100], "y": [0, 100], "mode": "lines", "hoverinfo": "skip"}
    data: list[Data] = [diagonal | {"line": {"color": GREY, "dash": "dot"}, "showlegend": False}]
    rows = []
    for name, each in _both(fitted):
        bins = [one for one in each.bins if one[0]]
        hovers = [
            lines(name, f"confidence {percent(c)}: {percent(a)} right", f"{n:,} pixels") for n, c, a in bins
        ]
        data.append(_curve(name, [c for _, c, _ in bins], [a for _, _, a in bins], hovers))
        rows += [[name, number(n), percent(c), percent(a)] for n, c, a in bins]
    look = layout(320, percent_axis("confidence"), percent_axis("right"), showlegend=True)
    title = f"Expected calibration error {percent(fitted.before.ece)} → {percent(fitted.after.ece)}"
    note = "On the dotted line a confidence is the share of pixels that are right; below it, it is too high."
    table = Table("Reliability by bin of confidence", ["Kind", "Pixels", "Confidence", "Right"], rows)
    return Chart("reliability", title, note, {"": {"data": data, "layout": look}}, table)


def _risk_coverage(fitted: Fitted) -> Chart:
    data, rows = [], []
    for name, each in _both(fitted):
        pairs = list(zip(COVERAGES, each.risks, strict=True))
        hovers = [lines(name, f"the surest {percent(c)}: {percent(r)} wrong") for c, r in pairs]
        data.append(_curve(name, COVERAGES, each.risks, hovers))
        rows += [[name, percent(c), percent(r)] for c, r in pairs]
    top = max(1.0, 110 * max(max(each.risks) for _, each in _both(fitted)))
    look = layout(320, percent_axis("surest pixels kept"), percent_axis("wrong", top), showlegend=True)
    after = fitted.after
    title = (
        f"Of all pixels {percent(after.risks[-1])} are wrong, of the surest half {percent(after.risks[9])}"
    )
    note = "Pixels are kept in the order of their confidence; the lower the curve, the better it warns."
    table = Table("Risk by coverage", ["Kind", "Kept", "Wrong"], rows)
    return Chart("risk-coverage", title, note, {"": {"data": data, "layout": look}}, table)


def _both(fitted: Fitted) -> list[tuple[str, Measures]]:
    return [(_BEFORE, fitted.before), (_AFTER, fitted.after)]


def _curve(name: str, x: Sequence[float], y: Sequence[float], hovers: Sequence[str]) -> Data:
    colour, symbol = _LOOKS[name]
    return {
        "type": "scatter",
        "x": [100 * value for value in x],
        "y": [100 * value for value in y],
        "name": name,
        "mode": "lines+markers",
        "line": {"color": colour, "width": 2},
        "marker": {"symbol": symbol, "size": 8},
        "customdata": list(hovers),
        "hovertemplate": HOVER,
    }


REPORT = "report.html"
"""File of a run directory."""
_MOST_CLASSES = 40
"""In the charts of coverage: those that the fewest steps held."""
_MOST_EPOCHS = 12
"""Maps of it that are shown a row each."""
_MOST_STAGES = 6
"""Maps of the followed window that are shown."""
_SMALLEST = 200
"""Pixels of a picture's longer side, at least: a smaller one is enlarged, each pixel to a square."""


def write_report(run: Path, output: Path | None = None, maps: Path | None = None) -> Path:
    """Write the report of a run directory, completely or not at all; return its path.

    Args:
        output: path instead of `report.html` in the run.
        maps: folder of maps of the run, with the scores that predict.py wrote.

    Raises:
        CheckpointError: the path is no run directory, or its records are damaged.
        OutputError: the file cannot be written.
    """
    path = run / REPORT if output is None else output
    if output is not None:
        check_writable(output)
    write_whole(path, html_report(read_story(run, maps)).encode())
    return path


def html_report(story: Story) -> str:
    """Return a run's report as an HTML page."""
    figure, lead = headline(story)
    return html_page(report_head(story, lead, figure), report_sections(story))


def report_head(story: Story, lead: str, figure: KeyFigure | None = None) -> Head:
    """Return the head of the page."""
    title = f"Training of {plain(story.run.recipe.name)}"
    return Head(title, lead, _facts(story), f"{invocation('runs')} report", figure)


def report_sections(story: Story, *, by_epoch: bool = False) -> list[PageSection]:
    """Return all sections of the page.

    Args:
        by_epoch: show the followed window with each of its last maps in a row, the newest first.
    """
    sections = [
        _curves(story, by_epoch=by_epoch),
        _classes(story),
        PageSection("windows", "Where is it right, and where wrong?", picture_blocks(story)),
        _coverage(story),
    ]
    if story.calibration is not None:
        title = "How far can its confidence be trusted?"
        sections.insert(2, PageSection("calibration", title, calibration_blocks(story.calibration)))
    if known := map_blocks(story.maps, story.accuracy):
        sections.append(PageSection("maps", "How accurate are its maps?", known))
    if story.scenes is not None and story.scenes.told:
        sections.append(PageSection("scenes", "Which scenes did it learn from?", scene_blocks(story.scenes)))
    if story.missing:
        notes: list[Block] = [Paragraph(plain(text), "notice") for text in story.missing]
        sections.append(PageSection("missing", "What is missing here", notes))
    return sections


_MOST_SCENES = 200


def scene_blocks(known: RunScenes) -> list[Block]:
    """Return the number of scenes of each role, and a table of the scenes."""
    counts = ", ".join(f"{number(count)} {role}" for role, count in known.counts.items() if count)
    text = f"{counts}, as they were when the training started; scenes that are added later are in none."
    rows = scene_rows(known)
    if len(rows) > _MOST_SCENES:
        text += f" The first {_MOST_SCENES} are shown; {invocation('runs')} scenes lists all."
    cells = [[plain(cell) for cell in row] for row in rows[:_MOST_SCENES]]
    return [Paragraph(text), Table("Scenes of this training", TITLES, cells, words=True)]


def headline(story: Story) -> tuple[KeyFigure | None, str]:
    """Return the best score, and a sentence on where it is from and how far the training went."""
    came = story.status[0].upper() + story.status[1:]
    if story.best is None:
        why = (
            "no validation was done"
            if not story.validations
            else "the files of the best scores are not there"
        )
        if story.chosen_by is not None:
            return None, plain(f"{came}. There are no scores of its own: {story.chosen_by}.")
        return None, f"{came}. There are no scores: {why}."
    name, best = story.run.recipe.training.best_by, story.best
    try:
        value = finite(score_of(best.scores, name))
    except (ValueError, AttributeError):  # scores of other classes than the recipe speaks of
        name, value = "miou", finite(best.scores.miou)
    scenes = counted(len(best.scores.protocol.scenes), "validation scene")
    text = "not defined" if value is None else percent(value)
    interval = best.scores.interval
    spread = "" if name != "miou" or interval is None else _spread(interval)
    return KeyFigure(text, title_of(name), spread), f"After epoch {best.epoch}, on {scenes}. {came}."


def _spread(interval: Interval) -> str:
    """Return an interval as text such as `51 to 64 % (95 %, bootstrap over 16 blocks of 256 px)`."""
    if interval.bounds is None:
        return str(interval)
    low, high = (percent(bound).removesuffix(" %") for bound in interval.bounds)
    return f"{low} to {high} % ({str(interval).partition('(')[2]}"


def _facts(story: Story) -> dict[str, str]:
    run = story.run
    facts = {
        "Dataset": plain(run.dataset),
        "Classes": str(len(run.classes)),
        "Model": plain(str(getattr(run.recipe.model, "encoder", None) or run.recipe.model.kind)),
        "Steps done": f"{story.steps:,}",
        "Tiles a step": f"{run.recipe.training.global_batch:,}",
        "Devices": "–" if story.facts is None else f"{story.facts.replicas:,}",
    }
    if story.coverage is not None:
        facts["Steps short of a promised class"] = f"{story.coverage.short_steps:,}"
    if story.waiting is not None:
        facts["Waiting for data"] = percent(story.waiting)
    return facts


# ------------------------------------------------------------------------------------------- sections


def _curves(story: Story, *, by_epoch: bool) -> PageSection:
    title = "How did it learn?"
    if not story.lines and not story.validations:
        return PageSection("curves", title, [Paragraph("The log is empty: no step was logged.")])
    scores = scores_chart(story)
    blocks = side_by_side(loss_chart(story) if story.lines else None, scores)
    if scores is None:
        blocks.append(Paragraph("No validation was done, so there are no scores."))
    extended = [
        Paragraph(f"Made longer after step {e.step:,}: training.epochs {e.before} → {e.epochs}.", "notice")
        for e in story.run.extensions
    ]
    return PageSection(
        "curves",
        title,
        [
            *extended,
            *blocks,
            *side_by_side(rate_chart(story)),
            *(epoch_blocks(story) if by_epoch else progress_blocks(story)),
        ],
    )


def _classes(story: Story) -> PageSection:
    title = "Which classes are right, and what are they taken for?"
    if story.best is None:
        return PageSection(
            "classes", title, [Paragraph("There are no scores of the classes: no best validation.")]
        )
    scores = story.best.scores
    return PageSection(
        "classes",
        title,
        [
            *means_text(scores),
            *side_by_side(class_scores(story, scores)),
            *side_by_side(confusion_chart(scores)),
        ],
    )


def _coverage(story: Story) -> PageSection:
    title, run = "Which classes did the steps hold?", story.coverage
    if run is None:
        return PageSection(
            "coverage", title, [Paragraph("The log does not say which classes the steps held.")]
        )
    names = story.run.classes.names
    ids = sorted(range(len(names)), key=lambda c: run.held_share[c])[:_MOST_CLASSES]
    blocks = run_text(run)
    if run.best_effort:
        rare = list_names(names[c] for c in run.best_effort)
        blocks.append(Paragraph(f"At best effort, without a promise: {rare}."))
    if len(ids) < len(names):
        text = f"Of {len(names)} classes, the charts show the {len(ids)} that the fewest steps held."
        blocks.append(Paragraph(text))
    return PageSection(
        "coverage", title, [*blocks, *side_by_side(run_held(names, ids, run), run_history(names, ids, run))]
    )


def progress_blocks(story: Story) -> list[Block]:
    """Return the followed window with its maps in the course of the training; empty below two maps."""
    seen = story.progress
    if seen is None or len(seen.maps) < 2:
        return []
    count = min(_MOST_STAGES, len(seen.maps))
    stages = [seen.maps[i * (len(seen.maps) - 1) // (count - 1)] for i in range(count)]
    note = f"{_window(seen)}: the validation window with the most classes, and its map after each epoch."
    pictures = [
        _frame_window(seen, "image", seen.image, "jpeg"),
        _frame_window(seen, "label", seen.label),
        *(_frame_window(seen, _stage(each), each.map) for each in stages),
    ]
    return [PictureRows([PictureRow("One window while it trained", note, pictures)], _legend(story))]


def epoch_blocks(story: Story) -> list[Block]:
    """Return the followed window with each of its last maps in a row, the newest first; or none."""
    seen = story.progress
    if seen is None:
        return []
    pictures = [_frame_window(seen, "image", seen.image, "jpeg"), _frame_window(seen, "label", seen.label)]
    rows = []
    for each in reversed(seen.maps[-_MOST_EPOCHS:]):
        title = _stage(each)
        rows.append(
            PictureRow(title[0].upper() + title[1:], "", [*pictures, _frame_window(seen, "map", each.map)])
        )
    note = f"{_window(seen)}: the validation window with the most classes, after each epoch."
    return [Paragraph(note), PictureRows(rows, _legend(story))]


def _stage(one: ProgressMap) -> str:
    return f"epoch {one.epoch}" + ("" if one.miou is None else f", mIoU {percent(one.miou)}")


def picture_blocks(story: Story) -> list[Block]:
    """Return rows of image, label and map; a sentence if there are none."""
    windows = story.windows
    if windows is None or not windows.shown:
        why = "no validation was done" if story.best is None else "this run has no pictures of its windows"
        return [Paragraph(f"There is no window to show: {why}.")]
    return [Paragraph(_text(windows)), PictureRows([_row(one) for one in windows.shown], _legend(story))]


def _legend(story: Story) -> list[ClassCell]:
    return [ClassCell(c.name, hex_colour(c.colour)) for c in story.run.classes.classes]


def _text(windows: ShownWindows) -> str:
    text = (
        f"Of the {counted(windows.windows, 'labelled window')} in {counted(windows.scenes, 'scene')} of the "
        f"best validation (epoch {windows.epoch}): those with the most wrong pixels, worst first, then "
        "those in which the most classes are right."
    )
    if windows.scenes < windows.of_scenes:
        text += f" These are scenes of the first machine; {windows.of_scenes} were validated by all."
    return text


def _row(one: ShownWindow) -> PictureRow:
    made = [
        _frame_window(one, "image", one.image, "jpeg"),
        _frame_window(one, "label", one.label),
        _frame_window(one, "map", one.map),
        *(
            _frame_window(one, name, data)
            for name in ("errors", "confidence")
            if (data := getattr(one, name))
        ),
    ]
    return PictureRow(_window_title(one), _window(one), made)


def _window_title(one: ShownWindow) -> str:
    """Return what a window shows: the share that is wrong, and for what it is mostly taken."""
    wrong = one.labelled - one.right
    text = f"{percent(wrong / one.labelled)} wrong"
    if one.why == "best" and one.classes:
        text = f"{counted(one.classes, 'class', 'classes')}, {text}"
    if one.confused is None or not wrong:
        return text
    truth, taken = map(plain, one.confused)
    return f"{text}, most of it {truth} mapped as {taken}"


def _window(one: ShownWindow | Progress) -> str:
    return f"{plain(one.scene)}, row {one.row:,}, column {one.col:,}, {one.width} × {one.height} pixels"


def _frame_window(one: ShownWindow | Progress, name: str, data: str, kind: str = "png") -> Picture:
    """Return a picture of a window, enlarged if it is small; the image has a scale bar if one is known."""
    times = max(1, _SMALLEST // max(one.picture_height, one.picture_width))
    across = one.metres * one.width if one.metres and name == "image" else None
    size = times * one.picture_width, times * one.picture_height
    return Picture(name, f"image/{kind}", data, *size, across)
