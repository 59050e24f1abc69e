"""The colour-only baseline: features by their definition, scores by hand, and the demo's ceiling."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks import colour_baseline as baseline
from datasets.synthetic.make import make_potsdam
from segmenter.errors import DatasetError
from segmenter.geometry import Size
from segmenter.labels import IGNORE


@pytest.fixture
def boosting() -> Iterator[None]:
    """With one thread: those of OpenMP wait busily, which on a shared machine takes minutes, not seconds.

    Not in `make test`: wherever scikit-learn is installed, Keras imports it, a second for each process.
    """
    reason = "scikit-learn is of the extra `bench`, which `make test-slow` installs"
    threads = pytest.importorskip("threadpoolctl", reason=reason)
    pytest.importorskip("sklearn", reason=reason)
    with threads.threadpool_limits(1, "openmp"):
        yield


def test_features_are_local_mean_and_deviation() -> None:
    image = np.random.default_rng(0).integers(0, 256, (17, 23, 3)).astype(np.uint8)
    features = baseline.colour_features(image, (1, 5))
    assert features.shape == (17, 23, 9)
    patch = image[6:11, 8:13].astype(np.float64)
    np.testing.assert_array_equal(features[8, 10, :3], image[8, 10])
    np.testing.assert_allclose(features[8, 10, 3:6], patch.mean((0, 1)), rtol=1e-5)
    np.testing.assert_allclose(features[8, 10, 6:], patch.std((0, 1)), rtol=1e-3)


def test_sample_leaves_ignored_pixels_out_and_favours_rare_classes() -> None:
    label = np.zeros((100, 100), np.uint8)
    label[:10, :10], label[50:] = 1, IGNORE
    sample = baseline.sample_pixels(np.zeros((100, 100, 1)), label, 1000, np.random.default_rng(0), (1,))
    counts = np.bincount(sample.ids_N)
    assert len(counts) == 2
    assert counts.sum() == pytest.approx(1000, rel=0.2)
    assert counts[1] / counts.sum() > 3 * 100 / 5000


def test_iou_by_hand() -> None:
    iou = baseline.iou_per_class(np.array([[3, 1, 0], [2, 4, 0], [0, 0, 0]]))
    np.testing.assert_allclose(iou, [3 / 6, 4 / 7, np.nan])


def test_parts_cover_every_pixel_once() -> None:
    seen = np.zeros((2100, 4100), np.uint8)
    for window in baseline.parts(Size(2100, 4100)):
        seen[window.slices()] += 1
    assert (seen == 1).all()


@pytest.mark.slow
def test_it_tells_colours_apart_where_colour_is_enough(boosting: None) -> None:
    rng = np.random.default_rng(0)
    label = (np.arange(80)[:, None] // 20 % 2 * np.ones((1, 90))).astype(np.uint8)
    image = rng.normal(60 + 120 * label[..., None], 10, (80, 90, 3))
    trees = baseline.fit(baseline.sample_pixels(image, label, 2000, rng))
    assert baseline.iou_per_class(baseline.confusion(trees, image, label, 2)).min() > 0.97


def _recipe(folder: Path, size: int, scenes: int) -> Path:
    make_potsdam(folder / "data", scenes=scenes, seed=1, size=size)
    recipe = folder / "recipe.yaml"
    recipe.write_text(f"name: colour\ndataset:\n  kind: potsdam\n  root: {folder / 'data'}\n")
    return recipe


@pytest.mark.slow
def test_command_line_prints_one_json_line(
    boosting: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baseline.main([str(_recipe(tmp_path, 128, 2)), "--samples", "2000"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["benchmark"], line["split"], line["labels"]) == ("colour_baseline", "test", "eroded")
    assert set(line["IoU"]) >= {"tree", "car"}
    assert 0 <= line["mIoU"] <= 1


def test_a_split_without_scenes_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="expected scenes to validation, got none"):
        baseline.main([str(_recipe(tmp_path, 64, 2)), "--split", "validation"])


@pytest.mark.slow
def test_colour_alone_does_not_solve_the_look_alikes(
    boosting: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    baseline.main([str(_recipe(tmp_path, 1024, 6))])
    assert json.loads(capsys.readouterr().out)["mIoU"] <= 0.45
