"""The sections of a recipe: every setting with its unit, its default and the reason for that default.

Combinations that cannot work are refused here, where they can be named; what depends on the machine
(devices, replicas) or on the data is checked where that is known.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

_NUMBER_WITH_UNIT = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\d\s].*)?")
_SHORT_UNITS = {"px": "pixels", "pixel": "pixels", "°": "degrees", "deg": "degrees", "epoch": "epochs"}
_SHORT_UNITS |= {"step": "steps", "tile": "tiles", "GB": "GiB"}


def setting(default: Any, unit: str, why: str, **limits: Any) -> Any:
    """A field of a section: default (`...` where there is none), unit (empty for a choice) and reason."""
    return Field(default, description=why, json_schema_extra={"unit": unit}, **limits)


class Section(BaseModel):
    """A strict, frozen part of a recipe: an unknown key or a wrong unit is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _units(cls, data: Any) -> Any:
        """`256 px` is 256 where pixels are meant; a wrong unit is left as it is, and then no number."""
        if not isinstance(data, dict):
            return data
        return {key: _plain_number(value, unit_of(cls, str(key))) for key, value in data.items()}


def unit_of(section: Any, key: str) -> str:
    """The unit of a section's field; empty for a choice and for what is no field."""
    field = getattr(section, "model_fields", {}).get(key)
    extra = field.json_schema_extra if field is not None else None
    return str(extra.get("unit", "")) if isinstance(extra, dict) else ""


def _plain_number(value: Any, unit: str) -> Any:
    """`value` without its unit where that is the right one; what is no number of `unit` stays text."""
    if unit and isinstance(value, bool):
        return str(value)
    match = _NUMBER_WITH_UNIT.fullmatch(value) if unit and isinstance(value, str) else None
    if match is None:
        return value
    number, given = match[1], (match[2] or unit).strip()
    if _SHORT_UNITS.get(given, given) != unit:
        return value
    return float(number) if re.search(r"[.eE]", number) else int(number)


# ---------------------------------------------------------------------------------------- dataset


class SplitByNames(Section):
    """Scenes by name; everything that is not named here trains."""

    validation: tuple[str, ...] = setting((), "", "names of scenes or groups that validate during training")
    test: tuple[str, ...] = setting((), "", "names of scenes or groups that training never sees")
    train: tuple[str, ...] | None = setting(
        None, "", "if given, scenes named nowhere are left out, and counted"
    )


class PotsdamConfig(Section):
    """ISPRS Potsdam, as published."""

    kind: Literal["potsdam"]
    root: str = setting(..., "", "folder with the images and labels, searched with its subfolders")
    images: Literal["RGB", "IRRG", "RGBIR"] = setting("RGB", "", "which of the three image sets")
    labels: Literal["full", "eroded"] = setting(
        "eroded", "", "eroded: the noBoundary set, 3 px border ignored"
    )
    classes: Literal[6, 5] = setting(6, "", "5 ignores clutter, as many published numbers do")
    split: Literal["standard"] | SplitByNames = setting(
        "standard", "", "standard: the usual 24 to train, 14 to test, none to validate: name scenes for that"
    )


class Naic2020Config(Section):
    """NAIC2020, 256×256 tiles with their codes."""

    kind: Literal["naic2020"]
    root: str = setting(..., "", "folder with the .tif images and .png labels, searched with its subfolders")
    round: Literal[1, 2] = setting(1, "", "round 1 has 8 classes (100 … 800), round 2 has 15 (1 … 17)")
    validation_share: float = setting(
        0.1, "share of the tiles", "held out by a hash of the stem: stable when files are added", gt=0, lt=1
    )


class FolderClass(Section):
    """One class of a folder dataset."""

    name: str = setting(..., "", "as it appears in maps and scores")
    code: int | None = setting(
        None, "", "the value in label files; needed where labels hold codes", ge=0, lt=65535
    )
    colour: str | None = setting(None, "", "'#rrggbb', in label files that hold colours, and on maps")


class FolderSplit(Section):
    """How the scenes of a folder are split: parts of one group are never separated."""

    group: str | None = setting(
        None, "", "regular expression on the image's relative path; its first group names the group"
    )
    validation: tuple[str, ...] = setting(
        (), "", "groups, names or glob patterns that validate during training"
    )
    test: tuple[str, ...] = setting((), "", "groups, names or glob patterns that training never sees")
    leave_out: tuple[str, ...] = setting(
        (), "", "groups, names or glob patterns of scenes that are not used; they are counted and printed"
    )
    validation_share: float = setting(
        0.0, "share of the groups", "held out by a hash of the group; instead of naming them", ge=0, lt=1
    )

    @field_validator("group")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                groups = re.compile(value).groups
            except re.error as error:
                raise PydanticCustomError(
                    "regex", "expected a regular expression ({e})", {"e": str(error)}
                ) from None
            if groups != 1:
                raise PydanticCustomError("regex", "expected a regular expression with one (group)")
        return value


