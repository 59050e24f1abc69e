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
        "unet",
        "",
        "architecture: unet is trained from scratch, with the depth and width given here; encoder_decoder "
        "has a published encoder",
    )
    depth: int = setting(
        4,
        "levels",
        "number of times that the resolution is halved; the total stride is 2**depth pixels",
        ge=1,
        le=6,
    )
    width: int = setting(
        32, "channels", "number of channels at full resolution; it doubles at each level", ge=1, le=256
    )
    max_width: int = setting(512, "channels", "largest number of channels at any level", ge=1, le=2048)
    upsampling: Literal["nearest", "bilinear", "transpose"] = setting(
        "nearest",
        "",
        "method by which the decoder doubles the resolution; nearest and bilinear resize, transpose is a "
        "learned convolution, which may leave a checkerboard pattern",
    )
    normalisation: Literal["batch", "none"] = setting(
        "batch",
        "",
        "normalisation after each convolution: batch (BatchNorm, with statistics over all replicas), or none",
    )
    dropout: float = setting(
        0.0,
        "probability",
        "probability that dropout sets a value of the deepest level, where most weights are, to 0; 0: off",
        ge=0,
        lt=1,
    )

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
    kind: Literal["encoder_decoder"] = setting(..., "", "architecture: a published encoder with a decoder")
    encoder: Literal[
        "resnet18", "resnet34", "resnet50", "keras_resnet50",
        "efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2",
        "efficientnet_v2_b0", "efficientnet_v2_b1", "efficientnet_v2_b2", "efficientnet_v2_b3",
        "efficientnet_v2_s", "mobilenet_v2", "densenet121", "convnext_tiny",
    ] = setting(
        "efficientnet_lite0", "",
        "encoder of the literature that computes the features; efficientnet_lite* have no global layers, so "
        "that windows stay exact; resnet* have the geometry of PyTorch's",
    )  # fmt: skip
    decoder: Literal["unet", "fpn", "upernet", "deeplabv3plus"] = setting(
        "unet", "", "decoder that joins the encoder's features of all strides into one map"
    )
    weights: str | None = setting(
        None,
        "",
        "initial weights of the encoder: imagenet, or a file (.safetensors, .weights.h5 or .h5); default: "
        "random, trained from scratch",
    )
    weight_bands: tuple[WeightBand, ...] | None = setting(
        None,
        "",
        "channel of the initial weights that each band takes: red, green, blue, a number from 1, or null "
        "for the mean of all; default: the first bands take the channels in their order, and fewer bands "
        "than channels take the mean",
    )
    input_normalisation: Literal["auto", "weights", "scenes"] = setting(
        "auto",
        "",
        "normalisation of the input; weights: ImageNet's mean and deviation for 8-bit bands that take red, "
        "green or blue; scenes: those of the training scenes; auto: weights with weights: imagenet, else "
        "scenes",
    )
    decoder_width: int = setting(
        128,
        "channels",
        "number of channels of the decoders FPN, UPerNet and DeepLabV3+; in a U-Net decoder, of its "
        "coarsest level; each finer one has half as many, 16 at least",
        ge=8,
        le=1024,
    )
    output_stride: Literal[8, 16, 32] = setting(
        32,
        "pixels",
        "size in image pixels of a pixel of the deepest features; 16 and 8 are made by atrous convolutions "
        "and are for the decoder deeplabv3plus alone",
    )
    image_pooling: bool = setting(
        False,
        "",
        "true: DeepLabV3+ also sees the mean of the whole window, and windows are no longer exact; false: "
        "it does not, and windows stay exact",
    )
    drop_path: float = setting(
        0.0,
        "probability",
        "probability that the last residual block is skipped in a training step; it falls linearly to 0 "
        "for the first block; 0: off",
        ge=0,
        lt=1,
    )
    dropout: float = setting(
        0.0,
        "probability",
        "probability that dropout sets a value before the last convolution to 0; 0: off",
        ge=0,
        lt=1,
    )

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
