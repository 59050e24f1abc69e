"""The memory decides the windows: as large as it allows, no larger than is of use; else they are blended."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import ConfigError, DeviceError
from segmenter.grid.geometry import Size
from segmenter.grid.windows import COLUMN
from segmenter.inference import memory as memory_budget
from segmenter.inference.blending import Blend
from segmenter.inference.memory import ComputingChoice, Needs, OwnNeeds, parse_memory, plan_tiling
from segmenter.inference.prediction import ExtraOutputs, Prediction
from segmenter.inference.predictor import MappedWindow, Tiling, classify_all
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster.resampled import HELD_BYTES
from segmenter.raster.write import BLOCK
from tests.helpers.array_raster import ArrayJob, scene
from tests.helpers.function_predictor import FunctionPredictor
from tests.helpers.refusals import refused

GB = 10**9
NETWORK = NetworkGeometry(16, 94, 650.0)
NEEDS = Needs(NETWORK, 6, 3, ExtraOutputs(), 512)
SCENE = [Size(6000, 6000)]


@pytest.fixture(autouse=True)
def _no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "smallest_card", lambda: None)


def plan(sizes: list[Size], memory: float, needs: Needs = NEEDS, **choice: Any) -> tuple[Tiling, list[str]]:
    return plan_tiling(sizes, needs, ComputingChoice(memory=int(memory), **choice))


def test_more_memory_larger_windows_and_never_more_than_it() -> None:
    shares = []
    for memory in (1.3 * GB, 2 * GB, 4 * GB, 8 * GB, 64 * GB):
        tiling, notes = plan(SCENE, memory, mode="exact")
        assert notes == []
        assert tiling.window.height % 16 == 0
        assert tiling.halo == 94
        needed = NEEDS.total(tiling.window, tiling.batch, 6000, blended=False)
        assert needed + NEEDS.model(tiling.window, tiling.batch) <= memory
        assert tiling.batch in (1, 2, 4, 8, 16, 32, 64)
        shares.append(memory_budget.useful_share(tiling, memory_budget.Counter(SCENE)))
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < 0.7 < shares[2]
    assert shares[-1] == 1  # one window for the whole


def test_small_rasters_are_computed_many_at_once() -> None:
    tiling, notes = plan([Size(256, 256)] * 1000, 4 * GB)
    assert (tiling.window, notes) == (Size(256, 256), [])
    assert tiling.batch in (8, 16, 32, 64)
    for memory in np.linspace(1.3 * GB, 2.3 * GB, 9):
        tiling, _ = plan([Size(256, 256)] * 1000, memory)
        more = NEEDS.total(tiling.window, 2 * tiling.batch, tiling.column, blended=False)
        assert tiling.batch == 64 or more + NEEDS.model(tiling.window, 2 * tiling.batch) > memory
    mixed, _ = plan([Size(6000, 6000)] + [Size(256, 256)] * 1000, 4 * GB)
    assert mixed.window.height > 1000
    assert mixed.at_once(Size(256, 256)) == mixed.batch * mixed.window.pixels // 256**2
    assert mixed.at_once(mixed.window) == mixed.batch


@pytest.mark.parametrize("size", [Size(1, 1), Size(17, 5), Size(300, 20000)])
def test_what_pads_a_raster_is_no_waste(size: Size) -> None:
    tiling, notes = plan([size], 4 * GB)
    assert tiling.blend is None
    assert notes == []


def test_smooth_where_exact_is_impossible_or_would_throw_most_of_it_away() -> None:
    blend = Blend(25, "linear")
    tiling, notes = plan(SCENE, 1.3 * GB, blend=blend)
    assert tiling.blend == blend
    assert tiling.window <= Size(512, 512)
    assert "smooth mode: exact windows of" in notes[0]
    assert "would discard" in notes[0]
    assert notes[1:] == ["windows of 256 pixels, the recipe has 512: more --memory would allow them"]
    for said in ({"mode": "exact"}, {"window": 352}):
        assert plan(SCENE, 1.3 * GB, **said)[0].blend is None
    assert "--overlap" in plan(SCENE, 4 * GB, blend=blend)[1][0]

    needs = replace(NEEDS, network=NetworkGeometry(16, None, 650.0, "layer pool looks at the whole image"))
    tiling, notes = plan(SCENE, 4 * GB, needs)
    assert (tiling.blend, tiling.window) == (Blend(), Size(512, 512))
    assert notes == ["smooth mode: layer pool looks at the whole image"]
    with refused(ConfigError, where="--mode exact", remedy="layer pool"):
        plan(SCENE, 4 * GB, needs, mode="exact")


@pytest.mark.parametrize("memory", [0, 1.0 * GB, 1.1 * GB])
@pytest.mark.parametrize("mode", [None, "exact", "smooth"])
def test_too_little_memory_is_refused_and_not_made_do_with_tiny_windows(memory: float, mode: Any) -> None:
    with refused(ConfigError, where="--memory") as raised:
        plan(SCENE, memory, mode=mode)
    enough = float(str(raised.value).split()[4].removesuffix("GB"))
    assert plan(SCENE, enough * GB, mode=mode)[0].window >= Size(256, 256)


@pytest.mark.parametrize("mode", ["exact", "smooth"])
@pytest.mark.parametrize("wanted", [ExtraOutputs(), ExtraOutputs(True, "float16")], ids=["ids", "everything"])
@pytest.mark.parametrize("memory", [1.5 * GB, 3 * GB, 6 * GB, 64 * GB])
def test_neither_width_nor_height_decides_of_the_windows(
    mode: Any, wanted: ExtraOutputs, memory: float
) -> None:
    """Law 6: from the narrowest column on, all that is taken is within the memory, whatever the raster."""
    needs = replace(NEEDS, classes=20, wanted=wanted)
    tilings = []
    for width, height in ((1 << 17, 20000), (10**6 + 1, 20000), (1 << 30, 20000), (1 << 30, 1 << 30)):
        tiling, _ = plan([Size(height, width)], memory, needs, mode=mode)
        assert tiling.column % BLOCK == 0
        assert tiling.column >= 8 * tiling.window.width
        taken = needs.total(tiling.window, tiling.batch, tiling.column, blended=mode == "smooth")
        assert taken + needs.model(tiling.window, tiling.batch) <= memory
        tilings.append((tiling.window, tiling.batch, tiling.column))
    if mode == "smooth":  # exact windows are no larger than their number on a raster needs
        assert len(set(tilings)) == 1


def test_rows_of_a_finer_raster_count_where_the_model_sees_a_coarser_grid() -> None:
    """The grid is narrower than the narrowest column; it is the raster's own pixels that take the memory."""
    half = ExtraOutputs(probabilities="float16")
    seen, own = Size(6000, 6000), OwnNeeds(60_000, 1.0, half)
    on_grid = replace(NEEDS, wanted=half)
    free, _ = plan([seen], 1.9 * GB, on_grid, mode="exact")
    bound, _ = plan([seen], 1.9 * GB, replace(on_grid, own=own), mode="exact")
    assert free.column > bound.column
    for column in (bound.column, 2 * bound.column):
        rows = min(60_000, column) * BLOCK * (1 + 2 * NEEDS.classes)
        assert rows <= replace(on_grid, own=own).own_rows(column) <= rows + HELD_BYTES
    assert replace(on_grid, own=replace(own, share=0.25)).own_rows(COLUMN) < own.width * BLOCK * 5
    with refused(ConfigError, where="--memory", got="1.1GB"):
        plan([seen], 1.1 * GB, replace(on_grid, own=own), mode="exact")


