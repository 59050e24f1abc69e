"""Laws 2 and 3 for encoders of the literature with each decoder: equivalence, resume, one order of sums.

Compiling a step of such a network takes minutes, so all are slow: the smallest of each family, and each
encoder at its real size, with one decoder after the other (`studies/equivalence.md` has every pair).
"""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from types import ModuleType

import pytest

from datasets.commands.gpu.laboratory import LIMIT
from tests.helpers.encoder_pairs import DECODERS, ENCODERS, PairLaboratory, pair
from tests.helpers.small_encoders import SMALL, narrow, small_encoder, smallest_of_keras

pytestmark = pytest.mark.timeout(3600)
PAIRS = [(encoder, DECODERS[i % len(DECODERS)]) for i, encoder in enumerate(ENCODERS)]


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
def test_equivalence_and_resume_of_each_family_and_decoder(small: None, encoder: str, decoder: str) -> None:
    check(encoder, decoder, 2)


def check_alone(encoder: str, decoder: str) -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    check(encoder, decoder, 4)


@pytest.mark.slow
@pytest.mark.parametrize(("encoder", "decoder"), PAIRS)
def test_equivalence_and_resume_of_each_encoder(encoder: str, decoder: str) -> None:
    """In a process of its own: TensorFlow keeps up to a GB of each pair until its process ends."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(check_alone, encoder, decoder).result()
