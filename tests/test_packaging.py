"""The wheel: what is in it, what it starts, and that it works in a folder of its own, without a clone."""

import ast
import configparser
import email
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from segmenter.base.invocation import TOOLS
from tests.helpers.made_training import made

ROOT = Path(__file__).parents[1]
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
        archive.extractall(folder, filter="data")
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
        if path.is_file() and "__pycache__" not in path.parts
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


def test_the_wheels_metadata(unpacked: Path) -> None:
    (folder,) = unpacked.glob("*.dist-info")
    metadata = email.message_from_bytes((folder / "METADATA").read_bytes())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert (folder / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert {"cpu", "gpu", "report", "cluster"} <= set(metadata.get_all("Provides-Extra", []))
    scripts = configparser.ConfigParser()
    scripts.read_string((folder / "entry_points.txt").read_text())
    assert dict(scripts["console_scripts"]) == {"segmenter": "segmenter_datasets.commands:main"}


def test_every_module_of_the_wheel_can_be_imported(unpacked: Path, tmp_path: Path) -> None:
    done = _away(["-c", IMPORT_ALL, str(unpacked)], unpacked, tmp_path)
    assert (done.returncode, done.stdout) == (0, "all imported\n"), done.stderr


def test_the_command_of_the_wheel_needs_no_clone(unpacked: Path, tmp_path: Path) -> None:
    done = _away(["-c", START, "recipes"], unpacked, tmp_path)
    assert [line.split()[0] for line in done.stdout.splitlines()[:-1]] == sorted(
        path.stem for path in (ROOT / "configs").glob("*.yaml")
    )
    done = _away(["-c", START, "datasets", "check", "nothing.yaml"], unpacked, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "`segmenter recipes`" in done.stderr
    done = _away(["-m", "segmenter_datasets", "--help"], unpacked, tmp_path)
    assert done.stdout.startswith("usage: segmenter datasets ")


@pytest.mark.slow
def test_the_gpu_command_of_the_wheel_needs_no_clone(unpacked: Path, tmp_path: Path) -> None:
    done = _away(["-c", START, "gpu", "--tiny", "--output", str(tmp_path / "measured")], unpacked, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "measured" / "gpu.md").is_file()


def _away(words: list[str], packages: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python in an empty folder, which finds our packages in `packages` only."""
    environment = {**os.environ, "PYTHONPATH": str(packages), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_every_tool_of_a_clone_is_one_of_the_command() -> None:
    modules = [*(ROOT / "segmenter").rglob("*.py"), *(ROOT / "datasets").rglob("*.py")]
    programs = {_typed(path) for path in modules if _is_program(path)}
    programs |= {f"python {script.name}" for script in ROOT.glob("*.py") if script.name != "setup.py"}
    programs.add("python -m benchmarks.gpu")  # with the other benchmarks, where there is a clone
    assert programs == {tool.typed for tool in TOOLS.values() if tool.typed}


def _is_program(path: Path) -> bool:
    """Whether a module does something when it is started."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return any(isinstance(node, ast.If) and "__main__" in ast.dump(node.test) for node in tree.body)


def _typed(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return f"python -m {'.'.join(parts[:-1] if parts[-1] == '__main__' else parts)}"


def _tool(packages: Path, folder: Path, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    done = _away(["-c", START, *words], packages, folder)
    assert done.returncode in codes, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_checks_trains_maps_and_draws_polygons(unpacked: Path, tmp_path: Path) -> None:
    recipe = made(tmp_path / "data")
    assert "segmenter 0" in _tool(unpacked, tmp_path, "--version")
    _tool(unpacked, tmp_path, "datasets", "make", "naic2020", "tiles", "--scenes", "12", "--seed", "1")
    _tool(unpacked, tmp_path, "recipes", "naic2020", "tiles.yaml")
    settings = ("--set", "dataset.root=tiles")
    said = _tool(unpacked, tmp_path, "datasets", "check", "tiles.yaml", *settings, codes=(0, 1))
    assert said.startswith("naic2020-round1: 12 scenes ")  # so few may lack a class, which is a finding
    short = ("--set", "training.epochs=1", "--set", "training.input_workers=2")
    said = _tool(unpacked, tmp_path, "train", str(recipe), "--run", "run", *short)
    assert said.endswith(
        "done: run holds the run; map rasters with: segmenter predict run INPUT --output DIR\n"
    )
    _tool(unpacked, tmp_path, "predict", "run", "data/images", "--output", "maps")
    assert len(list((tmp_path / "maps").glob("s?.tif"))) == 5
    _tool(unpacked, tmp_path, "vectorise", "maps", "--output", "areas.gpkg")
    assert (tmp_path / "areas.gpkg").stat().st_size > 0
    assert {path.name for path in tmp_path.iterdir()} >= {"run", "maps", "areas.gpkg"}
