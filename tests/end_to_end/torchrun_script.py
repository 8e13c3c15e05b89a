"""What a rank does in the tests of torchrun: the cases that its arguments name, each reported as a JSON value."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import windrow

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
DATA, STATE = sys.argv[1], Path(sys.argv[2])
BATCH_ROWS = 50


def report(value: Any) -> None:
    """Print a value of this rank, as one write, so that ranks' lines do not mix."""
    os.write(1, f"#{RANK} {json.dumps(value)}\n".encode())


def make_pipe(seed: int = 7, epochs: int | None = 2) -> windrow.DatasetPipeline:
    """The pipeline of all cases."""
    pipe = windrow.read_parquet(DATA).window(blocks_per_window=2).repeat(epochs)
    return pipe.random_shuffle_each_window(seed=seed).options(progress=False)


def take(shard: windrow.Shard, batch_rows: int = BATCH_ROWS) -> list[list[int]]:
    """The rows of every epoch that is left."""
    return [
        [x for batch in epoch.iter_batches(batch_size=batch_rows) for x in batch["x"].tolist()]
        for epoch in shard.iter_epochs()
    ]


def stream() -> Any:
    """All rows, and the number of tasks that the run of this rank has finished."""
    with make_pipe().shard() as shard:
        return [take(shard), shard.stats().run.tasks]


def attached() -> Any:
    """The same after attach(), with the rank as an argument of shard()."""
    with windrow.attach() as attachment, make_pipe().shard(rank=RANK, world_size=WORLD_SIZE) as shard:
        return [take(shard), shard.stats().run.tasks, attachment.rank, attachment.world_size]


def begins_otherwise() -> Any:
    """What each rank gets that reads for itself, of what the ranks do not do alike; else the number of its batches."""
    import torch.distributed as distributed

    distributed.init_process_group("gloo")
    pipe = make_pipe(epochs=3).options(executor="threads")
    with pipe.iterator() as reader:
        next(iter(next(reader.iter_epochs()).iter_batches(batch_size=BATCH_ROWS)))
        state = reader.state_dict()

    if RANK:
        # a shard that is this rank's alone
        with pipe.shard(rank=0, world_size=1) as own:
            next(iter(own.iter_batches(batch_size=3)))

    def read(seed: int, batch_rows: int, loaded: Any) -> Any:
        shard = make_pipe(seed, 3).options(executor="threads").shard()
        distributed.barrier()
        try:
            with shard:
                if loaded is not None:
                    shard.load_state_dict(loaded)
                return sum(1 for _ in next(shard.iter_epochs()).iter_batches(batch_size=batch_rows))
        except windrow.WindrowError as error:
            return [type(error).__name__, str(error)]

    found = [
        read(7, BATCH_ROWS, None),
        read(7, BATCH_ROWS, state),
        read(7 + RANK, BATCH_ROWS, None),
        read(7, BATCH_ROWS + RANK, None),
        read(7, BATCH_ROWS, state if RANK else None),
    ]
    distributed.barrier()
    return found


def without_ray() -> Any:
    """The rows, the number of tasks, and the warnings of a rank where Ray is not installed."""
    sys.modules["ray"] = None  # type: ignore[assignment]  # so that it is not found
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        shard = make_pipe().shard()
    with shard:
        return [take(shard), shard.stats().run.tasks, [str(each.message) for each in warned]]


def dataloader() -> Any:
    """The same rows through two forked workers of a DataLoader, which share a run with those of the other ranks."""
    from torch.utils.data import DataLoader

    # the first case: once this process has connected to Ray, forked workers cannot
    with windrow.attach(), make_pipe().shard() as shard:
        loader: Any = DataLoader(shard.as_torch_dataset(BATCH_ROWS), batch_size=None, num_workers=2)
        return [[x for batch in loader for x in batch["x"].tolist()] for _ in range(2)]


