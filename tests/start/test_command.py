"""`segmenter start`: a valid recipe with a reason behind each line, the same each time; folds are trained."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import rasterio
import yaml

from datasets import commands, load_dataset
from datasets.check import check_dataset
from datasets.commands.start import main
from datasets.commands.train import main as train_main
from datasets.published import POTSDAM_TEST
from datasets.start.choice import Choice, nest_choices, recipe_text
from datasets.start.draft import GIB, ModelSize
from datasets.start.look import look
from datasets.start.plan import _filling, _step_bytes, plan
from datasets.synthetic.make import make_naic2020, make_potsdam
from segmenter.base.errors import CheckpointError, ConfigError, DatasetError, SegmenterError
from segmenter.config.reading import load_recipe, parse, recipe_from
from segmenter.config.recipe import Recipe
from segmenter.mapping.request.map_request import MapRequest
from segmenter.runs.score_files import fold_path, fold_table, folds_in
from tests.helpers import made_folders as made
from tests.helpers.made_training import made as made_recipe
from tests.helpers.made_training import records, script, train
from tests.helpers.refusals import refused


def test_recipe_and_page_are_written_and_the_recipe_is_an_ordinary_one(data: Path, capsys: Any) -> None:
    before = {path for path in data.rglob("*") if ".tile-index" not in path.parts}
    assert main([str(data), "--gpus", "2x11GB"]) == 0
    recipe = load_recipe(Path("town.yaml"))
    assert recipe.dataset.root == "town"
    assert len(load_dataset(recipe).scenes) == 4
    text = Path("town.yaml").read_text()
    assert "segmenter start town --gpus 11GB,11GB" in text.splitlines()[0]
    settings = [line for line in text.splitlines() if ": " in line and not line.startswith(("#", "    - "))]
    assert settings
    assert all("  # " in line for line in settings)
    page = Path("town.html").read_text()
    assert page.count("<img ") == 9
    assert ">borders<" in page
    out = capsys.readouterr().out
    assert "town.yaml" in out
    assert "{name}.tif" in out
    assert {path for path in data.rglob("*") if ".tile-index" not in path.parts} == before


def test_the_same_files_give_the_same_bytes(data: Path) -> None:
    for name in ("one", "two"):
        Path(name).mkdir()
        assert main([str(data), "--output", f"{name}/town.yaml"]) == 0
    assert Path("one/town.yaml").read_bytes() == Path("two/town.yaml").read_bytes()


def test_nothing_is_written_over(data: Path) -> None:
    for existing in ("town.yaml", "town.html"):
        Path(existing).write_text("mine")
        with pytest.raises(ConfigError, match=existing):
            main([str(data)])
        assert Path(existing).read_text() == "mine"
        Path(existing).unlink()
    assert not list(Path().glob("town.*"))


def test_a_setting_is_explained_and_nothing_written(data: Path, capsys: Any) -> None:
    assert main([str(data), "--explain", "dataset.labels"]) == 0
    out = capsys.readouterr().out
    assert "gt/{name}.tif" in out
    assert "reason: 4 labels" in out
    with pytest.raises(ConfigError, match=r"mean dataset\.labels"):
        main([str(data), "--explain", "dataset.label"])
    assert not list(Path().glob("town.*"))


def test_json_is_alone_on_stdout(data: Path, capsys: Any) -> None:
    assert main([str(data), "--json", "--page", "look.html"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {"key": "dataset.kind", "value": "folder"}.items() <= told[0].items()
    assert Path("look.html").is_file()
    assert not Path("town.html").exists()


@pytest.mark.slow
def test_fewer_hours_say_what_they_cost_and_too_few_name_those_that_are_enough(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from datasets.start import plan
    from datasets.start.look import look

    monkeypatch.setattr(plan, "_step_seconds", lambda draft: 1.0)  # 1,000 steps in four fifths of the time
    seen = look(data)
    epochs = {
        hours: next(each for each in plan.plan(seen, "town", hours) if each.key == "training.epochs")
        for hours in (0.1, 0.4, 9, None)
    }
    assert epochs[0.1].other.startswith("--hours 0.35")
    assert not epochs[0.4].other
    steps = re.search(r"([\d,]+) steps of", epochs[None].reason)
    assert steps is not None
    assert f"without --hours it would be {steps[1]}" in epochs[0.1].reason
    assert not any("without --hours" in epochs[hours].reason for hours in (9, None))


@pytest.mark.parametrize("cards", ["4x11GB", "4×11", "11GB,11G,2x11 GB"])
def test_cards_are_read(cards: str, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from datasets.start import plan

    asked: list[Any] = []
    monkeypatch.setattr(plan, "plan", lambda choices, *told: asked.append(told) or ())
    assert main([str(data), "--gpus", cards, "--hours", "2.5"]) == 0
    assert [told[:3] for told in asked] == [("town", 2.5, (11, 11, 11, 11))]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--gpus", "many"],
        ["--gpus", "0x11"],
        ["--gpus", "4"],
        ["--gpus", "11GB,24"],
        ["--hours", "0"],
        ["--nothing"],
    ],
)
def test_wrong_calls_end_with_code_2(arguments: list[str], data: Path) -> None:
    with pytest.raises(SystemExit) as end:
        main([str(data), *arguments])
    assert end.value.code == 2


def test_any_value_survives_the_recipe_file() -> None:
    odd = ["a: b", "#ff0000", "- x", "{a}", "é\u2028", "'", "2_10", "yes", "*.tif", "1e3", " x "]
    choices = [
        Choice("dataset.split.leave_out", odd, "line\nend # and: more"),
        Choice("dataset.classes", [{"name": each, "colour": "#010203"} for each in odd], "classes", "other"),
        Choice("training.learning_rate", 0.002, "number"),
        Choice("tiles.size", 256, "#00ff00: a colour"),
        Choice("dataset.bands", None, "none"),
    ]
    assert parse(recipe_text(choices, "segmenter start x\ny"), "text") == nest_choices(choices)


@pytest.mark.parametrize("failing", ["town.yaml", "town.html"])
def test_a_full_disk_leaves_neither_file(data: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    from segmenter.base import files

    whole = files.write_whole

    def write(path: Path, content: bytes) -> None:
        if path.name == failing:
            raise SegmenterError(f"{path}: cannot write it: No space left on device")
        whole(path, content)

    monkeypatch.setattr(files, "write_whole", write)
    with pytest.raises(SegmenterError):
        main([str(data)])
    assert not Path("town.yaml").exists()
    assert not Path("town.html").exists()


FOLDS = ("--folds", "2")
HOSTS = ["127.0.0.1:2222", "127.0.0.1:2223"]


def test_folds_are_found_in_order_and_a_run_is_none(tmp_path: Path) -> None:
    for fold in (1, 2, 10):
        fold_path(tmp_path, fold).mkdir()
        (fold_path(tmp_path, fold) / "run.json").write_text("{}")
    (tmp_path / "other").mkdir()
    assert [path.name for path in folds_in(tmp_path)] == ["fold_1", "fold_2", "fold_10"]
    request = MapRequest(run=tmp_path, inputs=(str(tmp_path),), output=tmp_path / "maps")
    assert request.runs == tuple(folds_in(tmp_path))
    with pytest.raises(SegmenterError, match=r"fold_1"):
        fold_table(folds_in(tmp_path))
    (tmp_path / "run.json").write_text("{}")
    assert folds_in(tmp_path) == []


@pytest.mark.slow
def test_without_folds_in_the_recipe_there_is_nothing_to_train(tmp_path: Path) -> None:
    done = train(made_recipe(tmp_path / "data"), "--folds", "--run", str(tmp_path / "run"), check=False)
    assert done.returncode == 2
    assert "dataset.split.folds" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "where"),
    [
        (f"--cluster {','.join(HOSTS)} --index 1", "--folds"),
        ("--set distribution.strategy=parameter_server --role ps", "--folds"),
        ("--set distribution.strategy=multi_worker_mirrored", "distribution.strategy"),
        ("--index 1", "--index"),
        ("--resume-from 3", "--folds"),
        ("", "--folds"),  # of a cluster by the environment
    ],
)
def test_folds_are_trained_by_one_machine(
    words: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not words:
        workers = {"cluster": {"worker": HOSTS}, "task": {"type": "worker", "index": 0}}
        monkeypatch.setenv("TF_CONFIG", json.dumps(workers))
    recipe = made_recipe(tmp_path / "data")
    with refused(ConfigError, where=where):
        train_main([str(recipe), *FOLDS, "--run", str(tmp_path / "run"), *words.split()])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("there", "words"), [("run.json", FOLDS), ("fold_1/run.json", ())])
def test_a_run_and_folds_do_not_share_a_directory(there: str, words: Sequence[str], tmp_path: Path) -> None:
    """Else `predict.py` would map with the run, where the folds were asked for."""
    recipe, run = made_recipe(tmp_path / "data"), tmp_path / "run"
    (run / there).parent.mkdir(parents=True)
    (run / there).write_text("{}")
    with refused(CheckpointError, where=run):
        train_main([str(recipe), "--run", str(run), *words])


@pytest.mark.parametrize(("apart", "leaks"), [(0, True), (60, True), (83, False)])
def test_folds_that_show_the_same_ground_are_named(
    apart: int, leaks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    recipe = made_recipe(tmp_path / "data")
    for number in range(5):
        for part in ("images", "labels"):
            with rasterio.open(tmp_path / "data" / part / f"s{number}.tif", "r+") as file:
                file.transform = rasterio.Affine(1, 0, number * apart, 0, -1, 97)
    monkeypatch.setattr(commands.train, "train", lambda *_, **__: SimpleNamespace(exit_code=3))
    assert train_main([str(recipe), *FOLDS, "--run", str(tmp_path / "run")]) == 3
    assert ("show the same ground" in capsys.readouterr().err) == leaks


@pytest.mark.slow
def test_folds_train_resume_and_predict_together(tmp_path: Path) -> None:
    recipe, run = made_recipe(tmp_path / "data"), tmp_path / "run"
    first = train(recipe, *FOLDS, "--run", str(run), "--set", "training.epochs=1")
    runs = folds_in(run)
    assert [path.name for path in runs] == ["fold_1", "fold_2"]
    table = fold_table(runs)
    assert table in first.stdout
    before = [records(path) for path in runs]
    again = train(recipe, *FOLDS, "--run", str(run), "--set", "training.epochs=1", "--json")
    assert table in again.stderr
    assert [each["run"] for each in json.loads(again.stdout)["folds"]] == list(map(str, runs))
    assert [[r for r in records(path) if "loss" in r] for path in runs] == [
        [r for r in each if "loss" in r] for each in before
    ], "what is finished is not trained again"
    maps = tmp_path / "maps"
    images = str(tmp_path / "data" / "images")
    script("predict.py", str(run), images, "--output", str(maps))
    assert len(list(maps.glob("*.tif"))) == 5
    none = script("predict.py", str(run), "--split", "validation", "--output", str(maps), check=False)
    assert none.returncode == 2
    assert "folds" in none.stderr


pytestmark = pytest.mark.usefixtures("tensorflow")


def given(root: Path, names: Sequence[str], first: int = 0, **more: Any) -> list[Choice]:
    """Choices of a folder's dataset section with codes."""
    classes = [{"name": name, "code": first + i} for i, name in enumerate(names)]
    section = {
        "kind": "folder",
        "root": str(root),
        "images": "images/{name}.tif",
        "labels": "labels/{name}.tif",
        "classes": classes,
    } | more
    return [Choice(f"dataset.{key}", value, "") for key, value in section.items()]


