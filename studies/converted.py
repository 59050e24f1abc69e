"""Converted weights against the original: the same images through PyTorch's network and through ours.

    pip install -e '.[cpu,pretrained,converted]'
    python -m studies.converted

EfficientNet-Lite0 to 2 are compared with `efficientnet_lite_pytorch`, which the weights were published for;
ResNet-18 and 50, with random weights, with one in plain PyTorch below. For EfficientNet-Lite PyTorch also
computes the head on our features, so that both classify.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.config.models import EncoderDecoderConfig
from segmenter.model.pretrained.encoder_weights import torch_encoder_weights
from segmenter.model.pretrained.encoder_weights import packaged_weights
from segmenter.model.pretrained.torch_files import write_safetensors

SIDES = {"efficientnet_lite0": 224, "efficientnet_lite1": 240, "efficientnet_lite2": 260}
"""Those that each was trained at."""
COUNT = 16


def main() -> int:
    """One JSON line for each encoder."""
    for name in SIDES:
        print(json.dumps({"encoder": name, **lite(name)}))
    for name, counts in (("resnet18", (2, 2, 2, 2)), ("resnet50", (3, 4, 6, 3))):
        print(json.dumps({"encoder": name, **resnet(name, counts)}))
    return 0


def images(side: int, count: int = COUNT) -> NDArray[np.float32]:
    """(count, side, side, 3) smooth random fields with edges in them, of deviation 1 or so."""
    rng = np.random.default_rng(side)
    coarse = rng.normal(size=(count, 9, 9, 3))
    row = np.linspace(0, 8, side)
    low, part = np.minimum(row.astype(int), 7), (row % 1)[:, None, None]
    rows = coarse[:, low] * (1 - part) + coarse[:, low + 1] * part
    part = part[:, 0][None, None]
    fields = rows[:, :, low] * (1 - part) + rows[:, :, low + 1] * part
    fields += (fields > 0.5) * rng.normal(size=(count, 1, 1, 3)) + rng.normal(0, 0.1, fields.shape)
    return np.asarray(fields, np.float32)


def encoder(name: str, weights: str) -> Any:
    """Ours, with its weights."""
    import keras

    from segmenter.model.encoders import ENCODERS
    from segmenter.model.layers import Layers
    from segmenter.training.beginning.fine_tuning import load_encoder

    config = EncoderDecoderConfig.model_validate(
        {"kind": "encoder_decoder", "encoder": name, "weights": weights}
    )
    image = keras.Input((None, None, 3), name="image")
    model = keras.Model(image, ENCODERS[name](image, Layers(keras.DTypePolicy("float32"), False), config))
    load_encoder(model, torch_encoder_weights(config, 3))
    return model


def lite(name: str) -> dict[str, Any]:
    """Largest difference of the 1000 outputs, and how many images are classified alike."""
    import torch
    from efficientnet_lite_pytorch import EfficientNet

    pixels = images(SIDES[name])
    file = packaged_weights(name)
    original = EfficientNet.from_pretrained(name.replace("_lite", "-lite"), weights_path=str(file)).eval()
    features = np.asarray(encoder(name, "imagenet").predict(pixels, verbose=0)[-1])
    with torch.no_grad():
        theirs = original(_channels_first(pixels)).numpy()
        x = original._swish(original._bn1(original._conv_head(_channels_first(features))))
        ours = original._fc(torch.nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)).numpy()
    return {
        "side": SIDES[name],
        "images": len(pixels),
        "largest_difference": float(np.abs(ours - theirs).max()),
        "largest_output": float(np.abs(theirs).max()),
        "same_class": int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum()),
    }


def resnet(name: str, counts: Sequence[int]) -> dict[str, Any]:
    """Largest difference of the deepest features, as a share of the largest of them."""
    import torch

    torch.manual_seed(1)
    original = _PlainResNet(counts, name == "resnet50")
    pixels = images(224, 4)
    with torch.no_grad():
        theirs = original(_channels_first(pixels)).numpy().transpose(0, 2, 3, 1)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "resnet.safetensors"
        write_safetensors(file, {key: value.numpy() for key, value in original.weights.items()})
        ours = np.asarray(encoder(name, str(file)).predict(pixels, verbose=0)[-1])
    scale = float(np.abs(theirs).max())
    return {"images": len(pixels), "largest_difference": float(np.abs(ours - theirs).max()) / scale}


def _channels_first(pixels: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)))


class _PlainResNet:
    """torchvision's ResNet by PyTorch's functions, up to its last features, with random weights."""

    def __init__(self, counts: Sequence[int], bottleneck: bool) -> None:
        self.weights: dict[str, Any] = {}
        self._counts, self._bottleneck = counts, bottleneck

    def __call__(self, x: Any) -> Any:
        import torch.nn.functional as f

        x = f.max_pool2d(f.relu(self._unit(x, "conv1", "bn1", 64, 7, 2)), 3, 2, 1)
        for stage, count in enumerate(self._counts, 1):
            for i in range(count):
                x = self._block(x, f"layer{stage}.{i}.", 64 << (stage - 1), 2 if stage > 1 and i == 0 else 1)
        return x

    def _block(self, x: Any, at: str, width: int, stride: int) -> Any:
        import torch.nn.functional as f

        outputs = width * 4 if self._bottleneck else width
        sizes = [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)]
        sizes = sizes if self._bottleneck else [(width, 3, stride), (width, 3, 1)]
        y = x
        for number, size in enumerate(sizes, 1):
            y = self._unit(y, f"{at}conv{number}", f"{at}bn{number}", *size)
            y = y if number == len(sizes) else f.relu(y)
        if stride > 1 or x.shape[1] != outputs:
            x = self._unit(x, f"{at}downsample.0", f"{at}downsample.1", outputs, 1, stride)
        return f.relu(x + y)

    def _unit(self, x: Any, conv: str, norm: str, outputs: int, kernel: int, stride: int) -> Any:
        import torch
        import torch.nn.functional as f

        weights, shape = self.weights, (outputs, x.shape[1], kernel, kernel)
        if f"{conv}.weight" not in weights:
            weights[f"{conv}.weight"] = torch.randn(shape) / (shape[1] * kernel**2) ** 0.5
            for part in ("weight", "bias", "running_mean", "running_var"):
                weights[f"{norm}.{part}"] = torch.rand(outputs) + 0.5
        x = f.conv2d(x, weights[f"{conv}.weight"], stride=stride, padding=kernel // 2)
        parts = (weights[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        return f.batch_norm(x, *parts)


if __name__ == "__main__":
    sys.exit(main())
