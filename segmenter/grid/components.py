"""Connected components of a class map, strip by strip: pixels of one class connected by sides.

Strips have the map's width. The caller joins components across the border of two strips by `touching`; only
one strip is in memory here.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE

STRIP_PIXELS = 1 << 23
"""Most pixels of a strip, unless a row has more; some 30 bytes of memory each."""


@dataclass(frozen=True)
class Strip:
    """A strip of a map and its components, numbered from 1 in arbitrary order.

    Attributes:
        window: position of the strip.
        labels: (H, W) int32, the component of each pixel; 0: none.
        class_C: class of each component; index 0 is no component.
    """

    window: Window
    labels: NDArray[np.int32]
    class_C: NDArray[np.uint8]

    @property
    def count(self) -> int:
        """Number of components."""
        return len(self.class_C) - 1


def components(window: Window, ids_HW: NDArray[np.uint8], *, nodata: bool = False) -> Strip:
    """Return the components of a strip.

    Args:
        ids_HW: class ids; `IGNORE` is no data.
        nodata: True to make components of areas without data, with class `IGNORE`.
    """
    labels_HW = np.zeros(ids_HW.shape, np.int32)
    class_C = [np.zeros(1, np.uint8)]
    count = 0
    for value in np.flatnonzero(np.bincount(ids_HW.ravel(), minlength=256)):
        if value == IGNORE and not nodata:
            continue
        member_HW = (ids_HW == value).view(np.uint8)
        found, own_HW = cv2.connectedComponents(member_HW, connectivity=4, ltype=cv2.CV_32S)
        np.add(own_HW, count, out=labels_HW, where=member_HW.view(np.bool_))
        class_C.append(np.full(found - 1, value, np.uint8))
        count += found - 1
    return Strip(window, labels_HW, np.concatenate(class_C))


def touching(above: Strip, below: Strip) -> NDArray[np.int64]:
    """Return (n, 2) pairs of components of two strips that are one: same class, touching at the border."""
    top_W, bottom_W = above.labels[-1], below.labels[0]
    same_W = (top_W > 0) & (bottom_W > 0) & (above.class_C[top_W] == below.class_C[bottom_W])
    return np.unique(np.stack([top_W[same_W], bottom_W[same_W]], axis=1).astype(np.int64), axis=0)
