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

from segmenter.config.augmentation import CopyPasteConfig, ProbabilityConfig, TransformConfig, as_mapping
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

    size: int = setting(256, "pixels", "side of a tile; what an 11 GB card takes 16 of", ge=16, le=4096)
    overlap: int = setting(0, "pixels", "that neighbouring tiles share; 0: each pixel is in one tile", ge=0)
    jitter: bool = setting(
        True, "", "move each tile by up to half its step, anew each epoch, within its scene"
    )
    min_labelled: float = setting(
        0.05,
        "share of the tile",
        "tiles with fewer labelled, valid pixels are left out, and counted",
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

    d4: bool = setting(True, "", "the eight flips and quarter turns: land has no up from above")
    scale: float = setting(0.0, "share", "zoom in or out by up to this share", ge=0, lt=0.9)
    scale_to: tuple[Metres, Metres] | None = setting(
        None, "metres", "a pixel, finest and coarsest: each tile is shown at one drawn between"
    )
    rotation: float = setting(
        0.0, "degrees", "rotate by up to this; uncovered corners are ignored", ge=0, le=180
    )
    brightness: float = setting(0.2, "share of the range", "add up to this share, either way", ge=0, le=1)
    contrast: float = setting(0.2, "share", "stretch by up to this share, either way", ge=0, lt=1)
    hue: int = setting(0, "degrees", "shift hue by up to this; 8-bit RGB only", ge=0, le=180)
    saturation: float = setting(0.0, "share", "change saturation by up to this; 8-bit RGB only", ge=0, le=1)
    blur: float = setting(0.0, "probability", "of a slight Gaussian blur", ge=0, le=1)
    noise: float = setting(0.0, "share of the range", "deviation of added noise; slow", ge=0, le=0.5)
    probability: ProbabilityConfig = setting(
        ProbabilityConfig(), "", "that each of the above is applied to a tile; 1: to each"
    )
    transforms: tuple[TransformConfig, ...] = setting(
        (), "", "further ones, by albumentations' names, in this order: docs/training.md"
    )
    mosaic: float = setting(
        0.0,
        "probability",
        "of a tile put together from four (arXiv:2004.10934); reads three more",
        ge=0,
        le=1,
    )
    copy_paste: CopyPasteConfig | None = setting(None, "", "paste rare classes; reads one more tile")

    @model_validator(mode="before")
    @classmethod
    def _list(cls, data: object) -> object:
        return as_mapping(data)

    @model_validator(mode="after")
    def _nothing_unused(self) -> AugmentationConfig:
        if unused := self.probability.unused(self):
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
        64, "tiles", "of one optimiser step, over all replicas: 4 × 16", ge=1, le=65_536
    )
    epochs: Count = setting(100, "epochs", "of planned steps; in one, each tile is seen once", ge=1)
    optimizer: Literal["adamw", "sgd"] = setting("adamw", "", "sgd: with momentum, as the next two say")
    momentum: float = setting(
        0.9, "share", "sgd: of the last step that is kept; 0: plain SGD, without memory of it", ge=0, lt=1
    )
    nesterov: bool = setting(
        True, "", "sgd: look ahead along the momentum (Sutskever et al., ICML 2013); false: Polyak's"
    )
    learning_rate: float = setting(1e-3, "per step", "the peak, after the warm-up, before scaling", gt=0)
    scaling: Literal["none", "linear", "sqrt"] = setting(
        "none", "", "multiply the peak by global_batch / reference_batch (arXiv:1706.02677), or its root"
    )
    reference_batch: Count | None = setting(
        None, "tiles", "the global batch that learning_rate was found for; needed where it is scaled", ge=1
    )
    weight_decay: float = setting(1e-4, "per step", "decoupled, not on biases and normalisation", ge=0)
    freeze_encoder: int = setting(
        0, "epochs", "at the start in which a pretrained encoder stays as it is: less time; 0: off", ge=0
    )
    freeze_norms: Literal["none", "encoder", "all"] = setting(
        "none",
        "",
        "BatchNorm that keeps the statistics, scale and shift it was loaded with: docs/training.md",
    )
    rates: dict[str, Annotated[float, Field(ge=0, le=1000)]] = setting(
        {},
        "",
        "factors on learning_rate, as in {encoder: 0.1, encoder stage 1: 0.05, head: 1}; 0: frozen for good",
    )
    schedule: Literal["poly", "cosine", "constant", "exponential", "piecewise"] = setting(
        "poly", "", "poly: (1 − t)^0.9 (DeepLab, arXiv:1606.00915); t runs from the warm-up to the last step"
    )
    warmup: Count = setting(100, "steps", "linear from 0; early BatchNorm statistics are poor", ge=0)
    decay_rate: float = setting(0.9, "share", "exponential: what is left after decay_steps", gt=0, le=1)
    decay_steps: Count | None = setting(
        None, "steps", "exponential: counted from the end of the warm-up", ge=1
    )
    staircase: bool = setting(False, "", "exponential: falls once every decay_steps, at a stroke")
    boundaries: tuple[Annotated[int, Field(ge=1)], ...] = setting(
        (), "", "piecewise: the last step of each piece but the last, counted from 0"
    )
    values: tuple[Annotated[float, Field(ge=0)], ...] = setting(
        (), "", "piecewise: the share of the peak in each piece: one more than boundaries, as in 1, 0.1, 0.01"
    )
    clip_norm: float = setting(
        0.0, "gradient norm", "clip by global norm, after the sum over replicas; 0: off", ge=0
    )
    clip_value: float = setting(
        0.0, "gradient", "clip each component to ± this, after the sum over replicas; 0: off", ge=0
    )
    precision: Literal["float32", "float64", "mixed_float16", "mixed_bfloat16"] = setting(
        "float32", "", "mixed_float16: tensor cores; mixed_bfloat16: TPUs, newer cards; float64: for proofs"
    )
    accumulate: int = setting(
        1, "micro-batches", "of a device's part of a step, one after the other: less memory", ge=1
    )
    ema: float = setting(
        0.0,
        "share",
        "decay of a moving average of the weights that validates and predicts; 0: off",
        ge=0,
        lt=1,
    )
    steps_per_call: int = setting(
        4, "steps", "on the devices between two looks of the host; a stop waits for so many", ge=1, le=1000
    )
    input_workers: Annotated[int | Literal["auto"], BeforeValidator(_number_or_auto)] = setting(
        "auto",
        "processes",
        "that make batches; 0: threads; auto: by cores and memory beside GPUs, 0 on CPUs",
    )
    xla: Literal[False, True, "auto"] = setting(
        False,
        "",
        "compile the step with XLA: on one device, or whole GPUs; auto: on GPUs, if a trial is faster",
    )
    validate_every: Count = setting(1, "epochs", "between two validations on whole scenes", ge=1)
    best_by: str = setting(
        "miou",
        "",
        "score that chooses the best model: miou, mf1, oa, fwiou, kappa, iou:CLASS, f1:CLASS; in miou, mf1 "
        "a class that is predicted and that no validation label shows counts as 0",
    )
    stop_after: Count = setting(
        0, "validations", "in a row without a gain in best_by, which end the training; 0: off", ge=0
    )
    checkpoint_every: Count = setting(
        1000, "steps", "and at the end of an epoch: what a power cut may cost at most", ge=1
    )
    keep_checkpoints: Count = setting(2, "checkpoints", "the newest so many, beside the best", ge=1)

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
        for key, message in (*self._unused(), *self._missing()):
            raise PydanticCustomError(f"training.{key}", message)
        return self

    def _unused(self) -> Iterator[tuple[str, str]]:
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
        "side of a window, halo included; rounded up to the model's stride; default: 1024 where memory "
        "allows, else 512; 512 in smooth mode",
        ge=16,
    )
    batch: Count | None = setting(
        None,
        "windows",
        "computed at once; default: as many as one of 1024 has pixels, or memory allows",
        ge=1,
    )


class Recipe(Section):
    """Complete recipe of a training."""

    name: str = setting(
        ...,
        "",
        "names the run directory; a recipe without is called after its file",
        pattern=r"^\w[\w .-]*$",
        max_length=MAX_NAME,
    )
    seed: int = setting(0, "seed", "all randomness is derived from it", ge=0, lt=2**32)
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
