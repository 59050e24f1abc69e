"""A recipe argues back: each mistake names its dotted path, what was expected and what came."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from segmenter.base.errors import ConfigError
from segmenter.config.reading import describe_recipe, dump_recipe, load_recipe, recipe_from
from segmenter.config.recipe import Recipe

ROOT = Path(__file__).parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
POTSDAM = {"kind": "potsdam", "root": "data/potsdam"}
FOLDER: dict[str, Any] = {
    "kind": "folder",
    "root": "data/dubai",
    "images": "*/images/{name}.jpg",
    "labels": "*/masks/{name}.png",
    "encoding": "colours",
    "classes": [{"name": "a: b # c", "colour": "#3C1098"}, {"name": "yes", "colour": "#8429F6", "code": 7}],
    "ignore": ["#000000"],
    "bands": [3, 2, 1],
    "split": {"group": "(tile_[0-9])/", "validation": ["tile_7"]},
}
SERVED = {"strategy": "parameter_server"}
NAIC = {"kind": "naic2020", "root": "data/naic", "round": 2}
FULL: dict[str, Any] = {
    "name": "all of it",
    "dataset": FOLDER,
    "tiles": {"size": "128 px", "overlap": 32},
    "loss": {"class_weights": [1.0, 2.5], "dice": 0.5},
    "training": {"learning_rate": "3e-4", "global_batch": 8},
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """Writes the text of a recipe to a file."""

    def writer(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return writer


def _recipe(**sections: Any) -> Recipe:
    return recipe_from({"name": "x", "dataset": POTSDAM, **sections}, "r.yaml")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"tiles": {"sise": 256}}, "r.yaml: tiles.sise: unknown key; did you mean size?"),
        ({"bogus": 1}, "r.yaml: bogus: unknown key; known here: name, seed, dataset, tiles"),
        ({"dataset": {**FOLDER, "classes": [{"name": "x", "color": 1}]}}, "classes.0.color: unknown key"),
        ({"dataset": {"kind": "potsdam"}}, "dataset.root: expected a value, got none"),
        ({"dataset": {"kind": "cityscapes"}}, "dataset.kind: expected potsdam, naic2020, folder, got citys"),
        ({"dataset": {"root": "x"}}, "dataset.kind: expected potsdam, naic2020, folder, got none"),
        ({"dataset": {**FOLDER, "bands": []}}, "dataset.bands: expected at least one band, counted from 1"),
        ({"dataset": {**FOLDER, "bands": [0, 1]}}, "dataset.bands.0: expected greater than or equal to 1"),
        ({"tiles": {"size": "256 m"}}, r"tiles.size: expected a valid integer \(pixels\), got '256 m'"),
        ({"tiles": {"size": 256.5}}, "tiles.size: .* a number with a fractional part"),
        ({"training": {"learning_rate": False}}, r"learning_rate: expected a valid number \(per step\)"),
        ({"training": {"learning_rate": float("nan")}}, "learning_rate: expected a finite number"),
        ({"training": {"precision": "float16"}}, "'mixed_float16' or 'mixed_bfloat16', got"),
        ({"training": None}, "training: expected a mapping of settings, got None"),
        ({"augmentation": {"rotation": 200}}, r"rotation: expected less .* 180 \(degrees\), got 200"),
        ({"training": {"epochs": 10**24}}, r"training.epochs: expected less .* 1000000000 \(epochs\)"),
        # What cannot work together.
        ({"tiles": {"size": 250}}, r"tiles.size: expected a multiple of 16 pixels \(2\*\*model.depth\)"),
        ({"tiles": {"size": 64, "overlap": 64}}, "tiles.overlap: expected an overlap smaller than the size"),
        ({"loss": {"cross_entropy": 0}}, "loss: expected a weight above 0 for one of cross_entropy, focal"),
        ({"loss": {"tversky": 1, "tversky_alpha": 0, "tversky_beta": 0}}, "loss: expected tversky_alpha or"),
        ({"loss": {"label_smoothing": 0.1, "logit_adjustment": 1}}, "loss.label_smoothing: expected 0 with"),
        ({"loss": {"ohem": 1}}, r"loss.ohem: expected less than 1 \(share of an image's pixels\), got 1"),
        ({"loss": {"class_weights": [0, 0.0]}}, "loss.class_weights: expected a weight above 0"),
        ({"loss": {"class_weights": [1, -1]}}, "class_weights.1: expected greater than or equal to 0"),
        (
            {"loss": {"ohem": 0.5, "normalisation": "per_pixel"}, "training": {"accumulate": 4}},
            "training.accumulate: expected 1 with loss.ohem and loss.normalisation: per_pixel",
        ),
        ({"training": {"clip_norm": 1, "clip_value": 1}}, "expected one of clip_norm and clip_value"),
        ({"dataset": {**FOLDER, "encoding": "codes"}}, "every class to have a code, missing for a: b # c$"),
        ({"dataset": {**FOLDER, "split": {"group": "("}}}, "split.group: expected a regular expression"),
        ({"dataset": {**FOLDER, "split": {"group": "a(b)(c)"}}}, r"a regular expression with one \(group\)"),
        ({"augmentation": {"scale_to": [1.0, 0.2]}}, r"scale_to: expected the finest .* got \[1.0, 0.2\]"),
        ({"augmentation": {"scale_to": [0.2, 1], "scale": 0.3}}, "scale: expected 0 with scale_to"),
        ({"augmentation": {"scale_to": 0.3}}, r"augmentation.scale_to: expected a list \(metres\), got 0.3"),
        ({"augmentation": {"scale_to": [0, 1]}}, "scale_to.0: expected greater than 0"),
        ({"sampling": {"scale_strata": [1, 0.3]}}, r"scale_strata: expected rising .*, got \[1.0, 0.3\]"),
        ({"sampling": {"scale_strata": [0.3], "coverage": False}}, "expected coverage: relaxed or"),
        # What would change nothing.
        *(
            (
                {"loss": {"cross_entropy": 0, "dice": 1, **unused}},
                f"loss.{next(iter(unused))}: .* {terms} with it",
            )
            for unused, terms in (
                ({"class_weights": [1, 2]}, "cross_entropy or focal"),
                ({"class_weights": "inverse_sqrt"}, "cross_entropy or focal"),
                ({"ohem_threshold": 0.7}, "ohem"),
                ({"boundary_width": 2}, "boundary"),
                ({"focal_gamma": 1}, "focal"),
            )
        ),
        *(
            ({"sampling": {"method": "shuffle", **unused}}, f"sampling.{next(iter(unused))}: expected {text}")
            for unused, text in (
                ({"coverage": "strict"}, "relaxed or off .* with sampling.method: shuffle, got strict"),
                ({"per_replica": "guarantee"}, "best_effort or off with .*: shuffle, got guarantee"),
                ({"max_repeats_per_tile": 9}, "sampling.method: plan with it, got shuffle"),
                ({"repeat_threshold": 0.2}, "sampling.method: repeat_factor with it, got shuffle"),
                ({"rare_temperature": 0.2}, "sampling.method: rare_class or .* with it, got shuffle"),
                ({"quota": "rarity"}, "sampling.method: plan with it, got shuffle"),
                ({"foreground_share": 0.5}, "sampling.method: foreground with it, got shuffle"),
            )
        ),
        # What means nothing with parameter servers.
        *(
            ({"distribution": {**SERVED, **more}, **sections}, message)
            for more, sections, message in (
                ({}, {"training": {"xla": True}}, "training.xla: expected false with"),
                ({}, {"training": {"steps_per_call": 2}}, "steps_per_call: expected the default with"),
                ({}, {"sampling": {"per_replica": "guarantee"}}, "per_replica: expected best_effort"),
                ({"deterministic": True}, {}, "distribution.deterministic: updates come in any order"),
                ({"cross_device": "nccl"}, {}, "distribution.cross_device: nothing is summed"),
                ({"devices": [0]}, {}, "distribution.devices: each worker computes on one"),
            )
        ),
    ],
)
def test_a_mistake_says_where_it_is_and_what_was_expected(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        _recipe(**sections)


@pytest.mark.parametrize(
    "loss",
    [
        {"focal_gamma": 2.0, "tversky_alpha": 0.3, "class_weights": "none"},  # as a described recipe has them
        {"cross_entropy": 0, "focal": 1, "focal_gamma": 1, "label_smoothing": 0.1, "class_weights": [1, 2]},
        {"cross_entropy": 0, "tversky": 1, "tversky_beta": 1},
    ],
)
def test_a_setting_that_a_term_reads_is_taken(loss: dict[str, Any]) -> None:
    taken = dict(_recipe(loss=loss).loss)
    assert taken.items() >= {k: v for k, v in loss.items() if k != "class_weights"}.items()


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"tiles\.size: .*; r\.yaml: training\.epochs: .*0"):
        _recipe(tiles={"size": "x"}, training={"epochs": 0})


@pytest.mark.parametrize(
    ("text", "value"),
    [("256", 256), ("256px", 256), (" 256 pixels", 256)],
)
def test_the_right_unit_may_be_written(text: str, value: int) -> None:
    assert _recipe(tiles={"size": text}).tiles.size == value


@pytest.mark.parametrize("text", ["1e-3", ".001", "+1.0E-03"])
def test_numbers_that_yaml_takes_for_text_are_numbers(text: str, write: Callable[[str], Path]) -> None:
    path = write(f"name: x\ndataset: {{kind: potsdam, root: r}}\ntraining: {{learning_rate: {text}}}\n")
    assert load_recipe(path).training.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "recipe.yaml: not valid YAML: .*line 1"),
        ("- a\n- b", "recipe.yaml: expected a mapping of sections, got list"),
        ("", "recipe.yaml: expected a mapping of sections, got NoneType"),
        ("tiles:\n  size: 64\n  size: 128", "not valid YAML: key size occurs twice.*line 3"),
        ("1: 2\nname: x", "keys should be strings, got 1"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(text: str, message: str, write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(text))


def test_a_bare_off_is_the_word_not_false(write: Callable[[str], Path]) -> None:
    text = "name: x\ndataset: {kind: potsdam, root: d}\nsampling: {coverage: off, per_replica: off}\n"
    recipe = load_recipe(write(text), ["sampling.coverage=off"])
    assert (recipe.sampling.coverage, recipe.sampling.per_replica) == ("off", "off")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.yaml: cannot read the recipe: .*see configs/"):
        load_recipe(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml: cannot read the recipe"):
        load_recipe(tmp_path / "binary.yaml")


MINIMAL = "name: x\ndataset: {kind: potsdam, root: r}\n"


def test_overrides_replace_and_add_and_the_last_wins(write: Callable[[str], Path]) -> None:
    path = write(MINIMAL + "tiles: {size: 512}\n")
    overrides = [
        "tiles.size=64",
        "tiles.size=128 px",
        "training.learning_rate=3e-4",
        "tiles.jitter=no",
        "dataset.classes=5",
    ]
    recipe = load_recipe(path, overrides)
    assert (recipe.tiles.size, recipe.tiles.jitter) == (128, False)
    assert recipe.training.learning_rate == 3e-4
    assert recipe.dataset.kind == "potsdam"
    assert recipe.dataset.classes == 5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("tiles.size", "--set tiles.size: expected section.key=value"),
        ("=3", "--set =3: expected section.key=value"),
        ("name.x=1", "--set name.x=1: name is a single setting, it has no x"),
        ("tiles.size=[", r"--set tiles.size=\[: not valid YAML"),
        ("tiles.sise=3", "tiles.sise: unknown key"),
        ("tiles.size=", "tiles.size: expected a valid integer .*got None"),
    ],
)
def test_an_override_argues_back(override: str, message: str, write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=message):
        load_recipe(write(MINIMAL), [override])


def _recipes() -> Sequence[Recipe]:
    by_name = {"name": "x", "dataset": {**POTSDAM, "split": {"validation": ["2_10"]}}}
    return [_recipe(), _recipe(dataset=NAIC), *(recipe_from(data, "r.yaml") for data in (FULL, by_name))]


@pytest.mark.parametrize("to_text", [dump_recipe, describe_recipe])
@pytest.mark.parametrize("index", range(4))
def test_a_written_recipe_reads_back_as_the_same(
    index: int, to_text: Callable[[Recipe], str], write: Callable[[str], Path]
) -> None:
    recipe = _recipes()[index]
    assert load_recipe(write(to_text(recipe))) == recipe


def test_a_described_recipe_says_unit_and_reason_of_every_setting() -> None:
    lines = describe_recipe(_recipe()).splitlines()
    assert "  size: 256  # pixels: side of a tile; what an 11 GB card takes 16 of" in lines
    assert [line for line in lines if "  # " not in line] == ["  kind: potsdam"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_projects_recipes_load(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe_from(yaml.safe_load(dump_recipe(recipe)), "again") == recipe
    assert path.read_text(encoding="utf-8").startswith("#"), "the header says source, command and result"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_projects_recipes_do_as_the_comparison_of_samplings_recommends(path: Path) -> None:
    """studies/what_lifts.md, "Recommendation"; the demo too, though its imagery is made."""
    page = (ROOT / "studies" / "what_lifts.md").read_text(encoding="utf-8")
    assert "**The plan with `class_weights: inverse_sqrt`**, which the recipes in `configs/` have." in page
    recipe = load_recipe(path)
    assert recipe.sampling.plans_classes
    assert recipe.loss.class_weights == "inverse_sqrt"


@pytest.mark.parametrize("value", [["forest", "other"], {"forest": 1}, "forest", [{"name": "a"}, 3]])
def test_classes_of_another_form_are_one_mistake_that_shows_the_form(value: Any) -> None:
    section = {"kind": "folder", "root": "r", "images": "{n}.tif", "labels": "{n}.png", "classes": value}
    with pytest.raises(ConfigError, match=r"classes: .* as \{name: forest, code: 1\}, got") as raised:
        recipe_from({"name": "t", "dataset": section}, "t")
    assert str(raised.value).count("dataset.") == 1


@pytest.mark.parametrize("value", ["{name}.vrt", "a: b: c", "[1", "*x"])
def test_a_setting_with_signs_of_yaml_says_how_it_is_quoted(value: str, write: Callable[[str], Path]) -> None:
    path = write("name: x\ndataset: {kind: potsdam, root: r}\n")
    with pytest.raises(ConfigError, match=r"""--set 'name="…"'"""):
        load_recipe(path, [f"name={value}"])


def test_one_scale_is_a_range_too() -> None:
    assert _recipe(augmentation={"scale_to": [0.5, 0.5]}).augmentation.scale_to == (0.5, 0.5)


# ------------------------------------------------------------------------------ pretrained weights

BAND = "expected red, green, blue, null, or a channel's number from 1"


def _read(**model: Any) -> Recipe:
    return _recipe(model={"kind": "encoder_decoder", "weights": "imagenet", **model})


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"weight_bands": ["red", "green", "nir"]}, f"weight_bands.2: {BAND}, got 'nir'"),
        ({"weight_bands": [True, 1, 2]}, f"weight_bands.0: {BAND}, got True"),
        ({"weight_bands": [1, 0, 2]}, f"weight_bands.1: {BAND}, got 0"),
        ({"weight_bands": [[1]]}, f"weight_bands.0: {BAND}, got [1]"),
        ({"weights": ""}, "weights: expected imagenet or a file of weights; null: from scratch, got ''"),
    ],
)
def test_a_mistake_takes_one_sentence_without_inner_names(model: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _read(**model)
    assert str(refused.value) == f"r.yaml: model.{said}"


def test_channels_are_colours_numbers_and_null() -> None:
    recipe = _read(weight_bands=["red", 2, None, "blue"])
    assert recipe.model.weight_bands == ("red", 2, None, "blue")  # type: ignore[union-attr]
    assert "weight_bands:\n  - red\n  - 2\n  - null\n  - blue\n" in dump_recipe(recipe)
