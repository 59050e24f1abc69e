"""Files of a run that was never trained: checkpoints, and any content with the right checksum."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.base.sealed import seal
from segmenter.config.reading import recipe_from
from segmenter.config.recipe import Recipe
from segmenter.runs.checkpoints import META, save_checkpoint
from segmenter.runs.resume import Position, facts_array
from segmenter.sampling import Plan


def rewritten(file: Path, **changes: Any) -> None:
    """Put other values into a sealed JSON file; `a__b=1` sets `b` within `a`."""
    data = json.loads(file.read_bytes())
    del data["crc"]
    for path, value in changes.items():
        *above, key = path.split("__")
        node = data
        for name in above:
            node = node[name]
        node[key] = value
    file.write_text(seal(json.dumps(data)))


def flipped(content: bytes, every: int = 1) -> Iterator[bytes]:
    """The content with a single bit of it turned over, for each bit or each `every`-th."""
    for bit in range(0, 8 * len(content), every):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


def recipe_of(**sections: Any) -> Recipe:
    """A recipe of data that nobody reads."""
    return recipe_from({"name": "t", "dataset": {"kind": "potsdam", "root": "x"}, **sections}, "r.yaml")


RECIPE = recipe_of()


MACHINE = {"processor": "one", "threads of an operation": "2"}


def plan_of(last: int = 31, blocks: int = 1) -> Plan:
    rows = np.arange(32).reshape(4, 8)
    rows[-1, -1] = last
    return Plan(rows, 0, 0, True, 0, promised=(0,), best_effort=(), blocks=blocks)


def save(run: Path, step: int, plan: Plan | None = None, **changes: Any) -> Path:
    position = Position(step, step // 4, step % 4, 0.5)
    facts = facts_array(RECIPE, (plan or plan_of()).fingerprint, position, 4, MACHINE)
    if changes:
        facts = np.frombuffer(json.dumps({**json.loads(facts.tobytes()), **changes}).encode(), np.uint8)
    arrays = {"position": np.array(position, np.float64), META: facts}
    return save_checkpoint(run, step, arrays, keep=9)
