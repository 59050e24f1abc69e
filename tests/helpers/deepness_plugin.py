"""What the QGIS plug-in Deepness does with a model: its tiles, its arithmetic, its way of joining them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray


def as_deepness(model: Any, layer_HWC: NDArray[Any]) -> NDArray[np.int64]:
    """Class ids of a layer, by the keys of the file alone.

    Args:
        model: session of onnxruntime.
    """
    (image,), keys = model.get_inputs(), model.get_modelmeta().custom_metadata_map
    assert json.loads(keys["model_type"]) == "Segmentor"
    size = json.loads(keys["tile_size"])
    assert image.shape == [1, 3, size, size]
    assert json.loads(keys["tiles_size"]) == size
    overlap = int(size * json.loads(keys["tiles_overlap"]) / 100 * 2) // 2
    step, half = size - overlap, overlap // 2
    mean, std = (np.array(json.loads(keys[f"standardization_{k}"]), np.float32) for k in ("mean", "std"))
    count = [max(0, -(-(length - size) // step)) + 1 for length in layer_HWC.shape[:2]]
    whole = [(n - 1) * step + size for n in count]
    filled = np.zeros((*whole, 3), layer_HWC.dtype)
    filled[: layer_HWC.shape[0], : layer_HWC.shape[1]] = layer_HWC
    result = np.full(whole, -1)
    for i, j in np.ndindex(*count):
        tile = np.float32(filled[i * step :, j * step :][:size, :size] * 1.0 / 255.0)
        values = model.run(None, {"image": ((tile - mean) / std).transpose(2, 0, 1)[None]})[0]
        values[values < json.loads(keys["seg_thresh"])] = 0
        kept = [
            slice(0 if k == 0 else half, size if k == n - 1 else size - half)
            for k, n in zip((i, j), count, strict=True)
        ]
        result[i * step :, j * step :][kept[0], kept[1]] = values[0].argmax(axis=0)[kept[0], kept[1]]
    assert (result >= 0).all()
    assert json.loads(keys["seg_small_segment"]) == 0
    return result[: layer_HWC.shape[0], : layer_HWC.shape[1]]
