"""Output files of a map while they are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import DatasetError
from segmenter.base.files import on_disk
from segmenter.grid.geometry import Window
from segmenter.grid.labels import IGNORE
from segmenter.inference.prediction import as_bytes
from segmenter.inference.predictor import Prediction
from segmenter.mapping.completed import Completed
from segmenter.mapping.jobs import MapJob
from segmenter.mapping.outputs.codes import CODES, VALUES
from segmenter.mapping.outputs.sets import ENDING, PixelSets, sizes_of
from segmenter.mapping.style import CONFIDENCE, PROBABILITIES, SOURCE, SOURCE_DIGEST, WEIGHTS, MapStyle
from segmenter.raster import RasterSpec, RasterWriter
from segmenter.raster.stamps import file_digest
from segmenter.raster.write import BLOCK

_HEADERS = 1 << 20
"""Upper limit in bytes for everything in files except pixels."""


def known_probabilities(prediction: Prediction, kind: str | None = None) -> NDArray[Any]:
    """Return (H, W, K) probabilities of a window; without data NaN, or 255 in uint8, unused otherwise.

    Args:
        kind: type of the result; None: that of the prediction.
    """
    probabilities = prediction.probabilities
    assert probabilities is not None
    if kind is not None and probabilities.dtype != kind:  # of float32, from which sets are made, too
        probabilities = as_bytes(probabilities) if kind == "uint8" else probabilities.astype(kind)
    whole = probabilities.dtype == np.uint8
    capped = np.minimum(probabilities, np.uint8(254)) if whole else probabilities
    empty = np.array(255 if whole else np.nan, probabilities.dtype)
    return np.where((prediction.ids == IGNORE)[..., None], empty, capped)


Values = Callable[[Prediction], NDArray[Any]]


def _content_of(image: Path) -> str:
    """Return the digest of an image's file; empty of addresses and folders."""
    with suppress(DatasetError):
        return file_digest(image) if on_disk(image) else ""
    return ""


