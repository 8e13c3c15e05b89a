"""What the coordinator core runs in on Ray: the actor's clock, its restarts, and its tasks."""

from __future__ import annotations

import time
import uuid
import warnings
from collections.abc import Sequence
from typing import Any

import ray

from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.tasks.task import Task


class ActorEnvironment:
    """The coordinator core's environment; separate from the actor, whose methods any process can call."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    def now(self) -> float:
        """Monotonic clock of this process, in seconds."""
        return time.monotonic()

    def name_driver(self) -> str:
        """A random name."""
        return uuid.uuid4().hex[:8]

    def is_restarted(self) -> bool:
        """Whether Ray has restarted the actor."""
        with warnings.catch_warnings():
            # Ray itself uses an API that it deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            return bool(ray.get_runtime_context().was_current_actor_reconstructed)

    def user_warnings(self) -> tuple[str, ...]:
        """The warning that data tasks run without CPUs, once."""
        return self._coordinator.take_warnings()

    def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        """Submit a task to the cluster."""
        self._coordinator.submit(driver, task, tables, cached)
