"""Page of what a training refuses, made by trying: `python -m website.refused` runs every offer.

Each offer of `website.offered` is a call of train.py for a few steps on small made data: it trains, or is
refused in one line. Settings that do not touch each other share a call; if that does not train, it is tried
in halves. Results are kept in website/refused.json, each when it is known, and docs/refused.md is
made of them; the same command goes on with those that are missing. TensorFlow is loaded once; each training
is a fork of that process. Shipped recipes train the nets that they name; where a setting is shown,
EfficientNet-Lite has the first blocks of its stages alone, with their pretrained weights: most of the time
is TensorFlow's tracing of blocks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from segmenter.model.architectures import Block
from website.offered import Offer, groups, joined, offers

ROOT = Path(__file__).parents[1]
TRAINS, REFUSED, FAULT = "trains", "refused", "fault"
RESULT, PAGE = ROOT / "website" / "refused.json", ROOT / "docs" / "refused.md"
_SECONDS = 3600
"""Limit of a training; it takes some 15 of one core, with XLA a minute."""
_SMALL = {
    "tiles.size": 64,
    "tiles.overlap": 0,
    "training.global_batch": 4,
    "training.epochs": 1,
    "training.warmup": 0,
    "training.input_workers": 0,
    "prediction.window": 128,
}
_LOADED = (
    "albumentations",
    "pyarrow.parquet",
    "segmenter.training.start",
    "segmenter.runs.report",
)
"""Modules that each training would import, and that start nothing."""
_OWN = {"folder": {"tiles.size": 32}}
_HEAD = """\
# Refused settings

Made by `python -m website.refused`, which runs `train.py` for a few steps with each setting of
[the recipe](recipe.md), each shipped recipe with its weights, and pairs of settings, without a GPU.
Settings that do not touch each other share a training. {trained} of {ran} train; these are refused before
they start, each in the line that stands here.{missing}

