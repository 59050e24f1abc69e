"""Transforms of albumentations by name, built and checked; no other module imports the library.

albumentations 2.0.8 is the last release under the MIT licence and no longer maintained: all its uses are here
and in `Augmenter`, so that it can be replaced. It only warns of unknown parameters, and fills pixels from
outside with class 0: both are corrected here.
"""

from __future__ import annotations

import functools
import inspect
import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from segmenter.base.errors import ConfigError, shorten
from segmenter.config.augmentation import TransformConfig
from segmenter.config.recipe import AugmentationConfig
from segmenter.grid.labels import IGNORE

if TYPE_CHECKING:
    from albumentations import Compose

_UNFIT = {
    "Lambda": "it takes functions, which a recipe cannot hold",
    "Morphological": "it lets classes with high ids grow over those with low ones",
    "MaskDropout": "it takes whatever is not class 0 for objects",
    "Mosaic": "use the setting augmentation.mosaic",
    "Normalize": "the model normalises, with the statistics of the training scenes",
}
"""Transforms that no tile can take, where the library would not say so."""
_KEEP_ALL_PIXELS = frozenset(
    ("D4", "SquareSymmetry", "HorizontalFlip", "VerticalFlip", "Transpose", "RandomRotate90", "NoOp")
)
"""Spatial transforms that lose no pixel of a square tile."""
_TILE_KEYS = {"image", "mask"}


@dataclass(frozen=True)
class Stage:
    """Transforms that are drawn together from one seed.

    Attributes:
        compose: the library's `Compose`; None if there is nothing to do.
        spatial: True if it moves pixels, and the label with them.
        keeps_all: True if each class keeps its pixels.
        interpolates: True if new pixels are mixed from several old ones, which may have no data.
        asked_as: location in the recipe and name, for messages; empty for a shorthand.
    """

    compose: Compose | None
    spatial: bool
    keeps_all: bool
    asked_as: str = ""
    interpolates: bool = False


@functools.cache
def libraries() -> tuple[Any, Any]:
    """Import albumentations and OpenCV at first use, with the settings that augmentation needs."""
    os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # importing must not ask the network for news
    import albumentations
    import cv2

    cv2.setNumThreads(0)  # the pipeline has its own threads; OpenCV's would fight them for the same cores
    return albumentations, cv2


_NEAREST, _NEAREST_EXACT = 0, 6  # OpenCV's
_RESIZING = ("RandomResizedCrop", "RandomSizedCrop", "CropAndPad")
"""Transforms that go by cv2.resize, whose plain nearest neighbour is half a pixel off the image beside it.

Those that go by cv2.remap or a warp refuse the exact one, and need none.
"""


def stages_of(config: AugmentationConfig) -> list[Stage]:
    """Return the stages of a recipe's augmentation: flips and turns, zoom and rotation, colour, listed."""
    flips, affine, colour = shorthand(config)
    stages = [Stage(_compose(flips), spatial=True, keeps_all=True)]  # has a seed of its own, also when empty
    if affine:
        stages.append(Stage(_compose(affine), spatial=True, keeps_all=False, interpolates=True))
    for together in [[one] for one in colour] if config.probability.colours_apart else [colour]:
        if together:
            stages.append(Stage(_compose(together), spatial=False, keeps_all=True))
    for number, one in enumerate(config.transforms):
        stages.append(_list_transform(one, f"augmentation.transforms.{number}"))
    return stages


def shorthand(
    config: AugmentationConfig,
) -> tuple[list[TransformConfig], list[TransformConfig], list[TransformConfig]]:
    """Return the transforms of the section's shorthands: flips and turns; zoom and rotation; colour."""

    def transform(name: str, p: float = 1.0, **parameters: Any) -> TransformConfig:
        return TransformConfig(name=name, p=p, **parameters)

    p = config.probability
    flips = [transform("D4", p.d4)] if config.d4 else []
    affine, colour = [], []
    if config.scale or config.rotation:
        zoom, turn = (1 - config.scale, 1 + config.scale), (-config.rotation, config.rotation)
        affine.append(transform("Affine", p.affine, scale=zoom, rotate=turn))
    if config.brightness or config.contrast:
        limits = {"brightness_limit": config.brightness, "contrast_limit": config.contrast}
        colour.append(transform("RandomBrightnessContrast", p.brightness_contrast, **limits))
    if config.hue or config.saturation:
        # OpenCV's 8-bit hue runs over 0 … 179: two degrees a step.
        limits = {"hue_shift_limit": config.hue / 2, "sat_shift_limit": 255 * config.saturation}
        colour.append(transform("HueSaturationValue", p.hue_saturation, **limits, val_shift_limit=0))
    if config.blur:
        colour.append(transform("GaussianBlur", p=config.blur, blur_limit=(3, 5)))
    if config.noise:
        colour.append(transform("GaussNoise", p.noise, std_range=(0.0, config.noise)))
    return flips, affine, colour


