"""A training whose imagery lies behind a server: the weights of one that has it on the disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.file_server import FileServer
from tests.helpers.made_training import made, train


@pytest.mark.slow
def test_a_training_over_urls_gives_the_bits_of_a_local_one(server: FileServer, tmp_path: Path) -> None:
    """Also by worker processes, where a tenth of the answers are cut off; the run holds no signature."""
    recipe = made(server.folder / "data")
    files = [p.relative_to(server.folder / "data").as_posix() for p in (server.folder / "data").rglob("*.*")]
    (tmp_path / "files.txt").write_text("\n".join(name for name in files if ".tile-index" not in name))
    train(recipe, "--run", str(tmp_path / "local"))
    server.fault = lambda number, path: "cut" if number % 10 == 7 else None
    remote = (
        *("--set", f"dataset.root={server.url('data?signature=n0t-t0-be-seen')}"),
        *("--set", f"dataset.files={tmp_path / 'files.txt'}"),
        *("--set", f"dataset.cache={tmp_path / 'cache'}"),
        *("--set", "training.input_workers=2"),
    )
    said = train(recipe, "--run", str(tmp_path / "remote"), *remote).stdout
    assert len(server.asked) > 10
    with np.load(tmp_path / "local/best.npz") as local, np.load(tmp_path / "remote/best.npz") as other:
        weights = [name for name in local.files if local[name].dtype.kind == "f"]
        assert weights
        for name in weights:
            np.testing.assert_array_equal(local[name], other[name], err_msg=name)
    texts = [path.read_bytes() for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    assert not any(b"n0t-t0-be-seen" in text for text in [*texts, said.encode()])
