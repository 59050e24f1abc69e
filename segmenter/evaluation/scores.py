"""Scores of a segmentation from its confusion matrix, with their protocol.

The law of this module: **scores of different protocols are never mixed.** Eroding the labels alone can change
mIoU by 5 points, leaving out one class by 8, a calibration's bias by 11.

Labelled pixels without image data are left out; completeness shows how many. With n[i, j] the other pixels of
true class i predicted as j, t_i = sum_j n[i, j] (including j outside the protocol's classes), p_j = sum_i
n[i, j], N = sum_i t_i and V labelled pixels without data:

    IoU_i       n[i, i] / (t_i + p_i - n[i, i])        Jaccard 1912, doi 10.1111/j.1469-8137.1912.tb05611.x
    F1_i        2 n[i, i] / (t_i + p_i)                Dice 1945, doi 10.2307/1932409
    precision_i n[i, i] / p_i
    recall_i    n[i, i] / t_i
    mIoU, mF1   mean over the classes that occur in truth or prediction
    OA          sum_i n[i, i] / N
    FWIoU       sum_i t_i IoU_i / N                    Long et al. 2015, arXiv:1411.4038, section 5
    kappa       (OA - e) / (1 - e), e = sum_i t_i p_i / N²   Cohen 1960, doi 10.1177/001316446002000104
    completeness  N / (N + V)

A class that is in neither truth nor prediction has no IoU and no F1: NaN, left out of the means. A class in
only one of them has IoU 0 and counts. Precision is NaN for a class that is never predicted, recall for one
that does not occur.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, ScoreError
from segmenter.base.files import write_whole
from segmenter.base.sealed import other_format
from segmenter.base.terminal import fit_table
from segmenter.evaluation.intervals import Blocks, Interval
from segmenter.evaluation.protocol import PROTOCOLS as PROTOCOLS
from segmenter.evaluation.protocol import UNKNOWN
from segmenter.evaluation.protocol import Protocol as Protocol
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE, ClassMap

FORMAT = 1
"""Format of a file of scores."""
MODEL = "model"
"""Key of the checksum of the run that made the maps, in scores of maps."""
MEANS = {"miou": "mIoU", "mf1": "mF1", "oa": "OA", "fwiou": "FWIoU", "kappa": "kappa"}
"""Keys of the scores over all classes, in the order of tables, with their titles there."""
FIGURES = {**MEANS, "completeness": "completeness"}
"""With the share of the labelled pixels that they were taken of."""
_CHUNK = 1 << 20
"""Pixels counted at once: np.bincount works on 8-byte integers, so this costs 8 MiB at any raster size."""


class ConfusionMatrix:
    """Pixels by true class (rows) and predicted class (columns).

    Attributes:
        counts: (K, K + 1), `matrix` and `without_data`.
        blocks: counts by block of a scene; None: not counted, or forgotten.
        group: group of the scene in its data set; None: unknown, or several scenes.
    """

    def __init__(
        self,
        classes: ClassMap,
        counts: NDArray[np.int64] | None = None,
        part: Window | None = None,
        group: str | None = None,
    ) -> None:
        """Start from the `counts` of another matrix (None: zeros), with blocks of a scene's `part`."""
        self.classes, self.group = classes, group
        self.blocks = None if part is None else Blocks(part, len(classes))
        self.counts = np.zeros((len(classes), len(classes) + 1), np.int64)
        self.counts += 0 if counts is None else counts

    @property
    def matrix(self) -> NDArray[np.int64]:
        """(K, K) pixels; rows are the truth."""
        return self.counts[:, :-1]

    @property
    def without_data(self) -> NDArray[np.int64]:
        """(K,) pixels of each true class without image data."""
        return self.counts[:, -1]

    @property
    def pixels(self) -> int:
        """Labelled pixels with data counted so far."""
        return int(self.matrix.sum())

    def add(
        self, truth: NDArray[np.uint8], predicted: NDArray[np.uint8], window: Window | None = None
    ) -> None:
        """Count two arrays of class ids of one shape.

        Args:
            truth: ids; `IGNORE` pixels are left out.
            predicted: ids; `IGNORE` exactly where the image has no data, as in maps.
            window: of the scene's raster that they are of; needed for its blocks.

        Raises:
            ValueError: ids are no class, or the arrays' shapes differ.
        """
        if truth.shape != predicted.shape or truth.dtype != np.uint8 or predicted.dtype != np.uint8:
            raise ValueError(
                f"expected two uint8 arrays of one shape, got {truth.shape} of {truth.dtype} "
                f"and {predicted.shape} of {predicted.dtype}"
            )
        if self.blocks is None or window is None:
            self.counts += self._count(truth, predicted)
            return
        for place, piece in self.blocks.pieces(window):
            counts = self._count(truth[piece], predicted[piece])
            self.counts += counts
            self.blocks.counts[place] += counts

    def _count(self, truth: NDArray[np.uint8], predicted: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Return the (K, K + 1) counts of two arrays."""
        rows, columns = truth.reshape(-1), predicted.reshape(-1)
        pairs = np.zeros(1 << 16, np.int64)
        for start in range(0, rows.size, _CHUNK):
            part = slice(start, start + _CHUNK)
            # All 256 values on both axes: an id that is no class shows up instead of being folded away.
            key = rows[part].astype(np.uint16) << 8 | columns[part]
            pairs += np.bincount(key, minlength=1 << 16)
        return self._check_ids(pairs.reshape(256, 256))

    def _check_ids(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return (K, K + 1) counts from (256, 256), refusing ids that are neither a class nor `IGNORE`."""
        valid_ids = [*range(len(self.classes)), IGNORE]
        if pairs[np.ix_(valid_ids, valid_ids)].sum() != pairs.sum():
            true, guess = (np.flatnonzero(pairs.sum(axis=axis)).tolist() for axis in (1, 0))
            raise ValueError(
                f"ids are 0 … {len(self.classes) - 1} or {IGNORE}, got {true} in the truth, {guess} predicted"
            )
        return pairs[np.ix_(valid_ids[:-1], valid_ids)]

    def merge(self, other: ConfusionMatrix) -> None:
        """Add the counts of `other`, whose classes must be the same."""
        if other.classes.names != self.classes.names:
            raise ScoreError(
                f"confusion matrices of different classes cannot be added: {self.classes.names} and "
                f"{other.classes.names}"
            )
        self.counts += other.counts

    def scores(self, protocol: Protocol) -> Scores:
        """Return the scores for `protocol.classes`.

        Pixels of other true classes are left out; predictions of other classes are misses.
        """
        unknown = [name for name in protocol.classes if name not in self.classes.names]
        if unknown:
            raise ScoreError(
                f"protocol {protocol}: the model or data have no class {', '.join(map(repr, unknown))}, "
                f"only {', '.join(self.classes.names)}"
            )
        counted = [self.classes.names.index(name) for name in protocol.classes]
        matrix, void = self.counts[np.ix_(counted, counted)], int(self.without_data[counted].sum())
        return Scores(protocol, matrix, self.matrix[counted].sum(axis=1) - matrix.sum(axis=1), void)


# ---------------------------------------------------------------------------------------- scores


@dataclass(frozen=True, eq=False)
class Scores:
    """Scores under one protocol; the module's docstring has the formulas.

    Attributes:
        matrix: (K, K) pixels of the protocol's classes, rows are the truth.
        missed: (K,) pixels of each class predicted as an uncounted class, plus pixels without data if the
            protocol counts these as missed.
        without_data: number of labelled pixels left out for lack of data.
        more: further facts by name (`evaluation.tallies`), written with the scores.
        interval: of mIoU; None if it was not computed.
        iou, f1, precision, recall: (K,) per class, NaN where undefined.
        miou, mf1, oa, fwiou, kappa: over all classes, NaN where undefined (nothing labelled).
        completeness: share of the labelled pixels with data; NaN if unknown.
    """

    protocol: Protocol
    matrix: NDArray[np.int64]
    missed: NDArray[np.int64]
    without_data: int = 0
    more: Mapping[str, Any] = field(default_factory=dict)
    interval: Interval | None = None
    iou: NDArray[np.float64] = field(init=False)
    f1: NDArray[np.float64] = field(init=False)
    precision: NDArray[np.float64] = field(init=False)
    recall: NDArray[np.float64] = field(init=False)
    miou: float = field(init=False)
    mf1: float = field(init=False)
    oa: float = field(init=False)
    fwiou: float = field(init=False)
    kappa: float = field(init=False)
    completeness: float = field(init=False)

    def __post_init__(self) -> None:
        hits = np.diag(self.matrix)
        truth, predicted, total = self.truth_pixels, self.predicted_pixels, self.pixels
        iou, f1 = ratio(hits, truth + predicted - hits), ratio(2 * hits, truth + predicted)
        oa = float(ratio(hits.sum(), total))
        # In float64: the product of two pixel counts can exceed 64 bits. One class only: 0/0, NaN.
        chance = float(ratio((truth.astype(np.float64) * predicted).sum(), float(total) ** 2))
        values = {
            "iou": iou,
            "f1": f1,
            "precision": ratio(hits, predicted),
            "recall": ratio(hits, truth),
            "miou": mean_defined(iou),
            "mf1": mean_defined(f1),
            "oa": oa,
            "fwiou": float(ratio((truth * np.nan_to_num(iou)).sum(), total)),
            "kappa": float(ratio(oa - chance, 1 - chance)),
            "completeness": float(ratio(total, total + self.without_data)) if self._knows_data else math.nan,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def _knows_data(self) -> bool:
        return self.protocol.without_data == "left out"

    @property
    def truth_pixels(self) -> NDArray[np.int64]:
        """(K,) pixels of each class in the truth."""
        return self.matrix.sum(axis=1) + self.missed

    @property
    def predicted_pixels(self) -> NDArray[np.int64]:
        """(K,) labelled pixels predicted as each class."""
        return self.matrix.sum(axis=0)

    @property
    def pixels(self) -> int:
        """Number of labelled pixels that are scored."""
        return int(self.truth_pixels.sum())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: fractions of 1, null where undefined; `from_dict` is the inverse."""
        names = self.protocol.classes
        per_class = {
            key: dict(zip(names, map(number_or_none, getattr(self, key).tolist()), strict=True))
            for key in ("iou", "f1", "precision", "recall")
        }
        return {
            **{key: number_or_none(getattr(self, key)) for key in FIGURES},
            **per_class,
            "pixels": self.pixels,
            "without_data": self.without_data,
            "protocol": self.protocol.to_dict(),
            "confusion": self.matrix.tolist(),
            "missed": self.missed.tolist(),
            **({} if self.interval is None else self.interval.to_dict()),
            **self.more,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], further: Iterable[str] = ()) -> Scores:
        """Build scores from data of `to_dict` or `write`, recomputed from the confusion matrix.

        Args:
            further: keys of facts to keep in `more` (`tallies.FURTHER`).

        Raises:
            ScoreError: the data has another format.
        """
        if (version := data.get("format", FORMAT)) != FORMAT:
            raise ScoreError("scores", other_format(FORMAT, version))
        matrix, missed = (np.array(data[key], np.int64) for key in ("confusion", "missed"))
        more = {key: data[key] for key in further if key in data}
        rules = data["protocol"]  # a validation is not calibrated, earlier scores of maps may be
        protocol = Protocol.from_dict({"calibration": UNKNOWN, **rules} if MODEL in data else rules)
        interval = Interval.from_dict(data, len(protocol.scenes))
        return cls(protocol, matrix, missed, int(data.get("without_data", 0)), more, interval)

    def write(
        self, path: Path, more: Mapping[str, Any] | None = None, *, facts: Mapping[str, Any] | None = None
    ) -> None:
        """Write `format`, `facts`, `to_dict` and `more` in this order as JSON, completely or not at all."""
        data = {"format": FORMAT, **(facts or {}), **self.to_dict(), **(more or {})}
        text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
        write_whole(path, (text + "\n").encode())

    def table(self) -> str:
        """Return a terminal table: a line per class in percent (– if undefined), and the means."""
        shares = ratio(self.truth_pixels, self.pixels)
        columns = (self.iou, self.f1, self.precision, self.recall, shares)
        cells = (map(percent, column) for column in columns)
        head = ("class", "IoU", "F1", "prec.", "recall", "share of truth")
        lines = fit_table(head, zip(self.protocol.classes, *cells, strict=True), gap="   ")
        means = [f"{title} {percent(getattr(self, key))}" for key, title in FIGURES.items()]
        absent = [n for n, value in zip(self.protocol.classes, self.iou, strict=True) if math.isnan(value)]
        lines += ["", "   ".join(means) + "   (in %)", f"protocol  {self.protocol}, {self.pixels:,} pixels"]
        if self.protocol.fitted_on in ("these scenes", "some of these scenes"):
            lines.append(
                f"          the calibration was fitted on {self.protocol.fitted_on}: the scores may flatter"
            )
        if absent:
            lines.append(f"          in neither truth nor prediction, not in the means: {', '.join(absent)}")
        if missed := int(self.missed.sum()):
            void = "" if self._knows_data else "without image data, or "
            lines.append(
                f"          {missed:,} pixels {void}predicted as a class that is not counted are misses"
            )
        if self.without_data:
            lines.append(
                f"          {self.without_data:,} more are labelled, but without image data: not counted"
            )
        if self.interval is not None:
            lines.append(f"          mIoU {self.interval}")
        return "\n".join(lines)


def ratio(part: Any, whole: Any) -> NDArray[np.float64]:
    """Return part / whole; NaN if whole is 0."""
    part, whole = np.asarray(part, np.float64), np.asarray(whole, np.float64)
    return np.divide(part, whole, out=np.full(np.broadcast(part, whole).shape, np.nan), where=whole != 0)


def mean_defined(values: NDArray[np.float64]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else math.nan


def number_or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def percent(value: float | None) -> str:
    """Return a percentage for tables: two decimals, – for NaN or None."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.2f}"


# -------------------------------------------------------------------------------------------- scores by name


OF_CLASS = {"iou": "IoU", "f1": "F1", "precision": "precision", "recall": "recall"}
"""Scores that each class has, with their titles."""


def check_name(name: str, classes: Sequence[str], where: str) -> None:
    """Refuse a name that is no score of these classes; `where` is the setting for the message.

    Raises:
        ConfigError: the name is unknown; the message lists valid scores or classes.
    """
    key, colon, of = name.partition(":")
    if not (name in MEANS or (colon and key in OF_CLASS)):
        choices = ", ".join([*MEANS, *(f"{key}:CLASS" for key in OF_CLASS)])
        raise ConfigError(where, expected=f"a score of a validation ({choices})", got=name)
    if colon and of not in classes:
        raise ConfigError(where, expected=f"a class of the dataset ({', '.join(classes)})", got=f"{of!r}")


def score_of(scores: Scores, name: str) -> float:
    """Return the score of a name checked by `check_name`, a fraction of 1; NaN if undefined."""
    key, colon, of = name.partition(":")
    value = getattr(scores, key)
    return float(value[scores.protocol.classes.index(of)] if colon else value)


def title_of(name: str) -> str:
    """Return a score's displayed name: `mIoU`, `IoU of building`."""
    key, colon, of = name.partition(":")
    return f"{OF_CLASS[key]} of {of}" if colon else FIGURES[key]
