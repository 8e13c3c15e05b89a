"""A dead trainer: the others continue or get an error that names it, and it may rejoin late."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import numpy as np
import pytest
import ray

import windrow
from tests.end_to_end.data import write_wide
from tests.end_to_end.observation import find_nodes, on_nodes
from tests.end_to_end.reading import eventually
from windrow import Shard
from windrow.pipeline.coordinator.scheduling import memory_limit
from windrow.pipeline.executors.ray import coordinator
from windrow.pipeline.executors.ray.coordinator import Coordinator

pytestmark = pytest.mark.timeout(150)

ROWS = 240_000
BATCH_ROWS = 1_000
EPOCHS = 2
FAIL_SECONDS = 8.0


class Trainer:
    """Reads a shard, and dies on request."""

    def begin(self, shard: Shard, steps: int) -> tuple[list[int], Any]:
        """The first rows, and the state after them."""
        self._batches = iter(shard.iter_batches(BATCH_ROWS))
        keys = np.concatenate([next(self._batches)["key"] for _ in range(steps)])
        return keys.tolist(), shard.state_dict()

    def read(self, shard: Shard, state: Any = None) -> tuple[list[int], int]:
        """All remaining rows, and the number of windows that were dropped meanwhile."""
        if state is not None:
            shard.load_state_dict(state)
        keys = [batch["key"] for epoch in shard.iter_epochs() for batch in epoch.iter_batches(BATCH_ROWS)]
        return np.concatenate(keys).tolist(), shard.stats().run.dropped_windows

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class LongTimeoutCoordinator(Coordinator):
    """A coordinator with a long timeout, which holds rows for trainers without heartbeats."""

    def __init__(self, *args: Any, **options: Any) -> None:
        memory_limit.HEARTBEAT_TIMEOUT_SECONDS = 1_000.0
        super().__init__(*args, **options)


@pytest.fixture(scope="module")
def pipe(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> windrow.DatasetPipeline:
    """Six windows per epoch, of which two or three fit into the memory limit."""
    path = write_wide(tmp_path_factory.mktemp("wide") / "x.parquet", ROWS, columns=20, row_group_size=10_000)
    ds = windrow.read_parquet(str(path), target_block_bytes=1)
    pipe = ds.window(blocks_per_window=4).repeat(EPOCHS).random_shuffle_each_window(seed=5)
    return pipe.options(memory_limit="40MB")


@pytest.fixture(scope="module")
def expected(pipe: windrow.DatasetPipeline) -> list[list[int]]:
    """The rows that the threads executor delivers to two shards."""
    shards = pipe.options(executor="threads", memory_limit=None).split(2)
    parts: list[list[int]] = [[], []]
    for _ in range(EPOCHS):
        for batches in zip(*(shard.iter_batches(BATCH_ROWS) for shard in shards), strict=True):
            for part, batch in zip(parts, batches, strict=True):
                part.extend(batch["key"].tolist())
    return parts


def _kill(trainer: Any) -> None:
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(trainer.die.remote())


def test_others_continue_and_the_dead_trainer_rejoins_at_the_end(
    pipe: windrow.DatasetPipeline, expected: list[list[int]]
) -> None:
    living, dying, returning = on_nodes(Trainer, [find_nodes()[at] for at in (0, 1, 2)])
    shards = pipe.split(2)
    first, state = ray.get(dying.begin.remote(shards[1], 30))
    _kill(dying)
    found, dropped = ray.get(living.read.remote(shards[0]))
    assert found == expected[0]
    assert dropped > 0
    rest, _ = ray.get(returning.read.remote(shards[1], state))
    assert first + rest == expected[1]


def test_blocked_trainer_gets_an_error_that_names_the_missing_one(pipe: windrow.DatasetPipeline) -> None:
    living, dying = on_nodes(Trainer, find_nodes()[:2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "Coordinator", LongTimeoutCoordinator)
        shards = pipe.options(stall_timeout=FAIL_SECONDS).split(2)
    ray.get(dying.begin.remote(shards[1], 1))
    _kill(dying)
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(living.read.remote(shards[0]))
    assert isinstance(caught.value.cause, windrow.StallError)
    text = str(caught.value.cause)
    assert text.startswith("shard 0 has waited ")
    assert "for memory: " in text
    assert re.search(r"some of it for shard 1 \(at epoch 0, window \d; last heartbeat \d+ s ago\)", text), (
        text
    )
    del shards
    assert eventually(lambda: "Coordinator" not in _living_actors())


def _living_actors() -> set[str]:
    from ray._private.state import actors

    return {actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"}
