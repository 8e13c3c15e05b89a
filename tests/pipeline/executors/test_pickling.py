"""Classes that other processes run are exported, whatever RayDP has left set in a worker."""

from __future__ import annotations

from typing import Any

import pytest
import ray

import windrow


def read_as_raydp_leaves_it(rows: int) -> tuple[list[int], bool]:
    """Read all epochs in a worker whose switch is set; with it, Ray exports nothing that can be imported."""
    worker = ray._private.worker.global_worker
    worker.set_load_code_from_local(True)
    pipe = windrow.range(rows, block_rows=10).repeat(3).options(executor="ray")
    with pipe.shard(rank=1, world_size=2) as shard:
        found = [sum(len(batch["id"]) for batch in epoch.iter_batches(5)) for epoch in shard.iter_epochs()]
    return found, bool(worker.load_code_from_local)


@pytest.mark.nightly
def test_a_run_starts_in_a_worker_that_raydp_has_used(ray_local: Any) -> None:
    # each of its calls has a worker of its own, since others must not inherit the switch
    remote: Any = ray.remote(num_cpus=0, max_calls=1)(read_as_raydp_leaves_it)
    assert ray.get(remote.remote(40), timeout=120) == ([20, 20, 20], False)
