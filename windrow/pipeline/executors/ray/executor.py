"""The Ray executor: map tasks on the cluster, one coordinator actor, shards in any process.

A session has the coordinator's handle, or finds it by name in processes that share a run.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray import cloudpickle

from windrow.core.errors import PlanError, StallError
from windrow.core.machine import available_cores, free_memory_bytes
from windrow.core.source import prepare_source
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.base import CoordinatorClient, Session, waiting_of
from windrow.pipeline.executors.ray.client import RayClient
from windrow.pipeline.executors.ray.cluster import (
    NAMESPACE,
    ClusterAddress,
    ShardNodes,
    connect,
    find_client,
    find_lost_cluster,
    format_starvation_warning,
    resolve_hints,
)
from windrow.pipeline.executors.ray.coordinator import start_coordinator
from windrow.pipeline.executors.ray.coordinator_calls import await_answer, get_run_stats, notify
from windrow.pipeline.executors.ray.lifeline import Channel
from windrow.pipeline.executors.ray.pickling import ON_THREADS, call_with_picklable, export_code
from windrow.pipeline.executors.ray.pools import warn_of_shortages
from windrow.pipeline.executors.ray.ray_task import start_workers
from windrow.pipeline.executors.ray.replica_hosts import MakeHost, RayReplicaSession
from windrow.pipeline.plan.job import Launch, Resources
from windrow.pipeline.plan.memory_budget import budget_program, overlap_waiting, size_parts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.stats import RunStats

logger = logging.getLogger(__name__)

# Ray's object store starts spilling above this share (object_spilling_threshold).
_STORE_SHARE = 0.8
_DEFAULT_STORE_SHARE_OF_MEMORY = 0.3
# By default Ray frees dead objects only after a second, and meanwhile puts new ones into untouched memory.
_FREE_SOON_MILLISECONDS = 50
# Each node has as many worker start slots as CPUs. A worker that dies before it has registered blocks its
# slot for a minute, and without a free slot Ray starts no worker there.
_EXTRA_START_SLOTS = 4
# Measured with `python -m bench memory`: a working interpreter with windrow, Arrow and Ray, and what reading a
# shard adds to a trainer's process.
_WORKER_BYTES = 80 * 2**20
_SHARD_BYTES = 24 * 2**20
# for the coordinator to say where replicas read
_MEET_SECONDS = 10.0
# Without extra windows each acknowledgement costs a call; avoiding that is worth two of the ten windows
# of the benchmark.
_SMALL_WINDOWS_BYTES = 192 * 2**20


@dataclass(frozen=True)
class RayExecutor:
    """Runs map tasks on a Ray cluster, served by one coordinator actor."""

    @property
    def name(self) -> str:
        return "ray"

    def resources(self, launch: Launch = Launch()) -> Resources:
        """The cluster's CPUs and 80 % of its object stores; before Ray is initialised, this machine's.

        Processes of a launcher that read on one cluster divide them.
        """
        if not ray.is_initialized():
            processes = launch.local_world_size
            store = free_memory_bytes() * _DEFAULT_STORE_SHARE_OF_MEMORY / processes
            cores = available_cores(processes)
            return Resources(
                "ray",
                cores,
                int(store * _STORE_SHARE),
                limit_covers_all=False,
                processes_bytes=(cores + 1 + launch.shared) * _WORKER_BYTES,
                shard_bytes=_SHARD_BYTES,
                worker_bytes=_WORKER_BYTES,
                small_windows_bytes=_SMALL_WINDOWS_BYTES,
                processes=processes,
            )
        total, has_free_cpu = ray.cluster_resources(), ray.available_resources().get("CPU", 0) >= 1
        nodes = max(1, sum(node["Alive"] for node in ray.nodes()))
        processes = launch.sharing(nodes)
        workers = max(1, int(total.get("CPU", 0)) // processes)
        return Resources(
            executor="ray",
            workers=workers,
            memory_bytes=int(total.get("object_store_memory", 0) * _STORE_SHARE / processes),
            limit_covers_all=False,
            # rows that cross nodes are stored on both until they are consumed
            copies=2 - 1 / nodes,
            nodes=nodes,
            user_warnings=() if has_free_cpu else (format_starvation_warning(),),
            # the coordinator's too; a run that a launcher's processes share has a supervisor on each node
            processes_bytes=(workers + 1 + nodes * launch.shared) * _WORKER_BYTES,
            shard_bytes=_SHARD_BYTES,
            worker_bytes=_WORKER_BYTES,
            small_windows_bytes=_SMALL_WINDOWS_BYTES,
            processes=processes,
        )

    def session(self, program: Program, hints: Sequence[Any] | None, *, name: str | None = None) -> Session:
        """Start the coordinator, an actor that this process owns; ``name`` is its name in Ray's namespace."""
        start_ray()
        export_code()
        resources = self.resources(program.job.launch)
        if resources.memory_bytes == 0:
            raise PlanError("the Ray cluster has no object store memory: start it with object_store_memory")
        nodes = resolve_hints(hints, program.shards)
        resources = overlap_waiting(program, resources.with_replicas(max(map(len, nodes))))
        program = size_parts(program, resources)
        # raises before anything runs if the job cannot fit; batches are outside the object store
        budget_program(program, resources, 1)
        warn_of_shortages((*program.job.before, *program.job.after))
        # here, since the process that starts the run shall own what a sort puts into the object store
        prepare_source(program.job.source)
        blocks = len(program.job.source.blocks.rows)
        started = start_workers(min(resources.workers, blocks), nodes=resources.nodes)
        name = name or f"windrow-coordinator-{uuid.uuid4().hex}"
        coordinator, held = start_coordinator(program, resources, nodes, name=name)
        notify(coordinator.await_workers, started)
        return RaySession(coordinator, program, name, held, nodes)