class FolderConfig(Section):
    """Any folder of image and label files that can be paired by a pattern."""

    kind: Literal["folder"]
    root: str = setting(..., "", "folder that the patterns start from")
    images: str = setting(
        ...,
        "",
        "pattern of the image files; * any name, ** any folders, {name} what pairs image and label",
    )
    labels: str = setting(..., "", "pattern of the label files, with the same {names}; exactly one per image")
    encoding: Literal["codes", "colours"] = setting(
        "codes", "", "what label files hold; codes includes palette indices"
    )
    classes: tuple[FolderClass, ...] = setting(..., "", "in the order of their ids", min_length=1)
    ignore: tuple[int | str, ...] = setting((), "", "further codes, or '#rrggbb', that count nowhere")
    bands: tuple[int, ...] | None = setting(
        None, "", "1-based bands the model sees, in order; default: all but alpha. A band named here is data"
    )
    label_kind: Literal["full", "eroded"] = setting(
        "full", "", "for the protocol of scores: are borders ignored?"
    )
    split: FolderSplit = setting(FolderSplit(), "", "what trains, validates and tests")

    @model_validator(mode="after")
    def _classes_fit(self) -> FolderConfig:
        missing = [c.name for c in self.classes if (c.code if self.encoding == "codes" else c.colour) is None]
        if missing:
            need = "a code" if self.encoding == "codes" else "a colour"
            raise PydanticCustomError(
                "classes",
                "expected every class to have {need}, missing for {names}",
                {"need": need, "names": ", ".join(missing)},
            )
        return self


DatasetConfig = Annotated[PotsdamConfig | Naic2020Config | FolderConfig, Field(discriminator="kind")]

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


class SamplingConfig(Section):
    """How an epoch is cut into global batches."""

    coverage: Literal["relaxed", "strict", "off"] = setting(
        "relaxed",
        "",
        "plan each step to hold every class; strict refuses where that needs repeats; off: shuffle",
    )
    min_pixels: int = setting(32, "pixels", "a tile holds a class when it shows at least so many", ge=32)
    max_repeats_per_tile: int = setting(
        4, "repeats", "a class whose tiles would be shown more often than that is best effort", ge=0
    )
    per_replica: Literal["best_effort", "off", "guarantee"] = setting(
        "best_effort",
        "",
        "deal each row so that every device sees as many classes as it can; guarantee: plan all for each",
    )

    @field_validator("coverage", "per_replica", mode="before")
    @classmethod
    def _off_is_a_word(cls, value: object) -> object:
        return "off" if value is False else value  # YAML reads a bare `off` as false


class AugmentationConfig(Section):
    """Random changes of a tile; 0 turns one off. Geometry moves the label along."""

    d4: bool = setting(True, "", "the eight flips and quarter turns: land has no up from above")
    scale: float = setting(0.0, "share", "zoom in or out by up to this share", ge=0, lt=0.9)
    rotation: float = setting(
        0.0, "degrees", "rotate by up to this; uncovered corners are ignored", ge=0, le=180
    )
    brightness: float = setting(0.2, "share of the range", "add up to this share, either way", ge=0, le=1)
    contrast: float = setting(0.2, "share", "stretch by up to this share, either way", ge=0, lt=1)
    hue: int = setting(0, "degrees", "shift hue by up to this; 8-bit RGB only", ge=0, le=180)
    saturation: float = setting(0.0, "share", "change saturation by up to this; 8-bit RGB only", ge=0, le=1)
    blur: float = setting(0.0, "probability", "of a slight Gaussian blur", ge=0, le=1)
    noise: float = setting(0.0, "share of the range", "deviation of added noise; slow", ge=0, le=0.5)


# ------------------------------------------------------------------------------- what is trained


class ModelConfig(Section):
    """A U-Net (Ronneberger et al. 2015, arXiv:1505.04597) with same-padded convolutions."""

    kind: Literal["unet"] = setting("unet", "", "the family; pretrained encoders will be further kinds")
    depth: int = setting(4, "levels", "number of halvings; the total stride is 2**depth", ge=1, le=6)
    width: int = setting(32, "channels", "at full resolution, doubled at each level", ge=1, le=256)
    max_width: int = setting(512, "channels", "no level is wider than this", ge=1, le=2048)
    upsampling: Literal["nearest", "bilinear", "transpose"] = setting(
        "nearest", "", "nearest leaves no checkerboard"
    )
    normalisation: Literal["batch", "none"] = setting("batch", "", "batch: synchronised over the replicas")
    dropout: float = setting(0.0, "probability", "at the deepest level, where weights are most", ge=0, lt=1)


