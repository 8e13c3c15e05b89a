"""Watching a run on a cluster from outside: its object stores, its tasks, and what shards get."""

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
from windrow.pipeline.executors.ray import ray_task
from windrow.pipeline.executors.ray.coordinator import Coordinator

__all__ = [
    "TASK_DIGITS",
    "RanTask",
    "Reading",
    "StoreUse",
    "Stores",
    "WatchedCoordinator",
    "WatchedTrainer",
    "find_nodes",
    "find_tasks",
    "on_nodes",
]

# Ray's ids of tasks end with their actor's, which is this where there is none, and the job's.
_NO_ACTOR = "f" * 24
# An object's id begins with that of the task that made it.
TASK_DIGITS = 48


def find_nodes() -> list[str]:
    """The ids of all nodes, this process's first."""
    own = ray.get_runtime_context().get_node_id()
    return [own, *sorted(node["NodeID"] for node in ray.nodes() if node["NodeID"] != own and node["Alive"])]


def on_nodes(actor: type, nodes: Sequence[str]) -> list[Any]:
    """One actor on each node that is named, none of which takes a CPU."""
    remote: Any = ray.remote(actor)
    there = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes)
    return [remote.options(num_cpus=0, scheduling_strategy=strategy).remote() for strategy in there]


# --- stores


@dataclass(frozen=True)
class StoreUse:
    """What Ray counts of one node's object store: what stands there now, by where it came from."""

    made: int
    made_bytes: int
    received: int
    received_bytes: int


class _Witness:
    """Asks the object store of its own node."""

    def use(self) -> StoreUse:
        said: list[str] = []
        handler = logging.Handler()
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logger = logging.getLogger("ray._raylet")
        logger.setLevel(logging.WARNING)
        logger.addHandler(handler)
        ray._private.worker.global_worker.core_worker.log_plasma_usage()
        logger.removeHandler(handler)
        counts = {key: int(value) for key, value in re.findall(r"- ([a-z ]+): (\d+)", said[0])}
        return StoreUse(
            made=counts["objects created by worker"],
            made_bytes=counts["bytes created by worker"],
            received=counts["objects received"],
            received_bytes=counts["bytes received"],
        )


class Stores:
    """The object stores of some nodes, counted from now on."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self._witnesses = on_nodes(_Witness, nodes)
        self._before = self._ask()

    def use(self) -> list[StoreUse]:
        """What stands on each node more than when counting began."""
        pairs = zip(self._before, self._ask(), strict=True)
        return [
            StoreUse(*(now - was for was, now in zip(vars(b).values(), vars(a).values(), strict=True)))
            for b, a in pairs
        ]

    def _ask(self) -> list[StoreUse]:
        return ray.get([witness.use.remote() for witness in self._witnesses])


# --- tasks


@dataclass(frozen=True)
class RanTask:
    """A task, not a call on an actor, that ran anywhere in the cluster."""

    id: str
    name: str
    worker: str

    @property
    def part(self) -> str:
        """Its epoch, window and part, as windrow names its tasks."""
        return self.name.split(" ")[1]


def find_tasks() -> list[RanTask]:
    """Every task that Ray has heard the end of by now."""
    return [
        RanTask(event["args"]["task_id"], event["cat"].removeprefix("task::"), event["tid"].split(":")[1])
        for event in ray.timeline()
        if event["cat"].startswith("task::") and event["args"]["task_id"][16:40] == _NO_ACTOR
    ]


class WatchedCoordinator(Coordinator):
    """Notes with what arguments tasks are submitted."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._arguments: list[tuple[int, int]] = []
        remote, noted = ray_task._run_remote, self._arguments

        class Noting:
            def options(self, **options: Any) -> Any:
                self._ready = remote.options(**options)
                return self

            def remote(self, *arguments: Any) -> Any:
                noted.append(_weigh(arguments))
                return self._ready.remote(*arguments)

        ray_task._run_remote = Noting()

    async def arguments(self) -> list[tuple[int, int]]:
        """For each task the references among its arguments, and the bytes of the others."""
        return self._arguments


def _weigh(arguments: Any) -> tuple[int, int]:
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
class Got:
    """An object that a shard got: its size, and the nodes that held it then."""

    size_bytes: int
    holders: frozenset[str]


@dataclass(frozen=True)
class Reading:
    """What a shard has delivered, and out of which objects."""

    rows: int
    delivered_bytes: int
    got: dict[str, Got]
    # the nodes of workers, by the first digits of both
    nodes_of_workers: dict[str, str]
    dropped_windows: int


def _find_holders(refs: list[ray.ObjectRef]) -> dict[str, Got]:
    """Where objects are that this process has got.

    Their owner hears of a new copy some time after its reader does.
    """
    here = ray.get_runtime_context().get_node_id()
    found: dict[str, Got] = {}

    def has_received() -> bool:
        places = ray.experimental.get_object_locations(refs)
        for ref, where in places.items():
            found[ref.hex()] = Got(where["object_size"] or 0, frozenset(where["node_ids"] or ()))
        return all(here in got.holders and got.size_bytes for got in found.values())

    eventually(has_received)
    return found


class WatchedTrainer:
    """Reads an epoch of a shard, and notes the objects that its process gets."""

    def __init__(self) -> None:
        self._got: dict[str, Got] = {}
        self._totals: dict[str, int] = defaultdict(int)
        get = ray.get

        def noting(refs: Any, **options: Any) -> Any:
            values = get(refs, **options)
            if isinstance(refs, list):
                self._got |= _find_holders(refs)
            return values

        ray.get = noting

    def begin(self, shard: Shard) -> None:
        """Take the first batch: by then the shard has its whole first window."""
        self._shard = shard
        self._batches = iter(shard.iter_batches(4096, batch_format="pyarrow"))
        self._count(next(self._batches))

    def finish(self) -> Reading:
        """Take the rest."""
        for batch in self._batches:
            self._count(batch)
        run = self._shard.stats().run
        lanes = dict(re.findall(r"worker (\w+) on (\w+)", " ".join(span.lane for span in run.spans)))
        totals = self._totals
        return Reading(totals["rows"], totals["bytes"], dict(self._got), lanes, run.dropped_windows)

    def _count(self, batch: Any) -> None:
        self._totals["rows"] += batch.num_rows
        self._totals["bytes"] += batch.nbytes
