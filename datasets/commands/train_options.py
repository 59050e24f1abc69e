"""Options of `segmenter train`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from segmenter.base.errors import ConfigError
from segmenter.base.invocation import ToolParser
from segmenter.base.options import option
from segmenter.config.recipe_options import RecipeOptions

from .frame import tool_parser

if TYPE_CHECKING:
    from segmenter.config.recipe import Recipe
    from segmenter.devices.machines.cluster import Cluster

_CLUSTER = "several machines (docs/machines.md)"


@dataclass(frozen=True, kw_only=True)
class TrainOptions(RecipeOptions):
    """Options of a training."""

    run: Path | None = option(None, "run directory to write (default: runs/NAME, by the recipe's name)")
    resume: bool = option(False, "continue from the run's newest checkpoint", one_of="start")
    resume_from: int | None = option(
        None, "continue from the run's checkpoint of this step", "STEP", one_of="start"
    )
    init_from: Path | None = option(
        None,
        "start from the weights of another run; with --folds, from a folder of as many folds, each fold "
        "from its own",
        "RUN",
        one_of="start",
    )
    init_from_partial: bool = option(
        False, "accept weights of --init-from even if they fit less than half of the model (default: refused)"
    )
    folds: int | None = option(
        None,
        "train each of K folds in turn, into RUN/fold_1, …, in place of one training with the recipe's "
        "validation; without K, dataset.split.folds of the recipe; the same command continues after a stop",
        "K",
        alone=0,
    )
    all: str | None = option(
        None,
        "train once more before shipping, on training and validation scenes, for as many steps as the "
        "validation of RUN chose (of folds: their median), into RUN_all; nothing validates then, and the "
        "last weights predict (default: runs/NAME)",
        "RUN",
        alone="",
    )
    print_config: bool = option(
        False, "print the resolved recipe with an explanation of each setting, and end"
    )
    logical_devices: int | None = option(
        None,
        "number of logical devices to split the CPU into, 1 … 64, to try out several replicas (default: "
        "not split)",
        "N",
        among=range(1, 65),
    )
    profile: bool = option(False, "write a TensorBoard profile of some steps into the run directory")
    json: bool = option(False, "print the result as one JSON object on stdout, all other text on stderr")
    cluster: tuple[str, ...] | None = option(
        None,
        "addresses of all workers of the cluster, the chief first; or slurm, to take them from the job; "
        "for parameter servers ROLE=HOST:PORT,… for each of the roles chief, worker and ps (default: those "
        "in TF_CONFIG)",
        "HOST:PORT,…",
        group=_CLUSTER,
        several=True,
    )
    index: int | None = option(
        None, "number of this process in --cluster, or within its role, counted from 0", "I", group=_CLUSTER
    )
    role: Literal["chief", "worker", "ps"] | None = option(
        None,
        "role of this process in --cluster, for strategy: parameter_server only (default: chief)",
        group=_CLUSTER,
    )

    def __post_init__(self) -> None:
        if self.init_from_partial and self.init_from is None:
            raise ConfigError("--init-from-partial says how to use --init-from RUN: it needs it")

    def read(self, *more: str) -> Recipe:
        """Return the recipe; with `--folds K`, its scenes are in K folds, none in the validation."""
        none = ("dataset.split.validation=[]", "dataset.split.validation_share=0")
        return super().read(*([f"dataset.split.folds={self.folds}", *none] if self.folds else []), *more)

    @property
    def resumes(self) -> bool:
        """Return whether the training goes on from a checkpoint."""
        return self.resume or self.resume_from is not None

    def place_in_cluster(self, strategy: str) -> Cluster | None:
        """Return this process's place among the workers of a training; None if it trains alone."""
        from segmenter.devices.machines.cluster import find_cluster

        if self.role is not None:
            raise ConfigError("--role", expected="with distribution.strategy: parameter_server", got=strategy)
        asked = None if self.cluster is None else ",".join(self.cluster)
        return find_cluster(strategy, asked, self.index, os.environ)


_CALLS = {
    "configs/mine.yaml": "train on all GPUs, into runs/mine",
    "configs/mine.yaml --resume": "continue after any stop",
    "configs/mine.yaml --set training.epochs=20 --run runs/short": "with one setting changed",
}


def train_parser() -> ToolParser:
    """Return the parser of `segmenter train`."""
    return tool_parser("train", "Train a segmentation model on land-cover tiles.", TrainOptions, calls=_CALLS)
