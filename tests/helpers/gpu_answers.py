"""Answers to questions of `segmenter gpu` in a test: one that is whole, one that hangs, one that fails."""

import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from datasets.commands.gpu.figures import Figure
from segmenter.base.errors import TrainingError


def figures(_: Any, how: str) -> Iterator[Figure]:
    print("a line of a library's")
    yield Figure("before", 1.0, told=True)
    if how == "hangs":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        yield Figure("child", float(child.pid))
        time.sleep(600)
    if how == "fails":
        raise TrainingError("out of everything")
