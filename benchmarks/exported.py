"""An exported model beside predict.py's own: size of the file, processor time for a megapixel.

    python -m benchmarks.exported [--width 32] [--depth 4] [--side 512] [--repeat 3]

A U-Net with random weights, windows of one size, one after the other, everything on the CPU. Baseline, in the
same process: the compiled function of predict.py, from 8-bit pixels to class ids. The others get float32
pixels and give classes and probabilities. The least of the repeats counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.config.models import UNetConfig
from segmenter.extras.export.formats import read_model, write_model
from segmenter.extras.export.request import Format

_BANDS, _CLASSES = 3, 6
_WAYS: tuple[tuple[Format, bool], ...] = (*(("onnx", False), ("onnx", True), ("savedmodel", False)),)


def main() -> None:
    """Export, run, print a line of JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (("--width", 32), ("--depth", 4), ("--side", 512), ("--repeat", 3)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()

    from segmenter.inference.function import Member, predict_function
    from segmenter.model.building import build_model
    from segmenter.model.normalisation import Normalisation

    config = UNetConfig(depth=given.depth, width=given.width)
    members: dict[str, Any] = {}
    for policy in ("float32", "mixed_float16"):
        model = build_model(config, _BANDS, _CLASSES, dtype=policy)
        members[policy] = Member(model, Normalisation.of((100,) * _BANDS, (50,) * _BANDS))
    plain = members["float32"]
    members["mixed_float16"].model.set_weights(plain.model.get_weights())
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, given.side, given.side, _BANDS), np.uint8)
    valid, pixels = np.ones(image.shape[:3], np.bool_), image.astype(np.float32)
    own = predict_function(plain.model, plain.normalisation)
    baseline = _seconds(lambda: own(image, valid), given.repeat, image)
    found: dict[str, Any] = {"predict.py": {"processor_s_per_Mpixel": round(baseline, 2), "ratio": 1.0}}
    for format, fp16 in _WAYS:
        with tempfile.TemporaryDirectory() as folder:
            runtime, size = _exported(
                format, members["mixed_float16" if fp16 else "float32"], Path(folder), given
            )
            seconds = _seconds(lambda run=runtime: run(pixels), given.repeat, image)  # type: ignore[misc]
        found[f"{format}{' fp16' * fp16}"] = {
            "MiB": round(size / 2**20, 1),
            "processor_s_per_Mpixel": round(seconds, 2),
            "ratio": round(seconds / baseline, 2),
        }
    parameters = plain.model.count_params()
    print(json.dumps({"benchmark": "exported", "parameters": parameters, "side": given.side, "ways": found}))


def _exported(format: Format, member: Any, folder: Path, given: Any) -> tuple[Any, int]:
    """The file in its runtime, and its bytes."""
    from segmenter.extras.export.graph import Shape, exported_function

    shape = Shape(_BANDS, 2**given.depth, None, None, channels_first=format == "onnx")
    path = folder / "model"
    write_model(format, exported_function(member, shape), path, {})
    files = [each for each in folder.rglob("*") if each.is_file()]
    return read_model(format, path, shape), sum(each.stat().st_size for each in files)


def _seconds(call: Callable[[], Any], repeat: int, image: Any) -> float:
    """Processor seconds for a megapixel, after a call that compiles."""
    call()
    least = float("inf")
    for _ in range(repeat):
        started = time.process_time()
        call()
        least = min(least, time.process_time() - started)
    return least / (image.shape[1] * image.shape[2] / 1e6)


if __name__ == "__main__":
    main()
