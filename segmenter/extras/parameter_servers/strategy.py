"""The chief's side of a cluster with parameter servers: `tf.distribute.ParameterServerStrategy`."""

from __future__ import annotations

import logging
import socket
from contextlib import closing
from typing import Any

from segmenter.base.errors import DeviceError
from segmenter.config.devices import DistributionConfig
from segmenter.devices.machines.cluster import split
from segmenter.devices.strategy import Devices, Kind, make_devices
from segmenter.extras.parameter_servers.control import Roles, Watch


class ServerCluster(Kind):
    """Workers and parameter servers of a chief.

    Attributes:
        coordinator: coordinator of TensorFlow; schedules steps on workers, and repeats those of lost workers.
    """

    elsewhere = True

    def __init__(self, coordinator: Any, watch: Watch) -> None:
        self.coordinator, self.watch = coordinator, watch

    @property
    def trainer(self) -> Any:
        """Class of the training loop, imported when needed."""
        from segmenter.extras.parameter_servers.trainer import ServedTrainer

        return ServedTrainer

    @property
    def roles(self) -> Roles:
        """Roles of all its processes."""
        return self.watch.roles

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self.roles.workers)

    @property
    def servers(self) -> list[str]:
        """TensorFlow's name of each parameter server's CPU."""
        return [f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(len(self.roles.servers))]

    def describe(self) -> str:
        """Return a line on the roles of the processes."""
        pairs = ("worker", self.roles.workers), ("server", self.roles.servers)
        workers, servers = (f"{len(a)} {name}{'s' * (len(a) > 1)} ({', '.join(a)})" for name, a in pairs)
        return (
            f"parameter_server: {workers}, each on whole batches of its own, {servers}; the chief makes the "
            "batches and validates"
        )

    @property
    def computed_on(self) -> dict[str, str]:
        """Fact for checkpoints: asynchronous updates, whose bits cannot be repeated."""
        return {"updates": f"asynchronous, by {self.workers} workers"}


def make_chief(
    config: DistributionConfig, logical_devices: int | None = None, watch: Watch | None = None
) -> Devices:
    """Set up the chief's own device, and connect the cluster of a watch.

    Raises:
        DeviceError: as in `make_devices` and `connect`.
    """
    alone = config.model_copy(update={"strategy": "one_device"})
    return make_devices(alone, logical_devices, kind=Kind if watch is None else lambda: connect(watch))


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
    return ServerCluster(coordinator, watch)


def _own_address(roles: Roles) -> str:
    """Return an address for the chief's TensorFlow server, with any free port: no member calls it."""
    with closing(socket.create_server(("", 0))) as free:
        return f"{split(roles.chief)[0]}:{free.getsockname()[1]}"