class MapFiles:
    """Files of one job while they are written.

    All are checked before the first is renamed to its final name. A kill between two renames leaves the first
    files; the journal then has no entry for the job, and the next call writes all files again.

    Attributes:
        set_sizes: pixels written so far whose sets have 0, 1, 2, … classes; 0: none were asked for.
    """

    def __init__(self, job: MapJob, style: MapStyle) -> None:
        self._job, self._style = job, style
        names = {f"CLASS_{i}": c.name for i, c in enumerate(style.classes.classes)}
        own = style.codes or [each.code for each in style.classes.classes]
        codes = {f"CODE_{i}": str(code) for i, code in enumerate(own)}
        meaning = {} if style.codes is None else {VALUES: CODES}
        facts = {SOURCE: job.info.path.name, "RUN": style.run, WEIGHTS: style.weights}
        facts[SOURCE_DIGEST] = _content_of(job.info.path)
        scale = {"GSD": style.gsd} if job.grid is not None else {}
        calibrated = {"CALIBRATION": style.calibration} if style.calibration else {}
        self._tags = {**names, **codes, **meaning, **facts, **scale, **calibrated}
        self._layers: list[tuple[RasterWriter, Values]] = [self._map()]
        if style.wanted.confidence:
            self._layers.append(self._confidence())
        if style.request.probabilities is not None:
            self._layers.append(self._probabilities(style.request.probabilities))
        self.set_sizes: NDArray[np.int64] | int = 0
        if style.sets is not None:
            self._layers.append(self._sets(style.sets))

    def open(self) -> None:
        """Create the temporary files."""
        try:
            for writer, _ in self._layers:
                writer.open()
        except BaseException:
            self.discard()
            raise

    def write(self, window: Window, prediction: Prediction) -> None:
        """Write a window, in the raster's coordinates."""
        into = window.relative_to(self._job.part)
        for writer, values in self._layers:
            writer.write(into, values(prediction))

    @property
    def ahead_bytes(self) -> int:
        """Disk space in bytes that the files may need before other files can be removed for them.

        A row of blocks is written at once, a PNG as a whole; their uncompressed size is an upper limit.
        """
        size = self._job.part.size
        rows = size.height if self._job.output.suffix == ".png" else min(size.height, BLOCK)
        return rows * size.width * sum(writer.pixel_bytes for writer, _ in self._layers) * 17 // 16 + _HEADERS

    def complete(
        self, check: Callable[[], None] | None = None, also: Sequence[Completed] = ()
    ) -> tuple[Path, ...]:
        """Check all files, rename them to their final names and return these; after an error, remove all.

        Args:
            check: called before the first rename; its exception prevents all renames.
            also: further files, renamed after all others.
        """
        writers: list[Completed] = [*(writer for writer, _ in self._layers), *also]
        try:
            for writer in writers:
                writer.finish()
            if check is not None:
                check()
            for writer in writers:
                writer.publish()
        finally:
            for writer in writers:
                writer.discard()
        return self._job.files

    def discard(self) -> None:
        """Remove temporary files."""
        for writer, _ in self._layers:
            writer.discard()

    def _map(self) -> tuple[RasterWriter, Values]:
        job, style = self._job, self._style
        held = style.file_values(job)

        def values(prediction: Prediction) -> NDArray[Any]:
            return held.of(prediction.ids)

        if job.output.suffix == ".png":
            return RasterWriter(
                job.output, job.part.size, RasterSpec(dtype=held.dtype, driver="PNG"), column=job.column
            ), values
        colours = None
        if held.dtype == "uint8":  # of 16 bits, a colour table has 65,536 entries
            colours = np.zeros((256, 3), np.uint8)
            colours[list(held.codes)] = [each.colour for each in style.classes.classes]
        return self._geotiff(
            job.output,
            "mode",
            dtype=held.dtype,
            nodata=held.nodata,
            descriptions=("land-cover class",),
            colour_table=colours,
        ), values

    def _confidence(self) -> tuple[RasterWriter, Values]:
        def values(prediction: Prediction) -> NDArray[np.uint8]:
            assert prediction.confidence is not None
            # The largest of up to 254 probabilities is never 0: that is left for pixels without data.
            return np.where(prediction.ids == IGNORE, np.uint8(0), prediction.confidence)

        path = self._style.folder / f"{self._job.name}{CONFIDENCE}"
        calibration = self._style.calibration
        described = f"largest probability{calibration and f', calibrated: {calibration}'}"
        return self._geotiff(path, "nearest", nodata=0, descriptions=(described,), scale=1 / 255), values

    def _probabilities(self, kind: Literal["uint8", "float16", "float32"]) -> tuple[RasterWriter, Values]:
        whole = kind == "uint8"
        classes = self._style.classes
        path = self._style.folder / f"{self._job.name}{PROBABILITIES}"
        return self._geotiff(
            path,
            "nearest",
            dtype=kind,
            bands=len(classes),
            nodata=255 if whole else float("nan"),
            descriptions=tuple(classes.names),
            scale=1 / 255 if whole else None,
        ), lambda prediction: known_probabilities(prediction, kind)

    def _sets(self, sets: PixelSets) -> tuple[RasterWriter, Values]:
        path = self._style.folder / f"{self._job.name}{ENDING}"

        def values(prediction: Prediction) -> NDArray[Any]:
            found = sets.of(prediction)
            self.set_sizes += sizes_of(found)
            return found

        described = (
            f"classes that a pixel may have, promised for {sets.thresholds.promise:.0%}; bit k: class k"
        )
        return self._geotiff(path, "nearest", dtype=sets.dtype, nodata=0, descriptions=(described,)), values

    def _geotiff(self, path: Path, overviews: Literal["mode", "nearest"], **options: Any) -> RasterWriter:
        return RasterWriter(
            path,
            self._job.part.size,
            RasterSpec(
                **self._job.info.georeference(self._job.part),
                tags=self._tags,
                overviews=overviews if self._style.request.cog else None,
                **options,
            ),
            column=self._job.column,
        )
