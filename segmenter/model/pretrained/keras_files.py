"""Weight files of Keras (.h5, .weights.h5): checks before TensorFlow is loaded."""

from __future__ import annotations

import contextlib
import http.client
import math
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from segmenter.base.errors import WeightsError, shorten
from segmenter.base.files import special
from segmenter.model.pretrained.torch_files import MOST_BYTES

_HOST = "https://storage.googleapis.com"
_SECONDS = 20
_CACHED = {
    "keras_resnet50": "resnet50_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "mobilenet_v2": "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_1.0_224_no_top.h5",
    "densenet121": "densenet121_weights_tf_dim_ordering_tf_kernels_notop.h5",
    "convnext_tiny": "convnext_tiny_notop.h5",
}
"""Names that Keras gives its files; those of EfficientNetV2 follow from the encoder's."""


def cached_file(encoder: str) -> Path:
    """Return the path of Keras' cache for an encoder's downloaded ImageNet weights."""
    name = _CACHED.get(encoder) or encoder.replace("efficientnet_v2_", "efficientnetv2-") + "_notop.h5"
    home = Path.home() if os.access(Path.home(), os.W_OK) else Path("/tmp")  # as Keras does
    return Path(os.environ.get("KERAS_HOME") or home / ".keras") / "models" / name


def check_keras_weights(encoder: str, weights: str) -> None:
    """Refuse a file without Keras weights, or ImageNet weights that can neither be found nor downloaded.

    Raises:
        WeightsError: the weights cannot be used.
    """
    if weights != "imagenet":
        file_bands(Path(weights), encoder)
    elif not os.path.isfile(cached_file(encoder)):
        try:
            urllib.request.urlopen(urllib.request.Request(_HOST, method="HEAD"), timeout=_SECONDS).close()
        except urllib.error.HTTPError:
            pass  # it answers
        except (OSError, http.client.HTTPException) as error:
            raise no_network(encoder, getattr(error, "reason", error)) from None


def no_network(encoder: str, why: Any) -> WeightsError:
    """Return the error for weights that cannot be downloaded."""
    file = cached_file(encoder)
    return WeightsError(
        "model.weights",
        f"imagenet: cannot download {file.name} from {_HOST} ({shorten(str(why))})",
        remedy=f"put it into {file.parent} by hand, or use encoder: efficientnet_lite0, whose weights "
        "are a package",
    )


def file_bands(path: Path, encoder: str) -> int:
    """Return the channels of the first convolution in a Keras file; 3 if the file does not show them.

    Raises:
        WeightsError: the file is missing, truncated, larger than any encoder, not Keras weights, or lacks the
            kernel that identifies the encoder.
    """
    if path.suffix != ".h5":
        raise WeightsError(
            f"model.weights: {path}", expected=f"imagenet or a .h5 or .weights.h5 file of Keras for {encoder}"
        )
    with contextlib.suppress(OSError):  # what cannot be looked at is refused when it is opened
        if special(path.stat()):
            raise WeightsError(path, expected="a file", got="a pipe or a device")
    shapes = _shapes(path)
    if not shapes or sum(8 * math.prod(shape) for shape in shapes) > MOST_BYTES:
        what = f"{len(shapes)} arrays of more than {MOST_BYTES >> 30} GiB" if shapes else "none"
        raise WeightsError(path, expected=f"the arrays of {encoder}", got=what)
    kernel, least = KERNELS[encoder]
    if (count := shapes.count(kernel)) < least:
        raise WeightsError(
            path,
            f"not the weights of {encoder} without its head (expected {least} of shape {kernel}, got "
            f"{count or 'none'})",
            remedy="are they of another network?",
        )
    firsts = {shape[2] for shape in shapes if len(shape) == 4 and shape[:2] == _FIRST.get(encoder, (3, 3))}
    return min(firsts, default=3)


def _shapes(path: Path) -> list[tuple[int, ...]]:
    """Return the shapes of all numeric arrays in a file.

    Raises:
        WeightsError: the file cannot be read completely.
    """
    import h5py  # Keras brings it

    shapes: list[tuple[int, ...]] = []

    def note(_: str, found: Any) -> None:
        if isinstance(found, h5py.Dataset) and found.dtype.kind in "fiu":
            shapes.append(tuple(found.shape))

    try:
        with h5py.File(path) as file:
            file.visititems(note)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        missing = isinstance(error, FileNotFoundError)
        what = "no such file" if missing else shorten(" ".join(str(error).split()))
        raise WeightsError(path, f"no whole .h5 file of Keras' ({what})") from None
    return shapes


KERNELS = {
    "keras_resnet50": ((3, 3, 512, 512), 3),
    "mobilenet_v2": ((1, 1, 320, 1280), 1),
    "densenet121": ((1, 1, 992, 128), 2),
    "convnext_tiny": ((2, 2, 384, 768), 1),
    "efficientnet_v2_b0": ((1, 1, 192, 1152), 7),
    "efficientnet_v2_b1": ((1, 1, 192, 1152), 8),
    "efficientnet_v2_b2": ((1, 1, 208, 1408), 1),
    "efficientnet_v2_b3": ((1, 1, 232, 1536), 1),
    "efficientnet_v2_s": ((1, 1, 256, 1536), 14),
}
"""Encoder → a kernel that tells it from the others, and how often it is there. Names would not do: those in a
.weights.h5 are counted. B1 has all that B0 has: its file for B0 is refused when it is loaded."""

_FIRST = {"keras_resnet50": (7, 7), "densenet121": (7, 7), "convnext_tiny": (4, 4)}
"""Height and width of an encoder's first kernel. Of such a size, others have more channels before them: of
3 × 3, 16 in EfficientNetV2-B0, 24 in V2-S, 32 in MobileNetV2; files for more bands are refused."""
