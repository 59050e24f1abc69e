"""Laws 2 and 3 for encoders of the literature with each decoder: equivalence, resume, one order of sums.

Compiling a step of such a network takes minutes, so all are slow, and of each family the smallest stands
for it; each pair at its real size is in `studies/equivalence.md` (`python -m studies.encoder_equivalence`).
"""

import pytest

from tests.helpers.encoder_pairs import PairLaboratory, pair
from tests.helpers.laboratory import LIMIT
from tests.helpers.small_encoders import SMALL

pytestmark = pytest.mark.timeout(3600)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "decoder"),
    [
        (SMALL, "deeplabv3plus"),
        ("resnet18", "upernet"),
        ("resnet18", "unet"),
        ("efficientnet_lite0", "fpn"),
        ("efficientnet_v2_b0", "fpn"),  # the image's mean in each block
        ("densenet121", "unet"),
        ("convnext_tiny", "upernet"),
    ],
)
def test_equivalence_and_resume_of_each_family(few_blocks: None, encoder: str, decoder: str) -> None:
    """All at once, as compiling takes most of the time; resuming in the bits of float64."""
    laboratory = PairLaboratory(pair(encoder, decoder))
    assert laboratory.wide_sums() == []
    found = laboratory.differences(2)
    assert {kind: value for kind, value in found.items() if not value <= LIMIT} == {}
    straight, resumed = laboratory.resumed()
    assert straight == resumed
