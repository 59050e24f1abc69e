"""How tools are called, in a clone and installed; the wheel: what is in it, and that it needs no clone."""

import configparser
import email
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from datasets.commands import main
from datasets.commands import recipes as ready
from datasets.commands.gpu.command import EXIT_NOT_SHOWN
from datasets.commands.tools import TOOLS, module_of
from datasets.commands.train import main as train
from datasets.commands.train_options import TrainOptions
from segmenter.base import invocation
from segmenter.base.errors import ConfigError, DeviceError
from segmenter.base.invocation import ToolParser
from segmenter.base.options import add_options, parse_options
from segmenter.config.reading import load_recipe, recipe_from
from tests.helpers.made_training import made
from tests.helpers.refusals import refused

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As below the installed command."""
    monkeypatch.setattr(sys, "argv", ["/opt/venv/bin/segmenter", "train"])


def test_without_a_clone_hints_name_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["notebook"])
    assert invocation.invocation("train") == "python train.py"
    assert invocation.invocation("check") == "segmenter check"
    monkeypatch.setattr(invocation, "_CLONE", tmp_path)
    assert invocation.invocation("train") == "segmenter train"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("tool", [*TOOLS, "runs card", "runs stac", "runs pack", "runs unpack"])
def test_every_tool_answers_under_its_name_and_names_no_module(tool: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as end:
        main([*tool.split(), "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: segmenter {tool} ")
    assert "python -m" not in said


@pytest.mark.parametrize("tool", TOOLS)
def test_the_usual_calls_of_a_tool_can_be_typed(tool: str) -> None:
    parser = module_of(tool)._parser()
    assert len(parser.calls) > 1
    for words in parser.calls:
        parser.parse_args(shlex.split(words))
        assert f" {words}\n" in parser.format_help() or f" {words} " in parser.format_help()


def _tools(said: str) -> str:
    """Return the list of tools in the help text of the command."""
    return said.partition("\ntools:\n")[2].partition("\nusual calls:\n")[0]


def test_the_command_lists_its_tools(capsys: Any) -> None:
    assert main([]) == 2
    listed = [line.split()[0] for line in _tools(capsys.readouterr().err).splitlines()]
    assert listed == list(TOOLS)
    with pytest.raises(SystemExit) as end:
        main(["tain"])
    assert end.value.code == 2
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("datasets check", "check"),
        ("datasets coverage", "coverage"),
        ("datasets pack", "pack"),
        ("datasets make", "make"),
        ("datasets stitch", "stitch"),
        ("datasets augmented", "augmented"),
        ("vectorise", "vectors"),
    ],
)
def test_a_tool_of_an_older_name_is_the_one_of_today(before: str, now: str, capsys: Any) -> None:
    said = []
    for words in (before, now):
        with pytest.raises(SystemExit) as end:
            main([*words.split(), "--help"])
        assert end.value.code == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


OLD_CALLS = {
    "datasets": "",
    "segmenter.runs": "runs",
    "segmenter.devices": "devices",
    "segmenter.extras.vectors": "vectors",
    "segmenter.extras.accuracy": "accuracy",
    "segmenter.extras.export": "export",
    "segmenter.model.pretrained.convert": "convert-weights",
}
"""Module that was a tool once → the tool; that of `datasets` had several."""


@pytest.mark.parametrize("module", OLD_CALLS)
def test_a_module_that_was_called_leads_to_the_tool(module: str, tmp_path: Path) -> None:
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"], cwd=tmp_path, env=known, text=True, capture_output=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: segmenter {OLD_CALLS[module]}".rstrip())


@pytest.mark.parametrize("name", NAMES)
def test_a_copied_recipe_says_the_same_and_names_what_is_typed(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.yaml"  # a recipe without a name has that of its file
    assert ready.main([name, str(copy)]) == 0
    original = ready.ready_made()[name]
    assert load_recipe(copy, []) == load_recipe(original, [])
    text = copy.read_text(encoding="utf-8")
    assert not [old for old in ("python -m", "python train.py", "python predict.py") if old in text]
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

    monkeypatch.setattr("datasets.commands.vectors.main", stopped)
    before = signal.signal(signal.SIGTERM, lambda *_: removed.append("not heard"))
    try:
        assert main(["vectors"]) == 143
    finally:
        signal.signal(signal.SIGTERM, before)
    assert removed == ["half"]
    assert capsys.readouterr().err == "interrupted\n"


def test_the_page_on_installing_lists_all_tools_and_parts(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    main([])
    assert _tools(capsys.readouterr().err).rstrip() in page
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for_users = {"pretrained", "vectors", "remote", "cluster", "export", "notebook", "completion"}
    assert extras.keys() >= {"cpu", "gpu", *for_users}
    assert [name for name in sorted(for_users) if f"\n| `{name}` | " not in page] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train", "the following arguments are required: recipe"),
        ("train a.yaml --resum-from 3", "did you mean --resume-from?"),
        ("train a.yaml --epochs 3", "did you mean --set training.epochs=3?"),
        ("train a.yaml --tiles.size 64", "did you mean --set tiles.size=64?"),
        ("train a.yaml --resume --init-from b", "not allowed with"),
        ("train a.yaml --logical-devices 65", "invalid choice"),
        ("train a.yaml --index x", "--index: expected a whole number"),
        ("input a.yaml --need 0", "--need: expected a number above 0, got '0'"),
        (f"predict runs/a b.tif --output c --workers {10**30}", "--workers: expected a whole number, 1 … "),
        (f"export runs/a --format onnx --output c --size {10**30}", "--size: expected a whole number, 1 … "),
        ("vectors a.tif --output b.gpkg --simplify nan", "--simplify: expected a number from 0"),
        ("train a.yaml --qqq", "--qqq: there is no such option; --help"),
        ("chek a.yaml", "did you mean check?"),
        ("datasets chek a.yaml", "did you mean check?"),
        ("coverage a.yaml --min-pixels 9", "did you mean --set sampling.min_pixels=9?"),
        ("predict runs/a b.tif --outptu c", "did you mean --output?"),
        ("predict runs/a b.tif --window 64 --output c", "did you mean --window-size?"),
        ("predict runs/a b.tif", "required: --output"),
        ("start s3://bucket/a", "expected a path on this machine, got the address s3://bucket/a"),
        ("train a.yaml --run s3://bucket/a", "--run: expected a path on this machine"),
        ("predict runs/a b.tif --output c --vectors s3://b/a.gpkg", "--vectors: expected a path on this"),
        ("predict gs://bucket/a b.tif --output c", "expected a path on this machine"),
        ("predict runs/a b.tif --output c --labels s3://bucket/{stem}.tif", "--labels: expected a path on"),
        ("runs unpak a", "did you mean unpack?"),
        ("vectors --ouput a.gpkg b.tif", "did you mean --output?"),
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
    (tmp_path / "difflib.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, *script], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}, text=True,
        capture_output=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ([], {}),
        (["--folds"], {"folds": 0}),
        (["--folds", "3"], {"folds": 3}),
        (["--resume"], {"resume": True}),
        (["-s", "a=1", "--set", "b=2"], {"set": ("a=1", "b=2")}),
        (["--cluster", "a:1", "b:2"], {"cluster": ("a:1", "b:2")}),
    ],
    ids=" ".join,
)
def test_typed_options_are_fields_and_others_have_their_defaults(
    words: list[str], changes: dict[str, Any]
) -> None:
    found = parse_options(add_options(ToolParser(), TrainOptions), TrainOptions, ["a.yaml", *words])
    assert found == TrainOptions(recipe=Path("a.yaml"), **changes)


CANDIDATES = {
    "": set(TOOLS),
    "ch": {"check"},
    "coverage a.yaml --split ": {"train", "validation", "test"},
    "check a.yaml --js": {"--json"},
    "gpu --only wi": {"window"},
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


OF_A_CLONE = (
    *("benchmarks", "configs", "constraints", "datasets", "docs", "fuzz", "segmenter", "studies", "tests"),
    ".ci",
)
"""Folders of sources; beside them a clone has data, runs and an environment."""
BUILD = """
import sys
from setuptools import build_meta
getattr(build_meta, sys.argv[1])(sys.argv[2])
"""
START = """
import sys
from segmenter_datasets.commands import main
sys.argv[0] = "segmenter"
sys.exit(main())
"""
"""The installed command."""
IMPORT_ALL = """
import importlib, pathlib, sys
root = pathlib.Path(sys.argv[1])
missing = set()
for path in sorted(root.glob("segmenter*/**/*.py")):
    parts = path.relative_to(root).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:  # of an extra
        missing.add(str(error.name).partition(".")[0])
    else:
        assert module.__file__ == str(path), module.__file__
