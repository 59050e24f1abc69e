"""Protocols: the rules of scoring, and those of published numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from segmenter.base.errors import ScoreError

LabelKind = Literal["full", "eroded"]
WithoutData = Literal["left out", "missed"]
FittedOn = Literal["", "these scenes", "some of these scenes", "other scenes", "unknown scenes"]
UNKNOWN = "unknown"
"""Calibration of scores that do not say it: they are comparable with none."""


@dataclass(frozen=True)
class Protocol:
    """Rules under which scores were computed.

    Attributes:
        classes: names of the classes counted, in the order of their ids.
        labels: class borders are part of the truth (full) or ignored (eroded).
        split: name of the scored split.
        tta: test-time augmentation of the prediction.
        scenes: names of the scenes scored.
        name: name of a published protocol with these rules; empty: none.
        without_data: labelled pixels without image data are "left out" or "missed" (in scores older than this
            field).
        calibration: of the model: "none", "temperature", "temperature and bias" (which moves borders of
            classes), of several runs each one's with commas; "unknown" for scores of maps older than this
            field.
        fitted_on: scenes that the calibration was fitted on, compared with those scored; empty: none was.
    """

    classes: tuple[str, ...]
    labels: LabelKind
    split: str
    tta: str = "none"
    scenes: tuple[str, ...] = ()
    name: str = ""
    without_data: WithoutData = "left out"
    calibration: str = "none"
    fitted_on: FittedOn = ""

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) < len(self.classes):
            raise ScoreError(f"a protocol counts at least one class, each once; got {list(self.classes)}")

    @classmethod
    def published(
        cls, name: str, *, labels: LabelKind, split: str, tta: str = "none", scenes: Sequence[str] = ()
    ) -> Protocol:
        """Return one of `PROTOCOLS` for the given kind of labels."""
        if name not in PROTOCOLS:
            raise ScoreError(f"unknown protocol {name!r}; known: {', '.join(PROTOCOLS)}")
        wanted = PROTOCOLS[name]
        if labels != wanted.labels:
            raise ScoreError(
                f"protocol {name}",
                expected=f"{wanted.labels} labels",
                got=f"{labels} ones",
                remedy=f"score with {wanted.labels} labels, or without a protocol's name",
            )
        return cls(wanted.classes, labels, split, tta, tuple(scenes), name)

    def differences(self, other: Protocol) -> list[str]:
        """Return the differences to another protocol, one phrase each; empty if scores are comparable."""
        mine, theirs = asdict(self), asdict(other)
        return [
            f"{key}: {_list_text(mine[key])} and {_list_text(theirs[key])}"
            for key in mine
            if key != "name" and (_comparable(mine[key]) != _comparable(theirs[key]) or mine[key] == UNKNOWN)
        ]

    def __str__(self) -> str:
        scenes = f"{len(self.scenes)} scene{'s' * (len(self.scenes) != 1)}"
        name = f"{self.name}: " if self.name else ""
        return (
            f"{name}{len(self.classes)} classes, {self.labels} labels, {self.split} split ({scenes}), "
            f"TTA {self.tta}, {self._calibrated}"
            f"{', pixels without data missed' * (self.without_data == 'missed')}"
        )

    @property
    def _calibrated(self) -> str:
        if self.calibration == "none":
            return "not calibrated"
        if self.calibration == UNKNOWN:
            return "calibrated or not: unknown"
        fitted = f", fitted on {self.fitted_on}" if self.fitted_on else ""
        return f"calibrated (by {self.calibration}{fitted})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `from_dict` is the inverse."""
        return {**asdict(self), "classes": list(self.classes), "scenes": list(self.scenes)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Protocol:
        """Build a protocol from data of `to_dict`, also of earlier versions."""
        names = {key: tuple(data[key]) for key in ("classes", "scenes")}
        return cls(**{"without_data": "missed", **data, **names})


def of_one_rule(records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Remove validations scored by the earlier rule from a log, if it has later ones.

    The earlier rule counted pixels without data as missed; only later validations record completeness.
    """
    entries = list(records)
    later = any("completeness" in record for record in entries)
    return [record for record in entries if not later or "miou" not in record or "completeness" in record]


def _comparable(value: Any) -> Any:
    """Return a value for comparison: the order of classes and scenes changes no number."""
    return sorted(value) if isinstance(value, tuple) else value


def _list_text(value: Any) -> str:
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class PublishedProtocol:
    """Rules shared by a series of published numbers."""

    classes: tuple[str, ...]
    labels: LabelKind


_POTSDAM = ("impervious surfaces", "building", "low vegetation", "tree", "car", "clutter")

PROTOCOLS: dict[str, PublishedProtocol] = {
    # mmsegmentation's noBoundary numbers: clutter is a class like the others.
    "potsdam-6": PublishedProtocol(_POTSDAM, "eroded"),
    # UNetFormer's numbers: clutter pixels leave the truth; where a 6-class model says clutter, it misses.
    "potsdam-5": PublishedProtocol(_POTSDAM[:-1], "eroded"),
}
