"""Ground sampling distance (gsd) of scenes, from the recipe or georeference, and of the tiles shown.

Under `augmentation.scale_to` the metres a pixel of each shown tile are drawn log-uniformly, so that 0.2 to
0.4 m are as likely as 0.5 to 1 m; the window that covers such a tile is read and resampled. Its side is a
whole number of pixels, so the gsd shown differs from the one drawn by at most half a pixel of that side.

Shrinking averages over the area of each new pixel, as a coarser sensor does, so that nothing aliases; a label
pixel takes the class with the largest area (the nearest pixel alone would be noise at every border, and would
often differ from the averaged image). Enlarging interpolates linearly, and takes the nearest label. Pixels
without data are left out of averages; a new pixel has data, or a label, if at least half of its area has.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, DatasetError
from segmenter.base.files import on_disk
from segmenter.base.threads import in_threads
from segmenter.config.recipe import Recipe
from segmenter.grid.geometry import Size, Window
from segmenter.grid.gsd import range_text, scene_strata
from segmenter.grid.labels import IGNORE
from segmenter.grid.resampling import as_type
from segmenter.grid.scenes import Dataset, Scene
from segmenter.raster import raster_info
from segmenter.sampling import TileStrata
from segmenter.tiles.index import TileIndex
from segmenter.tiles.store import SceneStore, Tile
from segmenter.tiles.transforms import libraries

_MOST, _MOST_REMOTE = 1000, 100
"""Scenes whose headers are read, where some will do."""
MOST_SHRUNK = 8
"""Times a side is shrunk at most: a tile then reads 64 times its pixels."""
MOST_ENLARGED = 4
"""Times a side is enlarged at most: beyond, a tile shows hardly anything."""
_SCALE_STREAM = 1
"""Last word of the key: the draw of the scale is apart from those of position and change."""
_RANDOM_ATTEMPTS = 3
"""Draws at a random scale before a tile that lost its class is shown as fine as it can be."""


def some_of(scenes: Sequence[Scene]) -> Sequence[Scene]:
    """Return all scenes, or a limited number at even distances: reading a header takes 3 ms, or a request."""
    most = _MOST if all(on_disk(scene.image) for scene in scenes) else _MOST_REMOTE
    if len(scenes) <= most:
        return scenes
    return [scenes[i] for i in np.linspace(0, len(scenes) - 1, most).round().astype(int)]


def scene_gsds(
    dataset: Dataset, scenes: Sequence[Scene], *, progress: bool = True
) -> tuple[float | None, ...]:
    """Return `Dataset.scale_of` for each scene; headers are read only if the recipe gives no gsd."""

    def find(scene: Scene) -> float | None:
        if scene.metres_per_pixel is not None:
            return scene.metres_per_pixel
        return dataset.scale_of(scene, raster_info(scene.image).metres_per_pixel)

    return tuple(in_threads(find, scenes, description="scales", unit="scene", progress=progress))


def with_gsds(index: TileIndex, dataset: Dataset, recipe: Recipe, *, progress: bool = True) -> TileIndex:
    """Return the index with its scenes' gsd and strata, if the recipe needs them."""
    boundaries = recipe.sampling.scale_strata
    metres = _asked_gsds(dataset, index.scenes, recipe, progress=progress)
    if metres is None:
        return index
    strata = None
    if boundaries:
        by_scene = scene_strata(metres, boundaries)
        strata = TileStrata(by_scene.number_S[index.scene_N], by_scene.titles)
    return replace(index, metres_S=np.array(metres, np.float64), strata=strata)


def _asked_gsds(
    dataset: Dataset, scenes: Sequence[Scene], recipe: Recipe, *, progress: bool
) -> tuple[float | None, ...] | None:
    """Return the gsd of scenes, all of them known; None if the recipe needs no gsd."""
    if not recipe.sampling.scale_strata and recipe.augmentation.scale_to is None:
        return None
    asking = "augmentation.scale_to" if recipe.augmentation.scale_to else "sampling.scale_strata"
    metres = scene_gsds(dataset, scenes, progress=progress)
    unknown = [scene for scene, m in zip(scenes, metres, strict=True) if m is None]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise DatasetError(
            asking,
            expected=f"the metres a pixel of every scene, unknown for {unknown[0].name}{more}: "
            f"{unknown[0].image} has no georeference that tells them",
            remedy="say them with dataset.metres_per_pixel",
        )
    return metres


