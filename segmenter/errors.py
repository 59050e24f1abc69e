"""The errors that a user can cause: one root, one child per thing that can be wrong.

A message says what was expected, what came, where, and what to do. Anything else that is raised is a
defect of the program, and keeps its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

EXIT_SOME_FAILED = 1
EXIT_WRONG_CALL = 2
EXIT_INTERRUPTED = 130


class SegmenterError(Exception):
    """Root of all errors that are the user's to mend; its text is one clear line."""


class ConfigError(SegmenterError):
    """A recipe has an unknown key, a wrong unit or an impossible combination."""


class DatasetError(SegmenterError):
    """Files of a dataset are missing, unpaired, of unequal size or in the wrong place."""


class LabelError(SegmenterError):
    """A label raster holds a value or colour that the class map does not know."""


class RasterError(SegmenterError):
    """A raster cannot be opened, read or written, or does not have what the run needs."""


class DeviceError(SegmenterError):
    """Devices asked for are not there, can no longer be set up, or have too little memory."""


class CheckpointError(SegmenterError):
    """A run directory or checkpoint is missing, damaged or does not fit."""


class ScoreError(SegmenterError):
    """Scores are asked for under a protocol that the data do not fit, or of two different protocols."""


class TrainingError(SegmenterError):
    """Training cannot go on: the loss is not finite, or a class was not in a step that promised it."""


def run_script(main: Callable[[], int]) -> int:
    """Run a script's `main`; a user's error becomes one line on stderr and exit code 2, Ctrl-C 130."""
    try:
        return main()
    except SegmenterError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_WRONG_CALL
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
