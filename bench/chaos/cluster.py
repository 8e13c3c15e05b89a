"""A cluster of several raylets of its own on this machine, and the processes of it, to be killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.chaos.setting import Setting
from bench.process_tree import list_tree

__all__ = ["ChaosCluster", "kill"]

# by then Ray has started a worker in the place of a killed one
_STARTS_SECONDS = 5.0
_LOOK_SECONDS = 0.02


class ChaosCluster:
    """A head with the driver, raylets for trainers, and raylets without any.

    Attributes
    ----------
    head, homes
        The id of the node that has the driver and the coordinator, and of those that have trainers.
    """

    def __init__(self, setting: Setting) -> None:
        import ray
        from ray.cluster_utils import Cluster

        self._node = {"num_cpus": setting.cpus, "object_store_memory": setting.store_bytes}
        head = {**self._node, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        homes = [self._cluster.add_node(**self._node) for _ in range(setting.nodes[0])]
        self._bare = [self._cluster.add_node(**self._node) for _ in range(setting.nodes[1])]
        ray.init(address=self._cluster.address, log_to_driver=False, logging_level="ERROR")
        self.head = str(self._cluster.head_node.node_id)
        self.homes = [str(node.node_id) for node in homes]

    def __enter__(self) -> ChaosCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()

    @property
    def bare(self) -> list[str]:
        """The ids of the nodes that have none."""
        return [str(node.node_id) for node in self._bare]

    def find_map_workers(self) -> list[tuple[int, str]]:
        """Worker processes that run a map task, else all idle ones, each with the id of its node."""
        workers = [(process, node, _read_title(process)) for process, node in self._workers()]
        busy = [(process, node) for process, node, title in workers if title.startswith("ray::windrow")]
        return busy or [(process, node) for process, node, title in workers if title.startswith("ray::IDLE")]

    def find_coordinators(self) -> list[tuple[int, str]]:
        """The coordinator's process and the id of its node, if it lives."""
        return [found for found in self._workers() if "Coordinator" in _read_title(found[0])]

    def kill_starting(self, chance: random.Random, *, anywhere: bool) -> str | None:
        """Kill the map workers of a node, and the first process that Ray starts in their place.

        The node is one without trainers, or with ``anywhere`` any but the head. Returns its id, or None where
        no worker was killed as it started.
        """
        nodes = [node for node in self._cluster.list_all_nodes() if str(node.node_id) != self.head]
        nodes = nodes if anywhere else self._bare
        busy = [node for node in nodes if any(map(_is_map_worker, list_tree(_raylet(node))[1:]))]
        if not busy:
            return None
        node = chance.choice(busy)
        for process in filter(_is_map_worker, list_tree(_raylet(node))[1:]):
            kill(process)
        until = time.monotonic() + _STARTS_SECONDS
        while time.monotonic() < until:
            if any(kill(process) for process in filter(_is_starting, list_tree(_raylet(node))[1:])):
                return str(node.node_id)
            time.sleep(_LOOK_SECONDS)
        return None

    def kill_bare_raylet(self, chance: random.Random, held_bytes: int = 0) -> str | None:
        """Kill a raylet that has no trainers, with all its workers.

        Returns its node's id, or None where no store of theirs holds so much.
        """
        found = [node for node in self._bare if not held_bytes or _held_bytes(node) >= held_bytes]
        if not found:
            return None
        node = chance.choice(found)
        self._bare.remove(node)
        processes = list_tree(_raylet(node))
        for process in processes:
            kill(process)
        self._cluster.remove_node(node, allow_graceful=False)
        return str(node.node_id)

    def add_bare_raylet(self) -> str:
        """Start another one in its place; returns its node's id."""
        self._bare.append(self._cluster.add_node(**self._node))
        return str(self._bare[-1].node_id)

    def fill_store(self, chance: random.Random, share: float, seconds: float) -> None:
        """Fill so much of the store of a node with trainers, for a while."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(chance.choice(self.homes), soft=False)
        size_bytes = int(share * self._node["object_store_memory"])
        fill: Any = ray.remote(num_cpus=0)(_fill)
        fill.options(scheduling_strategy=there).remote(size_bytes, seconds)

    def _workers(self) -> list[tuple[int, str]]:
        return [
            (process, str(node.node_id))
            for node in self._cluster.list_all_nodes()
            for process in list_tree(_raylet(node))[1:]
        ]


def kill(process: int) -> bool:
    """Kill a process of ours; returns whether it lived."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
        return True
    return False


def _fill(size_bytes: int, seconds: float) -> None:
    import numpy as np
    import ray

    kept = ray.put(np.ones(size_bytes, np.uint8))
    time.sleep(seconds)
    del kept


def _held_bytes(node: Any) -> float:
    from ray._private import state

    name = "object_store_memory"
    free = state.available_resources_per_node().get(str(node.node_id), {})
    total = state.total_resources_per_node().get(str(node.node_id), {})
    return float(total.get(name, 0) - free.get(name, 0))


def _raylet(node: Any) -> int:
    return int(node.all_processes["raylet"][0].process.pid)


def _is_map_worker(process: int) -> bool:
    """Whether a process runs a map task or a plain one, or is idle."""
    return _read_title(process).startswith(("ray::windrow", "ray::IDLE", "ray::standby-worker"))


def _is_starting(process: int) -> bool:
    """Whether a process is a worker that has not registered yet, which gives it its title."""
    return "default_worker.py" in _read_title(process)


def _read_title(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