| recipe | settings | refused |
| --- | --- | --- |
"""


def outcomes(chosen: Sequence[Offer], folder: Path) -> Iterator[tuple[Offer, str, str]]:
    """Yield each offer with `trains`, `refused` or `fault`, and the line of refusal or the last lines.

    Call before TensorFlow has computed anything in this process: its threads do not survive a fork.
    """
    os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
    from segmenter.devices.setup import load_tensorflow

    load_tensorflow()
    for name in _LOADED:
        import_module(name)
    _forked(lambda: _make_data(folder), folder / "data.txt")
    for group in groups(chosen):
        yield from _outcomes(group, folder)


def _outcomes(group: Sequence[Offer], folder: Path) -> Iterator[tuple[Offer, str, str]]:
    """Try a group in one training; in halves if it does not train, to know whose line it is."""
    kind, line = _outcome(joined(group), folder, Path(tempfile.mkdtemp(dir=folder)) / "run")
    if kind == TRAINS or len(group) == 1:
        yield from ((offer, kind, line) for offer in group)
        return
    half = len(group) // 2
    for part in (group[:half], group[half:]):
        yield from _outcomes(part, folder)


def _outcome(offer: Offer, folder: Path, run: Path) -> tuple[str, str]:
    words = [str(ROOT / "configs" / f"{offer.recipe}.yaml"), "--run", str(run), *offer.options]
    elsewhere = any(f"strategy={kind}" in offer.name for kind in ("tpu", "parameter_server"))
    if "--logical-devices" not in words and not elsewhere:
        words += ["--logical-devices", "1"]
    for setting in (*_settings(offer.recipe, folder), *offer.settings):
        words += ["--set", _in(setting, folder)]
    said = run.with_suffix(".txt")
    code = (
        _alone(words, said) if offer.alone else _forked(lambda: _train(words, few=bool(offer.settings)), said)
    )
    text = said.read_text(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    error = next((line for line in reversed(lines) if line.startswith("error: ")), "")
    if code == 2 and error and "Traceback (most recent call last)" not in text:
        return REFUSED, _without_places(error.removeprefix("error: "), folder)
    if code == 0 and _trained(run):
        return TRAINS, ""
    return FAULT, f"exit {code}: " + " / ".join(lines[-4:])[-600:]


def _trained(run: Path) -> bool:
    """Return whether a run has steps, all with a finite loss."""
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    losses = [record["loss"] for record in records if "loss" in record]
    return bool(losses) and bool(np.isfinite(losses).all())


def _settings(recipe: str, folder: Path) -> list[str]:
    data = "naic2020" if recipe.startswith("naic") else "potsdam" if recipe.startswith("potsdam") else recipe
    data = {"dubai_pretrained": "dubai"}.get(data, data)
    data += "_2" * (recipe == "naic2020_round2")
    own = _SMALL | _OWN.get(recipe, {}) | {"dataset.root": folder / data}
    lines = [f"{key}={value}" for key, value in own.items()]
    if data == "potsdam":
        lines.append("dataset.split={validation: ['2_11'], test: ['2_13']}")
    if recipe in ("potsdam_pretrained", "naic2020_pretrained"):  # no server is asked: a file of the same form
        lines.append("model.weights=KERAS_RESNET50")
    return lines


def _in(setting: str, folder: Path) -> str:
    places = {"KERAS_RESNET50": folder / "resnet50.weights.h5", "CACHE": folder / "cache"}
    for word, path in places.items():
        setting = setting.replace(word, str(path))
    if setting.startswith("dataset.round=2"):
        return f"dataset={{kind: naic2020, round: 2, root: {folder / 'naic2020_2'}}}"
    return setting


def _without_places(line: str, folder: Path) -> str:
    line = line.replace(f"{ROOT}/", "").replace(str(folder), "DATA")
    return re.sub(r"^configs/\w+\.yaml: ", "", line)


def _train(words: list[str], *, few: bool) -> int:
    from datasets.commands.train import main
    from segmenter.base.errors import run_tool
    from segmenter.model import architectures
    from segmenter.model.pretrained import encoder_weights

    if few:  # in this fork alone
        vars(architectures)["_lite"] = _few(architectures._lite)
        vars(encoder_weights)["_refuse_unknown"] = lambda *_: None  # the weights of the other blocks
    return run_tool(lambda: main(words))


def _few(lite: Callable[[str], Iterator[Block]]) -> Callable[[str], Iterator[Block]]:
    """Return the first block of each stage; of the second, two, as the other has a shortcut."""

    def few(encoder: str) -> Iterator[Block]:
        every = list(lite(encoder))
        ends = {block.name.partition("_")[0] for block in every if block.feature}
        for block in every:
            stage, _, number = block.name.partition("_")
            last = "block2" if stage == "stage2" else "block1"
            if number <= last:
                yield replace(block, feature=number == last and stage in ends)

    return few


def _forked(work: Callable[[], int | None], said: Path) -> int:
    """Return the exit code of a forked process that does the work and writes all it says to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.chdir(ROOT)
            code = work() or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    end = time.monotonic() + _SECONDS
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            end = float("inf")
        time.sleep(0.05)


def _alone(words: list[str], said: Path) -> int:
    with said.open("wb") as out:
        return subprocess.run(
            [sys.executable, "train.py", *words], cwd=ROOT, stdout=out, stderr=out, check=False
        ).returncode


# ------------------------------------------------------------------------------------------------- data


def _make_data(folder: Path) -> None:
    from datasets.commands import call
    from datasets.synthetic.demo import make_demo

    _dubai(folder / "dubai")
    _own_folder(folder / "folder")
    make_demo(folder / "demo", seed=1)
    call(["make", "potsdam", str(folder / "potsdam"), "--scenes", "3", "--size", "160"])
    for number in (1, 2):
        target = folder / ("naic2020" + "_2" * (number == 2))
        call(["make", "naic2020", str(target), "--scenes", "12", "--size", "64", "--round", str(number)])
    import keras

    weights = folder / "resnet50.weights.h5"
    keras.applications.ResNet50(weights=None, include_top=False).save_weights(weights)


def _blocks(classes: int, seed: int, height: int = 160, width: int = 144) -> np.ndarray:
    """Class ids in squares of 16 pixels: each tile shows every class."""
    ids = np.random.default_rng(seed).permuted(np.arange(90) % classes).reshape(10, 9)
    return ids.repeat(16, 0).repeat(16, 1)[:height, :width].astype(np.uint8)


def _image(ids_HW: np.ndarray, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 30, (3, *ids_HW.shape))
    return (ids_HW * 40 + noise).clip(0, 255).astype(np.uint8)


