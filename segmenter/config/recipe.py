"""Sections of a recipe: every setting with its unit, its default and the reason for the default.

Impossible combinations of settings are refused here. Settings that depend on the machine (devices, replicas)
or on the data are checked later, once these are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.augmentation import (
    CopyPasteConfig,
    ProbabilityConfig,
    TransformConfig,
    as_mapping,
    symmetries_of,
)
from segmenter.config.datasets import DatasetConfig as DatasetConfig
from segmenter.config.datasets import Metres
from segmenter.config.devices import DistributionConfig as DistributionConfig
from segmenter.config.losses import LossConfig as LossConfig
from segmenter.config.models import EncoderDecoderConfig as EncoderDecoderConfig
from segmenter.config.models import ModelConfig as ModelConfig
from segmenter.config.models import UNetConfig as UNetConfig
from segmenter.config.sampling import SamplingConfig as SamplingConfig
from segmenter.config.sections import Count, Section, setting
from segmenter.config.strategies import OtherSettings

MAX_NAME = 60
"""Characters of a recipe's name: a folder's name has 255 bytes at most, and ours get endings."""
MOST_WORKERS = 256
"""Worker processes of a training: more than a machine has cores, and less than it takes to bring it down."""
_STAGE = re.compile(r"encoder|decoder|head|bottleneck|stem|(encoder|decoder) stage \d+")
"""Stages that `training.rates` may name; the model's own stages are checked once its layers are known."""

# --------------------------------------------------------------------------------- what is sampled


class TilesConfig(Section):
    """Windows of the scenes that training samples."""

    size: int = setting(
        256,
        "pixels",
        "length of a tile's side; an 11 GB card takes a batch of 16 tiles of the default size",
        ge=16,
        le=4096,
    )
    overlap: int = setting(
        0,
        "pixels",
        "width of the strip that neighbouring tiles share; 0: none, but the last tiles of a row or column "
        "are moved back into the scene and share what that takes",
        ge=0,
    )
    jitter: bool = setting(
        True,
        "",
        "true: move each tile at random by up to half its step, anew in each epoch, within its scene; "
        "false: tiles stay on their grid",
    )
    min_labelled: float = setting(
        0.05,
        "share of the tile",
        "smallest share of a tile that must be labelled and have data; tiles with less are left out and "
        "counted",
        ge=0,
        le=1,
    )

    @model_validator(mode="after")
    def _fits(self) -> TilesConfig:
        if self.overlap >= self.size:
            raise PydanticCustomError(
                "tiles.overlap",
                "expected an overlap smaller than the size of {size} pixels, got {overlap}",
                {"size": self.size, "overlap": self.overlap},
            )
        return self


