"""Layout: every module has its room, imports point one way, and TensorFlow stays where it computes."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from datasets.commands.tools import TOOLS, module_of
from segmenter.config.strategies import STRATEGIES
from tests.helpers.sources import module_at, nodes_of

ROOT = Path(__file__).parents[1]
COMMANDS = ROOT / "datasets" / "commands"
FOLDERS = ("segmenter", "datasets", "benchmarks", "fuzz", "tests")
SCRIPTS = ("train.py", "predict.py")

ARROWS = {
    "base": "",
    "grid": "",
    "config": "",
    "raster": "",
    "evaluation": "",
    "pages": "evaluation",
    "sampling": "config",
    "model": "config",
    "model.pretrained": "config model",
    "devices": "config",
    "tiles": "config raster sampling",
    "tiles.feeding": "config raster sampling tiles",
    "demands": "config raster evaluation sampling model tiles model.pretrained",
    "runs": "config evaluation model pages",
    "inference": "raster model devices runs",
    "training": (
        "config raster evaluation sampling model devices tiles tiles.feeding demands runs inference "
        "model.pretrained"
    ),
    "mapping": "raster evaluation runs inference",
    "diagnosis": "config raster evaluation sampling tiles runs pages",
}
"""Room of the core → the rooms that its modules may import; all may import `base` and `grid`."""

EXTRAS = {
    "accuracy": "evaluation pages raster runs extras.gis extras.vector_files extras.written_map",
    "review": "evaluation inference mapping pages raster runs extras.vector_files",
    "dask": "devices mapping inference runs raster",
    "export": "raster model inference runs",
    "gis": "mapping raster",
    "input_cost": "config devices model sampling tiles tiles.feeding training",
    "sharing": "config evaluation runs model.pretrained",
    "vectors": "config raster mapping runs extras.gis extras.vector_files extras.written_map",
    "vector_files": "mapping raster",
    "upload": "mapping raster",
    "view": "evaluation mapping pages raster runs extras.accuracy extras.review extras.vector_files "
    "extras.written_map",
    "written_map": "mapping raster",
    "parameter_servers": "config devices model runs training",
    "strategies": "config devices model runs training extras.parameter_servers",
}
"""Extra → the rooms of the core, and the other extras, that it may import. The core imports none of them."""

DOORS = {"api", "face", "datasets", "commands"}
"""Doors, which wire the rooms and the extras; no room's row has one."""

FOUNDATION = {"base", "grid"}

MEASURES = ("benchmarks", "fuzz", "datasets.commands.gpu.")
"""Modules that measure: they make and read files as others do."""
TENSORFLOW_ROOMS = {"model", "devices", "training"}
TENSORFLOW_MODULES = {
    *("inference.function", "extras.strategies.tpu", "extras.strategies.unequal_cards"),
    "extras.export.graph",
    *(f"extras.parameter_servers.{name}" for name in ("strategy", "trainer", "state")),
}
LIGHT_MODULES = {
    *("model", "model.architectures", "model.receptive_field", "model.size"),
    *("model.stages", "devices", "training"),
    *("model.decoders", "model.graph", "model.layer_reach"),
}
"""In rooms of TensorFlow, but used where it is not loaded."""


def _sources() -> dict[str, Path]:
    """Module name → file, of everything but the tests; the scripts are modules of `datasets.commands`."""
    files = [path for folder in FOLDERS[:-1] for path in (ROOT / folder).rglob("*.py")]
    return {_module(path): path for path in files}


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)


def _imports(node: ast.AST, package: str, *, types: bool = False) -> Iterator[tuple[str, bool]]:
    """Names of all modules that are imported below a node, also inside functions, each with: for types only.

    Args:
        package: that a relative import starts from; only the loaders, which have two names, use those.
    """
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            module = _imported_from(child, package)
            yield module, types
            yield from ((f"{module}.{alias.name}", types) for alias in child.names)
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from _imports(child, package, types=types or _is_for_types_only(child))


