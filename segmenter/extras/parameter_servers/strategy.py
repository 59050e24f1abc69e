"""The chief's side of a cluster with parameter servers: `tf.distribute.ParameterServerStrategy`."""

from __future__ import annotations

import functools
import logging
import os
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, NoReturn

from segmenter.base.errors import ConfigError, DeviceError, run_script
from segmenter.base.machine import usable_cores
from segmenter.config.devices import DistributionConfig
from segmenter.devices.machines.cluster import split
from segmenter.devices.setup import load_tensorflow
from segmenter.devices.strategy import Devices, StepEngine, make_devices
from segmenter.extras.parameter_servers.cluster import ServerCluster
from segmenter.extras.parameter_servers.control import Roles, Watch, check_port, roles_of, stay, watching


def run_role(
    config: DistributionConfig,
    named: tuple[Sequence[str] | None, str | None, int | None, int | None],
    train: Callable[[Watch], int],
) -> NoReturn:
    """Run this process in its role of a cluster, and end it with the exit code.

    Args:
        named: by `--cluster`, `--role`, `--index` and `--logical-devices`.
        train: trains as the chief, with the watch over its members, and returns the exit code.

    Raises:
        ConfigError: as of `roles_of`, or `--logical-devices` is given, which would do nothing here.
        DeviceError: as of `serve`.
    """
    if named[3] is not None:
        raise ConfigError(
            "--logical-devices", expected="without distribution.strategy: parameter_server", got="both"
        )
    roles = roles_of(*named[:3])
    if roles.role != "chief":
        serve(config, roles)

    def as_chief() -> int:
        with watching(roles) as watch:
            return train(watch)

    exit_process(run_script(as_chief))


def serve(config: DistributionConfig, roles: Roles) -> NoReturn:
    """Serve the chief until it ends, then exit: 0, or 1 if the chief has disappeared.

    Raises:
        DeviceError: the port is in use, or there is no separate GPU for this worker.
    """
    title = roles.title(roles.role, roles.index)
    check_port(title, roles.address)
    load_tensorflow(remote=True)
    import tensorflow as tf

    own = {roles.role: {roles.index: roles.address}}  # the chief says the others
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec(own),
            job_name=roles.role,
            task_index=roles.index,
            protocol="grpc",
            config=_session(config, roles),
        )
    except tf.errors.OpError as error:
        raise DeviceError(title, f"TensorFlow cannot serve there: {str(error).splitlines()[0]}") from None
    print(f"{title}: serves as {server.target}", flush=True)
    exit_process(run_script(functools.partial(stay, roles, lambda line: print(line, flush=True))))


def exit_process(code: int) -> NoReturn:
    """End a process of a cluster at once.

    TensorFlow's server cannot be stopped, and crashes if Python exits in the middle of a step; an exiting
    chief would wait for a lost worker without end.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_LEAST = 4
"""Threads for operations. TensorFlow takes as many as there are cores; with one, operations that wait for
each other wait for ever."""


def _session(config: DistributionConfig, roles: Roles) -> Any:
    """Configure the server's devices: one GPU for a worker, none for a parameter server."""
    import tensorflow as tf

    session = tf.compat.v1.ConfigProto()
    if usable_cores() < _LEAST:
        session.inter_op_parallelism_threads = _LEAST
    gpus = 0 if roles.role == "ps" else len(tf.config.list_physical_devices("GPU"))
    if not gpus:
        session.device_count["GPU"] = 0
        return session
    session.allow_soft_placement = config.soft_placement
    session.gpu_options.visible_device_list = str(own_gpu(config, roles, gpus))
    session.gpu_options.allow_growth = config.memory_growth
    return session


def own_gpu(config: DistributionConfig, roles: Roles, gpus: int) -> int:
    """Return the GPU of a worker on a machine with `gpus`: workers on a host take them in order.

    Raises:
        DeviceError: there are fewer GPUs than workers on the host, or the recipe's GPUs are missing.
    """
    visible = list(range(gpus)) if config.visible_devices is None else sorted(config.visible_devices)
    if missing := [number for number in visible if number >= gpus]:
        raise DeviceError(
            "distribution.visible_devices", expected=f"numbers from 0 to {gpus - 1}", got=missing[0]
        )
    if gpus == 1:  # a scheduler has given each process its own
        return 0
    if roles.place_on_host >= len(visible):
        raise DeviceError(
            f"{roles.title(roles.role, roles.index)}: expected a GPU for each worker of this machine, it is "
            f"the {roles.place_on_host + 1}th, there are {len(visible)}"
        )
    return visible[roles.place_on_host]


def make_chief(
    config: DistributionConfig, logical_devices: int | None = None, watch: Watch | None = None
) -> Devices:
    """Set up the chief's own device, and connect the cluster of a watch.

    Raises:
        DeviceError: as in `make_devices` and `connect`.
    """
    alone = config.model_copy(update={"strategy": "one_device"})
    return make_devices(alone, logical_devices, kind=StepEngine if watch is None else lambda: connect(watch))


def connect(watch: Watch) -> ServerCluster:
    """Wait for all members and connect TensorFlow to them; earlier TensorFlow objects become invalid.

    Raises:
        DeviceError: a member is missing, or TensorFlow cannot reach it.
    """
    import tensorflow as tf

    watch.wait_for_all()
    tf.get_logger().setLevel(logging.CRITICAL)  # pages for each lost worker, where we say a line
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    roles = watch.roles
    spec = {"chief": [_own_address(roles)], "worker": list(roles.workers), "ps": list(roles.servers)}
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(spec), task_type="chief", task_id=0, rpc_layer="grpc"
    )
    try:
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    except (tf.errors.OpError, ValueError) as error:
        raise DeviceError(f"TensorFlow cannot connect the cluster: {str(error).splitlines()[0]}") from None
    return ServerCluster(coordinator, watch, _trainer)


def _trainer() -> Any:
    from segmenter.extras.parameter_servers.trainer import ServedTrainer

    return ServedTrainer


def _own_address(roles: Roles) -> str:
    """Return an address for the chief's TensorFlow server, with any free port: no member calls it."""
    with closing(socket.create_server(("", 0))) as free:
        return f"{split(roles.chief)[0]}:{free.getsockname()[1]}"
