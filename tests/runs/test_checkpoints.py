"""Run directories: whole or absent, told when damaged, nothing in them runs code."""

import copy
import os
import random
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from segmenter.base.errors import CheckpointError, DamagedCheckpointError, OutputError, SegmenterError
from segmenter.base.files import exclusive_lock, remove_leftovers
from segmenter.config.recipe import UNetConfig
from segmenter.runs import checkpoints as arrays_module
from segmenter.runs.checkpoints import (
    assign_weights,
    checkpoints,
    load_arrays,
    newest_checkpoint,
    save_arrays,
    save_checkpoint,
    transfer_weights,
    weight_arrays,
)
from segmenter.runs.run import Run
from tests.helpers.forbidden import small_files
from tests.helpers.made_training import ROOT
from tests.helpers.refusals import refused
from tests.helpers.trained_run import bare_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return bare_run(tmp_path / "run")


def test_only_the_newest_checkpoints_are_kept_and_the_best_is_preferred(run: Run) -> None:
    for step in (5, 10, 200):
        save_checkpoint(run.path, step, {"a": np.arange(step)}, keep=2)
    names = sorted(p.name for p in (run.path / "checkpoints").iterdir())
    assert names == ["step-00000010.npz", "step-00000200.npz"]
    assert run.weights_file().name == "step-00000200.npz"
    save_arrays(run.path / "best.npz", {"a": np.zeros(1)})
    assert run.weights_file().name == "best.npz"
    for step in (99_999_999, 100_000_000):  # ordered as numbers
        save_checkpoint(run.path, step, {"a": np.zeros(1)}, keep=2)
    assert newest_checkpoint(run.path).name == "step-100000000.npz"


def odd_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {
        "model/kernel": rng.normal(size=(3, 1, 2)).astype(np.float32),
        "optimiser/00000": np.array(7, np.int64),
        "ema/half": np.asfortranarray(rng.normal(size=(2, 3))).astype(np.float16, order="F"),
        "none": np.zeros((0, 4)),
        "meta": np.frombuffer(b"{}", np.uint8),
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda a: a.update(none=np.zeros((0, 5))),
        lambda a: a.update({"optimiser/00000": np.array(7, np.int32)}),
        lambda a: a.update({"other/kernel": a.pop("model/kernel")}),
        lambda a: a.pop("none"),
        lambda a: a.pop("sha256"),
        lambda a: a.update({"sha256": a["sha256"][::-1]}),
    ],
    ids=["shape", "dtype", "name", "missing", "no digest", "digest"],
)
def test_the_digest_sees_what_no_crc_does(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "a.npz"
    save_arrays(path, odd_arrays())
    with np.load(path) as file:
        arrays = dict(file)
    change(arrays)
    np.savez(path, **arrays)
    with refused(DamagedCheckpointError, where="a.npz", fault="SHA-256 is another"):
        load_arrays(path)


@pytest.mark.parametrize("version", [2, None])
def test_arrays_of_another_format_are_refused(tmp_path: Path, version: int | None) -> None:
    path = tmp_path / "a.npz"
    written = {"weights": np.zeros(3)} | ({} if version is None else {"format": np.array(version)})
    np.savez(path, allow_pickle=False, **{"sha256": arrays_module.arrays_digest(written), **written})
    with refused(CheckpointError, where=str(path), fault=f"format 3, got {version or 'none'}: "):
        load_arrays(path)


def test_what_cannot_be_a_checkpoint_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "bomb.npz", a=np.zeros(10**6))
    with refused(DamagedCheckpointError, where="bomb.npz", fault="a.npy"):
        load_arrays(tmp_path / "bomb.npz")
    header = (
        b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f8', 'fortran_order': False, 'shape': (999999999999999,), }"
    )
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("a.npy", header.ljust(127) + b"\n")
    with refused(DamagedCheckpointError, where="huge.npz", fault="damaged checkpoint"):
        load_arrays(tmp_path / "huge.npz")


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (3, 5), }"
PIECES = (*"{}[]()'\",:<8 \\n#-O", "'<M8[x]'", "[('a','<f8')]", "1e400", "9" * 30, "'O'", "((((", "'''")


@pytest.mark.filterwarnings("ignore")  # what Python and NumPy say of such headers
def test_a_crafted_header_is_damage_whatever_numpy_raises(tmp_path: Path) -> None:
    rng, path = random.Random(0), tmp_path / "a.npz"
    headers = [HEADER[:-1]]  # never closed: tokenize.TokenError
    for _ in range(200):
        at, more = rng.randrange(len(HEADER)), rng.choice([0, 0, 1, 9])
        headers.append(HEADER[:at] + rng.choice(("", *PIECES)) + HEADER[at + more :])
    messages = []
    for number, header in enumerate(headers):
        text = header.encode() + b"\n"
        version = 1 + number % 3
        length = len(text).to_bytes(2 if version == 1 else 4, "little")
        with zipfile.ZipFile(path, "w") as archive:  # with right CRCs
            archive.writestr("a.npy", b"\x93NUMPY" + bytes([version, 0]) + length + text + bytes(120))
        try:
            load_arrays(path)
        except DamagedCheckpointError as error:
            messages.append(str(error))
    assert len(messages) > 150
    assert all(line.startswith(f"{path}: damaged checkpoint (") and "\n" not in line for line in messages)


