"""Tiles composed from several: mosaics, and regions of rare classes pasted from other tiles.

Both act on a tile before augmentation, and change label and validity with the image. Their random numbers are
keyed by the tile's slot in the training, independent of all others: recipes without them keep their bits. If
the plan promises classes by scale, tiles are combined within a stratum: a class of another scale keeps no
promise here. If tiles are shown by ground size, all parts are shown at the scale of the receiving tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from segmenter.base.errors import ConfigError, shorten
from segmenter.config.augmentation import CopyPasteConfig
from segmenter.config.recipe import AugmentationConfig
from segmenter.tiles.index import TileIndex
from segmenter.tiles.kernels import turn
from segmenter.tiles.store import Tile
from segmenter.tiles.transforms import libraries

_RARE = 0.5
"""Part of an even share of the pixels below which a class is rare."""
_MOST = 0.5
"""Largest share of a tile that may be pasted over."""
_KEPT = 0.5
"""Probability of each region of the other tile, as in the paper: a random subset of its objects."""
_LEAST = 4
"""Pixels of a region that is worth pasting: a car at 0.5 m has ten, whatever min_pixels its holder has."""
_STREAM = 2
"""Stream of random numbers: 1 is the gsd's (`tiles.gsd`), and one number must not draw both."""
_SEEN = 16
"""Tiles drawn for one place until one can be shown at the tile's scale; each costs a look at the index."""
_NO_MOSAIC_FROM = 4
"""Attempt from which a tile that lost its class is drawn by itself: a mosaic shows a quarter of it."""