ours = {"segmenter", "segmenter_datasets", "datasets", "benchmarks", "fuzz", "tests", "train", "predict"}
assert not missing & ours, missing
assert not {name for name in sys.modules if name.partition(".")[0] == "datasets"}
print("all imported")
"""
"""Also: the loaders' modules are there under one name."""


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    for name in OF_A_CLONE:
        left_out = shutil.ignore_patterns("__pycache__", "found")
        shutil.copytree(ROOT / name, folder / "clone" / name, ignore=left_out)
    for path in ROOT.iterdir():
        if path.is_file() and path.name != ".git":  # a file in a linked worktree
            shutil.copy(path, folder / "clone")
    _build("build_sdist", folder / "clone", folder)
    (packed,) = folder.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4
        archive.extractall(folder)
    return folder / packed.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def unpacked(sources: Path) -> Path:
    """A folder to import the wheel of that source distribution from, as pip builds it."""
    target = sources.parent / "wheel"
    target.mkdir()
    _build("build_wheel", sources, target)
    (wheel,) = target.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target / "unpacked")
    return target / "unpacked"


def _build(what: str, source: Path, target: Path) -> None:
    command = [sys.executable, "-c", BUILD, what, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _files(folder: Path) -> dict[str, bytes]:
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not {"__pycache__", "node_modules"} & set(path.parts)
    }
    assert found, folder
    return found