def _compose(transforms: Sequence[TransformConfig]) -> Compose | None:
    library, _ = libraries()
    built = [_build(one, _class(one.name, ""), "") for one in transforms]
    return library.Compose(built) if built else None


def _list_transform(config: TransformConfig, where: str) -> Stage:
    library, _ = libraries()
    asked_as, kind = f"{where} ({config.name})", _class(config.name, where)
    transform = None if "BBox" in config.name else _build(config, kind, asked_as)
    needed = ["boxes around objects"] if transform is None else transform.targets_as_params
    if missing := sorted(set(needed) - _TILE_KEYS):
        raise ConfigError(asked_as, f"needs {', '.join(missing)}, which tiles do not have; take it out")
    spatial = isinstance(transform, library.DualTransform)
    keeps_all = not spatial or config.name in _KEEP_ALL_PIXELS
    interpolates = spatial and hasattr(transform, "interpolation")
    return Stage(library.Compose([transform]), spatial, keeps_all, asked_as, interpolates)


def _class(name: str, where: str) -> Callable[..., Any]:
    """Return the library's class of a transform."""
    if why := _UNFIT.get(name):
        raise ConfigError(where, f"{name} is not for tiles with labels: {why}", remedy="take it out")
    if name not in (classes := _image_transforms()):
        library, _ = libraries()
        near = get_close_matches(name, classes, 3, 0.5) or get_close_matches(name.title(), classes, 3, 0.5)
        hint = (
            f"did you mean {' or '.join(near)}?"
            if near
            else "https://albumentations.ai/docs/ has those it has"
        )
        raise ConfigError(
            where, f"albumentations {library.__version__} has no transform {shorten(name)}", remedy=hint
        )
    return classes[name]


@functools.cache
def _image_transforms() -> dict[str, Callable[..., Any]]:
    """Return the library's image transforms by name, without volume transforms and base classes."""
    A, _ = libraries()
    bases = (A.BasicTransform, A.DualTransform, A.ImageOnlyTransform, A.Transform3D)
    classes = {
        name: value for name, value in vars(A).items() if inspect.isclass(value) and value not in bases
    }
    kinds = (A.DualTransform, A.ImageOnlyTransform)
    return {n: c for n, c in classes.items() if issubclass(c, kinds) and not issubclass(c, A.Transform3D)}


def _build(config: TransformConfig, kind: Callable[..., Any], where: str) -> Any:
    """Build a transform; masks move by nearest neighbour, and pixels from outside are ignored."""
    parameters = [name for name in inspect.signature(kind).parameters if name not in ("p", "strict")]
    given = config.parameters
    for name in given:
        if name not in parameters:
            near = get_close_matches(name, parameters, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            what = f"unknown parameter {shorten(name)}; known here: {', '.join(parameters) or 'none'}"
            raise ConfigError(where, f"{what}{hint}")
    nearest = _NEAREST_EXACT if kind.__name__ in _RESIZING else _NEAREST
    own = {"fill_mask": IGNORE, "mask_interpolation": nearest}
    for name in own.keys() & given.keys():
        # Without a fill, dropped pixels keep their label, as in cut-out (arXiv:1708.04552).
        if given[name] != own[name] and not (name == "fill_mask" and given[name] is None):
            raise ConfigError(
                f"{where}: {name}: labels move by nearest neighbour and are ignored outside; "
                f"leave it out, got {shorten(repr(given[name]))}"
            )
    own = {name: value for name, value in own.items() if name in parameters and name not in given}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on other transforms; what is unknown was refused above
        try:
            return kind(**given, **own, p=config.p)
        except Exception as error:
            raise ConfigError(where, _parameter_message(error)) from None


def _parameter_message(error: Exception) -> str:
    """Return the library's message on wrong parameters, on one line."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return shorten(" ".join(str(error).split()) or type(error).__name__)
    objections = []
    for one in cause.errors():
        name = ".".join(str(part) for part in one["loc"][:1])
        got = "" if one["type"] == "missing" or not name else f", got {shorten(repr(one['input']), 80)}"
        objections.append(f"{name}: {one['msg']}{got}".removeprefix(": "))
    return shorten("; ".join(dict.fromkeys(objections)))
