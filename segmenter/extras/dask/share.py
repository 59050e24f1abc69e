"""A worker's share of its machine: one GPU, or its threads. Taken before TensorFlow is imported there."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from segmenter.base.errors import DeviceError
from segmenter.base.locks import FileLock
from segmenter.devices.setup import cards_listed

_VISIBLE = "CUDA_VISIBLE_DEVICES"
_held: list[FileLock] = []


def take_share(threads: int) -> None:
    """Let TensorFlow see one GPU that no other worker has, or without GPUs so many threads.

    A variable that whoever started the worker has set is kept: CUDA_VISIBLE_DEVICES, TF_NUM_…_THREADS. The
    GPU is marked by a lock that ends with the process, so that a worker that is started anew finds it free.

    Raises:
        DeviceError: there are more workers than GPUs.
    """
    if "tensorflow" in sys.modules or _held:  # of an earlier call: it cannot be changed any more
        return
    if _VISIBLE not in os.environ and (cards := cards_listed()):
        os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        os.environ[_VISIBLE] = str(_free_card(cards))
    for kind in ("INTRA", "INTER"):
        os.environ.setdefault(f"TF_NUM_{kind}OP_THREADS", str(max(1, threads)))


def _free_card(cards: int) -> int:
    folder = Path(tempfile.gettempdir()) / f"segmenter-cards-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        for card in range(cards):
            lock = FileLock(folder / f"{card}.lock")
            try:
                lock.take()
            except BlockingIOError:
                continue
            _held.append(lock)
            return card
    except OSError as error:
        raise DeviceError(f"{folder}: cannot mark a GPU as taken: {error.strerror}") from None
    raise DeviceError(
        f"expected a GPU for each worker, all {cards} are taken by others of this machine; start one worker "
        "a GPU, or set CUDA_VISIBLE_DEVICES for each"
    )
