"""Observes a run on a cluster from outside: object stores, tasks, and objects that shards fetch."""

from __future__ import annotations

import io
import logging
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tests.end_to_end.reading import eventually
from windrow import Shard
from windrow.pipeline.coordinator.scheduling import memory_limit
from windrow.pipeline.executors.ray import placement, ray_task
from windrow.pipeline.executors.ray.coordinator import Coordinator

__all__ = [
    "TASK_DIGITS",
    "RanTask",
    "Reading",
    "RecordingCoordinator",
    "RecordingTrainer",
    "StoreCounters",
    "Stores",
    "find_nodes",
    "find_tasks",
    "on_nodes",
]

# a task id of Ray ends with the id of the actor, which is this one for plain tasks, and that of the job
_NO_ACTOR = "f" * 24
# an object id starts with the id of the task that created the object
TASK_DIGITS = 48


def find_nodes() -> list[str]:
    """The ids of all nodes, starting with that of this process."""
    own = ray.get_runtime_context().get_node_id()
    return [own, *sorted(node["NodeID"] for node in ray.nodes() if node["NodeID"] != own and node["Alive"])]


def on_nodes(actor: type, nodes: Sequence[str]) -> list[Any]:
    """Start one actor on each given node, without a CPU slot."""
    remote: Any = ray.remote(actor)
    there = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes)
    return [remote.options(num_cpus=0, scheduling_strategy=strategy).remote() for strategy in there]


# --- stores


@dataclass(frozen=True)
class StoreCounters:
    """Ray's counters of one node's object store: current objects by origin."""

    made: int
    made_bytes: int
    received: int
    received_bytes: int


class _CounterReader:
    """Reads the counters of its own node's object store."""

    def use(self) -> StoreCounters:
        messages: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("ray._raylet")
        logger.setLevel(logging.WARNING)
        logger.addHandler(handler)
        ray._private.worker.global_worker.core_worker.log_plasma_usage()
        logger.removeHandler(handler)
        counts = {key: int(value) for key, value in re.findall(r"- ([a-z ]+): (\d+)", messages[0])}
        return StoreCounters(
            made=counts["objects created by worker"],
            made_bytes=counts["bytes created by worker"],
            received=counts["objects received"],
            received_bytes=counts["bytes received"],
        )


class Stores:
    """The object stores of some nodes, counted from the creation of this object."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._witnesses = on_nodes(_CounterReader, nodes)
        self._before = self._read()

    def use(self) -> list[StoreCounters]:
        """The difference of each node's counters to those at the start."""
        pairs = zip(self._before, self._read(), strict=True)
        return [
            StoreCounters(*(now - was for was, now in zip(vars(b).values(), vars(a).values(), strict=True)))
            for b, a in pairs
        ]

    def _read(self) -> list[StoreCounters]:
        return ray.get([witness.use.remote() for witness in self._witnesses])


# --- tasks


@dataclass(frozen=True)
class RanTask:
    """A plain task, not an actor call, that ran in the cluster."""

    id: str
    name: str
    worker: str

    @property
    def part(self) -> str:
        """Its epoch, window and part, from the name that windrow gives its tasks."""
        return self.name.split(" ")[1]


def find_tasks() -> list[RanTask]:
    """All tasks that have been reported to Ray as finished."""
    return [
        RanTask(event["args"]["task_id"], event["cat"].removeprefix("task::"), event["tid"].split(":")[1])
        for event in ray.timeline()
        if event["cat"].startswith("task::") and event["args"]["task_id"][16:40] == _NO_ACTOR
    ]


class RecordingCoordinator(Coordinator):
    """A coordinator that records the arguments of submitted tasks.

    On a busy machine it neither starts second copies of slow tasks nor drops windows of trainers that pause.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        memory_limit.HEARTBEAT_TIMEOUT_SECONDS = 3_600.0
        super().__init__(*args, **options)
        # on a busy machine tasks are silent for that long, and their copies would count
        placement.MIN_SILENCE_SECONDS = 3_600.0
        self._arguments: list[tuple[int, int]] = []
        remote, recorded = ray_task._run_remote, self._arguments

        class Recording:
            def options(self, **options: Any) -> Any:
                self._ready = remote.options(**options)
                return self

            def remote(self, *arguments: Any) -> Any:
                recorded.append(_measure_arguments(arguments))
                return self._ready.remote(*arguments)

        ray_task._run_remote = Recording()

    async def arguments(self) -> list[tuple[int, int]]:
        """For each task the number of references in its arguments, and the bytes of the other arguments."""
        return self._arguments


def _measure_arguments(arguments: Any) -> tuple[int, int]:
    references = 0

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            nonlocal references
            if isinstance(obj, ray.ObjectRef):
                references += 1
                return str, ()
            return super().reducer_override(obj)

    file = io.BytesIO()
    Pickler(file, protocol=5).dump(arguments)
    return references, len(file.getvalue())


# --- shards


@dataclass(frozen=True)
class FetchedObject:
    """An object that a shard fetched: its size, and the nodes that held it at that time."""

    size_bytes: int
    holders: frozenset[str]


@dataclass(frozen=True)
class Reading:
    """The rows that a shard has delivered, and the objects that it fetched."""

    rows: int
    delivered_bytes: int
    got: dict[str, FetchedObject]
    # node ids by worker ids, the first digits of each
    nodes_of_workers: dict[str, str]
    dropped_windows: int


def _find_holders(refs: list[ray.ObjectRef]) -> dict[str, FetchedObject]:
    """The locations of objects that this process has fetched.

    The owner of an object learns of a new copy later than its reader.
    """
    here = ray.get_runtime_context().get_node_id()
    found: dict[str, FetchedObject] = {}

    def has_received() -> bool:
        places = ray.experimental.get_object_locations(refs)
        for ref, where in places.items():
            found[ref.hex()] = FetchedObject(where["object_size"] or 0, frozenset(where["node_ids"] or ()))
        return all(here in got.holders and got.size_bytes for got in found.values())

    eventually(has_received)
    return found


class RecordingTrainer:
    """Reads an epoch of a shard, and records the objects that its process fetches."""

    def __init__(self) -> None:
        self._got: dict[str, FetchedObject] = {}
        self._totals: dict[str, int] = defaultdict(int)
        get = ray.get

        def recording(refs: Any, **options: Any) -> Any:
            values = get(refs, **options)
            if isinstance(refs, list):
                self._got |= _find_holders(refs)
            return values

        ray.get = recording

    def begin(self, shard: Shard) -> None:
        """Take the first batch, after which the shard has its complete first window."""
        self._shard = shard
        self._batches = iter(shard.iter_batches(4096, batch_format="pyarrow"))
        self._count(next(self._batches))

    def finish(self) -> Reading:
        """Take the remaining batches."""
        for batch in self._batches:
            self._count(batch)
        run = self._shard.stats().run
        lanes = dict(re.findall(r"worker (\w+) on (\w+)", " ".join(span.lane for span in run.spans)))
        totals = self._totals
        return Reading(totals["rows"], totals["bytes"], dict(self._got), lanes, run.dropped_windows)

    def _count(self, batch: Any) -> None:
        self._totals["rows"] += batch.num_rows
        self._totals["bytes"] += batch.nbytes