def test_a_cards_memory_bounds_the_model_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    free, _ = plan(SCENE, 64 * GB)
    monkeypatch.setattr(memory_budget, "smallest_card", lambda: 11 * GB)
    card, _ = plan(SCENE, 64 * GB)
    assert card.window < free.window
    assert NEEDS.model(card.window, card.batch) <= 0.8 * 11 * GB


def test_what_is_asked_for_is_kept_and_a_small_machine_does_what_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiling, _ = plan(SCENE, 4 * GB, window=500, batch=3)
    assert (tiling.window, tiling.batch, tiling.pixels) == (Size(512, 512), 3, 0)

    monkeypatch.setattr(memory_budget, "machine_memory", lambda: 2 * GB)
    tiling, notes = plan_tiling(SCENE, NEEDS, ComputingChoice())
    assert tiling.window >= Size(256, 256)
    assert "windows of 256 pixels, the recipe has 512" in notes[-1]


@pytest.mark.parametrize(
    ("text", "expected"), [("8GB", 8 * GB), ("2.5GiB", 5 * 2**29), ("500m", 500 * 10**6), ("64 KiB", 65536)]
)
def test_amounts_of_memory(text: str, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["8", "GB", "-1GB", "8 bytes", "", "8GB junk", "5.5.5GB", "9" * 400 + "GB"])
def test_an_amount_without_a_unit_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        parse_memory(text)


def _small_device(most: int, batches: list[int]) -> Any:
    def predict(image: Any, valid: Any) -> Prediction:
        if len(image) > most:
            raise DeviceError(f"out of memory at {len(image)} windows")
        batches.append(len(image))
        return Prediction(image[..., 0])

    return FunctionPredictor(predict)


def test_a_batch_that_does_not_fit_is_halved_once_and_a_window_ends_it(rng: np.random.Generator) -> None:
    raster, batches = scene(rng, 32 * 16, 32), []
    tiling = Tiling(Size(32, 32), 0, 8, 8)
    events = list(classify_all([ArrayJob(raster)], tiling, _small_device(3, batches)))
    assert batches == [2] * 8  # eight do not fit, nor do four; from then on two
    result = np.concatenate([event.ids for event in events if isinstance(event, MappedWindow)])
    np.testing.assert_array_equal(result, np.where(raster.valid, raster.image[..., 0], 255))

    tiling = Tiling(Size(32, 32), 0, 8, 8)
    with refused(DeviceError, fault="1 windows"):
        list(classify_all([ArrayJob(scene(rng, 64, 64))], tiling, _small_device(0, [])))


def test_each_gpu_has_batches_under_way_in_the_machines_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "smallest_card", lambda: 11 * 2**30)
    batches = []
    for cards in (1, 4, 16):
        monkeypatch.setattr(memory_budget, "cards_listed", lambda cards=cards: cards)
        tiling, _ = plan(SCENE, 1.6 * GB, window=1024)
        needed = replace(NEEDS, gpus=cards).total(tiling.window, tiling.batch, 6000, blended=False)
        assert needed <= 1.6 * GB
        batches.append(tiling.batch)
    assert batches[0] > batches[1] > batches[2] >= 1
