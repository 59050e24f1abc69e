"""A cluster of this machine's processes, or a connection to a running one."""

from __future__ import annotations

import contextlib
import logging
import signal
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segmenter.base.errors import ClusterError
from segmenter.base.files import folder_aside
from segmenter.base.invocation import installation
from segmenter.base.machine import usable_cores
from segmenter.devices.setup import cards_listed
from segmenter.extras.dask.options import ClusterOptions

if TYPE_CHECKING:
    from segmenter.extras.dask.pool import Pool

_CONNECT_SECONDS = 20
_WORKER_SECONDS = 60
"""Seconds to wait for the first worker of a running scheduler."""
_END_SECONDS = 10
"""Seconds for workers to end by themselves before they are killed."""


@contextlib.contextmanager
def connect_workers(options: ClusterOptions) -> Iterator[Pool]:
    """Yield the workers that the options name, ready for work; at the end, stop those started here.

    Raises:
        ClusterError: Dask is not installed, the scheduler does not answer, or no process could be started.
    """
    client_class = _load(options)
    from segmenter.extras.dask.pool import Pool

    with contextlib.ExitStack() as stack:
        if options.scheduler is None:
            where: Any = stack.enter_context(_local(options))
            security = where.security
        else:
            where, security = options.scheduler, _security(options)
        try:
            client = client_class(
                where,
                timeout=_CONNECT_SECONDS,
                security=security,
                set_as_default=False,
                direct_to_workers=True,
            )
        except (OSError, ValueError) as error:  # TimeoutError is one
            raise ClusterError(_no_answer(options, error)) from None
        stack.callback(_close, client)
        try:
            client.wait_for_workers(1, timeout=_WORKER_SECONDS)
        except TimeoutError:
            raise ClusterError(
                options.asked, f"has no workers; start them with dask worker {options.scheduler or ''}"
            ) from None
        yield Pool(client, options)


def _load(options: ClusterOptions) -> Any:
    try:
        import dask
        from distributed import Client
    except ImportError as error:
        raise ClusterError(
            options.asked, f"needs Dask, which is not installed ({error}); run {installation('cluster')}"
        ) from None
    dask.config.set({"distributed.logging.distributed": "critical"})
    loggers = [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]
    for name in (*loggers, "tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters of it is in our lines
    return Client


def _no_answer(options: ClusterOptions, error: Exception) -> str:
    why = (str(error) or type(error).__name__).splitlines()[0].rpartition(": ")[2]
    return (
        f"{options.asked}: no Dask scheduler answers there ({why}); start one with dask scheduler, and "
        "workers with dask worker, of the same version"
    )


def _security(options: ClusterOptions) -> Any:
    if options.tls_ca is None:
        return None
    from distributed import Security

    return Security(
        tls_ca_file=str(options.tls_ca),
        tls_client_cert=str(options.tls_cert),
        tls_client_key=str(options.tls_key),
        require_encryption=True,
    )


@contextlib.contextmanager
def _local(options: ClusterOptions) -> Iterator[Any]:
    """Start processes on this machine; other users of the machine cannot connect to them."""
    import dask
    from distributed import LocalCluster

    assert options.workers is not None
    # All that its servers of pages would tell others; that they listen cannot be turned off.
    dask.config.set({f"distributed.{part}.http.routes": [] for part in ("scheduler", "worker", "nanny")})
    if (cards := cards_listed()) and options.workers > cards:
        raise ClusterError("--workers", expected=f"at most {cards}, one for each GPU", got=options.workers)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(folder_aside(Path(tempfile.gettempdir()) / "segmenter-workers"))
        # Ctrl-C is for this process, which ends the others: they inherit that it is held back. The tracker is
        # started before, since it would let it through again in the thread that starts it.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _put_off():
                cluster = LocalCluster(
                    n_workers=options.workers,
                    threads_per_worker=max(1, usable_cores() // options.workers),
                    memory_limit=0,  # the plan of windows keeps to it; Dask would kill and not ask
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False},
                    local_directory=str(scratch),
                    silence_logs=logging.CRITICAL,
                    security=True,
                )
                stack.callback(_end, cluster)
        except ImportError as error:
            raise ClusterError(options.asked, error, remedy=f"run {installation('cluster')}") from None
        except (OSError, RuntimeError) as error:
            raise ClusterError(options.asked, f"its processes cannot be started: {error}") from None
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield cluster


@contextlib.contextmanager
def _put_off() -> Iterator[None]:
    """Defer the signals that end a program until the processes run: half-started ones would remain.

    A second signal is not deferred.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: Any) -> None:
        if came:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        came.append(number)

    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _end(cluster: Any) -> None:
    with contextlib.suppress(Exception):  # its processes end with this one at the latest
        cluster.close(timeout=_END_SECONDS)


def _close(client: Any) -> None:
    with contextlib.suppress(Exception):  # a scheduler that is gone cannot be told
        client.close(timeout=_END_SECONDS)