# --------------------------------------------------------------------------------------- tiles at another gsd


class GroundGsd:
    """Windows of a training set, chosen by ground size."""

    def __init__(self, recipe: Recipe, index: TileIndex, store: SceneStore) -> None:
        """Store a recipe with `augmentation.scale_to` and an index with `metres_S`."""
        assert recipe.augmentation.scale_to is not None, "asked for before"
        assert index.metres_S is not None, "with_gsds comes first"
        self._wanted, self._seed = recipe.augmentation.scale_to, recipe.seed
        self._index, self._store, self._tile = index, store, recipe.tiles.size
        self._metres_S = index.metres_S
        self._reach_S = [self._reach(scene) for scene in range(len(index.scenes))]
        self._used = np.unique(index.scene_N)
        if not any(self._meets(int(scene)) for scene in self._used):
            reaches = [(float(self._metres_S[s]), self._reach_S[s]) for s in self._used]
            raise _never_shown(self._wanted, self._tile, reaches)

    @classmethod
    def of(cls, recipe: Recipe, index: TileIndex, store: SceneStore) -> GroundGsd | None:
        """Return the windows by ground size of a recipe; None if it shows tiles at their own gsd."""
        return None if recipe.augmentation.scale_to is None else cls(recipe, index, store)

    def _reach(self, scene: int) -> tuple[int, int]:
        """Return the smallest and largest side of a window of a scene, in its pixels."""
        return _reach(self._store.size(scene), self._tile)

    def _requested_sides(self, scene: int) -> tuple[float, float]:
        """Return the least and largest side of windows for the requested gsd, ignoring a scene's limits."""
        return _window_sides(self._wanted, float(self._metres_S[scene]), self._tile)

    def _meets(self, scene: int) -> bool:
        return _meets(self._reach_S[scene], self._requested_sides(scene))

    def sides(self, scene: int) -> tuple[float, float]:
        """Return the range of window sides that are drawn for a scene, in its pixels."""
        least, most = self._reach_S[scene]
        low, high = (min(max(side, least), most) for side in self._requested_sides(scene))
        return low, high

    def ends(self) -> tuple[float, float]:
        """Return the finest and the coarsest metres a pixel at which any scene is shown."""
        ends_S2 = self._metres_ends()
        return float(ends_S2.min()), float(ends_S2.max())

    def middle(self) -> float:
        """Return the geometric mean of the metres a pixel shown, over all tiles."""
        tiles_S = np.bincount(self._index.scene_N, minlength=len(self._reach_S))[self._used]
        return float(np.exp(np.average(np.log(self._metres_ends()).mean(axis=1), weights=tiles_S)))

    def _metres_ends(self) -> NDArray[np.float64]:
        """Return (used scenes, 2) finest and coarsest metres a pixel, in the order of `_used`."""
        ends = [[side * self._metres_S[s] / self._tile for side in self.sides(int(s))] for s in self._used]
        return np.array(ends, np.float64)

    def window(self, tile: int, key: tuple[int, int, int, int]) -> Window:
        """Return the window shown around a tile's middle; `key`: (epoch, step, slot, attempt).

        It lies in the scene if this is large enough. The last attempts use the finest possible gsd.
        """
        return self._around(tile, self._side(tile, key))

    def window_beside(self, other: int, tile: int, key: tuple[int, ...]) -> Window | None:
        """Return a tile's window at the gsd that a draw uses for another tile, into which it will be pasted.

        None if its scene cannot be shown at that scale.
        """
        own, theirs = (float(self._metres_S[self._index.scene_N[i]]) for i in (other, tile))
        side = round(self._side(tile, key) * theirs / own)
        least, most = self._reach_S[int(self._index.scene_N[other])]
        return self._around(other, side) if least <= side <= most else None

    def _side(self, tile: int, key: tuple[int, ...]) -> int:
        """Return the side in pixels of the scene of the window that a draw shows."""
        scene = int(self._index.scene_N[tile])
        low, high = self.sides(scene)
        rng = np.random.default_rng(np.random.SeedSequence([self._seed, *key, _SCALE_STREAM]))
        share = rng.random() if key[-1] <= _RANDOM_ATTEMPTS else 0.0
        least, most = self._reach_S[scene]
        return min(max(round(low * (high / low) ** share), least), most)

    def _around(self, tile: int, side: int) -> Window:
        """Return the window of a given side around a tile's middle, moved into the scene."""
        scene, home = int(self._index.scene_N[tile]), self._index.window(tile)
        moved = (home.height - side) // 2
        return self._store.window_in_scene(scene, Window(home.row + moved, home.col + moved, side, side))

    def describe(self) -> list[str]:
        """Return lines on the gsd shown, its reading cost, and scenes that cannot show all of it."""
        tiles_S = np.bincount(self._index.scene_N, minlength=len(self._reach_S))
        cost = float(tiles_S @ [self._cost(scene) for scene in range(len(tiles_S))]) / max(1, tiles_S.sum())
        scales = self._metres_S[self._used]
        lines = [
            f"scale_to: tiles of {range_text(*self._wanted)} a pixel, out of scenes of "
            f"{range_text(float(scales.min()), float(scales.max()))}; a tile reads "
            f"{cost:.1f} times its pixels on average"
        ]
        short = [
            int(s) for s in self._used if not np.allclose(self.sides(int(s)), self._requested_sides(int(s)))
        ]
        if short:
            metres = self._metres_S[short[0]] / self._tile
            only = range_text(*(side * metres for side in self.sides(short[0])))
            scenes = f"{len(short)} of {len(self._used)} scenes"
            name = self._index.scenes[short[0]].name
            beside = sum(not self._meets(scene) for scene in short)
            none = f" ({beside} beside it, as near as can be)" if beside else ""
            lines.append(f"  {scenes} are shown at a part of it{none}, as {name} at {only}: {_bounds()}")
        return lines

    def _cost(self, scene: int) -> float:
        """Return the mean number of pixels read for a pixel shown: (side / tile)², log-uniform."""
        low, high = (side / self._tile for side in self.sides(scene))
        return (high**2 - low**2) / (2 * math.log(high / low)) if high > low * (1 + 1e-9) else low**2


