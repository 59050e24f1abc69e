"""The worst and the best windows of the best validation, as pictures."""

from __future__ import annotations

from segmenter.base.errors import counted
from segmenter.pages.parts import Block, Named, Paragraph, Picture, PictureRow, Pictures, percent, plain
from segmenter.runs.report.run_record import Story
from segmenter.runs.windows_file import ShownWindow, ShownWindows

_SMALLEST = 200
"""Pixels of a picture's longer side, at least: a smaller one is enlarged, each pixel to a square."""
_WORDS = {"worst": "Many mistakes", "best": "Many classes right"}


def picture_blocks(story: Story) -> list[Block]:
    """Rows of image, label and map; a sentence where there are none."""
    windows = story.windows
    if windows is None or not windows.shown:
        why = "no validation was done" if story.best is None else "this run has no pictures of its windows"
        return [Paragraph(f"There is no window to show: {why}.")]
    legend = [Named(c.name, "#{:02x}{:02x}{:02x}".format(*c.colour)) for c in story.run.classes.classes]
    return [Paragraph(_text(windows)), Pictures([_row(one) for one in windows.shown], legend)]


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
    share = percent(one.right / one.labelled)
    title = f"{_WORDS[one.why]}: {share} of {one.labelled:,} labelled pixels are right"
    place = f"{plain(one.scene)}, row {one.row:,}, column {one.col:,}, {one.width} × {one.height} pixels"
    times = max(1, _SMALLEST // max(one.picture_height, one.picture_width))
    size = (times * one.picture_width, times * one.picture_height)
    made = (
        ("image", "image/jpeg", one.image),
        ("label", "image/png", one.label),
        ("map", "image/png", one.map),
    )
    return PictureRow(title, place, [Picture(name, kind, data, *size) for name, kind, data in made])
