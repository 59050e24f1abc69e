"""Dask clusters of threads in this process: all of the protocol, no processes to start."""

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

from distributed import LocalCluster


@contextlib.contextmanager
def threads_cluster(workers: int, threads: int = 1) -> Iterator[Any]:
    """A cluster whose workers are threads; `.scheduler_address` is what `--scheduler` takes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dask's own
        with LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            processes=False,
            dashboard_address="127.0.0.1:0",
            memory_limit=0,
            silence_logs=logging.CRITICAL,
        ) as cluster:
            yield cluster