class AugmentationConfig(Section):
    """Random changes of a tile; 0 turns one off. Geometric changes also move the label."""

    d4: bool = setting(
        True,
        "",
        "true: turn each tile into a random one of its eight flips and quarter turns, because imagery from "
        "above has no fixed orientation",
    )
    scale: float = setting(
        0.0,
        "share",
        "largest relative zoom of a tile, in or out, drawn at random; 0.25: from 0.75 to 1.25 times; 0: off",
        ge=0,
        lt=0.9,
    )
    scale_to: tuple[Metres, Metres] | None = setting(
        None,
        "metres",
        "range of pixel sizes on the ground, [finest, coarsest]: each tile is resampled to one drawn from "
        "it; default: scenes keep their pixel size",
    )
    rotation: float = setting(
        0.0,
        "degrees",
        "largest rotation of a tile, either way, drawn at random; uncovered corners are ignored; 0: off",
        ge=0,
        le=180,
    )
    brightness: float = setting(
        0.2,
        "share of the range",
        "largest change of brightness, up or down, drawn at random; 0: off",
        ge=0,
        le=1,
    )
    contrast: float = setting(
        0.2, "share", "largest relative change of contrast, up or down, drawn at random; 0: off", ge=0, lt=1
    )
    hue: int = setting(
        0,
        "degrees",
        "largest shift of hue, either way, drawn at random; for 8-bit RGB only; 0: off",
        ge=0,
        le=180,
    )
    saturation: float = setting(
        0.0,
        "share",
        "largest relative change of saturation, up or down, drawn at random; for 8-bit RGB only; 0: off",
        ge=0,
        le=1,
    )
    blur: float = setting(
        0.0,
        "probability",
        "probability that a tile is slightly blurred (Gaussian kernel of 3 to 5 pixels); 0: off",
        ge=0,
        le=1,
    )
    noise: float = setting(
        0.0,
        "share of the range",
        "largest standard deviation of the Gaussian noise that is added to a tile, as a share of the range "
        "that colour changes see: 0 to 255 of 8-bit photographs, else six deviations of each band; slow to "
        "compute; 0: off",
        ge=0,
        le=0.5,
    )
    probability: ProbabilityConfig = setting(
        ProbabilityConfig(),
        "",
        "probabilities with which the changes above are applied to a tile, each drawn independently; "
        "default: 1, to every tile",
    )
    transforms: tuple[TransformConfig, ...] = setting(
        (), "", "further transforms of albumentations, applied in this order: docs/training.md"
    )
    mosaic: float = setting(
        0.0,
        "probability",
        "probability that a tile is put together from parts of four tiles (arXiv:2004.10934), which reads "
        "three more; 0: off",
        ge=0,
        le=1,
    )
    copy_paste: CopyPasteConfig | None = setting(
        None,
        "",
        "copy-paste of rare classes: regions of another tile, which is read too, are pasted into a tile; "
        "default: off",
    )

    @property
    def symmetries(self) -> str:
        """Name, as in `--tta`, of the most symmetries in which tiles are shown."""
        return symmetries_of(self)

    @model_validator(mode="before")
    @classmethod
    def _list(cls, data: object) -> object:
        return as_mapping(data)

    @model_validator(mode="after")
    def _nothing_unused(self) -> AugmentationConfig:
        if unused := self.probability.unused_setting(self):
            raise PydanticCustomError(
                f"augmentation.probability.{unused[0]}",
                "expected {settings} with it, got none: it would change nothing",
                {"settings": unused[1]},
            )
        return self

    @model_validator(mode="after")
    def _one_scale(self) -> AugmentationConfig:
        if self.scale_to is None:
            return self
        if self.scale_to[0] > self.scale_to[1]:
            raise PydanticCustomError(
                "augmentation.scale_to",
                "expected the finest and then the coarsest metres a pixel, as in [0.2, 1.0], got {got}",
                {"got": str(list(self.scale_to))},
            )
        if self.scale:
            raise PydanticCustomError(
                "augmentation.scale",
                "expected 0 with scale_to, which draws the size of what is shown itself, got {got}",
                {"got": self.scale},
            )
        return self


# ------------------------------------------------------------------------------- what is trained


def _number_or_auto(value: object) -> object:
    """Validate with one message; a union would give one message per member."""
    if value == "auto" or (type(value) is int and 0 <= value <= MOST_WORKERS):
        return value
    raise PydanticCustomError(
        "training.input_workers", "expected auto, or a number from 0 to {most}", {"most": MOST_WORKERS}
    )


