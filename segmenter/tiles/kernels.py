"""OpenCV kernels that replace slower ones of albumentations and NumPy, with the same bits.

The library still decides: its seeded transforms draw whether they are applied and with which parameters.
Measured on a tile of 256² × 3 bytes with its mask, in ms: a quarter turn 0.03 for 0.35 (NumPy copies pixel by
pixel), hue and saturation 0.22 for 0.21 … 0.49 (a negative shift goes through floats), counting classes 0.04
for 0.09. Zoom, rotation, brightness and contrast gain nothing, so the library does them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segmenter.grid.labels import class_pixels
from segmenter.tiles.transforms import libraries

if TYPE_CHECKING:
    from albumentations import Compose

_EXACT = 1 << 24
"""Pixels that a histogram in float32 counts exactly."""
_TRANSPOSED_BYTES = frozenset((1, 2, 3, 4, 6, 8, 12, 16))
"""Sizes of a pixel that OpenCV transposes."""
_TRANSPOSED_TYPES = frozenset(("uint8", "uint16", "int16", "float32"))
_ELEMENTS = {
    **dict(zip(("e", "r90", "r180", "r270"), product(range(4), [False]), strict=True)),
    **dict(zip(("h", "hvt", "v", "t"), product(range(4), [True]), strict=True)),
}
"""albumentations' names of the square's symmetries → quarter turns, then mirrored."""
_ALONE = frozenset(
    ("D4", "Affine", "RandomBrightnessContrast", "HueSaturationValue", "GaussianBlur", "GaussNoise")
)
"""Transforms that give the same without a `Compose` around them, which seeds two more generators."""
_UNBOUNDED = frozenset(("RandomBrightnessContrast", "GaussianBlur", "GaussNoise"))
"""Transforms that are sums of pixels: they mean the same beyond 0 … 1."""
_BY_PIXEL = frozenset(("RandomBrightnessContrast", "HueSaturationValue", "GaussNoise"))
_ROUNDING = 1e-6
"""Tolerance of weights that sum to 1 in float32."""

Planes = tuple[NDArray[np.uint8], ...]
"""Arrays (H, W) that move by nearest neighbour, with one fill value: class ids and validity; or none."""


def transform_tile(
    compose: Compose, seed: int, image_HWC: NDArray[Any], planes: Planes = ()
) -> tuple[NDArray[Any], Planes]:
    """Apply a `Compose` seeded with `seed` to image and planes: the library's bits, by faster kernels."""
    if not all(type(one).__name__ in _ALONE for one in compose.transforms):
        compose.set_random_seed(seed)
        return _by_library(compose, image_HWC, planes)
    for one in compose.transforms:
        one.set_random_seed(seed)
        if not one.should_apply():
            one.params = {}  # which `unmix` looks at
            continue
        kind = type(one).__name__
        if kind == "D4":
            turns, mirrored = _ELEMENTS[str(one.get_params()["group_element"])]
            image_HWC, *moved = (turn(array, turns, mirrored) for array in (image_HWC, *planes))
            planes = tuple(moved)
        elif kind == "HueSaturationValue" and image_HWC.dtype == np.uint8 and image_HWC.shape[-1] == 3:
            drawn = one.get_params()
            image_HWC = shifted_hsv(image_HWC, drawn["hue_shift"], drawn["sat_shift"], drawn["val_shift"])
        elif kind in _UNBOUNDED and image_HWC.dtype == np.float32:
            image_HWC = _apply_unclipped(one, image_HWC)
        else:
            image_HWC, planes = _by_library(partial(one, force_apply=True), image_HWC, planes)
    return image_HWC, planes


def is_unbounded(compose: Compose) -> bool:
    """Return True if a `Compose` works without clipping float images to 0 … 1."""
    return all(type(one).__name__ in _UNBOUNDED for one in compose.transforms)


def by_pixel(compose: Compose) -> bool:
    """Return True if a pixel's new colour depends on no other pixel."""
    return all(
        type(one).__name__ in _BY_PIXEL and getattr(one, "brightness_by_max", True)
        for one in compose.transforms
    )


def _apply_unclipped(transform: Any, image_HWC: NDArray[np.float32]) -> NDArray[np.float32]:
    """Change a float image as the library does, but without its clipping to 0 … 1."""
    drawn = transform.get_params_dependent_on_data({}, {"image": image_HWC})
    if "noise_map" in drawn:
        changed = image_HWC + drawn["noise_map"]
    elif "kernel" in drawn:
        _, cv2 = libraries()
        parts = (cv2.sepFilter2D(band, -1, *[drawn["kernel"]] * 2) for band in np.moveaxis(image_HWC, 2, 0))
        changed = np.stack(list(parts), axis=-1)
    else:
        changed = image_HWC * np.float32(drawn["alpha"]) + np.float32(drawn["beta"])
    return np.asarray(changed, np.float32)


def unmix(
    compose: Compose,
    image_HWC: NDArray[Any],
    valid_HW: NDArray[np.bool_],
    moved_HWC: NDArray[Any],
    moved_valid_HW: NDArray[np.bool_],
) -> NDArray[Any]:
    """Remove the influence of pixels without data, or outside, from a just interpolated image.

    Pixels with any such source get the value of the nearest source, as validity does.
    """
    (transform,) = compose.transforms
    if not transform.params:  # it was not applied
        return moved_HWC
    exact = np.float32 if valid_HW.size < _EXACT else np.float64
    source_HW = np.arange(valid_HW.size, dtype=exact).reshape(valid_HW.shape)
    weight_HW1 = valid_HW.astype(np.float32)[..., np.newaxis]
    weight = transform.apply_with_params(transform.params, image=weight_HW1, mask=source_HW)
    mixed_HW = (np.abs(weight["image"].reshape(moved_valid_HW.shape) - 1) > _ROUNDING) & moved_valid_HW
    if not mixed_HW.any():
        return moved_HWC
    moved_HWC = moved_HWC.copy()
    nearest_N = weight["mask"][mixed_HW].astype(np.intp)
    moved_HWC[mixed_HW] = image_HWC.reshape(-1, image_HWC.shape[2])[nearest_N]
    return moved_HWC