def _imported_from(node: ast.ImportFrom, package: str) -> str:
    """The absolute name of the module that `from … import` names."""
    if node.level == 0:
        return str(node.module)
    assert package, "imports are absolute, but for the loaders'"
    parts = package.split(".")
    assert node.level <= len(parts), "imports stay in their package"
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


def _package_of(name: str) -> str:
    """The package of a module of the loaders; "" for all others, whose imports are absolute."""
    if name.split(".")[0] != "datasets":
        return ""
    return name if SOURCES[name].name == "__init__.py" else name.rpartition(".")[0]


@cache
def _all_imports() -> dict[str, dict[str, bool]]:
    """Module → every module that it imports, each with: for types only."""
    found = {name: _imports(module_at(path), _package_of(name)) for name, path in SOURCES.items()}
    return {name: dict(sorted(imports, reverse=True)) for name, imports in found.items()}


def _imported(name: str) -> set[str]:
    """Modules of ours or of others that a module of ours imports when it runs."""
    return {other for other, types in _all_imports()[name].items() if not types}


def _ours(name: str, *, types: bool) -> set[str]:
    """Modules of ours that a module imports, with those that it imports for types only or without."""
    return {other for other in (_all_imports()[name] if types else _imported(name)) if other in SOURCES} - {
        name
    }


def room_of(module: str) -> str:
    """The room of a module of `segmenter` or `datasets`; "?" if it is in none."""
    top, _, rest = module.partition(".")
    parts = rest.split(".")
    if top == "datasets":
        return "commands" if parts[0] == "commands" else top
    if not rest:
        return "face"
    if parts[0] == "api":
        return "api"
    if parts[0] == "extras":
        return ".".join(parts[:2])
    rooms = (".".join(parts[:length]) for length in (2, 1))
    return next((room for room in rooms if room in ARROWS), "?")


SOURCES = _sources()
OURS = sorted(name for name in SOURCES if name.split(".")[0] in ("segmenter", "datasets"))
LIBRARY = [name for name in OURS if name.startswith("segmenter.")]


def _reached(start: str) -> set[str]:
    """Everything of ours that a module imports, directly or through others, also for types only."""
    seen, waiting = set(), [start]
    while waiting:
        fresh = _ours(waiting.pop(), types=True) - seen
        seen |= fresh
        waiting += fresh
    return seen


def _importers_of(package: str) -> set[str]:
    """Modules of ours that import a package of others."""
    return {name for name in SOURCES if any(other.split(".")[0] == package for other in _imported(name))}


def _may_use_tensorflow(module: str) -> bool:
    name = module.removeprefix("segmenter.")
    if name.startswith("datasets.commands.gpu."):
        return True
    return name in TENSORFLOW_MODULES or (room_of(module) in TENSORFLOW_ROOMS and name not in LIGHT_MODULES)


def test_the_loaders_import_each_other_relatively() -> None:
    """Their folder is `datasets` in a clone and `segmenter_datasets` where it is installed."""
    absolute = {
        name: _absolute_imports(SOURCES[name]) for name in SOURCES if name.split(".")[0] == "datasets"
    }
    assert {name: found for name, found in absolute.items() if "datasets" in found} == {}


def _absolute_imports(file: Path) -> set[str]:
    """Packages at the top that are imported by their absolute name."""
    nodes = nodes_of(file)
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0}
    return {name.split(".")[0] for name in names}


OLD_CALLS = {
    "datasets.__main__",
    *("segmenter.runs.__main__", "segmenter.devices.__main__", "segmenter.model.pretrained.convert"),
    *(f"segmenter.extras.{name}.__main__" for name in ("accuracy", "export", "vectors")),
}
"""Modules that are started as those of before, and hand on to `segmenter TOOL` by name; for one release."""


def _is_started(tree: ast.Module) -> bool:
    """Return whether a module asks for `__name__ == "__main__"`."""
    return any(isinstance(node, ast.If) and "'__main__'" in ast.dump(node.test) for node in tree.body)


