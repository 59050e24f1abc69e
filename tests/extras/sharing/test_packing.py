"""Runs as one file: what comes out is what went in, whole or not at all; one run gives the same bytes."""

import io
import json
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from segmenter.base.errors import CheckpointError, OutputError, SegmenterError, run_script
from segmenter.base.files import FileLock
from segmenter.extras.sharing.archive import pack_run, unpack_run
from segmenter.extras.sharing.known_facts import read_known
from segmenter.grid.labels import ClassMap
from segmenter.runs.__main__ import main
from segmenter.runs.checkpoints import learned_weights
from segmenter.runs.report.run_record import read_story
from segmenter.runs.resume import checkpoint_to_resume
from segmenter.runs.run import load_run
from tests.helpers.forbidden import small_files
from tests.helpers.made_described import ROOT, contents, described_run, left_behind
from tests.helpers.maps import Make
from tests.helpers.random_run import random_run
from tests.helpers.refusals import refused

LEFT_BEHIND = {"tensorboard/events.out.tfevents.1.kims-machine.2.0.v2", "validation.json"}
MADE_BY_PACKING = {"SHA256SUMS", "pack.json", "README.md", "stac.json"}


def test_what_comes_out_is_what_went_in(run: Path, packed: Path, tmp_path: Path) -> None:
    folder, manifest, files = unpack_run(packed, tmp_path / "theirs")
    before, after = contents(run), contents(folder)
    assert after.keys() - before.keys() == MADE_BY_PACKING
    assert before.keys() - after.keys() == LEFT_BEHIND
    assert all(after[name] == before[name] for name in before.keys() & after.keys())
    said = (manifest.name, manifest.weights, manifest.checkpoints, files)
    assert said == ("mine", "best.npz", True, len(after))
    assert load_run(folder).checksum() == load_run(run).checksum()
    assert checkpoint_to_resume(folder).position.done == 8


def test_the_same_run_gives_the_same_bytes(run: Path, packed: Path, tmp_path: Path) -> None:
    folder, _, _ = unpack_run(packed, tmp_path / "theirs")
    for source in (run, folder):
        done = pack_run(source, tmp_path / "again.zip", with_checkpoints=True)
        assert set(done.left_out) <= {"tensorboard", "validation.json"}  # not what packing made before
        assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    with zipfile.ZipFile(packed) as archive:  # the file itself says neither who packed it nor when
        assert {part.date_time for part in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {part.extra for part in archive.infolist()} == {b""}


def test_other_tools_open_and_check_it(packed: Path, tmp_path: Path) -> None:
    """Neither unpacking nor checking needs this program."""
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
    folder, manifest, _ = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")
    assert not (folder / "checkpoints").exists()
    assert not manifest.checkpoints
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
    folder, manifest, _ = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")
    assert manifest.weights == "checkpoints/step-00000008.npz"
    assert manifest.checkpoints == done.checkpoints == (checkpoint_to_resume(folder).position.done == 8)
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000008.npz"]
    assert load_run(folder).checksum() == load_run(run).checksum()


def test_anonymous_it_names_nothing_of_its_owner_and_has_the_same_weights(tmp_path: Path) -> None:
    run = described_run(tmp_path / "home of kim" / "run")
    assert main(["card", str(run)]) == main(["stac", str(run)]) == 0
    assert "longitude 13.0000" in (run / "README.md").read_text()
    done = pack_run(run, tmp_path / "a.zip", with_checkpoints=True, anonymous=True)
    folder, manifest, _ = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")
    assert manifest.anonymous
    assert done.paths == ()
    found = contents(folder)
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


def test_unpacked_elsewhere_it_predicts_to_the_same_bits(
    tensorflow: ModuleType,
    tmp_path: Path,
    make_geotiff: Make,
    make_classes: Callable[..., ClassMap],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import predict

    run = random_run(tmp_path / "run", make_classes(3), depth=1)
    image = make_geotiff("a.tif", np.random.default_rng(1).integers(0, 999, (83, 61, 3), np.uint16))
    maps = {}
    for name, options in (("plain", {}), ("anonymous", {"anonymous": True})):
        pack_run(run, tmp_path / f"{name}.zip", **options)
        elsewhere = tmp_path / name / "far away"
        elsewhere.parent.mkdir()
        maps[name], _, _ = unpack_run(tmp_path / f"{name}.zip", elsewhere)
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
        lock.give_back()
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
    folder, _, _ = unpack_run(tmp_path / "a.zip", tmp_path / "theirs")
    assert (folder / "README.md").read_text().endswith("By Kim.\n")
    times = json.loads((folder / "stac.json").read_text())["properties"]
    assert times["start_datetime"] == "2020-02-02T00:00:00Z"
    (run / "checkpoints" / "step-00000008.npz").replace(run / "best.npz")
    with refused(CheckpointError, where="README.md", expected="these weights"):
        pack_run(run, tmp_path / "b.zip")
