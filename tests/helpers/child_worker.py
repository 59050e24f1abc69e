"""A worker of several: steps of the rows it is asked for, and what workers tell each other; to a file.

Arguments: number of the worker, addresses of all with commas between, the file, names of `ROWS` with commas.
"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from segmenter.config.recipe import LossConfig, ModelConfig, TrainingConfig
from tests.helpers.small_training import (
    NO_NORM,
    NORM,
    PER_IMAGE,
    PER_PIXEL,
    SGD,
    Training,
    batches,
    with_slots,
)

STEPS = 5
CLIPPED = SGD.model_copy(update={"clip_norm": 0.01})
MIXED = SGD.model_copy(update={"precision": "mixed_float16"})


@dataclass(frozen=True)
class WorkersRow:
    """Steps that several workers do as one would; the first images of a batch are ignored, or almost."""

    model: ModelConfig = NORM
    loss: LossConfig = field(default_factory=LossConfig)
    training: TrainingConfig = SGD
    accumulate: int = 1

    @property
    def mixed(self) -> bool:
        return self.training.precision == "mixed_float16"

    def made(self, replicas: int = 1) -> Training:
        dtype = "mixed_float16" if self.mixed else "float64"
        options: dict[str, Any] = {"accumulate": self.accumulate, "training": self.training}
        return Training(self.model, self.loss, replicas, dtype, 0.0 if self.mixed else 0.7, **options)

    def stack(self) -> Any:
        """Of `STEPS` batches; in mixed precision the second overflows in the last worker's last image."""
        image, valid, label = batches(STEPS)
        if self.mixed:
            image = image.astype(np.float32)
            image[1, -1, 3, 3, 0] = 1e7
            valid[1, -1] = True
        return image, valid, label


ROWS = {
    "Dice and clipping by norm": WorkersRow(loss=LossConfig(dice=1.0), training=CLIPPED),
    "micro-batches per pixel": WorkersRow(NO_NORM, PER_PIXEL, accumulate=2),
    "micro-batches and clipping by norm": WorkersRow(NO_NORM, PER_IMAGE, CLIPPED, accumulate=2),
    "mixed precision with an overflow on one worker": WorkersRow(training=MIXED),
}


def done(training: Training, stack: Any) -> dict[str, Any]:
    """All that is trained after the steps, and their losses."""
    losses = training.each(stack)
    state = [v.numpy() for v in training.optimiser.variables]
    moments, counts = ([a for a in state if bool(a.ndim) is vector] for vector in (True, False))
    averaged = training.weights(averaged=True) if training.averaged is not None else []
    kinds = {
        "weights": training.weights(),
        "moments": moments,
        "counts": counts,
        "ema": averaged,
        "losses": [np.array(losses)],
    }
    return {f"{kind}/{i}": a for kind, arrays in kinds.items() for i, a in enumerate(arrays)}


def main() -> None:
    index, addresses, target, names = int(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]), sys.argv[4]
    from segmenter.config.devices import DistributionConfig
    from segmenter.devices.machines.cluster import find_cluster
    from segmenter.devices.setup import load_tensorflow
    from segmenter.devices.strategy import make_devices

    cluster = find_cluster("auto", ",".join(addresses), index, {})
    load_tensorflow(1, clustered=True)
    devices = make_devices(DistributionConfig(), None, cluster)
    with devices.workers.shared_end():
        for name in names.split(","):
            row = ROWS[name]
            own = devices.own_rows(row.stack()[0].shape[1])
            strategy = mock.patch("tests.helpers.small_training.strategy_of", return_value=devices.strategy)
            with strategy:
                training = row.made(len(addresses))
            training.devices = devices
            arrays = done(training, tuple(part[:, own] for part in with_slots(row.stack())))
            np.savez(target.with_name(f"{index}-{list(ROWS).index(name)}.npz"), **arrays)
        target.write_text(json.dumps(facts(devices)))


def facts(devices: Any) -> dict[str, Any]:
    """What this worker is told by the others, in the forms that a training uses."""
    from segmenter.training.workers_agree import Stop, arrays_from_chief, from_chief

    index, odd = devices.workers.index, np.array([-0.0, np.nan, 1e-310])
    sent = arrays_from_chief(
        devices, {"a": odd if index == 0 else odd + 1, "b": np.full((3, 5), index, np.int32)}
    )
    heard: list[int] = []
    stop = Stop(devices, heard)
    after = []
    for call in range(4):
        if call == 1 and index == devices.workers.count - 1:
            heard.append(15)
        stop.call(lambda stack, count: stack, devices.distribute((np.zeros(1),)), 1)
        after.append(bool(stop))
    return {
        "texts": devices.workers.exchange(f"from {index}"),
        "chief": from_chief(devices.workers, {"step": 3 + index}),
        "a": sent["a"].tobytes().hex(),
        "b": sent["b"].tolist(),
        "stopped": after,
        "signal": stop.signal,
        "replicas": devices.replicas,
        "first": devices.first,
    }


if __name__ == "__main__":
    main()
