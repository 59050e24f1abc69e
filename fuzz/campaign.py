"""Campaign: cases for workers, their outcomes, and the files that are kept of findings."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from fuzz.own_time import OwnTime
from fuzz.worker import Case, Verdict

ROOT = Path(__file__).parents[1]
CLEAN = ("refused", "same", "other")
_KEPT = 3
"""Files that are kept of one mistake."""


@dataclass
class Process:
    """A worker, started when it is needed; a case that it does not survive is a finding like others."""

    table: str
    folder: Path
    seconds: float
    started: subprocess.Popen[bytes] | None = None

    def judge(self, case: Case) -> Verdict:
        """Wait for a case to end, or end it after so many seconds of its own."""
        process = self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asdict(case)).encode() + b"\n")
            process.stdin.flush()
        hangs = not self._answers(process)
        if hangs:
            process.send_signal(signal.SIGABRT)  # it tells where it is
        line = b"" if hangs else process.stdout.readline()
        if line.endswith(b"\n"):
            return Verdict(**json.loads(line))
        code = self.end()
        said = (self.folder / "stderr").read_text(errors="replace")[-4000:]
        if not (self.folder / "finding.json").exists():
            raise RuntimeError(f"{case.target}: no file was opened:\n{said}")
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        place = next((line.strip() for line in said.splitlines() if "segmenter" in line), "")
        return Verdict("hangs" if hangs else "died", f"{'no end' if hangs else name} {place}", said)

    def _answers(self, process: subprocess.Popen[bytes]) -> bool:
        answers = [process.stdout] if process.stdout is not None else []
        if select.select(answers, [], [], 1)[0]:
            return True
        clock = OwnTime(process.pid)
        while clock.seconds() < self.seconds:
            if select.select(answers, [], [], 0.5)[0]:
                return True
        return False

    def _process(self) -> subprocess.Popen[bytes]:
        if self.started is None:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
            command = [sys.executable, "-m", "fuzz.worker", self.table, str(self.folder)]
            environment = {
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                "MPLBACKEND": "Agg",
                "CPL_LOG": os.devnull,  # GDAL reads whatever the case holds
            }
            paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
            with (self.folder / "stderr").open("wb") as errors:
                self.started = subprocess.Popen(
                    command, cwd=self.folder, env=environment, stderr=errors,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
                )  # fmt: skip
        return self.started

    def end(self) -> int:
        """End the worker, if it has not ended; gives its exit code."""
        process, self.started = self.started, None
        if process is None:
            return 0
        assert process.stdin is not None
        with process, suppress(BrokenPipeError):
            process.stdin.close()  # the end of the cases
        return process.returncode


@dataclass
class Campaign:
    """Many cases.

    Attributes:
        table: module whose `TARGETS` are meant.
        found: folder for files that are kept.
        counts: (target, kind) → cases.
        findings: (target, kind, signature) → cases.
        signatures: the same → folders of cases that are kept.
        spent: target → seconds of workers.
    """

    table: str
    found: Path
    seconds: float = 20
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    signatures: dict[tuple[str, str, str], list[Path]] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def run(self, cases: Iterator[Case], workers: int) -> None:
        """Judge cases until there are no more."""
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder, ThreadPoolExecutor(workers) as threads:
            works = [threads.submit(self._work, cases, Path(folder) / str(i)) for i in range(workers)]
            try:
                for work in works:
                    work.result()
            finally:  # also at Ctrl-C
                self._ended.set()

    def judge(self, case: Case) -> Verdict:
        """One case, of which nothing is kept."""
        with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            process = Process(self.table, Path(folder) / "0", self.seconds)
            try:
                return process.judge(case)
            finally:
                process.end()

    def _work(self, cases: Iterator[Case], folder: Path) -> None:
        process = Process(self.table, folder, self.seconds)
        try:
            while not self._ended.is_set():
                with self._lock:
                    case = next(cases, None)
                if case is None:
                    return
                start = time.monotonic()
                self._note(case, process.judge(case), process.folder)
                with self._lock:
                    self.spent[case.target] += time.monotonic() - start
        finally:
            process.end()

    def _note(self, case: Case, verdict: Verdict, worker: Path) -> None:
        with self._lock:
            self.counts[case.target, verdict.kind] += 1
            if verdict.kind in CLEAN:
                return
            key = case.target, verdict.kind, verdict.signature
            self.findings[key] += 1
            kept = self.signatures.setdefault(key, [])
            if len(kept) < _KEPT and case.content is None:
                kept.append(keep(self.found, case, verdict, worker))


def keep(found: Path, case: Case, verdict: Verdict, worker: Path) -> Path:
    """Copy a case out of a worker's folder, with what came of it, to where `kept` finds it."""
    folder = found / f"{case.target}-{case.number}"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(worker / "content", folder / "content")
    facts = json.loads((worker / "finding.json").read_text())
    (folder / "finding.json").write_text(json.dumps({**facts, **asdict(verdict)}, indent=1))
    return folder


def kept(folder: Path) -> Case:
    """The case that was kept in a folder."""
    facts = json.loads((folder / "finding.json").read_text())
    return Case(facts["target"], 0, facts["file"], str((folder / "content").resolve()))
