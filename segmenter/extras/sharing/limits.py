"""Limits of a run's model that follow from what the run knows, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator

from segmenter.config.datasets import FolderConfig
from segmenter.evaluation.scores import title_of
from segmenter.extras.sharing.known_facts import Known

_NOT_MEASURED = (
    "Not measured: other sensors, seasons and places than the training's; whether a probability of 0.9 is "
    "right nine times in ten; speed."
)


def limits(known: Known) -> list[str]:
    """The limits, those of the classes first."""
    return [*_of_classes(known), *_of_scores(known), *_of_scale(known), *_of_pixels(known), _NOT_MEASURED]


def _of_classes(known: Known) -> Iterator[str]:
    origin, scores = known.origin, known.scores
    if origin is not None:
        never = [name for name, pixels in origin.pixels.items() if not pixels]
        little = [name for name, tiles in origin.tiles_with.items() if not tiles and name not in never]
        if never:
            yield f"No training pixel shows {', '.join(never)}: the model cannot map it."
        if little:
            yield f"No training tile holds much of {', '.join(little)}: no step could promise it."
    if scores is not None:
        counted = zip(scores.protocol.classes, scores.truth_pixels.tolist(), strict=True)
        unseen = [name for name, pixels in counted if not pixels]
        unseen += [name for name in known.run.classes.names if name not in scores.protocol.classes]
        if unseen:
            yield f"Never seen in validation, so that no score speaks of it: {', '.join(unseen)}."


def _of_scores(known: Known) -> Iterator[str]:
    run, origin = known.run, known.origin
    if known.scores is not None:
        yield (
            f"The weights were chosen by {title_of(run.recipe.training.best_by)} on the very scenes that the "
            "scores are of, which makes these optimistic."
        )
        scenes = known.scores.protocol.scenes
        if len(scenes) == 1:
            yield "All scores are of one scene."
    config = run.recipe.dataset
    if isinstance(config, FolderConfig) and config.split.group is None and config.split.validation_share:
        yield "Scenes were held out one by one: neighbours of a validation scene may have trained."
    if origin is not None and origin.scenes.get("test"):
        yield f"{origin.scenes['test']} test scenes were set aside; the run holds no scores of them."


def _of_scale(known: Known) -> Iterator[str]:
    metres, factor = known.run.metres_per_pixel, known.run.recipe.augmentation.scale
    if metres is None:
        yield "The scale of the training is not known: imagery of another is mapped as if it were the same."
        return
    shown = known.run.recipe.augmentation.scale_to
    if shown is not None:
        yield f"Trained on pixels of {shown[0]:g} to {shown[1]:g} m; beyond these it is a guess."
    elif factor:
        yield (
            f"Trained at {metres:.3g} m a pixel, give or take {100 * factor:g} %; for imagery of another "
            "scale, predict with --gsd auto."
        )
    else:
        yield f"Trained at {metres:.3g} m a pixel; for imagery of another scale, predict with --gsd auto."


def _of_pixels(known: Known) -> Iterator[str]:
    network = known.run.network
    if network.radius is None:
        yield "A pixel depends on its whole window: maps are blended, and depend on their windows a little."
    else:
        yield (
            f"What lies farther away than {network.radius} px has no part in a pixel's class; with that much "
            "around each window, maps have no seams."
        )
    yield "Near nodata and at a raster's edge a pixel sees less of its surroundings."
