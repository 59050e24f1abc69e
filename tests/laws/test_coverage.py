"""Law 1 over full epochs of the recipes as they are, on look-alike and, where it is, on real imagery."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from datasets import load_dataset
from datasets.synthetic.make import make_naic2020, make_potsdam
from segmenter.config.reading import load_recipe
from segmenter.grid.labels import class_pixels
from segmenter.sampling import plan
from segmenter.tiles.batches import BatchLoader
from segmenter.tiles.index import build_index, cache_folder
from segmenter.tiles.statistics import band_statistics
from segmenter.tiles.store import SceneStore

CONFIGS = Path(__file__).parents[2] / "configs"


@dataclass
class Epochs:
    """What full epochs had; shares are of the tiles.

    Attributes:
        short: steps with fewer tiles of a promised class than its quota, and classes short of it on average.
        quota: the largest of a class.
    """

    steps: int
    short: int
    redrawn: float
    replaced: float
    best_effort: tuple[int, ...]
    quota: float


def run(config: Path, *settings: str, epochs: int = 1) -> Epochs:
    """Make every batch of full epochs of a recipe, and count the classes on the labels that come out."""
    recipe = load_recipe(config, settings)
    dataset = load_dataset(recipe)
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    store = SceneStore(dataset, index.scenes, recipe.tiles.size, cache_folder(dataset), progress=False)
    shares = (recipe.training.global_batch // 4,) * 4
    loader = BatchLoader(recipe, index, store, band_statistics(dataset, progress=False), shares)
    steps = short = 0
    most = 0.0
    for epoch in range(epochs):
        rows = plan(index.counts_NK, recipe.training.global_batch, recipe.sampling, recipe.seed, epoch)

        def held(step: int, rows=rows, epoch: int = epoch) -> np.ndarray:
            _, _, label, _ = loader.load(rows, epoch, step)
            pixels = np.stack([class_pixels(one, len(dataset.classes)) for one in label])
            return (pixels >= recipe.sampling.min_pixels).sum(axis=0)[list(rows.promised)]

        with ThreadPoolExecutor(2) as pool:
            held_SP = np.stack(list(pool.map(held, range(rows.steps))))
        quota_P = np.array([quota.given for quota in rows.quotas] or [1] * len(rows.promised))
        short += int((held_SP < np.floor(quota_P)).any(axis=1).sum())
        short += int((np.minimum(held_SP, np.ceil(quota_P)).mean(axis=0) < quota_P - 1e-9).sum())
        most = max(most, *quota_P)
        steps += rows.steps
    drawn = loader.drawn
    shares = drawn.redrawn / drawn.tiles, drawn.replaced / drawn.tiles
    return Epochs(steps, short, *shares, rows.best_effort, most)


def keeps_the_law(found: Epochs) -> bool:
    return found.steps > 0 and found.short == 0 and found.replaced < 0.05


@pytest.fixture(scope="session")
def potsdam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("potsdam")
    make_potsdam(folder, scenes=4, seed=2, size=768)
    return folder


def split(folder: Path) -> tuple[str, ...]:
    return (f"dataset.root={folder}", 'dataset.split.test=["2_13"]', "dataset.split.validation=[]")


@pytest.mark.slow
def test_potsdam_as_the_recipe_says(potsdam: Path) -> None:
    assert keeps_the_law(run(CONFIGS / "potsdam.yaml", *split(potsdam)))


@pytest.mark.slow
def test_potsdam_in_small_tiles_and_batches(potsdam: Path) -> None:
    """Cars and clutter are scarce in tiles of 64 pixels, and easily moved out of view."""
    small = ("tiles.size=64", "training.global_batch=8", "model.depth=3")
    found = run(CONFIGS / "potsdam.yaml", *split(potsdam), *small, epochs=2)
    assert keeps_the_law(found)
    assert found.redrawn > 0  # else this would show nothing


def test_quotas_are_there_when_the_model_receives_them(potsdam: Path) -> None:
    small = ("tiles.size=64", "training.global_batch=16", "model.depth=3", "sampling.quota=rarity")
    found = run(CONFIGS / "potsdam.yaml", *split(potsdam), *small)
    assert found.short == 0
    assert found.redrawn > 0
    assert found.quota > 2


def test_naic_as_the_recipe_says(tmp_path: Path) -> None:
    """96-pixel scenes: fewer pixels of a class in a tile than the recipe's 256 would show."""
    make_naic2020(tmp_path, scenes=40, seed=5, size=96)
    found = run(
        CONFIGS / "naic2020.yaml", f"dataset.root={tmp_path}", "tiles.size=96", "training.global_batch=16"
    )
    assert keeps_the_law(found)


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_naic_at_full_size(tmp_path: Path, number: int) -> None:
    make_naic2020(tmp_path, scenes=250, seed=number, round=number)
    config = CONFIGS / ("naic2020.yaml" if number == 1 else "naic2020_round2.yaml")
    for batch in (64, 16):
        assert keeps_the_law(run(config, f"dataset.root={tmp_path}", f"training.global_batch={batch}"))


@pytest.mark.parametrize(
    ("tiles", "quota"),
    [
        pytest.param("tile_4", "rarity", id="smallest tile"),
        pytest.param("tile_*", "presence", id="presence", marks=pytest.mark.slow),
        pytest.param("tile_*", "rarity", id="rarity", marks=pytest.mark.slow),
    ],
)
def test_dubai(shared_data: Callable[[str], Path], tmp_path: Path, tiles: str, quota: str) -> None:
    """Real imagery, the recipe as it is; the index goes beside the data, hence the copy."""
    for tile in shared_data("dubai").glob(tiles):
        shutil.copytree(tile, tmp_path / "dubai" / tile.name)
    settings = [f"dataset.root={tmp_path / 'dubai'}", f"sampling.quota={quota}"]
    if tiles == "tile_4":
        settings += ["dataset.split.test=[]", "dataset.split.validation=[]"]
    assert keeps_the_law(run(CONFIGS / "dubai.yaml", *settings))
