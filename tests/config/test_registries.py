"""Names of recipes and what stands for them: no list of them stands anywhere a second time."""

from types import ModuleType
from typing import Annotated, ClassVar, Literal, get_args

import pytest
from pydantic import Field

from datasets import kinds
from segmenter.config import datasets as sections
from segmenter.config.datasets import DATASET_KINDS, Located
from segmenter.config.layouts import LAYOUTS
from segmenter.config.losses import LossConfig, Term, UsedBy
from segmenter.config.models import MODEL_KINDS, EncoderDecoderConfig
from segmenter.config.recipe import TrainingConfig
from segmenter.config.sections import kinds_of, setting
from segmenter.model.decoders import DECODERS, Decoder
from segmenter.model.stages import pace_of, stages_told


def names_of(setting: str) -> set[str]:
    return set(get_args(EncoderDecoderConfig.model_fields[setting].annotation))


def test_encoders_and_decoders_of_recipes_are_those_that_are_built(tensorflow: ModuleType) -> None:
    from segmenter.model.building import BUILDERS
    from segmenter.model.encoders import ENCODERS

    assert set(DECODERS) == names_of("decoder")
    assert set(ENCODERS) == names_of("encoder")
    assert set(BUILDERS) == set(MODEL_KINDS)


def test_kinds_of_datasets_are_those_that_are_loaded_have_a_title_and_are_found_in_their_union() -> None:
    assert set(kinds()) == set(LAYOUTS) == set(DATASET_KINDS)
    assert all(issubclass(kind, Located) and kind.title for kind in DATASET_KINDS.values())
    assert all(isinstance(kind, type) for kind in MODEL_KINDS.values())

    union = Annotated[sections.PotsdamConfig | Made, Field(discriminator="kind")]
    assert kinds_of(union) == {"potsdam": sections.PotsdamConfig, "made": Made}


class Made(Located):
    title: ClassVar[str] = "Made data"
    kind: Literal["made"]
    root: str = setting(..., "", "a folder")


def test_a_made_decoder_has_its_stages_wherever_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DECODERS, "made", Decoder(lambda features, layers, config: (features[0], 2), 7))
    config = EncoderDecoderConfig(kind="encoder_decoder").model_copy(update={"decoder": "made"})
    told = stages_told(config)
    assert [stage for stage in told.values() if stage.startswith("decoder")][-1] == "decoder stage 7"
    assert pace_of(told, TrainingConfig(rates={"decoder stage 7": 0.5})).rates == {"decoder_7": 0.5}


class MadeLoss(LossConfig):
    made: Annotated[float, Term("batch")] = setting(0.0, "weight", "made", ge=0)
    made_width: Annotated[float, UsedBy("made")] = setting(3.0, "pixels", "made", ge=0)


def test_every_setting_of_a_loss_is_a_term_or_says_which_terms_read_it() -> None:
    assert MadeLoss.terms("batch") == (*LossConfig.terms("batch"), "made")
    assert MadeLoss(cross_entropy=0, made=1).used_terms == ("made",)
    with pytest.raises(ValueError, match="lovasz, made"):
        MadeLoss(cross_entropy=0)
    with pytest.raises(ValueError, match="above 0"):
        MadeLoss(made_width=4)

    for name, field in LossConfig.model_fields.items():
        marks = [mark for mark in field.metadata if isinstance(mark, (Term, UsedBy))]
        assert len(marks) == 1, name
        for mark in marks:
            assert isinstance(mark, Term) or set(mark) <= LossConfig.model_fields.keys()
