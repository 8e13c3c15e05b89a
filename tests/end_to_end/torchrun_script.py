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


def make_pipe(seed: int = 7) -> windrow.DatasetPipeline:
    """The pipeline of all cases."""
    pipe = windrow.read_parquet(DATA).window(blocks_per_window=2).repeat(2)
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
    """The same after attach(), where shard() is told its rank."""
    with windrow.attach() as attachment, make_pipe().shard(rank=RANK, world_size=WORLD_SIZE) as shard:
        return [take(shard), shard.stats().run.tasks, attachment.rank, attachment.world_size]


def dataloader() -> Any:
    """The same rows through two forked workers of a DataLoader, which share a run with those of the other ranks."""
    from torch.utils.data import DataLoader

    # the first case: once this process has connected to Ray, forked workers cannot
    with windrow.attach(), make_pipe().shard() as shard:
        loader: Any = DataLoader(shard.as_torch_dataset(BATCH_ROWS), batch_size=None, num_workers=2)
        return [[x for batch in loader for x in batch["x"].tolist()] for _ in range(2)]


def other_seed() -> Any:
    return take(make_pipe(seed=7 + RANK).shard())


def other_pipeline() -> Any:
    pipe = make_pipe()
    return take(
        (pipe.map_batches(lambda batch: batch) if RANK else pipe).shard(equal=True if RANK else "pad")
    )


def other_batch_size() -> Any:
    with make_pipe().shard() as shard:
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
