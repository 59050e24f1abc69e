"""Contents of a packed run: one zip file, uncompressed, with a checksum of every file in it.

    SHA256SUMS   the checksum of each other file, as `sha256sum --check` reads it
    pack.json    format, name, which file predicts, what was left out
    …            files of the run directory (`RUN_FILES`), its model card and STAC item

Nothing in it is compressed, and no time and no owner is written: the same run gives the same bytes, and
what comes out is never larger than the file.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from segmenter.base.errors import CheckpointError
from segmenter.extras.sharing.card import FILE as CARD
from segmenter.extras.sharing.stac import FILE as STAC
from segmenter.runs.checkpoints import BEST
from segmenter.runs.log import LOG
from segmenter.runs.origin import FILE as ORIGIN
from segmenter.runs.run import RUN_FILE
from segmenter.runs.score_files import BEST_FILES, LAST_FILES, SUMMARY
from segmenter.runs.windows_file import WINDOWS

FORMAT = 1
SUMS, MANIFEST = "SHA256SUMS", "pack.json"
RECIPE, SCENES, REPORT = "recipe.yaml", "scenes.json", "report.html"
RUN_FILES = (
    *(RUN_FILE, RECIPE, SCENES, ORIGIN, *BEST_FILES, SUMMARY, *LAST_FILES),
    *("learning_curves.png", LOG, REPORT, WINDOWS),
)
"""Files of a run that are packed where they are there, beside weights and checkpoints. Not `validation.json`:
its paths lead nowhere elsewhere."""
NEEDED = (SUMS, MANIFEST, RUN_FILE, RECIPE)
MOST_FILES = 10_000
_STEP = re.compile(r"checkpoints/step-\d{1,15}\.npz")
_SUM = re.compile(r"([0-9a-f]{64})  ([^\n]+)")


class Manifest(BaseModel):
    """Content of pack.json.

    Attributes:
        format: of the packed run.
        name: of the run.
        weights: the file that predicts.
        fingerprint: of the weights that predict (`known.Known`).
        checkpoints: whether training can go on.
        anonymous: paths of the owner's machine were left out.
        program: version that packed it.
    """

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    format: Literal[1] = 1
    name: str = Field(min_length=1, max_length=1000)
    weights: str = Field(max_length=100)
    fingerprint: str = Field(pattern="^[0-9a-f]{64}$")
    checkpoints: bool
    anonymous: bool
    program: str = Field(max_length=100)


def may_be_packed(name: str) -> bool:
    """Whether a packed run may hold a file of this name: a list, so that no name leads elsewhere."""
    return name in (SUMS, MANIFEST, BEST, CARD, STAC, *RUN_FILES) or _STEP.fullmatch(name) is not None


def sums_text(sums: dict[str, str]) -> bytes:
    """The list of checksums, by name."""
    return "".join(f"{sums[name]}  {name}\n" for name in sorted(sums)).encode()


def parsed_sums(text: bytes) -> dict[str, str]:
    """Name → SHA-256 of a list of checksums.

    Raises:
        CheckpointError: a line is none, or a name is in it twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.decode("ascii", "replace").splitlines(), 1):
        match = _SUM.fullmatch(line)
        if match is None or match[2] in found:
            raise CheckpointError(f"{SUMS}, line {number}: expected a checksum and a name, each once")
        found[match[2]] = match[1]
    return found
