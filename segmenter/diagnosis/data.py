"""Diagnosis as frozen values: the result of `diagnose`, read by tables and reports, and its JSON.

The JSON has the fields' names as keys, in their order (`Limit.class_id` stands under "class"). Tuples are
lists there, absent values null. A change that an older reader would misread raises `VERSION`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from segmenter.runs.coverage import RunFacts
from segmenter.sampling.forecast import Outlook

VERSION = 1
"""Version of the JSON's layout."""


@dataclass(frozen=True)
class ClassFacts:
    """One class of the class map.

    Attributes:
        colour: as "#rrggbb".
        tiles: that hold it.
        pixels: labelled with it; `share` of all labelled pixels.
        scenes: that show it.
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
    """Map of where the classes lie in a scene, or in several that adjoin.

    Attributes:
        bounds: left, bottom, right, top in the CRS; None where the scenes have no common plane.
        share: (classes, rows, cols) share of the labelled pixels; None where no tile lies.
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
    """Random batches: how likely they hold all classes.

    Attributes:
        classes: ids of the classes that occur.
        curve: over batch sizes; `batches`: for those asked for.
        needed: share in percent ("90", "99", "99.9") → tiles in a batch to hold all classes that often; None
            where not even all tiles do.
    """

    method: Literal["exact", "simulation"]
    classes: list[int]
    curve: list[Outlook]
    batches: list[Outlook]
    needed: dict[str, int | None]


@dataclass(frozen=True)
class Side:
    """The steps of one epoch, of the plan or of a shuffle.

    Attributes:
        complete_steps: share of the steps that hold all classes that occur.
        held_share: of each class, share of the steps that hold it.
        mean_gap: of each class, steps from one sighting to the next; None where it is never seen.
        classes_per_replica: mean over the replicas' shares of the batches.
    """

    complete_steps: float
    classes_per_step: float
    held_share: list[float]
    mean_gap: list[float | None]
    longest_gap: list[int | None]
    classes_per_replica: float


@dataclass(frozen=True)
class PlanFacts:
    """The first epoch's plan beside a shuffle, at one batch size.

    Attributes:
        refused: why there is no plan; then `plan` is None and the numbers are 0.
        repeats_bound: no plan does with fewer repeats.
        rare_at_scale: classes that are best effort at one scale, as `water at 1–4 m`.
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
        """The plan's side of a plan that was not refused."""
        assert self.plan is not None, "refused plans have no steps"
        return self.plan

    def side(self, name: str) -> Side:
        """Return the "shuffle" or the "plan"."""
        return self.shuffle if name == "shuffle" else self.planned


@dataclass(frozen=True)
class SamplingFacts:
    """The first epoch by one of the sampling methods, at one batch size.

    Attributes:
        method: as the recipe's `sampling.method` names it.
        refused: why there is no such epoch; then the numbers are 0.
        complete_steps: share of the steps that hold all classes that occur.
        limiting_steps: share of the steps that hold the limiting class; None where there is none.
        tiles_seen: share of the tiles that are drawn at all.
        most_uses: of the tile that is drawn most often.
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
class Lever:
    """Something that would lift the limit: `lever` is batch, min_pixels, tile_size or label."""

    lever: str
    text: str


@dataclass(frozen=True)
class Limit:
    """The class that limits coverage; `class_id` is None where no tile shows any class."""

    class_id: Annotated[int | None, Field(alias="class")]
    why: str
    levers: list[Lever]


@dataclass(frozen=True)
class ScaleFacts:
    """Classes by strata of the scenes' scale, finest first.

    Attributes:
        planned: these are the strata that the recipe plans by; else octaves.
        strata: as `0.35–0.71 m`, metres a pixel.
        scenes, tiles: of each stratum.
        held: (strata, classes) tiles that hold each class.
        pixels: (strata, classes) labelled with it.
        random: for the batches asked for: whether a random one holds each class at each scale that shows it;
            of `columns` such pairs.
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
    """All facts about the class coverage of one split of a dataset.

    Attributes:
        left_out: tiles with too few labelled pixels.
        min_pixels: from which on a tile holds a class.
        global_batch: the recipe's.
        tiles_by_classes: tiles that hold exactly 0, 1, … classes.
        together: (classes, classes) tiles that hold both.
        maps: where the classes lie; `maps_left_out` more are not drawn.
        plans: one for each batch size that was asked for.
        run: None where no run was named.
        scales: None where the scenes have one scale, or it is not known.
        samplings: each method at each of the batch sizes; none in a diagnosis of an older version.
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
    run: RunFacts | None
    scales: ScaleFacts | None = None
    samplings: list[SamplingFacts] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Names of all classes, by id."""
        return [one.name for one in self.classes]

    @property
    def rarest_first(self) -> list[int]:
        """Ids of the classes that occur, those in the fewest tiles first: the order of all charts."""
        return sorted((c.id for c in self.classes if c.tiles), key=lambda c: (self.classes[c].tiles, c))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON: numbers, text, lists, dicts and None."""
        data: dict[str, Any] = _adapter().dump_python(self, mode="json", by_alias=True)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Diagnosis:
        """Return the diagnosis of which `to_dict` gave the data.

        Raises:
            ValueError: another version, a missing key, a value of the wrong type.
        """
        if data.get("version") != VERSION:
            raise ValueError(f"expected a diagnosis of version {VERSION}, got {data.get('version')!r}")
        return _adapter().validate_python(data)


@cache
def _adapter() -> TypeAdapter[Diagnosis]:
    return TypeAdapter(Diagnosis)
