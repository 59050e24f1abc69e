"""Parts and stages of a model by weight names: which of them train, from which epoch, at which rate.

Parts are encoder, decoder and head; encoder and decoder have stages. Layer names identify them: a decoder's
begin with `decoder_` (a U-Net's with `up` or `enlarge` and a number), the head is called `logits`, and all
others belong to the encoder.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from segmenter.base.errors import ConfigError
from segmenter.config.models import NOTHING_AT_STRIDE_2, WITHOUT_BATCHNORM, ModelConfig, UNetConfig
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
    """Training schedule of a model's weights.

    Attributes:
        frozen_epochs: number of first epochs in which the weights of `late` do not change.
        late: paths of weights that train only after these epochs.
        rates: factor on learning rate and weight decay by path, if it is not 1; 0: never trains.
        stages: paths of weights by stage, in the order of data flow.
        norms: paths of BatchNorm weights and statistics frozen by `freeze_norms`.
    """

    frozen_epochs: int = 0
    late: frozenset[str] = frozenset()
    rates: Mapping[str, float] = field(default_factory=dict)
    stages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    norms: frozenset[str] = frozenset()

    def is_frozen(self, epoch: int) -> bool:
        """Return True if the late weights do not change in an epoch, counted from 0."""
        return epoch < self.frozen_epochs

    def trains(self, path: str, epoch: int | None = None) -> bool:
        """Return True if a weight trains in an epoch, counted from 0; None: in any epoch."""
        frozen = epoch is not None and self.is_frozen(epoch) and path in self.late
        return not frozen and self.rates.get(path, 1.0) > 0

    def describe(self) -> str:
        """Return one line on each stage's rate and first epoch; empty if all train alike from the start."""
        if not self.late and not self.rates:
            return ""
        kinds: dict[str, list[str]] = {}
        for stage, paths in self.stages.items():
            first = next(path for path in paths if path not in self.norms)
            kinds.setdefault(self._describe_stage(first), []).append(stage)
        lines = [f"{joined_stages(names)} {how}" for how, names in kinds.items()]
        if parts := sorted({part_of(path) for path in self.norms}, reverse=True):
            lines.append(f"BatchNorm of the {' and the '.join(parts)} frozen")
        return "stages: " + "; ".join(lines)

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

    A stage's rate overrides its part's; frozen BatchNorm has no rate.

    Raises:
        ConfigError: the model lacks a stage, or nothing would train.
    """
    stages: dict[str, list[str]] = {}
    parts: dict[str, str] = {}
    for path, stage in stage_of.items():
        stages.setdefault(stage, []).append(path)
        parts[path] = part_of(path)
    names = [*dict.fromkeys(parts.values()), *stages]
    for name in training.rates:
        if name not in names:
            listed = ", ".join(dict.fromkeys(names))
            raise ConfigError("training.rates", expected=f"stages of this model ({listed})", got=name)
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
            "training.freeze_encoder",
            expected="0 where training.rates freezes the whole encoder for good",
            got=training.freeze_encoder,
        )
    if not any(rate > 0 for path, rate in rates.items() if path not in late):
        raise ConfigError(
            "training.rates", expected="a rate above 0 for a stage that is not frozen", got="none"
        )
    return Pace(
        training.freeze_encoder,
        frozenset(late),
        {path: rate for path, rate in rates.items() if rate != 1},
        {stage: tuple(members) for stage, members in stages.items()},
        norms,
    )


def _frozen_norms(parts: Mapping[str, str], which: str) -> frozenset[str]:
    """Return the paths of BatchNorm weights in the given parts; only BatchNorm has a moving mean."""
    layers = {path.rpartition("/")[0] for path in parts if path.endswith("/moving_mean")}
    paths = {
        path for path, part in parts.items() if which in ("all", part) and path.rpartition("/")[0] in layers
    }
    if which != "none" and not paths:
        raise ConfigError(
            "training.freeze_norms", expected="none for a model without BatchNorm there", got=which
        )
    return frozenset(paths)


def stages_told(config: ModelConfig) -> dict[str, str]:
    """Return the stages of a model by paths of few weights, without building the model.

    The law: the stages, and the parts that have BatchNorm, are those of `building.stages_of`.
    """
    if isinstance(config, UNetConfig):
        return {path: stage_of(path, config) for path in weight_shapes(config, 1, 1)}
    first = 2 if config.encoder in NOTHING_AT_STRIDE_2 else 1
    encoder = {f"stage{n}": f"encoder stage {n}" for n in range(first, 6)}
    decoder = {f"decoder_{n}": f"decoder stage {n}" for n in range(1, DECODERS[config.decoder].stages + 1)}
    norms = {} if config.encoder in WITHOUT_BATCHNORM else {"norm/moving_mean": "encoder stage 5"}
    norms["decoder_norm/moving_mean"] = "decoder stage 1"
    return {**encoder, **norms, **decoder, "logits": "head"}


def joined_stages(stages: list[str]) -> str:
    """Return stages as short text, such as `encoder stages 1 to 4, bottleneck`."""
    groups: list[tuple[str, list[int]]] = []
    for stage in stages:
        name, _, number = stage.rpartition(" ")
        if not number.isdecimal():
            groups.append((stage, []))
        elif groups and groups[-1][0] == name and groups[-1][1][-1] == int(number) - 1:
            groups[-1][1].append(int(number))
        else:
            groups.append((name, [int(number)]))
    return ", ".join(_number_name(name, numbers) for name, numbers in groups)


def _number_name(name: str, numbers: list[int]) -> str:
    if len(numbers) < 2:
        return " ".join([name, *map(str, numbers)])
    return f"{name}s {numbers[0]} {'and' if len(numbers) == 2 else 'to'} {numbers[-1]}"


# ------------------------------------------------------------------------------- weight decay

_UNDECAYED = re.compile(r"(^|_)(bias|gamma|beta)$")


def is_decayed(path: str, rank: int) -> bool:
    """Return True if weight decay applies to a weight of `rank` axes.

    It does not apply to scales and shifts: decay would pull normalisation to zero and regularise nothing.
    They have one axis, even without a usual name (ConvNeXt's LayerScale); biases of attention have two, and
    are recognised by name. Layer names do not count: a layer may be called `beta`.
    """
    return rank > 1 and not _UNDECAYED.search(path.rpartition("/")[2])
