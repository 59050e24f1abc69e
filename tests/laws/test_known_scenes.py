"""Law 11: a run knows what it learnt; adding data changes no past role.

Groups keep their parts whatever is added or taken away, and whatever is asked of a run is answered by the
scenes that it had.
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datasets import load_dataset
from datasets.commands.calibrate import main as calibrate
from datasets.commands.predict import main as predict
from datasets.commands.review import main as review
from datasets.commands.train_stages import scenes_of, with_validation
from datasets.files import in_hash_order, parts_of, share_of, split_of
from datasets.known import dataset_of_run, keep_deal, known_dataset, scenes_of_run, seen_by
from datasets.start.choice import nest_choices
from datasets.start.like import as_before
from datasets.start.look import look
from segmenter.base.errors import CheckpointError, ConfigError
from segmenter.config.datasets import FolderSplit
from segmenter.config.reading import load_recipe, recipe_from, with_deals
from segmenter.config.recipe import AugmentationConfig, Recipe
from segmenter.demands.dataset import reach_of
from segmenter.grid.deals import Deal, Deals, deal_file, parts_dealt, read_deals, with_deal
from segmenter.grid.scenes import Dataset
from segmenter.runs.records import Origin, save_origin, save_validation_images
from segmenter.runs.run import Run, load_run
from segmenter.runs.scenes import FILE, load_scenes
from segmenter.tiles.scene_files import scene_digests
from segmenter.training.beginning.origin import record_scenes
from tests.helpers.made_folders import image, label, save
from tests.helpers.made_rasters import written
from tests.helpers.made_training import made, train, train_here
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run

# ------------------------------------------------------------------------------------------------ deals


def names_of(rng: random.Random, count: int) -> list[str]:
    """Return names as files have them: numbers, words, other scripts, line breaks, halves of characters."""
    letters = "abcxyz0123456789_-. é林\n\udcff"
    return list({"".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(2 * count)})[:count]


def dealt_and_kept(names: Sequence[str], split: FolderSplit, deals: Deals) -> tuple[dict[str, str], Deals]:
    parts = parts_of(names, split, deals)
    return parts, with_deal(deals, Deal(split.rule, parts))


@pytest.mark.parametrize("folds", range(2, 11))
def test_one_in_one_out_and_no_other_group_moves(folds: int) -> None:
    for count in (*range(max(3, folds), 12), 17, 30, 60):
        rng = random.Random(1000 * folds + count)
        names = names_of(rng, count + 3)
        held, extra = names[3:], names[:3]
        split = FolderSplit(folds=folds, seed=rng.randint(0, 9))
        before, deals = dealt_and_kept(held, split, ())
        sizes = Counter(before.values())
        assert max(sizes.values()) - min(sizes.values()) <= 1
        for new in extra:
            held = [*held, new]
            after, deals = dealt_and_kept(held, split, deals)
            assert {name: after[name] for name in before} == before
            sizes = Counter(after.values())
            assert max(sizes.values()) - min(sizes.values()) <= 1, "each new one goes to the smallest part"
            before = after
        gone = rng.choice(held)
        without, deals = dealt_and_kept([name for name in held if name != gone], split, deals)
        assert without == {name: part for name, part in before.items() if name != gone}
        back, _ = dealt_and_kept(held, split, deals)
        assert back == before, "what comes back is where it was"


def test_what_is_added_fills_the_gap_of_what_went() -> None:
    split = FolderSplit(folds=3)
    names = [f"scene_{i}" for i in range(12)]
    before, deals = dealt_and_kept(names, split, ())
    gone = [name for name in names if before[name] == "fold 2"][:3]
    held = [name for name in names if name not in gone]
    after, _ = dealt_and_kept([*held, "x", "y", "z"], split, deals)
    assert [after[name] for name in "xyz"] == ["fold 2"] * 3


@pytest.mark.parametrize(
    ("validation", "test"), [(0.2, 0.0), (0.2, 0.1), (0.0, 0.3), (0.5, 0.45), (0.01, 0.01)]
)
def test_shares_are_kept_while_groups_are_added(validation: float, test: float) -> None:
    split = FolderSplit(validation_share=validation, test_share=test)
    held, deals = [f"place {i}" for i in range(3)], Deals()
    before, deals = dealt_and_kept(held, split, deals)
    for number in range(60):
        held.append(f"new {number}")
        after, deals = dealt_and_kept(held, split, deals)
        assert {name: after[name] for name in before} == before
        before, sizes = after, Counter(after.values())
        for part, share in (("validation", validation), ("test", test)):
            assert abs(sizes[part] - share_of(len(held), share)) <= 1
        assert sizes["train"] >= 1


def test_without_a_deal_the_hash_deals_as_ever() -> None:
    names = [f"scene{i}" for i in range(40)]
    split = FolderSplit(folds=4, test_share=0.1, seed=3)
    ranked = in_hash_order(names, 3)
    parts = parts_of(names, split)
    assert [name for name in ranked if parts[name] == "test"] == ranked[-4:]
    for fold in range(1, 5):
        own = [name for name in names if split_of(parts[name], fold) == "validation"]
        assert sorted(own) == sorted(ranked[:-4][fold - 1 :: 4])


def test_the_test_of_one_deal_is_that_of_another() -> None:
    names = [f"scene{i}" for i in range(30)]
    plain = FolderSplit(validation_share=0.2, test_share=0.2)
    first, deals = dealt_and_kept(names, plain, ())
    more = [*names, *(f"later {i}" for i in range(20))]
    grown, deals = dealt_and_kept(more, plain, deals)
    folds = parts_of(more, FolderSplit(folds=5, test_share=0.2), deals)
    assert {n for n in more if folds[n] == "test"} == {n for n in more if grown[n] == "test"}
    assert {n for n in names if first[n] == "test"} <= {n for n in more if folds[n] == "test"}


def test_a_deal_is_a_file_of_any_names_and_what_is_none_is_refused(tmp_path: Path) -> None:
    rng = random.Random(0)
    deals = Deals()
    for split in (FolderSplit(folds=3), FolderSplit(validation_share=0.3, seed=2)):
        _, deals = dealt_and_kept(names_of(rng, 25), split, deals)
    dataset = Dataset("d", tmp_path, (), None, deal=deals[0])  # type: ignore[arg-type]
    recipe = tmp_path / "mine.yaml"
    keep_deal(recipe, deals[1:], dataset)
    assert {deal.rule for deal in read_deals(deal_file(recipe))} == {deal.rule for deal in deals}
    assert parts_dealt(read_deals(deal_file(recipe)), deals[0].rule) == deals[0].parts
    for text in ("", "{", "[]", '{"deals": 3}', '{"deals": [{"rule": {}, "parts": {"a": "fold 0"}}]}',
                 '{"deals": [{"rule": {"folds": "3"}, "parts": {}}]}', "[" * 100_000):  # fmt: skip
        deal_file(recipe).write_text(text)
        with refused(ConfigError, where=deal_file(recipe)):
            read_deals(deal_file(recipe))


# ------------------------------------------------------------------------------------- records of a run


CLASSES = [{"name": "a", "code": 0}, {"name": "b", "code": 1}]


def recipe_of(root: Path, **split: Any) -> Recipe:
    """Return a recipe of a folder; images are `PLACE_PART.tif`."""
    section = {
        "kind": "folder",
        "root": str(root),
        "images": "images/{name}.tif",
        "labels": "labels/{name}.tif",
    }
    return recipe_from(
        {"name": "t", "dataset": {**section, "encoding": "codes", "classes": CLASSES, "split": split}}, "t"
    )


def add(root: Path, name: str, content: str = "") -> None:
    """Add a scene whose files are no rasters, but have content."""
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / f"{name}.tif").write_text(f"{content or name} {folder}")


def begun(path: Path, recipe: Recipe, *, before: bool = False, whole: bool = False) -> Run:
    """Return a run that began with today's scenes.

    Args:
        before: with the record of an earlier version.
        whole: validation scenes trained, too.
    """
    dataset = load_dataset(recipe)
    dataset = with_validation(dataset) if whole else dataset
    used = [scene for scene in dataset.scenes if scene.split != "test"]
    digests = scene_digests(used, path.parent, progress=False)
    run = bare_run(path, recipe=recipe)
    run.save()
    record_scenes(run.path, dataset, digests, resumed=False)
    if before:
        counts = {split: len(dataset.of(split)) for split in ("train", "validation", "test")}
        facts = {"tiles": 1, "tiles_left_out": 0, "tile_px": 1, "pixels": {}, "tiles_with": {}}
        save_origin(run.path, Origin.model_validate({"scenes": counts, **facts}))
        save_validation_images(run.path, dataset.of("validation"))
        (run.path / FILE).write_text(json.dumps({"format": 1, "scenes": digests}))
    return load_run(run.path)


def roles(dataset: Dataset) -> dict[str, str]:
    return {scene.name: scene.split for scene in dataset.scenes}


SPLITS: dict[str, dict[str, Any]] = {
    "folds": {"folds": 3, "fold": 2},
    "folds of places": {"folds": 3, "group": r"(p\d+)_"},
    "shares": {"validation_share": 0.3, "test_share": 0.2},
    "names": {"validation": ["p1_*"], "test": ["p2_0"]},
}


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", SPLITS)
def test_roles_stay_whatever_is_added_renamed_copied_or_taken_away(
    kind: str, before: bool, tmp_path: Path
) -> None:
    root = tmp_path / "data"
    for place in range(5):
        for part in range(3):
            add(root, f"p{place}_{part}")
    recipe = recipe_of(root, **SPLITS[kind])
    run = begun(tmp_path / "run", recipe, before=before)
    first = roles(dataset_of_run(run))
    assert first == roles(load_dataset(recipe))
    new = {f"p{9 if kind != 'names' else 1}_{number}" for number in range(4, 8)}
    if kind == "shares":  # of before, a name beyond those that trained might have been of the test
        new = {name for name in new if name not in in_hash_order([*first, *new])[-4:]}
        assert len(new) == 3
    for name in new:
        add(root, name)
    now = dataset_of_run(run)
    assert roles(now) == first
    assert any("new" in note for note in now.notes)
    if before:
        return  # what is renamed or gone has no role there that could be known in all kinds of split
    trained = next(name for name, role in first.items() if role == "train")
    validated = next(name for name, role in first.items() if role == "validation")
    for folder in ("images", "labels"):  # the trained one is renamed; a copy of it comes under a name
        shutil.copy(root / folder / f"{trained}.tif", root / folder / "p8_8.tif")
        (root / folder / f"{trained}.tif").rename(root / folder / "p8_7.tif")
    if kind == "names":
        (root / "images" / "p0_2.tif").write_text("the same picture, stored anew")
        first.pop(trained, None)
        assert dataset_of_run(run).of("train")
    else:
        gone = next(name for name, role in first.items() if role == "train" and name != trained)
        for folder in ("images", "labels"):
            (root / folder / f"{gone}.tif").unlink()
        first.pop(gone)
        first.pop(trained)
    today = dataset_of_run(run)
    found = roles(today)
    assert {name: found[name] for name in first} == first
    if kind != "names":
        assert any("gone" in note and f"{gone} (train)" in note for note in today.notes)
    assert {found["p8_7"], found["p8_8"]} == {"train"}, "content that trained, whatever it is called"
    assert found[validated] == "validation"
    assert not new & found.keys()


def test_a_corrected_label_and_an_image_stored_anew_keep_their_role(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for number in range(6):
        add(root, f"s{number}")
    run = begun(tmp_path / "run", recipe_of(root, folds=3))
    first = roles(dataset_of_run(run))
    (root / "labels" / "s1.tif").write_text("corrected")
    (root / "images" / "s2.tif").write_text("compressed")
    assert roles(dataset_of_run(run)) == first


def test_what_cannot_be_known_of_a_run_of_before_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for number in range(12):
        add(root, f"p{number % 4}_{number}")
    hashed = begun(tmp_path / "hashed", recipe_of(root, validation_share=0.3, test_share=0.2), before=True)
    grouped = begun(tmp_path / "grouped", recipe_of(root, folds=3, group=r"(p\d+)_"), before=True)
    named = begun(tmp_path / "named", recipe_of(root, validation=["p1_1"]), before=True)
    assert scenes_of_run(hashed, hashed.recipe).told
    above = next(
        n for n in map(str, range(10**6)) if in_hash_order([*roles(load_dataset(hashed.recipe)), n])[-1] == n
    )
    add(root, above)  # which may have been of the test, or may be new
    with refused(CheckpointError, where=hashed.path):
        dataset_of_run(hashed)
    (root / "images" / f"{above}.tif").unlink()
    (root / "labels" / f"{above}.tif").unlink()
    for folder in ("images", "labels"):
        (root / folder / "p3_3.tif").unlink()
    with refused(CheckpointError, where=grouped.path):
        dataset_of_run(grouped)
    assert roles(dataset_of_run(named))["p1_1"] == "validation"
    for run in (named, grouped):
        (run.path / FILE).unlink()
    assert roles(dataset_of_run(named))["p1_1"] == "validation", "the recipe says it"
    with refused(CheckpointError, where=grouped.path):
        dataset_of_run(grouped)


def test_a_damaged_or_edited_record_is_refused_and_the_run_still_predicts(tmp_path: Path) -> None:
    root = tmp_path / "data"
    for number in range(6):
        add(root, f"s{number}")
    run = begun(tmp_path / "run", recipe_of(root, folds=3))
    text = (run.path / FILE).read_text()
    for damaged in (text.replace('"train"', '"validation"', 1), text[:-40], "{}", "[" * 100_000, "\0"):
        (run.path / FILE).write_text(damaged)
        with refused(CheckpointError, where=run.path / FILE):
            load_scenes(run.path)
        assert load_run(run.path).recipe.dataset == load_run(run.path).recipe.dataset


def test_what_a_run_learnt_is_seen_from_other_recipes_by_content(tmp_path: Path) -> None:
    root, other = tmp_path / "data", tmp_path / "other"
    for number in range(9):
        add(root, f"s{number}")
        add(other, f"t{number}", f"s{number}")
        add(other, f"s{number}", f"no kin {number}")  # of one name, and nothing else
    run = begun(tmp_path / "run", recipe_of(root, folds=3))
    learnt = {name for name, role in roles(load_dataset(run.recipe)).items() if role == "train"}
    recipe = recipe_of(other, validation=["*"][:0], test=["t0"])
    dataset = load_dataset(recipe)
    seen = {scene.name for scene in seen_by(run, dataset.scenes, dataset, recipe)}
    assert seen == {name.replace("s", "t") for name in learnt}


# ----------------------------------------------------------------------------------------------- blocks


def raster(make_geotiff: Callable[..., Path], path: Path, side: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    make_geotiff(path / "images" / f"r{seed}.tif", rng.integers(0, 255, (side, side, 3)).astype(np.uint8))
    make_geotiff(path / "labels" / f"r{seed}.tif", rng.integers(0, 2, (side, side, 1)).astype(np.uint8))


def test_blocks_keep_their_parts_when_a_raster_is_added(
    make_geotiff: Callable[..., Path], tmp_path: Path
) -> None:
    root = tmp_path / "data"
    raster(make_geotiff, root, 97, 1)
    recipe = recipe_of(root, folds=3, fold=1, test_share=0.2, blocks={"size": 24, "buffer": 1})
    one = load_dataset(recipe)
    assert one.deal is not None
    run = begun(tmp_path / "run", recipe)
    old = begun(tmp_path / "old", recipe, before=True)
    everything = begun(tmp_path / "all", recipe, whole=True)
    raster(make_geotiff, root, 75, 2)
    both = load_dataset(with_deals(recipe, (one.deal,)))
    assert both.deal is not None
    assert {name: both.deal.parts[name] for name in one.deal.parts} == dict(one.deal.parts)
    for each in (run, old):
        now = dataset_of_run(each)
        assert [(s.name, s.split, s.title) for s in now.scenes] == [
            (f"r1_{split}", split, "r1") for split in ("train", "validation", "test")
        ]
        labels = [scene.label.read_bytes() for scene in (*now.scenes, *one.scenes) if scene.label]
        assert labels[:3] == labels[3:], "to the byte"
        assert any("new" in note and "r2" in note for note in now.notes)
    second = recipe_of(root, folds=3, fold=2, test_share=0.2, blocks={"size": 24, "buffer": 1})
    other = known_dataset(second, run, roles=False)
    test, validation = other.of("test"), other.of("validation")
    assert seen_by(run, test, other, second) == [], "the test trained no fold"
    assert seen_by(run, validation, other, second) == list(validation), "another fold trained on these blocks"
    assert not dataset_of_run(everything).of("validation")
    held = one.of("validation")
    assert seen_by(run, held, one, recipe) == []
    assert seen_by(everything, held, one, recipe) == list(held), "blocks of `--all` trained, too"
    assert seen_by(everything, one.of("test"), one, recipe) == []
    unlike = recipe_of(root, validation_share=0.3, blocks={"size": 30, "buffer": 1})
    dataset = load_dataset(unlike)
    seen = seen_by(run, dataset.of("validation"), dataset, unlike)
    assert [scene.title for scene in seen] == ["r1"], (
        "other blocks of an image that trained, not of a new one"
    )
    for folder in ("images", "labels"):
        (root / folder / "r1.tif").rename(root / folder / "renamed.tif")
    named_anew = load_dataset(recipe)
    held = [scene for scene in named_anew.of("validation") if scene.title == "renamed"]
    assert held, "in this deal"
    assert seen_by(everything, held, named_anew, recipe) == held, "which blocks these are cannot be told"
    assert seen_by(run, held, named_anew, recipe) == held


@pytest.mark.parametrize(
    ("scale", "rotation"), [(0.0, 0.0), (0.5, 0.0), (0.0, 45.0), (0.5, 15.0), (0.3, 170.0)]
)
def test_the_buffer_counts_what_augmentation_brings_near(scale: float, rotation: float) -> None:
    """Pixels of an augmented tile mix pixels of the scene at most `reach_of` away from those around them."""
    albumentations = pytest.importorskip("albumentations")
    radius, side, tested = 6, 121, 0
    reach = reach_of(radius, AugmentationConfig(scale=scale, rotation=rotation))
    rows_HW, cols_HW = np.indices((side, side)).astype(np.float32)
    zoom = (1 - scale, 1 + scale)
    affine = albumentations.Affine(scale=zoom, rotate=(-rotation, rotation), p=1.0, fill=-999)
    for seed in range(60):
        affine.set_random_seed(seed)
        shown = affine(image=np.dstack([rows_HW, cols_HW, rows_HW * 0]))["image"]
        whole = (shown >= 0).all(axis=-1) & (shown[..., 0] < side - 1)
        for row, col in ((60, 60), (40, 70), (75, 48)):
            around = slice(row - radius, row + radius + 1), slice(col - radius, col + radius + 1)
            if whole[around].all():
                far = np.abs(shown[around][..., :2] - shown[row, col, :2]).max()
                assert far <= reach
                tested += 1
    assert tested > 20
    if not scale and not rotation:
        assert reach == radius


# ---------------------------------------------------------------------------------------------- planning


def test_start_takes_over_the_split_of_a_recipe_beside_it(tmp_path: Path) -> None:
    root, recipe, rng = tmp_path / "data", tmp_path / "first.yaml", np.random.default_rng(3)
    for number in range(6):
        save(root / "images" / f"s{number}.tif", image(rng))
        save(root / "labels" / f"s{number}.tif", label([1, 2], shift=number))
    split = {"validation": ["s1", "s4"], "test": ["s2"]}
    seen = look(root, None)
    content = {"dataset": {**nest_choices(seen)["dataset"], "split": split}}
    recipe.write_text(json.dumps(content))
    for folder in ("images", "labels"):
        (root / folder / "s4.tif").unlink()
    seen = look(root, None)
    for like, output in ((None, tmp_path / "second.yaml"), (recipe, tmp_path / "elsewhere" / "third.yaml")):
        output.parent.mkdir(exist_ok=True)
        choices, _ = as_before(seen, like, output)
        taken = {choice.key: choice.value for choice in choices if choice.key.startswith("dataset.split.")}
        assert taken == {"dataset.split.validation": ["s1"], "dataset.split.test": ["s2"]}
    alone, deals = as_before(seen, None, tmp_path / "elsewhere" / "fourth.yaml")
    assert (alone, deals) == (seen, ())


# ------------------------------------------------------------------------------------- as a user would


def add_scene(root: Path, number: int) -> None:
    """Add a scene as `made_training.made` makes them, with other noise."""
    rng = np.random.default_rng(number)
    label = np.zeros((97, 83), np.uint8)
    label[:, 40:] = 1
    label[10:20, 10:20] = 2
    image = np.clip(
        np.repeat((label * 60 + 40)[..., None], 3, axis=2) + rng.normal(0, 8, (97, 83, 3)), 0, 255
    )
    written(root / "images" / f"s{number}.tif", image.astype(np.uint8))
    written(root / "labels" / f"s{number}.tif", label)


def answers(run: Path, output: Path) -> dict[str, bytes]:
    """Return what review, predict and calibrate say of a run, to the byte."""
    assert review([str(run), "--output", str(output), "--overwrite", "--cell", "16"]) == 0
    assert predict([str(run), "--split", "validation", "--output", str(output)]) == 0
    assert calibrate([str(run)]) == 0
    files = [*output.glob("*.tif"), output / "review.csv", output / "scores.json", run / "calibration.json"]
    return {file.name: file.read_bytes() for file in files if file.exists()}


@pytest.mark.slow
def test_after_a_scene_is_added_every_answer_is_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, run = tmp_path / "data", tmp_path / "run"
    recipe = made(root, scenes=7)
    settings = ["dataset.split.validation=[]", "dataset.split.folds=3", "training.epochs=1"]
    asked = load_recipe(recipe, settings)
    assert train_here(recipe, run, *settings) == 0
    keep_deal(recipe, (), load_dataset(asked))
    before = answers(run, tmp_path / "out")
    assert {"review.csv", "scores.json"} < before.keys()
    resumed, first = scenes_of(load_recipe(recipe, settings), run, None), load_dataset(asked)
    capsys.readouterr()
    for number in (11, 22):  # of these, ranks of the hashes would move all folds
        add_scene(root, number)
        assert answers(run, tmp_path / "out") == before
        said = capsys.readouterr().out
        assert said.count(f"s{number}") >= 2, "the new one is named"
    begun = scenes_of(load_recipe(recipe, settings), run, None)
    assert roles(begun) == roles(resumed) == roles(first), "a resumed training has its own scenes"
    again = load_dataset(load_recipe(recipe, settings))
    assert {name: roles(again)[name] for name in roles(first)} == roles(first), (
        "and so has a new one, and more"
    )
    assert len(again.scenes) == len(first.scenes) + 2
    other = load_dataset(load_recipe(recipe, [*settings, "dataset.split.fold=2"]))
    held_out = [*other.of("validation")]
    seen = seen_by(load_run(run), held_out, other, load_recipe(recipe, settings))
    assert {scene.name for scene in seen} == {scene.name for scene in held_out} - {"s11", "s22"}


@pytest.mark.slow
def test_folds_go_on_with_the_scenes_of_the_first(tmp_path: Path) -> None:
    """Folds stopped after the first, and a scene added: the others train and validate on the same scenes."""
    root, run = tmp_path / "data", tmp_path / "run"
    recipe = made(root, scenes=6)
    words = ("--folds", "3", "--run", str(run), "--set", "training.epochs=1")
    train(recipe, *words)
    assert deal_file(recipe).exists()
    before = {path.name: load_scenes(path) for path in sorted(run.glob("fold_*"))}
    shutil.rmtree(run / "fold_3")
    add_scene(root, 22)
    train(recipe, *words)
    after = {path.name: load_scenes(path) for path in sorted(run.glob("fold_*"))}
    assert after == before
    second = tmp_path / "second"
    fresh = train(recipe, *words[:3], str(second), *words[4:], "--init-from", str(run))
    assert f"trained {run}" not in fresh.stderr
    for path in sorted(second.glob("fold_*")):
        known, old = load_scenes(path), before[path.name]
        assert known is not None
        assert old is not None
        assert {name: known.scenes[name].role for name in old.scenes} == {
            name: scene.role for name, scene in old.scenes.items()
        }
        assert known.scenes.keys() - old.scenes.keys() == {"s22"}
    wrong = ("--folds", "2", "--run", str(tmp_path / "c"), "--init-from", str(run))
    assert train(recipe, *wrong, check=False).returncode == 2
