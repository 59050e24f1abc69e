"""Runs as one file: out comes what went in, whole or not at all; damage and tricks are refused."""

import hashlib
import io
import json
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from datasets.commands.runs import main
from segmenter.base.errors import CheckpointError, OutputError, SegmenterError, run_script
from segmenter.base.files import FileLock, folder_aside, remove_killed, written_whole
from segmenter.base.sealed import seal
from segmenter.extras.sharing.archive import pack_run, resumable, unpack_run
from segmenter.extras.sharing.known_facts import read_known
from segmenter.grid.labels import ClassMap
from segmenter.runs.checkpoints import learned_weights
from segmenter.runs.records import CALIBRATION, ChosenBy, copy_calibration, load_origin, save_origin
from segmenter.runs.report.run_record import read_story
from segmenter.runs.resume import checkpoint_to_resume
from segmenter.runs.run import load_run
from tests.helpers.forbidden import small_files
from tests.helpers.made_described import ROOT, calibrated, contents, described_run, left_behind
from tests.helpers.made_runs import rewritten
from tests.helpers.maps import Make
from tests.helpers.random_run import random_run
from tests.helpers.refusals import refused

LEFT_BEHIND = {"tensorboard/events.out.tfevents.1.kims-machine.2.0.v2", "validation.json"}
MADE_BY_PACKING = {"SHA256SUMS", "README.md", "stac.json"}


def test_what_comes_out_is_what_went_in(run: Path, packed: Path, tmp_path: Path) -> None:
    there, files = unpack_run(packed, tmp_path / "theirs")
    folder = there.path
    before, after = contents(run), contents(folder)
    assert after.keys() - before.keys() == MADE_BY_PACKING
    assert before.keys() - after.keys() == LEFT_BEHIND
    assert all(after[name] == before[name] for name in before.keys() & after.keys())
    assert (there.recipe.name, there.weights_file(), resumable(files)) == ("mine", folder / "best.npz", True)
    assert sorted(files) == sorted(after)
    assert load_run(folder).checksum() == load_run(run).checksum()
    assert checkpoint_to_resume(folder).position.done == 8


