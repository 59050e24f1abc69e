"""Workers of this machine: nothing of them is told to its other users."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from segmenter.extras.dask.connect import connected
from segmenter.extras.dask.options import ClusterOptions

PAGES = (
    "",
    "status",
    "health",
    "metrics",
    "info/main/workers.html",
    "json/identity.json",
    "json/counts.json",
)


@pytest.mark.slow
def test_no_port_answers_over_plain_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with connected(ClusterOptions(workers=1)):
        me = psutil.Process()
        found = [c for p in (me, *me.children(recursive=True)) for c in p.net_connections("inet")]
        ports = {one.laddr.port for one in found if one.status == "LISTEN"}
        assert {one.laddr.ip for one in found if one.status == "LISTEN"} == {"127.0.0.1"}
        for port in ports:
            for page in PAGES:
                with pytest.raises((urllib.error.URLError, OSError)):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}")
    assert ports
    assert list(tmp_path.glob(".segmenter*")) == []
