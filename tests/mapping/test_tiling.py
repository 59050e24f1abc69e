"""The tiling that follows from a call: what no machine can compute is refused before anything is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from segmenter.base.errors import ConfigError
from segmenter.grid.geometry import Size
from segmenter.grid.labels import ClassMap
from segmenter.mapping.call import Call
from segmenter.mapping.computing import tiling_for
from segmenter.mapping.request.map_request import MapRequest
from segmenter.model.receptive_field import NetworkGeometry
from tests.helpers.exact_network import fake_run


@pytest.mark.parametrize("mode", [None, "exact", "smooth"])
def test_scales_whose_windows_no_machine_holds_are_refused_in_one_line(
    mode: Any, make_classes: Callable[..., ClassMap], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They meet every 2,306,304 pixels, to which each raster is padded, however small it is."""
    monkeypatch.setattr("segmenter.inference.memory.smallest_card", lambda: None)
    run: Any = fake_run(make_classes(6), network=NetworkGeometry(16, 94, 650.0))
    jobs: Any = [SimpleNamespace(info=SimpleNamespace(dtype="uint8"), seen=Size(500, 500), grid=None)]

    def tiling(tta: str) -> Any:
        request = MapRequest(Path("run"), Path("maps"), ("in",), mode=mode, tta=tta)
        return tiling_for(Call.of(request, run), jobs)

    with pytest.raises(
        ConfigError, match=r"windows of 2306304×2306304 pixels: one takes .*GB.* --tta"
    ) as said:
        tiling("5/16,5/13,5/11,5/9,5/7")
    assert "\n" not in str(said.value)
    assert tiling("scales").stride == 64
