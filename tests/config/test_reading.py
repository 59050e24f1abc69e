"""A recipe argues back: each mistake names its path; that of a stranger is read in bounded time."""

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from datasets import load_dataset
from datasets.folder import pattern_regex
from segmenter.base.errors import ConfigError, DatasetError
from segmenter.config.reading import (
    MAX_BYTES,
    _refuse_bare_colours,
    describe_recipe,
    dump_recipe,
    load_recipe,
    parse,
    recipe_from,
)
from segmenter.config.recipe import Recipe, TilesConfig
from tests.helpers.refusals import refused

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
SERVED, TPU = {"strategy": "parameter_server"}, {"strategy": "tpu"}
WORKERS, SPLIT = {"strategy": "multi_worker_mirrored"}, {"number": 2, "memory": 64}
DEEPLAB, GUARANTEE = {"kind": "encoder_decoder", "decoder": "deeplabv3plus"}, {"per_replica": "guarantee"}
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
    ("sections", "where"),
    [
        ({"tiles": {"sise": 256}}, "tiles.sise"),
        ({"bogus": 1}, "bogus"),
        ({"dataset": {"kind": "potsdam"}}, "dataset.root"),
        ({"dataset": {"kind": "cityscapes"}}, "dataset.kind"),
        ({"dataset": {"root": "x"}}, "dataset.kind"),
        ({"dataset": {**FOLDER, "bands": []}}, "dataset.bands"),
        ({"dataset": {**FOLDER, "bands": [0, 1]}}, "dataset.bands.0"),
        ({"tiles": {"size": "256 m"}}, "tiles.size"),
        ({"tiles": {"size": 256.5}}, "tiles.size"),
        ({"training": {"learning_rate": False}}, "training.learning_rate"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate"),
        ({"training": {"precision": "float16"}}, "training.precision"),
        ({"training": None}, "training"),
        ({"augmentation": {"rotation": 200}}, "augmentation.rotation"),
        ({"training": {"epochs": 10**24}}, "training.epochs"),
        # What cannot work together.
        ({"tiles": {"size": 250}}, "tiles.size"),
        ({"tiles": {"size": 64, "overlap": 64}}, "tiles.overlap"),
        ({"loss": {"cross_entropy": 0}}, "loss"),
        ({"loss": {"tversky": 1, "tversky_alpha": 0, "tversky_beta": 0}}, "loss"),
        ({"loss": {"label_smoothing": 0.1, "logit_adjustment": 1}}, "loss.label_smoothing"),
        ({"loss": {"ohem": 1}}, "loss.ohem"),
        ({"loss": {"class_weights": [0, 0.0]}}, "loss.class_weights"),
        (
            {"loss": {"ohem": 0.5, "normalisation": "per_pixel"}, "training": {"accumulate": 4}},
            "training.accumulate",
        ),
        ({"training": {"clip_norm": 1, "clip_value": 1}}, "training"),
        ({"dataset": {**FOLDER, "encoding": "codes"}}, "dataset"),
        ({"dataset": {**FOLDER, "split": {"group": "("}}}, "dataset.split.group"),
        ({"dataset": {**FOLDER, "split": {"group": "a(b)(c)"}}}, "dataset.split.group"),
        ({"augmentation": {"scale_to": [1.0, 0.2]}}, "augmentation.scale_to"),
        ({"augmentation": {"scale_to": [0.2, 1], "scale": 0.3}}, "augmentation.scale"),
        ({"augmentation": {"scale_to": 0.3}}, "augmentation.scale_to"),
        ({"augmentation": {"scale_to": [0, 1]}}, "augmentation.scale_to.0"),
        ({"sampling": {"scale_strata": [1, 0.3]}}, "sampling.scale_strata"),
        ({"sampling": {"scale_strata": [0.3], "coverage": False}}, "sampling.scale_strata"),
        ({"model": {"kind": "encoder_decoder", "weight_bands": ["red", "green", "blue"]}}, "model"),
        ({"model": {"kind": "encoder_decoder", "input_normalisation": "scenes"}}, "model"),
        ({"training": {"freeze_encoder": 3, "epochs": 3}}, "training.freeze_encoder"),
        ({"training": {"rates": {"encoders": 0.1}}}, "training.rates"),
        ({"training": {"rates": {"encoder": -1}}}, "training.rates.encoder"),
        ({"distribution": TPU, "training": {"precision": "mixed_float16"}}, "training.precision"),
        ({"distribution": TPU, "training": {"xla": True}}, "training.xla"),
        ({"distribution": {**TPU, "shares": [1, 2]}}, "distribution.shares"),
        ({"distribution": {"shares": "auto"}, "sampling": GUARANTEE}, "distribution.shares"),
        ({"distribution": {"tpu": "x"}}, "distribution.tpu"),
        # What would change nothing.
        *(
            (
                {"loss": {"cross_entropy": 0, "dice": 1, **unused}},
                f"loss.{next(iter(unused))}",
            )
            for unused in (
                {"class_weights": [1, 2]},
                {"class_weights": "inverse_sqrt"},
                {"ohem_threshold": 0.7},
                {"boundary_width": 2},
                {"focal_gamma": 1},
            )
        ),
        *(
            ({"sampling": {"method": "shuffle", **unused}}, f"sampling.{next(iter(unused))}")
            for unused in (
                {"coverage": "strict"},
                GUARANTEE,
                {"max_repeats_per_tile": 9},
                {"repeat_threshold": 0.2},
                {"rare_temperature": 0.2},
                {"quota": "rarity"},
                {"foreground_share": 0.5},
            )
        ),
        *(
            ({"training": training}, f"training.{where}")
            for training, where in (
                ({"momentum": 0.5}, "momentum"),  # without SGD
                ({"nesterov": False}, "nesterov"),
                ({"optimizer": "sgd", "momentum": 0, "nesterov": False}, "nesterov"),
                ({"scaling": "linear"}, "reference_batch"),
                ({"reference_batch": 16}, "reference_batch"),
                ({"schedule": "exponential"}, "decay_steps"),
                ({"staircase": True}, "staircase"),
                ({"schedule": "piecewise"}, "boundaries"),
                ({"boundaries": [5], "values": [1, 2]}, "boundaries"),
                ({"schedule": "piecewise", "boundaries": [9, 9], "values": [1, 1, 1]}, "boundaries"),
                ({"schedule": "piecewise", "boundaries": [9, 12], "values": [1, 0.1]}, "values"),
                ({"schedule": "steps"}, "schedule"),
            )
        ),
        *(
            ({"augmentation": augmentation}, f"augmentation.{where}")
            for augmentation, where in (
                ({"transforms": [{"p": 0.5}]}, "transforms.0.name"),
                ({"transforms": [{"name": "D4", "p": 0}]}, "transforms.0.p"),
                ({"transforms": ["D4"]}, "transforms.0"),
                ({"transforms": {"name": "D4"}}, "transforms"),
                ({"copy_paste": {"classes": []}}, "copy_paste.classes"),
                ({"copy_paste": {"clases": ["car"]}}, "copy_paste.clases"),
                ({"transforms": [{"name": "D4", "x": float("nan")}]}, "transforms.0"),
                ({"probability": {"affine": 0.5}}, "probability.affine"),
                ({"probability": {"d4": 0}}, "probability.d4"),
            )
        ),
        ({"model": {**DEEPLAB, "output_stride": 8, "encoder": "convnext_tiny"}}, "model.output_stride"),
        ({"model": {**DEEPLAB, "image_pooling": True, "decoder": "fpn"}}, "model.image_pooling"),
        *(
            ({"distribution": distribution}, f"distribution.{where}")
            for distribution, where in (
                ({"shares": [2, -1]}, "shares"),
                ({"shares": [0, 0]}, "shares"),
                ({"shares": "fast"}, "shares"),
                ({"shares": [2, 1], "strategy": "one_device"}, "shares"),
                ({"shares": [2, 1], "strategy": "mirrored", "devices": [0, 1, 2]}, "shares"),
                ({"cross_device": "nccl", "strategy": "central_storage"}, "cross_device"),
                ({"cross_device": "nccl", "strategy": "one_device"}, "cross_device"),
                ({"devices": [0]}, "devices"),
                ({"devices": [1], "strategy": "mirrored"}, "devices"),
                ({"devices": [1, 1], "strategy": "mirrored"}, "devices"),
                ({"memory_growth": False, "memory_limit": [4096, "0 %"]}, "memory_limit"),
                ({"memory_limit": 2048}, "memory_limit"),
                ({"memory_limit": "2 km"}, "memory_limit"),
                ({"logical_gpus": SPLIT}, "logical_gpus"),
                ({"memory_growth": False, "memory_limit": 64, "logical_gpus": SPLIT}, "memory_limit"),
                ({"strategy": "mirrored", "start_timeout": 5}, "start_timeout"),
                ({**WORKERS, "devices": [0]}, "devices"),
                ({**WORKERS, "cross_device": "reduction_to_one"}, "cross_device"),
            )
        ),
        # What means nothing with parameter servers.
        *(
            ({"distribution": {**SERVED, **more}, **sections}, where)
            for more, sections, where in (
                ({}, {"training": {"xla": True}}, "training.xla"),
                ({}, {"training": {"steps_per_call": 2}}, "training.steps_per_call"),
                ({}, {"sampling": GUARANTEE}, "sampling.per_replica"),
                ({"deterministic": True}, {}, "distribution.deterministic"),
                ({"cross_device": "nccl"}, {}, "distribution.cross_device"),
                ({"devices": [0]}, {}, "distribution.devices"),
            )
        ),
    ],
)
def test_a_mistake_says_where_it_is_and_what_was_expected(sections: dict[str, Any], where: str) -> None:
    with refused(ConfigError, where=f"r.yaml: {where}"):
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
    for sections, places in (
        ({"tiles": {"size": "x"}, "training": {"epochs": 0}}, ("tiles.size", "training.epochs")),
        ({"dataset": {**FOLDER, "classes": [{"name": "x", "color": 1}]}}, ("classes.0.color",)),
        ({"loss": {"class_weights": [1, -1]}}, ("loss.class_weights", "class_weights.1")),
    ):
        with refused(ConfigError) as raised:
            _recipe(**sections)
        assert all(f"{place}: " in str(raised.value) for place in places)


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
    ("text", "fields"),
    [
        ("name: [", {"where": "recipe.yaml", "fault": "line 1"}),
        ("- a\n- b", {"where": "recipe.yaml", "got": "list"}),
        ("", {"where": "recipe.yaml", "fault": "is empty"}),
        ("tiles:\n\tsize: 64", {"where": "recipe.yaml", "fault": "spaces, not tabs"}),
        ("dataset: {kind: potsdam, root: r}\nepochs: 3", {"where": "epochs", "remedy": "training.epochs"}),
        ("tiles:\n  size: 64\n  size: 128", {"where": "recipe.yaml", "fault": "occurs twice"}),
        ("1: 2\nname: x", {"fault": "strings, got 1"}),
    ],
)
def test_a_file_that_is_no_recipe_is_refused(
    text: str, fields: dict[str, object], write: Callable[[str], Path]
) -> None:
    with refused(ConfigError, **fields):
        load_recipe(write(text))


