"""MONAI's side of `studies.sliding_window`: a process that maps one file to another with its inferer.

As who knows MONAI would write it: the raster whole as a tensor, normalised in place; its sliding window with
scores (not probabilities) added up, as its tutorials do, which is less work; argmax; the map written at once.
What is no longer needed is freed.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import rasterio
from rasterio.errors import NotGeoreferencedWarning

from studies.mapping_task import BANDS, MEAN, STD, Task, asked, free_weights, measure

Network = Callable[[Any], Any]
_MAP = {"driver": "GTiff", "count": 1, "dtype": "uint8", "nodata": 255, "tiled": True, "blockxsize": 512}
_MAP |= {"blockysize": 512, "compress": "deflate", "zlevel": 1, "bigtiff": "IF_SAFER"}
"""As our maps are written."""


def main() -> int:
    """Do what the only argument asks for, and print what it took."""
    task = asked()
    warnings.simplefilter("ignore", NotGeoreferencedWarning)
    network = _keras_network() if task.model == "unet" else _free_network()
    import torch
    from monai.inferers import SlidingWindowInferer

    if task.threads:
        torch.set_num_threads(task.threads)
    inferer = SlidingWindowInferer(
        (task.window, task.window),
        task.batch,
        # Half a pixel less: window × (1 − overlap) is cut to whole pixels, and 192 must not become 191.
        (task.overlap - 0.5) / task.window,
        mode="constant" if task.mode == "exact" else "gaussian",
        cache_roi_weight_map=True,
    )
    with torch.inference_mode():
        window = torch.zeros(1, BANDS, task.window, task.window)
        measure(task, lambda: inferer(window, network), lambda: _map(task, inferer, network))
    return 0


def _map(task: Task, inferer: Any, network: Network) -> None:
    import torch

    with rasterio.open(task.source) as source:
        image = torch.from_numpy(source.read()).float()
        size = {"height": source.height, "width": source.width}
    for band, mean, std in zip(image, MEAN, STD, strict=True):
        band.sub_(mean).div_(std)
    scores = inferer(image[None], network)
    del image
    # The same classes; on planes, torch's argmax takes several times as long as its max.
    largest = scores[0].argmax(0) if task.classes == "argmax" else scores[0].max(0).indices
    ids = largest.to(torch.uint8)
    with rasterio.open(task.target, "w", **_MAP, **size) as target:
        target.write(ids.numpy(), 1)


def _free_network() -> Network:
    # MONAI's import loads TensorFlow where there is one (for TensorBoard): that is not to count against it.
    sys.modules["tensorflow"] = None  # type: ignore[assignment]
    import torch

    kernel, bias = free_weights()
    layer = torch.nn.Conv2d(*kernel.shape, 1).eval()
    weight = np.ascontiguousarray(kernel.T[:, :, None, None])
    layer.load_state_dict({"weight": torch.from_numpy(weight), "bias": torch.from_numpy(bias)})
    return layer


def _keras_network() -> Network:
    """The same Keras model, compiled; tensors pass through NumPy."""
    from segmenter.devices.setup import load_tensorflow

    load_tensorflow()
    import tensorflow as tf
    import torch

    from benchmarks.prediction import unet_model

    model = unet_model()
    compiled = tf.function(
        lambda image: model(image, training=False),
        input_signature=[tf.TensorSpec([None, None, None, BANDS], tf.float32)],
    )

    def network(image_NCHW: Any) -> Any:
        image_NHWC = np.ascontiguousarray(image_NCHW.permute(0, 2, 3, 1).numpy())
        scores_NHWK = compiled(tf.constant(image_NHWC)).numpy()
        return torch.from_numpy(scores_NHWK).permute(0, 3, 1, 2)

    return network


if __name__ == "__main__":
    sys.exit(main())
