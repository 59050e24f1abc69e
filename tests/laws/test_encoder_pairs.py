"""Laws 2 and 3 for encoders of the literature with each decoder: equivalence, resume, one order of sums.

Compiling a step of such a network for four replicas takes minutes: the ordinary run has a small encoder of
each family, and all decoders on the one that is rebuilt as those of Keras are; all pairs are slow.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from tests.helpers.encoder_pairs import DECODERS, ENCODERS, SMALL, PairLaboratory, narrow, pair, small_encoder
from tests.helpers.equivalence_matrix import LIMIT

pytestmark = pytest.mark.timeout(3600)
PAIRS = [(encoder, decoder) for encoder in ENCODERS for decoder in DECODERS]


@pytest.fixture
def small(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from segmenter.model import encoders

    monkeypatch.setitem(encoders.ENCODERS, SMALL, small_encoder())


def check(encoder: str, decoder: str, replicas: int = 4) -> None:
    """All at once, as compiling takes most of the time; resuming in the bits of float64."""
    laboratory = PairLaboratory(pair(encoder, decoder))
    assert laboratory.wide_sums() == []
    found = laboratory.differences(replicas)
    assert {kind: value for kind, value in found.items() if not value <= LIMIT} == {}
    straight, resumed = laboratory.resumed()
    assert straight == resumed


@pytest.mark.parametrize("decoder", DECODERS)
def test_equivalence_and_resume_of_each_decoder(small: None, decoder: str) -> None:
    check(SMALL, decoder, 2)


@pytest.mark.parametrize(
    ("family", "encoder", "decoder"),
    [("resnet", "resnet18", "unet"), ("efficientnet_lite", "efficientnet_lite0", "fpn")],
)
def test_equivalence_and_resume_of_each_family_of_ours(
    tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch, family: str, encoder: str, decoder: str
) -> None:
    narrow(family, monkeypatch)
    check(encoder, decoder)


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_equivalence_and_resume_of_all_pairs(tensorflow: ModuleType, encoder: str, decoder: str) -> None:
    check(encoder, decoder)
