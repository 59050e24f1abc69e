"""Samples of labels, groups of scenes, deals to parts; blocks inside a scene lie a buffer apart."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from affine import Affine
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, maximum_filter

from datasets import load_dataset
from datasets.blocks import BlockGrid, block_parts
from datasets.check import check_dataset
from datasets.commands import call as datasets_main
from datasets.start.groups import groups_of
from datasets.start.samples import LabelSample, area_of, has_fixed_orientation, label_range
from datasets.start.split import Wish, deal
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.datasets import FolderSplit
from segmenter.config.reading import load_recipe
from segmenter.grid.geometry import Size
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import SPLITS, Scene
from segmenter.raster import LabelRaster, raster_info
from tests.helpers import made_folders as made
from tests.helpers.made_training import script, train
from tests.helpers.refusals import refused


def sample(ids: np.ndarray, step: float = 1.0) -> LabelSample:
    ids = ids.astype(np.uint8)
    return LabelSample(ids, step, ids)


@pytest.mark.parametrize("side", [4, 9, 20])
def test_labels_of_random_squares_are_alike_over_their_side(side: int) -> None:
    rng = np.random.default_rng(side)
    squares = [np.kron(rng.integers(0, 3, (12, 11)), np.ones((side, side))) for _ in range(12)]
    alike, known = label_range([sample(each) for each in squares])
    assert known
    assert 0.8 * side <= alike <= 1.5 * side
    double, _ = label_range([sample(each, 2.0) for each in squares])
    assert 1.6 * side <= double <= 3 * side


def test_a_scene_of_two_halves_is_too_short_to_tell() -> None:
    halves = np.repeat(np.arange(2), 50)[:, None] * np.ones(100)
    alike, known = label_range([sample(halves)])
    assert (alike, known) == (50.0, False)


def test_sky_above_gives_images_an_up_and_random_fields_do_not() -> None:
    rng = np.random.default_rng(1)
    street = [sample((np.arange(60)[:, None] > 20 + rng.integers(9)) * np.ones(80)) for _ in range(9)]
    fields = [sample(np.kron(rng.integers(0, 3, (6, 8)), np.ones((10, 10)))) for _ in range(9)]
    assert has_fixed_orientation(street)[0]
    assert not has_fixed_orientation(fields)[0]
    assert not has_fixed_orientation(street[:3])[0], "three pictures say little"


def test_the_median_area_of_a_class() -> None:
    ids = np.zeros((30, 40), np.uint8)
    ids[2:5, 2:5], ids[10:14, 10:14], ids[20:29, 20:29] = 1, 1, 1
    ids[7, 30] = 1  # noise
    assert area_of([sample(ids)], 1) == 16
    assert area_of([sample(ids)], 2) is None


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        ([f"t{t}/images/p_{i:02}.jpg" for t in range(4) for i in range(1, 10)], 4),
        ([f"{p}_{i}.png" for p in ("ab", "cd", "ef") for i in range(30, 91, 30)], 3),
        ([f"{i}.png" for i in range(20)], 20),
        ([f"{town}{i}.png" for town in ("rural", "urban") for i in range(9)], 18),
        ([f"scene_{i * i}_x.png" for i in range(12)], 12),
        ([f"img/{p}_{i}_RGB.png" for p in ("ab", "cd", "ef") for i in range(7)], 3),
        ([f"{p}_x-{x}_y-{y}_vv.png" for p in ("ab", "cd2", "ef") for x in range(3) for y in range(4)], 3),
        ([f"{p}_r{64 * y}c{64 * x}_10m.jp2" for p in "abc" for x in range(2) for y in range(5)], 3),
        ([f"{p}_{y}_{x}.png" for p in (7, 8, 9) for x in range(3) for y in range(3)], 3),
        ([f"{p}_{p * p + y}_{x}.png" for p in (2, 5, 9) for x in range(3) for y in range(2)], 6),
        ([f"{p}_1_{x}_{y}_{x + 8}_{y + 8}.png" for p in (2, 5, 9) for x in (0, 4, 8) for y in (0, 4)], 3),
        ([f"im{date}/{i * i}.png" for date in (1, 2) for i in range(9)], 9),
        ([f"{i * i}_{when}.png" for i in range(9) for when in ("pre", "post")], 9),
        ([f"{i * 37 % 101}.png" for i in range(9, 40)], 31),
    ],
)
def test_series_of_numbered_names_are_groups(tmp_path: Path, names: list[str], groups: int) -> None:
    root = Path("/data")
    scenes = [Scene(name, root / name, None, name, "train") for name in names]
    plain: Any = SimpleNamespace(crs=None, transform=None, size=Size(9, 9))
    found = groups_of(root, scenes, [plain] * len(names), 5.0)
    assert found.count == groups
    assert found.alone == (groups == len(names))


def test_scenes_that_touch_are_one_place_and_a_mosaic_is_cells(
    tmp_path: Path, make_geotiff: Callable[..., Path]
) -> None:
    def places(corners: list[tuple[int, int]], apart: float = 1.0) -> list[int]:
        scenes = []
        for row, col in corners:
            name = f"{row}_{col}.tif"
            place = Affine(0.5, 0, 368_000 + 0.5 * col, 0, -0.5, 5_808_000 - 0.5 * row)
            image = make_geotiff(name, np.zeros((20, 20), np.uint8), transform=place)
            scenes.append(Scene(name, image, None, name, "train"))
        infos = [raster_info(scene.image) for scene in scenes]
        return groups_of(tmp_path, scenes, infos, apart).of_S.tolist()

    alone = [(0, 0), (0, 100), (0, 200), (100, 0), (100, 100)]
    assert places(alone) == [0, 1, 2, 3, 4]
    assert places([*alone, (0, 20), (119, 110)]) == [0, 1, 2, 3, 4, 0, 4]
    mosaic = [(20 * r, 20 * c) for r in range(3) for c in range(4)]
    assert places(mosaic) == list(range(12))
    assert len(set(places(mosaic, apart=40.0))) == 4
    wide = [(20 * r, 20 * c) for r in range(4) for c in range(9)]
    cells = [(r // 2, c // 2) for r in range(4) for c in range(9)]
    assert places(wide) == [list(dict.fromkeys(cells)).index(cell) for cell in cells]
    overlapping = [(20 * r, 20 * c - 5 * (c == 1)) for r in range(3) for c in range(4)]
    found = places(overlapping)
    assert all(found[4 * r] == found[4 * r + 1] for r in range(3))


def tiles_of_pictures(folder: Path, count: int, name: Callable[[int, int], str]) -> list[Scene]:
    """Scenes of 4 by 4 tiles of some pictures, without georeference."""
    scenes = []
    for i in range(count):
        noise = np.random.default_rng(i).normal(size=(256, 256))
        picture = (128 + 900 * gaussian_filter(noise, 9)).clip(0, 255).astype(np.uint8)
        for row, col in itertools.product(range(4), range(4)):
            tile = picture[64 * row : 64 * row + 64, 64 * col : 64 * col + 64]
            path = made.save(folder / f"photo{i}_{name(row, col)}.png", np.dstack([tile] * 3))
            scenes.append(Scene(path.stem, path, None, path.stem, "train"))
    return scenes


def test_of_few_pictures_that_were_cut_squares_of_tiles_are_groups(tmp_path: Path) -> None:
    scenes = tiles_of_pictures(tmp_path, 2, lambda row, col: f"{row:02}{col:02}")
    found = groups_of(tmp_path, scenes, [raster_info(scene.image) for scene in scenes], 5.0)
    cells = [(i, row // 2, col // 2) for i in range(2) for row in range(4) for col in range(4)]
    assert found.of_S.tolist() == [list(dict.fromkeys(cells)).index(cell) for cell in cells]


def test_pictures_that_were_cut_are_groups_whatever_their_tiles_are_numbered(tmp_path: Path) -> None:
    """Row and column in one number, as in `photo0_112`, count unevenly: borders tell the pictures."""
    scenes = tiles_of_pictures(tmp_path, 5, lambda row, col: f"{row * 10}{(0, 1, 2, 9)[col]}")
    found = groups_of(tmp_path, scenes, [raster_info(scene.image) for scene in scenes], 5.0)
    assert found.of_S.tolist() == [i for i in range(5) for _ in range(16)]
    assert found.names == tuple(f"photo{i}" for i in range(5))


Table = NDArray[np.int64]


@st.composite
def tables(draw: st.DrawFn, least: int = 2, most: int = 40) -> Table:
    """Pixels of classes in groups, many of them 0."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    groups, classes = draw(st.integers(least, most)), draw(st.integers(1, 9))
    there = rng.random((groups, classes)) < rng.uniform(0.1, 1, classes)
    counts: Table = (there * rng.lognormal(8, 2, (groups, classes))).astype(np.int64) + 1
    counts[~there] = 0
    counts[:, 0] += 1
    return counts