def test_the_wheel_has_every_file_of_the_clone_as_it_is_and_nothing_else(unpacked: Path) -> None:
    """Also what is no module; no `datasets`, a well-known package's name, and no tests."""
    assert _files(unpacked / "segmenter") == _files(ROOT / "segmenter")
    recipes = {f"recipes/{name}": content for name, content in _files(ROOT / "configs").items()}
    assert _files(unpacked / "segmenter_datasets") == {**_files(ROOT / "datasets"), **recipes}
    names = {path.name for path in unpacked.iterdir()}
    assert names == {"segmenter", "segmenter_datasets", *(n for n in names if n.endswith(".dist-info"))}


def test_the_source_distribution_has_what_a_clone_has(sources: Path) -> None:
    for name in ("train.py", "predict.py", "setup.py", "Makefile", "Dockerfile", "LICENSE"):
        assert (sources / name).read_bytes() == (ROOT / name).read_bytes()
    for folder in ("configs", "constraints", "datasets", "docs", "tests"):
        mine = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.*") if path.suffix != ".pyc"}
        assert {path for path in mine if not (sources / path).exists()} == set()


def test_an_image_is_built_from_every_file_that_the_wheel_has() -> None:
    """Links among the packages lead to files that `.dockerignore` lets in."""
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    packages = [ROOT / "segmenter", ROOT / "datasets", ROOT / "configs"]
    files = {path.resolve().relative_to(ROOT) for folder in packages for path in folder.rglob("*.*")}
    assert {path.parts[0] for path in files} <= let_in


def test_the_wheels_metadata(unpacked: Path) -> None:
    (folder,) = unpacked.glob("*.dist-info")
    metadata = email.message_from_bytes((folder / "METADATA").read_bytes())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert (folder / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert {"cpu", "gpu", "cluster"} <= set(metadata.get_all("Provides-Extra", []))
    scripts = configparser.ConfigParser()
    scripts.read_string((folder / "entry_points.txt").read_text())
    assert dict(scripts["console_scripts"]) == {"segmenter": "segmenter_datasets.commands:main"}


@pytest.mark.slow
def test_every_module_of_the_wheel_can_be_imported(unpacked: Path, tmp_path: Path) -> None:
    done = _away(["-c", IMPORT_ALL, str(unpacked)], unpacked, tmp_path)
    assert (done.returncode, done.stdout) == (0, "all imported\n"), done.stderr


@pytest.mark.slow
def test_the_command_of_the_wheel_needs_no_clone(unpacked: Path, tmp_path: Path) -> None:
    done = _away(["-c", START, "recipes"], unpacked, tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == sorted(
        path.stem for path in (ROOT / "configs").glob("*.yaml")
    )
    done = _away(["-c", START, "check", "nothing.yaml"], unpacked, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "`segmenter recipes`" in done.stderr
    for old in ("segmenter.runs", "segmenter_datasets"):
        done = _away(["-m", old, "--help"], unpacked, tmp_path)
        assert done.stdout.startswith("usage: segmenter ")


@pytest.mark.slow
def test_the_gpu_command_of_the_wheel_needs_no_clone(unpacked: Path, tmp_path: Path) -> None:
    done = _away(["-c", START, "gpu", "--tiny", "--output", str(tmp_path / "measured")], unpacked, tmp_path)
    assert done.returncode == EXIT_NOT_SHOWN, done.stdout + done.stderr  # what needs a card
    assert {"gpu.html", "gpu.json"} <= {path.name for path in (tmp_path / "measured").iterdir()}


def _away(words: list[str], packages: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python in an empty folder, which finds our packages in `packages` only."""
    environment = {**os.environ, "PYTHONPATH": str(packages), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _tool(packages: Path, folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    done = _away(["-c", START, *words], packages, folder)
    assert done.returncode in codes, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_checks_trains_maps_and_draws_polygons(unpacked: Path, tmp_path: Path) -> None:
    recipe = made(tmp_path / "data")
    assert "segmenter 0" in _tool(unpacked, tmp_path, "--version")
    _tool(unpacked, tmp_path, "make", "naic2020", "tiles", "--scenes", "12", "--seed", "1")
    _tool(unpacked, tmp_path, "recipes", "naic2020", "tiles.yaml")
    settings = ("--set", "dataset.root=tiles")
    said = _tool(unpacked, tmp_path, "check", "tiles.yaml", *settings, codes=(0, 1))
    assert said.startswith("naic2020-round1: 12 scenes ")  # so few may lack a class, which is a finding
    short = ("--set", "training.epochs=1", "--set", "training.input_workers=2")
    said = _tool(unpacked, tmp_path, "train", str(recipe), "--run", "run", *short)
    assert said.endswith(
        "done: run holds the run; map rasters with: segmenter predict run INPUT --output DIR\n"
    )
    _tool(unpacked, tmp_path, "predict", "run", "data/images", "--output", "maps")
    assert len(list((tmp_path / "maps").glob("s?.tif"))) == 5
    _tool(unpacked, tmp_path, "vectors", "maps", "--output", "areas.gpkg")
    assert (tmp_path / "areas.gpkg").stat().st_size > 0
    assert {path.name for path in tmp_path.iterdir()} >= {"run", "maps", "areas.gpkg"}
