"""Examples: docstrings of what `segmenter` exports, the guide with its reference, and the notebook."""

import ast
import doctest
import inspect
import json
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import segmenter
from segmenter import OpenRun, Tiles, index_tiles
from tests.helpers.api_page import PAGE, page

DOCS = Path(__file__).parents[2] / "docs"
NOTEBOOK = DOCS / "notebooks" / "start.ipynb"


@pytest.fixture
def here(run: OpenRun, run_folder: Path, pair: tuple[Path, Path], monkeypatch: Any) -> Path:
    """The folder of the examples: `runs/mine`, which is compiled already, `a.tif` and `a_label.png`."""
    for path in pair:
        shutil.copy(path, run_folder)
    shutil.rmtree(run_folder / "maps", ignore_errors=True)
    monkeypatch.chdir(run_folder)
    monkeypatch.setattr("segmenter.api.open_run.KeptModels", lambda: run._models)
    return run_folder


def _names(run: OpenRun) -> dict[str, Any]:
    counts = np.zeros((40, 3), np.int64)
    counts[:, 0], counts[:25, 1], counts[:7, 2] = 4096, 500, 60
    exported = {name: getattr(segmenter, name) for name in segmenter.__all__}
    return {**exported, "np": np, "run": run, "counts": counts}


def _held(test: doctest.DocTest) -> int:
    """The number of examples, which all give what they show."""
    said: list[str] = []
    results = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert results.failed == 0, "".join(said)
    return results.attempted


def test_docstrings_show_what_happens(here: Path, run: OpenRun) -> None:
    names = _names(run)
    names["tiles"] = index_tiles([("a.tif", "a_label.png")], {"water": 0, "road": 1, "field": 2}, size=64)
    assert isinstance(names["tiles"], Tiles)
    finder, ran = doctest.DocTestFinder(), {}
    for name in segmenter.__all__:
        for test in finder.find(getattr(segmenter, name), name, globs=dict(names)):
            ran[test.name] = _held(test) if test.examples else 0
    with_examples = {name for name, count in ran.items() if count}
    assert with_examples >= {"open_run", "OpenRun.predict", "OpenRun.map", "index_tiles"}
    assert with_examples >= {"plan_epoch", "forecast", "diagnose"}
    assert with_examples >= {"Tiles", "EpochPlan", "RandomBatches", "ClassMap", "Scene", "SegmenterError"}
    functions = {name for name in segmenter.__all__ if name[0].islower()}
    assert functions <= with_examples, "each function shows an example"


def test_the_guide_shows_what_happens(here: Path) -> None:
    text = (DOCS / "python.md").read_text(encoding="utf-8")
    plain = re.sub(r"^```.*$", "", text, flags=re.MULTILINE)  # what is expected ends at an empty line
    test = doctest.DocTestParser().get_doctest(plain, {}, "python.md", "docs/python.md", 0)
    assert _held(test) > 15


def test_the_reference_is_of_these_docstrings() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.helpers.api_page"


def _cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return found


def test_the_notebook_is_small_and_uses_what_there_is() -> None:
    """It shows what its cells give; each name and argument of ours that they use exists."""
    sources = ["".join(cell["source"]) for cell in _cells() if cell["cell_type"] == "code"]
    shown = [output for cell in _cells() for output in cell.get("outputs", ())]
    assert {"image/jpeg", "text/plain"} <= {kind for output in shown for kind in output.get("data", {})}
    assert [output for output in shown if output["output_type"] == "error"] == []
    assert not re.search(r"/(tmp|home|root|work)/", NOTEBOOK.read_text(encoding="utf-8"))
    assert NOTEBOOK.stat().st_size < 200_000
    tree = ast.parse("\n".join(sources))
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert {node.module for node in imported if node.module != "pathlib"} == {"segmenter"}
    ours = {alias.name for node in imported if node.module == "segmenter" for alias in node.names}
    assert ours <= set(segmenter.__all__)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert ours <= {node.func.id for node in calls if isinstance(node.func, ast.Name)}
    for node in calls:
        if isinstance(node.func, ast.Name) and node.func.id in ours:
            arguments = {word.arg: None for word in node.keywords if word.arg is not None}
            inspect.signature(getattr(segmenter, node.func.id)).bind(*node.args, **arguments)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: Any) -> None:
    """From the first cell to the last, by this Python, with what it makes in a folder of its own."""
    nbclient = pytest.importorskip("nbclient", reason="the extra `notebook` is not installed")
    nbformat = pytest.importorskip("nbformat", reason="the extra `notebook` is not installed")
    pytest.importorskip("ipykernel", reason="the extra `notebook` is not installed")
    monkeypatch.setenv("PYTHONPATH", str(DOCS.parent))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of zmq and asyncio, which are not ours
        here = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, kernel_name="python3", resources=here).execute()
    shown = [out.get("data", {}) for cell in notebook.cells for out in cell.get("outputs", ())]
    assert {"text/plain", "image/png"} <= {name for data in shown for name in data}
    assert (tmp_path / "start_files" / "maps").is_dir()
    texts = "".join(data.get("text/plain", "") for data in shown)
    assert "mIoU" in texts
    assert "what limits: " in texts