def parts_of(counts: Table, parts: Table, number: int) -> Table:
    return np.stack([counts[parts == p].sum(axis=0) for p in range(number)])


@given(tables(most=8), st.sampled_from((0.0, 0.2)))
def test_of_few_groups_no_deal_has_more_classes_in_its_parts(counts: Table, test: float) -> None:
    wish = Wish.of(0.2, test if len(counts) > 2 else 0.0)
    found = deal(counts, wish)
    assert set(found.tolist()) == set(range(wish.parts))
    groups = (counts > 0).sum(axis=0)
    every = np.array(list(itertools.product(range(wish.parts), repeat=len(counts))))
    tables = np.array([parts_of(counts, parts, wish.parts) for parts in every], float)
    own = wish.cost(parts_of(counts, found, wish.parts)[None].astype(float), groups)[0]
    assert own == pytest.approx(wish.cost(tables, groups).min())


@given(tables(least=10), st.sampled_from((0.0, 0.1)), st.integers(0, 3))
def test_classes_with_many_groups_are_in_each_part(counts: Table, test: float, seed: int) -> None:
    wish = Wish.of(0.2, test)
    found = deal(counts, wish, seed)
    assert (found == deal(counts, wish, seed)).all()
    assert set(found.tolist()) == set(range(wish.parts))
    many = (counts > 0).sum(axis=0) >= 2 * counts.shape[1] + wish.parts
    assert (parts_of(counts, found, wish.parts)[:, many] > 0).all()