class TrainingConfig(Section):
    """Length, optimiser, learning rate, precision, validation and checkpoints of a training."""

    global_batch: int = setting(
        64,
        "tiles",
        "number of tiles in one optimiser step, over all replicas together; the default is 4 replicas × 16",
        ge=1,
        le=65_536,
    )
    epochs: Count = setting(
        100,
        "epochs",
        "length of the training in epochs of planned steps; in one epoch each tile is seen once or "
        "more often, but for sampling.method rare_class and foreground, which draw tiles at random",
        ge=1,
    )
    optimizer: Literal["adamw", "sgd"] = setting(
        "adamw", "", "optimiser: adamw, or sgd with momentum and nesterov as given below"
    )
    momentum: float = setting(
        0.9, "share", "share of the previous step that sgd adds to each step; 0: plain SGD", ge=0, lt=1
    )
    nesterov: bool = setting(
        True,
        "",
        "true: sgd looks ahead along the momentum (Nesterov; Sutskever et al., ICML 2013); false: Polyak's "
        "momentum",
    )
    learning_rate: float = setting(
        1e-3, "per step", "learning rate at its peak, after the warm-up and before scaling", gt=0
    )
    scaling: Literal["none", "linear", "sqrt"] = setting(
        "none",
        "",
        "scaling of learning_rate with the batch: linear multiplies it by global_batch / reference_batch "
        "(arXiv:1706.02677), sqrt by the square root of that",
    )
    reference_batch: Count | None = setting(
        None,
        "tiles",
        "global batch that learning_rate was found for; needed with scaling: linear or sqrt",
        ge=1,
    )
    weight_decay: float = setting(
        1e-4, "per step", "decoupled weight decay, on all weights but biases and normalisation", ge=0
    )
    freeze_encoder: int = setting(
        0,
        "epochs",
        "number of epochs at the start in which a pretrained encoder is frozen, which takes less time; 0: "
        "trained from the start",
        ge=0,
    )
    freeze_norms: Literal["none", "encoder", "all"] = setting(
        "none",
        "",
        "BatchNorm layers whose statistics, scale and shift stay as they were loaded: none, those of the "
        "encoder, or all: docs/training.md",
    )
    rates: dict[str, Annotated[float, Field(ge=0, le=1000)]] = setting(
        {},
        "",
        "factors on learning_rate for parts of the model, as in {encoder: 0.1, encoder stage 1: 0.05, "
        "head: 1}; 0 freezes a part for good",
    )
    schedule: Literal["poly", "cosine", "constant", "exponential", "piecewise"] = setting(
        "poly",
        "",
        "course of the learning rate after the warm-up; poly: (1 − t)^0.9 (DeepLab, arXiv:1606.00915), "
        "where t rises from 0 at the end of the warm-up to 1 at the last step",
    )
    warmup: Count = setting(
        100,
        "steps",
        "length of the warm-up, in which the learning rate rises linearly from 0, because early BatchNorm "
        "statistics are poor; at most a tenth of the training's steps",
        ge=0,
    )
    decay_rate: float = setting(
        0.9,
        "share",
        "share of the learning rate that is left after each decay_steps, for schedule: exponential",
        gt=0,
        le=1,
    )
    decay_steps: Count | None = setting(
        None,
        "steps",
        "number of steps in which the learning rate falls by decay_rate, counted from the end of the "
        "warm-up; needed with schedule: exponential",
        ge=1,
    )
    staircase: bool = setting(
        False,
        "",
        "true: the learning rate falls in steps, once every decay_steps; false: smoothly; for schedule: "
        "exponential",
    )
    boundaries: tuple[Annotated[int, Field(ge=1)], ...] = setting(
        (), "", "last step of each piece but the final one, counted from 0, for schedule: piecewise"
    )
    values: tuple[Annotated[float, Field(ge=0)], ...] = setting(
        (),
        "",
        "share of learning_rate in each piece, one value more than boundaries, as in [1, 0.1, 0.01], for "
        "schedule: piecewise",
    )
    clip_norm: float = setting(
        0.0,
        "gradient norm",
        "largest global norm of the gradient, after the sum over replicas; a larger gradient is scaled "
        "down; 0: off",
        ge=0,
    )
    clip_value: float = setting(
        0.0,
        "gradient",
        "largest absolute value of each component of the gradient, after the sum over replicas; larger "
        "ones are cut off; 0: off",
        ge=0,
    )
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] = setting(
        "float32",
        "",
        "number format of the computation; mixed_float16: for GPUs with tensor cores; mixed_bfloat16: for "
        "TPUs and newer cards; float64: for proofs of equality, slow",
    )
    accumulate: int = setting(
        1,
        "micro-batches",
        "number of micro-batches into which each device splits its part of a step, computed one after the "
        "other to need less memory",
        ge=1,
    )
    ema: float = setting(
        0.0,
        "share",
        "decay of the moving average of the weights, which validates and predicts in place of the weights; "
        "averages over about 1 / (1 − ema) steps; 0: off",
        ge=0,
        lt=1,
    )
    steps_per_call: int = setting(
        4,
        "steps",
        "number of steps that the devices compute before the host reads their results; a stop takes effect "
        "only then",
        ge=1,
        le=1000,
    )
    input_workers: Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)] = setting(
        "auto",
        "processes",
        "number of processes that make batches; 0: threads instead; auto: by cores and memory on GPUs, "
        "threads on CPUs",
    )
    xla: Literal[False, True, "auto"] = setting(
        False,
        "",
        "compilation of the step with XLA, on one device or whole GPUs; auto: on GPUs, if a trial is faster",
    )
    validate_every: Count = setting(
        1, "epochs", "number of epochs between two validations on whole scenes", ge=1
    )
    best_by: str = setting(
        "miou",
        "",
        "score that chooses the best model: miou, mf1, oa, fwiou, kappa, iou:CLASS or f1:CLASS; in miou "
        "and mf1 a class that is predicted but is in no validation label counts as 0",
    )
    stop_after: Count = setting(
        0,
        "validations",
        "number of validations in a row without a better best_by after which the training ends; 0: it runs "
        "to its last epoch",
        ge=0,
    )
    checkpoint_every: Count = setting(
        1000,
        "steps",
        "number of steps between two checkpoints, which a power cut may cost at most; one is also written "
        "at the end of each epoch",
        ge=1,
    )
    keep_checkpoints: Count = setting(
        2, "checkpoints", "number of newest checkpoints that are kept, besides the best", ge=1
    )

    @property
    def loss_scaled(self) -> bool:
        """True if the loss is scaled: only float16's range of exponents is too small for gradients."""
        return self.precision == "mixed_float16"

    @model_validator(mode="after")
    def _one_clip(self) -> TrainingConfig:
        if self.clip_norm and self.clip_value:
            raise PydanticCustomError(
                "training", "expected one of clip_norm and clip_value, got both: set the other to 0"
            )
        return self

    @model_validator(mode="after")
    def _stages_train(self) -> TrainingConfig:
        if self.freeze_encoder >= self.epochs:
            raise PydanticCustomError(
                "training.freeze_encoder",
                "expected fewer epochs than the {epochs} of the training, got {frozen}; to freeze it "
                "for good, take rates: {encoder: 0}",
                {"epochs": self.epochs, "frozen": self.freeze_encoder},
            )
        for name in self.rates:
            if not _STAGE.fullmatch(name):
                raise PydanticCustomError(
                    "training.rates",
                    "expected encoder, decoder, head, or a stage as in encoder stage 1, got {name}",
                    {"name": name},
                )
        return self

    @model_validator(mode="after")
    def _rates_fit(self) -> TrainingConfig:
        for key, message in (*self._unused_settings(), *self._missing()):
            raise PydanticCustomError(f"training.{key}", message)
        return self

    def _unused_settings(self) -> Iterator[tuple[str, str]]:
        """Yield settings without effect: they are more likely a mistake than intended."""
        defaults = type(self).model_fields
        users = dict.fromkeys(("decay_rate", "decay_steps", "staircase"), ("schedule", "exponential"))
        users |= dict.fromkeys(("boundaries", "values"), ("schedule", "piecewise"))
        users |= dict.fromkeys(("momentum", "nesterov"), ("optimizer", "sgd"))
        for key, (chooser, choice) in users.items():
            if getattr(self, key) != defaults[key].default and getattr(self, chooser) != choice:
                yield key, f"expected {chooser}: {choice} with it, got {getattr(self, chooser)}"
        if not self.nesterov and not self.momentum:
            yield (
                "nesterov",
                "expected a momentum above 0 with false, got 0: plain SGD has nothing to look along",
            )
        if self.reference_batch is not None and self.scaling == "none":
            yield "reference_batch", "expected scaling: linear or sqrt with it, got none"

    def _missing(self) -> Iterator[tuple[str, str]]:
        if self.scaling != "none" and self.reference_batch is None:
            yield "reference_batch", f"expected a number of tiles with scaling: {self.scaling}, got none"
        if self.schedule == "exponential" and self.decay_steps is None:
            yield "decay_steps", "expected a number of steps with schedule: exponential, got none"
        if self.schedule == "piecewise":
            if not self.boundaries:
                yield "boundaries", "expected steps with schedule: piecewise, as in [8000, 12000], got none"
            if any(b <= a for a, b in pairwise(self.boundaries)):
                yield "boundaries", f"expected rising steps, got {list(self.boundaries)}"
            if len(self.values) != len(self.boundaries) + 1:
                expected = f"expected {len(self.boundaries) + 1} values for {len(self.boundaries)} boundaries"
                yield "values", f"{expected}, got {len(self.values)}"


