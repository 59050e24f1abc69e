"""A run directory from a stranger: loading it runs no code, and what is wrong with it is one line."""

import hashlib
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import predict
from segmenter.base.errors import run_script
from segmenter.config.reading import load_recipe
from segmenter.runs.checkpoints import save_checkpoint
from segmenter.runs.run import Run
from tests.helpers.made_runs import rewritten
from tests.helpers.made_training import ROOT, made, train
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run


class Trap:
    """Unpickled, it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> Any:
        return __import__("os").mkdir, (self.folder,)


def pickled_array(path: Path, trap: Trap) -> None:
    np.savez(path, position=np.zeros(4), **{"model/kernel": np.array([trap], dtype=object)})


def pickle_alone(path: Path, trap: Trap) -> None:
    path.write_bytes(pickle.dumps(trap))


CHECKPOINTS = [pickled_array, pickle_alone]


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("stranger") / "data")


@pytest.fixture
def run(recipe: Path, tmp_path: Path) -> Run:
    return bare_run(tmp_path / "run", recipe=load_recipe(recipe))


def test_the_trap_works(tmp_path: Path) -> None:
    pickled_array(tmp_path / "a.npz", Trap(tmp_path / "sprung"))
    with np.load(tmp_path / "a.npz", allow_pickle=True) as file:
        file["model/kernel"]
    assert (tmp_path / "sprung").is_dir()


@pytest.mark.parametrize("write", CHECKPOINTS)
def test_a_pickled_checkpoint_is_refused(
    tensorflow: ModuleType, recipe: Path, run: Run, tmp_path: Path, capsys: Any, write: Any
) -> None:
    sprung = tmp_path / "sprung"
    (run.path / "checkpoints").mkdir()
    for name in ("best.npz", "checkpoints/step-00000007.npz"):
        write(run.path / name, Trap(sprung))
    image = str(recipe.parent / "images" / "s0.tif")
    arguments = [str(run.path), image, "--insist", "--output", str(tmp_path / "maps")]
    assert run_script(lambda: predict.main(arguments)) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    if write is pickled_array:  # once is enough of a process
        result = train(recipe, "--run", str(run.path), "--resume", check=False)
        assert result.returncode == 2
        told += result.stderr.splitlines()
        assert told[1].endswith("with --run")
    assert all("npz: damaged checkpoint (" in line for line in told)
    assert not sprung.exists()


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.mkdir [SPRUNG]", "!!python/name:os.mkdir"])
def test_tags_in_a_recipe_are_refused(recipe: Path, run: Run, tmp_path: Path, capsys: Any, tag: str) -> None:
    sprung = tmp_path / "sprung"
    file = run.path / "recipe.yaml"
    file.write_text(file.read_text().replace("name: made", "name: " + tag.replace("SPRUNG", str(sprung))))
    assert "!!python" in file.read_text()
    rewritten(run.path / "run.json", recipe=[hashlib.sha256(file.read_bytes()).hexdigest()])
    assert run_script(lambda: predict.main([str(run.path), str(recipe), "--output", str(tmp_path)])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {file}: not valid YAML: ")
    assert not sprung.exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"position": np.zeros(3)}, "not enough"),
        ({"position": np.array([7, -1, 0, 0.5])}, "position (7, -1, 0)"),
        ({"meta": np.frombuffer(b"{}", np.uint8)}, "9 validation"),
    ],
)  # fmt: skip
def test_a_checkpoint_of_another_make_is_refused(run: Run, changes: Any, message: str) -> None:
    from segmenter.base.errors import CheckpointError
    from segmenter.runs.resume import Position, checkpoint_to_resume, facts_array

    position = Position(7, 1, 0, 0.5)
    meta = facts_array(run.recipe, "0", position, 1, {})
    save_checkpoint(run.path, 7, {"position": np.array(position), "meta": meta, **changes}, 1)
    with refused(CheckpointError, where="step-00000007.npz", fault=f"({message}") as caught:
        checkpoint_to_resume(run.path)
    assert "\n" not in str(caught.value)


def test_nothing_that_runs_code_is_used() -> None:
    forbidden = ("import pickle\n", "from pickle ", "allow_pickle=True", "load_model(", "joblib")
    forbidden += ("UnsafeLoader", "FullLoader")
    folders = ("segmenter", "datasets", "benchmarks", "fuzz")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    files += [ROOT / script for script in ("train.py", "predict.py")]
    assert len(files) > 50
    # Between a training and the workers that it has started itself, over sockets that nobody else has.
    ours = {ROOT / "segmenter/tiles/feeding" / name for name in ("sending.py", "processes.py", "worker.py")}
    ours.add(ROOT / "segmenter/model/pretrained/torch_files.py")  # refuses every name but those of tensors
    files = [path for path in files if path not in ours]
    found = [(path.name, word) for path in files for word in forbidden if word in path.read_text()]
    assert found == []