@pytest.mark.slow
@given(st.integers(30, 120), st.integers(0, 99))
def test_shares_are_near_to_those_wished(groups: int, seed: int) -> None:
    counts = np.random.default_rng(seed).integers(500, 1500, (groups, 4))
    parts = parts_of(counts, deal(counts, Wish.of(0.2, 0.1)), 3)
    share = parts.sum(axis=1) / parts.sum()
    assert np.abs(share - (0.7, 0.2, 0.1)).max() < 0.02
    assert np.abs(parts / parts.sum(axis=0) - np.array([[0.7], [0.2], [0.1]])).max() < 0.05


def test_a_rare_class_of_two_groups_trains_and_validates() -> None:
    counts = np.full((60, 3), 1000)
    counts[:, 2] = 0
    counts[[7, 41], 2] = 5
    found = deal(counts, Wish.of(0.2, 0.1))
    assert set(found[[7, 41]].tolist()) == {0, 1}


HEIGHT, WIDTH = 311, 203

sides = st.integers(1, 67)


@given(sides, sides, st.integers(1, 40), st.integers(0, 9), st.integers(0, 99), st.sampled_from((0.0, 0.2)))
def test_parts_lie_a_buffer_apart_and_no_pixel_is_in_two(
    height: int, width: int, side: int, buffer: int, seed: int, test_share: float
) -> None:
    grid = BlockGrid.of(Size(height, width), side, buffer)
    split = FolderSplit.model_validate({"validation_share": 0.3, "test_share": test_share, "seed": seed})
    parts = block_parts({"a": grid}, split)["a"]
    kept = {part: grid.mask(parts, part, np.arange(height), np.arange(width)) for part in SPLITS}
    covered = np.zeros((height, width), int)
    for r, c in grid.blocks:
        covered[grid.rows_R[r] : grid.rows_R[r + 1], grid.cols_C[c] : grid.cols_C[c + 1]] += 1
    assert (covered == 1).all()
    assert (sum(mask.astype(int) for mask in kept.values()) <= 1).all()
    reach = 2 * buffer + 1
    for i, part in enumerate(SPLITS):
        for later in SPLITS[i + 1 :]:
            near = maximum_filter(kept[later], reach, mode="constant", cval=False)
            assert not (kept[part] & near).any()
    last = [p for p in SPLITS if p in parts.values()][-1]
    whole = sum(
        int((grid.rows_R[r + 1] - grid.rows_R[r]) * (grid.cols_C[c + 1] - grid.cols_C[c]))
        for (r, c), part in parts.items()
        if part == last
    )
    assert kept[last].sum() == whole


@given(st.integers(2, 6), st.integers(0, 50))
def test_folds_validate_each_block_once(folds: int, seed: int) -> None:
    grid = BlockGrid.of(Size(60, 50), 10, 0)
    seen = []
    for fold in range(1, folds + 1):
        split = FolderSplit.model_validate({"folds": folds, "fold": fold, "seed": seed})
        parts = block_parts({"a": grid}, split)["a"]
        seen += [block for block, part in parts.items() if part == "validation"]
    assert sorted(seen) == grid.blocks


