"""What the processes of a run take beside its data, and which runs are with those that run transforms."""

from __future__ import annotations

from collections.abc import Iterable

from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.actor_pool import CorePool
from windrow.pipeline.tasks.map_batches import MapBatches

# Measured: an interpreter with windrow and Arrow that has run a small function. What functions load comes on top.
PROCESS_BYTES = 80 * 2**20
# runs that are finished before the consumer asks for them, so that it does not wait for a slow one
_CALLS_READY = 2
# as it is placed, in memory that both processes map, and as the transform has made it
_COPIES = 3


def calls_ahead(workers: int, shards: int) -> int:
    """How many runs of a shard keep so many workers busy, of which all shards have the same share."""
    return -(-workers // max(1, shards)) + _CALLS_READY if workers else 0


def processes_bytes(program: Program, resources: Resources) -> int:
    """Memory other than data of all processes: of workers, trainers, hosts of replicas, and pools.

    What the functions of pools load is unknown.
    """
    job, shards = program.job, len(program.members)
    hosts = resources.replica_nodes if program.replicas > 1 else 0
    trainers = shards * (program.replicas * resources.shard_bytes + hosts * resources.worker_bytes)
    # on Ray, tasks run in processes already
    is_on_ray = not resources.limit_covers_all
    before = (stage for stage in job.before if not (is_on_ray and isinstance(stage.pool, CorePool)))
    workers = sum(_most(stage, resources) for stage in (*before, *job.after))
    pools = workers * max(resources.worker_bytes, PROCESS_BYTES)
    return resources.processes_bytes + trainers + pools


def extra_runs(stages: Iterable[MapBatches], shards: int, resources: Resources) -> int:
    """The runs that each shard holds beside those without transforms in processes."""
    most = max((_most(stage, resources) for stage in stages), default=0)
    return _COPIES * calls_ahead(most, shards)


def _most(stage: MapBatches, resources: Resources) -> int:
    # where tasks wait for object storage, there are several workers a core
    return 0 if stage.pool is None else stage.pool.sizes(round(resources.workers * resources.task_cpus))[1]
