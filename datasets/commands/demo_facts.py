"""Facts of the demo: coverage and scores, beside those of a stored run with random batches."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from segmenter.base.invocation import invocation

RARE = "solar park"
"""Class in one tile of forty: `datasets.synthetic.demo` makes it so."""
SHUFFLED: dict[str, Any] = {
    "steps": 720,
    "lacking": 575,
    "miou": 0.8311,
    "iou": {
        "crops": 0.9481,
        "meadow": 0.9415,
        "wood": 0.8960,
        "building": 0.8878,
        "road": 0.9087,
        "solar park": 0.4046,
    },
}
"""Run with random batches, of `SHUFFLED_COMMAND` and `predict --split test`, after `segmenter demo`."""
SHUFFLED_COMMAND = (
    "segmenter train configs/demo.yaml --set sampling.coverage=off --set training.epochs=9 "
    "--set training.validate_every=9 --run shuffled"
)
NO_GAIN = "docs/results.md#does-the-plan-help"
"""Where a plan helps, and where it does not."""

HEAD = ("", "random batches", "planned batches")
ABOUT = (
    f"The imagery was made to have a class, {RARE}, that most random batches lack.",
    f"Where a plan does not help: {NO_GAIN}",
    f"Random batches are a stored run: {SHUFFLED_COMMAND}",
)


def next_commands() -> list[tuple[str, str]]:
    """Return the three commands for a user's own data, with what each does."""
    return [
        (
            f"{invocation('start')} DATA",
            "finds images and labels, and writes DATA.yaml and a page: look at it",
        ),
        (f"{invocation('train')} DATA.yaml", "trains, and says at once how long that takes"),
        (f"{invocation('predict')} runs/DATA IMAGES --output maps", "maps images of any size"),
    ]


@dataclass(frozen=True)
class DemoFacts:
    """Coverage and scores of the demo's run.

    Attributes:
        steps, lacking: steps of the training, and those without a tile of the rare class.
        miou, iou: of the test scenes, as shares.
    """

    steps: int
    lacking: int
    miou: float
    iou: dict[str, float]

    @classmethod
    def of(cls, folder: Path, run: str = "run", maps: str = "maps") -> DemoFacts:
        """Read the log of a run and the scores of its maps."""
        from segmenter.runs.log import log_records

        scores = json.loads((folder / maps / "scores.json").read_text())
        place = list(scores["iou"]).index(RARE)
        lines = [line for line in log_records(folder / run / "log.jsonl") if "held_steps" in line]
        steps = sum(line["steps"] for line in lines)
        held = sum(line["held_steps"][place] for line in lines)
        return cls(steps, steps - held, scores["miou"], scores["iou"])

    def rows(self) -> list[list[str]]:
        """Return the rows of the table: coverage first, then scores, beside those of random batches."""
        other = DemoFacts(**SHUFFLED)
        both = other, self
        return [
            [f"steps without a {RARE}", *(f"{each.lacking} of {each.steps}" for each in both)],
            ["mIoU of unseen scenes", *(f"{each.miou:.3f}" for each in both)],
            *([name, *(f"{each.iou[name]:.3f}" for each in both)] for name in self.iou),
        ]