@pytest.fixture
def recipe(tmp_path: Path, make_geotiff: Callable[..., Path]) -> Callable[..., Path]:
    """`recipe(size=40, …)`: a recipe of one raster with three classes, split by blocks."""
    rng = np.random.default_rng(3)
    rows, cols = np.mgrid[:HEIGHT, :WIDTH]
    label = ((rows // 37 + cols // 29) % 3).astype(np.uint8)
    image = np.clip(label[..., None] * 60 + 40 + rng.normal(0, 8, (HEIGHT, WIDTH, 3)), 0, 255).astype(
        np.uint8
    )
    label[:9] = 9
    make_geotiff("images/a.tif", image)
    make_geotiff("labels/a.tif", label)

    def make(size: float = 40, buffer: int = 7, **more: Any) -> Path:
        split = {"validation_share": 0.2, "blocks": {"size": size, "buffer": buffer}} | more
        content = {
            "dataset": {
                "kind": "folder",
                "root": str(tmp_path),
                "images": "images/{name}.tif",
                "labels": "labels/{name}.tif",
                "classes": [{"name": n, "code": i} for i, n in enumerate("xyz")],
                "ignore": [9],
                "split": {key: value for key, value in split.items() if value is not None},
            },
            "tiles": {"size": 16},
            "model": {"depth": 1, "width": 4},
            "training": {"global_batch": 8, "epochs": 1, "warmup": 1},
            "prediction": {"window": 64},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml.safe_dump(content))
        return path

    return make


def test_one_raster_in_three_parts_is_clean_and_no_leak(recipe: Callable[..., Path]) -> None:
    dataset = load_dataset(load_recipe(recipe(test_share=0.2)))
    assert [scene.split for scene in dataset.scenes] == list(SPLITS)
    assert len({scene.image for scene in dataset.scenes}) == 1
    report = check_dataset(dataset, progress=False)
    assert report.findings == ()
    assert (report.pixels_PK > 0).all()
    ids = []
    for scene in dataset.scenes:
        with LabelRaster(scene.label, dataset.classes) as label:
            ids.append(label.ids())
    labelled = np.stack(ids) != IGNORE
    assert labelled.sum(axis=0).max() == 1
    assert not labelled[:, :9].any(), "what was ignored stays so"


def test_labels_are_made_once_and_anew_for_another_split(recipe: Callable[..., Path]) -> None:
    load = lambda **more: load_dataset(load_recipe(recipe(**more)))  # noqa: E731
    first, again, other = load(), load(), load(seed=5)
    stamps = [[scene.label.stat().st_mtime_ns for scene in d.scenes if scene.label] for d in (first, again)]
    assert stamps[0] == stamps[1]
    assert {s.label for s in first.scenes}.isdisjoint({s.label for s in other.scenes})


def test_blocks_in_metres_need_a_scale_and_are_those_in_pixels(recipe: Callable[..., Path]) -> None:
    in_pixels = load_dataset(load_recipe(recipe()))
    blocks = {"size": 20, "unit": "metres", "buffer": 7}
    in_metres = load_dataset(load_recipe(recipe(blocks=blocks)))
    assert [s.label for s in in_metres.scenes] == [s.label for s in in_pixels.scenes]


def test_what_leaves_nothing_to_train_on_is_refused(recipe: Callable[..., Path]) -> None:
    with refused(DatasetError, expected="train"):
        load_dataset(load_recipe(recipe(buffer=400)))


@pytest.mark.parametrize(
    "split",
    [
        {"group": "(a)"},
        {"validation": ["a"], "validation_share": None},
        {"validation_share": None},
        {"folds": 1, "validation_share": None},
        {"folds": 3, "fold": 4, "validation_share": None},
        {"validation_share": 0.6, "test_share": 0.5},
        {"blocks": None, "validation_share": None, "seed": 3},
    ],
)
def test_contradictions_are_refused(recipe: Callable[..., Path], split: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.split"):
        load_recipe(recipe(**split))


@pytest.mark.slow
def test_a_buffer_below_the_receptive_field_is_refused(
    tensorflow: Any, recipe: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with refused(ConfigError, where="dataset.split.blocks.buffer", got=2):
        datasets_main(["check", str(recipe(buffer=2)), "--set", "model.depth=2"])
    assert datasets_main(["check", str(recipe(buffer=9))]) == 0


@pytest.mark.slow
def test_a_training_validates_and_predicts_its_blocks(recipe: Callable[..., Path], tmp_path: Path) -> None:
    path, run = recipe(buffer=9, test_share=0.2), tmp_path / "run"
    train(path, "--run", str(run))
    scores = json.loads((run / "scores.json").read_text())
    script("predict.py", str(run), "--split", "test", "--output", str(tmp_path / "maps"))
    assert (tmp_path / "maps" / "a.tif").exists()
    tested = json.loads((tmp_path / "maps" / "scores.json").read_text())
    assert 0 < tested["pixels"] < scores["pixels"] * 3 < HEIGHT * WIDTH
    refused = train(path, "--run", str(tmp_path / "b"), "--set", "dataset.split.blocks.buffer=1", check=False)
    assert refused.returncode == 2
    assert not (tmp_path / "b").exists() or not list((tmp_path / "b").iterdir())
