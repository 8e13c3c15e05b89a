"""A local Ray cluster of several raylets, ways to kill its processes, and plain tasks to compare with."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.chaos.setting import ACTOR, HOST, Kill, Setting
from bench.system.processes import list_tree, read_command

# Ray replaces a killed worker within this time
_STARTS_SECONDS = 5.0
_POLL_SECONDS = 0.02
# these kill a whole node; its task is separate from the one killed with workers, so it is always running
NODE_KINDS = ("raylet", "objects")
_TITLES = {
    "worker": ("ray::windrow", "ray::IDLE"),
    "coordinator": ("Coordinator",),
    ACTOR: ("ray::_Worker",),
    HOST: ("ray::_HostActor",),
}


class ChaosCluster:
    """A head node with the driver and the coordinator, nodes with trainers, and nodes that only run data tasks."""

    def __init__(self, setting: Setting) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": setting.cpus, "object_store_memory": setting.store_bytes}
        head = {**self._node, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        trainer_nodes = [self._cluster.add_node(**self._node) for _ in range(setting.nodes[0])]
        self._data_nodes = [self._cluster.add_node(**self._node) for _ in range(setting.nodes[1])]
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self.head = str(self._cluster.head_node.node_id)
        self.trainer_nodes = [str(node.node_id) for node in trainer_nodes]

    def __enter__(self) -> ChaosCluster:
        return self

    def __exit__(self, *_: object) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()

    @property
    def data_nodes(self) -> list[str]:
        return [str(node.node_id) for node in self._data_nodes]

    def kill_worker(self, rng: random.Random, kind: str) -> str | None:
        """Kill a worker process of a kind; returns the id of its node, or None if there is none."""
        workers = [
            (process, str(node.node_id))
            for node in self._cluster.list_all_nodes()
            for process in list_tree(_raylet(node))[1:]
        ]
        # a process with a map task, or else an idle one
        for title in _TITLES[kind]:
            if found := [one for one in workers if title in read_command(one[0])]:
                process, node = rng.choice(found)
                return node if kill(process) else None
        return None

    def kill_starting(self, rng: random.Random, *, anywhere: bool) -> str | None:
        """Kill the map workers of a node, and the first process that Ray starts to replace them.

        The node is one without trainers, or with ``anywhere`` any node except the head. Returns its id, or None if
        no worker was killed as it started.
        """
        nodes = [node for node in self._cluster.list_all_nodes() if str(node.node_id) != self.head]
        nodes = nodes if anywhere else self._data_nodes
        busy = [node for node in nodes if any(map(_is_map_worker, list_tree(_raylet(node))[1:]))]
        if not busy:
            return None
        node = rng.choice(busy)
        for process in filter(_is_map_worker, list_tree(_raylet(node))[1:]):
            kill(process)
        until = time.monotonic() + _STARTS_SECONDS
        while time.monotonic() < until:
            if any(kill(process) for process in filter(_is_starting, list_tree(_raylet(node))[1:])):
                return str(node.node_id)
            time.sleep(_POLL_SECONDS)
        return None

    def kill_data_node(self, rng: random.Random, held_bytes: int = 0) -> str | None:
        """Kill the raylet of a node without trainers, and all its workers.

        Returns the id of its node, or None if no such node's object store holds ``held_bytes``.
        """
        found = [node for node in self._data_nodes if not held_bytes or _held_bytes(node) >= held_bytes]
        if not found:
            return None
        node = rng.choice(found)
        self._data_nodes.remove(node)
        for process in list_tree(_raylet(node)):
            kill(process)
        self._cluster.remove_node(node, allow_graceful=False)
        return str(node.node_id)

    def add_data_node(self) -> str:
        self._data_nodes.append(self._cluster.add_node(**self._node))
        return str(self._data_nodes[-1].node_id)

    def fill_store(self, rng: random.Random, share: float, seconds: float) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(rng.choice(self.trainer_nodes), soft=False)
        size_bytes = int(share * self._node["object_store_memory"])
        fill: Any = ray.remote(num_cpus=0)(_fill)
        fill.options(scheduling_strategy=there).remote(size_bytes, seconds)


def kill(process: int) -> bool:
    """Kill a process of the cluster; returns whether it was running."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def _fill(size_bytes: int, seconds: float) -> None:
    import numpy as np
    import ray

    reference = ray.put(np.ones(size_bytes, np.uint8))
    time.sleep(seconds)
    del reference


def _held_bytes(node: Any) -> float:
    from ray._private import state

    name = "object_store_memory"
    free = state.available_resources_per_node().get(str(node.node_id), {})
    total = state.total_resources_per_node().get(str(node.node_id), {})
    return float(total.get(name, 0) - free.get(name, 0))


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _is_map_worker(process: int) -> bool:
    """Whether a process runs a map task or a standby task, or is idle."""
    return read_command(process).startswith(("ray::windrow", "ray::IDLE", "ray::standby-worker"))


def _is_starting(process: int) -> bool:
    """Whether a process is a worker that has not registered yet: registration sets its title."""
    return "default_worker.py" in read_command(process)


class StandbyTasks:
    """Tasks with retries that only sleep: one on each node, and a second one on each node that may be killed."""

    def __init__(self, folder: Path, nodes: Sequence[str], killable_nodes: Sequence[str]) -> None:
        self._folder = folder
        self._logs: dict[tuple[str, str], Path] = {}
        self._refs: list[Any] = []
        # kills of standby tasks, each with the log of its starts
        self._kills: list[tuple[Kill, Path]] = []
        for node in nodes:
            self.begin(node, "worker")
        for node in killable_nodes:
            self.begin(node, "worker", "node")

    def begin(self, node: str, *names: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node, soft=True)
        task: Any = ray.remote(num_cpus=0, max_retries=-1)(_sleep_on_node)
        for name in names:
            log = self._logs[node, name] = self._folder / f"standby-{name}-{node}"
            options = {"name": f"standby-{name}", "scheduling_strategy": there}
            self._refs.append(task.options(**options).remote(str(log), node))

    def kill_task(self, done: Kill, node: str | None) -> None:
        """After a kill on a node, kill its standby task too, unless Ray is still restarting it."""
        name = "node" if done.kind in NODE_KINDS else "worker"
        log = None if node is None else self._logs.get((node, name))
        begins = [] if log is None else _read_begins(log)
        if log is None or not begins:
            return
        began, process = begins[-1]
        if not any(began <= old.time for old, of_old in self._kills if of_old == log):
            kill(process)
            self._kills.append((done, log))

    def measure(self) -> dict[str, list[float]]:
        """For each kind of kill: seconds until Ray had restarted each standby task."""
        found: dict[str, list[float]] = {}
        for done, log in self._kills:
            begun = [began for began, _ in _read_begins(log) if began > done.time]
            if begun:
                found.setdefault(done.kind, []).append(begun[0] - done.time)
        return found


def _read_begins(log: Path) -> list[tuple[float, int]]:
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [(float(moment), int(process)) for moment, process in (line.split() for line in lines)]


def _sleep_on_node(log: str, node: str) -> None:
    import ray

    with Path(log).open("a") as file:
        file.write(f"{time.time()} {os.getpid()}\n")
    # retried on another node, it has served its purpose and ends
    while ray.get_runtime_context().get_node_id() == node:
        time.sleep(3600.0)
