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


def test_defaults_are_a_whole_recipe() -> None:
    recipe = _recipe()
    assert recipe.tiles.size == 256
    assert recipe.training.global_batch == 64
    assert recipe.sampling.coverage == "relaxed"


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"tiles": {"sise": 256}}, "r.yaml: tiles.sise: unknown key; known here: size, overlap, jitter"),
        ({"bogus": 1}, "r.yaml: bogus: unknown key; known here: name, seed, dataset, tiles"),
        (
            {"dataset": {**POTSDAM, "rood": 1}},
            "dataset.rood: unknown key; known here: label_nodata, kind, root",
        ),
        (
            {"dataset": {**POTSDAM, "split": {"val": ["2_10"]}}},
            "dataset.split.val: unknown key; known here: validation, test, train",
        ),
        (
            {"dataset": {**FOLDER, "classes": [{"name": "x", "color": "#000000"}]}},
            "dataset.classes.0.color: unknown key; known here: name, code, colour",
        ),
        ({"dataset": {"kind": "potsdam"}}, "dataset.root: expected a value, got none"),
        (
            {"dataset": {"kind": "cityscapes"}},
            "dataset.kind: expected potsdam, naic2020, folder, got cityscapes",
        ),
        ({"dataset": {"root": "x"}}, "dataset.kind: expected potsdam, naic2020, folder, got none"),
        ({"tiles": {"size": "256 m"}}, r"tiles.size: expected a valid integer \(pixels\), got '256 m'"),
        ({"tiles": {"size": "large"}}, r"tiles.size: expected a valid integer \(pixels\), got 'large'"),
        ({"tiles": {"size": True}}, r"tiles.size: expected a valid integer \(pixels\), got 'True'"),
        (
            {"tiles": {"size": 256.5}},
            "tiles.size: expected a valid integer, got a number with a fractional part",
        ),
        (
            {"training": {"learning_rate": False}},
            r"learning_rate: expected a valid number \(per step\), got 'False'",
        ),
        ({"training": {"learning_rate": float("inf")}}, "learning_rate: expected a finite number"),
        ({"training": {"learning_rate": float("nan")}}, "learning_rate: expected a finite number"),
        (
            {"training": {"epochs": "3 steps"}},
            r"training.epochs: expected a valid integer \(epochs\), got '3 steps'",
        ),
        (
            {"training": {"precision": "float16"}},
            "expected 'float32', 'float64', 'mixed_float16' or 'mixed_bfloat16', got",
        ),
        ({"training": None}, "training: expected a mapping of settings, got None"),
        (
            {"augmentation": {"rotation": 200}},
            r"rotation: expected less than or equal to 180 \(degrees\), got 200",
        ),
        ({"seed": -1}, "seed: expected greater than or equal to 0"),
        # What cannot work together.
        (
            {"tiles": {"size": 250}},
            r"tiles.size: expected a multiple of 16 pixels \(2\*\*model.depth\), got 250",
        ),
        (
            {"tiles": {"size": 64, "overlap": 64}},
            "tiles.overlap: expected an overlap smaller than the size of 64",
        ),
        (
            {"loss": {"cross_entropy": 0}},
            "loss: expected a weight above 0 for one of cross_entropy, focal, .*, lovasz, got 0 for all",
        ),
        (
            {"loss": {"tversky": 1, "tversky_alpha": 0, "tversky_beta": 0}},
            "loss: expected tversky_alpha or tversky_beta above 0, got 0 for both: the index is then 1",
        ),
        # What would change nothing.
        *(
            (
                {"loss": {"cross_entropy": 0, "dice": 1, **unused}},
                f"loss.{next(iter(unused))}: expected a weight above 0 for {terms} with it, got 0: it would ",
            )
            for unused, terms in (
                ({"class_weights": [1, 2]}, "cross_entropy or focal"),
                ({"class_weights": "inverse_sqrt"}, "cross_entropy or focal"),
                ({"label_smoothing": 0.1}, "cross_entropy or focal"),
                ({"normalisation": "per_pixel"}, "cross_entropy or focal"),
                ({"ohem": 0.25}, "cross_entropy or focal"),
                ({"logit_adjustment": 1}, "cross_entropy or focal"),
                ({"boundary": 10}, "cross_entropy or focal"),
                ({"ohem_threshold": 0.7}, "ohem"),
                ({"boundary_width": 2}, "boundary"),
                ({"focal_gamma": 1}, "focal"),
                ({"tversky_alpha": 0.5}, "tversky"),
                ({"tversky_beta": 0.5}, "tversky"),
            )
        ),
        (
            {"loss": {"label_smoothing": 0.1, "logit_adjustment": 1}},
            "loss.label_smoothing: expected 0 with loss.logit_adjustment, got 0.1: together they teach",
        ),
        ({"loss": {"focal_gamma": 1}}, "loss.focal_gamma: expected a weight above 0 for focal with it"),
        *(
            ({"sampling": {"method": "shuffle", **unused}}, f"sampling.{next(iter(unused))}: expected {text}")
            for unused, text in (
                ({"coverage": "strict"}, "relaxed or off .* with sampling.method: shuffle, got strict"),
                ({"per_replica": "guarantee"}, "best_effort or off with .*: shuffle, got guarantee"),
                ({"max_repeats_per_tile": 9}, "sampling.method: plan with it, got shuffle: it would change"),
                ({"repeat_threshold": 0.2}, "sampling.method: repeat_factor with it, got shuffle"),
                ({"rare_temperature": 0.2}, "sampling.method: rare_class with it, got shuffle"),
                ({"foreground_share": 0.5}, "sampling.method: foreground with it, got shuffle"),
            )
        ),
        (
            {"sampling": {"method": "repeat"}},
            "sampling.method: expected 'plan', 'shuffle', 'repeat_factor', ",
        ),
        ({"loss": {"ohem": 1}}, r"loss.ohem: expected less than 1 \(share of an image's pixels\), got 1"),
        (
            {
                "loss": {"ohem": 0.5, "normalisation": "per_pixel"},
                "training": {"accumulate": 4, "global_batch": 8},
            },
            "training.accumulate: expected 1 with loss.ohem and loss.normalisation: per_pixel, got 4",
        ),
        (
            {"training": {"clip_norm": 1, "clip_value": 1}},
            "training: expected one of clip_norm and clip_value, got both: set the other to 0",
        ),
        (
            {"training": {"global_batch": 10**12}},
            r"training.global_batch: expected less than or equal to 65536 \(tiles\), got 1000000000000",
        ),
        (
            {"training": {"epochs": 10**24}, "sampling": {"max_repeats_per_tile": 10**24}},
            r"max_repeats_per_tile: expected less than or equal to 1000000000 \(repeats\), got 10{24}"
            r"; .*training.epochs: expected less than or equal to 1000000000 \(epochs\), got 10{24}",
        ),
        (
            {"loss": {"class_weights": [0, 0.0]}},
            "loss.class_weights: expected a weight above 0, got 0 for every class",
        ),
        (
            {"loss": {"class_weights": [1, -1]}},
            "loss.class_weights.1: expected greater than or equal to 0, got -1",
        ),
        (
            {"dataset": {**FOLDER, "encoding": "codes"}},
            "dataset: expected every class to have a code, missing for a: b # c$",
        ),
        (
            {"dataset": {**FOLDER, "split": {"group": "("}}},
            "dataset.split.group: expected a regular expression",
        ),
        ({"dataset": {**FOLDER, "split": {"group": "a(b)(c)"}}}, r"a regular expression with one \(group\)"),
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
    assert (
        dict(_recipe(loss=loss).loss).items()
        >= {k: v for k, v in loss.items() if k != "class_weights"}.items()
    )


