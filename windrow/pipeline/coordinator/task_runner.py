"""`TaskRunner`: what a driver needs of the executor that it runs on."""

from __future__ import annotations

from typing import Any, Protocol

from windrow.pipeline.tasks.map_task import Task

__all__ = ["TaskRunner"]


class TaskRunner(Protocol):
    """Runs a driver's tasks."""

    @property
    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """The shards, grouped by the destination of their map outputs."""

    def run(self, task: Task, tables: Any, *cached: Any) -> None:
        """Start a task, which ends with a call of the driver's ``task_done`` or ``task_failed``.

        ``tables`` is the handle of the read task's output, for a task that only places rows.
        ``cached`` holds the handles of the cached blocks that ``task.found`` lists.
        """
