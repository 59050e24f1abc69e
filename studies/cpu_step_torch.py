"""PyTorch's side of `studies.cpu_step`: the same U-Net, loss and optimiser; needs PyTorch alone."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two 3 × 3 convolutions, each normalised and rectified."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (before, width):
            layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width, eps=1e-3)]
            layers.append(nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        """(B, C, H, W) → (B, width, H, W)."""
        return self.layers(x)


class UNet(nn.Module):
    """As the U-Net of `segmenter.model.building` with its defaults."""

    def __init__(self, depth: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(Block(a, b) for a, b in zip([3, *widths[:-1]], widths, strict=True))
        self.up = nn.ModuleList(Block(widths[i] + widths[i + 1], widths[i]) for i in reversed(range(depth)))
        self.logits = nn.Conv2d(width, classes, 1)

    def forward(self, x: Any) -> Any:
        """(B, 3, H, W) → (B, classes, H, W)."""
        skips = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            skips.append(x)
        for block, skip in zip(self.up, reversed(skips[:-1]), strict=True):
            x = block(torch.cat([functional.interpolate(x, scale_factor=2, mode="nearest"), skip], 1))
        return self.logits(x)


def main() -> None:
    """Say how many weights there are; then, for each line that comes, time some steps."""
    task = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    model = UNet(task["depth"], task["width"], task["classes"]).to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    rng, side = np.random.default_rng(0), task["side"]
    shape = (task["batch"], side, side)
    image = torch.from_numpy(rng.integers(0, 256, (*shape, 3), np.uint8)).permute(0, 3, 1, 2)
    label = torch.from_numpy(rng.integers(0, task["classes"], shape))

    def step() -> None:
        pixels = ((image.float() - 120) / 60).contiguous(memory_format=torch.channels_last)
        optimiser.zero_grad()
        loss = functional.cross_entropy(model(pixels), label)
        loss.backward()
        optimiser.step()
        loss.item()

    for _ in range(2):
        step()
    print(sum(p.numel() for p in model.parameters()), flush=True)
    for line in sys.stdin:
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            step()
        print(time.perf_counter() - clock, time.process_time() - processor, flush=True)


if __name__ == "__main__":
    main()
