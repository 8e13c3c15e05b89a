"""The rank of this process, and how many processes share its machine."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import windrow
from windrow.core.errors import PlanError
from windrow.pipeline.executors import threads, threads_job
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.launch.launcher import find_launch, find_rank
from windrow.pipeline.plan.job import Launch


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delitem(sys.modules, "torch", raising=False)


def _torch(initialised: bool) -> Any:
    distributed = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialised,
        get_rank=lambda: 2,
        get_world_size=lambda: 4,
    )
    return SimpleNamespace(distributed=distributed)


def test_explicit_rank_and_world_size() -> None:
    assert find_rank(1, 3) == (1, 3)


def test_torch_takes_precedence_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "torch", _torch(initialised=False))
    assert find_rank(None, None) == (0, 2)
    monkeypatch.setitem(sys.modules, "torch", _torch(initialised=True))
    assert find_rank(None, None) == (2, 4)
    assert find_rank(0, 1) == (0, 1)


def test_torch_is_never_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    find_rank(None, None)
    assert "torch" not in sys.modules


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (None, None, r"RANK and WORLD_SIZE are not set. To fix it, call shard\(rank=..., world_size=...\)"),
        (0, None, r"shard\(rank=0, world_size=None\): give both, or neither"),
        (None, 2, r"shard\(rank=None, world_size=2\): give both, or neither"),
        (2, 2, r"rank=2 must be an integer from 0 to world_size - 1 = 1"),
        (-1, 2, r"rank=-1 must be"),
        (True, 2, r"rank=True must be"),
        (0, 0, r"world_size=0 must be an integer of 1 or more"),
    ],
)
def test_bad_rank_or_world_size(rank: Any, world_size: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        find_rank(rank, world_size)


@pytest.mark.parametrize(
    ("rank", "world_size", "message"),
    [
        (None, "2", "RANK is not set"),
        ("1", None, "WORLD_SIZE is not set"),
        ("one", "2", "RANK='one', WORLD_SIZE='2' are not integers"),
        ("3", "2", "rank=3 must be"),
    ],
)
def test_bad_environment(
    monkeypatch: pytest.MonkeyPatch, rank: str | None, world_size: str | None, message: str
) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", world_size)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(PlanError, match=message):
        find_rank(None, None)


@pytest.fixture
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "LOCAL_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "SLURM_NTASKS_PER_NODE",
        "SLURM_STEP_TASKS_PER_NODE",
        "SLURM_NODEID",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_launcher")
def test_local_process_count_from_launcher_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_launch(8) == Launch()
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2")
    assert find_launch(8) == Launch(2, 8)
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "3")
    assert find_launch(8) == Launch(3, 8)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert find_launch(8) == Launch(4, 8)
    # a process whose world size is 1 still shares the machine
    assert find_launch(1) == Launch(4, 4)


@pytest.mark.usefixtures("_no_launcher")
def test_process_of_a_batch_script_without_srun_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    # SLURM sets these in an sbatch script, whether or not its commands use srun
    for name, value in (("SLURM_NTASKS_PER_NODE", "4"), ("SLURM_PROCID", "0"), ("SLURM_LOCALID", "0")):
        monkeypatch.setenv(name, value)
    assert find_launch(1) == Launch()
    assert find_launch(4) == Launch()
    # srun -n 1 in the same script
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1")
    assert find_launch(1) == Launch(1, 1)


@pytest.mark.usefixtures("_no_launcher")
@pytest.mark.parametrize(
    ("text", "node", "tasks"),
    [
        ("4", "0", 4),
        ("4(x2)", "1", 4),
        ("2(x3),1", "2", 2),
        ("2(x3),1", "3", 1),
        ("1,3", None, 3),
        ("1,3", "7", 3),
        ("1,3", "x", 3),
    ],
)
def test_task_count_of_a_slurm_step(
    monkeypatch: pytest.MonkeyPatch, text: str, node: str | None, tasks: int
) -> None:
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", text)
    if node is not None:
        monkeypatch.setenv("SLURM_NODEID", node)
    assert find_launch(8) == Launch(tasks, 8)


@pytest.mark.usefixtures("_no_launcher")
@pytest.mark.parametrize("text", ["", "four", "0", "2(x0)", "2(x", "2,,1", "2 (x3)"])
def test_bad_task_counts_of_a_slurm_step(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", text)
    with pytest.raises(PlanError, match=r"SLURM_STEP_TASKS_PER_NODE='.*' is not a list of task counts"):
        find_launch(1)


@pytest.mark.usefixtures("_no_launcher")
@pytest.mark.parametrize("text", ["", "four", "0", "-1", "2.0"])
def test_bad_local_world_size(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", text)
    with pytest.raises(PlanError, match=f"LOCAL_WORLD_SIZE='{text}' is not a number of processes"):
        windrow.range(9).repeat(1).shard(rank=0, world_size=1)


@pytest.mark.parametrize(
    ("local", "world", "nodes", "sharing"),
    [(1, 1, 1, 1), (4, 8, 1, 4), (4, 8, 2, 8), (8, 8, 4, 8), (1, 1, 3, 1)],
)
def test_number_of_processes_that_share_a_cluster(local: int, world: int, nodes: int, sharing: int) -> None:
    assert Launch(local, world).sharing(nodes) == sharing


@pytest.mark.usefixtures("_no_launcher")
def test_local_processes_divide_memory_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "free_memory_bytes", lambda: 8 * 2**30)
    monkeypatch.setattr(threads, "available_cores", lambda processes=1: 8 // processes)
    pipe = windrow.range(9, block_rows=3).repeat(2).options(executor="threads")
    alone = pipe.explain(4)
    assert "share " not in str(alone)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    divided = pipe.explain(4)
    assert (alone.workers, divided.workers) == (8, 2)
    assert (alone.budget.limit_bytes, divided.budget.limit_bytes) == (4 * 2**30, 2**30)
    assert (
        "share    4 processes of a launcher divide the workers and the default memory limit: 2 workers each"
        in str(divided)
    )
    # an explicit limit is per process
    assert pipe.options(memory_limit="3GiB").explain(4).budget.limit_bytes == 3 * 2**30


@pytest.mark.usefixtures("_no_launcher")
def test_worker_pool_gets_its_share_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[tuple[int, int]] = []

    def note(workers: int, name: str, cores: int) -> WorkerPool:
        pools.append((workers, cores))
        return WorkerPool(workers, name, cores)

    monkeypatch.setattr(threads_job, "WorkerPool", note)
    for module in (threads, threads_job):
        monkeypatch.setattr(module, "available_cores", lambda processes=1: 8 // processes)
    pipe = windrow.range(9, block_rows=3).repeat(2).options(executor=ThreadsExecutor())
    for local in ("1", "2", "8"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
        with pipe.shard(rank=1, world_size=8) as shard:
            assert [batch["id"].tolist() for batch in shard.iter_batches(1)] == [[1]]
    assert pools == [(8, 8), (4, 4), (1, 1)]


@pytest.mark.usefixtures("_no_launcher")
def test_processes_of_a_launcher_divide_a_ray_cluster(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = windrow.range(9, block_rows=3).repeat(2).options(executor="ray")
    alone = pipe.explain(2)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    divided = pipe.explain(2)
    assert (alone.workers, divided.workers) == (4, 2)
    assert divided.budget.limit_bytes == alone.budget.limit_bytes // 2
    with pipe.shard(rank=0, world_size=2) as shard:
        assert sum(len(batch["id"]) for batch in shard.iter_batches(2)) == 4


def test_places_that_no_rank_has_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = windrow.range(8).repeat(1).options(executor="threads")
    with pipe.shard(rank=0, world_size=3):
        pass
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with (
        pytest.warns(RuntimeWarning, match="told of 3 places, and the launcher has started 2 ranks"),
        pipe.shard(rank=0, world_size=3),
    ):
        pass
    # those of a data-parallel group
    with pipe.shard(rank=0, world_size=1):
        pass


def test_explain_under_a_launcher_states_the_memory_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "1")
    plan = windrow.range(8).repeat(1).random_shuffle_each_window(seed=1).explain(2, equal=True)
    assert plan.executor.startswith("ray")
    # workers, the coordinator, a supervisor, and the trainers
    assert plan.budget.processes_bytes >= 4 * 40 * 2**20