def test_all_commands_are_in_one_folder() -> None:
    """Only they read a command line, and nothing below knows them; the old calls find them by name."""
    readers = {
        name for name in OURS if any(f"base.options.{f}" in other for other in _imported(name) for f in READS)
    }
    assert {name for name in readers if room_of(name) != "commands"} == set()
    started = {name for name in OURS if _is_started(module_at(SOURCES[name])) and room_of(name) != "commands"}
    assert started == OLD_CALLS
    lengths = {name: len(module_at(SOURCES[name]).body) for name in OLD_CALLS}
    assert {name: length for name, length in lengths.items() if length > 7} == {}
    above = {
        f"{name} imports {other}"
        for name in OURS
        for other in _ours(name, types=True)
        if room_of(other) == "commands" and room_of(name) != "commands"
    }
    assert above == {"datasets.__main__ imports datasets.commands"}


READS = ("add_options", "add_commands", "parsed", "parsed_command")
"""Functions of `base.options` that make a parser and read with it."""


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_of_the_clone_is_the_module_of_the_command(script: str) -> None:
    """One file with two names, so that who opens it first sees the stages, and the wheel has them too."""
    assert (COMMANDS / script).resolve() == ROOT / script
    assert len((ROOT / script).read_text(encoding="utf-8").splitlines()) <= 80


def test_each_tool_is_a_module_of_its_name() -> None:
    found = {name: module_of(name) for name in TOOLS}
    assert [name for name, module in found.items() if not hasattr(module, "_parser")] == []
    assert [name for name, module in found.items() if module.main.__module__ != module.__name__] == []
    assert {name.replace("-", "_") for name in TOOLS} <= {path.stem for path in COMMANDS.iterdir()}


def test_every_module_is_in_a_room() -> None:
    assert [name for name in OURS if room_of(name) == "?"] == []
    rooms = {*ARROWS, *DOORS, "extras", *(f"extras.{name}" for name in EXTRAS)}
    assert {room_of(name) for name in OURS} == rooms, "rooms without a module, or an extra without a row"


@pytest.mark.parametrize("room", [*ARROWS, *(f"extras.{name}" for name in EXTRAS)])
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    """The core imports no extra."""
    extra = room.removeprefix("extras.") if room.startswith("extras.") else None
    allowed = {room, *FOUNDATION, *(ARROWS[room] if extra is None else EXTRAS[extra]).split()}
    wrong = [
        f"{name} imports {other}"
        for name in OURS
        if room_of(name) == room
        for other in sorted(_ours(name, types=True))
        if other in OURS
        if room_of(other) not in allowed
    ]
    assert wrong == []


def test_the_tables_have_no_arrow_that_nobody_needs() -> None:
    drawn = {
        (room_of(name), room_of(other)) for name in OURS for other in _ours(name, types=True) if other in OURS
    }
    rooms = {(room, below) for room, all_below in ARROWS.items() for below in all_below.split()}
    extras = {(f"extras.{name}", below) for name, all_below in EXTRAS.items() for below in all_below.split()}
    assert (rooms | extras) - drawn == set()
    assert len(rooms) <= 51
    above = {room: list(ARROWS)[:i] for i, room in enumerate(ARROWS)}
    assert [(room, below) for room, below in rooms if below not in above[room]] == [], "rooms have no circle"
    among = {(extra, below) for extra, below in extras if below.startswith("extras.")}
    assert "extras.view" not in {below for _, below in among}
    among = {
        (extra, below) for extra, below in among if extra != "extras.view"
    }  # which shows what others find
    assert {below for _, below in among} & {extra for extra, _ in among} == set(), "extras are of two floors"


SEAM = {"segmenter.mapping.call", "segmenter.mapping.finisher"}
"""A call has finishers, and a finisher's methods take the call, which it imports for the type only."""


def test_the_core_names_no_strategy_of_an_extra() -> None:
    """An extra registers its name and rules; `distribution.tpu` is a setting's name in recipes."""
    registered = set(STRATEGIES) - {
        "auto",
        "one_device",
        "mirrored",
        "multi_worker_mirrored",
        "central_storage",
    }
    assert registered == {"parameter_server", "tpu"}
    named = {
        f"{name}: {node.value}"
        for name in LIBRARY
        if room_of(name) in ARROWS
        for node in nodes_of(SOURCES[name])
        if isinstance(node, ast.Constant) and node.value in registered
    }
    assert named == set()