WRITER = """
import sys, numpy as np
from pathlib import Path
from segmenter.runs.checkpoints import save_checkpoint
for step in range(1, 10**6):
    arrays = {"a": np.full(10**5, step), "meta": np.zeros(3, np.uint8)}
    save_checkpoint(Path(sys.argv[1]), step, arrays, 2)
"""


def test_killed_while_writing_all_that_is_there_is_whole(tmp_path: Path) -> None:
    """Aimed: a process that does nothing else is killed when its temporary file is seen."""
    folder, half_written = tmp_path / "checkpoints", 0
    kills = 0
    while kills < 2 or not half_written:  # a busy machine often names the file before the kill
        kills += 1
        for path in checkpoints(tmp_path).values():
            path.unlink()
        process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], cwd=ROOT)
        while len(list(folder.glob("step-*"))) < 2 or not list(folder.glob(".step-*")):
            assert process.poll() is None
            time.sleep(0.0002)
        process.kill()
        process.wait()
        half_written += len(list(folder.glob(".step-*")))
        steps = checkpoints(tmp_path)
        assert len(steps) in (2, 3)
        for step, path in steps.items():
            assert (load_arrays(path)["a"] == step).all()
        remove_leftovers(folder)
        assert set(folder.iterdir()) == set(steps.values())


def test_a_full_disk_leaves_what_was_there(run: Run) -> None:
    save_checkpoint(run.path, 1, {"a": np.arange(1000)}, keep=1)
    with small_files(2000), pytest.raises(OutputError, match=r"2\.npz: cannot") as caught:
        save_checkpoint(run.path, 2, {"a": np.arange(1000)}, keep=1)
    assert caught.value.exit_code == 1
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-00000001.npz"]
    assert (load_arrays(run.weights_file())["a"] == np.arange(1000)).all()


HOLDER = """
import sys, time
from pathlib import Path
from segmenter.base.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("in it", flush=True)
    time.sleep(600)
"""


def test_a_folder_has_one_writer_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "run"
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in it\n"
        with refused(SegmenterError, where="run", fault="another process"), exclusive_lock(folder):
            pass
        process.kill()
        process.wait()
    with exclusive_lock(folder):
        pass


def test_a_file_is_synced_before_its_name_is_there_and_each_new_name_in_the_folder_above(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """A file that is on the disk is lost with its folder, if the power fails before the folder's name is."""
    synced: list[tuple[str, list[str]]] = []

    def fsync(handle: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").resolve()
        folder = path if path.is_dir() else path.parent
        names = sorted(each.name for each in folder.iterdir() if not each.name.startswith(".step"))
        synced.append((path.name if folder == path else "the file", names))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.chdir(tmp_path)
    with exclusive_lock(Path("runs") / "mine"):
        assert sorted(synced) == sorted([(tmp_path.name, ["runs"]), ("runs", ["mine"])])
        save_checkpoint(Path("runs") / "mine", 1, {"a": np.zeros(1)}, keep=1)
    assert synced[2:] == [
        ("mine", [".lock", "checkpoints"]),
        ("the file", []),
        ("checkpoints", ["step-00000001.npz"]),
    ]


def test_a_damaged_best_checkpoint_names_another(run: Run) -> None:
    for step in (5, 10):
        save_checkpoint(run.path, step, {"a": np.arange(step)}, keep=2)
    (run.path / "best.npz").write_bytes(b"PK")
    newest = run.path / "checkpoints" / "step-00000010.npz"
    with refused(DamagedCheckpointError, remedy="whole"):
        run.weights()
    (run.path / "best.npz").rename(run.path / "best.old.npz")
    assert len(run.weights()["a"]) == 10
    newest.write_bytes(b"")
    with refused(DamagedCheckpointError, where="10.npz", fault="damaged"):
        run.weights()
    checkpoints(run.path)[5].write_bytes(b"")
    with refused(DamagedCheckpointError, where="10.npz", fault="damaged"):
        run.weights()


def test_weights_of_another_model_are_refused(tensorflow: ModuleType) -> None:
    from segmenter.model.building import build_model

    three, four = (build_model(UNetConfig(depth=1, width=2), 3, k) for k in (3, 4))
    arrays = weight_arrays(three, "model")
    with refused(CheckpointError, where="checkpoint", got="(1, 1, 2, 3)"):
        assign_weights(four, arrays, "model")
    kept, fresh = transfer_weights(four, arrays)
    assert fresh == ["logits/kernel", "logits/bias"]
    assert len(kept) + len(fresh) == len(four.variables)
    for variable in four.variables:
        if variable.path in kept:
            np.testing.assert_array_equal(variable.numpy(), arrays[f"model/{variable.path}"])


@pytest.mark.parametrize(
    ("same", "fields"),
    [(True, {"where": "a.npz", "fault": "named twice"}), (False, {"where": "a.npz", "fault": "larger"})],
)
def test_a_part_that_is_named_two_thousand_times_is_not_read(
    tmp_path: Path, monkeypatch: Any, same: bool, fields: dict[str, object]
) -> None:
    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", bytes(10**5))
        part = archive.filelist[0]
        for i in range(2000):
            archive.filelist.append(copy.copy(part))
            archive.filelist[-1].filename = "a.npy" if same else f"{i}.npy"
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("read"))
    with refused(DamagedCheckpointError, **fields):
        load_arrays(path)
