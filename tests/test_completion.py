"""Completion in shells: candidates that bash itself gets from the printed script."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from datasets.commands import main
from segmenter.base.invocation import TOOLS

CANDIDATES = {
    "": set(TOOLS),
    "datasets c": {"check", "coverage"},
    "datasets coverage a.yaml --split ": {"train", "validation", "test"},
    "datasets check a.yaml --js": {"--json"},
    "gpu --only eq": {"equivalence"},
    "train --resum": {"--resume", "--resume-from"},
    "train m": {"mine.yaml", "maps"},
    "train mine.yaml --init-from ma": {"maps"},
    "predict maps mi": {"mine.yaml"},
    "predict maps mine.yaml --output ma": {"maps"},
    "runs unpack mi": {"mine.yaml"},
    "completion ": {"bash", "zsh", "tcsh", "fish"},
}
"""Words typed behind `segmenter`, the last one being completed, in a folder with mine.yaml and maps/."""


def test_without_the_package_a_line_names_it(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), "shtab" in err) == ("", 1, True)


def test_bash_completes_tools_options_choices_and_files(tmp_path: Path, capsys: Any) -> None:
    shtab = pytest.importorskip("shtab", reason="the extra `completion` is not installed")
    if (bash := shutil.which("bash")) is None:
        pytest.skip("there is no bash")
    assert set(shtab.SUPPORTED_SHELLS) >= CANDIDATES["completion "]
    assert main(["completion", "bash"]) == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    (tmp_path / "mine.yaml").touch()
    (tmp_path / "maps").mkdir()
    lines = ["source ./script", "complete -p segmenter"]
    for typed in CANDIDATES:
        words = ["segmenter", *typed.split(" ")]
        lines += [f"COMP_WORDS=({shlex.join(words)}) COMP_CWORD={len(words) - 1}", "_shtab_segmenter"]
        lines.append('echo "${COMPREPLY[*]}"')
    done = subprocess.run([bash, "-c", "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True)
    registered, *told = done.stdout.splitlines()
    assert (registered.split()[-2:], done.stderr) == (["_shtab_segmenter", "segmenter"], "")
    assert {typed: set(line.split()) for typed, line in zip(CANDIDATES, told, strict=True)} == CANDIDATES