def test_a_bare_off_is_the_word_not_false(write: Callable[[str], Path]) -> None:
    text = "name: x\ndataset: {kind: potsdam, root: d}\nsampling: {coverage: off, per_replica: off}\n"
    recipe = load_recipe(write(text), ["sampling.coverage=off"])
    assert (recipe.sampling.coverage, recipe.sampling.per_replica) == ("off", "off")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with refused(ConfigError, where="nothing.yaml", fault="cannot read", remedy="see configs/"):
        load_recipe(tmp_path / "nothing.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with refused(ConfigError, where="binary.yaml", fault="cannot read"):
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
    ("override", "fields"),
    [
        ("tiles.size", {"where": "--set tiles.size", "expected": "section.key=value"}),
        ("=3", {"where": "--set =3", "expected": "section.key=value"}),
        ("name.x=1", {"where": "--set name.x=1", "fault": "single setting"}),
        ("tiles.size=[", {"where": "--set tiles.size=[", "fault": "not valid"}),
        ("tiles.sise=3", {"where": "tiles.sise", "fault": "unknown key"}),
        ("tiles.size=", {"where": "tiles.size", "got": "None"}),
    ],
)
def test_an_override_argues_back(
    override: str, fields: dict[str, object], write: Callable[[str], Path]
) -> None:
    with refused(ConfigError, **fields):
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
    why = TilesConfig.model_fields["size"].description
    assert f"  size: 256  # pixels: {why}" in lines
    assert [line for line in lines if "  # " not in line] == []


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_projects_recipes_load(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe_from(yaml.safe_load(dump_recipe(recipe)), "again") == recipe
    assert path.read_text(encoding="utf-8").startswith("#"), "the header says source, command and result"


@pytest.mark.parametrize("value", [["forest", "other"], {"forest": 1}, "forest", [{"name": "a"}, 3]])
def test_classes_of_another_form_are_one_mistake_that_shows_the_form(value: Any) -> None:
    section = {"kind": "folder", "root": "r", "images": "{n}.tif", "labels": "{n}.png", "classes": value}
    with refused(ConfigError, where="classes") as raised:
        recipe_from({"name": "t", "dataset": section}, "t")
    assert str(raised.value).count("dataset.") == 1


@pytest.mark.parametrize("value", ["{name}.vrt", "a: b: c", "[1", "*x"])
def test_a_setting_with_signs_of_yaml_says_how_it_is_quoted(value: str, write: Callable[[str], Path]) -> None:
    path = write("name: x\ndataset: {kind: potsdam, root: r}\n")
    with pytest.raises(ConfigError, match=r"""--set 'name="…"'"""):
        load_recipe(path, [f"name={value}"])


def test_one_scale_is_a_range_too() -> None:
    assert _recipe(augmentation={"scale_to": [0.5, 0.5]}).augmentation.scale_to == (0.5, 0.5)


def _read(**model: Any) -> Recipe:
    return _recipe(model={"kind": "encoder_decoder", "weights": "imagenet", **model})


@pytest.mark.parametrize(
    ("model", "where", "got"),
    [
        ({"weight_bands": ["red", "green", "nir"]}, "weight_bands.2", "'nir'"),
        ({"weight_bands": [True, 1, 2]}, "weight_bands.0", "True"),
        ({"weight_bands": [1, 0, 2]}, "weight_bands.1", "0"),
        ({"weight_bands": [[1]]}, "weight_bands.0", "[1]"),
        ({"weights": ""}, "weights", "''"),
    ],
)
def test_a_mistake_takes_one_sentence_without_inner_names(
    model: dict[str, Any], where: str, got: str
) -> None:
    with refused(ConfigError) as raised:
        _read(**model)
    assert (raised.value.where, raised.value.got) == (f"r.yaml: model.{where}", got)
    assert raised.value.remedy is None


def test_channels_are_colours_numbers_and_null() -> None:
    recipe = _read(weight_bands=["red", 2, None, "blue"])
    assert recipe.model.weight_bands == ("red", 2, None, "blue")  # type: ignore[union-attr]
    assert "weight_bands:\n  - red\n  - 2\n  - null\n  - blue\n" in dump_recipe(recipe)


GAMMA = {"name": "RandomGamma", "p": 0.3, "gamma_limit": [80, 120]}
ELASTIC = {"name": "ElasticTransform", "p": 0.5, "alpha": 30.5, "approximate": True}


def recipe(augmentation: Any) -> Recipe:
    data = {"name": "t", "dataset": {"kind": "potsdam", "root": "unused"}, "augmentation": augmentation}
    return recipe_from(data, "recipe.yaml")


@pytest.mark.parametrize(
    "section",
    [
        {"transforms": [GAMMA, ELASTIC]},
        {"mosaic": 0.2, "copy_paste": {"p": 0.5, "classes": ["car"]}},
        {"copy_paste": {}},
        [ELASTIC],
        {"scale": 0.1, "probability": {"affine": 0.5, "brightness_contrast": 0.25}},
    ],
    ids=["transforms", "mosaic and copy-paste", "copy-paste", "list", "probability"],
)
def test_what_is_written_is_what_is_read(tmp_path: Path, section: Any) -> None:
    before = recipe(section)
    for text in (dump_recipe(before), describe_recipe(before)):
        (tmp_path / "again.yaml").write_text(text)
        again = load_recipe(tmp_path / "again.yaml")
        assert again == before
        assert again.model_dump(mode="json") == before.model_dump(mode="json")


def test_a_list_is_all_the_augmentation_there_is() -> None:
    listed = recipe([GAMMA]).augmentation
    assert [(one.name, one.p, one.parameters) for one in listed.transforms] == [
        ("RandomGamma", 0.3, {"gamma_limit": [80, 120]})
    ]
    assert not any((listed.d4, listed.brightness, listed.contrast, listed.scale, listed.mosaic))
    kept = recipe({"transforms": [GAMMA]}).augmentation
    assert kept.d4
    assert kept.brightness == 0.2
    assert kept.transforms == listed.transforms


def test_transforms_can_be_set_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "recipe.yaml"
    file.write_text(dump_recipe(recipe({})))
    override = "augmentation.transforms=[{name: RandomGamma, p: 0.3, gamma_limit: [80, 120]}]"
    assert load_recipe(file, [override]) == recipe({"transforms": [GAMMA]}).model_copy()
    pasted = load_recipe(file, ["augmentation.copy_paste.p=0.1", "augmentation.mosaic=0.2"]).augmentation
    assert (pasted.copy_paste.p, pasted.mosaic) == (0.1, 0.2)


LONGEST = 700
"""Characters of a line that can be read."""


def bomb(levels: int, reference: Callable[[str], str]) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([reference(f'*a{i - 1}')] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        (bomb(12, str), {"where": "r.yaml", "fault": "line 1, column 5"}),
        (bomb(12, str) + "\n? *a11\n: 1", {"where": "r.yaml", "fault": "anchor"}),
        ("a: &a {x: 1}\nb: &b {<<: [*a, *a]}\nc: {<<: [*b, *b]}", {"where": "r.yaml", "fault": "anchor"}),
        ("images: **/*.tif", {"where": "r.yaml", "fault": "valid YAML"}),
        ("? [a, b]\n: 1", {"where": "r.yaml", "fault": "text"}),
        ("seed: !!int x", {"where": "r.yaml", "fault": "tag (!)"}),
        ("name: !!python/object/apply:os.getcwd []", {"where": "r.yaml"}),
        ("seed: " + "9" * 5000, {"where": "r.yaml", "fault": "string conversion"}),
        ("[" * 100_000, {"where": "r.yaml", "fault": "maximum recursion"}),
        ('name: "\\ud800"', {"where": "r.yaml", "fault": "surrogate pair"}),
        ("q" * 500 + ": 1\n" + "q" * 500 + ": 1", {"where": "r.yaml", "fault": "… q"}),
        ("x: " + "q" * 50_000 + ": [", {"where": "r.yaml", "fault": "mapping values"}),
        ("colour: #1f77b4", {"where": "r.yaml", "fault": "'#1f77b4' in line 1"}),
        ("- {name: 'a # b', colour: #1f77b4}", {"where": "r.yaml"}),
        ("\nignore: [#000000]", {"where": "r.yaml", "fault": "'#000000' in line 2"}),
    ],
)
def test_what_is_more_than_plain_data_is_refused_in_a_short_line(
    text: str, fields: dict[str, object]
) -> None:
    with refused(ConfigError, **fields) as raised:
        parse(text, "r.yaml")
    assert len(str(raised.value)) < LONGEST


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2023-02-30", "2023-02-30"),
        ("2023-02-03", "2023-02-03"),
        ("2_10", "2_10"),  # a scene of Potsdam, not the number 210
        ("[010, -01, 00.5, 1:30, 0x_]", ["010", "-01", "00.5", "1:30", "0x_"]),  # names, not 8, -1 and 90
        ("._", "._"),
        ("=", "="),
        ("{<<: {a: 1}}", {"<<": {"a": 1}}),
        ("[0x1F, -7, 0, 0.5, 1.5e+3, yes, ~]", [31, -7, 0, 0.5, 1500.0, True, None]),
        ("'#1f77b4' # not #1f77b4 but blue", "#1f77b4"),
        ("# colour: #1f77b4", None),
    ],
)
def test_what_is_no_number_is_text(text: str, value: Any) -> None:
    assert parse(text, "r") == value


