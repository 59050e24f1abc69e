"""F1 of road maps by pixels, and by patches of 16 × 16 pixels as the challenge of EPFL counts them.

A patch is road if more than a quarter of its pixels are. First the folds and their maps:

    python train.py studies/results/planned/recipes/roads-as_now.yaml --folds 5 --run FOLDS --set dataset.root=DIR \\
        --set dataset.split.test=[] --set dataset.split.validation=[] --set seed=0
    for k in 1 2 3 4 5; do
        python predict.py FOLDS/fold_$k --split validation --no-calibration --output MAPS/fold_$k
    done
    python -m studies.roads_patches --maps MAPS --roads DIR

Maps of enlarged pictures are read at the size of the labels, by the nearest pixel. Pictures are enlarged by
Pillow (`pip install pillow`):

    for kind, how in ("images", Image.BICUBIC), ("groundtruth", Image.NEAREST):
        for path in Path(DIR, kind).glob("*.png"):
            Image.open(path).resize((600, 600), how).save(Path(LARGE, kind, path.name))
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import rasterio
from numpy.typing import NDArray

PATCH, SHARE = 16, 0.25


def main() -> None:
    """Print F1 in % of each fold, and of all pictures together, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", type=Path, required=True, metavar="DIR", help="fold_K/NAME.tif")
    parser.add_argument("--roads", type=Path, required=True, metavar="DIR", help="groundtruth/NAME.png")
    given = parser.parse_args()
    counts_FMC = np.array([_counts(fold, given.roads) for fold in sorted(given.maps.glob("fold_*"))])
    both_MX, mapped_MX, true_MX = np.vstack([counts_FMC, counts_FMC.sum(axis=0, keepdims=True)]).T
    f1_MX = (200 * both_MX / (mapped_MX + true_MX)).round(1)
    names = [*(f"fold {k + 1}" for k in range(len(counts_FMC))), "all"]
    print(json.dumps({by: dict(zip(names, f1_MX[m].tolist())) for m, by in enumerate(("pixels", "patches"))}))


def _counts(fold: Path, roads: Path) -> NDArray[np.int64]:
    """Return (2, 3): by pixels and by patches, the road that is both mapped and true, mapped, true."""
    counts = np.zeros((2, 3), np.int64)
    for path in sorted(fold.glob("*.tif")):
        true = _road(roads / "groundtruth" / f"{path.stem}.png", 127)
        pair = [_road(path, 0, true.shape), true]
        for row, (mapped, true) in enumerate((pair, [_patches(mask) for mask in pair])):
            counts[row] += [(mapped & true).sum(), mapped.sum(), true.sum()]
    return counts


def _road(path: Path, above: int, shape: tuple[int, ...] | None = None) -> NDArray[np.bool_]:
    with rasterio.open(path) as image:
        return np.asarray(image.read(1, out_shape=shape) > above)


def _patches(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    rows, columns = (side // PATCH for side in mask.shape)
    return np.asarray(mask.reshape(rows, PATCH, columns, PATCH).mean(axis=(1, 3)) > SHARE)


if __name__ == "__main__":
    main()
