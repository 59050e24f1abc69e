"""Pictures of finished maps: drawn from the files, thinned out while they are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import rasterio

from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE, ClassMap
from segmenter.mapping.jobs import MapJob, RasterRequest
from segmenter.mapping.outputs.finished import MapStyle
from segmenter.mapping.outputs.pictures import draw_view
from segmenter.mapping.request.map_request import MapRequest
from segmenter.raster import RasterSpec, open_raster, raster_info, read_label, write_raster


@pytest.mark.parametrize(
    ("size", "png"), [(Size(37, 53), True), (Size(1, 5), False), (Size(2600, 650), False)]
)
def test_a_view_is_drawn_beside_the_map(
    tmp_path: Path,
    make_geotiff: Callable[..., Path],
    make_classes: Callable[..., ClassMap],
    size: Size,
    png: bool,
) -> None:
    classes = make_classes(3, first_code=100)
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3, (size.height, size.width)).astype(np.uint8)
    image = make_geotiff("in.tif", np.repeat(ids[..., None] * 50, 3, axis=2))
    label = make_geotiff("label.tif", classes.codes()[ids])
    request = MapRequest(Path("run"), tmp_path, ("in.tif",), format="png" if png else "geotiff")
    style = MapStyle(request, classes)
    info = raster_info(image)
    job = MapJob(RasterRequest(None, 3), info, Window.of(size), "in", style.path("map", info), label)
    write_raster(job.output, style.values(job, ids), RasterSpec(driver="PNG" if png else "GTiff"))
    draw_view(job, style)
    with rasterio.open(tmp_path / "map.view.png") as picture:
        assert 300 < picture.width < 4000
        drawn = {tuple(c) for c in picture.read()[:3].reshape(3, -1).T.tolist()}
    assert {tuple(c.colour) for c in classes.classes} <= drawn


def test_thinned_reading_keeps_image_validity_and_label_together(
    tmp_path: Path, make_geotiff: Callable[..., Path]
) -> None:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 200, (203, 101)).astype(np.uint8)
    path = make_geotiff("a.tif", ids, nodata=7)
    shape = Size(50, 25)
    with open_raster(path) as raster:
        image, valid = raster.thinned(Window(0, 0, 203, 101), shape)
    label = read_label(path, shape=shape)
    np.testing.assert_array_equal(image[..., 0], label)
    np.testing.assert_array_equal(valid, label != 7)
    assert IGNORE not in label