def test_only_a_small_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    for path, message in (
        (tmp_path / "pipe.yaml", "a file"),
        (Path("/dev/zero"), "a file"),
        (tmp_path, "Is a directory"),
        (tmp_path / "large.yaml", "1 MiB"),
        (tmp_path / ("x" * 5000), "too long"),
        (tmp_path / "a\0b", "null"),
    ):
        with pytest.raises(ConfigError, match=message) as raised:
            load_recipe(path)
        assert len(str(raised.value)) < LONGEST


def folder(**section: Any) -> Any:
    plain = {"kind": "folder", "root": ".", "images": "{n}.tif", "labels": "{n}.png"}
    classes = [{"name": "a", "code": 0}]
    return recipe_from({"name": "x", "dataset": {**plain, "classes": classes, **section}}, "r.yaml")


@pytest.mark.parametrize("root", ["~nosuchuser/x", "x" * 10_000, "/".join(["x" * 200] * 50), "a\0b"])
def test_a_root_that_no_system_knows_is_refused(root: str) -> None:
    with refused(DatasetError, where="dataset.root", expected="folder") as raised:
        load_dataset(folder(root=root))
    assert len(str(raised.value)) < LONGEST


@pytest.mark.parametrize(
    "pattern", ["*a" * 60 + "{n}.tif", "**/" * 60 + "{n}.tif", "*{a}*x", "{a}{b}{c}.tif"]
)
def test_a_pattern_that_would_be_tried_for_ever_is_refused(pattern: str) -> None:
    with refused(ConfigError, where="images"):
        pattern_regex(pattern, "images")


