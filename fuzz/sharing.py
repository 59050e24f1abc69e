"""Targets among what a run hands over: the packed run, and the record of what it was made from."""

from __future__ import annotations

import shutil
from pathlib import Path

from fuzz.runs import make_run
from fuzz.target import Facts, digest
from segmenter.extras.sharing.archive import pack_run, unpack_run
from segmenter.runs.records import Origin, load_origin, save_origin

_NAMES = ("water", "forest")


def make_packed(folder: Path) -> None:
    """A packed run, and the record beside it."""
    run = folder / "run"
    run.mkdir()
    make_run(run)
    pixels = dict.fromkeys(_NAMES, 10)
    save_origin(
        folder,
        Origin(scenes={"train": 2}, tiles=3, tiles_left_out=0, tile_px=8, pixels=pixels, tiles_with=pixels),
    )
    pack_run(run, folder / "a.run.zip", with_checkpoints=True)
    shutil.rmtree(run)


def read_packed(file: Path) -> Facts:
    """All files that come out of a packed run."""
    folder = file.with_name("out")
    shutil.rmtree(folder, ignore_errors=True)
    unpack_run(file, folder)
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    facts = [f"{path.relative_to(folder)} {digest(path.read_bytes())}" for path in found]
    if outside := sorted(path.name for path in file.parent.iterdir() if path.name.startswith(".")):
        raise AssertionError(f"left behind: {outside}")
    shutil.rmtree(folder)
    return facts


def read_origin(file: Path) -> Facts:
    """The record, or none."""
    found = load_origin(file.parent)
    return [] if found is None else [digest(found.model_dump_json())]
