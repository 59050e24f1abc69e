"""Diagnosis as immutable values: the result of `diagnose`, for tables, reports and JSON.

JSON keys are the field names, in their order (`Limit.class_id` is "class"). Tuples become lists, missing
values null. A change that older readers would misread increases `VERSION`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from segmenter.runs.log import LoggedCoverage
from segmenter.sampling.forecast import Outlook

VERSION = 1
"""Version of the JSON's layout."""


@dataclass(frozen=True)
class ClassFacts:
    """Facts on one class of the class map.

    Attributes:
        colour: "#rrggbb".
        pixels: labelled pixels of the class; `share`: their share of all labelled pixels.
    """

    id: int
    name: str
    colour: str
    tiles: int
    pixels: int
    share: float
    scenes: int


@dataclass(frozen=True)
class SceneMap:
    """Map of class shares in a scene, or in several adjoining scenes.

    Attributes:
        bounds: left, bottom, right, top in the CRS; None if the scenes have no common plane.
        share: (classes, rows, cols) share of the labelled pixels; None in cells without a tile.
    """

    name: str
    scenes: int
    georeferenced: bool
    crs: str | None
    rows: int
    cols: int
    bounds: tuple[float, float, float, float] | None
    share: list[list[list[float | None]]]


@dataclass(frozen=True)
class ForecastFacts:
    """Random batches: the probability that they hold all classes.

    Attributes:
        curve: values over many batch sizes; `batches`: at the requested ones.
        needed: batch size that holds all classes with a probability of "90", "99" or "99.9" percent; None if
            not even all tiles do.
    """

    method: Literal["exact", "simulation"]
    classes: list[int]
    curve: list[Outlook]
    batches: list[Outlook]
    needed: dict[str, int | None]


@dataclass(frozen=True)
class Side:
    """Coverage of one epoch's steps, of the plan or of a shuffle.

    Attributes:
        complete_steps: share of the steps that hold all classes that occur.
        held_share: for each class, share of the steps that hold it.
        mean_gap: for each class, mean steps from one occurrence to the next; None if it never occurs.
        classes_per_replica: mean number of classes in a replica's share of a batch.
    """

    complete_steps: float
    classes_per_step: float
    held_share: list[float]
    mean_gap: list[float | None]
    longest_gap: list[int | None]
    classes_per_replica: float


@dataclass(frozen=True)
class PlanFacts:
    """The first epoch's plan compared with a shuffle, at one batch size.

    Attributes:
        refused: reason why there is no plan; then `plan` is None and the numbers are 0.
        repeats_bound: lower bound of the repeats of any plan.
        rare_at_scale: classes that are best effort at one scale, such as `water at 1–4 m`.
    """

    batch: int
    refused: str | None
    replicas: int
    shuffle: Side
    steps: int = 0
    coverage_repeats: int = 0
    repeats_bound: int = 0
    fillers: int = 0
    promised: list[int] = field(default_factory=list)
    best_effort: list[int] = field(default_factory=list)
    rare_at_scale: list[str] = field(default_factory=list)
    plan: Side | None = None

    @property
    def planned(self) -> Side:
        """The plan's side, for a plan that was not refused."""
        assert self.plan is not None, "refused plans have no steps"
        return self.plan

    def side(self, name: str) -> Side:
        """Return the side named "shuffle" or "plan"."""
        return self.shuffle if name == "shuffle" else self.planned


@dataclass(frozen=True)
class SamplingFacts:
    """The first epoch under one sampling method, at one batch size.

    Attributes:
        method: name of the method in the recipe's `sampling.method`.
        refused: reason why there is no such epoch; then the numbers are 0.
        complete_steps: share of the steps that hold all classes that occur.
        limiting_steps: share of the steps that hold the limiting class; None if no class limits.
        tiles_seen: share of the tiles drawn at least once.
    """

    batch: int
    method: str
    refused: str | None = None
    steps: int = 0
    complete_steps: float = 0.0
    limiting_steps: float | None = None
    tiles_seen: float = 0.0
    most_uses: int = 0


@dataclass(frozen=True)
class QuotaFacts:
    """The first epoch's plan with amounts of tiles, at the recipe's batch size.

    Attributes:
        lift: `sampling.lift` of the plan; None for `sampling.quota: presence`.
        tiles: mean tiles of each class that a step is promised; 0 for a class without a promise.
        uses: mean uses of the tiles of each class; None for a class without tiles.
    """

    lift: float | None
    steps: int
    repeats: int
    tiles: list[float]
    uses: list[float | None]


@dataclass(frozen=True)
class Lever:
    """A change that would raise the limit: `lever` is batch, min_pixels, tile_size or label."""

    lever: str
    text: str


@dataclass(frozen=True)
class Limit:
    """The class that limits coverage; `class_id` is None if no tile shows any class."""

    class_id: Annotated[int | None, Field(alias="class")]
    why: str
    levers: list[Lever]


@dataclass(frozen=True)
class GsdFacts:
    """Classes in strata of the scenes' scale, finest first.

    Attributes:
        planned: True for the strata of the recipe's plan; False for octaves.
        strata: titles such as `0.35–0.71 m`, in metres a pixel.
        held: (strata, classes) number of tiles that hold each class.
        pixels: (strata, classes) labelled pixels of each class.
        random: for the requested batch sizes: forecast that a random batch holds each class at each scale
            that shows it; `columns` is the number of such pairs.
    """

    planned: bool
    strata: list[str]
    scenes: list[int]
    tiles: list[int]
    held: list[list[int]]
    pixels: list[list[int]]
    columns: int
    random: list[Outlook]


@dataclass(frozen=True)
class Diagnosis:
    """All facts on the class coverage of one split of a dataset.

    Attributes:
        left_out: number of tiles with too few labelled pixels.
        min_pixels: least pixels of a class for a tile to hold it.
        tiles_by_classes: number of tiles that hold exactly 0, 1, … classes.
        together: (classes, classes) number of tiles that hold both.
        maps: maps of class shares; `maps_left_out`: number of maps not drawn.
        run: coverage of a run; None if none was given.
        scales: classes by scale; None if the scenes have one scale, or unknown scales.
        samplings: each sampling method at each batch size.
        quotas: `sampling.quota: presence`, then `rarity` at rising lifts, each with the recipe's
            `sampling.quotas`; empty where nothing can be planned.
    """

    version: int
    dataset: str
    split: str
    scenes: int
    tiles: int
    left_out: int
    tile_px: int
    overlap_px: int
    min_pixels: int
    global_batch: int | None
    classes: list[ClassFacts]
    tiles_by_classes: list[int]
    together: list[list[int]]
    maps: list[SceneMap]
    maps_left_out: int
    forecast: ForecastFacts
    plans: list[PlanFacts]
    limit: Limit
    run: LoggedCoverage | None
    scales: GsdFacts | None
    samplings: list[SamplingFacts]
    quotas: list[QuotaFacts]

    @property
    def names(self) -> list[str]:
        """Names of all classes, by id."""
        return [one.name for one in self.classes]

    @property
    def rarest_first(self) -> list[int]:
        """Ids of the classes that occur, in the fewest tiles first; all charts use this order."""
        return sorted((c.id for c in self.classes if c.tiles), key=lambda c: (self.classes[c].tiles, c))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: numbers, text, lists, dicts and None."""
        data: dict[str, Any] = TypeAdapter(Diagnosis).dump_python(self, mode="json", by_alias=True)
        return data
