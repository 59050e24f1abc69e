"""Matrix of equivalence: its rows, their batches, and the difference of two results.

A row is a loss, a batch and a clipping. Compiling a step for four replicas takes far longer than running it,
so one compiled step has the losses of many rows, multiplied by 1 for the current row and 0 for others, and
takes batches of any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.recipe import LossConfig, UNetConfig
from segmenter.grid.labels import IGNORE

from .replicas import strategy_of as strategy_of

BATCH, SIDE, BANDS, CLASSES, STEPS = 8, 32, 3, 4, 5
MODEL = UNetConfig(width=2, max_width=8)
"""The default U-Net's topology, narrow; 2 × 2 at the deepest level: of one, BatchNorm would divide noise."""
WEIGHTS = (1.0, 3.0, 0.5, 2.0)
SHARES = (0.5, 0.01, 0.2, 0.29)
"""Shares of the classes in the training pixels, for logit adjustment."""
LIMIT = 1e-10
"""Exact is a difference up to that."""
DRAWS = (1, 2, 3)
"""Seeds that say which weights are rounded up, which down."""
KINDS = ("loss", "gradients", "weights", "statistics")

Result = Mapping[str, Sequence[NDArray[Any]]]
"""Kind → tensors: loss and gradients of the first step, weights and BatchNorm statistics after the last.

Beside the kinds that are compared, `held`: the tiles of the global batch that hold each class.
"""


@dataclass(frozen=True)
class Row:
    """One row of the matrix.

    Attributes:
        lopsided: True: all pixels of images 1 to 3 and almost all of image 0 are ignored, so that of four
            replicas with two images each, the first has almost no labels and the second none.
        images: images of the global batch; with fewer than `BATCH`, some replicas get fewer or none.
        clip: `norm`, `value` or nothing.
        blocks: True: labels are blocks of 8 × 8 pixels; else every pixel has a random one.
        paced: True: the encoder is frozen, and the head trains at half the decoder's rate.
    """

    loss: LossConfig = field(default_factory=LossConfig)
    lopsided: bool = False
    images: int = BATCH
    clip: str = ""
    blocks: bool = False
    depth: int = MODEL.depth
    paced: bool = False

    @property
    def weights(self) -> tuple[float, ...] | None:
        """Class weights of the loss."""
        return None if self.loss.class_weights == "none" else WEIGHTS

    @property
    def global_batch(self) -> int | None:
        """Global batch for the loss; None if a batch may be short."""
        return BATCH if self.images == BATCH else None


def only(term: str, **options: Any) -> LossConfig:
    """Return a loss configuration with a single term."""
    return LossConfig(**{"cross_entropy": 0.0, term: 1.0, **options})


_ALL = dict.fromkeys(("cross_entropy", "focal", "dice", "jaccard", "tversky", "lovasz"), 0.5)
SUM = LossConfig(**_ALL, class_weights=WEIGHTS, label_smoothing=0.1)
EMPHASES = LossConfig(
    focal=0.5,
    dice=0.5,
    ohem=0.25,
    ohem_threshold=0.2,
    logit_adjustment=0.7,
    boundary=5.0,
    boundary_width=2.0,
    class_weights=WEIGHTS,
    normalisation="per_pixel",
)
ROWS = {
    "cross-entropy, nothing ignored": Row(),
    "sum of all": Row(SUM, True),
    "these per pixel, with weights": Row(EMPHASES, True, blocks=True),
    "clipped by norm": Row(lopsided=True, clip="norm"),
}
"""Rows that a GPU server shows; the laws' tests have one for each factor."""


def batch(row: Row) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[np.uint8]]:
    """Return image, valid and label of a row's global batch."""
    rng = np.random.default_rng(7)
    image = rng.integers(0, 256, (BATCH, SIDE, SIDE, BANDS), np.uint8)
    valid = rng.random((BATCH, SIDE, SIDE)) > 0.1
    label = rng.integers(0, CLASSES, (BATCH, SIDE, SIDE), np.uint8)
    if row.blocks:
        label = label[:, ::8, ::8].repeat(8, axis=1).repeat(8, axis=2)
    if row.lopsided:
        label[0, 1:] = IGNORE
        label[1:4] = IGNORE
    return image[: row.images], valid[: row.images], label[: row.images]


def difference(a: Result, b: Result, kind: str) -> float:
    """Return the largest |a − b| over all tensors of a kind, relative to the largest |b|; NaN if any is."""
    largest = np.max([np.abs(x).max() for x in b[kind]])
    return float(np.max([np.abs(x - y).max() for x, y in zip(a[kind], b[kind], strict=True)]) / largest)