def extend_valid(image_HWC: NDArray[Any], valid_HW: NDArray[np.bool_]) -> NDArray[Any]:
    """Fill pixels without data with the value of a pixel with data that is about the nearest."""
    if valid_HW.all() or not valid_HW.any():
        return image_HWC
    _, cv2 = libraries()
    lacking = (~valid_HW).view(np.uint8)
    by_pixel = cv2.DIST_LABEL_PIXEL
    _, number_HW = cv2.distanceTransformWithLabels(lacking, cv2.DIST_L2, 5, labelType=by_pixel)
    source_N = np.zeros(int(number_HW.max()) + 1, np.intp)
    source_N[number_HW[valid_HW]] = np.flatnonzero(valid_HW)
    image_HWC = image_HWC.copy()
    image_HWC[~valid_HW] = image_HWC.reshape(-1, image_HWC.shape[2])[source_N[number_HW[~valid_HW]]]
    return image_HWC


def _by_library(
    transform: Callable[..., dict[str, Any]], image_HWC: NDArray[Any], planes: Planes
) -> tuple[NDArray[Any], Planes]:
    """Apply a transform of the library, with the planes as one mask: it changes lists of masks one by one."""
    if not planes:
        return transform(image=image_HWC)["image"], ()
    _, cv2 = libraries()
    moved = transform(image=image_HWC, mask=cv2.merge(planes))
    return moved["image"], tuple(cv2.extractChannel(moved["mask"], number) for number in range(len(planes)))


def turn(array_HWC: NDArray[Any], turns: int, mirrored: bool) -> NDArray[Any]:
    """Turn an array (H, W) or (H, W, C) by quarter turns anticlockwise, then mirror it if `mirrored`.

    As `np.rot90(array, turns)`, then `[:, ::-1]`. Without changes the same array, else a contiguous one.
    """
    if turns % 4 == 0 and not mirrored:
        return array_HWC
    bands = array_HWC.shape[2] if array_HWC.ndim == 3 else 1
    wide = bands * array_HWC.dtype.itemsize
    if array_HWC.dtype == np.bool_:
        return turn(array_HWC.view(np.uint8), turns, mirrored).view(np.bool_)
    if array_HWC.dtype.name not in _TRANSPOSED_TYPES or wide not in _TRANSPOSED_BYTES:
        moved = np.rot90(array_HWC, turns)
        return np.ascontiguousarray(moved[:, ::-1] if mirrored else moved)
    height, width, *rest = array_HWC.shape  # OpenCV drops the axis of a single band
    sides = (width, height) if turns % 2 else (height, width)
    return _by_opencv(array_HWC, turns % 4, mirrored).reshape(*sides, *rest)


def _by_opencv(array: NDArray[Any], turns: int, mirrored: bool) -> NDArray[Any]:
    _, cv2 = libraries()
    if not mirrored:
        codes = (cv2.ROTATE_90_COUNTERCLOCKWISE, cv2.ROTATE_180, cv2.ROTATE_90_CLOCKWISE)
        return cv2.rotate(array, codes[turns - 1])
    if turns % 2 == 0:
        return cv2.flip(array, 0 if turns else 1)
    transposed = cv2.transpose(array)
    return transposed if turns == 3 else cv2.flip(transposed, -1)


def shifted_hsv(
    image_HWC: NDArray[np.uint8], hue: float, saturation: float, value: float
) -> NDArray[np.uint8]:
    """Shift hue (2° a step), saturation and value (1/255 a step) of 8-bit RGB as albumentations does.

    Hue wraps around; saturation and value are clipped to 0 … 255, and grey stays grey. Each is a table of 256
    values, computed with the library's own arithmetic.
    """
    if hue == 0 and saturation == 0 and value == 0:
        return image_HWC
    import albucore

    _, cv2 = libraries()
    planes = list(cv2.split(cv2.cvtColor(image_HWC, cv2.COLOR_RGB2HSV)))
    every = np.arange(256, dtype=np.uint8)
    if hue != 0:
        table = np.mod(np.arange(256, dtype=np.int16) + hue, 180).astype(np.uint8)
        planes[0] = cv2.LUT(planes[0], table)
    for plane, shift in ((1, saturation), (2, value)):
        if shift != 0:
            table = albucore.add_constant(every[None].copy(), shift, inplace=False)[0]
            if plane == 1:
                table[0] = 0
            planes[plane] = cv2.LUT(planes[plane], table)
    return cv2.cvtColor(cv2.merge(planes), cv2.COLOR_HSV2RGB)


def count_classes(label_HW: NDArray[np.uint8], classes: int) -> NDArray[np.int64]:
    """Return (classes,) pixels of each class, as `class_pixels`."""
    if label_HW.size >= _EXACT:
        return class_pixels(label_HW, classes)
    _, cv2 = libraries()
    counts = cv2.calcHist([label_HW], [0], None, [256], [0, 256])
    return counts.reshape(-1)[:classes].astype(np.int64)