class LossConfig(Section):
    """Weighted sum of the terms; pixels to ignore count in none."""

    cross_entropy: float = setting(1.0, "weight", "of cross-entropy, a mean as `normalisation` says", ge=0)
    focal: float = setting(0.0, "weight", "of focal loss, a mean as `normalisation` says", ge=0)
    focal_gamma: float = setting(
        2.0, "exponent", "how much less an easy pixel counts; the paper's best (arXiv:1708.02002)", ge=0
    )
    normalisation: Literal["per_image", "per_pixel"] = setting(
        "per_image",
        "",
        "per_image: mean over the valid pixels of an image, then over images; per_pixel: Σ w·ℓ / Σ w of all",
    )
    dice: float = setting(
        0.0, "weight", "1 − soft Dice over the global batch, mean over the classes in it", ge=0
    )
    jaccard: float = setting(0.0, "weight", "1 − soft Jaccard, likewise", ge=0)
    tversky: float = setting(0.0, "weight", "1 − soft Tversky index, likewise", ge=0)
    tversky_alpha: float = setting(
        0.3, "weight", "of false positives; the paper's best (arXiv:1706.05721)", ge=0
    )
    tversky_beta: float = setting(0.7, "weight", "of false negatives: missing costs more than adding", ge=0)
    lovasz: float = setting(
        0.0, "weight", "Lovász-softmax per image, mean over images; sorts all pixels: slow", ge=0
    )
    class_weights: Literal["none", "inverse_sqrt"] | tuple[Annotated[float, Field(ge=0)], ...] = setting(
        "none",
        "",
        "weight of each class in cross-entropy and focal; inverse_sqrt: 1/sqrt(share), mean 1 over pixels",
    )
    label_smoothing: float = setting(
        0.0, "share", "of the target spread evenly over the classes, in cross-entropy and focal", ge=0, lt=1
    )

    @model_validator(mode="after")
    def _something(self) -> LossConfig:
        terms = ("cross_entropy", "focal", "dice", "jaccard", "tversky", "lovasz")
        if not any(getattr(self, term) for term in terms):
            raise PydanticCustomError(
                "loss",
                "expected a weight above 0 for one of {terms}, got 0 for all",
                {"terms": ", ".join(terms)},
            )
        if self.tversky and not self.tversky_alpha + self.tversky_beta:
            raise PydanticCustomError(
                "loss", "expected tversky_alpha or tversky_beta above 0, got 0 for both: the index is then 1"
            )
        return self


class TrainingConfig(Section):
    """The one loop."""

    global_batch: int = setting(64, "tiles", "of one optimiser step, over all replicas: 4 × 16", ge=1)
    epochs: int = setting(100, "epochs", "of planned steps; in one, each tile is seen once", ge=1)
    optimizer: Literal["adamw", "sgd"] = setting("adamw", "", "sgd has Nesterov momentum 0.9")
    learning_rate: float = setting(1e-3, "per step", "the peak, after the warm-up", gt=0)
    weight_decay: float = setting(1e-4, "per step", "decoupled, not on biases and normalisation", ge=0)
    schedule: Literal["poly", "cosine", "constant"] = setting(
        "poly", "", "poly: (1 − t)^0.9 (DeepLab, arXiv:1606.00915)"
    )
    warmup: int = setting(100, "steps", "linear from 0; early BatchNorm statistics are poor", ge=0)
    clip_norm: float = setting(
        0.0, "gradient norm", "clip by global norm, after the sum over replicas; 0: off", ge=0
    )
    clip_value: float = setting(
        0.0, "gradient", "clip each component to ± this, after the sum over replicas; 0: off", ge=0
    )
    precision: Literal["float32", "mixed_float16"] = setting(
        "float32", "", "mixed_float16 uses the 2080 Ti's tensor cores"
    )
    validate_every: int = setting(1, "epochs", "between two validations on whole scenes", ge=1)
    keep_checkpoints: int = setting(2, "checkpoints", "the newest so many, beside the best", ge=1)

    @model_validator(mode="after")
    def _one_clip(self) -> TrainingConfig:
        if self.clip_norm and self.clip_value:
            raise PydanticCustomError(
                "training", "expected one of clip_norm and clip_value, got both: set the other to 0"
            )
        return self


class DistributionConfig(Section):
    """Where training runs."""

    strategy: Literal["auto", "one_device", "mirrored"] = setting(
        "auto", "", "auto: all GPUs if there are any, else all CPU devices"
    )
    deterministic: bool = setting(
        False, "", "ask TensorFlow for the same bits in each run, at a cost; see CONTRIBUTING, Bits"
    )


class PredictionConfig(Section):
    """Tiled inference; `predict.py` can override it."""

    window: int = setting(
        512, "pixels", "side of a window, halo included; rounded up to the model's stride", ge=16
    )
    batch: int = setting(4, "windows", "computed at once", ge=1)


class Recipe(Section):
    """A whole recipe."""

    name: str = setting(..., "", "names the run directory", pattern=r"^\w[\w .-]*$")
    seed: int = setting(0, "seed", "all randomness is derived from it", ge=0, lt=2**32)
    dataset: DatasetConfig
    tiles: TilesConfig = TilesConfig()
    sampling: SamplingConfig = SamplingConfig()
    augmentation: AugmentationConfig = AugmentationConfig()
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    training: TrainingConfig = TrainingConfig()
    distribution: DistributionConfig = DistributionConfig()
    prediction: PredictionConfig = PredictionConfig()

    @model_validator(mode="after")
    def _stride(self) -> Recipe:
        stride = 2**self.model.depth
        if self.tiles.size % stride:
            raise PydanticCustomError(
                "tiles.size",
                "expected a multiple of {stride} pixels (2**model.depth), got {size}",
                {"stride": stride, "size": self.tiles.size},
            )
        return self
