"""Page of the demo: coverage, scores, pictures of scenes that training never saw, the next commands."""

from __future__ import annotations

from pathlib import Path

from segmenter.base.invocation import COMMAND
from segmenter.evaluation.drawing import hex_colour
from segmenter.evaluation.layers import colour_ids, errors, stretch_picture
from segmenter.grid.geometry import Window
from segmenter.grid.scenes import Dataset, Scene
from segmenter.pages.page import html_page
from segmenter.pages.parts import (
    ClassCell,
    Head,
    KeyFigure,
    PageSection,
    Paragraph,
    PictureRow,
    PictureRows,
    Table,
    TermList,
    percent,
)
from segmenter.pages.pictures import picture
from segmenter.raster import LabelRaster, open_raster, read_label, scene_stretch
from segmenter.runs.run import load_run

from .. import load_dataset
from .demo_facts import ABOUT, HEAD, RARE, DemoFacts, next_commands


def demo_page(folder: Path, facts: DemoFacts) -> str:
    """Return the page as HTML."""
    run = load_run(folder / "run")
    dataset = load_dataset(run.recipe)
    legend = [ClassCell(each.name, hex_colour(each.colour)) for each in run.classes.classes]
    rows = [_row(scene, folder, dataset) for scene in dataset.of("test")]
    table = Table("Coverage and scores", HEAD, facts.rows())
    sections = [
        PageSection(
            "coverage", "What did the batches hold, and what came of it?", [table, *map(Paragraph, ABOUT)]
        ),
        PageSection("maps", "Where is it right, and where wrong?", [PictureRows(rows, legend)]),
        PageSection("next", "Your own data: three commands", [TermList(next_commands())]),
    ]
    figure = KeyFigure(percent(facts.miou), f"mIoU on {len(rows)} scenes that training never saw")
    lead = f"Each of {facts.steps} steps held every class, also {RARE}, which one tile of forty shows."
    scenes = {split: str(len(dataset.of(split))) for split in ("train", "validation", "test")}
    return html_page(Head("The demo", lead, scenes, f"{COMMAND} demo", figure), sections)


def _row(scene: Scene, folder: Path, dataset: Dataset) -> PictureRow:
    """Return image, label, map and errors of a scene, with a sentence on each."""
    assert scene.label is not None, "the demo's scenes have one"
    with open_raster(scene.image, dataset.bands) as raster:
        window = Window.of(raster.info.size)
        seen = stretch_picture(*raster.read(window), scene_stretch(raster))
        metres = dataset.scale_of(scene, raster.info.metres_per_pixel)
    with LabelRaster(scene.label, dataset.classes) as label:
        truth = label.ids(window)
    mapped = read_label(folder / "maps" / f"{scene.image.stem}.tif")
    wrong = mapped != truth
    found = float(1 - wrong[truth == dataset.classes.names.index(RARE)].mean())
    note = (
        "Image: what the camera saw. Label: what is there. Map: what the model says. Errors: in red, where "
        f"the map differs from the label, {percent(float(wrong.mean()))} of the pixels, most of them along "
        f"borders or where two classes look alike; of the pixels of {RARE} {percent(found)} are "
        "found."
    )
    pictures = [
        picture("image", seen, "jpeg", metres),
        picture("label", colour_ids(truth, dataset.classes), "png"),
        picture("map", colour_ids(mapped, dataset.classes), "png"),
        picture("errors", errors(seen, truth, mapped), "jpeg"),
    ]
    return PictureRow(
        f"{scene.name}: {percent(float(1 - wrong.mean()))} of the pixels are right", note, pictures
    )
