"""Training over several workers: consistency checks, common start, stop and validation.

A single process sends nothing and waits for nothing.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from segmenter.base.errors import WorkerError, shorten
from segmenter.base.version import __version__, source_digest
from segmenter.config.reading import flat_settings
from segmenter.config.recipe import Recipe
from segmenter.devices.machines.workers import Workers
from segmenter.devices.strategy import Devices
from segmenter.grid.labels import ClassMap
from segmenter.model.normalisation import Normalisation
from segmenter.runs.resume import installed_versions
from segmenter.runs.run import Run

_OWN = (
    *("dataset.root", "dataset.cache", "prediction.", "training.input_workers", "training.keep_checkpoints"),
    *("distribution.visible_devices", "distribution.memory", "distribution.log_placement"),
)
"""Settings that may differ between workers: they change neither results nor their order."""
_WORDS = 1 << 22
"""Numbers of eight bytes that are sent at once."""

Arrays = dict[str, NDArray[Any]]


# --------------------------------------------------------------------------------- what is the same


def check_same(workers: Workers, facts: Mapping[str, str]) -> None:
    """Refuse to train if workers differ.

    Args:
        facts: names and values of facts on this worker.

    Raises:
        WorkerError: a worker differs; all get the same message.
    """
    chief, *others = map(json.loads, workers.exchange(json.dumps(facts)))
    for index, here in enumerate(others, 1):
        for name in [*chief, *(name for name in here if name not in chief)]:
            expected, got = (shorten(str(said.get(name, "none")), 60) for said in (chief, here))
            if expected != got or chief.get(name) != here.get(name):
                raise WorkerError(
                    f"{workers.name(index)}: {name}",
                    expected=f"{expected} as on {workers.name(0)}",
                    got=got,
                    remedy="start all workers with the same recipe, program and data",
                )


def facts_of(recipe: Recipe, classes: ClassMap, tiles: str, devices: Devices) -> dict[str, str]:
    """Return named facts that must be equal on all workers.

    Args:
        tiles: fingerprint of the training tiles and scene files.
    """
    settings = {
        f"recipe, {key}": json.dumps(value)
        for key, value in flat_settings(recipe).items()
        if not key.startswith(_OWN)
    }
    kinds = "GPU" if devices.names[0].startswith("GPU") else "CPU"
    return {
        **settings,
        **{f"version of {name}": number for name, number in installed_versions().items()},
        "program": f"{__version__} {source_digest()}",
        "classes": json.dumps(classes.to_dict()),
        "training data (fingerprint)": tiles,
        "devices": f"{len(devices.names)} {kinds}",
    }


# --------------------------------------------------------------------------------- from the chief


def from_chief(workers: Workers, said: Any) -> Any:
    """Return the chief's value, which must be JSON; values of other workers are ignored."""
    return json.loads(workers.exchange(json.dumps(said if workers.chief else None))[0])


def as_on_chief(workers: Workers, run: Run) -> Run:
    """Return the run with the chief's normalisation: on other processors, the means differ in last bits."""
    shared = from_chief(workers, [each and asdict(each) for each in (run.normalisation, run.scenes)])
    normalisation, scenes = (each and Normalisation.of(**each) for each in shared)
    return replace(run, normalisation=normalisation, scenes=scenes)


def arrays_from_chief(devices: Devices, arrays: Arrays) -> Arrays:
    """Return the chief's arrays, bit for bit, on all workers; names, types and shapes must be equal.

    They are sent as a sum of whole numbers, made of their bytes, to which others add 0.
    """
    content = b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())
    words = np.frombuffer(content + bytes(-len(content) % 8), np.int64)
    chief = devices.workers.chief

    @tf.function(autograph=False)
    def total(own: Any) -> Any:
        return devices.strategy.reduce(
            tf.distribute.ReduceOp.SUM, devices.strategy.run(tf.identity, args=(own,)), axis=None
        )

    parts = []
    size = min(_WORDS, max(1, len(words)))
    for start in range(0, len(words), size):
        part = np.zeros(size, np.int64)
        part[: len(words[start : start + size])] = words[start : start + size]

        def own(context: Any, part: Any = part) -> Any:
            sends = chief and context.replica_id_in_sync_group == 0
            return tf.constant(part if sends else np.zeros_like(part))

        parts.append(total(devices.strategy.experimental_distribute_values_from_function(own)).numpy())
    sent = io.BytesIO(np.concatenate(parts).tobytes() if parts else b"")
    return {
        name: np.frombuffer(sent.read(array.nbytes), array.dtype).reshape(array.shape)
        for name, array in arrays.items()
    }


