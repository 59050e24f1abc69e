"""A diagnosis and its maps say what tiles, plan, shuffle, scales and log say; its advice comes true."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import rasterio

from segmenter.base.errors import CheckpointError, DatasetError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe, SamplingConfig, TilesConfig
from segmenter.diagnosis import Diagnosis, diagnose, table
from segmenter.diagnosis.report import html_report
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from segmenter.runs.log import log_line
from segmenter.sampling import batch_without_repeats, part_table, plan
from segmenter.tiles.gsd import with_gsds
from segmenter.tiles.index import TileIndex, build_index
from tests.helpers.made_diagnosis import from_dict
from tests.helpers.refusals import refused
from tests.helpers.report_page import Page
from tests.helpers.scaled_scenes import scaled_dataset, scaled_recipe

Make = Callable[..., Path]
Data = dict[str, Any]
COLOURS = ((255, 0, 0), (0, 128, 255), (7, 7, 7), (9, 9, 0), (1, 2, 3))


def recipe(**sections: Data) -> Recipe:
    """A recipe whose dataset section is not used here."""
    settings: Data = {"training": {"global_batch": 16}, "tiles": {"size": 32}, **sections}
    dataset = {"kind": "naic2020", "root": "."}
    return recipe_from({"name": "made", "dataset": dataset, "model": {"depth": 2}, **settings}, "made")


def classes(names: str) -> ClassMap:
    return ClassMap(
        tuple(
            LandCoverClass(name, COLOURS[i] if i < len(COLOURS) else (i, i, i), i + 1)
            for i, name in enumerate(names.split(",") if "," in names else names)
        )
    )


def made(
    counts: Any, image: Path, *, names: str = "", per_scene: int = 1, across: int = 0
) -> tuple[Dataset, TileIndex]:
    """A dataset of scenes with `per_scene` tiles of 32 px each, `across` of them in a row."""
    counts = np.asarray(counts, np.int64)
    tiles, across = len(counts), across or per_scene
    number = np.arange(tiles) // per_scene
    place = np.arange(tiles) % per_scene
    scenes = tuple(
        Scene(f"s{i}", image, image, f"s{i}", "train") for i in range(int(number.max(initial=-1)) + 1)
    )
    dataset = Dataset("made", image.parent, scenes, classes(names or "abcde"[: counts.shape[1]]))
    rows, cols = place // across * 32, place % across * 32
    index = TileIndex(
        *(scenes, number.astype(np.int32), rows.astype(np.int32), cols.astype(np.int32)),
        *(counts.sum(axis=1), counts, Size(32, 32), 0),
    )
    return dataset, index


def rare(tiles: int, held: int, *, common: int = 900) -> np.ndarray:
    """Class a everywhere, class b in the first `held` tiles."""
    counts = np.zeros((tiles, 2), np.int64)
    counts[:, 0], counts[:held, 1] = common, 100
    return counts


def diagnosed(counts: Any, image: Path, batches: tuple[int, ...] = (16,), **options: Any) -> Data:
    config = options.pop("config", None) or recipe()
    run = options.pop("run", None)
    return diagnose(config, *made(counts, image, **options), batches, run, progress=False).to_dict()


@pytest.fixture
def image(make_png: Make) -> Path:
    """An image without georeference, for tables whose scenes do not matter."""
    return make_png("image.png", np.ones((32, 32, 3), np.uint8))


def lever(found: Data, kind: str) -> str:
    """The texts of one lever; empty where there is none."""
    return " ".join(one["text"] for one in found["limit"]["levers"] if one["lever"] == kind)


def test_facts_are_those_of_the_label_files(tmp_path: Path, make_geotiff: Make) -> None:
    labels = [np.random.default_rng(i).integers(1, 4, (101, 203)).astype(np.uint8) for i in range(2)]
    labels[1][labels[1] == 3] = 1
    scenes = []
    for i, label in enumerate(labels):
        image = make_geotiff(f"i{i}.tif", np.ones((101, 203, 3), np.uint8))
        scenes.append(Scene(f"s{i}", image, make_geotiff(f"l{i}.tif", label), f"s{i}", "train"))
    dataset = Dataset("made", tmp_path, tuple(scenes), classes("abcd"))
    index = build_index(dataset, "train", TilesConfig(size=32, overlap=3), progress=False)
    config = recipe(tiles={"size": 32, "overlap": 3})
    diagnosis = diagnose(config, dataset, index, (8, 16), progress=False)
    found = diagnosis.to_dict()
    assert from_dict(found) == diagnosis
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["version"], found["split"], found["scenes"], found["tiles"]) == (1, "train", 2, 2 * 4 * 7)
    assert (found["tile_px"], found["overlap_px"], found["min_pixels"]) == (32, 3, 32)
    assert [c["scenes"] for c in found["classes"]] == [2, 2, 1, 0]
    assert [c["colour"] for c in found["classes"]][:2] == ["#ff0000", "#0080ff"]
    assert [c["tiles"] for c in found["classes"]] == [56, 56, 28, 0]
    assert sum(c["share"] for c in found["classes"]) == pytest.approx(1)
    assert found["tiles_by_classes"] == [0, 0, 28, 28, 0]
    assert found["together"][0] == [56, 56, 28, 0]
    assert found["forecast"]["classes"] == [0, 1, 2]
    assert [one["batch"] for one in found["forecast"]["batches"]] == [8, 16]
    assert found["forecast"]["curve"][-1]["batch"] <= 56
    assert [m["crs"] for m in found["maps"]] == ["EPSG:25833"] * 2
    assert found["run"] is None


def table_of(tiles: int = 203, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = np.where(rng.random((tiles, 4)) < [0.9, 0.5, 0.2, 0.03], rng.integers(1, 900, (tiles, 4)), 0)
    counts[[3, 77], 3] = 500
    return counts


def side_of(rows: np.ndarray, counts: np.ndarray, replicas: int) -> Data:
    """The facts about an epoch, counted tile by tile."""
    held = [[{c for c in range(4) if counts[t, c] >= 32} for t in row] for row in rows]
    steps = [set().union(*row) for row in held]
    everything = {c for c in range(4) if (counts[:, c] >= 32).any()}
    gaps = []
    for c in range(4):
        seen = [-1, *(i for i, step in enumerate(steps) if c in step), len(steps)]
        gaps.append(np.diff(seen) if len(seen) > 2 else None)
    blocks = [b for row in held for b in np.array_split(np.array(row, object), replicas)]
    return {
        "complete_steps": np.mean([step >= everything for step in steps]),
        "classes_per_step": np.mean([len(step) for step in steps]),
        "held_share": [np.mean([c in step for step in steps]) for c in range(4)],
        "mean_gap": [None if g is None else g.mean() for g in gaps],
        "longest_gap": [None if g is None else g.max() for g in gaps],
        "classes_per_replica": np.mean([len(set().union(*block)) for block in blocks]),
    }


def same(side: Data, expected: Data) -> None:
    for key, value in expected.items():
        assert side[key] == pytest.approx(value), key


@pytest.mark.parametrize("batch", [3, 14, 16, 64])
def test_sides_are_those_of_the_epochs_that_training_would_have(image: Path, batch: int) -> None:
    counts = table_of()
    sampling = {"max_repeats_per_tile": 2, "per_replica": "off"}
    config = recipe(sampling=sampling, seed=5)
    (one,) = diagnosed(counts, image, (batch,), config=config)["plans"]
    off = config.sampling.model_copy(update={"coverage": "off"})
    same(one["shuffle"], side_of(plan(counts, batch, off, 5, 0).rows_SB, counts, min(4, batch)))
    result = plan(counts, batch, config.sampling, 5, 0)
    same(one["plan"], side_of(result.rows_SB, counts, min(4, batch)))
    assert (one["steps"], one["coverage_repeats"]) == (result.steps, result.coverage_repeats)
    assert one["fillers"] == result.fillers
    scarce = [result.steps - int((counts[:, c] >= 32).sum()) for c in result.promised]
    assert one["repeats_bound"] == max(0, *scarce) <= one["coverage_repeats"]
    assert all(one["plan"]["held_share"][c] == 1 for c in one["promised"])
    assert all(one["plan"]["longest_gap"][c] == 1 for c in one["promised"])


def test_each_sampling_is_the_epoch_that_training_would_have(image: Path) -> None:
    counts = table_of()
    config = recipe(sampling={"method": "foreground", "foreground_share": 0.5}, seed=5)
    found = diagnosed(counts, image, (16,), config=config)
    assert [one["method"] for one in found["samplings"]] == [
        *("plan", "shuffle", "repeat_factor", "rare_class", "foreground")
    ]
    for one in found["samplings"]:
        rules = config.sampling.model_copy(update={"method": one["method"]})
        rows = plan(counts, 16, rules, 5, 0).rows_SB
        held = (counts >= 32)[rows].any(axis=1)
        assert one["complete_steps"] == held[:, (counts >= 32).any(axis=0)].all(axis=1).mean()
        assert one["limiting_steps"] == held[:, found["limit"]["class"]].mean()
        assert (one["steps"], one["most_uses"]) == (len(rows), np.bincount(rows.reshape(-1)).max())
        assert one["tiles_seen"] == len(np.unique(rows)) / len(counts)
    text = table(from_dict(found))
    assert "an epoch by each method of sampling:" in text
    (line,) = (line.split() for line in text.splitlines() if "repeat_factor" in line)
    (one,) = (one for one in found["samplings"] if one["method"] == "repeat_factor")
    assert line[1:3] + line[-1:] == ["16", str(one["steps"]), str(one["most_uses"])]


@pytest.mark.parametrize("by_hand", [{}, {"b": 3}])
def test_quotas_are_those_of_the_plan_that_training_would_have(image: Path, by_hand: dict[str, int]) -> None:
    counts = table_of()
    found = diagnosed(counts, image, (16,), config=recipe(seed=5, sampling={"quotas": by_hand}))
    assert [one["lift"] for one in found["quotas"]] == [None, 1, 2, 3, 5]
    assert found["plans"][0]["coverage_repeats"] == found["quotas"][0]["repeats"]
    assert ("without the recipe's quotas" in found["limit"]["why"]) == bool(by_hand)
    for one in found["quotas"]:
        rules: Data = {"quota": "rarity", "lift": one["lift"]} if one["lift"] else {}
        result = plan(part_table(counts, names="abcd"), 16, SamplingConfig(quotas=by_hand, **rules), 5, 0)
        assert (one["steps"], one["repeats"]) == (result.steps, result.coverage_repeats)
        assert one["tiles"] == [result.mean_tiles.get(c, 0) for c in range(counts.shape[1])]
        shown = (counts >= 32)[result.rows_SB].sum(axis=(0, 1))
        held = (counts >= 32).sum(axis=0)
        assert one["uses"] == [s / n if n else None for s, n in zip(shown, held, strict=True)]
    text = table(from_dict(found))
    (line,) = (line.split() for line in text.splitlines() if line.strip().startswith("repeats "))
    assert line[1:] == [f"{one['repeats']:,}" for one in found["quotas"]]


def test_dealing_shows_a_replica_more_classes(image: Path) -> None:
    dealt, cut = (
        diagnosed(table_of(), image, (16,), config=recipe(sampling={"per_replica": how}))["plans"][0]
        for how in ("best_effort", "off")
    )
    assert dealt["plan"]["classes_per_replica"] > cut["plan"]["classes_per_replica"]
    assert dealt["shuffle"] == cut["shuffle"]
    assert dealt["plan"]["classes_per_step"] == cut["plan"]["classes_per_step"]


def test_a_refused_plan_does_not_stop_the_diagnosis(image: Path) -> None:
    counts = np.zeros((60, 3), np.int64)
    counts[np.arange(60), np.arange(60) % 3] = 500  # a class each: two tiles never hold three
    found = diagnosed(counts, image, (2, 6), names="x,y,z")
    bad, good = found["plans"]
    assert "expected a training.global_batch of at least 3" in bad["refused"]
    assert (bad["plan"], bad["steps"], bad["shuffle"]["complete_steps"]) == (None, 0, 0.0)
    assert (good["refused"], good["plan"]["complete_steps"], good["coverage_repeats"]) == (None, 1.0, 0)
    assert f"batch 2: {bad['refused']}" in " ".join(table(from_dict(found)).split())


def test_strict_is_refused_as_training_would_be_and_off_is_shown_as_if_planned(image: Path) -> None:
    strict = diagnosed(rare(100, 4), image, (10,), config=recipe(sampling={"coverage": "strict"}))
    assert "b is held by 4 tiles" in strict["plans"][0]["refused"]
    off = diagnosed(rare(100, 4), image, (10,), config=recipe(sampling={"coverage": "off"}))
    assert (off["plans"][0]["promised"], off["plans"][0]["coverage_repeats"]) == ([0, 1], 7)  # 11 steps


@pytest.mark.parametrize(("quotas", "got"), [({"boat": 2}, "boat"), ({"a": 8, "b": 9}, 17)])
def test_quotas_that_a_training_refuses_are_refused(image: Path, quotas: dict[str, int], got: object) -> None:
    with refused(DatasetError, where="sampling.quotas", got=got):
        diagnosed(rare(100, 40), image, config=recipe(sampling={"quotas": quotas}))


def test_advice_on_batch_and_labels_comes_true(image: Path) -> None:
    """43 of 1009 tiles hold b: 65 steps with the repeats. The batch that is named needs none."""
    counts = rare(1009, 43)
    config = recipe(sampling={"max_repeats_per_tile": 9})
    found = diagnosed(counts, image, config=config)
    assert found["limit"]["class"] == 1
    assert "43 of 1009 (4.26%)" in found["limit"]["why"]
    assert "65 steps, so tiles that hold it are repeated 22 times at least" in found["limit"]["why"]
    assert "From a global batch of 24 on (the recipe has 16)" in lever(found, "batch")
    assert plan(counts, 24, config.sampling, 0, 0).coverage_repeats == 0
    assert plan(counts, 20, config.sampling, 0, 0).coverage_repeats > 0
    assert "22 more tiles with it would do at the recipe's global batch of 16" in lever(found, "label")
    for more, forced in ((22, False), (21, True)):
        grown = np.vstack([counts, [[900, 100]] * more])
        assert (plan(grown, 16, config.sampling, 0, 0).coverage_repeats > 0) == forced


def test_advice_comes_true_where_each_device_gets_every_class(image: Path) -> None:
    """43 of 1009 tiles hold b: 81 steps of four devices, with the repeats, need 324."""
    counts = rare(1009, 43)
    guaranteed = {"per_replica": "guarantee"}
    found = diagnosed(counts, image, config=recipe(sampling=guaranteed | {"max_repeats_per_tile": 9}))
    assert "repeated 281 times at least" in found["limit"]["why"]
    assert "From a global batch of 104 on" in lever(found, "batch")
    config = recipe(sampling=guaranteed).sampling
    for batch, forced in ((104, False), (100, True)):
        assert (plan(counts, batch, config, 0, 0, replicas=4).coverage_repeats > 0) == forced
    assert "281 more tiles with it" in lever(found, "label")
    for more, forced in ((281, False), (280, True)):
        grown = np.vstack([counts, [[900, 100]] * more])
        assert (plan(grown, 16, config, 0, 0, replicas=4).coverage_repeats > 0) == forced
    scarce = diagnosed(rare(1009, 43), image, config=recipe(sampling=guaranteed))
    assert "best effort" in scarce["limit"]["why"]
    assert "From 24 on it is promised, with repeats" in lever(scarce, "batch")
    assert plan(counts, 24, config, 0, 0, replicas=4).promised == (0, 1)
    assert plan(counts, 20, config, 0, 0, replicas=4).promised == (0,)


def test_no_batch_is_named_where_devices_outnumber_the_tiles(image: Path) -> None:
    strict = {"per_replica": "guarantee", "coverage": "strict"}
    found = diagnosed(rare(100, 3), image, (16, 400), config=recipe(sampling=strict))
    assert all("no batch size would do" in each["refused"] for each in found["plans"])
    assert batch_without_repeats(rare(100, 3), 32, 4) is None
    assert batch_without_repeats(rare(100, 4), 32, 4) == 100


@pytest.mark.parametrize(("most", "batch"), [(0, 508), (1, 256)])
def test_repeats_are_named_where_there_may_be_some(most: int, batch: int, image: Path) -> None:
    config = recipe(sampling={"max_repeats_per_tile": most})
    text = lever(diagnosed(rare(1009, 2), image, config=config), "batch")
    assert text.endswith(f"From {batch} on it is promised{', with repeats' * most}.")
    assert plan(rare(1009, 2), batch, config.sampling, 0, 0).promised == (0, 1)


def test_a_class_that_is_best_effort_is_promised_from_the_batch_that_is_named(image: Path) -> None:
    counts = rare(1009, 2)
    found = diagnosed(counts, image)
    assert "best effort" in found["limit"]["why"]
    assert "From 104 on it is promised, with repeats." in lever(found, "batch")
    assert plan(counts, 104, recipe().sampling, 0, 0).promised == (0, 1)
    assert plan(counts, 100, recipe().sampling, 0, 0).promised == (0,)
    assert "batch 16: not promised, best effort: b" in table(from_dict(found))


def test_larger_tiles_are_told_where_they_help(image: Path) -> None:
    """Scenes of 4×4 tiles; b in one tile of 7 of the 40, so in 7 of 160 larger ones."""
    counts = np.zeros((640, 2), np.int64)
    counts[:, 0] = 900
    counts[np.arange(7) * 16, 1] = 100
    config = recipe(sampling={"max_repeats_per_tile": 50})
    found = diagnosed(counts, image, per_scene=16, across=4, config=config)
    text = lever(found, "tile_size")
    assert "Tiles of 64 px instead of 32 would hold b in about 4.4% of them instead of 1.1%" in text
    assert "from a global batch of 24 on" in text  # 160 / 7
    alone = diagnosed(counts, image, config=config)  # scenes of one tile have no neighbours to join
    assert lever(alone, "tile_size") == ""


def test_more_classes_than_can_be_planned_for_are_forecast_all_the_same(image: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 64, (300, 70))
    names = ",".join(f"class {i}" for i in range(70))
    found = diagnosed(counts, image, names=names)
    assert found["forecast"]["method"] == "simulation"
    assert 0 < found["forecast"]["batches"][0]["error"] < 0.01
    assert "at most 62 classes" in found["plans"][0]["refused"]
    assert "no epoch is planned" in found["limit"]["why"]
    assert " ± " in table(from_dict(found))


def log(folder: Path, lines: list[Data], tail: str = "") -> Path:
    text = "".join(map(log_line, lines))
    (folder / "log.jsonl").write_text(text + tail, encoding="utf-8")
    return folder


def trained(step: int, held: list[int], **more: Any) -> Data:
    counts = {"tiles_drawn": 80, "tiles_redrawn": 4, "tiles_replaced": 1}
    line = {"step": step, "epoch": step // 20, "steps": 5, "held_steps": held, "short_steps": 0, **counts}
    return {**line, "promised": [0, 1], "best_effort": [], **more}


def test_a_run_is_summed_from_its_log(image: Path, tmp_path: Path) -> None:
    lines = [
        trained(5, [5, 5]),
        {"step": 5, "epoch": 0, "miou": 0.5},
        trained(10, [5, 2], short_steps=3, promised=[0], best_effort=[1]),
    ]
    found = diagnosed(rare(40, 9), image, run=log(tmp_path, lines, '{"step": 15, "held'))
    ran = found["run"]
    assert (ran["steps"], ran["short_steps"], ran["tiles_drawn"]) == (10, 3, 160)
    assert (ran["redrawn"], ran["replaced"]) == pytest.approx((0.05, 0.0125))
    assert ran["held_share"] == pytest.approx([1, 0.7])
    assert (ran["promised"], ran["best_effort"]) == ([0], [1])
    assert [one["step"] for one in ran["history"]] == [5, 10]
    assert ran["history"][1]["held_share"] == pytest.approx([1, 0.4])
    assert "10 steps, 3 short of a promised class" in " ".join(table(from_dict(found)).split())


def test_runs_that_do_not_fit_are_refused(image: Path, tmp_path: Path) -> None:
    counts = rare(40, 9)
    with refused(CheckpointError, where="log.jsonl", expected="log"):
        diagnosed(counts, image, run=tmp_path / "none")
    with refused(CheckpointError, expected="training"):
        diagnosed(counts, image, run=log(tmp_path, [{"step": 1, "loss": 0.5}], "[1, 2]\n"))
    with refused(CheckpointError, where="log.jsonl", got="3 at step 5"):
        diagnosed(counts, image, run=log(tmp_path, [trained(5, [1, 2, 3])]))


def test_a_map_shows_where_a_class_lies(tmp_path: Path, make_geotiff: Make) -> None:
    """Class a in the west, b in the east, nothing labelled in the north-east corner."""
    label = np.full((160, 320), 1, np.uint8)
    label[:, 160:], label[:64, 256:] = 2, 9
    map_of = ClassMap(classes("ab").classes, "codes", (9,))
    image, truth = make_geotiff("i.tif", np.ones((160, 320, 3), np.uint8)), make_geotiff("l.tif", label)
    dataset = Dataset("made", tmp_path, (Scene("west_east", image, truth, "g", "train"),), map_of)
    index = build_index(dataset, "train", TilesConfig(size=32), progress=False)
    (one,) = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()["maps"]
    assert (one["name"], one["rows"], one["cols"], one["georeferenced"]) == ("west_east", 5, 10, True)
    assert one["bounds"] == [368000, 5808000 - 80, 368000 + 160, 5808000]
    a, b = one["share"]
    assert a[0] == [1.0] * 5 + [0.0] * 3 + [None] * 2
    assert b[4] == [0.0] * 5 + [1.0] * 5


@pytest.mark.parametrize("shape", [(1301, 331), (33, 70), (20, 31)])
def test_maps_are_coarse_and_without_holes(
    tmp_path: Path, make_geotiff: Make, shape: tuple[int, int]
) -> None:
    ids = np.random.default_rng(0).integers(1, 3, shape).astype(np.uint8)
    image, truth = make_geotiff("i.tif", np.ones((*shape, 1), np.uint8)), make_geotiff("l.tif", ids)
    dataset = Dataset("made", tmp_path, (Scene("s", image, truth, "s", "train"),), classes("ab"))
    for overlap in (0, 28):
        config = TilesConfig(size=32, overlap=overlap)
        index = build_index(dataset, "train", config, progress=False)
        (one,) = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()["maps"]
        assert one["rows"] == max(1, min(40, shape[0] // 32))
        assert one["cols"] == max(1, min(40, shape[1] // 32))
        total = np.array(one["share"], np.float64).sum(axis=0)
        assert total == pytest.approx(np.ones((one["rows"], one["cols"])), abs=1e-4)


def test_many_adjoining_scenes_share_a_map(tmp_path: Path, make_geotiff: Make) -> None:
    """A row of 27 scenes, one 20 km away, and one in another zone: three planes."""
    scenes, ids = [], np.full((32, 64), 1, np.uint8)
    for i in range(29):
        east = 368000 + 32 * i if i < 27 else 388000
        place = {"transform": rasterio.Affine(0.5, 0, east, 0, -0.5, 5808000)}
        place |= {"crs": "EPSG:25832" if i == 28 else "EPSG:25833"}
        image = make_geotiff(f"i{i}.tif", np.ones((32, 64, 3), np.uint8), **place)
        label = make_geotiff(f"l{i}.tif", ids + (i == 13), **place)
        scenes.append(Scene(f"s{i}", image, label, f"s{i}", "train"))
    dataset = Dataset("made", tmp_path, tuple(scenes), classes("ab"))
    index = build_index(dataset, "train", TilesConfig(size=32), progress=False)
    found = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()
    assert [(m["scenes"], m["crs"][-2:]) for m in found["maps"]] == [(27, "33"), (1, "33"), (1, "32")]
    row = found["maps"][0]
    assert (row["rows"], row["cols"], row["name"]) == (1, 40, "s0 and 26 adjoining")
    assert row["bounds"] == [368000, 5807984, 368000 + 27 * 32, 5808000]
    shares = row["share"][1][0]
    assert max(shares[19:21]) > 0
    assert not any(shares[:19] + shares[22:])


MakeScenes = Callable[..., Dataset]


@pytest.fixture
def scenes(
    tmp_path: Path, make_geotiff: Callable[..., Path], make_classes: Callable[..., ClassMap]
) -> MakeScenes:
    return lambda metres, **options: scaled_dataset(
        tmp_path, make_geotiff, make_classes(3), metres, **options
    )


def by_scale(dataset: Dataset, **sampling: object) -> Diagnosis:
    recipe = scaled_recipe(augmentation={}, sampling=sampling)
    index = build_index(dataset, "train", recipe.tiles, progress=False)
    index = with_gsds(index, dataset, recipe, progress=False)
    return diagnose(recipe, dataset, index, [12], progress=False)


def test_classes_by_scale_are_those_of_the_tiles(scenes: MakeScenes) -> None:
    dataset = scenes((0.1, 0.25, 2.0, 0.12))
    found = by_scale(dataset)
    scales = found.scales
    assert (scales.planned, scales.strata) == (False, ["0.088–0.18 m", "0.18–0.35 m", "1.4–2.8 m"])
    assert scales.scenes == [2, 1, 1]
    index = build_index(dataset, "train", scaled_recipe().tiles, progress=False)
    for t, some in enumerate(((0, 3), (1,), (2,))):
        tiles = [i for i in range(len(index)) if index.scene_N[i] in some]
        assert scales.tiles[t] == len(tiles)
        assert scales.held[t] == [sum(index.counts_NK[i, c] >= 32 for i in tiles) for c in range(3)]
        assert scales.pixels[t] == [sum(int(index.counts_NK[i, c]) for i in tiles) for c in range(3)]
    assert np.sum(scales.pixels) == sum(c.pixels for c in found.classes)
    assert from_dict(found.to_dict()) == found


def test_text_and_chart_have_the_same_numbers(scenes: MakeScenes) -> None:
    found = by_scale(scenes((0.1, 0.25, 2.0, 0.12)))
    scales = found.scales
    block = table(found).split("\n\n")[2].splitlines()
    assert block[0] == "tiles that hold a class, by metres a pixel of their scenes:"
    assert block[2].split() == ["scenes", "2", "1", "1"]
    assert [int(cell) for cell in block[6].split()[1::2]] == [held[2] for held in scales.held]
    assert block[7].startswith("random batches that hold each class at each scale (9 in all): ")
    page = Page(html_report(found))
    chart = page.data()["charts"]["class-scales"]
    go.Figure(chart["figures"][0])  # raises on a key or value that Plotly does not know
    shown = np.array(chart["figures"][0]["data"][0]["z"], float)
    order = sorted(range(3), key=lambda c: found.classes[c].tiles)
    wanted = [[100 * scales.held[t][c] / scales.tiles[t] for t in range(3)] for c in order]
    np.testing.assert_allclose(shown, wanted)
    assert "0.088–0.18 m (2 scenes" in page.text()
    assert "With boundaries in sampling.scale_strata" in " ".join(page.text().split())


def test_random_batches_by_scale_are_as_likely_as_drawn(scenes: MakeScenes, rng: np.random.Generator) -> None:
    dataset = scenes((0.1, 0.25, 2.0, 0.12))
    scales = by_scale(dataset).scales
    index = build_index(dataset, "train", scaled_recipe().tiles, progress=False)
    stratum_N = np.array([0, 1, 2, 0])[index.scene_N]
    held_NP = np.concatenate([(index.counts_NK >= 32) & (stratum_N == t)[:, None] for t in range(3)], axis=1)
    drawn = [held_NP[rng.permutation(len(index))[:12]].any(axis=0).all() for _ in range(4000)]
    assert scales.random[0].batch == 12
    assert scales.random[0].probability == pytest.approx(np.mean(drawn), abs=0.03)


def test_a_class_that_is_rare_at_its_scale_is_named(scenes: MakeScenes) -> None:
    found = by_scale(scenes((0.1, 0.25, 2.0, 0.12)), scale_strata=[0.15, 1.0], max_repeats_per_tile=0)
    assert (found.scales.planned, found.scales.strata) == (True, ["0.1–0.15 m", "0.15–1 m", "1–2 m"])
    rare = found.plans[0].rare_at_scale
    assert "c at 1–2 m" in rare
    assert f"best effort at their scale: {', '.join(rare)}" in " ".join(table(found).split())
    assert "Best effort at their scale" in Page(html_report(found)).text()


@pytest.mark.parametrize("quota", ["presence", "rarity"])
def test_all_tables_show_one_plan_by_scale(scenes: MakeScenes, quota: str) -> None:
    found = by_scale(scenes((0.1, 0.25, 2.0, 0.12)), scale_strata=[0.15, 1.0], quota=quota)
    shown = {found.plans[0].steps, found.samplings[0].steps}
    lift = None if quota == "presence" else 1
    assert shown == {one.steps for one in found.quotas if one.lift == lift}


def test_scenes_of_one_scale_or_of_none_known_have_no_such_table(scenes: MakeScenes) -> None:
    assert by_scale(scenes((0.1, 0.1, 0.11))).scales is None
    unknown = scenes((0.1, 0.25))
    assert by_scale(unknown).scales is not None
    plain = tuple(replace(s, metres_per_pixel=0.5) for s in unknown.scenes)
    assert by_scale(replace(unknown, scenes=plain)).scales is None  # the recipe's word goes first
