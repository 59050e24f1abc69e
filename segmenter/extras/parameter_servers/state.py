"""State of a training on parameter servers: weights, statistics, optimiser, average, split over servers.

The chief has its own model, optimiser and average, as without servers: they start a run and are used to
validate and save. `push` copies them to the servers, `pull` back.

If several workers update a server, each adds its change to each variable in one operation, so that no change
is lost. There is no lock: TensorFlow's own (`tf.CriticalSection`) links those of several devices, and a step
waited for itself. So a step may read some weights before and some after another update. A single worker
writes its results: the bits of one device.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from segmenter.config.recipe import TrainingConfig
from segmenter.model.stages import Pace
from segmenter.training.optimiser import AveragedWeights, LossScale, Optimiser, numbers_in

_NOT_NEGATIVE = "/moving_variance"


@dataclass(frozen=True)
class Shard:
    """Part of the state, on one server.

    Attributes:
        own: variables on the chief, in the model's order.
        kept: variables on the server, in the same order and with the same paths.
        optimiser: optimiser of those that ever train; None if none does.
        averaged: weight average of all of them; None without an average.
    """

    device: str
    own: tuple[Any, ...]
    kept: tuple[Any, ...]
    optimiser: Optimiser | None
    averaged: AveragedWeights | None

    def among(self, variables: Sequence[Any]) -> list[Any]:
        """Return those of the given variables that are on this server, in the model's order."""
        paths = {v.path for v in variables}
        return [v for v in self.own if v.path in paths]


class ServedState:
    """All shards of a training.

    Attributes:
        loss_scale: loss scale, on the first server; None without one.
        statistics: paths of variables that steps update without a gradient: BatchNorm's moving statistics,
            the number of dropout's masks.
        shared: True if several workers write concurrently.
    """

    def __init__(
        self,
        model: Any,
        optimiser: Optimiser,
        averaged: AveragedWeights | None,
        config: TrainingConfig,
        steps: int,
        pace: Pace,
        servers: Sequence[str],
        workers: int,
    ) -> None:
        self.shared = workers > 1
        self._optimiser, self._averaged = optimiser, averaged
        weights = {v.path for v in optimiser.weights}
        self.statistics = frozenset(v.path for v in model.non_trainable_variables if v.path not in weights)

        alone = config.model_copy(update={"clip_norm": 0.0, "clip_value": 0.0})  # clipped as one gradient

        def shard(device: str, own: tuple[Any, ...]) -> Shard:
            with tf.device(device):
                kept = tuple(_like(v) for v in own)
                trained = [v for v in kept if v.path in weights]
                rule = Optimiser(alone, trained, steps, pace, shared=self.shared) if trained else None
                average = _average(kept, config.ema) if averaged is not None else None
                return Shard(device, own, kept, rule, average)

        parts = assign_variables(model.variables, len(servers))
        self.shards = tuple(shard(*pair) for pair in zip(servers, parts, strict=True))
        with tf.device(servers[0]):
            self.loss_scale = None if optimiser.loss_scale is None else LossScale()

    @property
    def counter(self) -> Optimiser:
        """The optimiser that counts updates: the first."""
        return next(shard.optimiser for shard in self.shards if shard.optimiser is not None)

    def push(self) -> None:
        """Copy the chief's state to the servers."""
        arrays = self._optimiser.arrays()
        for shard in self.shards:
            _copy(shard.own, shard.kept)
            if shard.optimiser is not None:
                shard.optimiser.assign(arrays)
            if shard.averaged is not None and self._averaged is not None:
                _copy(self._averages_of(shard), shard.averaged.model.variables)
                shard.averaged.assign(self._averaged.arrays())
        if self.loss_scale is not None and self._optimiser.loss_scale is not None:
            _copy(_of_scale(self._optimiser.loss_scale), _of_scale(self.loss_scale))

    def pull(self) -> None:
        """Copy the servers' state to the chief; call only while no step is in progress."""
        arrays = self._optimiser.arrays()
        for shard in self.shards:
            _copy(shard.kept, shard.own)
            if shard.optimiser is not None:
                arrays |= shard.optimiser.arrays()
            if shard.averaged is not None and self._averaged is not None:
                _copy(shard.averaged.model.variables, self._averages_of(shard))
                self._averaged.assign(shard.averaged.arrays())
        arrays["iteration"] = self.counter.arrays()["iteration"]
        self._optimiser.assign(arrays)
        if self.loss_scale is not None and self._optimiser.loss_scale is not None:
            _copy(_of_scale(self.loss_scale), _of_scale(self._optimiser.loss_scale))

    def _averages_of(self, shard: Shard) -> list[Any]:
        assert self._averaged is not None
        averages = {v.path: v for v in self._averaged.model.variables}
        return [averages[v.path] for v in shard.own]


def assign_variables(variables: Sequence[Any], servers: int) -> list[tuple[Any, ...]]:
    """Assign variables to servers: the largest first, each to the server with least elements so far."""
    size = [numbers_in([v]) for v in variables]
    loads, places = [0] * servers, [0] * len(variables)
    for number in sorted(range(len(variables)), key=lambda i: -size[i]):
        places[number] = loads.index(min(loads))
        loads[places[number]] += size[number]
    return [
        tuple(v for v, place in zip(variables, places, strict=True) if place == server)
        for server in range(servers)
    ]


def _like(variable: Any) -> Any:
    """Return a variable with the value and path of another, on the current device."""
    *folders, name = variable.path.split("/")
    with ExitStack() as scopes:
        for folder in folders:
            scopes.enter_context(keras.name_scope(folder))
        return keras.Variable(variable.numpy(), dtype=variable.dtype, trainable=False, name=name)


def _average(kept: Sequence[Any], decay: float) -> AveragedWeights:
    weights, averages = (SimpleNamespace(variables=list(v)) for v in (kept, map(_like, kept)))
    return AveragedWeights(tf.distribute.get_strategy(), weights, averages, decay)


def _of_scale(scale: LossScale) -> list[Any]:
    return [scale.scale, scale.steps]


def _copy(of: Sequence[Any], to: Sequence[Any]) -> None:
    for source, target in zip(of, to, strict=True):
        values = source.numpy()
        # Of very many workers at once, each takes its share off the same variance: it may fall below 0.
        target.assign(np.maximum(values, 0) if source.path.endswith(_NOT_NEGATIVE) else values)
