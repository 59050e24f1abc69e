"""Section `loss` of the recipe."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from segmenter.config.sections import Section, setting


@dataclass(frozen=True)
class Term:
    """Mark of a loss weight: the loss is the sum of all terms whose weight is above 0.

    Attributes:
        of: kind of the term: sums over pixels or images, or ratios of sums over the whole batch.
    """

    of: Literal["pixels", "images", "batch"]


class UsedBy(tuple[str, ...]):
    """Mark of a setting that is read only if one of the named settings is above 0."""

    def __new__(cls, *names: str) -> UsedBy:
        """Make the mark from the names of the settings."""
        return super().__new__(cls, names)


_BY_PIXELS = UsedBy("cross_entropy", "focal")


class LossConfig(Section):
    """Weighted sum of the terms; ignored pixels count in none."""

    cross_entropy: Annotated[float, Term("pixels")] = setting(
        1.0,
        "weight",
        "weight of cross-entropy in the sum of losses; averaged as loss.normalisation says; 0: off",
        ge=0,
    )
    focal: Annotated[float, Term("pixels")] = setting(
        0.0,
        "weight",
        "weight of focal loss in the sum of losses; averaged as loss.normalisation says; 0: off",
        ge=0,
    )
    focal_gamma: Annotated[float, UsedBy("focal")] = setting(
        2.0,
        "exponent",
        "exponent of focal loss; the higher, the less an easy pixel counts; the default was best in the "
        "paper (arXiv:1708.02002)",
        ge=0,
    )
    normalisation: Annotated[Literal["per_image", "per_pixel"], _BY_PIXELS] = setting(
        "per_image",
        "",
        "average over pixels in cross-entropy and focal loss; per_image: over the valid pixels of each "
        "image, then over images; per_pixel: Σ w·ℓ / Σ w over all pixels of the batch",
    )
    dice: Annotated[float, Term("batch")] = setting(
        0.0,
        "weight",
        "weight of Dice loss: 1 − soft Dice over the global batch, averaged over the classes in it",
        ge=0,
    )
    jaccard: Annotated[float, Term("batch")] = setting(
        0.0,
        "weight",
        "weight of Jaccard loss: 1 − soft Jaccard index over the global batch, averaged over the classes "
        "in it",
        ge=0,
    )
    tversky: Annotated[float, Term("batch")] = setting(
        0.0,
        "weight",
        "weight of Tversky loss: 1 − soft Tversky index over the global batch, averaged over the classes "
        "in it",
        ge=0,
    )
    tversky_alpha: Annotated[float, UsedBy("tversky")] = setting(
        0.3,
        "weight",
        "weight of false positives in Tversky loss; the default was best in the paper (arXiv:1706.05721)",
        ge=0,
    )
    tversky_beta: Annotated[float, UsedBy("tversky")] = setting(
        0.7,
        "weight",
        "weight of false negatives in Tversky loss; above tversky_alpha, missed pixels cost more than "
        "added ones",
        ge=0,
    )
    lovasz: Annotated[float, Term("images")] = setting(
        0.0,
        "weight",
        "weight of Lovász-softmax loss, computed for each image and averaged over images; slow, because it "
        "sorts all pixels",
        ge=0,
    )
    class_weights: Annotated[
        Literal["none", "inverse_sqrt"] | tuple[Annotated[float, Field(ge=0)], ...], _BY_PIXELS
    ] = setting(
        "none",
        "",
        "weights of the classes in cross-entropy and focal loss: none (all 1), a list with one for each "
        "class, or inverse_sqrt: sqrt(share of the pixels) / share in what the sampling shows, scaled to a "
        "mean of 1 over these pixels, without an upper limit",
    )
    label_smoothing: Annotated[float, _BY_PIXELS] = setting(
        0.0,
        "share",
        "share of the target that is spread evenly over all classes, in cross-entropy and focal loss; 0: "
        "none",
        ge=0,
        lt=1,
    )
    ohem: Annotated[float, _BY_PIXELS] = setting(
        0.0,
        "share of an image's pixels",
        "share of each image's pixels, the hardest, that alone count in cross-entropy and focal loss "
        "(online hard example mining, arXiv:1604.03540); 0: all pixels count",
        ge=0,
        lt=1,
    )
    ohem_threshold: Annotated[float, UsedBy("ohem")] = setting(
        0.0,
        "probability",
        "probability of the true class below which a pixel counts as hard in any case, beyond the share "
        "that loss.ohem keeps; often 0.7; 0: off",
        ge=0,
        lt=1,
    )
    logit_adjustment: Annotated[float, _BY_PIXELS] = setting(
        0.0,
        "factor",
        "factor of log(share of the class in what the sampling shows), which is added to the logits during "
        "training and favours rare classes; arXiv:2007.07314 takes 1; 0: off",
        ge=0,
    )
    boundary: Annotated[float, _BY_PIXELS] = setting(
        0.0,
        "weight",
        "additional weight of pixels at a class border, in cross-entropy and focal loss, on top of 1; the "
        "U-Net paper takes 10 (arXiv:1505.04597); 0: off",
        ge=0,
    )
    boundary_width: Annotated[float, UsedBy("boundary")] = setting(
        5.0,
        "pixels",
        "distance over which the weight of loss.boundary falls off (deviation of a Gaussian); the default "
        "is that of the U-Net paper",
        ge=0.5,
        le=20,
    )

    @classmethod
    def terms(cls, *of: str) -> tuple[str, ...]:
        """Return the names of all terms, or only of those whose `Term.of` is in `of`."""
        return tuple(
            name
            for name, field in cls.model_fields.items()
            for mark in field.metadata
            if isinstance(mark, Term) and (not of or mark.of in of)
        )

    @property
    def used_terms(self) -> tuple[str, ...]:
        """Names of the terms with a weight above 0."""
        return tuple(name for name in self.terms() if getattr(self, name))

    @model_validator(mode="after")
    def _something(self) -> LossConfig:
        if not self.used_terms:
            raise PydanticCustomError(
                "loss",
                "expected a weight above 0 for one of {terms}, got 0 for all",
                {"terms": ", ".join(self.terms())},
            )
        if self.tversky and not self.tversky_alpha + self.tversky_beta:
            raise PydanticCustomError(
                "loss", "expected tversky_alpha or tversky_beta above 0, got 0 for both: the index is then 1"
            )
        return self

    @model_validator(mode="after")
    def _some_class_counts(self) -> LossConfig:
        if self.class_weights != "none" and not any(self.class_weights):
            raise PydanticCustomError(
                "loss.class_weights",
                "expected a weight above 0, got 0 for every class",
            )
        return self

    @model_validator(mode="after")
    def _no_smoothing_of_adjusted(self) -> LossConfig:
        """Refuse label smoothing with logit adjustment: together they favour the rarest class everywhere."""
        if self.label_smoothing and self.logit_adjustment:
            raise PydanticCustomError(
                "loss.label_smoothing",
                "expected 0 with loss.logit_adjustment, got {got}: together they teach the model to name "
                "rare classes everywhere; keep one",
                {"got": self.label_smoothing},
            )
        return self

    @model_validator(mode="after")
    def _nothing_unused(self) -> LossConfig:
        """Refuse settings without effect: they are more likely a mistake than intended."""
        for key, field in type(self).model_fields.items():
            for terms in (mark for mark in field.metadata if isinstance(mark, UsedBy)):
                if getattr(self, key) != field.default and not any(getattr(self, term) for term in terms):
                    raise PydanticCustomError(
                        f"loss.{key}",
                        "expected a weight above 0 for {terms} with it, got 0: it would change nothing",
                        {"terms": " or ".join(terms)},
                    )
        return self