def _dubai(folder: Path) -> None:
    palette = np.array(
        [[0x3C, 0x10, 0x98], [0x84, 0x29, 0xF6], [0x6E, 0xC1, 0xE4], [0xFE, 0xDD, 0x3A], [0xE2, 0xA9, 0x29]]
    )
    for number, tile in enumerate((1, 2, 7)):
        for part in range(2):
            ids = _blocks(5, 2 * number + part, 96, 128)
            for kind, ending, array in (
                ("images", "jpg", _image(ids, part)),
                ("masks", "png", palette[ids].transpose(2, 0, 1).astype(np.uint8)),
            ):
                _written(folder / f"tile_{tile}" / kind / f"part_{part}.{ending}", array)


def _written(path: Path, array: np.ndarray, **profile: Any) -> None:
    import rasterio

    path.parent.mkdir(parents=True, exist_ok=True)
    form = {".tif": "GTiff", ".jpg": "JPEG", ".png": "PNG"}[path.suffix]
    sizes = dict(zip(("count", "height", "width"), array.shape, strict=True))
    with rasterio.open(path, "w", driver=form, dtype="uint8", **sizes, **profile) as file:
        file.write(array)


def _own_folder(folder: Path) -> None:
    import rasterio

    features = []
    for number in range(5):
        ids, left = _blocks(3, number), 300_000 + 1000 * number
        place = rasterio.Affine(1, 0, left, 0, -1, 5_000_000)
        for kind, array in (("images", _image(ids, number)), ("labels", ids[None])):
            _written(folder / kind / f"s{number}.tif", array, crs="EPSG:25833", transform=place)
        for row in range(0, 160, 16):
            for col in range(0, 144, 16):
                x, y = left + col, 5_000_000 - row
                ring = [[x, y], [x + 16, y], [x + 16, y - 16], [x, y - 16], [x, y]]
                kind = ("background", "building", "road")[ids[row, col]]
                shape = {"type": "Polygon", "coordinates": [ring]}
                features.append({"type": "Feature", "properties": {"kind": kind}, "geometry": shape})
    crs = {"type": "name", "properties": {"name": "urn:ogc:def:crs:EPSG::25833"}}
    text = json.dumps({"type": "FeatureCollection", "name": "areas", "crs": crs, "features": features})
    (folder / "areas.geojson").write_text(text)


def _processor() -> float:
    """Return the seconds of processor that this process, and all that ended under it, took."""
    return sum(sum(resource.getrusage(of)[:2]) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


# ------------------------------------------------------------------------------------------------- page


def page(result: dict[str, str]) -> str:
    """Return the page of the offers' results: `trains`, or the line of refusal."""
    by_name = {offer.name: offer for offer in offers()}
    refused = {name: line for name, line in result.items() if name in by_name and line != TRAINS}
    rows = [
        f"| `{by_name[name].recipe}` | {_code(by_name[name])} | {line} |" for name, line in refused.items()
    ]
    missing = len(by_name.keys() - result.keys())
    told = f" {missing} of {len(by_name)} were not run yet." if missing else ""
    ran = len(by_name) - missing
    return _HEAD.format(trained=ran - len(refused), ran=ran, missing=told) + "\n".join(rows) + "\n"


def _code(offer: Offer) -> str:
    words = [*offer.settings, " ".join(offer.options)]
    return ", ".join(f"`{word}`" for word in words if word) or "as shipped"


def kept() -> dict[str, str]:
    """Return the results so far: `trains` or the line of refusal, by the offers' names, in their order."""
    there = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    return {offer.name: there[offer.name] for offer in offers() if offer.name in there}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the offers without a result, keep what comes, and write the page; return 1 if one has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="make the page of the results so far alone")
    parser.add_argument("--again", action="store_true", help="run all, also those with a result")
    parser.add_argument("--only", default="", help="run the offers whose name holds this alone")
    given = parser.parse_args(arguments)
    done = {} if given.again else kept()
    chosen = [offer for offer in offers() if offer.name not in done and given.only in offer.name]
    faults, before = 0, _processor()
    with tempfile.TemporaryDirectory() as folder:
        for offer, kind, line in () if given.page else outcomes(chosen, Path(folder)):
            taken, before = _processor() - before, _processor()
            print(f"{kind}: {offer.name}: {line} [{taken:.0f} s]", flush=True)
            if kind == FAULT:
                faults += 1
                continue
            RESULT.write_text(
                json.dumps(kept() | {offer.name: line or kind}, indent=1, ensure_ascii=False) + "\n"
            )
    PAGE.write_text(page(kept()))
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
