"""Ways out of calls of `segmenter start` that were meant otherwise."""

from pathlib import Path

import numpy as np

from datasets.start.look import look
from segmenter.base.errors import DatasetError
from tests.helpers import made_folders as made
from tests.helpers.refusals import refused


def test_images_in_place_of_labels_lead_to_the_call_that_was_meant(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    for i in range(3):
        noise = rng.integers(0, 256, (*made.SIZE, 3), np.uint8)
        made.save(tmp_path / f"im/s{i}.tif", noise, **made.place(i * made.SIZE[1]))
        made.save(tmp_path / f"gt/s{i}.tif", made.label([0, 1, 4]), **made.place(i * made.SIZE[1]))
    with refused(DatasetError, where="labels", remedy="segmenter start IMAGES --labels LABELS"):
        look(tmp_path / "gt", tmp_path / "im")


def test_the_table_of_a_shapefile_leads_to_the_shapefile(tmp_path: Path, rng: np.random.Generator) -> None:
    for i in range(3):
        made.save(tmp_path / f"im/s{i}.tif", made.image(rng), **made.place(i * made.SIZE[1]))
    (tmp_path / "areas.dbf").write_bytes(b"x")
    with refused(DatasetError, fault="--labels takes areas.shp"):
        look(tmp_path / "im", tmp_path / "areas.dbf")
