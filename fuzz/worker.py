"""Worker process that opens changed files and reports the outcome of each: `python -m fuzz.worker`.

Reads cases as lines of JSON from its input, writes verdicts as lines of JSON. If it dies, the case did it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import io
import json
import os
import resource
import shutil
import sys
import traceback
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fuzz.mutations import mutant
from fuzz.target import Facts, Target
from segmenter.base.errors import SegmenterError

LONGEST_LINE = 2000
"""Characters of what is said of a file; longer ones bury what they say."""
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """A changed file: a number stands for the changes; `content` for a file that was kept."""

    target: str
    number: int
    file: int = 0
    content: str | None = None


@dataclass(frozen=True)
class Verdict:
    """What came of a case.

    Attributes:
        kind: refused, same, other; or a finding: raised, memory, long line, raw text, other content.
        signature: the same for the same mistake, as far as can be told.
        said: the error's text, or the traceback.
    """

    kind: str
    signature: str = ""
    said: str = ""


class Worker:
    """Keeps each target's whole files, and puts them back before each case."""

    def __init__(self, table: str, folder: Path) -> None:
        self._targets: dict[str, Target] = importlib.import_module(table).TARGETS
        self._folder = folder
        self._made: dict[str, list[bytes]] = {}
        self._expected: dict[tuple[str, int], Facts | None] = {}

    def judge(self, case: Case) -> Verdict:
        """Open one changed file."""
        (self._folder / "finding.json").unlink(missing_ok=True)
        limit_memory(None)  # whole files may load libraries
        target, seeds = self._targets[case.target], self._seeds(case.target)
        index = case.file if case.content is not None else case.number % len(seeds)
        expected = self._facts(case.target, index)
        file = self._fresh(case.target)[index]
        if case.content is not None:
            content = Path(case.content).read_bytes()
        else:
            content = mutant(seeds[index], seeds, target.tokens, case.number)
        if content in seeds:  # a whole file in the place of another: what it says is no damage
            expected = self._facts(case.target, seeds.index(content))
            file = self._fresh(case.target)[index]
        file.write_bytes(content)
        # For who asks what it was when this process has died.
        (self._folder / "content").write_bytes(content)
        facts = {"target": case.target, "file": index, "name": str(file.relative_to(self._at(case.target)))}
        (self._folder / "finding.json").write_text(json.dumps(facts))
        limit_memory(target.gigabytes)
        return judged(target, file, expected)

    def _at(self, name: str) -> Path:
        # The caches are named by the paths of what they keep: made and used in one place.
        return self._folder / name / "case"

    def _seeds(self, name: str) -> list[bytes]:
        if name not in self._made:
            folder = self._at(name)
            folder.mkdir(parents=True)
            self._targets[name].make(folder)
            self._made[name] = [path.read_bytes() for path in self._targets[name].files(folder)]
            assert self._made[name], f"{name}: no file to change"
            shutil.copytree(folder, folder.with_name("whole"), symlinks=True)
        return self._made[name]

    def _fresh(self, name: str) -> list[Path]:
        """The files to change, whole, with all that is beside them."""
        folder = self._at(name)
        shutil.rmtree(folder)
        shutil.copytree(folder.with_name("whole"), folder, symlinks=True)
        return self._targets[name].files(folder)

    def _facts(self, name: str, index: int) -> Facts | None:
        """What is read of the whole file; None where even that is refused."""
        if (name, index) not in self._expected:
            try:
                found: Facts | None = quietly(self._targets[name], self._fresh(name)[index])[0]
            except SegmenterError:
                found = None
            self._expected[name, index] = found
        return self._expected[name, index]


def quietly(target: Target, file: Path) -> tuple[Facts, str]:
    """What is read, and what is said meanwhile."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return target.read(file), said.getvalue()


def judged(target: Target, file: Path, expected: Facts | None) -> Verdict:
    """Open a file and judge what comes of it."""
    try:
        found, said = quietly(target, file)
    except SegmenterError as error:
        return _of_text(str(error), "refused")
    except MemoryError:
        return Verdict("memory", f"memory {_place()}", traceback.format_exc())
    except Exception as error:
        return Verdict("raised", f"{type(error).__name__} {_place()}", traceback.format_exc())
    for line in said.splitlines():
        verdict = _of_text(line, "same")
        if verdict.kind != "same":
            return verdict
    if expected is None or target.fits(found, expected):
        return Verdict("same")
    return Verdict("other content" if target.checksum else "other", "accepted with another content")


def _of_text(text: str, kind: str) -> Verdict:
    """Of an error, or of a line on the screen: it must be one short line that a terminal can take."""
    if len(text) > LONGEST_LINE:
        return Verdict("long line", f"{len(text) // 1000}000 characters", text[:3000])
    if not text.isprintable():
        return Verdict("raw text", "a line with control characters", ascii(text))
    return Verdict(kind, "", text)


def _place() -> str:
    """The innermost line of ours that an exception came through."""
    frames = traceback.extract_tb(sys.exc_info()[2])
    ours = [f for f in frames if f.filename.startswith(f"{_ROOT}/") and "site-packages" not in f.filename]
    last = (ours or frames)[-1]
    return f"{Path(last.filename).name}:{last.name}"


def limit_memory(gigabytes: float | None) -> None:
    """From here on, the process gets so much more; None: as much as it likes."""
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    there = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = hard if gigabytes is None else there + int(gigabytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def main(table: str, folder: Path) -> None:
    """Answer until there are no more cases."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    worker = Worker(table, folder)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        verdict = worker.judge(Case(**request))
        answers.write(json.dumps(asdict(verdict)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
