"""Steps are not timed by each plan: `test_timing.py` does it once."""

from pathlib import Path

import pytest

from datasets.start import timing


@pytest.fixture(autouse=True)
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """Take a second for each measured step; return the measurements so far."""
    calls: list[float] = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(timing, "measured", lambda recipe: calls.append(1.0) or 1.0)
    return calls


@pytest.fixture
def cache(timed: list[float]) -> Path:
    """Folder of this program in the user's cache."""
    from segmenter.base.files import caches

    return caches()
