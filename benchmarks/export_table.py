"""Table of encoders and decoders by export format, with their difference from predict.py.

    python -m benchmarks.export_table --page studies/measured.md [--pairs resnet18+unet,…]

Each pair has random weights, spread logits, a narrow decoder and all that may be random in training. It is
written, read again by its runtime and compared on made pixels, of two odd sizes, some of
them without data. One line of JSON a pair; `--page` puts it into the page's table, beside the pairs that this
has already. The numbers are largest differences of a probability; a format that refuses a model is named with
what it lacks.
All pairs take an hour or two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.page import renew, rows_of
from segmenter.base.errors import ExportError
from segmenter.config.models import ModelConfig, UNetConfig
from segmenter.extras.export.check import TOLERANCE, ProbePixels, compare
from segmenter.extras.export.formats import read_model, write_model
from segmenter.extras.export.request import Format
from segmenter.grid.geometry import Size
from tests.helpers.encoder_pairs import DECODERS, ENCODERS, pair

_MARK = "<!-- table: python -m benchmarks.export_table --page -->"
_BANDS, _CLASSES, _SIDE = 3, 5, 128
_SHAPES = (Size(133, 97), Size(64, 150))
_UNETS = ("nearest", "bilinear", "transpose")
FORMATS: tuple[Format, ...] = get_args(Format)


def main() -> int:
    """The exit code is 1 if a pair is refused."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the table in this page")
    parser.add_argument("--pairs", metavar="ENCODER+DECODER,…", help="default: all")
    arguments = parser.parse_args()
    names = [f"scratch+{upsampling}" for upsampling in _UNETS]
    names += [f"{encoder}+{decoder}" for encoder in ENCODERS for decoder in DECODERS]
    if arguments.pairs and len(chosen := arguments.pairs.split(",")) == 1:
        found = measured(chosen[0])
        print(json.dumps({"benchmark": "export_table", "pair": chosen[0], **found}), flush=True)
        if arguments.page:
            _write(arguments.page, chosen[0], found)
        return int(any(isinstance(value, str) for value in found.values()))
    page = ["--page", str(arguments.page)] if arguments.page else []
    codes = [
        # A process for each: TensorFlow keeps the graphs of all models that it has seen.
        subprocess.run(
            [sys.executable, "-m", "benchmarks.export_table", *page, "--pairs", name], check=False
        ).returncode
        for name in (arguments.pairs.split(",") if arguments.pairs else names)
    ]
    return int(any(codes))


def measured(name: str, formats: tuple[Format, ...] = FORMATS) -> dict[str, float | str]:
    """Format → the largest difference of a probability, or why it is refused, of a pair."""
    from segmenter.model.building import build_model

    return measured_model(build_model(_config(name), _BANDS, _CLASSES), formats)


def measured_model(model: Any, formats: tuple[Format, ...] = FORMATS) -> dict[str, float | str]:
    """The same of a model of three bands whose last layer but for enlargements is `logits`."""
    from segmenter.extras.export.graph import Shape, exported_function
    from segmenter.inference.function import Member, predict_function
    from segmenter.model.normalisation import Normalisation
    from segmenter.model.receptive_field import network_geometry

    _spread(model)
    member = Member(model, Normalisation.of((100, 90, 80), (50, 60, 70)))
    original, stride = predict_function(member.model, member.normalisation), network_geometry(model).stride
    found: dict[str, float | str] = {}
    for format in formats:
        shape = Shape(_BANDS, stride, None, None, channels_first=format == "onnx")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model"
            try:
                write_model(format, exported_function(member, shape), path, {})
                runtime = read_model(format, path, shape)
                agreement = compare(original, runtime, _probes(), stride, nodata=True, tolerance=TOLERANCE)
                found[format] = float(f"{agreement.largest:.1e}")
            except ExportError as error:
                found[format] = str(error)
    return found


def _spread(model: Any) -> None:
    """Scale the last layer so that every class is the largest somewhere: as they start, most networks give
    nearly the same everywhere, and nothing would be compared."""
    pixels = np.random.default_rng(1).normal(size=(1, _SIDE, _SIDE, _BANDS))
    logits = np.asarray(model(pixels, training=False))
    factor = 2 / max(float(logits.std(axis=(0, 1, 2)).mean()), 1e-12)
    head = model.get_layer("logits")
    head.kernel.assign(head.kernel * factor)
    head.bias.assign((head.bias - logits.mean(axis=(0, 1, 2))) * factor)


def _config(name: str) -> ModelConfig:
    encoder, _, decoder = name.partition("+")
    if encoder == "scratch":
        return UNetConfig(depth=3, width=8, dropout=0.1, upsampling=decoder)
    return pair(encoder, decoder)


def _probes() -> Iterator[ProbePixels]:
    rng = np.random.default_rng(3)
    for shape in _SHAPES:
        image = rng.integers(0, 256, (2, shape.height, shape.width, _BANDS), np.uint8)
        valid = rng.random(image.shape[:3]) > 0.1
        yield ProbePixels(image, valid)


def _write(page: Path, name: str, found: dict[str, float | str]) -> None:
    """The table with this pair's row, new or in place of an older one."""
    encoder, _, decoder = name.partition("+")
    start = f"| {encoder} | {decoder} |"
    cells: list[Any] = [v if isinstance(v, str) else f"{v:.0e}" for v in found.values()]
    rows = [each for each in rows_of(page, _MARK)[2:] if not each.startswith(start)]
    rows.append(f"{start} {' | '.join(cells)} |")
    head = f"| encoder | decoder | {' | '.join(FORMATS)} |"
    renew(page, _MARK, [head, "| --- | --- |" + " ---: |" * len(FORMATS), *sorted(rows)])


if __name__ == "__main__":
    sys.exit(main())
