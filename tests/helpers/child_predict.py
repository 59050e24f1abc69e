"""`python -m tests.helpers.child_predict`: `predict.py` in a process, with a model that is computed exactly.

Arguments: seconds that the model takes a batch, pixels from which rasters are kept in part, then those of
`predict.py` after RUN. Each batch prints a line, and each file that gets its name.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import segmenter.inference.loading
import segmenter.mapping.folder.state
import segmenter.runs.run
from datasets.commands import predict
from segmenter.base.errors import run_tool
from segmenter.base.terminal import enduring_output
from segmenter.grid.labels import ClassMap, LandCoverClass
from segmenter.inference.predictor import ExtraOutputs
from segmenter.raster import RasterWriter
from tests.helpers.exact_network import RADIUS, STRIDE, exact_network, fake_load_predictor, fake_run

Make = Callable[..., Path]
COMMAND = [sys.executable, "-m", "tests.helpers.child_predict"]
CLASSES = ClassMap(tuple(LandCoverClass(str(i), (i, i, i), i) for i in range(7)))
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def scene(make_geotiff: Make, name: str, height: int, width: int, seed: int = 0) -> Path:
    """A scene with a hole, in blocks that no window fits."""
    pixels = np.random.default_rng(seed).integers(1, 255, (height, width, 3), np.uint8)
    pixels[height // 3 : height // 2, width // 4 :] = 0
    return make_geotiff(name, pixels, nodata=0, tiled=True, blockxsize=80, blockysize=48)


def files(folder: Path | str) -> dict[str, bytes]:
    """What a user sees of a folder."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.name[0] != "."}


def without_styles(names: Iterable[str]) -> list[str]:
    """Names in order, but those of files that only tell a GIS how to show the others."""
    return sorted(name for name in names if not name.endswith((".qml", ".aux.xml")))


def exact_run(predictor: Callable[..., Any]) -> None:
    """Put a run that is computed exactly in the place of all others, in this process."""
    segmenter.inference.loading.load_predictor = fake_load_predictor  # type: ignore[assignment]
    segmenter.runs.run.load_run = lambda _: fake_run(CLASSES, predictor=predictor)  # type: ignore[assignment]


def main(seconds: float, least_pixels: int, arguments: list[str]) -> int:
    """Run it; gives the exit code."""
    publish = RasterWriter.publish

    def slow(wanted: ExtraOutputs | None = None, **_: Any) -> Any:
        exact = exact_network(RADIUS, STRIDE, wanted=wanted)

        def model(image: NDArray[Any], valid: NDArray[Any]) -> Any:
            print("batch", flush=True)
            time.sleep(seconds)
            return exact(image, valid)

        def slow_weighted(image: NDArray[Any], *rest: Any) -> Any:
            print("batch", flush=True)
            time.sleep(seconds)
            return exact.weighted(image, *rest)

        return replace(exact, function=model, weigh=slow_weighted)

    def telling(self: RasterWriter) -> None:
        publish(self)
        print("named", self.path.name, flush=True)

    RasterWriter.publish = telling  # type: ignore[method-assign]
    segmenter.mapping.folder.state.LEAST_PIXELS = least_pixels
    exact_run(slow)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    return run_tool(lambda: predict.main(["run", *arguments]))


if __name__ == "__main__":
    with enduring_output():
        sys.exit(main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