def test_stars_in_a_row_are_tried_as_one() -> None:
    regex = pattern_regex("*" * 60 + "{name}.tif", "images")
    assert regex.fullmatch("x" * 200 + ".png") is None  # with sixty, this has no end
    assert regex.fullmatch("x.tif")


def test_mistakes_are_told_shortly() -> None:
    many = {f"key{i}": "q" * 5000 for i in range(500)}
    with pytest.raises(ConfigError, match="and 490 more") as raised:
        recipe_from({"name": "x", "dataset": {"kind": "potsdam", "root": "r"}, **many}, "r.yaml")
    assert len(str(raised.value)) < 10 * LONGEST
    with pytest.raises(ConfigError, match=r"seed: .* got 'q+ … q+"):
        recipe_from({"name": "x", "seed": "q" * 5000, "dataset": {"kind": "potsdam", "root": "r"}}, "r.yaml")


def test_a_recipe_without_a_name_is_called_after_its_file(tmp_path: Path) -> None:
    text = "dataset: {kind: potsdam, root: r}\n"
    for file, name in (("a(1)ü.yaml", "a_1_ü"), (".x.yaml", "_x"), ("q" * 99, "q" * 60)):
        path = tmp_path / file
        path.write_text(text)
        assert load_recipe(path).name == name
        assert load_recipe(path, ["name=own"]).name == "own"