def test_the_same_run_gives_the_same_bytes(run: Path, packed: Path, tmp_path: Path) -> None:
    folder = unpack_run(packed, tmp_path / "theirs")[0].path
    for source in (run, folder):
        done = pack_run(source, tmp_path / "again.zip", with_checkpoints=True)
        assert set(done.left_out) <= {"tensorboard", "validation.json"}  # not what packing made before
        assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:  # the file itself says neither who packed it nor when
        assert {part.date_time for part in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {part.extra for part in archive.infolist()} == {b""}


def test_other_tools_open_and_check_it(packed: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(tmp_path)
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "best.npz").write_bytes(b"other")
    assert subprocess.run(check, cwd=tmp_path, check=False, capture_output=True).returncode == 1
    checked = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert {line.split("  ")[1] for line in checked} == contents(tmp_path).keys() - {"SHA256SUMS"}


def test_without_checkpoints_it_predicts_and_does_not_go_on(run: Path, tmp_path: Path) -> None:
    done = pack_run(run, tmp_path / "a.zip")
    there, files = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")
    folder = there.path
    assert not (folder / "checkpoints").exists()
    assert not resumable(files)
    assert load_run(folder).checksum() == load_run(run).checksum()
    with refused(CheckpointError, where="theirs", remedy="best model: --init-from"):
        checkpoint_to_resume(folder)
    story = read_story(folder)
    assert story.record is None
    assert story.facts == read_story(run).facts
    assert done.left_out == ("checkpoints", "tensorboard", "validation.json")
    assert done.paths == (f"dataset.root {ROOT}", f"dataset.cache {ROOT}/.cache")


def test_a_run_without_a_best_is_packed_with_its_newest_checkpoint(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run", best=False)
    done = pack_run(run, tmp_path / "a.zip")
    assert done.left_out == ("checkpoints/step-00000004.npz", "tensorboard", "validation.json")
    there, files = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")
    folder = there.path
    assert there.weights_file() == folder / "checkpoints/step-00000008.npz"
    assert sorted(files) == sorted(done.files)
    assert resumable(files) == (checkpoint_to_resume(folder).position.done == 8)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000008.npz"]
    assert load_run(folder).checksum() == load_run(run).checksum()


def test_anonymous_it_names_nothing_of_its_owner_and_has_the_same_weights(tmp_path: Path) -> None:
    run = described_run(tmp_path / "home of kim" / "run")
    before, chosen = load_run(run), str(tmp_path / "home of kim" / "validated")
    origin = load_origin(run)
    assert origin is not None
    by = ChosenBy(runs=(chosen,), steps=8, miou=(0.5,))
    save_origin(run, origin.model_copy(update={"chosen_by": by}))
    calibration = calibrated(run)
    copy_calibration(calibration, Path(chosen), before)
    assert main(["card", str(run)]) == main(["stac", str(run)]) == 0
    assert "longitude 13.0000" in (run / "README.md").read_text()
    done = pack_run(run, tmp_path / "a.zip", with_checkpoints=True, anonymous=True)
    folder = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")[0].path
    assert done.paths == ()
    found = contents(folder)
    shared = load_origin(folder)
    assert shared is not None
    assert shared.chosen_by == ChosenBy(runs=("validated",), steps=8, miou=(0.5,))
    assert load_run(folder).calibration_file() == calibration.model_copy(
        update={"copied_from": "validated", "weights": load_run(folder).fingerprint()}
    )
    for secret in (ROOT, "owner-kim", "kims-machine", "home of kim", "rings", "longitude 13"):
        holding = [name for name, content in found.items() if secret.encode() in content]
        assert holding == [], secret
    assert {"summary.png", "report.html", "windows.json"} & found.keys() == set()  # they show imagery
    before, after = load_run(run), load_run(folder)
    for path in (path for path in found if path.endswith(".npz")):
        ours = learned_weights(np.load(io.BytesIO(found[path])))
        theirs = learned_weights(np.load(run / path))
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    assert read_known(folder).fingerprint == read_known(run).fingerprint
    assert after.recipe.model == before.recipe.model
    assert after.normalisation == before.normalisation
    resumed = checkpoint_to_resume(folder)
    assert resumed.facts.recipe == after.recipe.model_dump(mode="json")
    assert read_known(folder).scores is not None
    (run / "origin.json").write_text("{ damaged, with rings")
    pack_run(run, tmp_path / "b.zip", anonymous=True)
    assert "origin.json" not in contents(unpack_run(tmp_path / "b.zip", tmp_path / "others")[0].path)


def test_unpacked_elsewhere_it_predicts_to_the_same_bits(
    tensorflow: ModuleType,
    tmp_path: Path,
    make_geotiff: Make,
    make_classes: Callable[..., ClassMap],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from datasets.commands import predict

    run = random_run(tmp_path / "run", make_classes(3), depth=1)
    image = make_geotiff("a.tif", np.random.default_rng(1).integers(0, 999, (83, 61, 3), np.uint16))
    maps = {}
    for name, options in (("plain", {}), ("anonymous", {"anonymous": True})):
        pack_run(run, tmp_path / f"{name}.zip", **options)
        elsewhere = tmp_path / name / "far away"
        elsewhere.parent.mkdir()
        maps[name] = unpack_run(tmp_path / f"{name}.zip", elsewhere)[0].path
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    found = []
    for folder in (run, *maps.values()):
        output = folder.parent / f"{folder.name} maps"
        arguments = [folder, image, "--output", output, "--confidence"]
        assert run_script(lambda given=arguments: predict.main(list(map(str, given)))) == 0
        found.append({p.name: p.read_bytes() for p in output.glob("*.tif")})
    assert found[0].keys() == {"a.tif", "a.confidence.tif"}
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_nothing_is_written_over(run: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "note").write_text("mine")
    with refused(SegmenterError, where="theirs", fault="exists already"):
        unpack_run(packed, tmp_path / "theirs")
    assert contents(tmp_path / "theirs") == {"note": b"mine"}
    (tmp_path / "a.zip").write_text("mine")
    with refused(SegmenterError, where="a.zip", fault="exists already", remedy="--overwrite"):
        main(["pack", str(run), "--output", str(tmp_path / "a.zip")])
    assert main(["pack", str(run), "--output", str(tmp_path / "a.zip"), "--overwrite"]) == 0
    assert zipfile.is_zipfile(tmp_path / "a.zip")


def test_a_disk_that_becomes_full_meanwhile_leaves_nothing(run: Path, packed: Path, tmp_path: Path) -> None:
    with small_files(4000):
        with pytest.raises(OutputError, match="disk full"):
            pack_run(run, tmp_path / "a.zip")
        with pytest.raises(SegmenterError, match="disk full"):
            pack_run(run, tmp_path / "a.zip", anonymous=True)
        with pytest.raises(OutputError, match="disk full"):
            unpack_run(packed, tmp_path / "theirs")
    with pytest.raises(SegmenterError, match="cannot write"):
        pack_run(run, tmp_path / "no" / "a.zip")
    assert left_behind(tmp_path) == []


def test_a_run_that_is_trained_is_not_packed(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    lock = FileLock(run / ".lock")
    lock.take()
    try:
        with refused(CheckpointError, where="run", fault="training"):
            pack_run(run, tmp_path / "a.zip")
    finally:
        lock.release()
    pack_run(run, tmp_path / "a.zip")
    assert not (run / ".lock").exists()


def test_damaged_weights_are_not_handed_over(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    step = run / "checkpoints" / "step-00000004.npz"
    step.write_bytes(step.read_bytes()[:-9])
    pack_run(run, tmp_path / "a.zip")
    with pytest.raises(CheckpointError, match=r"step-00000004\.npz: damaged"):
        pack_run(run, tmp_path / "b.zip", with_checkpoints=True)
    assert left_behind(tmp_path) == ["a.zip", "run"]


def test_an_edited_card_goes_along_and_one_of_other_weights_does_not(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    assert main(["card", str(run)]) == main(["stac", str(run), "--datetime", "2020-02-02"]) == 0
    (run / "README.md").write_text((run / "README.md").read_text() + "\nBy Kim.\n")
    pack_run(run, tmp_path / "a.zip")
    folder = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")[0].path
    assert (folder / "README.md").read_text().endswith("By Kim.\n")
    times = json.loads((folder / "stac.json").read_text())["properties"]
    assert times["start_datetime"] == "2020-02-02T00:00:00Z"
    (run / "checkpoints" / "step-00000008.npz").replace(run / "best.npz")
    with refused(CheckpointError, where="README.md", expected="these weights"):
        pack_run(run, tmp_path / "b.zip")


def test_a_calibration_of_other_weights_is_neither_packed_nor_unpacked(tmp_path: Path) -> None:
    run = described_run(tmp_path / "run")
    calibrated(run)
    whole = (run / CALIBRATION).read_bytes()
    for anonymous in (False, True):
        file = tmp_path / f"{anonymous}.zip"
        pack_run(run, file, anonymous=anonymous)
        assert (unpack_run(file, tmp_path / str(anonymous))[0].path / CALIBRATION).read_bytes() == whole
    other = changed(file, tmp_path / "other.zip", edited(CALIBRATION, weights="ab" * 32))
    not_unpacked(other, tmp_path / "out", "of other weights")
    rewritten(run / CALIBRATION, weights="ab" * 32)
    with refused(CheckpointError, where=run / CALIBRATION, fault="other weights"):
        pack_run(run, tmp_path / "none.zip")
    assert not (tmp_path / "none.zip").exists()


def not_unpacked(file: Path, folder: Path, match: str = "") -> None:
    """Unpacking fails in one line, and leaves nothing."""
    folder.mkdir(exist_ok=True)
    with refused(SegmenterError, where=str(file)) as raised:
        unpack_run(file, folder / "theirs")
    assert re.search(match, str(raised.value))
    assert left_behind(folder) == []


def changed(packed: Path, output: Path, change: Callable[[dict[str, bytes]], Any], sums: bool = True) -> Path:
    """Another packed run with changed files, and with right checksums where `sums`."""
    with zipfile.ZipFile(packed) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    if sums and "SHA256SUMS" in files:
        del files["SHA256SUMS"]
        lines = [f"{hashlib.sha256(c).hexdigest()}  {n}\n" for n, c in sorted(files.items())]
        files["SHA256SUMS"] = "".join(lines).encode()
    with zipfile.ZipFile(output, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return output


def test_a_file_that_is_cut_or_changed_anywhere_is_refused(packed: Path, tmp_path: Path) -> None:
    whole, file = packed.read_bytes(), tmp_path / "b.zip"
    for length in (0, 1, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        file.write_bytes(whole[:length])
        not_unpacked(file, tmp_path / "out", "damaged or another file")
    right = contents(unpack_run(packed, tmp_path / "right")[0].path)
    for place in range(0, len(whole), len(whole) // 41):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 8]) + whole[place + 1 :])
        folder = tmp_path / "out" / str(place)
        with suppress(CheckpointError):  # else it is a time of the zip file, on which nothing depends
            assert contents(unpack_run(file, folder)[0].path) == right
        assert folder.exists() == (folder / "SHA256SUMS").is_file()
    assert sorted(path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")) == []


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json",
        "/tmp/evil.json",
        "checkpoints/../../evil.npz",
        "evil.py",
        "checkpoints/step-1.npz/x",
        "a\\..\\b",
    ],
)
def test_names_that_lead_elsewhere_are_refused(packed: Path, tmp_path: Path, name: str) -> None:
    file = changed(packed, tmp_path / "b.zip", lambda files: files.update({name: b"x"}))
    not_unpacked(file, tmp_path / "out", "no file of a run")
    assert left_behind(tmp_path) == ["b.zip", "out"]


def test_what_would_grow_or_is_named_twice_or_is_no_packed_run_is_refused(
    packed: Path, tmp_path: Path, run: Path
) -> None:
    file = changed(packed, tmp_path / "b.zip", lambda files: None)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("run.json", b"{}")
    not_unpacked(file, tmp_path / "out", "named twice")

    with zipfile.ZipFile(packed) as whole, zipfile.ZipFile(tmp_path / "b.zip", "w", 8) as archive:
        for name in whole.namelist():
            archive.writestr(name, whole.read(name))
    not_unpacked(tmp_path / "b.zip", tmp_path / "out", "compressed")

    not_unpacked(run, tmp_path / "out", "a pipe or")
    not_unpacked(tmp_path / "none.zip", tmp_path / "out", "No such file")
    not_unpacked(run / "best.npz", tmp_path / "out", "no file of a run")


def edited(file: str, **values: Any) -> Callable[[dict[str, bytes]], None]:
    """A change of a sealed JSON file, sealed again."""

    def change(files: dict[str, bytes]) -> None:
        data = {key: value for key, value in json.loads(files[file]).items() if key != "crc"}
        files[file] = seal(json.dumps({**data, **values})).encode()

    return change


@pytest.mark.parametrize(
    ("change", "sums", "match"),
    [
        (lambda files: [files.pop(name) for name in [*files] if name.endswith(".npz")], True, "checkpoint"),
        (lambda files: files.pop("SHA256SUMS"), True, "no item named 'SHA256SUMS'"),
        (lambda files: files.update({"recipe.yaml": b"name: x\n"}), False, "recipe.yaml"),
        (lambda files: files.update({"recipe.yaml": b"name: x\n"}), True, "edited or damaged"),
        (lambda files: files.update({"best.npz": b"no arrays"}), True, "damaged checkpoint"),
        (lambda files: files.pop("best.npz"), False, "SHA256SUMS"),
        (lambda files: files.update({"SHA256SUMS": b"../../x"}), False, "SHA256SUMS"),
        (edited("run.json", format=99), True, "got 99"),
    ],
)
def test_what_is_no_run_is_refused(
    packed: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], Any], sums: bool, match: str
) -> None:
    not_unpacked(changed(packed, tmp_path / "b.zip", change, sums), tmp_path / "out", match)


def test_a_packed_run_in_the_place_of_a_run_is_told_how_to_unpack(packed: Path) -> None:
    with refused(CheckpointError, where="mine.run.zip", got="a file", remedy="segmenter runs unpack"):
        load_run(packed)


def test_the_folder_is_named_by_the_file_and_not_by_what_is_in_it(
    packed: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("theirs.run.zip", "theirs2.zip", "theirs3"):
        (tmp_path / name).write_bytes(packed.read_bytes())
        there, _ = unpack_run(Path(name), None)
        assert there.path == Path("runs") / name.split(".")[0]
        assert load_run(there.path).recipe.name == "mine"


def test_a_run_that_an_earlier_version_packed_is_unpacked(packed: Path, tmp_path: Path) -> None:
    """It held pack.json, too: name, weights and fingerprint again."""
    old = changed(packed, tmp_path / "old.zip", lambda files: files.update({"pack.json": b"{}\n"}))
    there, files = unpack_run(old, tmp_path / "theirs")
    assert "pack.json" in files
    assert there.checksum() == load_run(packed.parent / "run").checksum()
    check = ["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"]
    subprocess.run(check, cwd=there.path, check=True, capture_output=True)


CLONE = Path(__file__).resolve().parents[3]
KILLED = """
import os, signal, sys
from pathlib import Path
def kill(*_, **__): os.kill(os.getpid(), signal.SIGKILL)
{what} = kill
{setup}
{call}
"""
PACK = "from segmenter.extras.sharing.archive import pack_run, unpack_run"
CALLS = {
    "pack": (PACK, "pack_run(Path({run!r}), Path({to!r}))"),
    "unpack": (PACK, "unpack_run(Path({packed!r}), Path({to!r}))"),
    "polygons": (
        "from segmenter.extras.vector_files.writing import polygon_file",
        "kept = polygon_file(Path({to!r}), None)\nkept.__enter__()\nkill()",
    ),
}


def killed(folder: Path, call: str, what: str, **names: str) -> None:
    setup, text = CALLS[call]
    code = KILLED.format(what=what, setup=setup, call=text.format(**names))
    done = subprocess.run([sys.executable, "-c", code], cwd=CLONE, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "what"), [("pack", "os.replace"), ("unpack", "os.rename")])
def test_packing_and_unpacking_again_leaves_only_what_is_asked_for(
    call: str, what: str, run: Path, packed: Path, tmp_path: Path
) -> None:
    target = tmp_path / "a.b"
    killed(tmp_path, call, what, run=str(run), packed=str(packed), to=str(target))
    (tmp_path / ".a.b.notes.txt").write_text("mine")
    if call == "unpack":
        unpack_run(packed, target)
    else:
        pack_run(run, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.b.notes.txt", "a.b"]


def test_polygons_written_again_leave_only_their_file(tmp_path: Path) -> None:
    pytest.importorskip("pyogrio")
    from segmenter.extras.vector_files.writing import polygon_file

    target = tmp_path / "areas.gpkg"
    killed(tmp_path, "polygons", "os.nothing", to=str(target))
    with polygon_file(target, None):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_what_another_is_writing_stays(tmp_path: Path) -> None:
    target = tmp_path / "a"
    with folder_aside(target) as folder, written_whole(target) as file:
        (folder / "half").touch()
        file.write(b"whole")
        with folder_aside(target) as other:
            assert other != folder
        remove_killed(target)
        assert (folder / "half").exists()
    assert target.read_bytes() == b"whole"
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return described_run(tmp_path_factory.mktemp("sharing") / "run")


@pytest.fixture(scope="module")
def packed(run: Path) -> Path:
    output = run.parent / "mine.run.zip"
    pack_run(run, output, with_checkpoints=True)
    return output