def check_shown(recipe: Recipe, dataset: Dataset) -> None:
    """Refuse settings that need the gsd of training scenes if it is unknown, or none can be shown."""
    scenes, wanted, tile = dataset.of("train"), recipe.augmentation.scale_to, recipe.tiles.size
    metres_S = _asked_gsds(dataset, scenes, recipe, progress=False)
    if wanted is None or metres_S is None:
        return
    unmet = []
    for scene, metres in zip(scenes, metres_S, strict=True):
        assert metres is not None, "_asked_gsds refuses it"
        reach = _reach(raster_info(scene.image).size, tile)
        if _meets(reach, _window_sides(wanted, metres, tile)):
            return
        unmet.append((metres, reach))
    if unmet:
        raise _never_shown(wanted, tile, unmet)


def _reach(size: Size, tile: int) -> tuple[int, int]:
    """Return the smallest and largest side of a window of a scene of this size, in its pixels."""
    return -(-tile // MOST_ENLARGED), min(MOST_SHRUNK * tile, max(tile, min(size.height, size.width)))


def _window_sides(wanted: tuple[float, float], metres: float, tile: int) -> tuple[float, float]:
    return tile * wanted[0] / metres, tile * wanted[1] / metres


def most_shrunk(wanted: tuple[float, float], metres: Iterable[float | None]) -> float:
    """Return the largest number of a scene's pixels in a pixel shown, at least 1.

    Args:
        metres: of a pixel of each scene; None: unknown.
    """
    return max([1.0, *(min(wanted[1] / each, float(MOST_SHRUNK)) for each in metres if each)])


def _meets(reach: tuple[int, int], asked: tuple[float, float]) -> bool:
    return math.floor(asked[0]) <= reach[1] and math.ceil(asked[1]) >= reach[0]


def _never_shown(
    wanted: tuple[float, float], tile: int, reaches: Sequence[tuple[float, tuple[int, int]]]
) -> ConfigError:
    """Return the error for scenes none of which can be shown at the requested gsd."""
    low = min(reach[0] * metres for metres, reach in reaches) / tile
    high = max(reach[1] * metres for metres, reach in reaches) / tile
    return ConfigError(
        "augmentation.scale_to",
        expected=f"metres a pixel that a training scene can be shown at, {range_text(low, high)}",
        got=list(wanted),
        remedy=_bounds(),
    )


def _bounds() -> str:
    return (
        f"windows stay in their scene and are shrunk at most {MOST_SHRUNK} times and enlarged at most "
        f"{MOST_ENLARGED} times a side"
    )


def resample_tile(tile: Tile, side: int) -> Tile:
    """Resample a square tile, image (H, H, C), valid (H, H), ids (H, H), to `side` pixels.

    The image must be 0 where there is no data, as from `SceneStore.read`.
    """
    image_HWC, valid_HW, label_HW = tile
    if valid_HW.shape[0] == side:
        return tile
    precise = np.float32 if image_HWC.dtype.itemsize <= 2 or image_HWC.dtype == np.float32 else np.float64
    if valid_HW.all():
        valid = np.ones((side, side), np.bool_)
        values = _average(image_HWC, side, precise)
    else:
        share = _average(valid_HW[..., None], side, precise)
        valid = share[..., 0] >= 0.5 - _ROUNDING
        total = _average(image_HWC, side, precise)  # 0 where there is no data
        values = np.where(valid[..., None], total / np.where(share > 0, share, 1), 0)
    label = _label(label_HW, side)
    label[~valid] = IGNORE
    return as_type(values, image_HWC.dtype.name), valid, label


def _average(values_HWC: NDArray[Any], side: int, precise: Any) -> NDArray[Any]:
    """Average over the area of each new pixel; interpolate linearly if the new ones are smaller.

    Computed in floats, band by band to save memory: in 8 bits OpenCV rounds halves of 2×2 averages up, which
    brightens an image by an eighth of a level.
    """
    cv2, bands = libraries()[1], values_HWC.shape[2]
    method = cv2.INTER_AREA if side < values_HWC.shape[0] else cv2.INTER_LINEAR
    parts = (values_HWC[..., band].astype(precise) for band in range(bands))
    return np.stack([cv2.resize(part, (side, side), interpolation=method) for part in parts], axis=-1)


def _label(label_HW: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Return the class with the largest area in each new pixel (ties: the first); nearest if enlarging."""
    cv2 = libraries()[1]
    if side > label_HW.shape[0]:
        return np.asarray(cv2.resize(label_HW, (side, side), interpolation=cv2.INTER_NEAREST_EXACT), np.uint8)
    ids = np.flatnonzero(np.bincount(label_HW.reshape(-1), minlength=IGNORE + 1))
    classes = [int(c) for c in ids if c != IGNORE]
    best = np.full((side, side), IGNORE, np.uint8)
    most, labelled = np.zeros((side, side), np.float32), np.zeros((side, side), np.float32)
    for c in classes:
        area = cv2.resize((label_HW == c).astype(np.float32), (side, side), interpolation=cv2.INTER_AREA)
        labelled += area
        larger = area > most + _ROUNDING
        best[larger], most[larger] = c, area[larger]
    best[labelled < 0.5 - _ROUNDING] = IGNORE
    return best


_ROUNDING = 1e-5
"""Steps of areas summed in float32: equal ones must not differ by their last bit."""