ENDLESS = [
    'name: "' + r"\"" * 200_000 + " #",
    'name: "' + "\\" * 399_999 + " #",
    "name: '" + "''" * 200_000 + "' #x",
    "\"'" * 200_000 + "#",
    "- " * 300_000 + "#",
    ": " * 200_000 + "#00ff00x",
    "a: [" + ", " * 300_000 + "#00ff00",
]


@pytest.mark.parametrize("text", ENDLESS, ids=map(str, range(len(ENDLESS))))
def test_a_long_line_is_looked_at_once(text: str) -> None:
    """Each takes hours where it is looked at anew from each of its quotes, longer than a test may."""
    with contextlib.suppress(yaml.YAMLError):
        _refuse_bare_colours(text)


def test_an_apostrophe_in_a_word_is_no_quote() -> None:
    with pytest.raises(ConfigError, match="#00ff00 without quotes"):
        parse("a: [it's, #00ff00]", "r")
    assert parse("""a: [it's, "b, #00ff00"]""", "r") == {"a": ["it's", "b, #00ff00"]}


@pytest.mark.parametrize("wrong", ["(" * 5000 + ")" * 5000, "(a{99999999999})", "(a", "[(]", "(a)(b)"])
def test_what_is_no_expression_with_a_group_is_refused(wrong: str) -> None:
    with refused(ConfigError, where="r.yaml: dataset.metres_per_pixel.pattern"):
        folder(metres_per_pixel={"pattern": wrong})
