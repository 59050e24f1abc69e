"""Parts and stages of a model by the names of its weights: which train, from which epoch, how fast.

Parts are the encoder, the decoder and the head; each but the head has stages. The names of the layers tell
them apart: a decoder's begin with `decoder_` (a U-Net's with `up` or `enlarge` and a number), the head is
called `logits`, and what is neither is the encoder's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from segmenter.base.errors import ConfigError
from segmenter.config.models import NOTHING_AT_STRIDE_2, ModelConfig, UNetConfig
from segmenter.config.recipe import TrainingConfig
from segmenter.model.decoders import DECODERS
from segmenter.model.size import stage_of, weight_shapes

_DECODER = re.compile(r"decoder_|(up|enlarge)\d")


def part_of(path: str) -> str:
    """Return the part of a model that a weight belongs to: `encoder`, `decoder` or `head`."""
    if path.startswith("logits"):
        return "head"
    return "decoder" if _DECODER.match(path) else "encoder"


@dataclass(frozen=True)
class Pace:
    """How the weights of a model train.

    Attributes:
        frozen_epochs: from the start, in which the weights of `late` stay as they are.
        late: paths of weights that train only after that.
        rates: path → factor on the learning rate and the weight decay, where it is not 1; 0: never trains.
        stages: stage → paths of its weights, in the order of the data's way.
        norms: paths of BatchNorm's weights and statistics that stay as they are by `freeze_norms`.
    """

    frozen_epochs: int = 0
    late: frozenset[str] = frozenset()
    rates: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norms: frozenset[str] = frozenset()

    def is_frozen(self, epoch: int) -> bool:
        """Return True if the late weights stay as they are in an epoch, from 0."""
        return epoch < self.frozen_epochs

    def trains(self, path: str, epoch: int | None = None) -> bool:
        """Return True if a weight trains in an epoch, from 0; None: in any."""
        frozen = epoch is not None and self.is_frozen(epoch) and path in self.late
        return not frozen and self.rates.get(path, 1.0) > 0

    def describe(self) -> str:
        """Return one line of each stage's rate and first epoch; empty if all train alike from the start."""
        if not self.late and not self.rates:
            return ""
        kinds: dict[str, list[str]] = {}
        for stage, paths in self.stages.items():
            first = next(path for path in paths if path not in self.norms)
            kinds.setdefault(self._describe_stage(first), []).append(stage)
        said = [f"{joined_stages(names)} {how}" for how, names in kinds.items()]
        if parts := sorted({part_of(path) for path in self.norms}, reverse=True):
            said.append(f"BatchNorm of the {' and the '.join(parts)} frozen")
        return "stages: " + "; ".join(said)

    def _describe_stage(self, path: str) -> str:
        rate = self.rates.get(path, 1.0)
        if rate == 0:
            return "frozen"
        speed = "at the learning rate" if rate == 1 else f"at {rate:g} × the learning rate"
        if path in self.late:
            return f"frozen in epoch{_numbers(self.frozen_epochs)}, then {speed}"
        return speed


def _numbers(last: int) -> str:
    return " 1" if last == 1 else f"s 1 to {last}"


def pace_of(stage_of: Mapping[str, str], training: TrainingConfig) -> Pace:
    """Apply the recipe's `freeze_encoder`, `freeze_norms` and `rates` to a model.

    A stage's own rate goes before that of its part; frozen BatchNorm has none.

    Args:
        stage_of: path of each weight → its stage.

    Raises:
        ConfigError: the model has no such stage, or nothing of it would train.
    """
    stages: dict[str, list[str]] = {}
    parts: dict[str, str] = {}
    for path, stage in stage_of.items():
        stages.setdefault(stage, []).append(path)
        parts[path] = part_of(path)
    known = [*dict.fromkeys(parts.values()), *stages]
    for name in training.rates:
        if name not in known:
            listed = ", ".join(dict.fromkeys(known))
            raise ConfigError(f"training.rates: expected stages of this model ({listed}), got {name}")
    rates = {
        path: training.rates.get(stage, training.rates.get(parts[path], 1.0))
        for stage, members in stages.items()
        for path in members
    }
    norms = _frozen_norms(parts, training.freeze_norms)
    rates |= dict.fromkeys(norms, 0.0)
    late = {p for p, part in parts.items() if training.freeze_encoder and part == "encoder" and rates[p] > 0}
    if training.freeze_encoder and not late:
        raise ConfigError(
            "training.freeze_encoder: expected 0 where training.rates freezes the whole encoder for good, "
            f"got {training.freeze_encoder}"
        )
    if not any(rate > 0 for path, rate in rates.items() if path not in late):
        raise ConfigError("training.rates: expected a rate above 0 for a stage that is not frozen, got none")
    return Pace(
        training.freeze_encoder,
        frozenset(late),
        {path: rate for path, rate in rates.items() if rate != 1},
        {stage: tuple(members) for stage, members in stages.items()},
        norms,
    )


def _frozen_norms(parts: Mapping[str, str], which: str) -> frozenset[str]:
    """Return the paths of the weights of BatchNorm, which alone has a moving mean, in those parts."""
    layers = {path.rpartition("/")[0] for path in parts if path.endswith("/moving_mean")}
    found = {
        path for path, part in parts.items() if which in ("all", part) and path.rpartition("/")[0] in layers
    }
    if which != "none" and not found:
        raise ConfigError(
            f"training.freeze_norms: expected none for a model without BatchNorm there, got {which}"
        )
    return frozenset(found)


def stages_told(config: ModelConfig) -> dict[str, str]:
    """Return a path for each stage of a model → the stage, known without building it.

    The law: the stages are those of `building.stages_of`.
    """
    if isinstance(config, UNetConfig):
        return {path: stage_of(path, config) for path in weight_shapes(config, 1, 1)}
    first = 2 if config.encoder in NOTHING_AT_STRIDE_2 else 1
    encoder = {f"stage{n}": f"encoder stage {n}" for n in range(first, 6)}
    decoder = {f"decoder_{n}": f"decoder stage {n}" for n in range(1, DECODERS[config.decoder].stages + 1)}
    return {**encoder, **decoder, "logits": "head"}


def joined_stages(stages: list[str]) -> str:
    """Return `encoder stages 1 to 4, bottleneck`: neighbours with a number in one word."""
    groups: list[tuple[str, list[int]]] = []
    for stage in stages:
        name, _, number = stage.rpartition(" ")
        if not number.isdecimal():
            groups.append((stage, []))
        elif groups and groups[-1][0] == name and groups[-1][1][-1] == int(number) - 1:
            groups[-1][1].append(int(number))
        else:
            groups.append((name, [int(number)]))
    return ", ".join(_numbered(name, numbers) for name, numbers in groups)


def _numbered(name: str, numbers: list[int]) -> str:
    if len(numbers) < 2:
        return " ".join([name, *map(str, numbers)])
    return f"{name}s {numbers[0]} {'and' if len(numbers) == 2 else 'to'} {numbers[-1]}"


# ------------------------------------------------------------------------------- weight decay

_UNDECAYED = re.compile(r"(^|_)(bias|gamma|beta)$")


def is_decayed(path: str, rank: int) -> bool:
    """Return True if weight decay applies to a weight of `rank` axes.

    Not for scales and shifts: decay on them pulls normalisation to zero and regularises nothing. They have
    one axis, also where a layer gives them no name of their own (ConvNeXt's LayerScale); biases of attention
    have two, and are known by their names. The names of layers say nothing: one may be called `beta`.
    """
    return rank > 1 and not _UNDECAYED.search(path.rpartition("/")[2])
