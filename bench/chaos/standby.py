"""A baseline for recovery times: plain Ray tasks that are killed together with windrow's processes."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.cluster import kill

__all__ = ["StandbyTasks"]

# these kill a whole node; its task is separate from the one killed with workers, so it is always running
_NODE_KINDS = ("raylet", "objects")


@dataclass(frozen=True)
class _StandbyKill:
    """A standby task was killed; it logs each of its starts to ``log``."""

    kind: str
    time: float
    log: Path


class StandbyTasks:
    """Tasks with retries that only sleep: one on each node, and a second one on each node that may be killed.

    Parameters
    ----------
    folder
        Folder of the logs of their starts.
    nodes, killable_nodes
        Ids of the nodes that are never killed, and of those that may be.
    """

    def __init__(self, folder: Path, nodes: Sequence[str], killable_nodes: Sequence[str]) -> None:
        self._folder = folder
        self._logs: dict[tuple[str, str], Path] = {}
        self._refs: list[Any] = []
        self._kills: list[_StandbyKill] = []
        for node in nodes:
            self._begin(node, "worker")
        for node in killable_nodes:
            self.begin(node)

    def begin(self, node: str) -> None:
        """Start the tasks of a node that may be killed."""
        self._begin(node, "worker")
        self._begin(node, "node")

    def _begin(self, node: str, name: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        log = self._logs[node, name] = self._folder / f"standby-{name}-{node}"
        there = NodeAffinitySchedulingStrategy(node, soft=True)
        task: Any = ray.remote(num_cpus=0, max_retries=-1)(_sleep_on_node)
        options = {"name": f"standby-{name}", "scheduling_strategy": there}
        self._refs.append(task.options(**options).remote(str(log), node))

    def kill_task(self, kind: str, node: str | None, moment: float) -> None:
        """After a kill on a node, kill its standby task too, unless Ray is still restarting it."""
        name = "node" if kind in _NODE_KINDS else "worker"
        log = None if node is None else self._logs.get((node, name))
        begins = [] if log is None else _read_begins(log)
        if (
            log is None
            or not begins
            or any(begins[-1][0] <= old.time for old in self._kills if old.log == log)
        ):
            return
        kill(begins[-1][1])
        self._kills.append(_StandbyKill(kind, moment, log))

    def measure(self) -> dict[str, list[float]]:
        """For each kind of kill: seconds until Ray had restarted each standby task."""
        found: dict[str, list[float]] = {}
        for killed in self._kills:
            begun = [began for began, _ in _read_begins(killed.log) if began > killed.time]
            if begun:
                found.setdefault(killed.kind, []).append(begun[0] - killed.time)
        return found


def _read_begins(log: Path) -> list[tuple[float, int]]:
    """Time and process id of each start of a node's task."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(float(moment), int(process)) for moment, process in (line.split() for line in lines)]


def _sleep_on_node(log: str, node: str) -> None:
    import ray

    with Path(log).open("a") as file:
        file.write(f"{time.time()} {os.getpid()}\n")
    # retried on another node, it has served its purpose and ends
    while ray.get_runtime_context().get_node_id() == node:
        time.sleep(3600.0)