def test_modules_have_no_circle_also_of_types() -> None:
    assert {name for name in SOURCES if name in _reached(name)} == SEAM
    assert "segmenter.mapping.call" not in _imported("segmenter.mapping.finisher")


def test_a_public_class_has_one_owner() -> None:
    """Two classes of one name would be told apart only by their imports."""
    owners: dict[str, list[str]] = {}
    for module in OURS:
        for node in module_at(SOURCES[module]).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                owners.setdefault(node.name, []).append(module)
    assert len(owners) > 300
    assert {name: modules for name, modules in owners.items() if len(modules) > 1} == {}


POINTING = {
    *("told", "shown", "named", "whole", "drawn", "together", "apart", "torn", "said", "beside"),
    *("alone", "aside", "asked", "meant", "known", "seen", "noted", "begun", "lost", "left", "called"),
}
"""Words that say nothing of what a function does or gives: it is a verb, or the noun of its result."""


def test_functions_are_verbs_or_nouns() -> None:
    functions = [
        (module, node.name)
        for module in OURS
        if not module.startswith("datasets.commands.gpu")
        for node in nodes_of(SOURCES[module])
        if isinstance(node, ast.FunctionDef)
        if not any("property" in ast.dump(each) for each in node.decorator_list)
    ]
    assert len(functions) > 3000
    assert [row for row in functions if row[1].strip("_") in POINTING] == []


def test_the_package_is_listed_on_one_screen() -> None:
    names = {path.name for path in (ROOT / "segmenter").iterdir() if not path.name.startswith("__pycache__")}
    assert len(names) <= 20


def test_no_module_imports_more_than_25_of_ours() -> None:
    counts = {name: len(_ours(name, types=True) & set(OURS)) for name in SOURCES}
    assert {name: count for name, count in counts.items() if count > 25} == {}


def test_the_library_never_imports_the_datasets_nor_the_scripts() -> None:
    above = ("datasets", "benchmarks", "studies", "fuzz", "tests", "train", "predict")
    assert {name: i for name in LIBRARY for i in _imported(name) if i.split(".")[0] in above} == {}


def test_only_raster_opens_rasters() -> None:
    ours = {name for name in _importers_of("rasterio") if not name.startswith(MEASURES)}
    assert {name for name in ours if room_of(name) != "raster"} == set()


def test_tensorflow_is_imported_only_where_it_computes() -> None:
    users = _importers_of("tensorflow") | _importers_of("keras")
    assert [name for name in OURS if name in users and not _may_use_tensorflow(name)] == []


def test_everything_else_is_imported_without_tensorflow() -> None:
    light = [name for name in OURS if not _may_use_tensorflow(name)]
    code = (
        f"import sys\nfor name in {light!r}:\n    __import__(name)\n"
        "    loaded = {'tensorflow', 'keras'} & set(sys.modules)\n"
        "    if loaded: sys.exit(f'{name} imports {loaded}')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_hold_one_idea_in_at_most_600_lines(folder: str) -> None:
    files = [*(ROOT / folder).rglob("*.py"), *(ROOT / script for script in SCRIPTS)]
    lengths = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > 600} == {}


def test_tests_share_helpers_and_never_import_another_test() -> None:
    test_module = re.compile(r"^\s*(from|import) tests[\w. ]*\btest_", re.MULTILINE)
    files = (ROOT / "tests").rglob("*.py")
    assert [path.name for path in files if test_module.search(path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["train.py"], "--resume"),
        (["predict.py"], "{scene}"),
        (["-m", "datasets", "stitch"], "--columns"),
        (["-m", "segmenter.devices"], "--logical-devices"),
        (["-c", "import sys; from datasets.commands import main; main(['runs', *sys.argv[1:]])"], "unpack"),
        (["-c", "import sys; from datasets.commands import main; main(sys.argv[1:])"], "convert-weights"),
        (["-m", "segmenter.extras.export"], "--profile"),
    ],
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
