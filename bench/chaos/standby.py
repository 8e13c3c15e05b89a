"""Plain Ray tasks that are killed together with what windrow runs: how long Ray alone takes to retry one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.chaos.cluster import kill

__all__ = ["StandBys"]

# what kills a node, whose task must not be down already for another reason
_NODE_KINDS = ("raylet", "objects")


@dataclass(frozen=True)
class _Strike:
    """A standby was killed; ``log`` is where it writes when it begins."""

    kind: str
    time: float
    log: Path


class StandBys:
    """Tasks that do nothing, with retries: one on each node, and another on each that may die.

    Parameters
    ----------
    folder
        Where they write each begin.
    nodes, mortal
        The ids of the nodes that stay, and of those that may die.
    """

    def __init__(self, folder: Path, nodes: Sequence[str], mortal: Sequence[str]) -> None:
        self._folder = folder
        self._logs: dict[tuple[str, str], Path] = {}
        self._refs: list[Any] = []
        self._strikes: list[_Strike] = []
        for node in nodes:
            self._begin(node, "worker")
        for node in mortal:
            self.begin(node)

    def begin(self, node: str) -> None:
        """Start the tasks of a node that may die."""
        self._begin(node, "worker")
        self._begin(node, "node")

    def _begin(self, node: str, name: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        log = self._logs[node, name] = self._folder / f"standby-{name}-{node}"
        there = NodeAffinitySchedulingStrategy(node, soft=True)
        stand_by: Any = ray.remote(num_cpus=0, max_retries=-1)(_stand_by)
        options = {"name": f"standby-{name}", "scheduling_strategy": there}
        self._refs.append(stand_by.options(**options).remote(str(log), node))

    def strike(self, kind: str, node: str | None, moment: float) -> None:
        """Something of a node was killed: kill its task as well, unless Ray is about to start it."""
        name = "node" if kind in _NODE_KINDS else "worker"
        log = None if node is None else self._logs.get((node, name))
        begins = [] if log is None else _read_begins(log)
        if (
            log is None
            or not begins
            or any(begins[-1][0] <= old.time for old in self._strikes if old.log == log)
        ):
            return
        kill(begins[-1][1])
        self._strikes.append(_Strike(kind, moment, log))

    def measure(self) -> dict[str, list[float]]:
        """For each kind of kill: the seconds after which Ray had each task begin again."""
        found: dict[str, list[float]] = {}
        for strike in self._strikes:
            begun = [began for began, _ in _read_begins(strike.log) if began > strike.time]
            if begun:
                found.setdefault(strike.kind, []).append(begun[0] - strike.time)
        return found


def _read_begins(log: Path) -> list[tuple[float, int]]:
    """When the task of a node began, each time, and in which process."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(float(moment), int(process)) for moment, process in (line.split() for line in lines)]


def _stand_by(log: str, node: str) -> None:
    import ray

    with Path(log).open("a") as file:
        file.write(f"{time.time()} {os.getpid()}\n")
    # somewhere else it has been retried, and stands by for nothing
    while ray.get_runtime_context().get_node_id() == node:
        time.sleep(3600.0)
