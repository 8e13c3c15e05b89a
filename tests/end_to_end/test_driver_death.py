"""A killed driver leaves nothing behind on a running cluster, and its trainers get an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPOSITORY
from tests.end_to_end.data import write_wide
from tests.end_to_end.reading import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

STORE_BYTES = 80 * 2**20
WAIT_SECONDS = 90.0

# holds far more than the object stores can, and is killed meanwhile
_DRIVER = """
import sys, time
import ray, windrow
from tests.end_to_end.test_driver_death import Trainer

address, path = sys.argv[1:]
ray.init(address=address, namespace="tests", log_to_driver=False, logging_level="ERROR")
ds = windrow.read_parquet(path, target_block_bytes=1)
pipe = ds.window(blocks_per_window=8).repeat().random_shuffle_each_window(seed=1)
pipe = pipe.options(executor="ray", memory_limit="400MB", prefetch_windows=4)
shards = pipe.split(3)
own = [ray.remote(Trainer).options(num_cpus=0).remote() for _ in range(2)]
trainers = [*own, ray.get_actor("outliving")]
refs = [trainer.begin.remote(shard) for trainer, shard in zip(trainers, shards)]
ray.get(refs)
print("reading", flush=True)
time.sleep(600)
"""


class Trainer:
    """Takes one batch, and the remaining ones when ``finish`` is called."""

    def begin(self, shard: Any) -> None:
        self._batches = iter(shard.iter_batches(1_000))
        next(self._batches)

    def finish(self) -> str:
        try:
            for _ in self._batches:
                pass
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "the end"


@pytest.fixture(scope="module")
def small_cluster() -> Iterator[Any]:
    """Provide two raylets with small object stores, and a driver that only observes."""
    import ray
    from ray.cluster_utils import Cluster

    node: dict[str, Any] = {"num_cpus": 2, "object_store_memory": STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, namespace="tests", log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def _living_actors() -> set[str]:
    from ray._private.state import actors

    return {actor["ActorClassName"] for actor in actors().values() if actor["State"] != "DEAD"}


def _stored_bytes() -> int:
    import ray

    name = "object_store_memory"
    return int(ray.cluster_resources()[name] - ray.available_resources().get(name, 0))


def _spilled_files() -> list[Path]:
    import ray

    session = Path(ray._private.worker._global_node.get_session_dir_path())
    return [path for path in session.glob("ray_spilled_objects*/**/*") if path.is_file()]


def test_killed_driver_leaves_nothing_behind(small_cluster: Any, tmp_path: Path) -> None:
    import ray

    path = write_wide(tmp_path / "x.parquet", 1_600_000, columns=16, row_group_size=40_000)
    outliving = ray.remote(Trainer).options(num_cpus=0, name="outliving").remote()
    shared = set(os.listdir("/dev/shm"))
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER, small_cluster.address, str(path)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    try:
        assert "reading\n" in iter(driver.stdout.readline, ""), driver.communicate()
        assert eventually(lambda: bool(_spilled_files()), WAIT_SECONDS), "nothing was spilled"
        assert _living_actors() == {"Coordinator", "Trainer"}
        assert _stored_bytes() > 0
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.communicate()
    # a trainer that outlives the driver gets an error, and does not prevent the release
    answer = ray.get(outliving.finish.remote(), timeout=WAIT_SECONDS)
    assert answer.startswith("StallError: shard 2 has lost the coordinator")
    ray.kill(outliving)
    assert eventually(lambda: not _living_actors(), WAIT_SECONDS), _living_actors()
    assert eventually(lambda: not _spilled_files(), WAIT_SECONDS), _spilled_files()
    assert eventually(lambda: _stored_bytes() == 0, WAIT_SECONDS), f"{_stored_bytes():,} bytes"
    # other programs of this machine may have some there for a moment
    assert eventually(lambda: set(os.listdir("/dev/shm")) <= shared, WAIT_SECONDS), os.listdir("/dev/shm")
