"""Laws 2 and 3 for encoders of the literature with each decoder: equivalence, resume, one order of sums.

Compiling a step of such a network for four replicas takes minutes: the ordinary run has a small encoder of
each family and each decoder; all pairs are slow.
"""

from __future__ import annotations

from types import ModuleType

import pytest

from datasets.commands.gpu.matrix import LIMIT
from tests.helpers.encoder_pairs import DECODERS, ENCODERS, PairLaboratory, pair
from tests.helpers.small_encoders import SMALL, narrow, small_encoder, smallest_of_keras

pytestmark = pytest.mark.timeout(3600)
PAIRS = [(encoder, decoder) for encoder in ENCODERS for decoder in DECODERS]


@pytest.fixture
def small(tensorflow: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each family an encoder with hardly any blocks, by the family's own code; MobileNetV2's is made."""
    from segmenter.model import encoders

    for family in ("resnet", "efficientnet_lite"):
        narrow(family, monkeypatch)
    for encoder in ("densenet121", "convnext_tiny", "efficientnet_v2_b0"):
        monkeypatch.setitem(encoders.ENCODERS, encoder, smallest_of_keras(encoder))
    monkeypatch.setitem(encoders.ENCODERS, SMALL, small_encoder())


def check(encoder: str, decoder: str, replicas: int) -> None:
    """All at once, as compiling takes most of the time; resuming in the bits of float64."""
    laboratory = PairLaboratory(pair(encoder, decoder))
    assert laboratory.wide_sums() == []
    found = laboratory.differences(replicas)
    assert {kind: value for kind, value in found.items() if not value <= LIMIT} == {}
    straight, resumed = laboratory.resumed()
    assert straight == resumed


@pytest.mark.parametrize(
    ("encoder", "decoder", "replicas"),
    [
        ("resnet18", "unet", 4),
        ("efficientnet_lite0", "fpn", 2),
        ("efficientnet_v2_b0", "fpn", 2),  # the image's mean in each block
        ("densenet121", "unet", 2),
        ("convnext_tiny", "upernet", 2),
        (SMALL, "deeplabv3plus", 2),
    ],
)
def test_equivalence_and_resume_of_each_family_and_decoder(
    small: None, encoder: str, decoder: str, replicas: int
) -> None:
    check(encoder, decoder, replicas)


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_equivalence_and_resume_of_all_pairs(tensorflow: ModuleType, encoder: str, decoder: str) -> None:
    check(encoder, decoder, 4)
