"""Look-alike data: exact names, formats, codes and georeference; repeatable; rare classes rare."""

from collections import Counter
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from datasets.published import NAIC2020_ROUND1, POTSDAM, POTSDAM_TEST, POTSDAM_TRAIN
from datasets.synthetic import make
from datasets.synthetic.make import (
    make_naic2020,
    make_potsdam,
    potsdam_names,
    potsdam_transform,
)
from segmenter.base.errors import DatasetError
from segmenter.grid.geometry import Size
from segmenter.grid.labels import class_pixels
from segmenter.raster import raster_info, read_label
from tests.helpers.refusals import refused

SIDE = 640


def _contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def potsdam(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two scenes, 2_10 to train and 2_13 to test."""
    root = tmp_path_factory.mktemp("potsdam")
    make_potsdam(root, scenes=2, seed=5, size=SIDE)
    return root


@pytest.fixture(scope="module")
def naic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("naic")
    make_naic2020(root, scenes=40, seed=5, size=96)
    return root


def test_scenes_come_from_both_splits_whatever_their_number() -> None:
    for scenes, train, test in ((1, 1, 0), (2, 1, 1), (6, 5, 1), (12, 10, 2), (38, 24, 14)):
        names = potsdam_names(scenes)
        of_split = sum(n in POTSDAM_TRAIN for n in names), sum(n in POTSDAM_TEST for n in names)
        assert of_split == (train, test)
    assert all(len(set(potsdam_names(scenes))) == scenes for scenes in range(1, 39))


def test_potsdam_is_georeferenced_and_neighbours_adjoin(potsdam: Path) -> None:
    info = raster_info(potsdam / "2_Ortho_RGB" / "top_potsdam_2_10_RGB.tif")
    assert info.crs.to_epsg() == 25833
    assert info.transform == potsdam_transform("2_10", Size(SIDE, SIDE))
    assert (info.transform.a, info.transform.e) == (0.05, -0.05)
    size = Size(6000, 6000)
    here, east, south = (potsdam_transform(name, size) for name in ("2_10", "2_11", "3_10"))
    assert here @ (6000, 0) == pytest.approx(east @ (0, 0))
    assert here @ (0, 6000) == pytest.approx(south @ (0, 0))


def test_every_potsdam_class_is_there_and_cars_are_rare(potsdam: Path) -> None:
    total = np.zeros(6, np.int64)
    for name in ("2_10", "2_13"):
        raw = read_label(potsdam / "5_Labels_all" / f"top_potsdam_{name}_label.tif")
        total += class_pixels(POTSDAM.decode(raw), 6)
    shares = total / total.sum()
    assert (total > 0).all()
    assert shares[POTSDAM.names.index("car")] < 0.06
    assert shares[POTSDAM.names.index("impervious surfaces")] > 0.15


def test_no_boundary_is_black_exactly_within_three_pixels_of_a_border(potsdam: Path) -> None:
    full = read_label(potsdam / "5_Labels_all" / "top_potsdam_2_10_label.tif")
    eroded = read_label(potsdam / "5_Labels_all_noBoundary" / "top_potsdam_2_10_label_noBoundary.tif")
    ids, black = POTSDAM.decode(full), (eroded == 0).all(axis=2)
    near = np.zeros_like(black)
    for class_id in range(6):
        away = cv2.distanceTransform((ids == class_id).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
        # The transform sees no border at the edge of the image, nor where a class fills it.
        near |= (ids == class_id) & (away <= 3.001)
    np.testing.assert_array_equal(black, near)
    np.testing.assert_array_equal(eroded[~black], full[~black])


@pytest.mark.slow
def test_naic_tiles_hold_few_or_many_classes_and_some_classes_are_rare(naic: Path) -> None:
    tiles_with: Counter[int] = Counter()
    held = []
    for path in (naic / "train/labels").iterdir():
        pixels = class_pixels(NAIC2020_ROUND1.decode(read_label(path)), 8)
        tiles_with.update(np.flatnonzero(pixels >= 32).tolist())
        held.append(int((pixels >= 32).sum()))
    assert min(held) <= 2
    assert max(held) >= 5
    assert tiles_with[NAIC2020_ROUND1.names.index("other")] <= 4  # of 40
    assert tiles_with[NAIC2020_ROUND1.names.index("farmland")] >= 10


def test_same_seed_same_bytes_another_seed_others(tmp_path: Path) -> None:
    for folder, seed in (("a", 3), ("b", 3), ("c", 4)):
        make_potsdam(tmp_path / folder, scenes=2, seed=seed, size=64)
        make_naic2020(tmp_path / folder, scenes=2, seed=seed, size=64)
    a, b, c = (_contents(tmp_path / folder) for folder in "abc")
    assert a == b
    assert all(a[name] != c[name] for name in a if "Ortho" in name or "images" in name)


def test_existing_files_are_never_replaced(potsdam: Path, naic: Path) -> None:
    before = _contents(potsdam)
    with refused(DatasetError, remedy="nothing"):
        make_potsdam(potsdam, scenes=3, seed=6, size=SIDE)
    assert _contents(potsdam) == before
    with refused(DatasetError, where="0001.tif", fault="exists already"):
        make_naic2020(naic, scenes=1, seed=1)


def test_scenes_are_made_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "made"
    root.mkdir()
    (root / "note.txt").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    real, calls = make._write_potsdam_scene, []

    def interrupted(*words: Any) -> None:
        calls.append(words)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*words)

    with monkeypatch.context() as patch:
        patch.setattr(make, "_write_potsdam_scene", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make_potsdam(root, scenes=3, seed=5, size=32)
    assert sorted(tmp_path.rglob("*")) == before
    (root / ".making" / "2_Ortho_RGB").mkdir(parents=True)  # as kill -9 leaves it
    (root / ".making" / "2_Ortho_RGB" / "torn.tif").touch()
    made = make_potsdam(root, scenes=3, seed=5, size=32)
    assert (len(made), all(path.is_file() for path in made)) == (3, True)
    assert len(_contents(root)) == 15 + 1


def test_impossible_numbers_are_refused(tmp_path: Path) -> None:
    good = {"scenes": 1, "seed": 1, "size": 16}
    for name, value in (("scenes", 39), ("size", 0), ("seed", -1)):
        with pytest.raises(DatasetError, match=f"{name}: expected"):
            make_potsdam(tmp_path, **{**good, name: value})
    with pytest.raises(DatasetError, match="round: expected"):
        make_naic2020(tmp_path, scenes=1, seed=1, round=3)
    assert _contents(tmp_path) == {}