def _make_model() -> Any:
    """A small model whose parameters FSDP divides among the ranks, on the CPU."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 4)
    fully_shard(model, mesh=init_device_mesh("cpu", (WORLD_SIZE,)))
    return model


def _train(model: Any, batches: Any) -> Any:
    """Train on batches, whose collectives need equal numbers of steps on every rank; yields the rows of each."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for batch in batches:
        model(batch["x"].float()[:, None]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield batch["x"].tolist()


def fsdp_save() -> Any:
    """Train with FSDP for an epoch and four steps, and save model and shard with torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.checkpoint.state_dict_saver import save

    model, taken = _make_model(), []
    with make_pipe().shard() as shard:
        for epoch in shard.iter_epochs():
            for rows in _train(model, epoch.iter_torch_batches(batch_size=BATCH_ROWS)):
                taken.append(rows)
                if epoch.number == 1 and len(taken) == len(epoch_steps(shard)) + 4:
                    save(
                        {"model": get_model_state_dict(model), "data": shard},
                        checkpoint_id=STATE.with_suffix(".dcp"),
                    )
                    return taken
    return None


def epoch_steps(shard: windrow.Shard) -> range:
    """The steps of an epoch."""
    return range(shard.steps_per_epoch(BATCH_ROWS))


def fsdp_resume() -> Any:
    """Load both with another number of ranks, and train on the rest."""
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    model = _make_model()
    with make_pipe().shard() as shard:
        state: dict[str, Any] = {"model": get_model_state_dict(model), "data": shard}
        load(state, checkpoint_id=STATE.with_suffix(".dcp"))
        set_model_state_dict(model, state["model"])
        return [list(_train(model, e.iter_torch_batches(batch_size=20))) for e in shard.iter_epochs()]


def other_seed() -> Any:
    return take(make_pipe(seed=7 + RANK).shard())


def other_pipeline() -> Any:
    pipe = make_pipe()
    return take(
        (pipe.map_batches(lambda batch: batch) if RANK else pipe).shard(equal=True if RANK else "pad")
    )


def other_batch_size() -> Any:
    # forever: a rank that has prefetched all of its rows before the other begins needs nothing more, and gets no error
    with make_pipe(epochs=None).shard() as shard:
        return take(shard, BATCH_ROWS + RANK)


def absent_rank() -> Any:
    if RANK == WORLD_SIZE - 1:
        time.sleep(6)
        return "came too late"
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            return take(make_pipe().options(stall_timeout=3).shard())
        finally:
            report([str(each.message) for each in warned])


def killed() -> Any:
    """Two processes' first life ends by SIGKILL of the last rank after some steps; the next one resumes."""
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    state = json.loads(STATE.read_text()) if STATE.exists() else None
    taken = []
    with make_pipe().shard(state_dict=state) as shard:
        for epoch in shard.iter_epochs():
            batches = epoch.iter_batches(batch_size=BATCH_ROWS)
            for step, batch in enumerate(batches, batches.start):
                taken.append([epoch.number, step, batch["x"].tolist()])
                if life == 0 and epoch.number == 1 and step == 2:
                    report(taken)
                    _kill_last_rank(shard)
    return taken


def _kill_last_rank(shard: windrow.Shard) -> None:
    ready = STATE.with_suffix(f".{RANK}")
    ready.write_text("")
    while not all(STATE.with_suffix(f".{rank}").exists() for rank in range(WORLD_SIZE)):
        time.sleep(0.01)
    if RANK == 0:
        temporary = STATE.with_suffix(".tmp")
        temporary.write_text(json.dumps(shard.state_dict()))
        temporary.replace(STATE)
    if RANK == WORLD_SIZE - 1:
        while not STATE.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(120)


def resumed() -> Any:
    """The rest of the stream after the state."""
    with make_pipe().shard(state_dict=json.loads(STATE.read_text())) as shard:
        return take(shard)


def wait_for_kill() -> Any:
    """Read a batch, and stay."""
    with make_pipe().shard() as shard:
        next(iter(shard.iter_batches(batch_size=BATCH_ROWS)))
        report("reading")
        time.sleep(120)


def main() -> None:
    """Run the cases; a case's error is its report."""
    for name in sys.argv[3:]:
        case: Callable[[], Any] = globals()[name]
        try:
            report(case())
        except windrow.WindrowError as error:
            report([type(error).__name__, str(error)])


if __name__ == "__main__":
    main()
