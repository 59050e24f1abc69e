"""Steps are not timed by each plan: `test_timing.py` does it once."""

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from datasets.start import timing
from segmenter.base.files import caches
from tests.helpers import made_folders as made


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Take a second for each measured step; return the measurements so far."""
    calls: list[float] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(timing, "measure_step", lambda recipe: calls.append(1.0) or 1.0)
    return calls


@pytest.fixture
def cache(timed: list[float]) -> Path:
    """Folder of this program in the user's cache."""
    return caches()


@pytest.fixture
def data(
    tensorflow: ModuleType, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A folder `town` beside the current folder's recipe, relative to it."""
    monkeypatch.chdir(tmp_path)
    for i in range(4):
        made.save(tmp_path / f"town/im/s{i}.tif", made.image(rng), **made.place(i * made.SIZE[1]))
        made.save(
            tmp_path / f"town/gt/s{i}.tif", made.label([0, 1, 4], shift=i), **made.place(i * made.SIZE[1])
        )
    return Path("town")
