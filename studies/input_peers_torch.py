"""Arms of `studies.input_peers` in PyTorch: a reader of one's own by OpenCV, torchgeo, raster-vision.

Runs in a Python of its own (`--peer-python`), which needs nothing of ours.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from studies import input_peers_common as common


def _cv2_reader(options: argparse.Namespace) -> Any:
    """A `Dataset` as most people write it: `cv2.imread`, albumentations, a tensor."""
    import cv2
    import torch

    pairs, change = common.files(options.folder), common.transforms(options.case)

    class Tiles(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(pairs)

        def __getitem__(self, number: int) -> tuple[Any, Any]:
            image, label = pairs[number]
            read = cv2.cvtColor(cv2.imread(image), cv2.COLOR_BGR2RGB)
            moved = change(image=read, mask=cv2.imread(label, cv2.IMREAD_UNCHANGED))
            return torch.from_numpy(moved["image"]), torch.from_numpy(moved["mask"])

    return torch.utils.data.DataLoader(Tiles(), sampler=_endless(len(pairs)), **_loading(options))


def _torchgeo(options: argparse.Namespace) -> Any:
    """Two `RasterDataset`s, joined by place, and a sampler of windows; each tile of its grid stands alone."""
    import numpy as np
    import torch
    from torchgeo.datasets import RasterDataset, stack_samples
    from torchgeo.samplers import RandomGeoSampler

    change = common.transforms(options.case)

    class Labels(RasterDataset):
        is_image = False

    def changed(sample: dict[str, Any]) -> dict[str, Any]:
        image = sample["image"].permute(1, 2, 0).numpy().astype(np.uint8)
        moved = change(image=np.ascontiguousarray(image), mask=sample["mask"].numpy().astype(np.uint8))
        return {"image": torch.from_numpy(moved["image"]), "mask": torch.from_numpy(moved["mask"])}

    class Images(RasterDataset):
        is_image = True

    joined = Images(str(options.folder / "images")) & Labels(str(options.folder / "labels"))
    joined.transforms = changed
    length = options.batch * (options.batches + 64)
    sampler = RandomGeoSampler(joined, size=common.SIDE, length=length)
    return torch.utils.data.DataLoader(joined, sampler=sampler, collate_fn=stack_samples, **_loading(options))


def _rastervision(options: argparse.Namespace) -> Any:
    """Its data set of chips, images and labels of one name in two folders."""
    import torch
    from rastervision.pytorch_learner.dataset import SemanticSegmentationImageDataset

    tiles = SemanticSegmentationImageDataset(
        img_dir=str(options.folder / "images"),
        label_dir=str(options.folder / "labels"),
        transform=common.transforms(options.case),
    )
    return torch.utils.data.DataLoader(tiles, sampler=_endless(len(tiles)), **_loading(options))


def _loading(options: argparse.Namespace) -> dict[str, Any]:
    return {"batch_size": options.batch, "num_workers": options.workers}


class _endless:  # noqa: N801
    """Numbers below `count` in random order, again and again."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __iter__(self) -> Iterator[int]:
        import torch

        while True:
            yield from torch.randperm(self._count).tolist()

    def __len__(self) -> int:
        return 1 << 40


ARMS = {"cv2": _cv2_reader, "torchgeo": _torchgeo, "rastervision": _rastervision}


def main() -> None:
    """Measure one arm."""
    options = common.arguments(__doc__)
    import torch

    torch.set_num_threads(1)
    common.measure(ARMS[options.arm](options), options)


if __name__ == "__main__":
    main()