class Paster:
    """Composes tiles with others of the same index."""

    def __init__(
        self,
        config: AugmentationConfig,
        index: TileIndex,
        read: Callable[[int, int, Sequence[int]], Tile | None],
        names: Sequence[str],
        min_pixels: int,
    ) -> None:
        """Store `read`, which returns a tile at its grid position, at the gsd of another tile.

        Its arguments are the tile's number, the other tile's number and the key of its draw; it returns None
        if the tile cannot be shown at that scale.

        Args:
            names: names of the classes.
            min_pixels: least pixels of a class in a tile to paste from.

        Raises:
            ConfigError: a class is unknown, or there is nothing to paste.
        """
        self._mosaic, self._paste, self._read = config.mosaic, config.copy_paste, read
        number_N = None if index.strata is None else index.strata.number_N
        self._stratum_N = np.zeros(len(index), np.int32) if number_N is None else number_N
        self._tiles_by_stratum = self._by_stratum(np.arange(len(index)))
        self._donors: dict[int, list[NDArray[np.int64]]] = {}
        if self._paste is not None:
            tiles_by_class = donors(self._paste, index, names, min_pixels)
            self._donors = {class_id: self._by_stratum(tiles) for class_id, tiles in tiles_by_class.items()}

    @property
    def does_nothing(self) -> bool:
        """True if every tile stays as it is."""
        return not self._mosaic and self._paste is None

    def __call__(self, tile: Tile, number: int, key: Sequence[int]) -> Tile:
        """Return the tile, perhaps within a mosaic, perhaps with pasted regions of another tile.

        Args:
            number: number of the tile in the index.
            tile: image (S, S, C), valid (S, S), class ids (S, S); `IGNORE` where not valid.
            key: seed, epoch, step, slot and attempt: it determines all random numbers.
        """
        if self.does_nothing:
            return tile
        rng = np.random.default_rng(np.random.SeedSequence(key, spawn_key=(_STREAM,)))
        stratum = int(self._stratum_N[number])
        if rng.random() < self._mosaic and key[-1] < _NO_MOSAIC_FROM:
            among = self._tiles_by_stratum[stratum]
            others = [self._alike(int(i), among, number, key, rng) for i in rng.choice(among, size=3)]
            tile = mosaic(tile, others, rng)
        if self._paste is not None and rng.random() < self._paste.p:
            class_id = int(rng.choice(list(self._donors)))
            if len(among := self._donors[class_id][stratum]):
                donor = self._alike(int(rng.choice(among)), among, number, key, rng)
                tile = tile if donor is None else paste(tile, donor, class_id, rng)
        return tile

    def _alike(
        self, first: int, among: NDArray[np.int64], number: int, key: Sequence[int], rng: np.random.Generator
    ) -> Tile | None:
        """Return a tile at the gsd of `number`: the first, or others until one is possible; else None."""
        for _ in range(_SEEN):
            if (tile := self._read(first, number, key)) is not None:
                return tile
            first = int(rng.choice(among))
        return None

    def _by_stratum(self, tiles: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return tiles grouped by the strata of their scenes' gsd, if the plan has strata."""
        strata = range(int(self._stratum_N.max(initial=0)) + 1)
        return [tiles[self._stratum_N[tiles] == stratum] for stratum in strata]


def donors(
    config: CopyPasteConfig, index: TileIndex, names: Sequence[str], min_pixels: int
) -> dict[int, NDArray[np.int64]]:
    """Return, for each class id, the tiles from which it may be pasted."""
    if config.classes == "rare":
        chosen = [c for c, share in enumerate(index.shares()) if 0 < share < _RARE / len(names)]
    else:
        chosen = named_classes(config, names)
    holding = {c: np.flatnonzero(index.counts_NK[:, c] >= min_pixels) for c in dict.fromkeys(chosen)}
    if config.classes != "rare" and (empty := [names[c] for c, tiles in holding.items() if not len(tiles)]):
        raise ConfigError(
            "augmentation.copy_paste.classes",
            expected=f"classes that training tiles hold with {min_pixels} pixels (sampling.min_pixels)",
            got=", ".join(empty),
            remedy="leave out what no tile holds",
        )
    holding = {c: tiles for c, tiles in holding.items() if len(tiles)}
    if not holding:
        raise ConfigError(
            "augmentation.copy_paste.classes",
            f"rare: no class that a tile holds has less than {_RARE / len(names):.1%} of the pixels (half "
            "of an even share)",
            remedy="name classes, or leave it out",
        )
    return holding


def named_classes(config: CopyPasteConfig, names: Sequence[str]) -> list[int]:
    """Return the ids of the classes that a recipe names; none for `rare`."""
    named = () if config.classes == "rare" else config.classes
    for name in named:
        if name not in names:
            near = get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            expected = f"expected names of classes ({', '.join(names)})"
            raise ConfigError("augmentation.copy_paste.classes", expected, got=f"{shorten(name)}{hint}")
    return [list(names).index(name) for name in named]


def mosaic(tile: Tile, others: Sequence[Tile | None], rng: np.random.Generator) -> Tile:
    """Join four tiles, each at its own place (Bochkovskiy et al. 2020, arXiv:2004.10934, without scaling).

    A cross in the middle half of the tile divides it; one random part keeps the tile's own pixels. Ground
    size matters here, so tiles are cut, not shrunk.

    Args:
        others: three more, of the same size; for None the part keeps the tile's own pixels.
    """
    side = tile[2].shape[0]
    row, col = (int(v) for v in rng.integers(side // 4, side - side // 4 + 1, 2))
    rows, cols = (slice(0, row), slice(row, side)), (slice(0, col), slice(col, side))
    parts = [(r, c) for r in rows for c in cols]
    own = int(rng.integers(4))
    image, valid, label = (array.copy() for array in tile)
    for part, other in zip([p for i, p in enumerate(parts) if i != own], others, strict=True):
        if other is not None:
            image[part], valid[part], label[part] = (array[part] for array in other)
    return image, valid.astype(np.bool_), label.astype(np.uint8)


def paste(tile: Tile, donor: Tile, class_id: int, rng: np.random.Generator) -> Tile:
    """Paste regions of a class of another tile, flipped and turned, over a tile.

    Simple copy-paste (Ghiasi et al. 2021, arXiv:2012.07177) for labels of classes: an object is a connected
    region (neighbours by side or corner) of at least four pixels, if there is one. Only the object's pixels
    are pasted, so ignored pixels of the other tile never cover anything.
    """
    moved = _turn(donor, int(rng.integers(8)))
    ids_HW, sizes = regions_of((moved[2] == class_id) & moved[1])
    least = min(_LEAST, int(sizes.max()))
    regions = rng.permutation(np.flatnonzero(sizes >= max(1, least)))
    chosen = rng.random(len(regions)) < _KEPT
    chosen[:1] = True
    drawn, left = np.zeros(len(sizes), np.bool_), _MOST * ids_HW.size
    for region in regions[chosen]:
        if sizes[region] <= left:
            drawn[region] = True
            left -= sizes[region]
    over_HW = drawn[ids_HW]
    image = np.where(over_HW[..., None], moved[0], tile[0])
    return image, tile[1] | over_HW, np.where(over_HW, moved[2], tile[2])


def regions_of(mask_HW: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Return connected regions of a mask: (H, W) numbers, 0 outside; and pixel counts, 0 for 0."""
    _, cv2 = libraries()
    count, ids_HW = cv2.connectedComponents(mask_HW.astype(np.uint8), connectivity=8)
    sizes = np.bincount(ids_HW.reshape(-1), minlength=count).astype(np.int64)
    sizes[0] = 0
    return ids_HW, sizes


def _turn(tile: Tile, symmetry: int) -> Tile:
    image, valid, label = (turn(array, symmetry % 4, symmetry >= 4) for array in tile)
    return image, valid.astype(np.bool_, copy=False), label.astype(np.uint8, copy=False)
