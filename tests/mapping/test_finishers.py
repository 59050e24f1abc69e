"""A finisher, as doors add them to a call: files with each map, and work at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import DatasetError
from segmenter.grid.labels import ClassMap
from segmenter.mapping.finisher import Finisher
from segmenter.mapping.request.map_request import MapRequest
from segmenter.mapping.session import Mapped, map_rasters
from tests.helpers.exact_network import fake_load_predictor, fake_run


class _Sums:
    """Writes `STEM.sum.txt`, the sum of a map's class ids."""

    remark = "summed"

    def __init__(self, path: Path) -> None:
        self._path, self._sum = path, 0

    def add(self, ids: Any) -> None:
        self._sum += int(ids.sum())

    def finish(self) -> None:
        self._path.with_suffix(".half").write_text(str(self._sum))

    def publish(self) -> None:
        self._path.with_suffix(".half").replace(self._path)

    def discard(self) -> None:
        self._path.with_suffix(".half").unlink(missing_ok=True)


class Sums(Finisher):
    """Notes what it is asked."""

    def __init__(self, refuse: bool = False) -> None:
        self.asked: list[str] = []
        self._refuse = refuse

    def beside(self, call: Any, name: str, info: Any) -> tuple[Path, ...]:
        return (call.request.output / f"{name}.sum.txt",)

    def check(self, call: Any, jobs: Sequence[Any]) -> None:
        self.asked.append(f"check {len(jobs)}")
        if self._refuse:
            raise DatasetError("not like this")

    def companion(self, call: Any, job: Any) -> Any:
        return _Sums(job.unchecked[0])

    def restore(self, call: Any, job: Any) -> None:
        self.asked.append(f"restore {job.name}")

    def finish(self, call: Any, outcome: Any) -> list[Any]:
        self.asked.append(f"finish {len(outcome.written)}, {len(outcome.kept)}")
        return [DatasetError("a summary that failed")]

    def close(self) -> None:
        self.asked.append("close")


def test_a_finisher_works_with_each_map_and_at_the_end(
    tmp_path: Path,
    make_geotiff: Callable[..., Path],
    make_classes: Callable[..., ClassMap],
    monkeypatch: Any,
    rng: Any,
) -> None:
    monkeypatch.setattr("segmenter.inference.loading.load_predictor", fake_load_predictor)
    source = make_geotiff("in/a.tif", rng.integers(0, 255, (83, 57, 3), np.uint8))
    run: Any = fake_run(make_classes(7))
    request = MapRequest(Path("run"), tmp_path / "maps", (str(source),), window_size=64, batch=2)

    def mapped(finisher: Sums) -> Mapped:
        return map_rasters(request, run, finishers=[finisher])

    with pytest.raises(DatasetError, match="not like this"):
        mapped(refused := Sums(refuse=True))
    assert refused.asked == ["check 1", "close"]
    assert not (tmp_path / "maps").exists()

    done = mapped(first := Sums())
    (job,) = done.outcome.written
    assert first.asked == ["check 1", "finish 1, 0", "close"]
    assert [str(error) for error in done.failures] == ["a summary that failed"]
    assert done.outcome.warnings == ["summed"]
    names = {path.name for path in (tmp_path / "maps").iterdir() if path.name[0] != "."}
    assert names == {"a.tif", "a.sum.txt"}
    assert int((tmp_path / "maps" / "a.sum.txt").read_text()) > 0
    assert job.unchecked == (tmp_path / "maps" / "a.sum.txt",)

    mapped(again := Sums())
    assert again.asked == ["check 1", "restore a", "finish 0, 1", "close"]
