"""Who may import whom, read from the sources and tried in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("segmenter", "datasets", "benchmarks", "fuzz", "tests")
SCRIPTS = ("train.py", "predict.py")

# The only modules that may import TensorFlow or Keras, at their top or inside functions.
TENSORFLOW = {
    *(
        "averaging",
        "batchnorm",
        "checkpoint",
        "dropout",
        "fused",
        "hardware",
        "inference",
        "keras_way",
        "losses",
        "metrics",
        "model",
    ),
    *(
        "normalisation",
        "optimisers",
        "pipeline",
        "profiling",
        "schedules",
        "steps",
        "strategy",
        "trainer",
        "trainlog",
    ),
    *("losses.pixel", "losses.region", "losses.replicas", "losses.total"),
}
# Wires the modules above; the scripts import it late.
NEEDS_TENSORFLOW = TENSORFLOW | {"session"}
# What loaders may use of the library; `datasets/__main__.py` wires and may use all of it.
GROUND_FLOOR = {
    *("errors", "terminal", "files", "geometry", "tiling", "labels", "scenes", "schema", "schema_datasets"),
    "config",
    *("raster", "pairs", "threads", "index", "plain_yaml", "finding"),
}
# Of two modules here, the earlier never reaches the later, by whatever way.
CHAIN = (
    *("errors", "geometry", "tiling", "raster", "index", "coverage", "sampler", "batches", "pipeline"),
    *("trainer",),
)
# The diagnosis stands beside training, above the sampler.
DIAGNOSIS_CHAIN = ("index", "coverage", "sampler", "diagnosis", "report")
PREDICTION_CHAIN = ("raster", "reading", "predictor", "maps.writing")


def _sources() -> dict[str, Path]:
    """Module name → file, of everything but the tests."""
    files = [path for folder in FOLDERS[:-1] for path in (ROOT / folder).rglob("*.py")]
    files += [ROOT / script for script in SCRIPTS if (ROOT / script).exists()]
    return {_module(path): path for path in files}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _imports(node: ast.AST) -> Iterator[str]:
    """Names of all modules that are imported below a node, also inside functions, at run time."""
    for child in ast.iter_child_nodes(node):
        if _is_for_types_only(child):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield str(child.module)
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from _imports(child)


SOURCES = _sources()
IMPORTS = {name: set(_imports(ast.parse(path.read_text(encoding="utf-8")))) for name, path in SOURCES.items()}
GRAPH = {name: {other for other in imports if other in SOURCES} - {name} for name, imports in IMPORTS.items()}
LIBRARY = sorted(name for name in SOURCES if name.startswith("segmenter."))


def _reached(start: str) -> set[str]:
    """Everything of ours that a module imports, directly or through others."""
    seen, waiting = set(), [start]
    while waiting:
        fresh = GRAPH.get(waiting.pop(), set()) - seen
        seen |= fresh
        waiting += fresh
    return seen


def _importers_of(package: str) -> set[str]:
    """Modules of ours that import a package of others."""
    return {name for name, imports in IMPORTS.items() if any(i.split(".")[0] == package for i in imports)}


def test_imports_are_found() -> None:
    assert "segmenter.errors" in GRAPH["segmenter.labels"]
    assert "rasterio" in IMPORTS["segmenter.raster.opening"]
    assert "segmenter.errors" in _reached("segmenter.scenes")


def test_imports_have_no_circle() -> None:
    assert [name for name in GRAPH if name in _reached(name)] == []


def test_the_library_never_imports_the_datasets_nor_the_scripts() -> None:
    above = ("datasets", "benchmarks", "fuzz", "train", "predict")
    assert {name: i for name in LIBRARY for i in IMPORTS[name] if i.split(".")[0] in above} == {}


def test_datasets_use_only_the_ground_floor() -> None:
    loaders = [name for name in SOURCES if name.startswith("datasets") and name != "datasets.__main__"]
    used = {other for name in loaders for other in GRAPH[name] if other.startswith("segmenter.")}
    assert used <= {f"segmenter.{name}" for name in GROUND_FLOOR}


@pytest.mark.parametrize("names", [CHAIN, DIAGNOSIS_CHAIN, PREDICTION_CHAIN])
def test_the_arrows_of_the_chain_point_one_way(names: tuple[str, ...]) -> None:
    chain = [f"segmenter.{name}" for name in names]
    wrong = [
        f"{early} reaches {late}"
        for i, early in enumerate(chain)
        for late in chain[i + 1 :]
        if late in _reached(early)
    ]
    assert set(chain) <= set(SOURCES)
    assert wrong == []
    assert GRAPH["segmenter.errors"] == set()


def test_only_raster_opens_rasters() -> None:
    ours = {name for name in _importers_of("rasterio") if not name.startswith(("benchmarks", "fuzz"))}
    assert {name for name in ours if not name.startswith("segmenter.raster.")} == set()


def test_only_augment_imports_albumentations() -> None:
    assert _importers_of("albumentations") <= {"segmenter.augment"}


def test_only_the_allowed_modules_import_tensorflow() -> None:
    users = {name for name in _importers_of("tensorflow") | _importers_of("keras") if name in LIBRARY}
    assert users <= {f"segmenter.{name}" for name in TENSORFLOW}


def test_predictor_knows_no_keras() -> None:
    reached = _reached("segmenter.predictor")
    assert not reached & {f"segmenter.{name}" for name in NEEDS_TENSORFLOW}


def test_everything_else_is_imported_without_tensorflow() -> None:
    light = [name for name in LIBRARY if name.removeprefix("segmenter.") not in NEEDS_TENSORFLOW]
    light += ["segmenter.checkpoint"]  # reading a run directory needs none either
    light += [name for name in SOURCES if name.startswith("datasets") or f"{name}.py" in SCRIPTS]
    code = (
        f"import sys\nfor name in {light!r}:\n    __import__(name)\n"
        "    loaded = {'tensorflow', 'keras'} & set(sys.modules)\n"
        "    if loaded: sys.exit(f'{name} imports {loaded}')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [(["train.py"], "--resume"), (["predict.py"], "{scene}"), (["-m", "datasets"], "stitch")],
    ids=lambda value: value[-1],
)
def test_help_answers_at_once(command: list[str], said: str) -> None:
    """Counted in imports, since a busy machine takes any time: no large library, and not many others."""
    command = [sys.executable, "-X", "importtime", *command, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert said in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.count("|") == 2}
    assert "argparse" in imported
    heavy = ("tensorflow", "keras", "rasterio", "matplotlib", "cv2", "scipy", "pyarrow", "albumentations")
    assert imported & {*heavy, "plotly", "sklearn"} == set()
    assert len(imported) < 500  # TensorFlow alone has 3,000


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_stay_under_400_lines(folder: str) -> None:
    files = [*(ROOT / folder).rglob("*.py"), *(ROOT / script for script in SCRIPTS)]
    lengths = {
        path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in files if path.exists()
    }
    assert {name: length for name, length in lengths.items() if length >= 400} == {}
