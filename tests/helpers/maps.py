"""Parts of tests of maps: the exact map of an image, a folder's files, a call that is stopped."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from numpy.typing import NDArray

from tests.helpers.child_predict import without_styles
from tests.helpers.exact_network import RADIUS, STRIDE, exact_map, exact_network

Make = Callable[..., Path]
Call = Callable[..., int]
Verdict = Callable[..., str | None]


def pixels(rng: np.random.Generator, *shape: int) -> NDArray[np.uint8]:
    return rng.integers(0, 255, shape, np.uint8)


def expected(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return the map of an image of which every pixel is valid."""
    return exact_map(image, np.ones(image.shape[:2], np.bool_), RADIUS, STRIDE)


def ids(path: Path | str) -> NDArray[Any]:
    with rasterio.open(path) as file:
        return file.read(1)


def names(folder: Path | str, hidden: bool = False) -> list[str]:
    """Names of a folder's files without styles; those that begin with a point only if `hidden`."""
    return without_styles(path.name for path in Path(folder).iterdir() if hidden or path.name[0] != ".")


def at_batch(number: int, action: Callable[[], Any] | BaseException) -> Any:
    """A `predictor` for `call`: batch `number` calls `action`; it and those behind it raise an exception.

    `.batches` has an item for each batch.
    """
    batches: list[int] = []

    def load(wanted: Any = None, **_: Any) -> Any:
        model = exact_network(RADIUS, STRIDE, wanted=wanted)

        def computed(function: Any) -> Any:
            def compute(*arrays: Any) -> Any:
                batches.append(1)
                if isinstance(action, BaseException):
                    if len(batches) >= number:
                        raise action
                elif len(batches) == number:
                    action()
                return function(*arrays)

            return compute

        return replace(model, function=computed(model.function), weigh=computed(model.weigh))

    load.batches = batches  # type: ignore[attr-defined]
    return load


def counting() -> Any:
    """A `predictor` for `call` that counts: `.batches` has an item for each batch."""
    return at_batch(0, lambda: None)


def vrt_of(name: str, height: int, width: int) -> str:
    """Return a VRT of the three bands of a file beside it."""
    bands = "".join(
        f'<VRTRasterBand dataType="Byte" band="{b}"><SimpleSource><SourceFilename relativeToVRT="1">{name}'
        f"</SourceFilename><SourceBand>{b}</SourceBand></SimpleSource></VRTRasterBand>"
        for b in (1, 2, 3)
    )
    return f'<VRTDataset rasterXSize="{width}" rasterYSize="{height}">{bands}</VRTDataset>'
