"""Workers and parameter servers as the chief knows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from segmenter.devices.strategy import StepEngine
from segmenter.extras.parameter_servers.control import Roles, Watch


class ServerCluster(StepEngine):
    """Workers and parameter servers of a chief, whose own devices only validate.

    Attributes:
        coordinator: coordinator of TensorFlow; schedules steps on workers, and repeats those of lost workers.
    """

    may_profile = may_try_xla = may_calibrate = memory_known = False

    def __init__(self, coordinator: Any, watch: Watch, trainer: Callable[[], Any]) -> None:
        self.coordinator, self.watch, self._trainer = coordinator, watch, trainer

    @property
    def trainer(self) -> Any:
        """Class of the training loop, imported when needed."""
        return self._trainer()

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