class PredictionConfig(Section):
    """Windows of validation, and of `predict.py` in smooth mode; in exact mode the memory decides."""

    window: Count | None = setting(
        None,
        "pixels",
        "length of a window's side, halo included, rounded up to the model's stride; default: 1024 where "
        "memory allows, else 512; in smooth mode 512",
        ge=16,
    )
    batch: Count | None = setting(
        None,
        "windows",
        "number of windows computed at once; default: as many as have the pixels of one window of 1024, or "
        "as memory allows",
        ge=1,
    )


class Recipe(Section):
    """Complete recipe of a training."""

    name: str = setting(
        ...,
        "",
        "name of the recipe and of its run directory; default: the name of the recipe's file",
        pattern=r"^\w[\w .-]*$",
        max_length=MAX_NAME,
    )
    seed: int = setting(0, "seed", "seed of all randomness in the training", ge=0, lt=2**32)
    dataset: DatasetConfig
    tiles: TilesConfig = TilesConfig()
    sampling: SamplingConfig = SamplingConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    model: ModelConfig = UNetConfig()
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
    distribution: DistributionConfig = DistributionConfig()
    prediction: PredictionConfig = PredictionConfig()

    @model_validator(mode="after")
    def _micro_batches(self) -> Recipe:
        terms = [term for term in self.loss.terms("batch") if getattr(self.loss, term)]
        if self.training.accumulate > 1 and terms:
            raise PydanticCustomError(
                "training.accumulate",
                "expected 1 with loss.{terms}, got {count}: a ratio of sums over the whole batch is no sum "
                "over micro-batches; use one of {others}",
                {
                    "terms": ", loss.".join(terms),
                    "count": self.training.accumulate,
                    "others": ", ".join(self.loss.terms("pixels", "images")),
                },
            )
        if self.training.accumulate > 1 and self.loss.ohem and self.loss.normalisation == "per_pixel":
            raise PydanticCustomError(
                "training.accumulate",
                "expected 1 with loss.ohem and loss.normalisation: per_pixel, got {count}: which pixels of "
                "the whole batch count is not known before its last micro-batch; use per_image",
                {"count": self.training.accumulate},
            )
        if self.training.accumulate > 1 and self.training.xla is True:
            raise PydanticCustomError("training.xla", "expected false with accumulate above 1, got true")
        if self.training.xla is True and self.distribution.deterministic and self.model.max_pooled:
            raise PydanticCustomError(
                "training.xla",
                "expected false or auto with distribution.deterministic and {model} (max pooling has no "
                "deterministic gradient under XLA; efficientnet_lite0 and mobilenet_v2 have no max pooling), "
                "got true",
                {
                    "model": "model.kind: unet"
                    if self.model.kind == "unet"
                    else f"model.encoder: {self.model.encoder}"
                },
            )
        if self.training.global_batch % self.training.accumulate:
            raise PydanticCustomError(
                "training.accumulate",
                "expected a divisor of global_batch, {batch}, got {count}",
                {"batch": self.training.global_batch, "count": self.training.accumulate},
            )
        return self

    @model_validator(mode="after")
    def _devices_fit(self) -> Recipe:
        planned, training = self.sampling.planned_per_replica, self.training
        per_call = training.steps_per_call != type(training).model_fields["steps_per_call"].default
        others = OtherSettings(planned, training.precision, training.xla is True, per_call)
        for key, message in self.distribution.misfits(others):
            raise PydanticCustomError(key, message)
        return self

    @model_validator(mode="after")
    def _stride(self) -> Recipe:
        stride = self.model.stride
        if self.tiles.size % stride:
            raise PydanticCustomError(
                "tiles.size",
                "expected a multiple of {stride} pixels ({setting}), got {size}",
                {"stride": stride, "setting": self.model.stride_setting, "size": self.tiles.size},
            )
        return self
