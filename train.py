"""Train a model: recipe → scenes → index → devices → plan → training → report.

`python train.py RECIPE` in a clone, else `segmenter train RECIPE`; `--help` has the options. What a stage
does stands in `datasets/commands/train_stages.py`, and in `segmenter/training/` from the plan on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from segmenter.base.errors import end_at_once_on_ctrl_c, run_tool

if __name__ == "__main__":
    end_at_once_on_ctrl_c()  # before the imports that take time
if not __package__:  # started as a script; as a module it is datasets/commands/train.py, a link to it
    __package__ = "datasets.commands"

from segmenter.base.options import parse_options
from segmenter.base.terminal import stdout_for_json

from . import train_stages as stages
from .train_options import TrainOptions
from .train_options import train_parser as _parser
from .train_roles import run_training

if TYPE_CHECKING:
    from segmenter.training.ending import TrainingOutcome


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what a command line asks for: one run, or one after the other; return the exit code."""
    given = parse_options(_parser(), TrainOptions, arguments)
    with stdout_for_json(given.json) as answer:
        recipe = given.read()
        return run_training(given, recipe, train, answer)


def train(request: stages.TrainRequest) -> TrainingOutcome:
    """Train one run, each stage by one call; `request` is a recipe and how to train it."""
    run = stages.run_folder(request)
    scenes = stages.find_scenes(request, run)
    tiles = stages.index_tiles(request, scenes)
    with stages.input_workers(request, tiles) as workers:
        devices = stages.start_devices(request, run, scenes, tiles)
        training = stages.training_of(request, run, scenes, tiles, devices, workers)

        from segmenter.training.ending import report, train_to_end  # which need TensorFlow
        from segmenter.training.start import open_training, plan_training

        with training.shared_end():
            plan = plan_training(training)  # all checks; nothing is written before
            with open_training(plan) as trainer:
                end = train_to_end(trainer)
                return report(trainer, end, resumed=run.checkpoint is not None)


if __name__ == "__main__":
    sys.exit(run_tool(main))
