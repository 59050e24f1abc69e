"""Files of arrays from elsewhere cost no more than their size, and are quoted in few words."""

from __future__ import annotations

import copy
import zipfile
from pathlib import Path
from typing import Any

import pytest

from segmenter.base.errors import DamagedCheckpointError
from segmenter.runs.checkpoints import load_arrays
from tests.helpers.made_runs import crafted


@pytest.mark.parametrize(
    ("same", "message"), [(True, "a part is named twice"), (False, "larger than the file")]
)
def test_a_part_that_is_named_two_thousand_times_is_not_read(
    tmp_path: Path, monkeypatch: Any, same: bool, message: str
) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", bytes(10**5))
        part = archive.filelist[0]
        for i in range(2000):
            archive.filelist.append(copy.copy(part))
            archive.filelist[-1].filename = "a.npy" if same else f"{i}.npy"
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("read"))
    with pytest.raises(DamagedCheckpointError, match=message):
        load_arrays(path)


def test_what_is_quoted_of_a_file_is_short(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(crafted("{" + "'descr'," * 1000, 1))
    with pytest.raises(DamagedCheckpointError) as caught:
        load_arrays(path)
    assert len(str(caught.value)) < len(str(path)) + 400