# --------------------------------------------------------------------------------- stopping


class Stop:
    """Decision to stop; with several workers, only once all know that one has received a signal.

    Each worker passes its signal to every call of the devices, which sum them; the sum is read one call late,
    with the results, so nobody waits for it, and all stop after the same call.
    """

    def __init__(self, devices: Devices, heard: Sequence[int]) -> None:
        """Watch `heard`, the growing list of signals that this process has received."""
        self._devices, self._heard = devices, heard
        self._alone = devices.workers.count == 1
        self._agreed = 0
        self._pending: Any = None
        self._compiled: Any = None

    def __bool__(self) -> bool:
        return self.signal > 0

    @property
    def signal(self) -> int:
        """Number of the signal to stop for; 0: none."""
        return self.received_signal() if self._alone and not self._agreed else self._agreed

    def call(self, steps: Any, stack: Any, count: Any) -> Any:
        """Return the results of `steps(stack, count)`, and read the sum of signals of the previous call."""
        if self._alone:
            return steps(stack, count)
        if self._compiled is None or self._compiled[0] is not steps:
            self._compiled = steps, _with_heard(steps, self._devices.strategy)
        results, told = self._compiled[1](stack, count, self._told_here())
        self.drain()
        self._pending = told
        return results

    def drain(self) -> None:
        """Read the sum of signals of the last call."""
        if self._pending is not None:
            self._agree(round(float(self._pending)))
            self._pending = None

    def take(self, heard: Sequence[int]) -> None:
        """Use the signals of all workers, exchanged in another way; they are equal on all workers."""
        self._agree(sum(map(_weight, heard)))

    def received_signal(self) -> int:
        """Return the signal that this worker has received; 0: none."""
        return self._heard[0] if self._heard else 0

    def _told_here(self) -> Any:
        own = float(_weight(self.received_signal()))
        first = self._devices.first

        def value(context: Any) -> Any:
            return tf.constant(own if context.replica_id_in_sync_group == first else 0.0)

        return self._devices.strategy.experimental_distribute_values_from_function(value)

    def _agree(self, weights: int) -> None:
        if weights and not self._agreed:
            self._agreed = 15 if weights >= _TERM else 2


_TERM = 1 << 12
"""Weight of a SIGTERM in a sum in which a SIGINT counts 1: more than there are workers."""


def _weight(signal_number: int) -> int:
    return 0 if not signal_number else _TERM if signal_number == 15 else 1


def _with_heard(steps: Any, strategy: Any) -> Any:
    @tf.function(reduce_retracing=True, autograph=False)
    def call(stack: Any, count: Any, told: Any) -> Any:
        results = steps(stack, count)
        heard = strategy.run(tf.identity, args=(told,))
        return results, strategy.reduce(tf.distribute.ReduceOp.SUM, heard, axis=None)

    return call


# --------------------------------------------------------------------------------- texts of arrays


def pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Encode arrays as text."""
    buffer = io.BytesIO()
    renamed: dict[str, Any] = {f"_{name}": array for name, array in arrays.items()}
    np.savez_compressed(buffer, **renamed)
    return base64.b64encode(buffer.getvalue()).decode()


def unpack_arrays(text: str) -> Arrays:
    """Decode the result of `pack_arrays`; plain arrays only."""
    with np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False) as file:
        return {name.removeprefix("_"): file[name] for name in file.files}


def share_of(workers: Workers, items: Sequence[Any]) -> list[Any]:
    """Return this worker's items: every n-th, since neighbours are similar."""
    return list(items[workers.index :: workers.count])
