"""What lies in the output folder already, and pictures of maps: `predict.py` on folders in use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.raster import write_raster

Make = Callable[..., Path]
IMAGE = np.arange(11 * 13 * 3, dtype=np.uint8).reshape(11, 13, 3)


def label(path: Path, value: int = 0) -> bytes:
    """A label of one value for IMAGE; gives the file's bytes."""
    write_raster(path, np.full(IMAGE.shape[:2], value, np.uint8), driver=path.suffix.lstrip(".").upper())
    return path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_pictures_and_scores_replace_no_input_or_label(
    tmp_path: Path, make_geotiff: Make, call: Callable[..., int], capsys: Any
) -> None:
    source = make_geotiff("in/x.tif", IMAGE)
    for name in ("x.view.png", "confusion.png"):
        path = tmp_path / "maps" / name
        path.parent.mkdir(exist_ok=True)
        before = label(path)
        assert call(source, "--pictures", "--labels", path) == 2
        assert f"{name} would replace an input" in capsys.readouterr().err
        assert path.read_bytes() == before
        path.unlink()
    path = tmp_path / "maps" / "x.view.png"
    write_raster(path, IMAGE, driver="PNG")
    before = path.read_bytes()
    assert call(source, path, "--pictures") == 2
    assert "x.view.png would replace an input" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert names(path.parent) == [path.name]
