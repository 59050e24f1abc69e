"""Section `model` of the recipe: a U-Net from scratch, or a published encoder with a decoder."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Tag, field_validator, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, kinds_of, setting

NOT_RESIDUAL = frozenset({"densenet121"})
"""Encoders without residual blocks, which a drop path could leave out."""
NOT_ATROUS = frozenset({"densenet121", "convnext_tiny"})
"""Encoders that shrink by pooling or by patches, where no step of a stride can be turned into dilation."""

NOTHING_AT_STRIDE_2 = frozenset({"convnext_tiny"})
"""Encoders whose first layer shrinks by more than 2."""
WITHOUT_BATCHNORM = frozenset({"convnext_tiny"})
"""Encoders without BatchNorm; every decoder has it."""
MAX_POOLED = frozenset({"resnet18", "resnet34", "resnet50", "keras_resnet50", "densenet121"})
"""Encoders with max pooling."""


class UNetConfig(Section):
    """A U-Net (Ronneberger et al. 2015, arXiv:1505.04597) with same-padded convolutions."""

    smaller_by: ClassVar[str] = "model.width"  # named where the memory is too small
    kind: Literal["unet"] = setting(
        "unet", "", "unet: from scratch, as wide as said here; encoder_decoder: encoders of the literature"
    )
    depth: int = setting(4, "levels", "number of halvings; the total stride is 2**depth", ge=1, le=6)
    width: int = setting(32, "channels", "at full resolution, doubled at each level", ge=1, le=256)
    max_width: int = setting(512, "channels", "no level is wider than this", ge=1, le=2048)
    upsampling: Literal["nearest", "bilinear", "transpose"] = setting(
        "nearest", "", "nearest leaves no checkerboard"
    )
    normalisation: Literal["batch", "none"] = setting("batch", "", "batch: synchronised over the replicas")
    dropout: float = setting(0.0, "probability", "at the deepest level, where weights are most", ge=0, lt=1)

    @property
    def max_pooled(self) -> bool:
        """True if the model has max pooling, which has no deterministic gradient under XLA."""
        return True

    def batch_norms(self, frozen: str) -> bool:
        """Return True if some BatchNorm takes its statistics from batches, under `training.freeze_norms`."""
        return self.normalisation == "batch" and frozen != "all"

    @property
    def stride(self) -> int:
        """Input pixels per pixel of the deepest level, along an axis."""
        return int(2**self.depth)

    @property
    def stride_setting(self) -> str:
        """Setting that determines the stride, for messages."""
        return "2**model.depth"


def _channel(value: object) -> object:
    """Validate with one message; a union would give one per member. `true` is not channel 1."""
    if value in (None, "red", "green", "blue") or (type(value) is int and value >= 1):
        return value
    raise PydanticCustomError("weight_band", "expected red, green, blue, null, or a channel's number from 1")


WeightBand = Annotated[int | Literal["red", "green", "blue"] | None, BeforeValidator(_channel)]
"""Channel of pretrained weights for a band, by colour or number; None: the mean of all."""


class EncoderDecoderConfig(Section):
    """A classification encoder, and a decoder that restores full resolution."""

    smaller_by: ClassVar[str] = "model.decoder_width, take a smaller model.encoder"
    kind: Literal["encoder_decoder"]
    encoder: Literal[
        "resnet18", "resnet34", "resnet50", "keras_resnet50",
        "efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2",
        "efficientnet_v2_b0", "efficientnet_v2_b1", "efficientnet_v2_b2", "efficientnet_v2_b3",
        "efficientnet_v2_s", "mobilenet_v2", "densenet121", "convnext_tiny",
    ] = setting("efficientnet_lite0", "", "lite: windows stay exact; resnet: torch's geometry")  # fmt: skip
    decoder: Literal["unet", "fpn", "upernet", "deeplabv3plus"] = setting(
        "unet", "", "how features of all strides become one map"
    )
    weights: str | None = setting(
        None, "", "imagenet, or a file .safetensors, .weights.h5 or .h5; none: from scratch"
    )
    weight_bands: tuple[WeightBand, ...] | None = setting(
        None, "", "for each band the channel of the weights it takes, by colour or number; null: their mean"
    )
    input_normalisation: Literal["auto", "weights", "scenes"] = setting(
        "auto", "", "auto: as imagenet was trained where bands are its 8-bit colours"
    )
    decoder_width: int = setting(
        128, "channels", "of FPN, UPerNet and DeepLabV3+; of a U-Net's deepest level", ge=8, le=1024
    )
    output_stride: Literal[8, 16, 32] = setting(
        32, "pixels", "of the deepest features; 16 and 8 by atrous convolutions (deeplabv3plus)"
    )
    image_pooling: bool = setting(
        False, "", "of DeepLabV3+: the mean of the whole window beside the rest; off, windows stay exact"
    )
    drop_path: float = setting(
        0.0, "probability", "that the last residual block is left out, less for those before", ge=0, lt=1
    )
    dropout: float = setting(0.0, "probability", "before the last convolution", ge=0, lt=1)

    @property
    def max_pooled(self) -> bool:
        """True if the model has max pooling, which has no deterministic gradient under XLA."""
        return self.encoder in MAX_POOLED

    def batch_norms(self, frozen: str) -> bool:
        """Return True if some BatchNorm takes its statistics from batches, under `training.freeze_norms`."""
        return frozen != "all"

    @property
    def stride(self) -> int:
        """Input pixels per pixel of the deepest features, along an axis."""
        return self.output_stride

    @property
    def stride_setting(self) -> str:
        """Setting that determines the stride, for messages."""
        return "model.output_stride"

    @field_validator("weights")
    @classmethod
    def _some_name(cls, value: str | None) -> str | None:
        if value is not None and not value.strip():
            raise PydanticCustomError("weights", "expected imagenet or a file of weights; null: from scratch")
        return value

    @model_validator(mode="after")
    def _nothing_unused(self) -> EncoderDecoderConfig:
        """Refuse settings without effect: they are more likely a mistake than intended."""
        decoder, encoder = f"decoder: {self.decoder}", f"encoder: {self.encoder}"
        deeplab = self.decoder == "deeplabv3plus"
        useless = {
            "output_stride": encoder
            if deeplab and self.encoder in NOT_ATROUS
            else ""
            if deeplab
            else decoder,
            "image_pooling": "" if deeplab else decoder,
            "drop_path": encoder if self.encoder in NOT_RESIDUAL else "",
        }
        for name, beside in useless.items():
            default, got = type(self).model_fields[name].default, getattr(self, name)
            if beside and got != default:
                raise PydanticCustomError(
                    f"model.{name}",
                    "expected {default} with {beside}, which has no use for it, got {got}",
                    {"default": str(default).lower(), "beside": beside, "got": str(got).lower()},
                )
        return self

    @model_validator(mode="after")
    def _weights_used(self) -> EncoderDecoderConfig:
        for name in ("weight_bands", "input_normalisation"):
            if self.weights is None and getattr(self, name) != type(self).model_fields[name].default:
                raise PydanticCustomError(
                    "unused", "model.{name} does nothing without model.weights", {"name": name}
                )
        return self


def _kind(value: Any) -> Any:
    return value.get("kind", "unet") if isinstance(value, dict) else getattr(value, "kind", None)


ModelConfig = Annotated[
    Annotated[UNetConfig, Tag("unet")] | Annotated[EncoderDecoderConfig, Tag("encoder_decoder")],
    Discriminator(_kind),
]
"""A section without a kind is a U-Net's."""

MODEL_KINDS = kinds_of(ModelConfig)