def test_all_mistakes_are_said_at_once() -> None:
    with pytest.raises(ConfigError, match=r"tiles\.size: .*; r\.yaml: training\.epochs: .*0"):
        _recipe(tiles={"size": "x"}, training={"epochs": 0})


@pytest.mark.parametrize(
    ("text", "value"),
    [("256", 256), ("256 px", 256), ("256px", 256), ("256 pixels", 256), (" 256 pixel", 256)],
)
def test_the_right_unit_may_be_written(text: str, value: int) -> None:
    assert _recipe(tiles={"size": text}).tiles.size == value


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", ".001", "+1.0e-03"])
def test_numbers_that_yaml_takes_for_text_are_numbers(text: str, write: Callable[[str], Path]) -> None:
    path = write(f"name: x\ndataset: {{kind: potsdam, root: r}}\ntraining: {{learning_rate: {text}}}\n")
    assert load_recipe(path).training.learning_rate == 1e-3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: [", "recipe.yaml: not valid YAML: .*line 1"),
        ("- a\n- b", "recipe.yaml: expected a mapping of sections, got list"),
        ("", "recipe.yaml: expected a mapping of sections, got NoneType"),
        ("name: x\ntiles: {size: 64}\ntiles: {size: 128}", "not valid YAML: key tiles occurs twice.*line 3"),
        ("tiles:\n  size: 64\n  size: 128", "not valid YAML: key size occurs twice.*line 3"),
        ("name: !!python/object/apply:os.getcwd []", r"not valid YAML: expected a plain value, got a tag"),
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


def test_overrides_replace_and_add(write: Callable[[str], Path]) -> None:
    path = write(MINIMAL + "tiles: {size: 512}\n")
    overrides = ["tiles.size=128 px", "training.learning_rate=3e-4", "tiles.jitter=no", "dataset.classes=5"]
    recipe = load_recipe(path, overrides)
    assert (recipe.tiles.size, recipe.tiles.jitter) == (128, False)
    assert recipe.training.learning_rate == 3e-4
    assert recipe.dataset.kind == "potsdam"
    assert recipe.dataset.classes == 5


def test_a_later_override_wins(write: Callable[[str], Path]) -> None:
    assert load_recipe(write(MINIMAL), ["seed=1", "seed=2"]).seed == 2


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


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="frozen"):
        _recipe().tiles.size = 3  # type: ignore[misc]


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


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"training": {"xla": True}},
            "training.xla: expected false with distribution.strategy: parameter_server",
        ),
        (
            {"training": {"steps_per_call": 2}},
            "training.steps_per_call: expected the default with distribution.str",
        ),
        (
            {"sampling": {"per_replica": "guarantee"}},
            "sampling.per_replica: expected best_effort or off with distr",
        ),
        ({"distribution": {"deterministic": True}}, "distribution.deterministic: updates come in any order"),
        (
            {"distribution": {"cross_device": "nccl"}},
            "distribution.cross_device: nothing is summed over devices",
        ),
        ({"distribution": {"devices": [0]}}, "distribution.devices: each worker computes on one device"),
    ],
)
def test_what_means_nothing_with_parameter_servers_is_refused(sections: dict[str, Any], message: str) -> None:
    served = {"strategy": "parameter_server", **sections.get("distribution", {})}
    with pytest.raises(ConfigError, match=message):
        _recipe(**{**sections, "distribution": served})
    assert _recipe(distribution={"strategy": "parameter_server"}).distribution.devices is None


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
