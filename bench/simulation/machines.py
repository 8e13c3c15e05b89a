"""What the simulator needs from simulated machines: run a task, move objects, place runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.tasks.task import Task, TaskReport
from windrow.shuffle.order.runs import Run


class ObjectLost(Exception):  # noqa: N818 - an event of the simulation, named as its trace prints it
    pass


@dataclass
class Job:
    task: Task
    inputs: Sequence[Any]
    owner: int
    done: Callable[[Task, TaskReport, Any, Sequence[Any]], None]
    failed: Callable[[Failure], None]
    lost: Callable[[Task], None]
    tries: int = 0


class Machines(ABC):
    """Nodes with CPUs and objects; a handle refers to an object and has its ``map_output``."""

    def set_owner(self, owner: int) -> None:  # noqa: B027 - where the coordinator does not fail
        """Set the coordinator incarnation that owns objects from now on."""

    @abstractmethod
    def submit(self, job: Job) -> None:
        """Run a task as soon as a CPU is free."""

    @abstractmethod
    def transfer(self, node: str, handles: Sequence[Any], done: Callable[[], None]) -> None:
        """Move objects to a node; then ``done`` is called, whether they are available or not."""

    def check_available(self, handles: Sequence[Any]) -> None:  # noqa: B027 - where objects are not lost
        """Raise ObjectLost if an object is not available."""

    def is_owned(self, handle: Any) -> bool:
        """Whether the coordinator incarnation that owns an object is alive."""
        return True

    def join_runs(self, runs: Sequence[Run]) -> Sequence[Run]:
        """The runs as they are placed: one by one, or several together."""
        return runs

    @abstractmethod
    def spend_placing(self, shard: int, run: Run, then: Callable[[], None]) -> None:
        """Take the time that a shard needs to place a run."""

    @abstractmethod
    def place_rows(self, map_outputs: Sequence[Any], run: Run) -> Sequence[int]:
        """The rows of a run; raises ValueError if a place gets two, or none."""
