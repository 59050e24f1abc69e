"""A run that was described, and the same one packed."""

from pathlib import Path

import pytest

from segmenter.extras.sharing.archive import pack_run
from tests.helpers.made_described import described_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return described_run(tmp_path_factory.mktemp("sharing") / "run")


@pytest.fixture(scope="module")
def packed(run: Path) -> Path:
    output = run.parent / "mine.run.zip"
    pack_run(run, output, with_checkpoints=True)
    return output
