"""How tools are called, in a clone and installed: options, completion, ready-made recipes."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from datasets.commands import main
from datasets.commands import recipes as ready
from datasets.commands.train import main as train
from segmenter.base import invocation
from segmenter.base.errors import ConfigError, DeviceError
from segmenter.base.invocation import TOOLS, ToolParser
from segmenter.base.options import add_options, option, parsed
from segmenter.config.reading import load_recipe, recipe_from
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As below the installed command."""
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/segmenter", "train"])


def test_without_a_clone_hints_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["notebook"])
    monkeypatch.setattr(invocation, "_CLONE", tmp_path)
    assert invocation.invocation("datasets") == "segmenter datasets"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("tool", [*TOOLS, "runs card", "runs stac", "runs pack", "runs unpack"])
def test_every_tool_answers_under_its_name_and_names_no_module(tool: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main([*tool.split(), "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: segmenter {tool} ")
    assert "python -m" not in said


def test_the_command_lists_its_tools(capsys: Any) -> None:
    assert main([]) == 2
    listed = [line.split()[0] for line in capsys.readouterr().err.partition("tools:\n")[2].splitlines()]
    assert listed == list(TOOLS)
    with pytest.raises(SystemExit) as end:
        main(["tain"])
    assert end.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize("name", NAMES)
def test_a_copied_recipe_says_the_same_and_names_what_is_typed(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.yaml"  # a recipe without a name has that of its file
    assert ready.main([name, str(copy)]) == 0
    original = ready.ready_made()[name]
    assert load_recipe(copy, []) == load_recipe(original, [])
    text = copy.read_text(encoding="utf-8")
    assert not [tool for tool in TOOLS.values() if tool.typed and tool.typed in text]
    if "python train.py" in original.read_text(encoding="utf-8"):
        assert f"segmenter train {copy}" in text


def test_a_recipe_is_copied_beside_where_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert ready.main(["folder"]) == 0
    (tmp_path / "folder.yaml").write_text("mine")
    with refused(ConfigError, where="folder.yaml", fault="exists already"):
        ready.main(["folder"])
    assert (tmp_path / "folder.yaml").read_text() == "mine"
    with refused(ConfigError, where="a/b.yaml"):
        ready.main(["folder", "a/b.yaml"])
    with refused(ConfigError, where="fold", expected="recipes demo"):
        ready.main(["fold"])


@pytest.mark.usefixtures("installed")
def test_a_training_without_tensorflow_ends_before_the_data_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.main(["naic2020", str(tmp_path / "a.yaml")])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with refused(DeviceError, fault="TensorFlow"):
        train([str(tmp_path / "a.yaml"), "--set", f"dataset.root={tmp_path / 'nothing'}"])


def test_kill_ends_an_installed_tool_as_it_ends_one_of_a_clone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is half-written is removed on the way out, which the signal's own end would skip."""
    removed = []

    def stopped(words: Sequence[str]) -> int:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            removed.append("half")
        return 0

    monkeypatch.setattr("segmenter.extras.vectors.__main__.main", stopped)
    before = signal.signal(signal.SIGTERM, lambda *_: removed.append("not heard"))
    try:
        assert main(["vectorise"]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert removed == ["half"]
    assert capsys.readouterr().err == "interrupted\n"


def test_the_page_on_installing_lists_all_tools_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    main([])
    assert capsys.readouterr().err.partition("\ntools:\n")[2].rstrip() in page
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for_users = {"report", "pretrained", "vectors", "remote", "cluster", "export", "notebook", "completion"}
    assert extras.keys() >= {"cpu", "gpu", *for_users}
    assert [name for name in sorted(for_users) if f"\n| `{name}` | " not in page] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train", "the following arguments are required: recipe"),
        ("train a.yaml --resum-from 3", "did you mean --resume-from?"),
        ("train a.yaml --epochs 3", "did you mean --set training.epochs=3?"),
        ("train a.yaml --tiles.size 64", "did you mean --set tiles.size=64?"),
        ("train a.yaml --qqq", "--qqq: there is no such option; --help"),
        ("datasets chek a.yaml", "did you mean check?"),
        ("datasets coverage a.yaml --min-pixels 9", "did you mean --set sampling.min_pixels=9?"),
        ("predict runs/a b.tif --outptu c", "did you mean --output?"),
        ("predict runs/a b.tif --window 64 --output c", "did you mean --window-size?"),
        ("predict runs/a b.tif", "required: --output"),
        ("runs unpak a", "did you mean unpack?"),
        ("vectorise --ouput a.gpkg b.tif", "did you mean --output?"),
        ("convert-weights a.pth", "required: out"),
        ("recipes --al", "no such option"),
        ("tain a.yaml", "did you mean train?"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(words: str, said: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: ")
    assert said in err


def test_a_beginning_of_an_option_and_what_follows_two_dashes_are_taken() -> None:
    parser = invocation.ToolParser()
    parser.add_argument("files", nargs="*")
    parser.add_argument("--profile", action="store_true")
    assert parser.parse_args(["a.yaml", "--profil"]).profile
    assert parser.parse_args(["--", "--odd.tif"]).files == ["--odd.tif"]


def test_a_resolved_recipe_can_be_had_as_json(capsys: Any) -> None:
    recipe = ROOT / "configs" / "naic2020.yaml"
    assert train([str(recipe), "--set", "training.epochs=3", "--print-config", "--json"]) == 0
    told = recipe_from(json.loads(capsys.readouterr().out), "JSON")
    assert told == load_recipe(recipe, ["training.epochs=3"])


@pytest.mark.parametrize(
    "script",
    [
        *(["train.py"], ["-m", "datasets"], ["-m", "segmenter.devices"]),
        ["-c", "import sys; from datasets.commands import main; sys.exit(main(['train']))"],
        pytest.param(["predict.py"], marks=pytest.mark.slow),
        *(
            pytest.param(["-m", f"segmenter.{name}"], marks=pytest.mark.slow)
            for name in ("runs", "extras.export", "extras.vectors", "model.pretrained.convert")
        ),
    ],
    ids=lambda words: words[-1][:30],
)
def test_ctrl_c_while_libraries_are_imported_is_one_word(script: list[str], tmp_path: Path) -> None:
    """A module of Python that all scripts import stands for them: the signal comes in the midst of it."""
    (tmp_path / "difflib.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, *script], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
        capture_output=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@dataclass(frozen=True, kw_only=True)
class Inner:
    depth: int = option(2, "levels", "N")
    sides: tuple[float, float] | None = option(None, "of the box", ("WIDTH", "HEIGHT"))


@dataclass(frozen=True, kw_only=True)
class Outer:
    source: Path = option(..., "to read", positional=True)
    more: tuple[Path, ...] = option((), "read too", positional=True, several=True)
    folds: int | None = option(None, "how many", "K", alone=0, among=range(5))
    fast: bool = option(False, "less exact", one_of="speed")
    slow: bool = option(False, "exact", one_of="speed")
    keep: tuple[Path, ...] = option((), "again", again=True, short="-k")
    inner: Inner = field(default_factory=Inner)
    perhaps: Nested | None = None


@dataclass(frozen=True, kw_only=True)
class Nested:
    workers: int | None = option(None, "processes", "N")


def read(*words: str) -> Outer:
    return parsed(add_options(ToolParser(), Outer), Outer, words)


def test_untyped_options_have_the_defaults_of_their_fields() -> None:
    assert read("a.tif") == Outer(source=Path("a.tif"))
    assert read("a.tif").perhaps is None


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["b.tif", "c.tif"], {"more": (Path("b.tif"), Path("c.tif"))}),
        (["--folds"], {"folds": 0}),
        (["--folds", "3"], {"folds": 3}),
        (["--slow"], {"slow": True}),
        (["-k", "x", "--keep", "y"], {"keep": (Path("x"), Path("y"))}),
        (["--depth", "5", "--sides", "1.5,2"], {"inner": Inner(depth=5, sides=(1.5, 2.0))}),
        (["--workers", "2"], {"perhaps": Nested(workers=2)}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_typed_options_are_fields_also_of_what_lies_within(words: list[str], changes: dict[str, Any]) -> None:
    assert read("a.tif", *words) == Outer(source=Path("a.tif"), **changes)


@pytest.mark.parametrize("typed", ["", "a --folds 5", "a --fast --slow", "a --depth x", "a --sides 1"])
def test_a_wrong_command_line_ends_with_code_2(typed: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        read(*typed.split())
    assert (end.value.code, capsys.readouterr().err.count("\n")) == (2, 1)


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