def ray_settings() -> dict[str, Any]:
    """System configuration for a Ray cluster that windrow starts."""
    return {
        "free_objects_period_milliseconds": _FREE_SOON_MILLISECONDS,
        "worker_maximum_startup_concurrency": available_cores() + _EXTRA_START_SLOTS,
    }


def start_ray() -> None:
    """Start Ray on this machine, or connect to a cluster that runs there, unless this process is connected."""
    if ray.is_initialized():
        return
    gone = find_lost_cluster()
    if gone is not None:
        # Ray would wait for it for many minutes
        logger.warning(
            "the Ray cluster at %s has ended without `ray stop`; one is started on this machine", gone
        )
        ray.init(address="local", _system_config=ray_settings())
        return
    try:
        ray.init(_system_config=ray_settings())
    except ValueError:
        # a cluster is already running, with settings of its own
        ray.init()


class _RunSession(Session):
    """A run that processes reach through its coordinator; ``nodes`` are those of the replicas of each shard.

    ``cluster`` is where processes outside Ray find it.
    """

    def __init__(
        self, program: Program, name: str, nodes: ShardNodes, cluster: ClusterAddress | None = None
    ) -> None:
        self._program, self._name, self._cluster = program, name, cluster
        self._nodes = nodes if program.replicas > 1 else ()

    def _find_coordinator(self) -> Any:
        raise NotImplementedError

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        # first, since it may connect this process to Ray
        coordinator = self._find_coordinator()
        client = find_client(shard, self._nodes)
        return RayClient(coordinator, self._program, shard, batch_rows, seed, client)

    def for_replica(self, make: MakeHost, names: Sequence[Sequence[str]], replica: int) -> Session:
        """The session of one replica of each shard; ``names`` are those of all replicas of each."""
        return RayReplicaSession(self, self._program, make, self._name, names, replica, self._cluster)

    def meet_replicas(self, shard: int, node: str, replicas: Sequence[int]) -> dict[int, str]:
        """Tell which replicas of a shard read on a node; returns the node of each that is known."""
        answer = self._find_coordinator().meet_replicas.remote(shard, node, list(replicas))
        return ray.get(answer, timeout=_MEET_SECONDS)


class RaySession(_RunSession):
    """A job on a cluster, for any process of Ray's.

    ``held`` is what Ray needs to restart the coordinator, and has to be held by the process that started it.
    """

    def __init__(
        self, coordinator: Any, program: Program, name: str = "", held: Any = None, nodes: ShardNodes = ()
    ) -> None:
        super().__init__(program, name, nodes)
        self._coordinator = coordinator
        self._held = held

    def __reduce__(self) -> tuple[Any, ...]:
        return RaySession, (self._coordinator, self._program, self._name, None, self._nodes)

    def _find_coordinator(self) -> Any:
        return self._coordinator

    def run_stats(self, *, spans: bool) -> RunStats | None:
        """Statistics of the job, which the coordinator also has when every shard has been closed."""
        return get_run_stats(self._coordinator, "a process that reads no shard", spans=spans)

    def for_processes(self) -> Session:
        """A session that finds the coordinator by name: handles cannot be sent to processes outside Ray."""
        context = ray.get_runtime_context()
        cluster = ClusterAddress(context.gcs_address)
        return SharedSession(cluster, self._name, self._program, self._nodes, context.namespace)

    def for_workers(self, program: Program, shard: int) -> Session:
        return self.for_processes().for_workers(program, shard)


class SharedSession(_RunSession):
    """A run that any process of a node can use, found by name; a process connects to Ray when it first reads."""

    _cluster: ClusterAddress

    def __init__(
        self,
        cluster: ClusterAddress,
        name: str,
        program: Program,
        nodes: ShardNodes,
        namespace: str = NAMESPACE,
    ) -> None:
        super().__init__(program, name, nodes, cluster)
        self._namespace = namespace

    def run_stats(self, *, spans: bool) -> RunStats | None:
        """None: a process that has read nothing is not connected to Ray."""
        return None

    def for_workers(self, program: Program, shard: int) -> Session:
        """The run of the workers of all trainers; the first worker that asks starts it."""
        answer = self._find_coordinator().divide.remote(program.workers)
        name = await_answer(answer, "a DataLoader worker", waiting_of(program.job.options))
        return SharedSession(self._cluster, name, program, self._nodes * program.workers, self._namespace)

    def _find_coordinator(self) -> Any:
        connect(self._cluster)
        try:
            return ray.get_actor(self._name, namespace=self._namespace)
        except ValueError as error:
            raise StallError(
                "the run that this process shares with others has ended: the process that owned it is gone"
            ) from error


def start_run(
    channel: Channel, program: Program, ips: Sequence[Sequence[str]], seconds: float
) -> tuple[str, ShardNodes]:
    """Have the supervisor start a run for the shards of a program, each on nodes with some ``ips``.

    Returns its name, and the ids of the nodes.

    Raises what the supervisor raises, and a `StallError` after ``seconds``.
    """
    job = program.job
    pickled = call_with_picklable(
        lambda: cloudpickle.dumps(program), (*job.before, *job.after), job.source, otherwise=ON_THREADS
    )
    name = f"windrow-run-{uuid.uuid4().hex}"
    try:
        channel.send((name, pickled, ips))
        answer: Failure | ShardNodes = channel.receive(seconds)
    except (EOFError, OSError) as error:
        raise StallError(
            f"the supervisor of the job did not start the run ({type(error).__name__}: {error}): see its output"
        ) from error
    if isinstance(answer, Failure):
        answer.rethrow()
    return name, answer