def recipe_of(dataset: Sequence[Choice], choices: Sequence[Choice]) -> Recipe:
    return recipe_from({"name": "planned", **nest_choices([*dataset, *choices])}, "here")


def values(choices: Sequence[Choice]) -> dict[str, Any]:
    return {choice.key: choice.value for choice in choices}


@pytest.fixture
def scenes(tmp_path: Path, make_geotiff: Callable[..., Path]) -> Callable[..., Path]:
    """`scenes(["a", …], size, dtype="uint16", …)`: scenes of three classes, the last of them scarce."""

    def make(
        names: Sequence[str],
        size: tuple[int, int],
        *,
        dtype: str = "uint8",
        bands: int = 3,
        street: bool = False,
        **more: Any,
    ) -> Path:
        rng = np.random.default_rng(5)
        rows, cols = np.mgrid[: size[0], : size[1]]
        for i, name in enumerate(names):
            label = ((rows // 23 + cols // 31 + i) % 2).astype(np.uint8)
            if street:
                label = (rows > size[0] // 2).astype(np.uint8)
            label[:: 2 * (i % 3) + 11, :9] = 2
            own = rng.normal(0, 30, (size[0] // 7 + 1, size[1] // 7 + 1))  # else scenes are copies with noise
            image = label * 60 + 90 + own[rows // 7, cols // 7]
            image = image[..., None] + rng.normal(0, 8, (*size, bands))
            place = more if "crs" in more else {**more, "crs": None}
            make_geotiff(f"images/{name}.tif", np.clip(image, 0, 250).astype(dtype), **place)
            make_geotiff(f"labels/{name}.tif", label, **place)
        return tmp_path

    return make


def test_a_plan_is_valid_reasoned_and_the_same_each_time(scenes: Callable[..., Path]) -> None:
    dataset = given(scenes([f"s{i}x" for i in range(9)], (97, 131)), "abc")
    choices = plan(dataset, "planned", gpus=())
    assert choices == plan(dataset, "planned", gpus=())
    assert all(choice.reason and "\n" not in choice.reason for choice in choices)
    assert len({choice.key for choice in choices}) == len(choices)
    recipe = recipe_of(dataset, choices)
    report = check_dataset(load_dataset(recipe), progress=False)
    assert report.clean
    assert (report.pixels_PK > 0).all(), "9 scenes: classes train, validate and are tested"
    assert recipe.tiles.size <= 97
    assert recipe.sampling.method == "plan"


@pytest.mark.slow
def test_numbered_pieces_stay_together(scenes: Callable[..., Path]) -> None:
    names = [f"{place}_{i:03}" for place in ("ash", "birch", "cedar", "elm", "fir") for i in range(1, 5)]
    dataset = given(scenes(names, (64, 71)), "abc")
    loaded = load_dataset(recipe_of(dataset, plan(dataset, "planned", gpus=())))
    sides = {scene.name.split("_")[0]: scene.split for scene in loaded.scenes}
    assert all(scene.split == sides[scene.name.split("_")[0]] for scene in loaded.scenes)
    assert {*sides.values()} == {"train", "validation"}


def test_an_existing_split_is_kept(scenes: Callable[..., Path]) -> None:
    root = scenes([f"s{i}x" for i in range(6)], (64, 64))
    dataset = [*given(root, "abc"), Choice("dataset.split.validation", ["s1x"], "")]
    assert not any(choice.key.startswith("dataset.") for choice in plan(dataset, "planned", gpus=()))


def test_a_given_test_may_cut_series(scenes: Callable[..., Path]) -> None:
    names = [f"{place}_{i:03}" for place in ("ash", "birch", "cedar", "elm", "fir") for i in range(1, 5)]
    test = [name for name in names if name.endswith("_004")]
    dataset = [*given(scenes(names, (64, 71)), "abc"), Choice("dataset.split.test", test, "")]
    loaded = load_dataset(recipe_of(dataset, plan(dataset, "planned", gpus=())))
    assert [scene.name for scene in loaded.of("test")] == test
    assert len({scene.name[:3] for scene in loaded.of("validation")}) == 1


@pytest.mark.slow
def test_windows_that_overlap_are_held_out_in_strips_and_leak_nothing(
    tmp_path: Path, make_geotiff: Callable[..., Path], rng: np.random.Generator
) -> None:
    for i, (row, col) in enumerate((row, col) for col in range(12) for row in range(3)):
        label = (np.indices((64, 64)).sum(axis=0) // 9 + i) % 3
        place = made.place(32 * col)
        place["transform"] @= rasterio.Affine.translation(0, 32 * row)
        make_geotiff(f"images/w{i}.tif", made.image(rng, size=(64, 64)), **place)
        make_geotiff(f"labels/w{i}.tif", label.astype(np.uint8), **place)
    dataset = [*given(tmp_path, "abc"), Choice("dataset.split.leave_out", ["w30"], "")]
    loaded = load_dataset(recipe_of(dataset, plan(dataset, "planned", gpus=())))
    assert not [each for each in check_dataset(loaded, progress=False).findings if each.kind == "leak"]
    assert len(loaded.scenes) >= 24
    assert "w30" not in {scene.name for scene in loaded.scenes}


def test_more_classes_than_a_plan_takes_are_drawn(tmp_path: Path, make_geotiff: Callable[..., Path]) -> None:
    for i in range(5):
        label = (np.indices((96, 96)).sum(axis=0) // 2 + i).astype(np.uint8) % 70
        make_geotiff(f"images/{i}x.tif", label, crs=None)
        make_geotiff(f"labels/{i}x.tif", label, crs=None)
    chosen = values(plan(given(tmp_path, [f"c{i}" for i in range(70)]), "planned", gpus=()))
    assert chosen["sampling.method"] == "rare_class"


def test_a_given_test_gets_validation_from_the_other_groups(scenes: Callable[..., Path]) -> None:
    root = scenes([f"{place}{i}x" for place in "abcdef" for i in range(2)], (64, 64))
    held = {"group": r"/([a-f])\dx", "test": ["b"]}
    dataset = [*given(root, "abc"), *(Choice(f"dataset.split.{k}", v, "") for k, v in held.items())]
    choices = plan(dataset, "planned", gpus=())
    assert [c.key for c in choices if c.key.startswith("dataset.")] == ["dataset.split.validation"]
    loaded = load_dataset(recipe_of(dataset, choices))
    assert {scene.group for scene in loaded.of("test")} == {"b"}
    assert len(loaded.of("validation")) % 2 == 0
    assert loaded.of("validation")


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "size"), [("potsdam", 150), ("naic2020", 64)])
def test_published_layouts_are_planned(kind: str, size: int, tmp_path: Path) -> None:
    make = make_potsdam if kind == "potsdam" else make_naic2020
    make(tmp_path, scenes=6, seed=1, size=size)
    dataset = [Choice("dataset.kind", kind, ""), Choice("dataset.root", str(tmp_path), "")]
    loaded = load_dataset(recipe_of(dataset, plan(dataset, "planned", gpus=())))
    assert loaded.of("train")
    assert loaded.of("validation")
    published = {scene.name for scene in loaded.scenes} & {*POTSDAM_TEST}
    assert {scene.name for scene in loaded.of("test")} == (published if kind == "potsdam" else set())


def test_one_raster_is_cut_into_blocks_that_the_model_cannot_reach_over(scenes: Callable[..., Path]) -> None:
    dataset = given(scenes(["only"], (701, 653), crs="EPSG:25833"), "abc")
    choices = plan(dataset, "planned", gpus=())
    split = values(choices)
    assert split["model.kind"] == "unet", "an encoder sees too far for blocks of this scene"
    assert split["dataset.split.blocks.size"] >= 3 * split["dataset.split.blocks.buffer"]
    report = check_dataset(load_dataset(recipe_of(dataset, choices)), progress=False)
    assert report.clean
    assert (report.pixels_PK[:2] > 0).all()


def test_one_small_scene_cannot_be_divided(scenes: Callable[..., Path]) -> None:
    with pytest.raises(DatasetError, match=r"too small"):
        plan(given(scenes(["only"], (61, 67)), "abc"), "planned", gpus=())


def test_tiles_of_few_labelled_pixels_train(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    for i in range(5):
        label = np.full(made.SIZE, 255, np.uint16)
        label[::17, ::19] = made.label([0, 1, 2], shift=i)[::17, ::19]
        made.save(tmp_path / f"im/{i}.png", made.image(rng))
        made.save(tmp_path / f"gt/{i}.png", label)
    dataset = look(tmp_path)
    recipe = recipe_of(dataset, plan(dataset, "planned", gpus=()))
    assert recipe.tiles.min_labelled * recipe.tiles.size**2 < 1


def test_turns_and_hue_only_where_they_make_sense(scenes: Callable[..., Path]) -> None:
    names = [f"s{i}x" for i in range(9)]
    street = values(plan(given(scenes(names, (97, 131), street=True), "abc"), "planned", gpus=()))
    assert street["augmentation.d4"] is False
    assert "augmentation.rotation" not in street
    fine = scenes(names, (97, 131), dtype="uint16", bands=2)
    above = values(plan(given(fine, "abc"), "planned", gpus=()))
    assert above["augmentation.d4"] is True
    assert above["model.kind"] == "unet"
    assert "augmentation.hue" not in above


def test_a_step_has_places_for_all_classes(tmp_path: Path, make_geotiff: Callable[..., Path]) -> None:
    """Few tiles of one class each: eight steps an epoch would leave four tiles a step."""
    for i in range(24):
        label = np.full((67, 71), i % 12, np.uint8)
        image = np.stack([label * 18 + 20, 250 - label], axis=-1).astype(np.uint16)
        make_geotiff(f"images/s{i}x.tif", image, crs=None)
        make_geotiff(f"labels/s{i}x.tif", label, crs=None)
    dataset = given(tmp_path, "abcdefghijkl")
    assert values(plan(dataset, "planned", gpus=()))["training.global_batch"] == 16


@pytest.mark.slow
def test_cards_that_are_not_here_are_planned_for(scenes: Callable[..., Path]) -> None:
    dataset = given(scenes([f"s{i}x" for i in range(9)], (97, 131), dtype="uint16"), "abc")
    four = values(plan(dataset, "planned", gpus=(11, 11, 11, 11)))
    assert four["training.precision"] == "mixed_float16"
    assert four["training.global_batch"] % 4 == 0
    assert "training.xla" not in four
    assert values(plan(dataset, "planned", gpus=(11,)))["training.xla"] == "auto"
    with pytest.raises(DatasetError, match=r"--gpus"):
        plan(dataset, "planned", gpus=(1,))


@pytest.mark.parametrize("cards", [(11,) * 4, (24, 11), (141,), (11,)])
@pytest.mark.parametrize("tile", [24_000_000, 97_000_000, 787_000_000])
def test_cards_are_filled_where_there_are_tiles_enough(cards: tuple[int, ...], tile: int) -> None:
    """Nine tenths of the smallest card at most; eight tenths, 512 tiles or as many as leave 1,000 steps."""
    for count in (100, 3_000, 12_700, 100_000):
        size = ModelSize(None, 6_000_000, tile)  # type: ignore[arg-type]
        recipe = SimpleNamespace(model=None)
        draft: Any = SimpleNamespace(cards=cards, index=range(count), budget=min(cards) * GIB, recipe=recipe)
        draft.size_of = lambda model, size=size: size
        batch = _filling(draft)
        fixed, of_tile = _step_bytes(draft)
        taken = (fixed + batch // len(cards) * of_tile) / draft.budget
        assert batch % len(cards) == 0
        assert taken <= 0.9
        full = taken >= 0.8 if of_tile < 0.07 * draft.budget else taken + of_tile / draft.budget > 0.87
        epochs = 40 if count >= 20_000 else 50
        assert full or count * epochs < 1000 * (batch + len(cards)) or batch + len(cards) > 512


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("dubai", marks=pytest.mark.slow), "amazon", "naip"])
def test_real_imagery_is_planned(name: str, shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    dataset = [*REAL[name](shared_data(name)), Choice("dataset.cache", str(tmp_path / "cache"), "")]
    choices = plan(dataset, "planned", gpus=())
    recipe = recipe_of(dataset, choices)
    assert recipe.augmentation.d4
    report = check_dataset(load_dataset(recipe), progress=False)
    assert report.clean
    trained, validated, _ = report.pixels_PK
    assert (trained > 0).all()
    assert (validated > 0).sum() >= len(validated) - (name == "naip")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["amazon", "naip"])
def test_a_training_starts_from_the_plan(
    name: str, shared_data: Callable[[str], Path], tmp_path: Path
) -> None:
    dataset = [*REAL[name](shared_data(name)), Choice("dataset.cache", str(tmp_path / "cache"), "")]
    path = tmp_path / "planned.yaml"
    path.write_text(yaml.safe_dump(nest_choices([*dataset, *plan(dataset, "planned", gpus=())])))
    assert load_recipe(path).name == "planned"
    short = [f"training.{key}=1" for key in ("epochs", "validate_every", "warmup")]
    train(path, "--run", str(tmp_path / "run"), *(word for each in short for word in ("--set", each)))
    assert (tmp_path / "run" / "best.npz").is_file()


def _dubai(root: Path) -> list[Choice]:
    colours = {
        "building": "3c1098",
        "land": "8429f6",
        "road": "6ec1e4",
        "vegetation": "fedd3a",
        "water": "e2a929",
    }
    return given(
        root,
        (),
        images="{tile}/images/{name}.jpg",
        labels="{tile}/masks/{name}.png",
        encoding="colours",
        classes=[{"name": name, "colour": f"#{colour}"} for name, colour in colours.items()],
        ignore=["#9b9b9b", "#000000"],
    )


def _amazon(root: Path) -> list[Choice]:
    files = {"images": "images/{name}.tiff", "labels": "masks/{name}.png"}
    left_out = Choice("dataset.split.leave_out", ["Amazon_181.tiff_34"], "its mask is wider than its image")
    return [*given(root / "training", ("forest", "other"), 1, **files), left_out]


def _naip(root: Path) -> list[Choice]:
    files = {"images": "{part}/img/tile_{name}.tif", "labels": "{part}/mask/mask_{name}.tif"}
    split = {"group": "^([^/]+)/", "validation": ["val"]}
    names = ("background", "building", "road", "bare", "forest")
    parts = [Choice(f"dataset.split.{key}", value, "folders") for key, value in split.items()]
    return [*given(root, names, bands=[1, 2, 3, 4], **files), *parts]


REAL: dict[str, Callable[[Path], list[Choice]]] = {"dubai": _dubai, "amazon": _amazon, "naip": _naip}
