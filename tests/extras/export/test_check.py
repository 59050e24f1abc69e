"""The law that an exported file keeps, the tiles of Deepness, and the record of validation images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, ExportError
from segmenter.extras.export.check import Agreement, Probe, compare
from segmenter.extras.export.deepness import Tile, choose_tile
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Scene
from segmenter.model.receptive_field import NetworkGeometry
from segmenter.raster.remote.settings import RemotePath
from segmenter.runs.origin import save_validation_images, validation_images

SHAPE = (1, 5, 7)
TOLERANCE = 1e-3


class _Original:
    """A model of one probability everywhere, which keeps what it is given."""

    at_once = 1

    def __init__(self, *probabilities: float) -> None:
        self.probabilities = np.array(probabilities, np.float32)
        self.valid: NDArray[np.bool_] | None = None

    def part(self, *_: Any) -> Any:
        raise NotImplementedError

    def weighted(self, image: Any, valid: Any, rows: Any, cols: Any) -> NDArray[np.float32]:
        self.valid = valid
        return np.broadcast_to(self.probabilities, (*valid.shape, len(self.probabilities)))


def _compare(original: _Original, *found: float, nodata: int = IGNORE) -> Agreement:
    """With a runtime that gives such probabilities, and a class where there is no data."""

    def runtime(image: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
        lacks = np.isnan(image).any(axis=-1)
        values = np.broadcast_to(np.array(found, np.float32), (*lacks.shape, len(found)))
        classes = values.argmax(axis=-1).astype(np.uint8)
        return np.where(lacks[..., None], 0, values), np.where(lacks, nodata, classes).astype(np.uint8)

    valid = np.ones(SHAPE, np.bool_)
    valid[:, 1, 2] = False
    probe = Probe(np.zeros((*SHAPE, 2), np.uint8), valid)
    return compare(original, runtime, [probe, probe], 4, nodata=True, tolerance=TOLERANCE)


def test_ties_are_counted_and_everything_else_is_refused() -> None:
    found = _compare(_Original(0.5003, 0.4997), 0.4998, 0.5002)
    assert (found.windows, found.pixels, found.ties) == (2, 68, 68)
    assert found.largest == pytest.approx(5e-4, rel=1e-3)
    assert "but at 68, where the two best probabilities differ by less than 0.001" in str(found)
    assert _compare(_Original(0.6, 0.4), 0.6, 0.4).ties == 0
    with pytest.raises(ExportError, match=r"another class than predict.py at 34 of 34 .* by up to 0.0012"):
        _compare(_Original(0.5006, 0.4994), 0.4998, 0.5002)
    with pytest.raises(ExportError, match=r"differ from predict.py's by up to 0.05"):
        _compare(_Original(0.6, 0.4), 0.55, 0.45)
    with pytest.raises(ExportError, match="up to inf"):
        _compare(_Original(0.6, 0.4), np.inf, 0.4)
    with pytest.raises(ExportError, match="another class"):
        _compare(_Original(0.6, 0.4), 0.6, np.nan)
    with pytest.raises(ExportError, match="a class to 1 pixels that have no data"):
        _compare(_Original(0.6, 0.4), 0.6, 0.4, nodata=0)


def test_predict_is_given_windows_filled_up_with_pixels_without_data() -> None:
    original = _Original(0.6, 0.4)
    _compare(original, 0.6, 0.4)
    assert original.valid is not None
    assert original.valid.shape == (1, 8, 8)
    assert original.valid.sum() == 5 * 7 - 1


@pytest.mark.parametrize(("stride", "radius"), [(4, 21), (16, 107), (32, 401)])
def test_tiles_of_deepness_lie_on_the_grid_with_overlap_for_the_radius(stride: int, radius: int) -> None:
    network = NetworkGeometry(stride, radius)
    tile = choose_tile(network)
    assert tile.exact(network)
    assert tile.overlap // 2 >= radius
    assert tile.step % stride == tile.size % stride == 0
    assert 512 <= tile.size <= 1536
    # None of the sizes below keeps nearly as much.
    others = [Tile(size, percent) for size in range(512, tile.size, stride) for percent in range(1, 91)]
    assert not [t for t in others if t.exact(network) and t.step * tile.size > tile.step * t.size]


def test_a_tile_that_cannot_be_exact_is_refused_or_said() -> None:
    with pytest.raises(ConfigError, match="no whole percent of it is an overlap of twice the model's radius"):
        choose_tile(NetworkGeometry(16, 107), 208)
    with pytest.raises(ConfigError, match="expected a multiple of 16"):
        choose_tile(NetworkGeometry(16, 107), 500)
    assert choose_tile(NetworkGeometry(32, None)) == Tile(512, 50)


def test_validation_images_are_recorded_without_addresses(tmp_path: Path) -> None:
    def scene(path: Path) -> Scene:
        return Scene(path.name, path, None, "g", "validation")

    assert validation_images(tmp_path) == []
    paths = [tmp_path / f"{number}.tif" for number in range(150)]
    save_validation_images(tmp_path, [scene(RemotePath.of("https://host/a.tif")), *map(scene, paths)])
    found = validation_images(tmp_path)
    assert len(found) == 64
    assert found[0] == paths[0]
    assert set(found) <= set(paths)
    (tmp_path / "validation.json").write_text("[1")
    assert validation_images(tmp_path) == []
