"""STAC items: valid by the published schemas of STAC 1.1 and MLM 1.4, and true to the run."""

import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT7

from segmenter.base.errors import SegmenterError
from segmenter.extras.sharing.stac import times_of
from segmenter.runs.__main__ import main
from segmenter.runs.records import Place
from tests.helpers.made_described import CLASSES, PLACE, described_run
from tests.helpers.refusals import refused

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


SQUARES = Place(
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
    """Each of the schemas takes part."""
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
