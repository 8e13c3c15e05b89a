"""Frameworks on a mesh of ranks: the losses are those of one process with the whole batch, up to rounding."""

from __future__ import annotations

import json
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import windrow
from tests.end_to_end.mesh_models import (
    GLOBAL_BATCH,
    RATE,
    STEPS,
    Attention,
    Perceptron,
    make_pipe,
    make_stages,
    mean_of,
    parallelize,
    squared_error,
    train_alone,
    write_samples,
)
from tests.end_to_end.torchrun_jobs import find_leftovers, run_torchrun, start_torchrun, wait_for
from tests.library_versions import is_older

# the places, slices and columns of ranks are tested on every change; these take longer to import torch than to train
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.nightly,
    pytest.mark.skipif(is_older("torch", 2, 6), reason="torch before 2.6 has no fully_shard"),
]
SCRIPT, CASES, JAX = (Path(__file__).with_name(f"mesh_{name}script.py") for name in ("", "cases_", "jax_"))
SAVE, DIE, STOP = 12, 17, 30


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_samples(tmp_path_factory.mktemp("samples") / "samples.parquet", 1_000))


def _error(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return squared_error(model(batch["x"]), batch["y"])


def _same(losses: Sequence[float]) -> Any:
    return pytest.approx(losses, rel=1e-5)


def test_fsdp_and_tensor_parallel_resume_on_another_mesh(data: str, tmp_path: Path) -> None:
    def arguments(shape: tuple[int, int], *, resume: int = 0, save: int = -1, die: int = -1) -> list[str]:
        stop = STOP - SAVE if resume else STOP
        return [data, str(tmp_path / "saved"), *map(str, (*shape, resume, save, die, stop))]

    # data parallel
    done = run_torchrun(SCRIPT, 2, arguments((2, 1)))
    assert done.code == 0, done.output
    ((expected, _),) = done.ranks[0]
    assert len(expected) == STOP

    # all ranks of 2 x 2 are killed
    with tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as tmp:
        killed = wait_for(start_torchrun(SCRIPT, 4, arguments((2, 2), save=SAVE, die=DIE), tmp=tmp))
        assert find_leftovers(tmp) == []
    assert killed.code != 0
    assert "SIGKILL" in killed.output, killed.output
    (first, state), *others = [value for rank in range(4) for value in killed.ranks[rank]]
    assert others == [[first, state]] * 3
    assert first == _same(expected[:SAVE])
    assert (state["row"], state["shards"]) == (SAVE * GLOBAL_BATCH, 2)

    done = run_torchrun(SCRIPT, 4, arguments((4, 1), resume=1))
    assert done.code == 0, done.output
    for rank in range(4):
        ((rest, _),) = done.ranks[rank]
        assert rest == _same(expected[SAVE:])


def test_kinds_of_parallelism_train_as_one_process(data: str) -> None:
    names = ["context", "pipeline", "explicit", "accelerate"]
    done = run_torchrun(CASES, 4, [data, *names])
    assert done.code == 0, done.output
    by_rank = [dict(done.ranks[rank]) for rank in range(4)]
    whole = windrow.SequenceSlice(index=0, count=1)
    expected = _same(train_alone(data, Attention(), lambda model, batch: model(batch), whole))
    assert [found["context"] for found in by_rank] == [expected] * 4
    tensor_parallel = _same(train_alone(data, Perceptron(), _error))
    for name in ("explicit", "accelerate"):
        assert [found[name] for found in by_rank] == [tensor_parallel] * 4
    stages = [found["pipeline"] for found in by_rank]
    assert [columns for columns, _ in stages] == [["x"], [], [], ["y"]]
    assert stages[-1][1] == _same(train_alone(data, torch.nn.Sequential(*make_stages()), _error))
    assert [len(steps) for _, steps in stages] == [STEPS] * 4


def test_lightning_trains_on_its_mesh(data: str) -> None:
    done = run_torchrun(CASES, 4, [data, "lightning"])
    assert done.code == 0, done.output
    expected = _same(train_alone(data, Perceptron(), _error))
    assert [done.ranks[rank] for rank in range(4)] == [[["lightning", expected]]] * 4


def test_jax_trains_on_a_mesh_of_two_axes_over_two_processes(data: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    done = run_torchrun(JAX, 2, [data, address])
    assert done.code == 0, done.output
    expected = _same(train_alone(data, Perceptron(), _error))
    assert done.ranks == {rank: [expected, expected] for rank in range(2)}


def _train(config: dict[str, Any]) -> None:
    """The training function of Ray Train."""
    from ray import train
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    model = parallelize(Perceptron(), mesh["dp"], mesh["tp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses: list[float] = []
    with make_pipe(config["data"]).shard(mesh=mesh) as shard:
        for batch in shard.iter_torch_batches(GLOBAL_BATCH // 2, columns=["x", "y"]):
            loss = _error(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(mean_of(loss, mesh["dp"].get_group()))
            if len(losses) == STEPS:
                break
    rank = train.get_context().get_world_rank()
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(losses))


@pytest.mark.filterwarnings("ignore")  # Ray Train's advice
def test_ray_train_workers_on_a_mesh(ray_local: Any, data: str, tmp_path: Path) -> None:
    from ray import train
    from ray.train.torch import TorchTrainer

    trainer = TorchTrainer(
        _train,
        train_loop_config={"data": data, "folder": str(tmp_path)},
        scaling_config=train.ScalingConfig(num_workers=4, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=str(tmp_path / "runs")),
    )
    trainer.fit()
    expected = _same(train_alone(data, Perceptron(), _error))
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(4)] == [expected] * 4
