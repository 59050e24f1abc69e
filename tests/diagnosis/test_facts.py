"""A diagnosis and its maps say what tiles, plan, shuffle and log say; and its advice comes true."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio

from segmenter.base.errors import CheckpointError
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe, SamplingConfig, TilesConfig
from segmenter.diagnosis import Diagnosis, diagnose, table
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.grid.scenes import Dataset, Scene
from segmenter.runs.log import log_line
from segmenter.sampling import plan
from segmenter.tiles.index import TileIndex, build_index
from tests.helpers.refusals import refused

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


# ------------------------------------------------------------------------------- from real files


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
    assert Diagnosis.from_dict(found) == diagnosis
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


# ------------------------------------------------------------------------------ plan and shuffle


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
    text = table(Diagnosis.from_dict(found))
    assert "an epoch by each method of sampling:" in text
    (line,) = (line.split() for line in text.splitlines() if "repeat_factor" in line)
    (one,) = (one for one in found["samplings"] if one["method"] == "repeat_factor")
    assert line[1:3] + line[-1:] == ["16", str(one["steps"]), str(one["most_uses"])]


def test_quotas_are_those_of_the_plan_that_training_would_have(image: Path) -> None:
    counts = table_of()
    found = diagnosed(counts, image, (16,), config=recipe(seed=5))
    assert [one["lift"] for one in found["quotas"]] == [None, 1, 2, 3, 5]
    for one in found["quotas"][1:]:
        rules = SamplingConfig(quota="rarity", lift=one["lift"])
        result = plan(counts, 16, rules, 5, 0)
        assert (one["steps"], one["repeats"]) == (result.steps, result.coverage_repeats)
        given = dict(zip(result.promised, result.quotas, strict=True))
        assert one["tiles"] == [given[c].given if c in given else 0 for c in range(counts.shape[1])]
        shown = (counts >= 32)[result.rows_SB].sum(axis=(0, 1))
        held = (counts >= 32).sum(axis=0)
        assert one["uses"] == [s / n if n else None for s, n in zip(shown, held, strict=True)]
    text = table(Diagnosis.from_dict(found))
    (line,) = (line.split() for line in text.splitlines() if line.strip().startswith("repeats "))
    assert line[1:] == [f"{one['repeats']:,}" for one in found["quotas"]]


def test_advice_is_of_one_tile_of_each_class_whatever_the_quotas(image: Path) -> None:
    counts = table_of()
    presence, rarity = (
        diagnosed(counts, image, (16,), config=recipe(sampling={"quota": quota}))["limit"]
        for quota in ("presence", "rarity")
    )
    assert presence == rarity


def test_dealing_shows_a_replica_more_classes(image: Path) -> None:
    dealt, cut = (
        diagnosed(table_of(), image, (16,), config=recipe(sampling={"per_replica": how}))["plans"][0]
        for how in ("best_effort", "off")
    )
    assert dealt["plan"]["classes_per_replica"] > cut["plan"]["classes_per_replica"]
    assert dealt["shuffle"] == cut["shuffle"]
    assert dealt["plan"]["classes_per_step"] == cut["plan"]["classes_per_step"]


def test_a_class_seen_never_has_no_gap(image: Path) -> None:
    counts = np.hstack([rare(40, 9), np.zeros((40, 1), np.int64)])
    shuffle = diagnosed(counts, image)["plans"][0]["shuffle"]
    assert shuffle["mean_gap"][2] is shuffle["longest_gap"][2] is None


def test_a_refused_plan_does_not_stop_the_diagnosis(image: Path) -> None:
    counts = np.zeros((60, 3), np.int64)
    counts[np.arange(60), np.arange(60) % 3] = 500  # a class each: two tiles never hold three
    found = diagnosed(counts, image, (2, 6), names="x,y,z")
    bad, good = found["plans"]
    assert "expected a training.global_batch of at least 3" in bad["refused"]
    assert (bad["plan"], bad["steps"], bad["shuffle"]["complete_steps"]) == (None, 0, 0.0)
    assert (good["refused"], good["plan"]["complete_steps"], good["coverage_repeats"]) == (None, 1.0, 0)
    assert f"batch 2: {bad['refused']}" in " ".join(table(Diagnosis.from_dict(found)).split())


def test_strict_is_refused_as_training_would_be_and_off_is_shown_as_if_planned(image: Path) -> None:
    strict = diagnosed(rare(100, 4), image, (10,), config=recipe(sampling={"coverage": "strict"}))
    assert "b is held by 4 tiles" in strict["plans"][0]["refused"]
    off = diagnosed(rare(100, 4), image, (10,), config=recipe(sampling={"coverage": "off"}))
    assert (off["plans"][0]["promised"], off["plans"][0]["coverage_repeats"]) == ([0, 1], 7)  # 11 steps


# ---------------------------------------------------------------------------------- what limits it


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


def test_a_class_that_is_best_effort_is_promised_from_the_batch_that_is_named(image: Path) -> None:
    counts = rare(1009, 2)
    found = diagnosed(counts, image)
    assert "best effort" in found["limit"]["why"]
    assert "From 104 on it is promised, with repeats." in lever(found, "batch")
    assert plan(counts, 104, recipe().sampling, 0, 0).promised == (0, 1)
    assert plan(counts, 100, recipe().sampling, 0, 0).promised == (0,)
    assert "batch 16: not promised, best effort: b" in table(Diagnosis.from_dict(found))


def test_lowering_min_pixels_is_told_with_the_tiles_it_gives(image: Path) -> None:
    counts = rare(400, 5)
    counts[100:117, 1] = 32
    counts[200:250, 1] = 31  # never counted: no recipe goes below 32
    found = diagnosed(counts, image, config=recipe(sampling={"min_pixels": 64}))
    assert "32 instead of 64, 22 tiles would hold b instead of 5" in lever(found, "min_pixels")
    assert lever(diagnosed(counts, image), "min_pixels") == ""


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


def test_pixels_that_no_tile_holds_come_before_all_else(image: Path) -> None:
    counts = np.hstack([rare(64, 8), np.zeros((64, 1), np.int64)])
    counts[:40, 2] = 10
    counts[16:32, 2] = 11
    found = diagnosed(counts, image, per_scene=16, across=4)
    assert found["limit"]["class"] == 2
    assert "c has 416 pixels in 3 scenes, but no tile shows 32 of them" in found["limit"]["why"]
    assert lever(found, "batch") == ""
    assert "Tiles of 64 px instead of 32 would hold c" in lever(found, "tile_size")
    assert "c is in 3 of 4 scenes, most of all in s1 (0 tiles" in lever(found, "label")


def test_scenes_to_label_are_those_where_it_occurs_most(image: Path) -> None:
    counts = rare(80, 0)
    for scene, tiles in ((4, 7), (1, 5), (6, 1)):
        counts[scene * 10 : scene * 10 + tiles, 1] = 100
    text = lever(diagnosed(counts, image, per_scene=10, across=5), "label")
    assert "b is in 3 of 8 scenes, most of all in s4 (7 tiles, 7.22% of its pixels), s1 (5 tiles" in text
    assert text.index("s1 (") < text.index("s6 (1 tile,")
    assert "s0" not in text


def test_a_class_without_a_pixel_is_named(image: Path) -> None:
    found = diagnosed(np.hstack([rare(40, 9), np.zeros((40, 2), np.int64)]), image)
    assert "c, d have no labelled pixel in these tiles" in lever(found, "label")
    assert found["limit"]["class"] == 1


def test_more_classes_than_can_be_planned_for_are_forecast_all_the_same(image: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 64, (300, 70))
    names = ",".join(f"class {i}" for i in range(70))
    found = diagnosed(counts, image, names=names)
    assert found["forecast"]["method"] == "simulation"
    assert 0 < found["forecast"]["batches"][0]["error"] < 0.01
    assert "at most 62 classes" in found["plans"][0]["refused"]
    assert "no epoch is planned" in found["limit"]["why"]
    assert " ± " in table(Diagnosis.from_dict(found))


# ---------------------------------------------------------------------------------------- the run


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
    assert "10 steps, 3 short of a promised class" in " ".join(table(Diagnosis.from_dict(found)).split())


def test_a_long_log_is_taken_together(image: Path, tmp_path: Path) -> None:
    lines = [trained(5 * i, [5, i % 6]) for i in range(1, 1002)]
    ran = diagnosed(rare(40, 9), image, run=log(tmp_path, lines))["run"]
    assert len(ran["history"]) == 400
    assert ran["history"][-1]["step"] == 5005
    assert ran["held_share"][1] == pytest.approx(sum(i % 6 for i in range(1, 1002)) / 5005)


def test_runs_that_do_not_fit_are_refused(image: Path, tmp_path: Path) -> None:
    counts = rare(40, 9)
    with refused(CheckpointError, where="log.jsonl", expected="log"):
        diagnosed(counts, image, run=tmp_path / "none")
    with refused(CheckpointError, expected="training"):
        diagnosed(counts, image, run=log(tmp_path, [{"step": 1, "loss": 0.5}], "[1, 2]\n"))
    with refused(CheckpointError, where="log.jsonl", got="3 at step 5"):
        diagnosed(counts, image, run=log(tmp_path, [trained(5, [1, 2, 3])]))


# -------------------------------------------------------------------------------------- the table


def test_the_table_says_the_same_in_short(image: Path) -> None:
    found = diagnosed(table_of(), image, (16, 64), names="water,road,built-up,harbour\u200b")
    text = table(Diagnosis.from_dict(found))
    lines = text.splitlines()
    assert max(map(len, lines)) <= 130
    assert "\u200b" not in text
    row = next(line.split() for line in lines if line.startswith("  road"))
    assert row[1:4] == [str(found["classes"][1]["tiles"]), row[2], str(found["classes"][1]["pixels"])]
    one = found["plans"][0]
    row = next(line.split() for line in lines if line.split()[:2] == ["16", str(one["steps"])])
    assert [int(n) for n in row[2:5]] == [one[k] for k in ("coverage_repeats", "repeats_bound", "fillers")]
    assert f"{found['forecast']['needed']['99']} tiles for 99 %" in text
    assert "what limits: harbour? is held by the fewest tiles" in text


def test_a_share_is_a_whole_hundred_only_where_it_is(image: Path) -> None:
    """Half of the tiles lack b: 16 random tiles hold both all but always, 15 in a million do not."""
    text = table(Diagnosis.from_dict(diagnosed(rare(4000, 2000), image, (16,))))
    assert ">99.99%" in text
    assert "100.00%" in text  # of a, which all tiles hold


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
    """Odd sizes, tiles that overlap or reach beyond the scene: each cell has tiles."""
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


def test_scenes_without_a_place_lie_side_by_side_by_group(image: Path) -> None:
    """Five scenes of 2×3 tiles: blocks of a near-square, the last of its places empty."""
    counts = np.zeros((30, 2), np.int64)
    counts[:, 0] = 900
    counts[6 * 3 + 5] = [0, 900]  # the fourth scene's last tile
    dataset, index = made(counts, image, per_scene=6, across=3)
    scenes = tuple(Scene(s.name, s.image, s.label, "all", s.split) for s in dataset.scenes)
    index = TileIndex(**{**vars(index), "scenes": scenes})
    (one,) = diagnose(recipe(), dataset, index, (8,), progress=False).to_dict()["maps"]
    assert (one["name"], one["scenes"], one["georeferenced"], one["bounds"]) == ("all", 5, False, None)
    assert (one["rows"], one["cols"]) == (4, 9)  # two by three blocks
    b = one["share"][1]
    assert b[3] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0, None, None, None]
    assert sum(value or 0 for row in b for value in row) == 1


def test_what_is_not_drawn_is_counted(image: Path) -> None:
    large = diagnosed(rare(30 * 9, 5), image, per_scene=9, across=3)
    assert (len(large["maps"]), large["maps_left_out"]) == (24, 6)
    small = diagnosed(rare(2000, 5), image)
    assert [m["name"] for m in small["maps"]] == ["2000 small scenes in their order"]
    assert (small["maps"][0]["rows"], small["maps"][0]["cols"], small["maps_left_out"]) == (40, 40, 0)
    assert small["maps"][0]["share"][1][0][:5] == [0.1] * 4 + [0.0]
